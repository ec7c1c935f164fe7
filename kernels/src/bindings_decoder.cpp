// A whole decoder, one call a step.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "bindings.h"
#include "bindings_checks.h"
#include "choice.h"
#include "decoder.h"
#include "weight.h"

namespace bindings {
namespace {

std::vector<float> copied(const std::optional<Vector>& v, size_t size, const char* what) {
  if (!v) return {};
  require_memory(*v);
  require(v->shape(0) == size, std::string(what) + " must be [" + std::to_string(size) + "]");
  return {v->data(), v->data() + size};
}

void check_weight(const sge::Weight& w, int n, int k, const char* what) {
  require(w.n == n && w.k == k, std::string(what) + " must be [" + std::to_string(n) + ", " + std::to_string(k) +
                                    "], it is [" + std::to_string(w.n) + ", " + std::to_string(w.k) + "]");
}

void init_decoder(sge::Decoder* self, std::shared_ptr<sge::Weight> embedding, const Vector& final_norm, int q_heads,
                  int kv_heads, int head_dim, int intermediate, double eps, double head_eps, double scale, int window,
                  double logit_cap, const Matrix& rope_table, bool neox) {
  require(kv_heads > 0 && q_heads > 0 && q_heads % kv_heads == 0, "q_heads must be a positive multiple of kv_heads");
  require(head_dim > 0 && head_dim % sge::kPanel == 0, "head_dim must be a positive multiple of 16");
  constexpr int64_t kMost = 1 << 24;  // widths far beyond any model, whose sums still fit
  require(q_heads <= kMost && head_dim <= kMost && int64_t{q_heads} * head_dim <= kMost,
          "q_heads times head_dim must be at most 2^24");
  require(intermediate > 0 && intermediate <= kMost, "intermediate must be between 1 and 2^24");
  require(std::isfinite(eps) && eps >= 0 && std::isfinite(head_eps) && head_eps >= 0,
          "eps and head_eps must be finite and at least 0");
  require_finite(scale, "scale");
  require_memory(final_norm, rope_table);
  require(rope_table.shape(1) > 0 && rope_table.shape(1) % 2 == 0 && rope_table.shape(1) <= static_cast<size_t>(head_dim),
          "the rope table must be [positions, rotary_dim], rotary_dim even and at most head_dim");
  require(std::isfinite(logit_cap) && logit_cap >= 0, "logit_cap must be finite and at least 0 (0: none)");
  new (self) sge::Decoder();
  self->hidden = embedding->k;
  self->final_norm = copied(final_norm, static_cast<size_t>(embedding->k), "final_norm");
  self->q_heads = q_heads, self->kv_heads = kv_heads, self->head_dim = head_dim, self->intermediate = intermediate;
  self->eps = static_cast<float>(eps), self->head_eps = static_cast<float>(head_eps);
  self->scale = static_cast<float>(scale), self->window = window, self->logit_cap = static_cast<float>(logit_cap);
  self->rope_table.assign(rope_table.data(), rope_table.data() + rope_table.size());
  self->rotary_dim = as_int(rope_table.shape(1), "rotary_dim"), self->neox = neox;
  self->embedding = std::move(embedding);
}

void add_layer(sge::Decoder& self, std::shared_ptr<sge::Weight> qkv, std::shared_ptr<sge::Weight> o,
               std::shared_ptr<sge::Weight> gate_up, std::shared_ptr<sge::Weight> down, const Vector& input_norm,
               const Vector& post_norm, const std::optional<Vector>& qkv_bias, const std::optional<Vector>& o_bias,
               const std::optional<Vector>& q_norm, const std::optional<Vector>& k_norm) {
  const int q_size = self.q_heads * self.head_dim, qkv_size = q_size + 2 * self.kv_heads * self.head_dim;
  check_weight(*qkv, qkv_size, self.hidden, "qkv");
  check_weight(*o, self.hidden, q_size, "o");
  check_weight(*gate_up, 2 * self.intermediate, self.hidden, "gate_up");
  check_weight(*down, self.hidden, self.intermediate, "down");
  require(q_norm.has_value() == k_norm.has_value(), "q_norm and k_norm come together");
  const size_t hidden = static_cast<size_t>(self.hidden), d = static_cast<size_t>(self.head_dim);
  sge::Layer layer;
  layer.qkv_bias = copied(qkv_bias, static_cast<size_t>(qkv_size), "qkv_bias");
  layer.o_bias = copied(o_bias, hidden, "o_bias");
  layer.input_norm = copied(input_norm, hidden, "input_norm");
  layer.post_norm = copied(post_norm, hidden, "post_norm");
  layer.q_norm = copied(q_norm, d, "q_norm");
  layer.k_norm = copied(k_norm, d, "k_norm");
  layer.qkv = std::move(qkv), layer.o = std::move(o), layer.gate_up = std::move(gate_up), layer.down = std::move(down);
  self.layers.push_back(std::move(layer));
  self.cache_slots = 0;
}

// The memory stays the caller's; the lists are kept alive as long as the decoder.
void set_cache(sge::Decoder& self, const std::vector<CacheArray>& k, const std::vector<CacheArray>& v) {
  require(k.size() == self.layers.size() && v.size() == k.size(), "one K and one V cache for each layer");
  require(!k.empty(), "set_cache needs a decoder with layers");
  std::vector<sge::KvCache> caches;
  const auto slots = static_cast<int64_t>(k[0].shape(0));
  for (size_t i = 0; i < k.size(); ++i) {
    const sge::KvCache kv = cache_of(k[i], v[i]);
    require(kv.kv_heads == self.kv_heads && kv.head_dim == self.head_dim, "the cache must be [slots, kv_heads, head_dim]");
    require(static_cast<int64_t>(k[i].shape(0)) == slots, "all layers must have equally many slots");
    caches.push_back(kv);
  }
  for (size_t i = 0; i < k.size(); ++i) self.layers[i].kv = caches[i];
  self.cache_slots = slots;
}

using Mask = Array<const uint8_t, nb::ndim<3>>;

// What decoded requests read of their contexts; `step` has their lengths.
sge::Blocks blocks_of(const sge::Decoder& self, const sge::Requests& step, int block_tokens,
                      const std::optional<Mask>& kept, std::vector<int64_t> tail, const std::optional<CubeOut>& mass) {
  sge::Blocks blocks;
  const auto requests = static_cast<size_t>(step.count());
  require(block_tokens > 0, "block_tokens must be at least 1");
  require(self.window < 0, "blocks of a model with a sliding window cannot be left out");
  blocks.block_tokens = block_tokens;
  if (kept) {
    require_memory(*kept);
    require(kept->shape(0) == 1 || kept->shape(0) == self.layers.size(), "kept must have 1 layer, or the decoder's");
    require(kept->shape(1) == requests, "kept must be [layers, requests, blocks]");
    require(tail.size() == requests, "tail must be [requests]");
    blocks.layers = as_int(kept->shape(0), "layers"), blocks.width = static_cast<int64_t>(kept->shape(2));
    for (size_t r = 0; r < requests; ++r) {
      const int64_t length = step.first[r + 1] - step.first[r], queries = step.query[r + 1] - step.query[r];
      require(tail[r] == 0 || queries == 1, "only decoded requests leave blocks out: tail is 0 for others");
      require(tail[r] == 0 || tail[r] < length, "the tail must hold the newest token");
      require(tail[r] % block_tokens == 0 && tail[r] / block_tokens <= blocks.width,
              "tail must be a multiple of block_tokens, and kept must cover what is before it");
    }
    // A copy, so that all layers of a step see the same; none where nothing is left out.
    const bool pruned = std::any_of(tail.begin(), tail.end(), [](int64_t t) { return t > 0; });
    if (pruned) blocks.kept.assign(kept->data(), kept->data() + kept->size());
    blocks.tail = std::move(tail);
  }
  if (mass) {
    require_memory(*mass);
    require(mass->shape(0) == self.layers.size() && mass->shape(1) == requests, "mass must be [layers, requests, blocks]");
    blocks.mass = mass->data(), blocks.mass_width = static_cast<int64_t>(mass->shape(2));
    for (size_t r = 0; r < requests; ++r) {
      require(step.query[r + 1] - step.query[r] == 1, "mass is for requests with one query");
      // The last token's block, and not a product, which could overflow.
      require((step.first[r + 1] - step.first[r] - 1) / block_tokens < blocks.mass_width, "mass has too few blocks");
    }
  }
  return blocks;
}

void init_block_keys(sge::BlockKeys* self, int layers, int kv_heads, int head_dim, bool bounds) {
  require(layers > 0 && kv_heads > 0, "layers and kv_heads must be at least 1");
  require(head_dim > 0 && head_dim % sge::kPanel == 0, "head_dim must be a positive multiple of 16");
  require(bounds || head_dim <= sge::kMostNumbers,
          "codes are of keys of at most " + std::to_string(sge::kMostNumbers) + " numbers a head");
  new (self) sge::BlockKeys(layers, kv_heads, head_dim, bounds ? sge::BlockKind::kBounds : sge::BlockKind::kCodes);
}

// Refused while a step uses them.
void reset_block_keys(sge::BlockKeys& self) {
  require(self.claim(), "the keys are in use by a step");
  self.reset();
  self.release();
}

using ChoiceRow = std::tuple<std::shared_ptr<sge::BlockKeys>, int, int, int, int, Vector, double>;

// Claims the keys of choices, and gives them back.
class Claims {
 public:
  void add(const std::shared_ptr<sge::BlockKeys>& keys) {
    held_.reserve(held_.size() + 1);
    require(keys->claim(), "the keys of a choice are in use by another request or step");
    held_.push_back(keys);
  }
  ~Claims() {
    for (const auto& keys : held_) keys->release();
  }

 private:
  std::vector<std::shared_ptr<sge::BlockKeys>> held_;
};

// What the row says, checked, its keys claimed.
sge::Choice choice_of(const ChoiceRow& row, int block_tokens, Claims& claims) {
  const auto& [keys, blocks, budget, sinks, recent, bonus, tilt] = row;
  require(sinks >= 0 && recent >= 0 && int64_t{sinks} + recent <= budget && budget <= blocks,
          "accepted: sinks + recent <= budget <= blocks");
  require_memory(bonus);
  require(bonus.shape(0) == static_cast<size_t>(blocks), "bonus must be [blocks]");
  require(tilt >= 0 && tilt <= 1, "accepted: tilt within 0 and 1");
  claims.add(keys);
  require(keys->block_tokens() == 0 || keys->block_tokens() == block_tokens,
          "the keys of a choice are of blocks of " + std::to_string(keys->block_tokens()) + " tokens, not " +
              std::to_string(block_tokens));
  return {keys, blocks, budget, sinks, recent, bonus.data(), tilt};
}

// One for each request; none where no request has one.
std::vector<sge::Choice> choices_of(const sge::Decoder& self, const std::vector<std::optional<ChoiceRow>>& rows,
                                    const sge::Blocks& blocks, Claims& claims) {
  require(rows.size() == blocks.tail.size(), "choices must have one entry a request");
  std::vector<sge::Choice> choices(rows.size());
  bool any = false;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (!rows[r]) continue;
    any = true;
    const auto& keys = std::get<0>(*rows[r]);
    require(keys != nullptr, "a choice needs keys");
    require(keys->layers() == static_cast<int>(self.layers.size()) && keys->kv_heads() == self.kv_heads &&
                keys->head_dim() == self.head_dim,
            "the keys of a choice must be of the decoder's layers, kv_heads and head_dim");
    const int count = std::get<1>(*rows[r]);
    // A tail is for decoded requests.
    require(count > 0 && int64_t{count} * blocks.block_tokens == blocks.tail[r],
            "the blocks of a choice must end where the tail begins");
    choices[r] = choice_of(*rows[r], blocks.block_tokens, claims);
  }
  if (!any) return {};
  for (const auto& choice : choices) {
    if (choice.keys) choice.keys->make_room(choice.blocks, blocks.block_tokens);
  }
  return choices;
}

void forward(const sge::Decoder& self, const std::optional<Indices>& ids, const Indices& positions,
             const Indices& out_slots, const Indices& kv_indptr, const Indices& kv_slots, const Indices& q_indptr,
             const MatrixOut& hidden_states, int block_tokens, const std::optional<Mask>& kept,
             const std::optional<Indices>& tail, const std::optional<CubeOut>& mass,
             const std::optional<std::vector<std::optional<ChoiceRow>>>& choices) {
  require(self.cache_slots > 0, "set_cache comes first");
  const size_t tokens = positions.shape(0), requests = kv_indptr.shape(0) - 1;
  require(hidden_states.shape(0) == tokens && hidden_states.shape(1) == static_cast<size_t>(self.hidden),
          "hidden_states must be [tokens, hidden]");
  require(out_slots.shape(0) == tokens, "out_slots must be [tokens]");
  require_memory(hidden_states);
  const auto at = in_range(positions, static_cast<int64_t>(self.rope_table.size()) / self.rotary_dim, "positions");
  const auto to = in_range(out_slots, self.cache_slots, "out_slots");
  check_offsets(kv_indptr, static_cast<int64_t>(kv_slots.shape(0)), "kv_indptr");
  const auto read = in_range(kv_slots, self.cache_slots, "kv_slots");
  require(q_indptr.shape(0) == requests + 1, "q_indptr must be [requests + 1]");
  check_offsets(q_indptr, static_cast<int64_t>(tokens), "q_indptr");
  require(!ids || ids->shape(0) == tokens, "ids must be [tokens]");
  const auto tokens_in = ids ? in_range(*ids, self.embedding->n, "ids") : std::vector<int64_t>();
  sge::Requests step;
  step.first.assign(kv_indptr.data(), kv_indptr.data() + requests + 1);
  step.query.assign(q_indptr.data(), q_indptr.data() + requests + 1);
  step.slots = read.data();
  for (size_t r = 0; r < requests; ++r) {
    require(step.query[r + 1] - step.query[r] <= step.first[r + 1] - step.first[r], "a request has more queries than tokens");
  }
  const int count = as_int(tokens, "tokens");
  require(kept.has_value() == tail.has_value(), "kept and tail come together");
  auto tails = tail ? in_range(*tail, int64_t{1} << 40, "tail") : std::vector<int64_t>();
  const bool chosen = kept || mass;
  sge::Blocks blocks = chosen ? blocks_of(self, step, block_tokens, kept, std::move(tails), mass) : sge::Blocks();
  require(!choices || kept, "choices need kept and tail");
  Claims claims;
  std::vector<sge::Choice> rows;
  if (choices) rows = choices_of(self, *choices, blocks, claims);
  // Nothing is refused from here on, so nothing was written by a call that is.
  if (mass) std::fill(mass->data(), mass->data() + mass->size(), 0.0f);
  Unlocked unlocked;
  self.forward(ids ? tokens_in.data() : nullptr, at.data(), to.data(), count, step, hidden_states.data(),
               chosen ? &blocks : nullptr, rows.empty() ? nullptr : &rows);
}

// One layer's choice of one request, for a model that runs module by module; true in kept [kv_heads, blocks] is read.
void choose_blocks(const ChoiceRow& choice, int layer, const Matrix& q, const CacheArray& k_cache, const Indices& slots,
                   int block_tokens, double scale, double logit_cap, const Array<uint8_t, nb::ndim<2>>& kept) {
  const auto& keys = std::get<0>(choice);
  const int count = std::get<1>(choice);
  const sge::KvCache kv = cache_of(k_cache, k_cache);
  const int q_heads = check_heads(q.shape(0), kv);
  require(keys != nullptr, "a choice needs keys");
  require(keys->kv_heads() == kv.kv_heads && keys->head_dim() == kv.head_dim && q.shape(1) == static_cast<size_t>(kv.head_dim),
          "the keys of a choice must be of the cache's kv_heads and head_dim");
  require(layer >= 0 && layer < keys->layers(), "layer must be one of those of the keys");
  require(block_tokens > 0 && count > 0 && static_cast<size_t>(count) <= slots.shape(0) / static_cast<size_t>(block_tokens),
          "slots must hold the blocks of the choice");
  require_memory(q, kept);
  require(kept.shape(0) == static_cast<size_t>(kv.kv_heads) && kept.shape(1) == static_cast<size_t>(count),
          "kept must be [kv_heads, blocks]");
  require_finite(scale, "scale");
  require(std::isfinite(logit_cap) && logit_cap >= 0, "logit_cap must be finite and at least 0 (0: none)");
  const auto at = in_range(slots, static_cast<int64_t>(k_cache.shape(0)), "slots");
  Claims claims;
  const sge::Choice one = choice_of(choice, block_tokens, claims);
  keys->make_room(count, block_tokens);
  const sge::AttentionShape shape{q_heads, static_cast<float>(scale), static_cast<float>(logit_cap), -1};
  Unlocked unlocked;
  const sge::Summary summary = keys->upto(layer, count, kv, at.data());
  for (int h = 0; h < kv.kv_heads; ++h) {
    sge::choose(one, layer, h, q.data(), shape, summary, kept.data() + static_cast<size_t>(h) * static_cast<size_t>(count));
  }
}

}  // namespace

void add_decoder(nb::module_& m) {
  nb::class_<sge::Decoder>(m, "Decoder")
      .def("__init__", &init_decoder, "embedding"_a, "final_norm"_a.noconvert(), "q_heads"_a, "kv_heads"_a, "head_dim"_a,
           "intermediate"_a, "eps"_a, "head_eps"_a, "scale"_a, "window"_a, "logit_cap"_a, "rope_table"_a.noconvert(),
           "neox"_a)
      .def("add_layer", &add_layer, "qkv"_a, "o"_a, "gate_up"_a, "down"_a, "input_norm"_a.noconvert(),
           "post_norm"_a.noconvert(), "qkv_bias"_a.noconvert() = nb::none(), "o_bias"_a.noconvert() = nb::none(),
           "q_norm"_a.noconvert() = nb::none(), "k_norm"_a.noconvert() = nb::none())
      .def("set_cache", &set_cache, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), "k"_a.noconvert(), "v"_a.noconvert())
      .def("forward", &forward, "ids"_a.noconvert().none(), "positions"_a.noconvert(), "out_slots"_a.noconvert(),
           "kv_indptr"_a.noconvert(), "kv_slots"_a.noconvert(), "q_indptr"_a.noconvert(), "hidden_states"_a.noconvert(),
           "block_tokens"_a = 0, "kept"_a.noconvert() = nb::none(), "tail"_a.noconvert() = nb::none(),
           "mass"_a.noconvert() = nb::none(), "choices"_a.noconvert() = nb::none());
  m.def("choose_blocks", &choose_blocks, "choice"_a.noconvert(), "layer"_a, "q"_a.noconvert(), "k_cache"_a.noconvert(),
        "slots"_a.noconvert(), "block_tokens"_a, "scale"_a, "logit_cap"_a, "kept"_a.noconvert());
  nb::class_<sge::BlockKeys>(m, "BlockKeys")
      .def("__init__", &init_block_keys, "layers"_a, "kv_heads"_a, "head_dim"_a, "bounds"_a)
      .def("reset", &reset_block_keys)
      .def_prop_ro("ready", &sge::BlockKeys::ready)
      .def_prop_ro("nbytes", &sge::BlockKeys::bytes);
}

}  // namespace bindings

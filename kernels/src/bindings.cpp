// The Python module. Everything that could read or write outside its memory is refused here: dtype, shape, contiguity
// and device by the argument types, sizes and indices by the checks. What passes runs without the interpreter's lock.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "decoder.h"
#include "kernels.h"
#include "ops.h"
#include "team.h"
#include "weight.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class T, class... Options>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu, Options...>;
using Vector = Array<const float, nb::ndim<1>>;
using Matrix = Array<const float, nb::ndim<2>>;
using MatrixOut = Array<float, nb::ndim<2>>;
using Cube = Array<const float, nb::ndim<3>>;
using CubeOut = Array<float, nb::ndim<3>>;
using Indices = Array<const int64_t, nb::ndim<1>>;
// float32, or bfloat16 seen as uint16; [slots, kv_heads, head_dim].
using CacheArray = nb::ndarray<nb::ndim<3>, nb::c_contig, nb::device::cpu>;

using Unlocked = nb::gil_scoped_release;

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

int as_int(size_t value, const char* what) {
  require(value <= 0x7fffffff, std::string(what) + " must be below 2^31");
  return static_cast<int>(value);
}

// Memory that exists: a tensor may have a shape and no storage.
template <class... Arrays>
void require_memory(const Arrays&... arrays) {
  (require(arrays.size() == 0 || arrays.data() != nullptr, "an array has a shape but no memory"), ...);
}

// A copy that no one can change between the check and the use.
std::vector<int64_t> in_range(const Indices& indices, int64_t end, const char* what) {
  require_memory(indices);
  std::vector<int64_t> values(indices.data(), indices.data() + indices.shape(0));
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0 && values[i] < end) continue;
    throw std::invalid_argument(std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) +
                                "; accepted: " + (end > 0 ? "0 to " + std::to_string(end - 1) : "none, there is nothing to index"));
  }
  return values;
}

template <class X, class Out>
void require_apart(const X& x, const Out& out) {
  const auto* begin = reinterpret_cast<const char*>(x.data());
  const auto* end = begin + x.nbytes();
  const auto* other = reinterpret_cast<const char*>(out.data());
  require(end <= other || other + out.nbytes() <= begin || x.size() == 0 || out.size() == 0, "out must not overlap x");
}

void require_finite(double value, const char* what) { require(std::isfinite(value), std::string(what) + " must be finite"); }

void check_offsets(const Indices& offsets, int64_t end, const char* what) {
  require_memory(offsets);
  require(offsets.shape(0) >= 1 && offsets.data()[0] == 0, std::string(what) + " must begin with 0");
  for (size_t i = 1; i < offsets.shape(0); ++i) {
    require(offsets.data()[i] >= offsets.data()[i - 1], std::string(what) + " must not decrease");
  }
  require(offsets.data()[offsets.shape(0) - 1] == end,
          std::string(what) + " must end with " + std::to_string(end) + ", the number of entries it cuts up");
}

bool cache_is_bf16(const CacheArray& a) {
  const bool float32 = a.dtype() == nb::dtype<float>(), bits16 = a.dtype() == nb::dtype<uint16_t>();
  require(float32 || bits16, "the cache must be float32, or bfloat16 viewed as uint16");
  return bits16;
}

sge::KvCache cache_of(const CacheArray& k, const CacheArray& v) {
  const bool bf16 = cache_is_bf16(k);
  require_memory(k, v);
  require(cache_is_bf16(v) == bf16, "k_cache and v_cache must have one dtype");
  for (size_t i = 0; i < 3; ++i) require(k.shape(i) == v.shape(i), "k_cache and v_cache must have one shape");
  require(k.shape(1) > 0 && k.shape(2) > 0 && k.shape(2) % sge::kPanel == 0,
          "head_dim must be a positive multiple of 16");
  return {k.data(), v.data(), bf16, as_int(k.shape(1), "kv_heads"), as_int(k.shape(2), "head_dim")};
}

int check_heads(size_t q_heads, const sge::KvCache& kv) {
  require(q_heads > 0 && q_heads % static_cast<size_t>(kv.kv_heads) == 0, "q heads must be a multiple of the KV heads");
  return as_int(q_heads, "q_heads");
}

std::shared_ptr<sge::Weight> pack(const Matrix& matrix, const std::string& format, bool integer) {
  require(matrix.shape(0) > 0 && matrix.shape(1) > 0, "the matrix must not be empty");
  require_memory(matrix);
  Unlocked unlocked;
  return std::make_shared<sge::Weight>(matrix.data(), as_int(matrix.shape(0), "n"), as_int(matrix.shape(1), "k"), format,
                                       integer);
}

void rows(const sge::Weight& w, const Indices& ids, const MatrixOut& out) {
  require(out.shape(0) == ids.shape(0) && out.shape(1) == static_cast<size_t>(w.k), "out must be [ids, k]");
  require_memory(out);
  const std::vector<int64_t> wanted = in_range(ids, w.n, "ids");
  const int count = as_int(wanted.size(), "ids");
  Unlocked unlocked;
  sge::team()->run(count, [&](int i) {
    w.row(static_cast<int>(wanted[static_cast<size_t>(i)]), out.data() + static_cast<size_t>(i) * w.k);
  });
}

void linear(const Matrix& x, const sge::Weight& w, const MatrixOut& out, const std::optional<Vector>& bias, bool add) {
  require(x.shape(1) == static_cast<size_t>(w.k), "x must be [rows, k] with the k of the weight");
  require(out.shape(0) == x.shape(0) && out.shape(1) == static_cast<size_t>(w.n), "out must be [rows, n]");
  require(!bias || bias->shape(0) == static_cast<size_t>(w.n), "bias must be [n]");
  require_memory(x, out);
  require_apart(x, out);
  if (bias) require_memory(*bias);
  const int count = as_int(x.shape(0), "rows");
  Unlocked unlocked;
  sge::linear(x.data(), w.k, count, w, bias ? bias->data() : nullptr, add, out.data(), w.n);
}

void lm_head(const Matrix& x, const sge::Weight& w, const std::optional<MatrixOut>& logits,
             const std::optional<MatrixOut>& statistics, const std::optional<Indices>& targets,
             const std::optional<Array<float, nb::ndim<1>>>& target_logits) {
  const size_t count = x.shape(0);
  require(x.shape(1) == static_cast<size_t>(w.k), "x must be [rows, k] with the k of the weight");
  require(!logits || (logits->shape(0) == count && logits->shape(1) == static_cast<size_t>(w.n)), "logits must be [rows, n]");
  require(!statistics || (statistics->shape(0) == count && statistics->shape(1) == sge::kStatistics),
          "statistics must be [rows, 4]");
  require(targets.has_value() == target_logits.has_value(), "targets and target_logits come together");
  require(!targets || (targets->shape(0) == count && target_logits->shape(0) == count), "targets must be [rows]");
  require_memory(x);
  if (logits) require_memory(*logits);
  if (statistics) require_memory(*statistics);
  if (target_logits) require_memory(*target_logits);
  const std::vector<int64_t> wanted = targets ? in_range(*targets, w.n, "targets") : std::vector<int64_t>();
  const int r = as_int(count, "rows");
  Unlocked unlocked;
  sge::lm_head(x.data(), r, w, logits ? logits->data() : nullptr, statistics ? statistics->data() : nullptr,
               targets ? wanted.data() : nullptr, target_logits ? target_logits->data() : nullptr);
}

void rms_norm(const Matrix& x, const Vector& weight, double eps, const MatrixOut& out,
              const std::optional<MatrixOut>& residual) {
  for (size_t i = 0; i < 2; ++i) {
    require(out.shape(i) == x.shape(i) && (!residual || residual->shape(i) == x.shape(i)),
            "x, out and residual must have one shape");
  }
  require(weight.shape(0) == x.shape(1), "weight must be [n]");
  require(std::isfinite(eps) && eps >= 0, "eps must be finite and at least 0");
  require_memory(x, weight, out);
  if (residual) require_memory(*residual);
  const int count = as_int(x.shape(0), "rows"), n = as_int(x.shape(1), "n");
  Unlocked unlocked;
  sge::rms_norm(x.data(), residual ? residual->data() : nullptr, weight.data(), static_cast<float>(eps), count, n,
                out.data());
}

void silu_mul(const Matrix& x, const MatrixOut& out) {
  require(x.shape(0) == out.shape(0) && x.shape(1) == 2 * out.shape(1), "x must be [rows, 2 n] and out [rows, n]");
  require_memory(x, out);
  require_apart(x, out);
  const int count = as_int(x.shape(0), "rows"), n = as_int(out.shape(1), "n");
  Unlocked unlocked;
  sge::silu_mul(x.data(), count, n, out.data());
}

std::vector<int64_t> check_rope(const Matrix& table, const Indices& positions, size_t tokens, int head_dim) {
  require(table.shape(1) > 0 && table.shape(1) % 2 == 0 && table.shape(1) <= static_cast<size_t>(head_dim),
          "the rope table must be [positions, rotary_dim], rotary_dim even and at most head_dim");
  require(positions.shape(0) == tokens, "positions must be [tokens]");
  require_memory(table);
  return in_range(positions, static_cast<int64_t>(table.shape(0)), "positions");
}

void rope_write_kv(const MatrixOut& qkv, const Indices& positions, const Indices& slots, const Matrix& table, bool neox,
                   const CacheArray& k_cache, const CacheArray& v_cache) {
  const sge::KvCache kv = cache_of(k_cache, v_cache);
  const size_t tokens = qkv.shape(0), heads = qkv.shape(1) / static_cast<size_t>(kv.head_dim);
  require(qkv.shape(1) % static_cast<size_t>(kv.head_dim) == 0 && heads > 2 * static_cast<size_t>(kv.kv_heads),
          "qkv must be [tokens, (q_heads + 2 kv_heads) head_dim]");
  const int q_heads = check_heads(heads - 2 * static_cast<size_t>(kv.kv_heads), kv);
  require_memory(qkv);
  const std::vector<int64_t> at = check_rope(table, positions, tokens, kv.head_dim);
  require(slots.shape(0) == tokens, "slots must be [tokens]");
  const std::vector<int64_t> to = in_range(slots, static_cast<int64_t>(k_cache.shape(0)), "slots");
  const int count = as_int(tokens, "tokens"), rotary = as_int(table.shape(1), "rotary_dim");
  Unlocked unlocked;
  sge::rope_and_write(qkv.data(), count, q_heads, kv, {table.data(), rotary, neox}, {nullptr, nullptr, 0},
                      at.data(), to.data());
}

// Token slots of the requests whose pages are indices[indptr[r] .. indptr[r + 1]); the last page is filled to last[r].
std::vector<int64_t> slots_of(const Indices& indptr, const Indices& indices, const Indices& last, int page_size,
                              int64_t cache_slots, std::vector<int64_t>& first) {
  require(page_size > 0, "page_size must be at least 1");
  check_offsets(indptr, static_cast<int64_t>(indices.shape(0)), "kv_indptr");
  const size_t requests = indptr.shape(0) - 1;
  require(last.shape(0) == requests, "kv_last_page_len must be [requests]");
  const std::vector<int64_t> pages = in_range(indices, cache_slots / page_size, "kv_indices");
  require_memory(last);
  std::vector<int64_t> slots;
  first.assign(1, 0);
  for (size_t r = 0; r < requests; ++r) {
    const int64_t begin = indptr.data()[r], end = indptr.data()[r + 1];
    if (end > begin) {
      require(last.data()[r] >= 1 && last.data()[r] <= page_size,
              "kv_last_page_len must be between 1 and page_size for a request with pages");
    }
    for (int64_t p = begin; p < end; ++p) {
      const int64_t filled = p + 1 == end ? last.data()[r] : page_size;
      for (int64_t i = 0; i < filled; ++i) slots.push_back(pages[static_cast<size_t>(p)] * page_size + i);
    }
    first.push_back(static_cast<int64_t>(slots.size()));
  }
  return slots;
}

sge::AttentionShape shape_of(int q_heads, double scale, double logit_cap, int window) {
  require(std::isfinite(logit_cap) && logit_cap >= 0, "logit_cap must be finite and at least 0 (0: none)");
  require_finite(scale, "scale");
  return {q_heads, static_cast<float>(scale), static_cast<float>(logit_cap), window};
}

void paged_attention(const Cube& q, const CacheArray& k_cache, const CacheArray& v_cache, const Indices& kv_indptr,
                     const Indices& kv_indices, const Indices& kv_last_page_len, int page_size, double scale,
                     const CubeOut& out, const std::optional<Indices>& q_indptr, int window, double logit_cap,
                     const std::optional<MatrixOut>& lse, const std::optional<Array<float, nb::ndim<1>>>& page_mass) {
  const sge::KvCache kv = cache_of(k_cache, v_cache);
  const int q_heads = check_heads(q.shape(1), kv);
  require(q.shape(2) == static_cast<size_t>(kv.head_dim), "q must be [queries, q_heads, head_dim]");
  require_memory(q, out);
  require_apart(q, out);
  if (lse) require_memory(*lse);
  if (page_mass) require_memory(*page_mass);
  for (size_t i = 0; i < 3; ++i) require(out.shape(i) == q.shape(i), "out must have the shape of q");
  require(!lse || (lse->shape(0) == q.shape(0) && lse->shape(1) == q.shape(1)), "lse must be [queries, q_heads]");
  require(!page_mass || page_mass->shape(0) == kv_indices.shape(0), "page_mass must be [pages], as kv_indices");
  sge::Requests requests;
  const std::vector<int64_t> slots =
      slots_of(kv_indptr, kv_indices, kv_last_page_len, page_size, static_cast<int64_t>(k_cache.shape(0)), requests.first);
  requests.slots = slots.data();
  const size_t count = kv_indptr.shape(0) - 1;
  if (q_indptr) {
    require(q_indptr->shape(0) == count + 1, "q_indptr must be [requests + 1]");
    check_offsets(*q_indptr, static_cast<int64_t>(q.shape(0)), "q_indptr");
    requests.query.assign(q_indptr->data(), q_indptr->data() + count + 1);
  } else {
    require(q.shape(0) == count, "without q_indptr there is one query for each request");
    for (size_t r = 0; r <= count; ++r) requests.query.push_back(static_cast<int64_t>(r));
  }
  for (size_t r = 0; r < count; ++r) {
    const int64_t queries = requests.query[r + 1] - requests.query[r], length = requests.first[r + 1] - requests.first[r];
    require(queries <= std::max<int64_t>(length, 1), "a request has more queries than tokens");
    require(queries == 1 || !page_mass, "page_mass is for requests with one query");
  }
  if (page_mass) std::fill(page_mass->data(), page_mass->data() + page_mass->shape(0), 0.0f);
  const int width = q_heads * kv.head_dim;
  const sge::AttentionShape shape = shape_of(q_heads, scale, logit_cap, window);
  Unlocked unlocked;
  sge::attention({q.data(), width, out.data(), width, lse ? lse->data() : nullptr,
                  page_mass ? page_mass->data() : nullptr, kv_indptr.data(), page_size},
                 kv, shape, requests);
}

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

void forward(const sge::Decoder& self, const std::optional<Indices>& ids, const Indices& positions,
             const Indices& out_slots, const Indices& kv_indptr, const Indices& kv_slots, const Indices& q_indptr,
             const MatrixOut& hidden_states) {
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
  Unlocked unlocked;
  self.forward(ids ? tokens_in.data() : nullptr, at.data(), to.data(), count, step, hidden_states.data());
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Kernels of the portable CPU platform; see src/ of the kernels and sgl_entropic_kernels for the contracts.";
  sge::kernels();  // an unknown instruction set is said here, not from within a thread
  m.def("isa", [] { return std::string(sge::kernels().name); });
  m.def("set_threads", [](int threads) {
    require(threads >= 1 && threads <= 1024, "threads must be between 1 and 1024");
    Unlocked unlocked;
    sge::set_threads(threads);
  }, "threads"_a);
  m.def("threads", [] { return sge::team()->threads(); });
  m.def("regions", [] { return sge::team()->regions(); });
  m.def("sleeps", [] { return sge::team()->sleeps(); });

  nb::class_<sge::Weight>(m, "Weight")
      .def_ro("n", &sge::Weight::n)
      .def_ro("k", &sge::Weight::k)
      .def_ro("integer", &sge::Weight::integer)
      .def_ro("exact", &sge::Weight::exact)
      .def_prop_ro("format", [](const sge::Weight& w) { return std::string(sge::name_of(w.format)); })
      .def_prop_ro("bytes", &sge::Weight::bytes)
      .def("rows", &rows, "ids"_a.noconvert(), "out"_a.noconvert());
  m.def("pack", &pack, "matrix"_a.noconvert(), "format"_a, "integer"_a = false);
  m.def("linear", &linear, "x"_a.noconvert(), "weight"_a, "out"_a.noconvert(), "bias"_a.noconvert() = nb::none(),
        "add"_a = false);
  m.def("lm_head", &lm_head, "x"_a.noconvert(), "weight"_a, "logits"_a.noconvert() = nb::none(),
        "statistics"_a.noconvert() = nb::none(), "targets"_a.noconvert() = nb::none(),
        "target_logits"_a.noconvert() = nb::none());
  m.def("rms_norm", &rms_norm, "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a, "out"_a.noconvert(),
        "residual"_a.noconvert() = nb::none());
  m.def("silu_mul", &silu_mul, "x"_a.noconvert(), "out"_a.noconvert());
  m.def("rope_write_kv", &rope_write_kv, "qkv"_a.noconvert(), "positions"_a.noconvert(), "slots"_a.noconvert(),
        "table"_a.noconvert(), "neox"_a, "k_cache"_a.noconvert(), "v_cache"_a.noconvert());
  m.def("paged_attention", &paged_attention, "q"_a.noconvert(), "k_cache"_a.noconvert(), "v_cache"_a.noconvert(),
        "kv_indptr"_a.noconvert(), "kv_indices"_a.noconvert(), "kv_last_page_len"_a.noconvert(), "page_size"_a, "scale"_a,
        "out"_a.noconvert(), "q_indptr"_a.noconvert() = nb::none(), "window"_a = -1, "logit_cap"_a = 0.0,
        "lse"_a.noconvert() = nb::none(), "page_mass"_a.noconvert() = nb::none());

  nb::class_<sge::Decoder>(m, "Decoder")
      .def("__init__", &init_decoder, "embedding"_a, "final_norm"_a.noconvert(), "q_heads"_a, "kv_heads"_a, "head_dim"_a,
           "intermediate"_a, "eps"_a, "head_eps"_a, "scale"_a, "window"_a, "logit_cap"_a, "rope_table"_a.noconvert(),
           "neox"_a)
      .def("add_layer", &add_layer, "qkv"_a, "o"_a, "gate_up"_a, "down"_a, "input_norm"_a.noconvert(),
           "post_norm"_a.noconvert(), "qkv_bias"_a.noconvert() = nb::none(), "o_bias"_a.noconvert() = nb::none(),
           "q_norm"_a.noconvert() = nb::none(), "k_norm"_a.noconvert() = nb::none())
      .def("set_cache", &set_cache, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), "k"_a.noconvert(), "v"_a.noconvert())
      .def("forward", &forward, "ids"_a.noconvert().none(), "positions"_a.noconvert(), "out_slots"_a.noconvert(),
           "kv_indptr"_a.noconvert(), "kv_slots"_a.noconvert(), "q_indptr"_a.noconvert(), "hidden_states"_a.noconvert());
}

#include "choice.h"

#include <algorithm>
#include <cmath>

namespace sge {

BlockKeys::BlockKeys(int layers, int kv_heads, int head_dim, BlockKind kind)
    : kv_heads_(kv_heads), head_dim_(head_dim), kind_(kind), of_layer_(static_cast<size_t>(layers)) {
  reset();
}

size_t BlockKeys::of_block() const { return static_cast<size_t>(kv_heads_) * static_cast<size_t>(head_dim_) * 2; }

int BlockKeys::ready() const {
  int least = of_layer_[0].ready.load(std::memory_order_relaxed);
  for (const Layer& layer : of_layer_) least = std::min(least, layer.ready.load(std::memory_order_relaxed));
  return least;
}

void BlockKeys::reset() {
  for (Layer& layer : of_layer_) layer.ready.store(0, std::memory_order_relaxed);
  block_tokens_ = 0;
}

void BlockKeys::make_room(int blocks, int block_tokens) {
  const size_t segments = (static_cast<size_t>(blocks) * static_cast<size_t>(block_tokens) + kSegment - 1) / kSegment;
  const auto grow = [](auto& values, size_t size) {
    if (values.size() < size) values.resize(size);
    return values.capacity() * sizeof values[0];
  };
  size_t bytes = 0;
  for (Layer& layer : of_layer_) {
    if (kind_ == BlockKind::kBounds) {
      bytes += grow(layer.bounds, of_block() * static_cast<size_t>(blocks));
    } else {
      bytes += grow(layer.codes, segments * static_cast<size_t>(code_bytes(kv_heads_, head_dim_)));
      bytes += grow(layer.steps, segments * static_cast<size_t>(code_steps(kv_heads_, head_dim_)));
    }
  }
  bytes_.store(bytes, std::memory_order_relaxed);
  block_tokens_ = block_tokens;
}

namespace {

constexpr int kWidth = 16;  // of the vectors of kernels.h

// Of a segment's first `count` tokens those that are measured: a power of two of them, so that few more change nothing, and
// what the codes are depends on what there is alone, not on how it came.
int measured_of(int count) {
  int measured = count;
  for (int power = 16; power <= count; power *= 2) measured = power;
  return measured;
}

}  // namespace

void BlockKeys::code(Layer& layer, int from, int to, const KvCache& kv, const int64_t* slots) {
  for (int begin = from / kSegment * kSegment; begin < to; begin += kSegment) {
    const int before = std::max(0, from - begin), now = std::min(kSegment, to - begin), measured = measured_of(now);
    const bool same = before > 0 && measured_of(before) == measured;
    const auto segment = static_cast<int64_t>(begin / kSegment);
    kernels().code_keys(kv, slots + begin, same ? before : 0, now, same ? 0 : measured,
                        layer.steps.data() + segment * code_steps(kv_heads_, head_dim_),
                        layer.codes.data() + segment * code_bytes(kv_heads_, head_dim_));
  }
}

Summary BlockKeys::upto(int layer, int blocks, const KvCache& kv, const int64_t* slots) {
  Layer& own = of_layer_[static_cast<size_t>(layer)];
  const int before = own.ready.load(std::memory_order_relaxed);
  if (kind_ == BlockKind::kBounds) {
    for (int b = before; b < blocks; ++b) {
      kernels().bound_keys(kv, slots + int64_t{b} * block_tokens_, block_tokens_,
                           own.bounds.data() + of_block() * static_cast<size_t>(b));
    }
  } else if (blocks > before) {
    code(own, before * block_tokens_, blocks * block_tokens_, kv, slots);
  }
  own.ready.store(std::max(before, blocks), std::memory_order_relaxed);
  return this->of(layer);
}

bool BlockKeys::has(int layer, int blocks) const {
  return of_layer_[static_cast<size_t>(layer)].ready.load(std::memory_order_relaxed) >= blocks;
}

Summary BlockKeys::of(int layer) const {
  const Layer& own = of_layer_[static_cast<size_t>(layer)];
  return {{own.bounds.data(), kv_heads_, head_dim_}, {own.codes.data(), own.steps.data(), kv_heads_, head_dim_}};
}

Choice::Choice(std::shared_ptr<BlockKeys> keys, int blocks, int budget, int sinks, int recent, const float* bonus, double tilt)
    : keys(std::move(keys)), blocks(blocks), budget(budget), sinks(sinks), recent(recent), tilt(tilt) {
  for (int b = sinks; b < blocks - recent; ++b) {
    // Within what a share times it can be told as a float.
    factor.push_back(std::isnan(bonus[b]) ? 0.0f : std::exp(std::clamp(bonus[b], -60.0f, 60.0f)));
    if (std::isnan(bonus[b])) always.push_back(b - sinks);
  }
}

int Choice::of_layer(int layer) const {
  const int layers = keys->layers(), least = sinks + recent;
  const double room = std::min({tilt * budget, double(blocks - budget), double(budget - least)});
  if (layers == 1 || room <= 0) return budget;
  // Of all layers before the n-th; whole numbers whose differences lie within what each layer may read.
  const auto before = [&](int n) {
    const double leaning = double(n) * (n - 1) / (layers - 1) - n;
    return int64_t{n} * budget + static_cast<int64_t>(std::floor(leaning * room + 1e-7));
  };
  return static_cast<int>(before(layer + 1) - before(layer));
}

void choose(const Choice& choice, int layer, int kv_head, const float* q, const AttentionShape& shape, const Summary& keys,
            uint8_t* kept) {
  const int blocks = choice.blocks, first_recent = blocks - choice.recent;
  std::fill(kept, kept + choice.sinks, uint8_t{1});
  std::fill(kept + first_recent, kept + blocks, uint8_t{1});
  const int rest = choice.of_layer(layer) - choice.sinks - choice.recent;
  if (rest <= 0) {
    std::fill(kept + choice.sinks, kept + first_recent, uint8_t{0});
    return;
  }
  const auto room = static_cast<size_t>(blocks + kWidth);
  thread_local std::vector<float> score;
  if (score.size() < 2 * room) score.resize(2 * room);
  q += int64_t{kv_head} * (shape.q_heads / choice.keys->kv_heads()) * choice.keys->head_dim();
  if (choice.keys->kind() == BlockKind::kBounds) {
    kernels().score_bounds(q, keys.bounds, kv_head, shape, blocks, score.data());
  } else {
    kernels().score_codes(q, keys.codes, kv_head, shape, choice.keys->block_tokens(), blocks, score.data());
  }
  // The order of ln s + bonus is that of s e^bonus.
  float *middle = score.data() + room, *of_block = score.data() + choice.sinks;
  const int count = first_recent - choice.sinks;
  for (int b = 0; b < count; ++b) middle[b] = of_block[b] * choice.factor[static_cast<size_t>(b)];
  for (int b : choice.always) middle[b] = INFINITY;
  kernels().keep_largest(middle, count, rest, kept + choice.sinks);
}

}  // namespace sge

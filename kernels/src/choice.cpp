#include "choice.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

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

namespace {

// Larger for a larger score, and for the later one of equal blocks; the block is in the low half.
uint64_t rank_of(float score, int block) {
  uint32_t bits;
  const float positive_zero = score + 0.0f;
  std::memcpy(&bits, &positive_zero, sizeof bits);
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{bits} << 32 | static_cast<uint32_t>(block);
}

}  // namespace

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
  std::fill(kept + choice.sinks, kept + first_recent, uint8_t{0});
  std::fill(kept + first_recent, kept + blocks, uint8_t{1});
  const int rest = choice.of_layer(layer) - choice.sinks - choice.recent;
  if (rest <= 0) return;
  thread_local std::vector<float> weights, sums, score;
  thread_local std::vector<uint64_t> ranks;
  const int group = shape.q_heads / choice.keys->kv_heads();
  weights.resize(static_cast<size_t>(group) * blocks);
  sums.resize(static_cast<size_t>(group));
  q += int64_t{kv_head} * group * choice.keys->head_dim();
  if (choice.keys->kind() == BlockKind::kBounds) {
    kernels().score_bounds(q, keys.bounds, kv_head, shape, blocks, weights.data(), sums.data());
  } else {
    kernels().score_codes(q, keys.codes, kv_head, shape, choice.keys->block_tokens(), blocks, weights.data(), sums.data());
  }
  score.assign(static_cast<size_t>(blocks), 0.0f);
  for (int g = 0; g < group; ++g) {
    const float* w = weights.data() + static_cast<size_t>(g) * blocks;
    const float inverse = 1.0f / sums[static_cast<size_t>(g)];
    for (int b = 0; b < blocks; ++b) score[static_cast<size_t>(b)] += w[b] * inverse;
  }
  ranks.clear();
  for (int b = choice.sinks; b < first_recent; ++b) {
    const float bonus = choice.bonus[static_cast<size_t>(b)];
    const float s = std::isnan(bonus) ? INFINITY : std::log(score[static_cast<size_t>(b)]) + bonus;
    ranks.push_back(rank_of(std::isnan(s) ? -INFINITY : s, b));  // a query or key may be no number
  }
  const auto end = ranks.begin() + std::min<int64_t>(rest, static_cast<int64_t>(ranks.size()));
  if (end != ranks.end()) std::nth_element(ranks.begin(), end, ranks.end(), std::greater<>());
  for (auto it = ranks.begin(); it != end; ++it) kept[static_cast<uint32_t>(*it)] = 1;
}

}  // namespace sge

#include "choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sge {

BlockKeys::BlockKeys(int layers, int kv_heads, int head_dim, BlockKind kind)
    : kv_heads_(kv_heads), head_dim_(head_dim), kind_(kind), ready_(static_cast<size_t>(layers)), of_layer_(static_cast<size_t>(layers)) {}

size_t BlockKeys::bytes() const {
  size_t total = 0;
  for (const auto& keys : of_layer_) total += keys.capacity() * sizeof(uint16_t);
  return total;
}

const uint16_t* BlockKeys::upto(int layer, int blocks, const KvCache& kv, const int64_t* slots, int block_tokens) {
  std::vector<uint16_t>& keys = of_layer_[static_cast<size_t>(layer)];
  const size_t size = static_cast<size_t>(kv_heads_) * head_dim_ * (kind_ == BlockKind::kBounds ? 2 : 1);
  if (keys.size() < size * static_cast<size_t>(blocks)) keys.resize(size * static_cast<size_t>(blocks));
  int& ready = ready_[static_cast<size_t>(layer)];
  for (int b = ready; b < blocks; ++b) {
    const int64_t* of_block = slots + static_cast<int64_t>(b) * block_tokens;
    kernels().summarise_keys(kv, of_block, block_tokens, kind_, keys.data() + size * static_cast<size_t>(b));
  }
  ready = std::max(ready, blocks);
  return keys.data();
}

void choose(const Choice& choice, const float* q, const AttentionShape& shape, const uint16_t* keys, uint8_t* kept) {
  const int blocks = choice.blocks, first_recent = blocks - choice.recent;
  std::fill(kept, kept + blocks, uint8_t{0});
  std::fill(kept, kept + choice.sinks, uint8_t{1});
  std::fill(kept + first_recent, kept + blocks, uint8_t{1});
  const int rest = choice.budget - choice.sinks - choice.recent;
  if (rest <= 0) return;
  thread_local std::vector<float> weights, sums, score;
  thread_local std::vector<int> order;
  weights.resize(static_cast<size_t>(shape.q_heads) * blocks);
  sums.resize(static_cast<size_t>(shape.q_heads));
  score.assign(static_cast<size_t>(blocks), 0.0f);
  kernels().score_blocks(q, keys, choice.keys->kind(), choice.keys->kv_heads(), choice.keys->head_dim(), shape, blocks,
                         weights.data(), sums.data());
  for (int h = 0; h < shape.q_heads; ++h) {
    const float* w = weights.data() + static_cast<size_t>(h) * blocks;
    const float inverse = 1.0f / sums[static_cast<size_t>(h)];
    for (int b = 0; b < blocks; ++b) score[static_cast<size_t>(b)] += w[b] * inverse;
  }
  for (int b = choice.sinks; b < first_recent; ++b) {
    float& s = score[static_cast<size_t>(b)];
    const float bonus = choice.bonus[static_cast<size_t>(b)];
    s = std::isnan(bonus) ? INFINITY : std::log(s) + bonus;
    if (std::isnan(s)) s = -INFINITY;  // a query or key that is no number
  }
  order.resize(static_cast<size_t>(first_recent - choice.sinks));
  std::iota(order.begin(), order.end(), choice.sinks);
  // Of equals the later one.
  const auto before = [&](int a, int b) {
    const float x = score[static_cast<size_t>(a)], y = score[static_cast<size_t>(b)];
    return x != y ? x > y : a > b;
  };
  if (rest < static_cast<int>(order.size())) std::nth_element(order.begin(), order.begin() + rest, order.end(), before);
  for (int i = 0; i < std::min(rest, static_cast<int>(order.size())); ++i) kept[order[static_cast<size_t>(i)]] = 1;
}

void choose_all(const std::vector<Choice>& choices, const float* q, int ldq, const KvCache& kv, const AttentionShape& shape,
                const Requests& requests, int layer, Blocks& blocks) {
  std::vector<int> rows;
  for (int r = 0; r < requests.count(); ++r) {
    if (choices[static_cast<size_t>(r)].keys) rows.push_back(r);
  }
  team()->run(static_cast<int>(rows.size()), [&](int i) {
    const int r = rows[static_cast<size_t>(i)];
    const Choice& choice = choices[static_cast<size_t>(r)];
    const int64_t* slots = requests.slots + requests.first[r];
    const uint16_t* keys = choice.keys->upto(layer, choice.blocks, kv, slots, blocks.block_tokens);
    choose(choice, q + requests.query[r] * ldq, shape, keys, blocks.kept.data() + r * blocks.width);
  });
}

}  // namespace sge

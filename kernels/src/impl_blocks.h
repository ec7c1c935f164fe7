// What stands for a block of keys, and how a query scores it. Part of kernels_impl.cpp.
#pragma once

#include <algorithm>
#include <cmath>

#include "impl_attention.h"
#include "impl_rows.h"

namespace sge::SGE_ISA {
namespace {

// The least and the largest of each number of `count` keys.
template <bool BF16>
void bound_keys_of(const KvCache& kv, const int64_t* slots, int count, uint16_t* out) {
  const int d = kv.head_dim, width = kv.kv_heads * d;
  float* row = scratch(static_cast<size_t>(width) * 2, 2);
  for (int i = 0; i < width; i += kWidth) {
    const int head = i / d;
    F16 low = load_kv<BF16>(kv.k, kv.at(slots[0], head) + i % d), high = low;
    for (int t = 1; t < count; ++t) {
      const F16 key = load_kv<BF16>(kv.k, kv.at(slots[t], head) + i % d);
      low = min(low, key);
      high = max(high, key);
    }
    float* to = row + head * 2 * d + i % d;
    store(to, low);
    store(to + d, high);
  }
  to_bf16_row(row, 2 * width, out);
}

void bound_keys(const KvCache& kv, const int64_t* slots, int count, uint16_t* out) {
  (kv.bf16 ? bound_keys_of<true> : bound_keys_of<false>)(kv, slots, count, out);
}

// The keys of a step are far larger than any cache, so they are read once, as they lie, and asked for some blocks ahead.
constexpr int kBlocksAhead = 16;

// Scores [count] become weights relative to the largest, equal ones equal weights wherever they lie; their sum. What
// follows the scores, up to a whole vector, is written too.
float weigh_blocks(float* s, int count, const AttentionShape& shape) {
  const F16 scale = set1(shape.scale);
  for (int i = count; i % kWidth != 0; ++i) s[i] = 0.0f;
  for (int i = 0; i < count; i += kWidth) store(s + i, load(s + i) * scale);
  if (shape.logit_cap > 0.0f) {
    // tanh x = 1 - 2 / (e^2x + 1): as good as it has to be here, and there may be a score for each token.
    const F16 cap = set1(shape.logit_cap), one = set1(1.0f), two = set1(2.0f);
    for (int i = 0; i < count; i += kWidth) store(s + i, cap * (one - two / (exp(load(s + i) * two / cap) + one)));
  }
  for (int i = count; i % kWidth != 0; ++i) s[i] = -INFINITY;
  F16 tops = load(s);
  for (int i = kWidth; i < count; i += kWidth) tops = max(tops, load(s + i));
  const F16 top = set1(largest(tops));
  F16 total = zero();
  for (int i = 0; i < count; i += kWidth) {
    const F16 e = exp(load(s + i) - top);
    store(s + i, e);
    total = total + e;
  }
  return sum(total);
}

// weights [q_heads, blocks]: each head's softmax over the blocks, relative to its maximum; sums [q_heads].
void score_bounds(const float* q, const uint16_t* keys, int kv_heads, int d, const AttentionShape& shape, int blocks,
                  float* weights, float* sums) {
  using Step = void (*)(const float*, const void*, const int64_t*, int, int, float*, int);
  static constexpr Step kScore[] = {nullptr, score_tokens<true, 1>, score_tokens<true, 2>, score_tokens<true, 3>,
                                    score_tokens<true, 4>};
  const int group = shape.q_heads / kv_heads, ld = (blocks + kWidth - 1) / kWidth * kWidth;
  float* scores = scratch(static_cast<size_t>(shape.q_heads) * ld, 2);
  // The largest product of a number and one within bounds is that with the larger bound where the number is positive,
  // else that with the smaller: one product of twice as many numbers.
  float* parts = scratch(static_cast<size_t>(shape.q_heads) * d * 2, 3);
  for (int h = 0; h < shape.q_heads; ++h) {
    for (int i = 0; i < d; i += kWidth) {
      const F16 query = load(q + h * d + i);
      store(parts + h * 2 * d + i, min(query, zero()));
      store(parts + h * 2 * d + d + i, max(query, zero()));
    }
  }
  q = parts, d *= 2;
  const int64_t row = static_cast<int64_t>(kv_heads) * d;
  const auto prefetch = [&](int from, int to) {
    const uint16_t* end = keys + std::min(to, blocks) * row;
    for (const uint16_t* p = keys + from * row; p < end; p += 32) prefetch_line(reinterpret_cast<const char*>(p));
  };
  prefetch(0, kBlocksAhead);
  for (int b = 0; b < blocks; b += 4) {
    const int count = std::min(4, blocks - b);
    if (b + kBlocksAhead < blocks) prefetch(b + kBlocksAhead, b + kBlocksAhead + 4);
    for (int h = 0; h < kv_heads; ++h) {
      int64_t at[4];
      for (int j = 0; j < count; ++j) at[j] = (b + j) * row + h * d;
      for (int g = 0; g < group; g += 4) {
        const int head = h * group + g, heads = std::min(4, group - g);
        kScore[heads](q + head * d, keys, at, count, d, scores + static_cast<size_t>(head) * ld + b, ld);
      }
    }
  }
  for (int h = 0; h < shape.q_heads; ++h) {
    float* of_head = scores + static_cast<size_t>(h) * ld;
    sums[h] = weigh_blocks(of_head, blocks, shape);
    std::copy(of_head, of_head + blocks, weights + static_cast<size_t>(h) * blocks);
  }
}

}  // namespace
}  // namespace sge::SGE_ISA

// What stands for a block of keys, and how a query scores it. Part of kernels_impl.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

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

// Adds to share [count] what a softmax over scores [count] gives each, equal ones equally much wherever they lie. What
// follows both, up to a whole vector, is written too.
void add_shares(float* s, int count, const AttentionShape& shape, float* share) {
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
  const F16 inverse = set1(1.0f / sum(total));
  for (int i = 0; i < count; i += kWidth) store(share + i, fma(load(s + i), inverse, load(share + i)));
}

// Flags the `wanted` largest of scores [count], of equal ones the later; NaN is less than all. Scores are not negative, and
// are written over, up to a whole vector.
void keep_largest(float* s, int count, int wanted, uint8_t* kept) {
  std::fill(kept, kept + count, static_cast<uint8_t>(wanted >= count));
  if (wanted <= 0 || wanted >= count) return;
  for (int i = count; i % kWidth != 0; ++i) s[i] = -1.0f;
  for (int i = 0; i < count / kWidth * kWidth; i += kWidth) store(s + i, max(load(s + i), zero()));
  for (int i = count / kWidth * kWidth; i < count; ++i) s[i] = s[i] > 0.0f ? s[i] : 0.0f;
  const auto reach = [&](float least) {
    int found = 0;
    for (int i = 0; i < count; i += kWidth) found += count_from(load(s + i), least);
    return found;
  };
  const auto score_of = [](uint32_t bits) {
    float score;
    std::memcpy(&score, &bits, sizeof score);
    return score;
  };
  // What is not negative is ordered as its bits are. At least `wanted` reach `low`, fewer `high`.
  uint32_t low = 0, high = 0x7f800001;
  int reached = count;
  while (reached != wanted && high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const int found = reach(score_of(middle));
    if (found >= wanted) {
      low = middle, reached = found;
    } else {
      high = middle;
    }
  }
  const float least = score_of(low);
  int surplus = reached - wanted;
  for (int i = 0; i < count; ++i) kept[i] = s[i] >= least;
  for (int i = 0; surplus > 0; ++i) {
    if (s[i] == least) kept[i] = 0, --surplus;
  }
}

void score_bounds(const float* q, const BoundedKeys& keys, int kv_head, const AttentionShape& shape, int blocks,
                  float* score) {
  using Step = void (*)(const float*, const void*, const int64_t*, int, int, float*, int);
  static constexpr Step kScore[] = {nullptr, score_tokens<true, 1>, score_tokens<true, 2>, score_tokens<true, 3>,
                                    score_tokens<true, 4>};
  const int group = shape.q_heads / keys.kv_heads, ld = (blocks + kWidth - 1) / kWidth * kWidth, d = 2 * keys.head_dim;
  float* scores = scratch(static_cast<size_t>(group) * ld, 2);
  // The largest product of a number and one within bounds is that with the larger bound where the number is positive,
  // else that with the smaller: one product of twice as many numbers.
  float* parts = scratch(static_cast<size_t>(group) * d, 3);
  for (int g = 0; g < group; ++g) {
    for (int i = 0; i < keys.head_dim; i += kWidth) {
      const F16 query = load(q + g * keys.head_dim + i);
      store(parts + g * d + i, min(query, zero()));
      store(parts + g * d + keys.head_dim + i, max(query, zero()));
    }
  }
  const int64_t row = static_cast<int64_t>(keys.kv_heads) * d;
  const uint16_t* of_head = keys.bounds + static_cast<int64_t>(kv_head) * d;
  const auto prefetch = [&](int from, int to) {
    for (int b = from; b < std::min(to, blocks); ++b) {
      for (int i = 0; i < d; i += 32) prefetch_line(reinterpret_cast<const char*>(of_head + b * row + i));
    }
  };
  prefetch(0, kBlocksAhead);
  for (int b = 0; b < blocks; b += 4) {
    const int count = std::min(4, blocks - b);
    if (b + kBlocksAhead < blocks) prefetch(b + kBlocksAhead, b + kBlocksAhead + 4);
    int64_t at[4];
    for (int j = 0; j < count; ++j) at[j] = (b + j) * row;
    for (int g = 0; g < group; g += 4) {
      const int heads = std::min(4, group - g);
      kScore[heads](parts + g * d, of_head, at, count, d, scores + static_cast<size_t>(g) * ld + b, ld);
    }
  }
  std::fill(score, score + ld, 0.0f);
  for (int g = 0; g < group; ++g) add_shares(scores + static_cast<size_t>(g) * ld, blocks, shape, score);
}

}  // namespace
}  // namespace sge::SGE_ISA

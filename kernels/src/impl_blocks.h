// What stands for a block of keys, and how a query scores it. Part of kernels_impl.cpp.
#pragma once

#include "impl_attention.h"
#include "impl_rows.h"

namespace sge::SGE_ISA {
namespace {

// Sums (or least and largest) over `count` keys of each number of a row of `width`, in the order of the tokens.
template <bool BF16>
void summarise_keys_of(const void* keys, int width, const int64_t* slots, int count, BlockKind kind, uint16_t* out) {
  float* row = scratch(static_cast<size_t>(width) * 2, 2);
  const F16 share = set1(1.0f / static_cast<float>(count));
  for (int i = 0; i < width; i += kWidth) {
    F16 low = load_kv<BF16>(keys, slots[0] * width + i), high = low;
    for (int t = 1; t < count; ++t) {
      const F16 key = load_kv<BF16>(keys, slots[t] * width + i);
      if (kind == BlockKind::kMean) {
        low = low + key;
      } else {
        low = min(low, key);
        high = max(high, key);
      }
    }
    store(row + i, kind == BlockKind::kMean ? low * share : low);
    store(row + width + i, high);
  }
  to_bf16_row(row, kind == BlockKind::kMean ? width : 2 * width, out);
}

void summarise_keys(const KvCache& kv, const int64_t* slots, int count, BlockKind kind, uint16_t* out) {
  const int width = kv.kv_heads * kv.head_dim;
  (kv.bf16 ? summarise_keys_of<true> : summarise_keys_of<false>)(kv.k, width, slots, count, kind, out);
}

// The largest product that any key within the bounds of a block can have with the query.
inline float bound(const float* q, const uint16_t* least, const uint16_t* largest, int d) {
  F16 total = zero();
  for (int i = 0; i < d; i += kWidth) {
    const F16 query = load(q + i);
    total = total + max(query * from_bf16(least + i), query * from_bf16(largest + i));
  }
  return sum(total);
}

// weights [q_heads, blocks]: each head's softmax over the blocks, relative to its maximum; sums [q_heads].
void score_blocks(const float* q, const uint16_t* keys, BlockKind kind, int kv_heads, int d, const AttentionShape& shape,
                  int blocks, float* weights, float* sums) {
  using Step = void (*)(const float*, const void*, const int64_t*, int, int, float*, int);
  static constexpr Step kScore[] = {nullptr, score_tokens<true, 1>, score_tokens<true, 2>, score_tokens<true, 3>,
                                    score_tokens<true, 4>};
  const int group = shape.q_heads / kv_heads, width = kv_heads * d;
  for (int h = 0; h < kv_heads; ++h) {
    if (kind == BlockKind::kBounds) {
      for (int g = 0; g < group; ++g) {
        const int head = h * group + g;
        for (int b = 0; b < blocks; ++b) {
          const uint16_t* least = keys + static_cast<int64_t>(b) * 2 * width + h * d;
          weights[static_cast<size_t>(head) * blocks + b] = bound(q + head * d, least, least + width, d);
        }
      }
      continue;
    }
    for (int b = 0; b < blocks; b += 4) {
      const int count = std::min(4, blocks - b);
      int64_t at[4];
      for (int j = 0; j < count; ++j) at[j] = static_cast<int64_t>(b + j) * width + h * d;
      for (int g = 0; g < group; g += 4) {
        const int head = h * group + g, heads = std::min(4, group - g);
        kScore[heads](q + head * d, keys, at, count, d, weights + static_cast<size_t>(head) * blocks + b, blocks);
      }
    }
  }
  float top;
  for (int h = 0; h < shape.q_heads; ++h) weigh(weights + static_cast<size_t>(h) * blocks, blocks, shape, top, sums[h]);
}

}  // namespace
}  // namespace sge::SGE_ISA

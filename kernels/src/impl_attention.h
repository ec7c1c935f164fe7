// Attention of decoded tokens and of new prompt tokens. Part of kernels_impl.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "impl_products.h"

namespace sge::SGE_ISA {
namespace {

template <bool BF16>
inline F16 load_kv(const void* base, int64_t offset) {
  if constexpr (BF16) {
    return from_bf16(static_cast<const uint16_t*>(base) + offset);
  } else {
    return load(static_cast<const float*>(base) + offset);
  }
}

inline float capped(float score, float cap) { return cap > 0.0f ? cap * std::tanh(score / cap) : score; }

// Scores of query heads [G, head_dim] against four tokens of one KV head, whose keys begin at at[0..4).
template <bool BF16, int G>
inline void four_scores(const float* q, const void* keys, const int64_t* at, int d, float* scores, int ld) {
  // At a time: four sums of each stay in registers.
#if defined(__AVX512F__)
  constexpr int kHeads = G;
#elif defined(__AVX2__)
  constexpr int kHeads = G == 4 ? 2 : G;
#else
  constexpr int kHeads = 1;
#endif
  for (int first = 0; first < G; first += kHeads) {
    Dot dots[kHeads][4];
#pragma GCC unroll 4
    for (int g = 0; g < kHeads; ++g) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) dots[g][j] = no_products();
    }
    for (int i = 0; i < d; i += kWidth) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const F16 key = load_kv<BF16>(keys, at[j] + i);
#pragma GCC unroll 4
        for (int g = 0; g < kHeads; ++g) {
          dots[g][j] = add_products(load(q + (first + g) * d + i), key, dots[g][j]);
        }
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < kHeads; ++g) {
      store_dots(scores + (first + g) * ld, dots[g][0], dots[g][1], dots[g][2], dots[g][3]);
    }
  }
}

// out[g, i .. i + 16 C) += sum over tokens of weights[g, t] * values, in the order of the tokens.
template <bool BF16, int G, int C>
inline void weighted_values(const void* values, const int64_t* at, int count, const float* weights, int ld, int i, int d,
                            float* out) {
  F16 sums[G][C];
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) sums[g][c] = load(out + g * d + i + c * kWidth);
  }
  for (int t = 0; t < count; ++t) {
    F16 v[C];
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) v[c] = load_kv<BF16>(values, at[t] + i + c * kWidth);
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const F16 w = set1(weights[g * ld + t]);
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) sums[g][c] = fma(w, v[c], sums[g][c]);
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) store(out + g * d + i + c * kWidth, sums[g][c]);
  }
}

// G query heads of one KV head, scored against tokens [0, count), at most four.
template <bool BF16, int G>
void score_tokens(const float* q, const void* keys, const int64_t* at, int count, int d, float* scores, int ld) {
  if (count == 4) return four_scores<BF16, G>(q, keys, at, d, scores, ld);
  int64_t padded[4];
  float rest[4 * G];
  for (int j = 0; j < 4; ++j) padded[j] = at[std::min(j, count - 1)];
  four_scores<BF16, G>(q, keys, padded, d, rest, 4);
  for (int g = 0; g < G; ++g) std::copy(rest + 4 * g, rest + 4 * g + count, scores + g * ld);
}

// Adds the values of tokens [0, count) to the outputs [G, d].
template <bool BF16, int G>
void add_values(const float* weights, const void* values, const int64_t* at, int count, int d, float* out, int ld) {
#if defined(__AVX512F__)
  constexpr int kColumns = 2;
#else
  constexpr int kColumns = G < 3 ? 2 : 1;
#endif
  int i = 0;
  for (; i + kColumns * kWidth <= d; i += kColumns * kWidth) {
    weighted_values<BF16, G, kColumns>(values, at, count, weights, ld, i, d, out);
  }
  if (i < d) weighted_values<BF16, G, 1>(values, at, count, weights, ld, i, d, out);
}

// Scores [count] become weights; their maximum and sum.
void weigh(float* s, int count, const AttentionShape& shape, float& max_out, float& sum_out) {
  const F16 scale = set1(shape.scale);
  F16 tops = set1(-INFINITY);
  int t = 0;
  for (; t + kWidth <= count; t += kWidth) {
    F16 x = load(s + t) * scale;
    if (shape.logit_cap > 0.0f) {
      store(s + t, x);
      for (int j = 0; j < kWidth; ++j) s[t + j] = capped(s[t + j], shape.logit_cap);
      x = load(s + t);
    }
    store(s + t, x);
    tops = max(tops, x);
  }
  float m = largest(tops);
  for (; t < count; ++t) {
    s[t] = capped(s[t] * shape.scale, shape.logit_cap);
    m = std::max(m, s[t]);
  }
  F16 total = zero();
  for (t = 0; t + kWidth <= count; t += kWidth) {
    const F16 e = exp(load(s + t) - set1(m));
    store(s + t, e);
    total = total + e;
  }
  float z = sum(total);
  for (; t < count; ++t) z += s[t] = std::exp(s[t] - m);
  max_out = m;
  sum_out = z;
}

// A share's rows may lie scattered: they are asked for some tokens ahead of use, and read once, all heads at a time.
constexpr int kAhead = 16;
constexpr int kValueTokens = 8;

// Into the second-level cache: the first has too few places for lines that are still on their way.
inline void prefetch_line(const char* p) {
#if defined(__x86_64__)
  // GCC takes a function of nothing but __builtin_prefetch for one without effect, and drops the call.
  asm volatile("prefetcht1 %0" : : "m"(*p));
#else
  __builtin_prefetch(p, 0, 2);
#endif
}

template <bool BF16>
void decode_share_of(const float* q, const KvCache& kv, const AttentionShape& shape, const int64_t* slots, int count,
                     float* out, float* max, float* sum, float* weights) {
  using Step = void (*)(const float*, const void*, const int64_t*, int, int, float*, int);
  static constexpr Step kScore[] = {nullptr, score_tokens<BF16, 1>, score_tokens<BF16, 2>, score_tokens<BF16, 3>,
                                    score_tokens<BF16, 4>};
  static constexpr Step kAdd[] = {nullptr, add_values<BF16, 1>, add_values<BF16, 2>, add_values<BF16, 3>,
                                  add_values<BF16, 4>};
  constexpr int kBytes = BF16 ? 2 : 4;
  const int group = shape.q_heads / kv.kv_heads, d = kv.head_dim;
  float* w = weights ? weights : scratch(static_cast<size_t>(shape.q_heads) * count, 2);
  thread_local std::vector<int64_t> rows, at;
  rows.resize(static_cast<size_t>(count));
  at.resize(static_cast<size_t>(count));
  for (int t = 0; t < count; ++t) rows[static_cast<size_t>(t)] = kv.at(slots[t], 0);
  const auto prefetch = [&](const void* base, int head, int from, int to) {
    const int64_t offset = kv.at(0, head);
    for (int t = from; t < std::min(to, count); ++t) {
      const char* p = static_cast<const char*>(base) + (rows[static_cast<size_t>(t)] + offset) * kBytes;
      for (int b = 0; b < d * kBytes; b += 64) prefetch_line(p + b);
    }
  };
  // step(its first query head, number of query heads) for tokens [first, first + tokens) of each KV head.
  const auto each_head = [&](const void* base, int first, int tokens, const auto& step) {
    for (int h = 0; h < kv.kv_heads; ++h) {
      prefetch(base, h, first + kAhead, first + kAhead + tokens);
      for (int t = 0; t < tokens; ++t) at[static_cast<size_t>(t)] = rows[static_cast<size_t>(first + t)] + kv.at(0, h);
      for (int g = 0; g < group; g += 4) step(h * group + g, std::min(4, group - g));
    }
  };
  for (int h = 0; h < kv.kv_heads; ++h) prefetch(kv.k, h, 0, kAhead);
  for (int t = 0; t < count; t += 4) {
    const int tokens = std::min(4, count - t);
    each_head(kv.k, t, tokens, [&](int head, int heads) {
      kScore[heads](q + head * d, kv.k, at.data(), tokens, d, w + static_cast<size_t>(head) * count + t, count);
    });
  }
  for (int h = 0; h < kv.kv_heads; ++h) prefetch(kv.v, h, 0, kAhead);
  for (int h = 0; h < shape.q_heads; ++h) weigh(w + static_cast<size_t>(h) * count, count, shape, max[h], sum[h]);
  std::fill(out, out + static_cast<size_t>(shape.q_heads) * d, 0.0f);
  for (int t = 0; t < count; t += kValueTokens) {
    const int tokens = std::min(kValueTokens, count - t);
    each_head(kv.v, t, tokens, [&](int head, int heads) {
      kAdd[heads](w + static_cast<size_t>(head) * count + t, kv.v, at.data(), tokens, d, out + head * d, count);
    });
  }
}

void decode_share(const float* q, const KvCache& kv, const AttentionShape& shape, const int64_t* slots, int count,
                  float* out, float* max, float* sum, float* weights) {
  (kv.bf16 ? decode_share_of<true> : decode_share_of<false>)(q, kv, shape, slots, count, out, max, sum, weights);
}

// Keys of a block as panels [head_dim, 16 tokens], values as panels [64 tokens, 16 of head_dim]; missing tokens are 0.
template <bool BF16>
void gather_block(const KvCache& kv, int kv_head, const int64_t* slots, int count, float* keys, float* values) {
  const int d = kv.head_dim;
  alignas(64) float piece[kWidth];
  for (int t = 0; t < kKvBlock; ++t) {
    float* key = keys + static_cast<size_t>(t / kPanel) * d * kPanel + t % kPanel;
    for (int i = 0; i < d; i += kWidth) {
      float* value = values + (static_cast<size_t>(i / kPanel) * kKvBlock + t) * kPanel;
      if (t >= count) {
        store(value, zero());
        for (int j = 0; j < kWidth; ++j) key[(i + j) * kPanel] = 0.0f;
        continue;
      }
      const int64_t at = kv.at(slots[t], kv_head) + i;
      store(value, load_kv<BF16>(kv.v, at));
      store(piece, load_kv<BF16>(kv.k, at));
      for (int j = 0; j < kWidth; ++j) key[(i + j) * kPanel] = piece[j];
    }
  }
}

// Scores [kKvBlock] of one row become weights; returns the factor by which what was gathered so far shrinks.
float soften(float* s, int seen_from, int seen_to, float cap, float& m, float& z) {
  if (cap > 0.0f) {
    for (int t = 0; t < kKvBlock; ++t) s[t] = capped(s[t], cap);
  }
  for (int t = 0; t < seen_from; ++t) s[t] = -INFINITY;
  for (int t = seen_to; t < kKvBlock; ++t) s[t] = -INFINITY;
  F16 top = load(s);
  for (int t = kWidth; t < kKvBlock; t += kWidth) top = max(top, load(s + t));
  const float m_new = std::max(m, largest(top));
  if (m_new == -INFINITY) {
    std::fill(s, s + kKvBlock, 0.0f);
    return 1.0f;
  }
  F16 total = zero();
  for (int t = 0; t < kKvBlock; t += kWidth) {
    const F16 e = exp(load(s + t) - set1(m_new));
    store(s + t, e);
    total = total + e;
  }
  const float shrink = m == m_new ? 1.0f : std::exp(m - m_new);
  z = z * shrink + sum(total);
  m = m_new;
  return shrink;
}

template <bool BF16>
void extend_block_of(const float* q, int ldq, const KvCache& kv, const AttentionShape& shape, int kv_head,
                     const int64_t* slots, int first, int tokens, float* out, int ldo, float* lse) {
  const int d = kv.head_dim, group = shape.q_heads / kv.kv_heads, rows = tokens * group, head = kv_head * group;
  float* queries = scratch(static_cast<size_t>(rows) * d * 2 + rows * 2, 2);
  float* gathered = queries + static_cast<size_t>(rows) * d;
  float *m = gathered + static_cast<size_t>(rows) * d, *z = m + rows;
  float* keys = scratch(static_cast<size_t>(kKvBlock) * d * 2, 3);
  float* values = keys + static_cast<size_t>(kKvBlock) * d;
  float* scores = scratch(static_cast<size_t>(rows) * kKvBlock, 4);
  const F16 scale = set1(shape.scale);
  for (int r = 0; r < rows; ++r) {
    const float* from = q + static_cast<size_t>(r / group) * ldq + static_cast<size_t>(head + r % group) * d;
    for (int i = 0; i < d; i += kWidth) {
      store(queries + static_cast<size_t>(r) * d + i, load(from + i) * scale);
      store(gathered + static_cast<size_t>(r) * d + i, zero());
    }
    m[r] = -INFINITY;
    z[r] = 0.0f;
  }
  const int end = first + tokens;
  const int begin = shape.window < 0 ? 0 : std::max(0, first - shape.window) / kKvBlock * kKvBlock;
  for (int start = begin; start < end; start += kKvBlock) {
    const int count = std::min(kKvBlock, end - start);
    gather_block<BF16>(kv, kv_head, slots + start, count, keys, values);
    // Rows before the block see nothing of it.
    const int skip = std::max(0, start - first) * group;
    for (int p = 0; p * kPanel < count; ++p) {
      products(queries + static_cast<size_t>(skip) * d, d, rows - skip, keys + static_cast<size_t>(p) * d * kPanel, d,
               scores + static_cast<size_t>(skip) * kKvBlock + p * kPanel, kKvBlock, false);
    }
    for (int r = skip; r < rows; ++r) {
      const int position = first + r / group;
      const int from = shape.window < 0 ? 0 : std::clamp(position - shape.window - start, 0, kKvBlock);
      const int to = std::clamp(position + 1 - start, 0, kKvBlock);
      const float shrink = soften(scores + static_cast<size_t>(r) * kKvBlock, from, to, shape.logit_cap, m[r], z[r]);
      if (shrink != 1.0f) {
        float* o = gathered + static_cast<size_t>(r) * d;
        for (int i = 0; i < d; i += kWidth) store(o + i, load(o + i) * set1(shrink));
      }
    }
    for (int i = 0; i < d; i += kWidth) {
      products(scores + static_cast<size_t>(skip) * kKvBlock, kKvBlock, rows - skip,
               values + static_cast<size_t>(i / kPanel) * kKvBlock * kPanel, kKvBlock,
               gathered + static_cast<size_t>(skip) * d + i, d, true);
    }
  }
  for (int r = 0; r < rows; ++r) {
    const F16 inverse = set1(z[r] > 0.0f ? 1.0f / z[r] : 0.0f);
    float* to = out + static_cast<size_t>(r / group) * ldo + static_cast<size_t>(head + r % group) * d;
    for (int i = 0; i < d; i += kWidth) store(to + i, load(gathered + static_cast<size_t>(r) * d + i) * inverse);
    if (lse) lse[static_cast<size_t>(r / group) * shape.q_heads + head + r % group] = m[r] + std::log(z[r]);
  }
}

void extend_block(const float* q, int ldq, const KvCache& kv, const AttentionShape& shape, int kv_head,
                  const int64_t* slots, int first, int tokens, float* out, int ldo, float* lse) {
  (kv.bf16 ? extend_block_of<true> : extend_block_of<false>)(q, ldq, kv, shape, kv_head, slots, first, tokens, out, ldo,
                                                             lse);
}

}  // namespace
}  // namespace sge::SGE_ISA

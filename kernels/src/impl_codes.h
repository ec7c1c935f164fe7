// Keys in codes of two bits a number, and how a query scores them (see kernels.h). Part of kernels_impl.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "impl_blocks.h"

namespace sge::SGE_ISA {
namespace {

constexpr int kPiece = 64;  // bytes of the codes of 16 tokens and 16 numbers

// Mean and standard deviation of one number of each lane over `count` keys; both 0 where they are no finite numbers.
template <bool BF16>
void measure_keys(const KvCache& kv, const int64_t* slots, int count, int head, int i, float* means, float* steps) {
  const F16 share = set1(1.0f / static_cast<float>(count));
  F16 total = zero();
  for (int t = 0; t < count; ++t) total = total + load_kv<BF16>(kv.k, kv.at(slots[t], head) + i);
  const F16 mean = total * share;
  F16 squares = zero();
  for (int t = 0; t < count; ++t) {
    const F16 away = load_kv<BF16>(kv.k, kv.at(slots[t], head) + i) - mean;
    squares = squares + away * away;
  }
  store(means, mean);
  store(steps, squares * share);
  for (int c = 0; c < kWidth; ++c) {
    const bool known = std::isfinite(means[c]) && std::isfinite(steps[c]);
    means[c] = known ? means[c] : 0.0f;
    steps[c] = known ? std::sqrt(steps[c]) : 0.0f;
  }
}

template <bool BF16>
void code_keys_of(const KvCache& kv, const int64_t* slots, int from, int to, int measured, float* steps, uint8_t* codes) {
  const int d = kv.head_dim;
  for (int head = 0; head < kv.kv_heads; ++head) {
    float *means = steps + head * 2 * d, *deviations = means + d;
    uint8_t* of_head = codes + static_cast<int64_t>(head) * d * (kSegment / 4);
    for (int i = 0; i < d; i += kWidth) {
      if (measured > 0) measure_keys<BF16>(kv, slots, measured, head, i, means + i, deviations + i);
      float inverses[kWidth];
      for (int c = 0; c < kWidth; ++c) inverses[c] = deviations[i + c] > 0.0f ? 1.0f / deviations[i + c] : 0.0f;
      const F16 mean = load(means + i), inverse = load(inverses);
      for (int t = from; t < to; ++t) {
        const F16 away = (load_kv<BF16>(kv.k, kv.at(slots[t], head) + i) - mean) * inverse + set1(1.5f);
        int8_t numbers[kWidth];
        // What is no number becomes 0, on every instruction set.
        store_int8(numbers, nearest_int(min(max(away, zero()), set1(3.0f))));
        uint32_t parts[4];
        std::memcpy(parts, numbers, sizeof parts);
        const uint32_t four = parts[0] | parts[1] << 2 | parts[2] << 4 | parts[3] << 6;
        std::memcpy(of_head + (t / kWidth * (d / kWidth) + i / kWidth) * kPiece + t % kWidth * 4, &four, sizeof four);
      }
    }
  }
}

void code_keys(const KvCache& kv, const int64_t* slots, int from, int to, int measured, float* steps, uint8_t* codes) {
  (kv.bf16 ? code_keys_of<true> : code_keys_of<false>)(kv, slots, from, to, measured, steps, codes);
}

// A query times the steps of a segment, rounded to 8 bits: its product with a key is offset + scale * sum of number * code.
struct FoldedQuery {
  float offset, scale;
};

// numbers [d]. Where the query is no number, no score is one.
FoldedQuery fold_query(const float* q, const float* steps, int d, int8_t* numbers) {
  const float *means = steps, *deviations = steps + d;
  F16 tops = zero(), level = zero(), none = zero();
  for (int i = 0; i < d; i += kWidth) {
    const F16 query = load(q + i), number = query * load(deviations + i);
    tops = max(tops, absolute(number));
    level = fma(query, load(means + i), level);
    none = none + number * zero();  // NaN where a number is not finite
  }
  const float top = largest(tops), offset = sum(level) + sum(none);
  if (!std::isfinite(offset)) {
    std::memset(numbers, 0, static_cast<size_t>(d));
    return {NAN, 0.0f};
  }
  const F16 inverse = set1(top > 0.0f ? 127.0f / top : 0.0f);
  F16 total = zero();
  for (int i = 0; i < d; i += kWidth) {
    // 127 / top overflows where top is next to nothing.
    const F16 rounded = nearest(max(min(load(q + i) * load(deviations + i) * inverse, set1(127.0f)), set1(-127.0f)));
    store_int8(numbers + i, nearest_int(rounded));
    total = total + rounded;
  }
  const float scale = top / 127.0f;
  return {offset - 1.5f * scale * sum(total), scale};
}

// Sums of number * code of G queries against 16 tokens of one KV head, whose codes begin at `codes`. numbers [G, d].
template <int G>
inline void code_products(const int8_t* numbers, const uint8_t* codes, int d, I16* sums) {
  constexpr int kRun = 8;  // pieces whose sums are kept as those of nibbles are
  for (int first = 0; first < d / kWidth; first += kRun) {
    NibbleSums run[G];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) run[g] = begin_nibbles();
    for (int piece = first; piece < std::min(first + kRun, d / kWidth); ++piece) {
      const I16 four = load_quad(codes + piece * kPiece);
      const int8_t* x = numbers + piece * kWidth;
      const auto add = [&](I16 quad, int s) {
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
          int32_t of_quad;
          std::memcpy(&of_quad, x + g * d + 4 * s, sizeof of_quad);
          run[g] = add_nibbles(run[g], quad, set1(of_quad));
        }
      };
      add(bit_pairs<0>(four), 0);
      add(bit_pairs<1>(four), 1);
      add(bit_pairs<2>(four), 2);
      add(bit_pairs<3>(four), 3);
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) sums[g] = first == 0 ? end_nibbles(run[g]) : sums[g] + end_nibbles(run[g]);
  }
}

// Where the largest score of each block is kept as its tokens come by: score [G, ld].
struct BlockTops {
  float* score;
  int ld, block_tokens, tokens;
};

// The largest score of each block, for G query heads of one KV head.
template <int G>
void score_head(const float* q, const CodedKeys& keys, int head, const BlockTops& tops) {
  const int d = keys.head_dim, of_segment = d * (kSegment / 4);  // bytes
  // Asked for ahead: the processor does not by itself go on from one segment's codes to the next ones of the same head.
  const int ahead = std::min(1024, of_segment);
  auto* numbers = static_cast<int8_t*>(static_cast<void*>(scratch(static_cast<size_t>(G) * d / 4, 3)));
  const bool whole = tops.block_tokens % kWidth == 0;
  int block = 0, left = tops.block_tokens;
  float most[G];
  for (float& score : most) score = -INFINITY;
  for (int begin = 0; begin < tops.tokens; begin += kSegment) {
    const int64_t segment = begin / kSegment;
    const float* steps = keys.steps + segment * code_steps(keys.kv_heads, d) + head * 2 * d;
    const uint8_t* codes = keys.codes + segment * code_bytes(keys.kv_heads, d) + static_cast<int64_t>(head) * of_segment;
    const uint8_t* next = begin + kSegment < tops.tokens ? codes + code_bytes(keys.kv_heads, d) : codes;
    FoldedQuery folded[G];
    for (int g = 0; g < G; ++g) folded[g] = fold_query(q + g * d, steps, d, numbers + g * d);
    const int end = std::min(begin + kSegment, tops.tokens);
    for (int t = begin, at = 0; t < end; t += kWidth, codes += 4 * d, at += 4 * d) {
      const uint8_t* later = at + ahead < of_segment ? codes + ahead : next + (at + ahead - of_segment);
      for (int b = 0; b < 4 * d; b += 64) prefetch_line(reinterpret_cast<const char*>(later) + b);
      I16 sums[G];
      code_products<G>(numbers, codes, d, sums);
      if (whole) {
        // A block begins and ends between two sixteens of tokens.
        for (int g = 0; g < G; ++g) {
          const float score = folded[g].offset + folded[g].scale * static_cast<float>(largest(sums[g]));
          most[g] = std::max(most[g], score);
        }
        if ((left -= kWidth) > 0) continue;
        for (int g = 0; g < G; ++g) tops.score[g * tops.ld + block] = most[g], most[g] = -INFINITY;
        ++block, left = tops.block_tokens;
        continue;
      }
      for (int g = 0; g < G; ++g) {
        float scores[kWidth];
        store(scores, fma(to_float(sums[g]), set1(folded[g].scale), set1(folded[g].offset)));
        for (int i = 0; i < std::min(kWidth, tops.tokens - t); ++i) {
          float& top = tops.score[g * tops.ld + (t + i) / tops.block_tokens];
          top = std::max(top, scores[i]);
        }
      }
    }
  }
}

void score_codes(const float* q, const CodedKeys& keys, int kv_head, const AttentionShape& shape, int block_tokens,
                 int blocks, float* weights, float* sums) {
  using Step = void (*)(const float*, const CodedKeys&, int, const BlockTops&);
  static constexpr Step kScore[] = {nullptr, score_head<1>, score_head<2>, score_head<3>, score_head<4>};
  const int group = shape.q_heads / keys.kv_heads, ld = (blocks + kWidth - 1) / kWidth * kWidth;
  float* scores = scratch(static_cast<size_t>(4) * ld, 2);
  for (int first = 0; first < group; first += 4) {
    const int heads = std::min(4, group - first);
    std::fill(scores, scores + heads * ld, -INFINITY);
    kScore[heads](q + first * keys.head_dim, keys, kv_head, {scores, ld, block_tokens, blocks * block_tokens});
    for (int g = 0; g < heads; ++g) {
      float* of_query = scores + g * ld;
      sums[first + g] = weigh_blocks(of_query, blocks, shape);
      std::copy(of_query, of_query + blocks, weights + static_cast<size_t>(first + g) * blocks);
    }
  }
}

}  // namespace
}  // namespace sge::SGE_ISA

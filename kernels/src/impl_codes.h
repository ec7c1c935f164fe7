// Keys in codes of two bits a number, and how a query scores them (see kernels.h). Part of kernels_impl.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "impl_blocks.h"

namespace sge::SGE_ISA {
namespace {

constexpr int kLine = 64;  // tokens whose codes of four numbers lie in 64 bytes

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
void code_keys_of(const KvCache& kv, const int64_t* slots, int from, int until, int measured, float* steps, uint8_t* codes) {
  const int d = kv.head_dim;
  for (int head = 0; head < kv.kv_heads; ++head) {
    float *means = steps + head * 2 * d, *deviations = means + d;
    uint8_t* of_head = codes + static_cast<int64_t>(head) * d * (kSegment / 4);
    for (int i = 0; i < d; i += kWidth) {
      if (measured > 0) measure_keys<BF16>(kv, slots, measured, head, i, means + i, deviations + i);
      float inverses[kWidth];
      for (int c = 0; c < kWidth; ++c) inverses[c] = deviations[i + c] > 0.0f ? 1.0f / deviations[i + c] : 0.0f;
      const F16 mean = load(means + i), inverse = load(inverses);
      for (int t = from; t < until; ++t) {
        const F16 away = (load_kv<BF16>(kv.k, kv.at(slots[t], head) + i) - mean) * inverse + set1(1.5f);
        int8_t numbers[kWidth];
        // What is no number becomes 0, on every instruction set.
        store_int8(numbers, nearest_int(min(max(away, zero()), set1(3.0f))));
        uint32_t parts[4];
        std::memcpy(parts, numbers, sizeof parts);
        const int shift = t % kLine / kWidth * 2;
        for (int quad = 0; quad < 4; ++quad) {
          uint8_t* to = of_head + (i / 4 + quad) * kSegment + t / kLine * kLine + t % kWidth * 4;
          uint32_t four;
          std::memcpy(&four, to, sizeof four);
          four = (four & ~(uint32_t{0x03030303} << shift)) | parts[quad] << shift;
          std::memcpy(to, &four, sizeof four);
        }
      }
    }
  }
}

void code_keys(const KvCache& kv, const int64_t* slots, int from, int to, int measured, float* steps, uint8_t* codes) {
  (kv.bf16 ? code_keys_of<true> : code_keys_of<false>)(kv, slots, from, to, measured, steps, codes);
}

// Of a key's numbers, in fours, those that are asked for.
inline int quads_read(int head_dim) { return (3 * (head_dim / 4) + 7) / 8; }

// The fours that matter most to queries [group, d]: by the sum of the squares of query times step of the first segment. quads [quads_read(d)], in
// their order; of equal ones the first.
void pick_quads(const float* q, int group, const float* deviations, int d, int* quads) {
  int energies[kMostNumbers / 4];
  for (int i = 0; i < d; i += kWidth) {
    F16 squares = zero();
    for (int g = 0; g < group; ++g) {
      const F16 number = load(q + g * d + i) * load(deviations + i);
      squares = fma(number, number, squares);
    }
    float each[kWidth];
    store(each, squares);
    for (int j = 0; j < 4; ++j) {
      const float energy = (each[4 * j] + each[4 * j + 1]) + (each[4 * j + 2] + each[4 * j + 3]);
      // In the order of their bits, as they are not negative; the last bits say which comes first, so that no two are equal.
      int bits;
      std::memcpy(&bits, &energy, sizeof bits);
      energies[i / 4 + j] = (bits & ~(kMostNumbers / 4 - 1)) | (kMostNumbers / 4 - 1 - (i / 4 + j));
    }
  }
  const int count = d / 4, wanted = quads_read(d);
  for (int j = 0, found = 0; found < wanted; ++j) {
    int larger = 0;
    for (int other = 0; other < count; ++other) larger += energies[other] > energies[j];
    if (larger < wanted) quads[found++] = j;
  }
}

// Of vectors of the fours that are asked for: a whole number of vectors, 0 in what is left.
inline int quads_size(int head_dim) { return (4 * quads_read(head_dim) + kWidth - 1) / kWidth * kWidth; }

void gather_quads(const float* from, const int* quads, int d, float* to) {
  const int size = quads_size(d);
  store(to + size - kWidth, zero());
  for (int k = 0; k < quads_read(d); ++k) std::memcpy(to + 4 * k, from + 4 * quads[k], 4 * sizeof *from);
}

// A query times the steps of a segment, rounded to 8 bits: its product with a key is offset + scale * sum of number * code.
struct FoldedQuery {
  float offset, scale;
};

// gathered, steps: of the query and of the segment, by gather_quads; numbers as many. Where the query is no number, no score
// is one.
FoldedQuery fold_query(const float* q, const float* means, int d, const float* gathered, const float* steps, int8_t* numbers) {
  const int size = quads_size(d);
  F16 level = zero(), tops = zero(), total = zero();
  for (int i = 0; i < d; i += kWidth) level = fma(load(q + i), load(means + i), level);
  for (int i = 0; i < size; i += kWidth) tops = max(tops, absolute(load(gathered + i) * load(steps + i)));
  const float top = largest(tops), offset = sum(level);
  if (!std::isfinite(offset) || !std::isfinite(top)) {
    std::memset(numbers, 0, static_cast<size_t>(size));
    return {NAN, 0.0f};
  }
  const F16 inverse = set1(top > 0.0f ? 127.0f / top : 0.0f);
  for (int i = 0; i < size; i += kWidth) {
    // 127 / top overflows where top is next to nothing.
    const F16 number = load(gathered + i) * load(steps + i) * inverse;
    const F16 rounded = nearest(max(min(number, set1(127.0f)), set1(-127.0f)));
    store_int8(numbers + i, nearest_int(rounded));
    total = total + rounded;
  }
  const float scale = top / 127.0f;
  return {offset - 1.5f * scale * sum(total), scale};
}

// Sums of number * code of G queries, rows of `ld` numbers, for S sixteens of tokens of a line: the First and those after it.
template <int G, int First, int S>
inline void code_products(const int8_t* numbers, int ld, const uint8_t* line, const int* quads, int count, I16 (*sums)[G]) {
  constexpr int kRun = 32;  // quads whose sums are kept as those of nibbles are
  for (int begin = 0; begin < count; begin += kRun) {
    NibbleSums run[S][G];
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) {
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) run[s][g] = begin_nibbles();
    }
    for (int k = begin; k < std::min(begin + kRun, count); ++k) {
      const I16 four = load_quad(line + quads[k] * kSegment);
      const auto add = [&](I16 quad, int s) {
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
          int32_t of_quad;
          std::memcpy(&of_quad, numbers + g * ld + 4 * k, sizeof of_quad);
          run[s][g] = add_nibbles(run[s][g], quad, set1(of_quad));
        }
      };
      add(bit_pairs<First>(four), 0);
      if constexpr (S > 1) add(bit_pairs<First + 1>(four), 1);
    }
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) {
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) sums[s][g] = begin == 0 ? end_nibbles(run[s][g]) : sums[s][g] + end_nibbles(run[s][g]);
    }
  }
}

// What G of the query heads of one KV head are scored by, and where.
struct Scored {
  const float* q;         // [G, d]
  const float* gathered;  // [G, quads_size(d)]
  const int* quads;
  float* score;  // [G, ld]: of each sixteen of tokens, or of each block
  int ld, tokens;
  int block_tokens;  // 0: of sixteens, written whole vectors at a time
};

// The largest score of the tokens of each sixteen or block.
template <int G>
void score_head(const CodedKeys& keys, int head, const Scored& to) {
  // As many sums at a time as there are registers for.
#if defined(__AVX2__) && !defined(__AVX512F__)
  constexpr int kAtOnce = G > 2 ? 1 : 2;
#else
  constexpr int kAtOnce = 2;
#endif
  constexpr int kSixteens = kSegment / kWidth;
  const int d = keys.head_dim, count = quads_read(d), size = quads_size(d);
  const int64_t of_head = int64_t{d} * (kSegment / 4), of_segment = code_bytes(keys.kv_heads, d);
  float* of_quads = scratch(static_cast<size_t>(size + G * size / 4), 4);
  auto* numbers = static_cast<int8_t*>(static_cast<void*>(of_quads + size));
  alignas(64) float tops[G][kSixteens] = {};
  for (int begin = 0; begin < to.tokens; begin += kSegment) {
    const int64_t segment = begin / kSegment;
    const float* means = keys.steps + segment * code_steps(keys.kv_heads, d) + head * 2 * d;
    const uint8_t* codes = keys.codes + segment * of_segment + head * of_head;
    gather_quads(means + d, to.quads, d, of_quads);
    FoldedQuery folded[G];
    for (int g = 0; g < G; ++g) {
      folded[g] = fold_query(to.q + g * d, means, d, to.gathered + g * size, of_quads, numbers + g * size);
    }
    const int end = std::min(begin + kSegment, to.tokens);
    const auto take = [&](int t, const I16* sums) {
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        if (to.block_tokens == 0) {
          tops[g][(t - begin) / kWidth] = static_cast<float>(largest(sums[g]));
          continue;
        }
        float scores[kWidth];
        store(scores, fma(to_float(sums[g]), set1(folded[g].scale), set1(folded[g].offset)));
        for (int i = 0; i < std::min(kWidth, to.tokens - t); ++i) {
          float& top = to.score[g * to.ld + (t + i) / to.block_tokens];
          top = std::max(top, scores[i]);
        }
      }
    };
    for (int t = begin; t < end; t += kLine, codes += kLine) {
      // The processor does not by itself go on from one segment's codes to the next ones of the same head.
      for (int k = 0; begin + kSegment < to.tokens && k < count; ++k) {
        prefetch_line(reinterpret_cast<const char*>(codes + of_segment + to.quads[k] * kSegment));
      }
      const auto part = [&](int from, const auto& products) {
        if (from >= end) return;
        I16 sums[kAtOnce][G];
        products(numbers, size, codes, to.quads, count, sums);
        for (int s = 0; s < kAtOnce && from + s * kWidth < end; ++s) take(from + s * kWidth, sums[s]);
      };
      part(t, code_products<G, 0, kAtOnce>);
      if constexpr (kAtOnce == 1) part(t + 16, code_products<G, 1, 1>);
      part(t + 32, code_products<G, 2, kAtOnce>);
      if constexpr (kAtOnce == 1) part(t + 48, code_products<G, 3, 1>);
    }
    for (int g = 0; to.block_tokens == 0 && g < G; ++g) {
      store(to.score + g * to.ld + begin / kWidth, fma(load(tops[g]), set1(folded[g].scale), set1(folded[g].offset)));
    }
  }
}

void score_codes(const float* q, const CodedKeys& keys, int kv_head, const AttentionShape& shape, int block_tokens,
                 int blocks, float* score) {
  using Step = void (*)(const CodedKeys&, int, const Scored&);
  static constexpr Step kScore[] = {nullptr, score_head<1>, score_head<2>, score_head<3>, score_head<4>};
  static_assert(kSegment == kWidth * kWidth, "the sixteens of a segment are one vector");
  const int group = shape.q_heads / keys.kv_heads, d = keys.head_dim, size = quads_size(d), tokens = blocks * block_tokens;
  const int sixteens = block_tokens % kWidth == 0 ? block_tokens / kWidth : 0;
  const int ld = ((sixteens > 0 ? blocks * sixteens : blocks) + kWidth - 1) / kWidth * kWidth;
  float* of_queries = scratch(static_cast<size_t>(4) * ld, 2);
  float* gathered = scratch(static_cast<size_t>(4 * size + quads_read(d)), 3);
  auto* quads = static_cast<int*>(static_cast<void*>(gathered + 4 * size));
  pick_quads(q, group, keys.steps + kv_head * 2 * d + d, d, quads);
  std::fill(score, score + (blocks + kWidth - 1) / kWidth * kWidth, 0.0f);
  for (int first = 0; first < group; first += 4) {
    const int heads = std::min(4, group - first);
    for (int g = 0; g < heads; ++g) gather_quads(q + (first + g) * d, quads, d, gathered + g * size);
    if (sixteens == 0) std::fill(of_queries, of_queries + heads * ld, -INFINITY);
    kScore[heads](keys, kv_head, {q + first * d, gathered, quads, of_queries, ld, tokens, sixteens > 0 ? 0 : block_tokens});
    for (int g = 0; g < heads; ++g) {
      float* of_query = of_queries + g * ld;
      for (int b = 0; sixteens > 1 && b < blocks; ++b) {
        const float* its = of_query + b * sixteens;
        of_query[b] = *std::max_element(its, its + sixteens);
      }
      add_shares(of_query, blocks, shape, score);
    }
  }
}

}  // namespace
}  // namespace sge::SGE_ISA

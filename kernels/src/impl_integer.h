// Products with inputs rounded to 8 bits. Part of kernels_impl.cpp.
#pragma once

#include "impl_products.h"

namespace sge::SGE_ISA {
namespace {

void round_inputs(const float* x, int ldx, int k, int first, int rows, const Rounded& to) {
  for (int r = first; r < first + rows; ++r) {
    const float* from = x + static_cast<size_t>(r) * ldx;
    for (int b = 0; b < to.blocks; ++b) {
      alignas(64) float rest[kBlock];
      const float* values = from + b * kBlock;
      if ((b + 1) * kBlock > k) {
        for (int i = 0; i < kBlock; ++i) rest[i] = b * kBlock + i < k ? values[i] : 0.0f;
        values = rest;
      }
      const F16 low = load(values), high = load(values + kWidth);
      const size_t at = static_cast<size_t>(r) * to.blocks + b;
      // 0, or NaN where an input is not finite: such a block has no codes, and its products must be NaN.
      const float flaw = sum(low * zero() + high * zero());
      if (flaw != 0.0f) {
        std::fill(to.codes + at * kBlock, to.codes + (at + 1) * kBlock, int8_t{0});
        to.scales[at] = flaw;
        to.sums[at] = 0;
        continue;
      }
      const float largest_input = largest(max(absolute(low), absolute(high)));
      const F16 inverse = set1(largest_input > 0.0f ? 127.0f / largest_input : 0.0f);
      const I16 low_codes = nearest_int(low * inverse), high_codes = nearest_int(high * inverse);
      store_int8(to.codes + at * kBlock, low_codes);
      store_int8(to.codes + at * kBlock + kWidth, high_codes);
      to.scales[at] = largest_input / 127.0f;
      to.sums[at] = sum(low_codes + high_codes);
    }
  }
}

inline I16 four_codes(const int8_t* p) {
  int32_t bits;
  std::memcpy(&bits, p, 4);
  return set1(bits);
}

// What N outputs have come to, over the blocks so far: in registers where there are 32 of them, else where they end up.
template <int N>
struct Totals {
#if defined(__AVX512F__)
  F16 held[N];
  F16 at(int i) const { return held[i]; }
  void set(int i, F16 x) { held[i] = x; }
#else
  float* to;
  F16 at(int i) const { return load(to + i * kPanel); }
  void set(int i, F16 x) { store(to + i * kPanel, x); }
#endif
  explicit Totals([[maybe_unused]] float* c) {
#if !defined(__AVX512F__)
    to = c;
#endif
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) set(i, zero());
  }
  void end([[maybe_unused]] float* c) const {
#if defined(__AVX512F__)
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) store(c + i * kPanel, held[i]);
#endif
  }
};

// R rows against P panels. Integers are exact and blocks are added in their order: no number of rows changes a bit.
template <Format F, int R, int P>
void integer_tile(const Rounded& x, int first, const Weight& w, int panel, float* c) {
  const uint8_t* at[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) at[p] = w.panel(panel + p);
  Totals<R * P> totals(c);
  const size_t row_bytes = static_cast<size_t>(x.blocks) * kBlock;
  const int8_t* codes = x.codes + static_cast<size_t>(first) * row_bytes;
  const float* scales = x.scales + static_cast<size_t>(first) * x.blocks;
  const int32_t* code_sums = x.sums + static_cast<size_t>(first) * x.blocks;
  for (int b = 0; b < x.blocks; ++b, codes += kBlock) {
    std::conditional_t<F == Format::int8, I16, NibbleSums> sums[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        if constexpr (F == Format::int8) {
          sums[r][p] = begin_bytes(code_sums[static_cast<size_t>(r) * x.blocks + b]);
        } else {
          sums[r][p] = begin_nibbles();
        }
      }
    }
    F16 scale[P], minimum[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      scale[p] = from_fp16(reinterpret_cast<const uint16_t*>(at[p]));
      at[p] += 2 * kPanel;
      if constexpr (F == Format::affine4) {
        minimum[p] = from_fp16(reinterpret_cast<const uint16_t*>(at[p]));
        at[p] += 2 * kPanel;
      }
    }
    if constexpr (F == Format::int8) {
#pragma GCC unroll 8
      for (int j = 0; j < kBlock / 4; ++j) {
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
          const I16 quad = load_quad(at[p] + j * kQuad);
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) {
            sums[r][p] = add_bytes(sums[r][p], quad, four_codes(codes + static_cast<size_t>(r) * row_bytes + 4 * j));
          }
        }
      }
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) at[p] += kBlock / 4 * kQuad;
    } else {
#pragma GCC unroll 4
      for (int j = 0; j < kBlock / 8; ++j) {
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
          const I16 quads = load_quad(at[p] + j * kQuad), low = low_nibbles(quads), high = high_nibbles(quads);
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) {
            const int8_t* four = codes + static_cast<size_t>(r) * row_bytes + 4 * j;
            sums[r][p] = add_nibbles(add_nibbles(sums[r][p], low, four_codes(four)), high, four_codes(four + kBlock / 2));
          }
        }
      }
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) at[p] += kBlock / 8 * kQuad;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const float input_scale = scales[static_cast<size_t>(r) * x.blocks + b];
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        I16 whole;
        if constexpr (F == Format::int8) {
          whole = sums[r][p];
        } else {
          whole = end_nibbles(sums[r][p]);
        }
        F16 total = fma(scale[p] * set1(input_scale), to_float(whole), totals.at(r * P + p));
        if constexpr (F == Format::affine4) {
          const float input_sum = input_scale * static_cast<float>(code_sums[static_cast<size_t>(r) * x.blocks + b]);
          total = fma(minimum[p], set1(input_sum), total);
        }
        totals.set(r * P + p, total);
      }
    }
  }
  totals.end(c);
}

template <Format F>
void linear_integer_format(const Rounded& x, int first, int rows, const Weight& w, int begin, int end, const float* bias,
                           bool add, float* out, int ldo) {
  alignas(64) float tile[kIntegerRows * 4 * kPanel];
  int panel = begin;
  if (rows == 1) {
    for (; panel + 4 <= end; panel += 4) {
      integer_tile<F, 1, 4>(x, first, w, panel, tile);
      for (int p = 0; p < 4; ++p) emit(tile + p * kPanel, 4 * kPanel, 1, w, panel + p, bias, add, out, ldo);
    }
  }
  for (; panel < end; ++panel) {
    for (int r = 0; r < rows; r += kIntegerRows) {
      const int count = std::min(kIntegerRows, rows - r);
      with_rows<kIntegerRows>(count, [&](auto n) { integer_tile<F, n, 1>(x, first + r, w, panel, tile); });
      emit(tile, kPanel, count, w, panel, bias, add, out + static_cast<size_t>(r) * ldo, ldo);
    }
  }
}

void linear_integer(const Rounded& x, int first, int rows, const Weight& w, int begin, int end, const float* bias,
                    bool add, float* out, int ldo) {
  (w.format == Format::int8 ? linear_integer_format<Format::int8> : linear_integer_format<Format::affine4>)(
      x, first, rows, w, begin, end, bias, add, out, ldo);
}

}  // namespace
}  // namespace sge::SGE_ISA

// Products with float inputs, and the tile of products that attention shares. Part of kernels_impl.cpp.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels.h"
#include "simd_math.h"

namespace sge::SGE_ISA {
namespace {

// kDirectRows: up to this many rows the weights are unpacked in registers; beyond, once into a scratch.
#if defined(__AVX512F__)
constexpr int kRows = 12;         // rows of x whose sums stay in registers
constexpr int kIntegerRows = 10;  // likewise, with a sum of integers and one of floats each
constexpr int kDirectRows = 24;
#elif defined(__AVX2__)
constexpr int kRows = 6;
constexpr int kIntegerRows = 4;
constexpr int kDirectRows = 4;
#else
constexpr int kRows = 4;
constexpr int kIntegerRows = 2;
constexpr int kDirectRows = 4;
#endif

// Inputs handled at a time when there are many rows, so that a strip of weights stays in the first-level cache.
constexpr int kStrip = 512;

float* scratch(size_t floats, int which) {
  thread_local std::vector<float> buffers[6];
  auto& buffer = buffers[which];
  if (buffer.size() < floats) buffer.resize(floats);
  return buffer.data();
}

// c[r, 0..16) (+)= sum over i < k of x[r, i] * b[i, 0..16), in the order of i.
template <int R>
void product(const float* x, int ldx, const float* b, int k, float* c, int ldc, bool add) {
  F16 sums[R];
#pragma GCC unroll 24
  for (int r = 0; r < R; ++r) sums[r] = add ? load(c + static_cast<size_t>(r) * ldc) : zero();
  for (int i = 0; i < k; ++i) {
    const F16 w = load(b + static_cast<size_t>(i) * kPanel);
#pragma GCC unroll 24
    for (int r = 0; r < R; ++r) sums[r] = fma(set1(x[static_cast<size_t>(r) * ldx + i]), w, sums[r]);
  }
#pragma GCC unroll 24
  for (int r = 0; r < R; ++r) store(c + static_cast<size_t>(r) * ldc, sums[r]);
}

// fn(std::integral_constant<int, rows>), so that `rows`, from 1 to Most, is known to the compiler.
template <int Most, class Fn>
inline void with_rows(int rows, const Fn& fn) {
  if constexpr (Most > 1) {
    if (rows < Most) return with_rows<Most - 1>(rows, fn);
  }
  fn(std::integral_constant<int, Most>{});
}

void products(const float* x, int ldx, int rows, const float* b, int k, float* c, int ldc, bool add) {
  int r = 0;
  for (; r + kRows <= rows; r += kRows) {
    product<kRows>(x + static_cast<size_t>(r) * ldx, ldx, b, k, c + static_cast<size_t>(r) * ldc, ldc, add);
  }
  if (r == rows) return;
  with_rows<kRows>(rows - r, [&](auto count) {
    product<count>(x + static_cast<size_t>(r) * ldx, ldx, b, k, c + static_cast<size_t>(r) * ldc, ldc, add);
  });
}

// The four inputs of quads, one after the other: fn(input, its codes).
template <int P, class Fn>
inline void four_inputs(const I16* quad, const Fn& fn) {
  I16 codes[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) codes[p] = byte_of<0>(quad[p]);
  fn(0, codes);
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) codes[p] = byte_of<1>(quad[p]);
  fn(1, codes);
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) codes[p] = byte_of<2>(quad[p]);
  fn(2, codes);
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) codes[p] = byte_of<3>(quad[p]);
  fn(3, codes);
}

// Walks one panel: fn(input, weights of its 16 outputs) in the order of the inputs; P panels side by side.
template <Format F, int P, class Fn>
inline void walk(const Weight& w, int panel, const Fn& fn) {
  const uint8_t* at[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) at[p] = w.panel(panel + p);
  F16 b[P];
  if constexpr (F == Format::float32) {
    for (int i = 0; i < w.k; ++i) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) b[p] = load(reinterpret_cast<const float*>(at[p]) + static_cast<size_t>(i) * kPanel);
      fn(i, b);
    }
  } else if constexpr (F == Format::bfloat16) {
    for (int i = 0; i < w.k; ++i) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) b[p] = from_bf16(reinterpret_cast<const uint16_t*>(at[p]) + static_cast<size_t>(i) * kPanel);
      fn(i, b);
    }
  } else if constexpr (F == Format::int8) {
    for (int start = 0; start < w.k; start += kBlock) {
      F16 scale[P];
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        scale[p] = from_fp16(reinterpret_cast<const uint16_t*>(at[p]));
        at[p] += 2 * kPanel;
      }
      const int count = std::min(kBlock, w.k - start);
      for (int i = 0; i < kBlock; i += 4) {
        I16 quad[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
          quad[p] = load_quad(at[p]);
          at[p] += kQuad;
        }
        four_inputs<P>(quad, [&](int j, const I16* codes) __attribute__((always_inline)) {
          if (i + j >= count) return;
#pragma GCC unroll 8
          for (int p = 0; p < P; ++p) b[p] = scale[p] * to_float(codes[p] + set1(int32_t{-128}));
          fn(start + i + j, b);
        });
      }
    }
  } else {
    for (int start = 0; start < w.k; start += kBlock) {
      F16 scale[P], minimum[P];
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        scale[p] = from_fp16(reinterpret_cast<const uint16_t*>(at[p]));
        minimum[p] = from_fp16(reinterpret_cast<const uint16_t*>(at[p]) + kPanel);
        at[p] += 4 * kPanel;
      }
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < kBlock / 2; i += 4) {
          I16 quad[P];
#pragma GCC unroll 8
          for (int p = 0; p < P; ++p) {
            quad[p] = load_quad(at[p] + i / 4 * kQuad);
            quad[p] = half ? high_nibbles(quad[p]) : low_nibbles(quad[p]);
          }
          four_inputs<P>(quad, [&](int j, const I16* codes) __attribute__((always_inline)) {
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) b[p] = scale[p] * to_float(codes[p]) + minimum[p];
            fn(start + half * (kBlock / 2) + i + j, b);
          });
        }
      }
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) at[p] += kBlock / 8 * kQuad;
    }
  }
}

// Panels [panel, panel + P) for R rows, weights unpacked in registers; c is a tile [R, 16 P].
template <Format F, int R, int P>
void direct(const float* x, int ldx, const Weight& w, int panel, float* c) {
  F16 sums[R][P];
#pragma GCC unroll 24
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) sums[r][p] = zero();
  }
  walk<F, P>(w, panel, [&](int i, const F16* b) __attribute__((always_inline)) {
#pragma GCC unroll 24
    for (int r = 0; r < R; ++r) {
      const F16 xi = set1(x[static_cast<size_t>(r) * ldx + i]);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sums[r][p] = fma(xi, b[p], sums[r][p]);
    }
  });
#pragma GCC unroll 24
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) store(c + (r * P + p) * kPanel, sums[r][p]);
  }
}

template <Format F>
const float* unpacked(const Weight& w, int panel, float* to) {
  if constexpr (F == Format::float32) {
    return reinterpret_cast<const float*>(w.panel(panel));
  } else {
    walk<F, 1>(w, panel, [&](int i, const F16* b) __attribute__((always_inline)) {
      store(to + static_cast<size_t>(i) * kPanel, b[0]);
    });
    return to;
  }
}

// Hands a tile [rows, 16] (row stride ldc) of panel `panel` to out: bias, then what was there, then the columns that exist.
void emit(const float* c, int ldc, int rows, const Weight& w, int panel, const float* bias, bool add, float* out, int ldo) {
  const int column = panel * kPanel, columns = std::min(kPanel, w.n - column);
  for (int r = 0; r < rows; ++r) {
    float* to = out + static_cast<size_t>(r) * ldo + column;
    const float* from = c + static_cast<size_t>(r) * ldc;
    if (columns == kPanel) {
      F16 y = load(from);
      if (bias) y = y + load(bias + column);
      if (add) y = y + load(to);
      store(to, y);
    } else {
      for (int j = 0; j < columns; ++j) {
        float y = from[j];
        if (bias) y += bias[column + j];
        to[j] = add ? y + to[j] : y;
      }
    }
  }
}

template <Format F>
void linear_format(const float* x, int ldx, int rows, const Weight& w, int begin, int end, const float* bias, bool add,
                   float* out, int ldo) {
  if (rows <= kDirectRows) {
    alignas(64) float tile[kDirectRows * 4 * kPanel];
    int panel = begin;
    // Several panels at once hide the latency of the additions; with more rows there are enough sums already.
    if (rows == 1) {
      for (; panel + 4 <= end; panel += 4) {
        direct<F, 1, 4>(x, ldx, w, panel, tile);
        for (int p = 0; p < 4; ++p) emit(tile + p * kPanel, 4 * kPanel, 1, w, panel + p, bias, add, out, ldo);
      }
    } else if (rows == 2) {
      for (; panel + 2 <= end; panel += 2) {
        direct<F, 2, 2>(x, ldx, w, panel, tile);
        for (int p = 0; p < 2; ++p) emit(tile + p * kPanel, 2 * kPanel, 2, w, panel + p, bias, add, out, ldo);
      }
    }
    for (; panel < end; ++panel) {
      with_rows<kDirectRows>(rows, [&](auto count) { direct<F, count, 1>(x, ldx, w, panel, tile); });
      emit(tile, kPanel, rows, w, panel, bias, add, out, ldo);
    }
    return;
  }
  float* weights = F == Format::float32 ? nullptr : scratch(static_cast<size_t>(w.k) * kPanel, 0);
  float* tile = scratch(static_cast<size_t>(rows) * kPanel, 1);
  for (int panel = begin; panel < end; ++panel) {
    const float* b = unpacked<F>(w, panel, weights);
    for (int start = 0; start < w.k; start += kStrip) {
      products(x + start, ldx, rows, b + static_cast<size_t>(start) * kPanel, std::min(kStrip, w.k - start), tile, kPanel,
               start > 0);
    }
    emit(tile, kPanel, rows, w, panel, bias, add, out, ldo);
  }
}

void linear(const float* x, int ldx, int rows, const Weight& w, int begin, int end, const float* bias, bool add,
            float* out, int ldo) {
  switch (w.format) {
    case Format::float32:
      return linear_format<Format::float32>(x, ldx, rows, w, begin, end, bias, add, out, ldo);
    case Format::bfloat16:
      return linear_format<Format::bfloat16>(x, ldx, rows, w, begin, end, bias, add, out, ldo);
    case Format::int8:
      return linear_format<Format::int8>(x, ldx, rows, w, begin, end, bias, add, out, ldo);
    case Format::affine4:
      return linear_format<Format::affine4>(x, ldx, rows, w, begin, end, bias, add, out, ldo);
  }
}

}  // namespace
}  // namespace sge::SGE_ISA

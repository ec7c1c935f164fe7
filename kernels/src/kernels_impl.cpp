// Compiled once for each instruction set (see CMakeLists.txt), always without contraction: where a multiplication and an
// addition are fused, the code says so, and so every format and every number of rows computes the same bits.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels.h"
#include "simd.h"

namespace sge::SGE_ISA {
namespace {

// kDirectRows: up to this many rows the weights are unpacked in registers; beyond, once into a scratch.
#if defined(__AVX512F__)
constexpr int kRows = 12;         // rows of x whose sums stay in registers
constexpr int kIntegerRows = 10;  // likewise, with a sum of integers and one of floats each
constexpr int kDirectRows = 12;
#elif defined(__AVX2__)
constexpr int kRows = 6;
constexpr int kIntegerRows = 2;
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

// ------------------------------------------------------------------------------------------------- linear
// c[r, 0..16) (+)= sum over i < k of x[r, i] * b[i, 0..16), in the order of i.
template <int R>
void product(const float* x, int ldx, const float* b, int k, float* c, int ldc, bool add) {
  F16 sums[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sums[r] = add ? load(c + static_cast<size_t>(r) * ldc) : zero();
  for (int i = 0; i < k; ++i) {
    const F16 w = load(b + static_cast<size_t>(i) * kPanel);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sums[r] = fma(set1(x[static_cast<size_t>(r) * ldx + i]), w, sums[r]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) store(c + static_cast<size_t>(r) * ldc, sums[r]);
}

using Product = void (*)(const float*, int, const float*, int, float*, int, bool);

Product product_of(int rows) {
  static constexpr Product table[] = {nullptr,     product<1>, product<2>,  product<3>,  product<4>,
                                      product<5>,  product<6>, product<7>,  product<8>,  product<9>,
                                      product<10>, product<11>, product<12>};
  return table[rows];
}

void products(const float* x, int ldx, int rows, const float* b, int k, float* c, int ldc, bool add) {
  int r = 0;
  for (; r + kRows <= rows; r += kRows) {
    product<kRows>(x + static_cast<size_t>(r) * ldx, ldx, b, k, c + static_cast<size_t>(r) * ldc, ldc, add);
  }
  if (r < rows) {
    product_of(rows - r)(x + static_cast<size_t>(r) * ldx, ldx, b, k, c + static_cast<size_t>(r) * ldc, ldc, add);
  }
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
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) sums[r][p] = zero();
  }
  walk<F, P>(w, panel, [&](int i, const F16* b) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const F16 xi = set1(x[static_cast<size_t>(r) * ldx + i]);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sums[r][p] = fma(xi, b[p], sums[r][p]);
    }
  });
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) store(c + (r * P + p) * kPanel, sums[r][p]);
  }
}

template <Format F, int P>
void direct_rows(const float* x, int ldx, int rows, const Weight& w, int panel, float* c) {
  switch (rows) {
    case 1:
      return direct<F, 1, P>(x, ldx, w, panel, c);
    case 2:
      return direct<F, 2, P>(x, ldx, w, panel, c);
    case 3:
      return direct<F, 3, P>(x, ldx, w, panel, c);
    case 4:
      return direct<F, 4, P>(x, ldx, w, panel, c);
#if defined(__AVX512F__)
    case 5:
      return direct<F, 5, P>(x, ldx, w, panel, c);
    case 6:
      return direct<F, 6, P>(x, ldx, w, panel, c);
    case 7:
      return direct<F, 7, P>(x, ldx, w, panel, c);
    case 8:
      return direct<F, 8, P>(x, ldx, w, panel, c);
    case 9:
      return direct<F, 9, P>(x, ldx, w, panel, c);
    case 10:
      return direct<F, 10, P>(x, ldx, w, panel, c);
    case 11:
      return direct<F, 11, P>(x, ldx, w, panel, c);
    default:
      return direct<F, 12, P>(x, ldx, w, panel, c);
#endif
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
      direct_rows<F, 1>(x, ldx, rows, w, panel, tile);
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

// ------------------------------------------------------------------------------------------------- integer products
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
      const float largest_input = largest(max(absolute(low), absolute(high)));
      const F16 inverse = set1(largest_input > 0.0f ? 127.0f / largest_input : 0.0f);
      const I16 low_codes = nearest_int(low * inverse), high_codes = nearest_int(high * inverse);
      const size_t at = static_cast<size_t>(r) * to.blocks + b;
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

// R rows against P panels. Integers are exact and blocks are added in their order: no number of rows changes a bit.
template <Format F, int R, int P>
void integer_tile(const Rounded& x, int first, const Weight& w, int panel, float* c) {
  const uint8_t* at[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) at[p] = w.panel(panel + p);
  F16 totals[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) totals[r][p] = zero();
  }
  const size_t row_bytes = static_cast<size_t>(x.blocks) * kBlock;
  const int8_t* codes = x.codes + static_cast<size_t>(first) * row_bytes;
  const float* scales = x.scales + static_cast<size_t>(first) * x.blocks;
  const int32_t* code_sums = x.sums + static_cast<size_t>(first) * x.blocks;
  for (int b = 0; b < x.blocks; ++b, codes += kBlock) {
    I16 sums[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        sums[r][p] = set1(F == Format::int8 ? -128 * code_sums[static_cast<size_t>(r) * x.blocks + b] : int32_t{0});
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
            sums[r][p] = dot(sums[r][p], quad, four_codes(codes + static_cast<size_t>(r) * row_bytes + 4 * j));
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
            sums[r][p] = dot(dot(sums[r][p], low, four_codes(four)), high, four_codes(four + kBlock / 2));
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
        totals[r][p] = fma(scale[p] * set1(input_scale), to_float(sums[r][p]), totals[r][p]);
        if constexpr (F == Format::affine4) {
          const float input_sum = input_scale * static_cast<float>(code_sums[static_cast<size_t>(r) * x.blocks + b]);
          totals[r][p] = fma(minimum[p], set1(input_sum), totals[r][p]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) store(c + (r * P + p) * kPanel, totals[r][p]);
  }
}

template <Format F>
void integer_rows(const Rounded& x, int first, int rows, const Weight& w, int panel, float* c) {
  switch (rows) {
    case 1:
      return integer_tile<F, 1, 1>(x, first, w, panel, c);
    case 2:
      return integer_tile<F, 2, 1>(x, first, w, panel, c);
#if defined(__AVX512F__)
    case 3:
      return integer_tile<F, 3, 1>(x, first, w, panel, c);
    case 4:
      return integer_tile<F, 4, 1>(x, first, w, panel, c);
    case 5:
      return integer_tile<F, 5, 1>(x, first, w, panel, c);
    case 6:
      return integer_tile<F, 6, 1>(x, first, w, panel, c);
    case 7:
      return integer_tile<F, 7, 1>(x, first, w, panel, c);
    case 8:
      return integer_tile<F, 8, 1>(x, first, w, panel, c);
    case 9:
      return integer_tile<F, 9, 1>(x, first, w, panel, c);
    default:
      return integer_tile<F, 10, 1>(x, first, w, panel, c);
#endif
  }
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
      integer_rows<F>(x, first + r, count, w, panel, tile);
      emit(tile, kPanel, count, w, panel, bias, add, out + static_cast<size_t>(r) * ldo, ldo);
    }
  }
}

void linear_integer(const Rounded& x, int first, int rows, const Weight& w, int begin, int end, const float* bias,
                    bool add, float* out, int ldo) {
  (w.format == Format::int8 ? linear_integer_format<Format::int8> : linear_integer_format<Format::affine4>)(
      x, first, rows, w, begin, end, bias, add, out, ldo);
}

void row_sums(const float* logits, int ld, int rows, int columns, RowSums* sums, int sums_stride) {
  for (int r = 0; r < rows; ++r) {
    const float* x = logits + static_cast<size_t>(r) * ld;
    const int whole = columns / kWidth * kWidth;
    float m = -INFINITY;
    if (whole > 0) {
      F16 m16 = load(x);
      for (int i = kWidth; i < whole; i += kWidth) m16 = max(m16, load(x + i));
      m = largest(m16);
    }
    for (int i = whole; i < columns; ++i) m = std::max(m, x[i]);
    double z = 0, s1 = 0, s2 = 0;
    const F16 m16 = set1(m), floor = set1(-1e4f);
    F16 z16 = zero(), a16 = zero(), b16 = zero();
    for (int i = 0; i < whole; i += kWidth) {
      // e^d is 0 long before the floor, which keeps 0 * inf out of the sums.
      const F16 d = max(load(x + i) - m16, floor), e = exp(d), de = d * e;
      z16 = z16 + e;
      a16 = a16 + de;
      b16 = fma(d, de, b16);
    }
    z = sum(z16), s1 = sum(a16), s2 = sum(b16);
    for (int i = whole; i < columns; ++i) {
      const double d = std::max(x[i] - m, -1e4f), e = std::exp(d);
      z += e, s1 += d * e, s2 += d * d * e;
    }
    sums[static_cast<size_t>(r) * sums_stride] = {m, z, s1, s2};
  }
}

// ------------------------------------------------------------------------------------------------- small ops
void rms_norm(const float* x, float* residual, const float* weight, float eps, int rows, int n, float* out) {
  const int whole = n / kWidth * kWidth;
  for (int r = 0; r < rows; ++r, x += n, out += n) {
    F16 squares = zero();
    float rest = 0;
    const float* y = x;
    if (residual) {
      for (int i = 0; i < whole; i += kWidth) {
        const F16 a = load(x + i) + load(residual + i);
        store(residual + i, a);
        squares = fma(a, a, squares);
      }
      for (int i = whole; i < n; ++i) residual[i] += x[i], rest += residual[i] * residual[i];
      y = residual;
      residual += n;
    } else {
      for (int i = 0; i < whole; i += kWidth) squares = fma(load(x + i), load(x + i), squares);
      for (int i = whole; i < n; ++i) rest += x[i] * x[i];
    }
    const float scale = 1.0f / std::sqrt((sum(squares) + rest) / static_cast<float>(n) + eps);
    const F16 s = set1(scale);
    for (int i = 0; i < whole; i += kWidth) store(out + i, load(y + i) * s * load(weight + i));
    for (int i = whole; i < n; ++i) out[i] = y[i] * scale * weight[i];
  }
}

void silu_mul(const float* x, int rows, int n, float* out) {
  const int whole = n / kWidth * kWidth;
  for (int r = 0; r < rows; ++r, x += 2 * static_cast<size_t>(n), out += n) {
    for (int i = 0; i < whole; i += kWidth) {
      const F16 g = load(x + i);
      store(out + i, g / (set1(1.0f) + exp(zero() - g)) * load(x + n + i));
    }
    for (int i = whole; i < n; ++i) out[i] = x[i] / (1.0f + std::exp(-x[i])) * x[n + i];
  }
}

void rope(float* x, int heads, int head_dim, int rotary_dim, bool neox, const float* table) {
  const int half = rotary_dim / 2;
  const float *cosines = table, *sines = table + half;
  for (int h = 0; h < heads; ++h, x += head_dim) {
    if (neox) {
      int i = 0;
      for (; i + kWidth <= half; i += kWidth) {
        const F16 a = load(x + i), b = load(x + half + i), c = load(cosines + i), s = load(sines + i);
        store(x + i, a * c - b * s);
        store(x + half + i, b * c + a * s);
      }
      for (; i < half; ++i) {
        const float a = x[i], b = x[half + i];
        x[i] = a * cosines[i] - b * sines[i];
        x[half + i] = b * cosines[i] + a * sines[i];
      }
    } else {
      for (int i = 0; i < half; ++i) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosines[i] - b * sines[i];
        x[2 * i + 1] = b * cosines[i] + a * sines[i];
      }
    }
  }
}

void to_bf16_row(const float* x, int count, uint16_t* out) {
  for (int i = 0; i < count; ++i) out[i] = to_bf16(x[i]);
}

// ------------------------------------------------------------------------------------------------- attention
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
#if defined(__AVX512F__)
  constexpr int kHeads = G;  // at a time: four sums of each stay in registers
#else
  constexpr int kHeads = 1;
#endif
  for (int first = 0; first < G; first += kHeads) {
    F16 dots[kHeads][4];
#pragma GCC unroll 4
    for (int g = 0; g < kHeads; ++g) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) dots[g][j] = zero();
    }
    for (int i = 0; i < d; i += kWidth) {
      F16 k[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) k[j] = load_kv<BF16>(keys, at[j] + i);
#pragma GCC unroll 4
      for (int g = 0; g < kHeads; ++g) {
        const F16 query = load(q + (first + g) * d + i);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) dots[g][j] = fma(query, k[j], dots[g][j]);
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < kHeads; ++g) {
      store_sums(scores + (first + g) * ld, dots[g][0], dots[g][1], dots[g][2], dots[g][3]);
    }
  }
}

// out[g, i .. i + 16 C) = sum over tokens of weights[g, t] * values.
template <bool BF16, int G, int C>
inline void weighted_values(const void* values, const int64_t* at, int count, const float* weights, int ld, int i, int d,
                            float* out) {
  F16 sums[G][C];
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) sums[g][c] = zero();
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

// G query heads of one KV head. at: where each token's keys and values of this head begin.
template <bool BF16, int G>
void decode_heads(const float* q, const KvCache& kv, const AttentionShape& shape, const int64_t* at, int count, float* out,
                  float* max_out, float* sum_out, float* weights, int ld) {
  const int d = kv.head_dim;
  int t = 0;
  for (; t + 4 <= count; t += 4) four_scores<BF16, G>(q, kv.k, at + t, d, weights + t, ld);
  if (t < count) {
    int64_t rest[4];
    float scores[4 * G];
    for (int j = 0; j < 4; ++j) rest[j] = at[std::min(t + j, count - 1)];
    four_scores<BF16, G>(q, kv.k, rest, d, scores, 4);
    for (int g = 0; g < G; ++g) {
      for (int j = 0; t + j < count; ++j) weights[g * ld + t + j] = scores[4 * g + j];
    }
  }
  for (int g = 0; g < G; ++g) {
    float* s = weights + g * ld;
    float m = -INFINITY;
    for (t = 0; t < count; ++t) {
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
    max_out[g] = m;
    sum_out[g] = z;
  }
  int i = 0;
  for (; i + 2 * kWidth <= d; i += 2 * kWidth) weighted_values<BF16, G, 2>(kv.v, at, count, weights, ld, i, d, out);
  if (i < d) weighted_values<BF16, G, 1>(kv.v, at, count, weights, ld, i, d, out);
}

// A share's rows lie scattered: asked for ahead of use, all heads at once, they come at the speed of the memory.
void prefetch_row(const void* base, int64_t row, size_t row_bytes) {
  const char* p = static_cast<const char*>(base) + static_cast<size_t>(row) * row_bytes;
  for (size_t b = 0; b < row_bytes; b += 64) __builtin_prefetch(p + b, 0, 2);
}

template <bool BF16>
void decode_share_of(const float* q, const KvCache& kv, const AttentionShape& shape, const int64_t* slots, int count,
                     float* out, float* max, float* sum, float* weights) {
  const int group = shape.q_heads / kv.kv_heads, d = kv.head_dim;
  const size_t row_bytes = static_cast<size_t>(kv.kv_heads) * d * (BF16 ? 2 : 4);
  float* own = weights ? weights : scratch(static_cast<size_t>(4) * count, 2);
  thread_local std::vector<int64_t> at;
  at.resize(static_cast<size_t>(count));
  for (int t = 0; t < count; ++t) {
    at[static_cast<size_t>(t)] = slots[t] * static_cast<int64_t>(kv.kv_heads) * d;
    prefetch_row(kv.k, slots[t], row_bytes);
    prefetch_row(kv.v, slots[t], row_bytes);
  }
  for (int h = 0; h < kv.kv_heads; ++h) {
    for (int g = 0; g < group;) {
      const int first = h * group + g;
      float* w = weights ? weights + static_cast<size_t>(first) * count : own;
      const int heads = std::min(4, group - g);
      const auto run = [&](auto fn) {
        fn(q + first * d, kv, shape, at.data(), count, out + first * d, max + first, sum + first, w, count);
      };
      if (heads == 4) {
        run(decode_heads<BF16, 4>);
      } else if (heads == 3) {
        run(decode_heads<BF16, 3>);
      } else if (heads == 2) {
        run(decode_heads<BF16, 2>);
      } else {
        run(decode_heads<BF16, 1>);
      }
      g += heads;
    }
    for (auto& offset : at) offset += d;
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
  const int64_t row = static_cast<int64_t>(kv.kv_heads) * d, head = static_cast<int64_t>(kv_head) * d;
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
      const int64_t at = slots[t] * row + head + i;
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

const Kernels& table() {
#define SGE_NAME(x) #x
#define SGE_STRING(x) SGE_NAME(x)
  static const Kernels kernels = {SGE_STRING(SGE_ISA), linear, linear_integer, round_inputs, row_sums,     rms_norm,    silu_mul, rope,
                                  to_bf16_row,         decode_share, extend_block};
  return kernels;
}

}  // namespace sge::SGE_ISA

namespace sge {
#define SGE_JOIN(a, b) a##b
#define SGE_FUNCTION(isa) SGE_JOIN(isa, _kernels)
const Kernels& SGE_FUNCTION(SGE_ISA)() { return SGE_ISA::table(); }
}  // namespace sge

// Operations on single rows: statistics, norms, activation, rotation. Part of kernels_impl.cpp.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels.h"
#include "simd_math.h"

namespace sge::SGE_ISA {
namespace {

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
    F16 z16 = zero(), a16 = zero(), b16 = zero(), flaw = zero();
    for (int i = 0; i < whole; i += kWidth) {
      flaw = fma(load(x + i), zero(), flaw);  // NaN where a logit is not finite
      // e^d is 0 long before the floor, which keeps 0 * inf out of the sums.
      const F16 d = max(load(x + i) - m16, floor), e = exp(d), de = d * e;
      z16 = z16 + e;
      a16 = a16 + de;
      b16 = fma(d, de, b16);
    }
    z = sum(z16 + flaw), s1 = sum(a16), s2 = sum(b16);
    for (int i = whole; i < columns; ++i) {
      const double d = std::max(x[i] - m, -1e4f), e = std::exp(d);
      z += e + 0.0 * x[i], s1 += d * e, s2 += d * d * e;
    }
    sums[static_cast<size_t>(r) * sums_stride] = {m, z, s1, s2};
  }
}

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

}  // namespace
}  // namespace sge::SGE_ISA

// Sums over a row's tempered distribution. Part of kernels_impl.cpp.
#pragma once

#include <algorithm>
#include <cmath>

#include "impl_products.h"

namespace sge::SGE_ISA {
namespace {

// Entries whose weights are summed in float before a double takes the sum: a token of probability 1e-8 late in a large
// vocabulary must not vanish.
constexpr int kDrawBlock = 1024;

float row_max(const float* x, int n) {
  const int whole = n / kWidth * kWidth;
  float m = -INFINITY;
  if (whole > 0) {
    F16 top = set1(m);
    // What is on the right stays where the other is NaN: it is passed over here, and shows in the sums.
    for (int i = 0; i < whole; i += kWidth) top = max(load(x + i), top);
    m = largest(top);
  }
  for (int i = whole; i < n; ++i) m = std::max(m, x[i]);
  return m;
}

// Sums of w = e^d, w d and w d^2 over entries [from, to), d = (x - m) * inverse; weights (optional): w.
void add_weights_of(const float* x, int from, int to, float m, float inverse, float* weights, double* sums) {
  const F16 top = set1(m), scale = set1(inverse), floor = set1(-1e4f);
  F16 z = zero(), first = zero(), second = zero();
  int i = from;
  for (; i + kWidth <= to; i += kWidth) {
    // The floor is the first operand: a NaN passes, and shows in the sums.
    const F16 d = max(floor, (load(x + i) - top) * scale), w = exp(d), wd = w * d;
    if (weights) store(weights + i, w);
    z = z + w;
    first = first + wd;
    second = fma(wd, d, second);
  }
  sums[0] += sum(z), sums[1] += sum(first), sums[2] += sum(second);
  if (i < to) {
    float rest[kWidth];
    for (int j = 0; j < kWidth; ++j) rest[j] = i + j < to ? x[i + j] : -INFINITY;
    const F16 d = max(floor, (load(rest) - top) * scale), w = exp(d), wd = w * d;
    sums[0] += sum(w), sums[1] += sum(wd), sums[2] += sum(wd * d);
    store(rest, w);
    for (int j = 0; weights && i + j < to; ++j) weights[i + j] = rest[j];
  }
}

// ln(sum e^d), entropy and varentropy of the distribution with these sums.
void moments(const double* sums, Moments& to) {
  to.log_partition = std::log(sums[0]);
  const double mean = sums[1] / sums[0];
  to.entropy = std::max(0.0, to.log_partition - mean);
  to.varentropy = std::max(0.0, sums[2] / sums[0] - mean * mean);
  if (std::isnan(mean)) to.entropy = to.varentropy = NAN;
}

// Moments of a row whose largest entry is not a number: the limit, uniform over the entries that are infinite, if any.
void limit(const float* x, int n, float m, Moments& to) {
  const bool whole = m == INFINITY && std::none_of(x, x + n, [](float y) { return std::isnan(y); });
  to.entropy = to.log_partition = whole ? std::log(static_cast<double>(std::count(x, x + n, m))) : NAN;
  to.varentropy = whole ? 0.0 : NAN;
}

void tempered_from(const float* x, int n, float m, float inverse, Moments& to) {
  to.max = m;
  if (!std::isfinite(m)) return limit(x, n, m, to);
  double sums[3] = {0, 0, 0};
  for (int at = 0; at < n; at += kDrawBlock) add_weights_of(x, at, std::min(n, at + kDrawBlock), m, inverse, nullptr, sums);
  moments(sums, to);
}

void tempered(const float* x, int n, float inverse, Moments& to) { tempered_from(x, n, row_max(x, n), inverse, to); }

}  // namespace
}  // namespace sge::SGE_ISA

// The temperature at which a row has a wanted entropy. Part of kernels_impl.cpp.
#pragma once

#include <algorithm>
#include <cmath>

#include "impl_tempered.h"

namespace sge::SGE_ISA {
namespace {

// u as a cubic of the entropy through two points with their slopes, 1 / varentropy each.
double between(double u0, const Moments& at0, double u1, const Moments& at1, double target) {
  const double h = at1.entropy - at0.entropy, t = (target - at0.entropy) / h, s = 1 - t;
  return s * s * (1 + 2 * t) * u0 + t * s * s * h / at0.varentropy + t * t * (3 - 2 * t) * u1 - t * t * s * h / at1.varentropy;
}

// ln T in [lowest, highest] whose entropy is nearest to the target, looked for from `guess` on. Entropy rises with ln T (its
// slope is the varentropy): Newton's step first, then the cubic through the last two points; halving where these leave the
// bracket. `evaluate` is called last at the answer. A row whose entropy no temperature changes keeps its start.
template <class Evaluate>
double search_temperature(double target, double start, double guess, double lowest, double highest, Moments& at,
                          const Evaluate& evaluate) {
  constexpr int kSteps = 24;
  constexpr double kTolerance = 5e-4;  // nats
  constexpr double kForced = 1e-9;     // varentropy of a row with one legal token, or of equal ones
  double low = lowest, high = highest, u = std::min(std::max(guess, low), high), last_u = u;
  bool tried_lowest = false, tried_highest = false;
  Moments last{};
  for (int step = 0;; ++step) {
    evaluate(u, at);
    tried_lowest |= u == lowest, tried_highest |= u == highest;
    const double excess = at.entropy - target;
    if (!(std::fabs(excess) > kTolerance) || step == kSteps) return u;  // or NaN
    if (step == 0 && at.varentropy < kForced) {
      // Either no temperature changes this row, or it is too cold to tell.
      Moments warm{};
      evaluate(high, warm);
      if (warm.entropy - at.entropy > kTolerance) {
        last = at, last_u = u, low = u;
        u = high;
        continue;
      }
      u = std::min(std::max(start, low), high);
      evaluate(u, at);
      return u;
    }
    (excess > 0 ? high : low) = u;
    double next = u - excess / std::max(at.varentropy, 1e-12);
    if (step > 0 && at.varentropy > 1e-6 && last.varentropy > 1e-6 && std::fabs(at.entropy - last.entropy) > 1e-9) {
      const double cubic = between(last_u, last, u, at, target);
      if (cubic > low && cubic < high) next = cubic;
    }
    last = at, last_u = u;
    // Beyond an end that has not been tried, the end itself; between the ends, halfway.
    if (next <= lowest && low == lowest && !tried_lowest) {
      u = lowest;
    } else if (next >= highest && high == highest && !tried_highest) {
      u = highest;
    } else if (next > low && next < high) {
      u = next;
    } else if (high - low < 1e-7) {
      return u;
    } else {
      u = 0.5 * (low + high);
    }
  }
}

// What a row looks like at other temperatures, from its statistics at temperature 1 and the entries within kNear of the
// largest: those are counted one by one, the many below as one lump whose log-mass is a parabola in 1 / T (its mean and
// variance at T = 1 are what the entries near the top leave of the whole). Exact at T = 1; cold, where the lump vanishes, to
// 1e-3 nats; hot only a first guess. It costs a comparison for each entry in place of an exponential.
class Nearby {
 public:
  Nearby(const float* x, int n, float m, const Moments& whole) : near_(scratch(static_cast<size_t>(n) + kWidth, 3)) {
    const float floor = m - kNear;
    int i = 0;
    for (; i + kWidth <= n; i += kWidth) {
      if (any_from(load(x + i), floor)) {
        for (int j = i; j < i + kWidth; ++j) take(x[j], m, floor);
      }
    }
    for (; i < n; ++i) take(x[i], m, floor);
    double sums[3] = {0, 0, 0};
    add(1.0f, sums);
    const double z = std::exp(whole.log_partition), mean = whole.log_partition - whole.entropy;
    mass_ = z - sums[0];
    if (!(mass_ > 1e-5 * z)) {  // also where the statistics are not of this row
      mass_ = 0;
      return;
    }
    mean_ = std::min((z * mean - sums[1]) / mass_, -static_cast<double>(kNear));
    variance_ = std::max((z * (whole.varentropy + mean * mean) - sums[2]) / mass_ - mean_ * mean_, 0.0);
  }

  void operator()(double log_temperature, Moments& to) const {
    const double inverse = std::exp(-log_temperature), change = inverse - 1;
    double sums[3] = {0, 0, 0};
    add(static_cast<float>(inverse), sums);
    if (mass_ > 0) {
      const double mean = std::min(mean_ + variance_ * change, -static_cast<double>(kNear)) * inverse;
      const double mass = mass_ * std::exp(std::min(change * (mean_ + 0.5 * variance_ * change), 80.0));
      sums[0] += mass, sums[1] += mass * mean, sums[2] += mass * (mean * mean + variance_ * inverse * inverse);
    }
    moments(sums, to);
  }

 private:
  static constexpr float kNear = 10.0f;

  void take(float x, float m, float floor) {
    if (x >= floor) near_[count_++] = x - m;
  }

  void add(float inverse, double* sums) const {
    for (int at = 0; at < count_; at += kDrawBlock) {
      add_weights_of(near_, at, std::min(count_, at + kDrawBlock), 0.0f, inverse, nullptr, sums);
    }
  }

  float* near_;
  int count_ = 0;
  double mass_ = 0, mean_ = 0, variance_ = 0;
};

}  // namespace
}  // namespace sge::SGE_ISA

// One row of logits: sums over its tempered distribution, and a token drawn from it. Part of kernels_impl.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

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

// The first entry whose running sum is above `left`; one of weight 0 is never taken.
int pick(const float* weights, int from, int to, double left) {
  int last = -1;
  double sum = 0;
  for (int i = from; i < to; ++i) {
    if (!(weights[i] > 0.0f)) continue;
    sum += weights[i];
    last = i;
    if (sum > left) break;
  }
  return last;
}

using Candidate = std::pair<float, int>;

// Entries with a weight of at least `floor`, and their sum.
double gather(const float* weights, int n, float floor, std::vector<Candidate>& to) {
  to.clear();
  double mass = 0;
  const auto take = [&](int i) {
    if (weights[i] < floor || !(weights[i] > 0.0f)) return;
    to.emplace_back(weights[i], i);
    mass += weights[i];
  };
  int i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    if (any_from(load(weights + i), floor)) {
      for (int j = 0; j < kWidth; ++j) take(i + j);
    }
  }
  for (; i < n; ++i) take(i);
  return mass;
}

// A token after top-k, top-p (of the whole mass) and min-p (of the largest weight, which is 1).
int draw_cut(const float* weights, int n, double mass, const RowCut& cut) {
  thread_local std::vector<Candidate> all;
  for (const float floor : {0.05f, 2e-3f, 5e-5f, 1e-6f, 0.0f}) {
    const double gathered = gather(weights, n, floor, all);
    // Whatever one of the cuts keeps lies among these already.
    if (static_cast<size_t>(cut.top_k) <= all.size() || gathered > cut.top_p * mass || floor <= cut.min_p) break;
  }
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  const size_t most = std::min(all.size(), static_cast<size_t>(cut.top_k));
  size_t kept = 0;
  double sum = 0;
  for (; kept < most && (kept == 0 || (sum <= cut.top_p * mass && all[kept].first >= cut.min_p)); ++kept) {
    sum += all[kept].first;
  }
  if (kept == 0) return 0;
  double left = cut.uniform * sum;
  for (size_t i = 0; i + 1 < kept; ++i) {
    if ((left -= all[i].first) < 0) return all[i].second;
  }
  return all[kept - 1].second;
}

// A row's weights at one temperature, in scratch, and what their sums say.
struct Weighed {
  const float* x;
  int n;
  float m;
  float* weights;
  std::vector<double>& before;  // mass before each block; the last one is the whole

  void at(double log_temperature, Moments& to) { scaled(static_cast<float>(std::exp(-log_temperature)), to); }

  void scaled(float inverse, Moments& to) {
    const int blocks = (n + kDrawBlock - 1) / kDrawBlock;
    before.resize(static_cast<size_t>(blocks) + 1);
    double sums[3] = {0, 0, 0};
    for (int b = 0; b < blocks; ++b) {
      before[static_cast<size_t>(b)] = sums[0];
      add_weights_of(x, b * kDrawBlock, std::min(n, (b + 1) * kDrawBlock), m, inverse, weights, sums);
    }
    before[static_cast<size_t>(blocks)] = sums[0];
    to.max = m;
    moments(sums, to);
  }

  int token(const RowCut& cut) const {
    const double mass = before.back();
    if (cut.top_k < n || cut.top_p < 1.0f || cut.min_p > 0.0f) return draw_cut(weights, n, mass, cut);
    const double at = cut.uniform * mass;
    auto block = static_cast<int>(std::upper_bound(before.begin() + 1, before.end(), at) - before.begin()) - 1;
    // A block of no weight is passed by; the last one that has any ends the search, should rounding reach the total.
    for (block = std::min(block, static_cast<int>(before.size()) - 2); block >= 0; --block) {
      const int found = pick(weights, block * kDrawBlock, std::min(n, (block + 1) * kDrawBlock), at - before[static_cast<size_t>(block)]);
      if (found >= 0) return found;
    }
    return 0;
  }
};

// u as a cubic of the entropy through two points with their slopes, 1 / varentropy each.
double between(double u0, const Moments& at0, double u1, const Moments& at1, double target) {
  const double h = at1.entropy - at0.entropy, t = (target - at0.entropy) / h, s = 1 - t;
  return s * s * (1 + 2 * t) * u0 + t * s * s * h / at0.varentropy + t * t * (3 - 2 * t) * u1 - t * t * s * h / at1.varentropy;
}

// ln T in [lowest, highest] whose entropy is nearest to the target. Entropy rises with ln T (its slope is the varentropy):
// Newton's step first, then the cubic through the last two points; halving where these leave the bracket. `evaluate`
// is called last at the answer. A row whose entropy no temperature changes keeps its start.
template <class Evaluate>
double search_temperature(double target, double start, double lowest, double highest, Moments& at, const Evaluate& evaluate) {
  constexpr int kSteps = 24;
  constexpr double kTolerance = 5e-4;  // nats
  constexpr double kForced = 1e-9;     // varentropy of a row with one legal token, or of equal ones
  double low = lowest, high = highest, u = std::min(std::max(start, low), high), last_u = u;
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

void draw_row(const float* x, int n, const RowCut& cut, const RowSearch& search, Drawn& out) {
  const float m = out.sampled.max = row_max(x, n);
  out.log_temperature = std::log(cut.temperature);
  if (!std::isfinite(m) || cut.top_k == 1) {
    auto left = cut.top_k == 1 || m != INFINITY ? 0 : static_cast<int64_t>(cut.uniform * std::count(x, x + n, m));
    const auto* found = std::find_if(x, x + n, [&](float y) { return y == m && left-- == 0; });
    out.token = found == x + n ? 0 : static_cast<int>(found - x);
    out.sampled.entropy = out.sampled.varentropy = out.sampled.log_partition = 0.0;
    if (!std::isfinite(m)) limit(x, n, m, out.sampled);
    if (cut.top_k == 1 && m == INFINITY) out.sampled.entropy = 0.0;
    return;
  }
  thread_local std::vector<double> before;
  Weighed row{x, n, m, scratch(static_cast<size_t>(n), 5), before};
  if (search.how == Search::kExact) {
    const double u = search_temperature(search.target, out.log_temperature, search.lowest, search.highest, out.sampled,
                                        [&](double at, Moments& to) { row.at(at, to); });
    out.log_temperature = static_cast<float>(u);
  } else {
    row.scaled(1.0f / cut.temperature, out.sampled);
  }
  out.token = row.token(cut);
}

void solve_row(const float* x, int n, float target, float start, float lowest, float highest, Solved& out) {
  const float m = row_max(x, n);
  out.log_temperature = std::min(std::max(start, lowest), highest);
  if (!std::isfinite(m)) return limit(x, n, m, out.at);
  out.log_temperature = static_cast<float>(
      search_temperature(target, start, lowest, highest, out.at, [&](double u, Moments& to) {
        tempered_from(x, n, m, static_cast<float>(std::exp(-u)), to);
      }));
}

}  // namespace
}  // namespace sge::SGE_ISA

// A token drawn from a row of logits. Part of kernels_impl.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "impl_temperature.h"

namespace sge::SGE_ISA {
namespace {

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
    double start = out.log_temperature, guess = start;
    if (search.at_one && std::isfinite(search.at_one->entropy)) {
      Moments unused{};
      guess = search_temperature(search.target, start, start, search.lowest, search.highest, unused, Nearby(x, n, m, *search.at_one));
    }
    const double u = search_temperature(search.target, start, guess, search.lowest, search.highest, out.sampled,
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
      search_temperature(target, start, start, lowest, highest, out.at, [&](double u, Moments& to) {
        tempered_from(x, n, m, static_cast<float>(std::exp(-u)), to);
      }));
}

}  // namespace
}  // namespace sge::SGE_ISA

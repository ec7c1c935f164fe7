#include "sampling.h"

#include <algorithm>
#include <cmath>

#include "ops.h"
#include "team.h"

namespace sge {

namespace {

constexpr double kForcedVarentropy = 0.01;  // below it, at T = 1, a row says nothing about the controller
constexpr double kNewtonFloor = 0.1;        // least slope that Newton's step divides by
constexpr double kReachedNats = 1e-3;

// Of a temperature that float32 can divide by.
float bounded(float temperature) { return std::min(std::max(temperature, 1e-30f), 1e30f); }

// One row's part of a Steering.
struct Steered {
  float target = 0, gain = 0, lowest = 0, highest = 0;
  int mode = kNotSteered;
  float* state = nullptr;
  float* out = nullptr;
  int rows = 0;

  Steered(const Steering* s, int r, int count, const Cuts& cuts) : rows(count) {
    if (!s) return;
    const auto control = [&](Control which) { return s->controls[static_cast<size_t>(which) * rows + r]; };
    state = s->state + s->places[r];
    out = s->steered + r;
    target = control(kTarget);
    if (std::isnan(target)) target = state[s->state_stride];
    gain = control(kGain);
    if (cuts.top_ks[r] != 1) mode = static_cast<int>(control(kMode));
    const float own = std::log(bounded(cuts.temperatures[r]));
    lowest = own + control(kLow), highest = own + control(kHigh);
  }

  RowSearch search(const Moments* at_one) const {
    return {mode == kExactly && std::isfinite(target) ? Search::kExact : Search::kOwn, target, lowest, highest, at_one};
  }

  float temperature(float own) const { return mode == kFixed || mode == kNewton ? std::exp(*state) : own; }

  // The law of python/sgl_entropic/sampling/temperature_control.py.
  void settle(const Drawn& drawn, double own_varentropy) const {
    if (!out) return;
    float used = drawn.log_temperature, next = used;
    bool saturated = false;
    if (mode == kFixed || mode == kNewton) {
      used = next = *state;
      const double error = drawn.sampled.entropy - target;
      const double slope = mode == kNewton ? std::max(drawn.sampled.varentropy, kNewtonFloor) : 1.0;
      const double proposed = used - gain * error / slope;
      if (std::isfinite(proposed) && own_varentropy >= kForcedVarentropy) {
        next = std::min(std::max(static_cast<float>(proposed), lowest), highest);
      }
      saturated = used <= lowest || used >= highest;
    } else if (mode == kExactly) {
      saturated = std::fabs(drawn.sampled.entropy - target) > kReachedNats && (used <= lowest || used >= highest);
    }
    if (mode != kNotSteered) *state = next;
    const size_t stride = static_cast<size_t>(rows);
    out[0] = used, out[stride] = next, out[2 * stride] = saturated ? 1.0f : 0.0f, out[3 * stride] = target;
  }
};

}  // namespace

// A row of lm_head's statistics as moments at temperature 1; whether they are those of a distribution.
bool recalled(const float* statistics, Moments& to) {
  if (!statistics || !std::isfinite(statistics[1]) || !std::isfinite(statistics[2])) return false;
  to = {statistics[0], static_cast<double>(statistics[1]) - statistics[0], statistics[2], statistics[3]};
  return true;
}

void draw(const float* logits, int rows, int n, const Cuts& cuts, const float* own, const float* before, const Steering* steering,
          int32_t* tokens, float* readings) {
  const Kernels& kernel = kernels();
  team()->run(rows, [&](int r) {
    const float* x = logits + static_cast<size_t>(r) * n;
    const Steered steered(steering, r, rows, cuts);
    const auto row_of = [&](const float* statistics) { return statistics ? statistics + static_cast<size_t>(r) * kStatistics : nullptr; };
    Moments at{}, like{};
    const bool known = recalled(row_of(own), at);
    if (!known && readings) kernel.tempered(x, n, 1.0f, at);
    const bool likely = !known && recalled(row_of(before), like);
    Drawn drawn{};
    kernel.draw_row(x, n,
                    {bounded(steered.temperature(cuts.temperatures[r])), cuts.top_ks[r], cuts.top_ps[r], cuts.min_ps[r], cuts.uniforms[r]},
                    steered.search(likely ? &like : &at), drawn);
    tokens[r] = drawn.token;
    if (!readings) return;
    const double logit = x[drawn.token];
    // Among infinite logits the tokens that have one share the mass.
    const double surprisal = at.log_partition + (logit == at.max ? 0.0 : at.max - logit);
    const double entropy = at.entropy, varentropy = at.varentropy;
    const auto put = [&](Reading which, double value) {
      const bool known = std::isfinite(entropy) && std::isfinite(value);
      readings[static_cast<size_t>(which) * rows + r] = known ? static_cast<float>(value) : NAN;
    };
    put(kEntropy, entropy);
    put(kVarentropy, varentropy);
    put(kSurprisal, std::max(0.0, surprisal));
    put(kSampledEntropy, drawn.sampled.entropy);
    put(kSampledVarentropy, drawn.sampled.varentropy);
    steered.settle(drawn, varentropy);
  });
}

void solve_temperature(const float* logits, int rows, int n, const float* targets, const float* starts,
                       const float* lowest, const float* highest, float* results) {
  const Kernels& kernel = kernels();
  team()->run(rows, [&](int r) {
    Solved solved{};
    kernel.solve_row(logits + static_cast<size_t>(r) * n, n, targets[r], starts[r], lowest[r], highest[r], solved);
    const size_t stride = static_cast<size_t>(rows);
    results[static_cast<size_t>(r)] = solved.log_temperature;
    results[stride + r] = static_cast<float>(solved.at.entropy);
    results[2 * stride + r] = static_cast<float>(solved.at.varentropy);
  });
}

}  // namespace sge

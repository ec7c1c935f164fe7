// Drawing tokens from rows of logits, and the temperature at which a row has a wanted entropy.
// Arguments are checked in bindings_sampling.cpp.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace sge {

// How each row is drawn from, [rows] each. A top_k of 1 is greedy: the first of the largest logits.
struct Cuts {
  const float* temperatures;
  const int32_t* top_ks;
  const float* top_ps;
  const float* min_ps;
  const double* uniforms;  // in [0, 1)
};

// What a step says of each row; columns of `readings`.
constexpr int kReadings = 5;
enum Reading { kEntropy, kVarentropy, kSurprisal, kSampledEntropy, kSampledVarentropy };

// Entropy-stabilised sampling of some rows. controls [5, rows]: target (nats; NaN: the row's own in `state`), gain, mode,
// and the ends of ln T relative to the row's own temperature. state [2, places]: ln T of each request's next token, and the
// target that its prompt gave; row r has place places[r], and its ln T is written.
constexpr int kControls = 5;
enum Control { kTarget, kGain, kMode, kLow, kHigh };
enum Mode { kNotSteered = -1, kFixed = 0, kNewton = 1, kExactly = 2 };

// steered [4, rows]: ln T of the draw and of the next token, whether the target was out of reach (0 or 1), the target.
constexpr int kSteered = 4;

struct Steering {
  const float* controls;
  const int64_t* places;
  float* state;
  int64_t state_stride;
  float* steered;
};

// tokens [rows]; readings [kReadings, rows] or null. own [rows, 4] (statistics of lm_head) or null: then they are
// computed, as they are where they are not finite. before [rows, 4] or null: likewise, of the logits before penalties and masks;
// where `own` is null the search for a temperature begins at what they say, so that it takes the same steps. Entropy, varentropy and surprisal are of softmax(logits); the sampled ones of softmax(logits / temperature), before
// top-k, top-p and min-p cut it. Rows that are no distribution read NaN. logits are not written.
// steering: or null.
void draw(const float* logits, int rows, int n, const Cuts& cuts, const float* own, const float* before, const Steering* steering,
          int32_t* tokens, float* readings);

// The temperature in [lowest, highest] whose entropy is nearest to target (nats), per row; a row whose entropy no
// temperature changes keeps its start. results [3, rows]: ln T, entropy and varentropy at T.
void solve_temperature(const float* logits, int rows, int n, const float* targets, const float* starts,
                       const float* lowest, const float* highest, float* results);

}  // namespace sge

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

// tokens [rows]; readings [kReadings, rows] or null. own [rows, 4] (statistics of lm_head) or null: then they are
// computed, as they are where they are not finite. Entropy, varentropy and surprisal are of softmax(logits); the sampled ones of softmax(logits / temperature), before
// top-k, top-p and min-p cut it. Rows that are no distribution read NaN. logits are not written.
void draw(const float* logits, int rows, int n, const Cuts& cuts, const float* own, int32_t* tokens, float* readings);

// The temperature in [lowest, highest] whose entropy is nearest to target (nats), per row; a row whose entropy no
// temperature changes keeps its start. results [3, rows]: ln T, entropy and varentropy at T.
void solve_temperature(const float* logits, int rows, int n, const float* targets, const float* starts,
                       const float* lowest, const float* highest, float* results);

}  // namespace sge

#include "sampling.h"

#include <algorithm>
#include <cmath>

#include "ops.h"
#include "team.h"

namespace sge {

void draw(const float* logits, int rows, int n, const Cuts& cuts, const float* own, int32_t* tokens, float* readings) {
  const Kernels& kernel = kernels();
  team()->run(rows, [&](int r) {
    const float* x = logits + static_cast<size_t>(r) * n;
    Drawn drawn{};
    kernel.draw_row(x, n, {cuts.temperatures[r], cuts.top_ks[r], cuts.top_ps[r], cuts.min_ps[r], cuts.uniforms[r]}, drawn);
    tokens[r] = drawn.token;
    if (!readings) return;
    const double logit = x[drawn.token];
    const float* statistics = own ? own + static_cast<size_t>(r) * kStatistics : nullptr;
    double entropy, varentropy, surprisal;
    if (statistics && std::isfinite(statistics[1]) && std::isfinite(statistics[2])) {
      entropy = statistics[2], varentropy = statistics[3], surprisal = statistics[1] - logit;
    } else {
      Moments at{};
      kernel.tempered(x, n, 1.0f, at);
      entropy = at.entropy, varentropy = at.varentropy;
      // Among infinite logits the tokens that have one share the mass.
      surprisal = at.log_partition + (logit == at.max ? 0.0 : at.max - logit);
    }
    const auto put = [&](Reading which, double value) {
      const bool known = std::isfinite(entropy) && std::isfinite(value);
      readings[static_cast<size_t>(which) * rows + r] = known ? static_cast<float>(value) : NAN;
    };
    put(kEntropy, entropy);
    put(kVarentropy, varentropy);
    put(kSurprisal, std::max(0.0, surprisal));
    put(kSampledEntropy, drawn.sampled.entropy);
    put(kSampledVarentropy, drawn.sampled.varentropy);
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

#include "decoder.h"

#include <optional>

#include "apart.h"

namespace sge {
namespace {

const float* or_null(const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); }

float* workspace(int which, size_t size) {
  thread_local std::vector<float> buffers[4];
  if (buffers[which].size() < size) buffers[which].resize(size);
  return buffers[which].data();
}

}  // namespace

void Decoder::forward(const int64_t* ids, const int64_t* positions, const int64_t* out_slots, int tokens,
                      const Requests& requests, float* x, const Blocks* blocks,
                      const std::vector<Choice>* choices) const {
  if (tokens == 0) return;
  const size_t rows = static_cast<size_t>(tokens);
  const int q_size = q_heads * head_dim, qkv_size = q_size + 2 * kv_heads * head_dim;
  if (ids) {
    const auto look_up = [&](int t) { embedding->row(static_cast<int>(ids[t]), x + static_cast<size_t>(t) * hidden); };
    if (tokens < 16) {
      for (int t = 0; t < tokens; ++t) look_up(t);
    } else {
      team()->run(tokens, look_up);
    }
  }
  const int normed_ld = product_stride(hidden), attended_ld = product_stride(q_size), inner_ld = product_stride(intermediate);
  float* normed = workspace(0, rows * static_cast<size_t>(normed_ld));
  float* wide = workspace(1, rows * static_cast<size_t>(std::max(qkv_size, 2 * intermediate)));
  float* narrow = workspace(2, rows * static_cast<size_t>(std::max(attended_ld, inner_ld)));
  const Rope rope{rope_table.data(), rotary_dim, neox};
  const AttentionShape shape{q_heads, scale, logit_cap, window};
  std::vector<int64_t> seen_slots, mass_at;
  Requests seen;
  const bool pruned = blocks && !blocks->kept.empty();
  std::optional<Apart> apart;
  if (choices) apart.emplace(*choices, requests, *blocks, kv_heads);
  for (int index = 0; index < static_cast<int>(layers.size()); ++index) {
    const Layer& layer = layers[static_cast<size_t>(index)];
    if (pruned && !(apart && apart->all()) && (index == 0 || blocks->layers > 1)) {
      seen = visible(requests, *blocks, index, apart ? apart->flags() : nullptr, seen_slots);
    }
    Attention step{wide, qkv_size, narrow, attended_ld, nullptr, nullptr, nullptr, 1};
    if (blocks && blocks->mass) {
      mass_at.clear();
      for (int r = 0; r < requests.count(); ++r) {
        // Of what is left of a context, the blocks are not those of the whole.
        const bool whole = !pruned || blocks->tail[r] == 0;
        mass_at.push_back(whole ? (int64_t{index} * requests.count() + r) * blocks->mass_width : -1);
      }
      step.page_mass = blocks->mass, step.pages = mass_at.data(), step.page_size = blocks->block_tokens;
    }
    rms_norm(x, nullptr, layer.input_norm.data(), eps, tokens, hidden, normed, normed_ld);
    linear(normed, normed_ld, tokens, *layer.qkv, or_null(layer.qkv_bias), false, wide, qkv_size);
    rope_and_write(wide, tokens, q_heads, layer.kv, rope, {or_null(layer.q_norm), or_null(layer.k_norm), head_eps},
                   positions, out_slots);
    if (!apart || !apart->all()) attention(step, layer.kv, shape, pruned ? seen : requests);
    if (apart) apart->attend(step, layer.kv, shape, index);
    linear(narrow, attended_ld, tokens, *layer.o, or_null(layer.o_bias), true, x, hidden);
    rms_norm(x, nullptr, layer.post_norm.data(), eps, tokens, hidden, normed, normed_ld);
    linear(normed, normed_ld, tokens, *layer.gate_up, nullptr, false, wide, 2 * intermediate);
    silu_mul(wide, tokens, intermediate, narrow, inner_ld);
    linear(narrow, inner_ld, tokens, *layer.down, nullptr, true, x, hidden);
  }
  rms_norm(x, nullptr, final_norm.data(), eps, tokens, hidden, x);
}

}  // namespace sge

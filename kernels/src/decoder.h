// A decoder of the Llama and Qwen families, run as one call: embedding, all layers, final norm. What a step computes is
// what the modules of the model would compute one by one.
#pragma once

#include <memory>
#include <vector>

#include "blocks.h"
#include "choice.h"
#include "ops.h"

namespace sge {

struct Layer {
  std::shared_ptr<Weight> qkv, o, gate_up, down;
  std::vector<float> qkv_bias, o_bias, input_norm, post_norm, q_norm, k_norm;  // empty: none
  KvCache kv{};
};

struct Decoder {
  int hidden = 0, q_heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0;
  float eps = 0, head_eps = 0, scale = 0;
  int window = -1;
  float logit_cap = 0;
  std::vector<float> rope_table, final_norm;
  int rotary_dim = 0;
  bool neox = true;
  std::shared_ptr<Weight> embedding;
  std::vector<Layer> layers;
  int64_t cache_slots = 0;

  // hidden_states [tokens, hidden] in: embeddings, unless ids are given; out: after the final norm. blocks (optional):
  // what decoded requests read; without them all. choices (optional, one a request): each KV head of each layer reads what
  // the request's query asks for, and kept says nothing.
  void forward(const int64_t* ids, const int64_t* positions, const int64_t* out_slots, int tokens,
               const Requests& requests, float* hidden_states, const Blocks* blocks = nullptr,
               const std::vector<Choice>* choices = nullptr) const;
};

}  // namespace sge

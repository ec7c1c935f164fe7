// Whole operations, cut into chunks for the team. Arguments are checked in bindings.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"
#include "team.h"
#include "weight.h"

namespace sge {

// out [rows, n] (+)= x [rows, k] . weight + bias.
void linear(const float* x, int ldx, int rows, const Weight& w, const float* bias, bool add, float* out, int ldo);

// Statistics of one row of logits: maximum, log-sum-exp, entropy (nats), varentropy (nats squared).
constexpr int kStatistics = 4;

// logits [rows, n] (optional) and statistics [rows, 4] (optional) in one pass over the weights; targets [rows]
// (optional) with target_logits [rows]: the logit of one column, for logits that are not kept.
void lm_head(const float* x, int rows, const Weight& w, float* logits, float* statistics, const int64_t* targets,
             float* target_logits);

// Row stride of a buffer [rows, n] that becomes the input of a product. Rows that lie a multiple of 2 KiB apart share the
// same few sets of the first-level cache, and 16 of them would push one another out.
inline int product_stride(int n) { return n % 512 == 0 ? n + 16 : n; }

// ldo: row stride of out, 0 for n.
void rms_norm(const float* x, float* residual, const float* weight, float eps, int rows, int n, float* out, int ldo = 0);
void silu_mul(const float* x, int rows, int n, float* out, int ldo = 0);

struct Rope {
  const float* table;  // [positions, rotary_dim]: cosines, then sines
  int rotary_dim;
  bool neox;
};

// Optional normalisation of every head of q and k before the rotation (Qwen3).
struct HeadNorms {
  const float* q;
  const float* k;
  float eps;
};

// qkv [tokens, (q_heads + 2 kv_heads) head_dim]: rotates q and k in place and writes k and v to their slots.
void rope_and_write(float* qkv, int tokens, int q_heads, const KvCache& kv, const Rope& rope, const HeadNorms& norms,
                    const int64_t* positions, const int64_t* slots);

// Requests of one step. Request r reads slots[first[r] .. first[r + 1]), and its queries are rows
// [query[r], query[r + 1]) of q: the last ones of its tokens. A request with one query row is decoded.
struct Requests {
  std::vector<int64_t> first, query;
  const int64_t* slots;
  int count() const { return static_cast<int>(first.size()) - 1; }
};

constexpr int kShare = 128;  // tokens of one request that one chunk of decode attention reads

struct Attention {
  const float* q;
  int ldq;
  float* out;
  int ldo;
  float* lse;            // [queries, q_heads] or null
  float* page_mass;      // or null: [pages], for requests with one query row: mean over heads of the attention on a page
  const int64_t* pages;  // [requests]: where a request's pages begin in page_mass; negative: not wanted
  int page_size;
};

void attention(const Attention& a, const KvCache& kv, const AttentionShape& shape, const Requests& requests);

}  // namespace sge

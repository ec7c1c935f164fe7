// What runs inside one chunk of work, compiled once for each instruction set and chosen when the library is loaded.
// All pointers are to checked, contiguous memory; the checks are in bindings.cpp.
#pragma once

#include <cstdint>

#include "weight.h"

namespace sge {

// One layer's key-value cache, float32 or bfloat16: head_dim numbers of a slot and head begin at slot * slot_stride + head *
// head_stride, both multiples of head_dim.
struct KvCache {
  const void* k;
  const void* v;
  bool bf16;
  int kv_heads;
  int head_dim;
  int64_t slot_stride, head_stride;

  int64_t at(int64_t slot, int head) const { return slot * slot_stride + head * head_stride; }
  // The same memory as one of a single head, with a slot for each of the heads.
  KvCache of_one_head() const { return {k, v, bf16, 1, head_dim, head_dim, head_dim}; }
};

struct AttentionShape {
  int q_heads;
  float scale;
  float logit_cap;  // 0: none; else cap * tanh(score / cap)
  int window;       // tokens before the own one that are seen; negative: all
};

// Row statistics of logits, relative to the row's maximum m: sums over e^(x-m) {1, (x-m), (x-m)^2}.
struct RowSums {
  float max;
  double z, s1, s2;
};

// Rows of inputs rounded to 8 bits, [rows, 32 blocks]: input = scale * code, codes of inputs beyond k are 0.
struct Rounded {
  int8_t* codes;
  float* scales;   // [rows, blocks]
  int32_t* sums;   // [rows, blocks]: of the codes
  int blocks;
};

// One row's distribution at some temperature.
struct Moments {
  float max;             // of x
  double log_partition;  // ln sum e^((x - max) / T)
  double entropy;        // nats; NaN where the row is no distribution
  double varentropy;
};

// Where a row's temperature comes from: kOwn leaves it alone, kExact finds the one with the target entropy (nats) between
// two ends of ln T.
enum class Search { kOwn, kExact };

struct RowCut {
  float temperature;
  int top_k;
  float top_p;
  float min_p;
  double uniform;
};

struct RowSearch {
  Search how;
  float target;
  float lowest, highest;
  const Moments* at_one;  // of the row at temperature 1, or of one much like it, to guess from; or null
};

struct Drawn {
  int token;
  float log_temperature;  // of the draw
  Moments sampled;  // of what the temperature makes of the row, before the cuts; 0 where the row is greedy
};

struct Solved {
  float log_temperature;
  Moments at;
};

// What stands for the keys of a block: each of them in codes, or the least and the largest of each number (Tang et al.
// 2024, Quest).
enum class BlockKind { kCodes, kBounds };

// Keys in codes of two bits a number: of segments of the context, number c of a key of KV head h is about mean[c] + step[c] *
// (code - 1.5), where mean and step are the mean and the standard deviation of that number over the segment's keys (by
// channel, as Liu et al. 2024, KIVI, have it). What is no finite number counts as 0.
constexpr int kSegment = 256;       // tokens, at multiples of it
constexpr int kMostNumbers = 1024;  // of a key

// Where the codes of a segment lie: [kv_heads, head_dim / 4, kSegment / 64] lines of 64 bytes, each of four numbers and 64
// tokens, so that numbers that are not asked for are not read; bits 2s and 2s + 1 of byte 4t + j are of token 16s + t and
// number j.
inline int64_t code_bytes(int kv_heads, int head_dim) { return int64_t{kv_heads} * head_dim * (kSegment / 4); }
// Means and steps of a segment: [kv_heads, 2, head_dim].
inline int64_t code_steps(int kv_heads, int head_dim) { return int64_t{kv_heads} * 2 * head_dim; }

struct BoundedKeys {
  const uint16_t* bounds;  // [blocks, kv_heads, 2, head_dim]
  int kv_heads, head_dim;
};

struct CodedKeys {
  const uint8_t* codes;  // by segment
  const float* steps;    // by segment
  int kv_heads, head_dim;
};

struct Kernels {
  const char* name;

  // out[r, 16p .. 16p+16) (+)= x[r] . weight, for the panels in [begin, end). `add`: onto what out holds.
  void (*linear)(const float* x, int ldx, int rows, const Weight& w, int begin, int end, const float* bias, bool add,
                 float* out, int ldo);
  // The same for inputs rounded by `round_inputs`, rows from `first` on; out is that of row `first`.
  void (*linear_integer)(const Rounded& x, int first, int rows, const Weight& w, int begin, int end, const float* bias,
                         bool add, float* out, int ldo);
  void (*round_inputs)(const float* x, int ldx, int k, int first, int rows, const Rounded& to);
  // Sums of logits[r, 0 .. columns), for every row.
  void (*row_sums)(const float* logits, int ld, int rows, int columns, RowSums* sums, int sums_stride);
  // out = x / rms(x) * weight, rows of n. With residual: residual += x first, and the norm is of that.
  void (*rms_norm)(const float* x, float* residual, const float* weight, float eps, int rows, int n, float* out);
  // out[r, 0..n) = silu(x[r, 0..n)) * x[r, n..2n).
  void (*silu_mul)(const float* x, int rows, int n, float* out);
  // Rotates `heads` heads of one token in place; table: cosines then sines of this position, rotary_dim / 2 each.
  void (*rope)(float* x, int heads, int head_dim, int rotary_dim, bool neox, const float* table);
  void (*to_bf16)(const float* x, int count, uint16_t* out);
  // One request's share of decode attention: tokens slots[0..count), scores relative to the share's own maximum.
  // out [q_heads, head_dim] is not normalised; max and sum [q_heads]. weights [q_heads, count] (optional): e^(s - max).
  void (*decode_share)(const float* q, const KvCache& kv, const AttentionShape& shape, const int64_t* slots, int count,
                       float* out, float* max, float* sum, float* weights);
  // `tokens` new tokens of one request at positions first..., one KV head, over slots[0 .. first+tokens).
  // q and out: [tokens, q_heads, head_dim] with row strides; lse [tokens, q_heads] optional.
  void (*extend_block)(const float* q, int ldq, const KvCache& kv, const AttentionShape& shape, int kv_head,
                       const int64_t* slots, int first, int tokens, float* out, int ldo, float* lse);
  // Bounds of `count` keys of all heads: bfloat16 [kv_heads, 2, head_dim].
  void (*bound_keys)(const KvCache& kv, const int64_t* slots, int count, uint16_t* out);
  // Codes of tokens [from, to) of the segment whose tokens are at `slots`. measured: first of its tokens whose mean and
  // deviation become those of the segment; 0: they are there.
  void (*code_keys)(const KvCache& kv, const int64_t* slots, int from, int to, int measured, float* steps, uint8_t* codes);
  // Sum over the query heads q [heads, head_dim] that read one KV head of their softmax over the blocks: score [blocks],
  // with room up to a multiple of 16.
  void (*score_bounds)(const float* q, const BoundedKeys& keys, int kv_head, const AttentionShape& shape, int blocks,
                       float* score);
  // Likewise by the best key of each block, by its codes of the numbers that matter most.
  void (*score_codes)(const float* q, const CodedKeys& keys, int kv_head, const AttentionShape& shape, int block_tokens,
                      int blocks, float* score);
  // 1 in kept [count] for the `wanted` largest of score [count], which are not negative, of equal ones the later; NaN is
  // less than all. score has room up to a multiple of 16 and is written over.
  void (*keep_largest)(float* score, int count, int wanted, uint8_t* kept);
  // Moments of x / T; inverse: 1 / T.
  void (*tempered)(const float* x, int n, float inverse, Moments& to);
  void (*draw_row)(const float* x, int n, const RowCut& cut, const RowSearch& search, Drawn& out);
  void (*solve_row)(const float* x, int n, float target, float start, float lowest, float highest, Solved& out);
};

constexpr int kKvBlock = 64;  // tokens of KV that extend_block handles at a time, at multiples of it

const Kernels& generic_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();

// The widest set that this processor has, or the one that SGLANG_ENTROPIC_ISA names (generic, avx2, avx512).
const Kernels& kernels();

}  // namespace sge

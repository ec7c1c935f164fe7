// Blocks chosen anew by every KV head in every layer and step, by the query: those that it is likely to look at, and those
// that are surprising.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"

namespace sge {

// What stands for one layer's keys: bounds or codes, as the kind is.
struct Summary {
  BoundedKeys bounds;
  CodedKeys codes;
};

// What stands for the blocks of one request's keys, made as the context grows, which it only does. Bounds are made
// once, codes anew at each power of two of a segment's tokens. One step at a time
// uses them: what is not const needs a claim.
class BlockKeys {
 public:
  BlockKeys(int layers, int kv_heads, int head_dim, BlockKind kind);

  BlockKind kind() const { return kind_; }
  int layers() const { return static_cast<int>(of_layer_.size()); }
  int kv_heads() const { return kv_heads_; }
  int head_dim() const { return head_dim_; }
  // Blocks that are there in all layers.
  int ready() const;
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  bool claim() { return !claimed_.exchange(true, std::memory_order_acquire); }
  void release() { claimed_.store(false, std::memory_order_release); }
  // Tokens of a block, the same from the first use to a reset; before that 0.
  int block_tokens() const { return block_tokens_; }
  // Room for `blocks` blocks of `block_tokens` tokens in all layers: what follows needs no more memory.
  void make_room(int blocks, int block_tokens);
  // Whether a layer has what stands for its first `blocks` blocks.
  bool has(int layer, int blocks) const;
  // Of one layer, for the first `blocks` blocks of the request's slots, for which there is room.
  Summary upto(int layer, int blocks, const KvCache& kv, const int64_t* slots);
  // What is there of a layer.
  Summary of(int layer) const;
  // Forgets all: the request's keys have been computed anew.
  void reset();

 private:
  struct Layer {
    std::atomic<int> ready{0};
    std::vector<uint16_t> bounds;
    std::vector<uint8_t> codes;
    std::vector<float> steps;  // of the codes
  };

  size_t of_block() const;
  void code(Layer& layer, int from, int to, const KvCache& kv, const int64_t* slots);

  std::atomic<bool> claimed_{false};
  std::atomic<size_t> bytes_{0};
  int kv_heads_, head_dim_, block_tokens_ = 0;
  BlockKind kind_;
  std::vector<Layer> of_layer_;
};

// One request's choice. `blocks` of its first blocks may be left out; each KV head reads `budget` of them on the mean
// over layers: the first `sinks`, the last `recent`, and those of the largest score, ln of the sum over its query
// heads of the attention that what stands for the block's keys suggests, plus bonus[block] (NaN: always read); of equals the later ones.
struct Choice {
  Choice() = default;  // not chosen by its query
  // bonus [blocks]
  Choice(std::shared_ptr<BlockKeys> keys, int blocks, int budget, int sinks, int recent, const float* bonus, double tilt);

  std::shared_ptr<BlockKeys> keys;
  int blocks = 0, budget = 0, sinks = 0, recent = 0;
  std::vector<float> factor;  // e^bonus, from the first block that is no sink to the last that is not recent
  std::vector<int> always;    // places in factor of those whose bonus is NaN
  double tilt = 0;  // the last layer reads (1 + tilt) times the budget, the first (1 - tilt) times, those between in a line

  // Blocks that one layer reads; over all layers they add up to the budget of each. The tilt is less where it would leave a
  // layer fewer blocks than it has to read, or more than there are.
  int of_layer(int layer) const;
};

// kept [blocks] of one request and KV head in one layer. q: [q_heads, head_dim] of its query.
void choose(const Choice& choice, int layer, int kv_head, const float* q, const AttentionShape& shape, const Summary& keys,
            uint8_t* kept);

}  // namespace sge

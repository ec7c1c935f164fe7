// Blocks chosen anew in every layer and step, by the query: those that it is likely to look at, and those that are
// surprising.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "blocks.h"
#include "kernels.h"

namespace sge {

// What stands for the blocks of one request's keys, computed once for each block as the context grows.
class BlockKeys {
 public:
  BlockKeys(int layers, int kv_heads, int head_dim, BlockKind kind);

  BlockKind kind() const { return kind_; }
  int layers() const { return static_cast<int>(of_layer_.size()); }
  int kv_heads() const { return kv_heads_; }
  int head_dim() const { return head_dim_; }
  // Blocks that are there in all layers.
  int ready() const { return *std::min_element(ready_.begin(), ready_.end()); }
  size_t bytes() const;
  // Forgets all: the request's keys have been computed anew.
  void reset() { std::fill(ready_.begin(), ready_.end(), 0); }

  // Of one layer, for the first `blocks` blocks of the request's slots.
  const uint16_t* upto(int layer, int blocks, const KvCache& kv, const int64_t* slots, int block_tokens);
  // One step at a time uses them.
  bool claim() { return !claimed_.exchange(true); }
  void release() { claimed_.store(false); }

 private:
  std::atomic<bool> claimed_{false};
  int kv_heads_, head_dim_;
  BlockKind kind_;
  std::vector<int> ready_;  // by layer
  std::vector<std::vector<uint16_t>> of_layer_;
};

// One request's choice. `blocks` of its first blocks may be left out; `budget` of them are read: the first `sinks`, the
// last `recent`, and those of the largest score, ln of the sum over heads of the attention that the block's keys suggest,
// plus bonus[block] (NaN: always read).
struct Choice {
  std::shared_ptr<BlockKeys> keys;  // null: not chosen by its query
  int blocks = 0, budget = 0, sinks = 0, recent = 0;
  std::vector<float> bonus;
};

// kept [blocks] of one request in one layer. q: [q_heads, head_dim] of its query.
void choose(const Choice& choice, const float* q, const AttentionShape& shape, const uint16_t* keys, uint8_t* kept);

// Fills the rows of kept of the requests that have a choice. q: rows of `ldq`, as in attention().
void choose_all(const std::vector<Choice>& choices, const float* q, int ldq, const KvCache& kv, const AttentionShape& shape,
                const Requests& requests, int layer, Blocks& blocks);

}  // namespace sge

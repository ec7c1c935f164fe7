// Attention of requests whose KV heads each read blocks of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "blocks.h"
#include "choice.h"
#include "ops.h"

namespace sge {

// The requests of a step that choose by their query. A cache of several heads is one of a single head with as many times the
// slots, so that what a KV head reads is a request of its own to attention().
class Apart {
 public:
  // choices: one a request, without keys where it is not one of these; requests and blocks: of the step. All are kept.
  Apart(const std::vector<Choice>& choices, const Requests& requests, const Blocks& blocks, int kv_heads);

  // [requests]: whether it is one of these.
  const uint8_t* flags() const { return flags_.data(); }
  bool all() const { return rows_.size() == flags_.size(); }
  // Chooses by the queries a.q in layer `layer`, with keys that have room, and writes the rows of these in a.out.
  void attend(const Attention& a, const KvCache& kv, const AttentionShape& shape, int layer);

 private:
  struct Row {
    int request;
    std::vector<uint8_t> kept;  // [kv_heads, blocks]
  };

  // Of one KV head. Where its list begins is known: heads read equally many tokens.
  void list(Row& row, int head, const Attention& a, const KvCache& kv, const AttentionShape& shape, int layer, int64_t* to);

  const std::vector<Choice>& choices_;
  const Requests& requests_;
  const Blocks& blocks_;
  int kv_heads_;
  std::vector<uint8_t> flags_;
  std::vector<Row> rows_;
  std::vector<int64_t> places_;  // of the step's slots among those of a single head, if they were of its first one
  int64_t step_ = 0;             // places from one slot to the next
  std::vector<int64_t> slots_;
  std::vector<float> q_, out_;  // [rows, q_heads, head_dim]
  Requests heads_;              // [rows * kv_heads]
};

}  // namespace sge

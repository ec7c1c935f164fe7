// Which blocks of its context a decoded request reads, layer by layer, and how much attention each block received.
#pragma once

#include <cstdint>
#include <vector>

#include "ops.h"

namespace sge {

struct Blocks {
  int block_tokens = 0;
  int layers = 0;                  // of kept: 1 for all alike, or one each
  int64_t width = 0;               // blocks of a request in kept
  std::vector<uint8_t> kept;       // [layers, requests, width]: whether a block is read; empty: all are
  std::vector<int64_t> tail;       // [requests]: first token that is read whatever kept says; 0 reads all
  float* mass = nullptr;           // or null: [layers of the decoder, requests, mass_width], of requests that read all
  int64_t mass_width = 0;
};

// The slots that each request reads in a layer, in the order of its tokens; none of those that are `elsewhere` [requests].
// `slots` holds them.
Requests visible(const Requests& all, const Blocks& blocks, int layer, const uint8_t* elsewhere,
                 std::vector<int64_t>& slots);

}  // namespace sge

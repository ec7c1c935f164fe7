#include "blocks.h"

#include <algorithm>

namespace sge {

Requests visible(const Requests& all, const Blocks& blocks, int layer, const uint8_t* elsewhere,
                 std::vector<int64_t>& slots) {
  Requests seen;
  seen.query = all.query;
  seen.first.reserve(all.first.size());
  seen.first.push_back(0);
  slots.resize(static_cast<size_t>(all.first.back()));
  int64_t* to = slots.data();
  for (int r = 0; r < all.count(); ++r) {
    if (elsewhere && elsewhere[r]) {
      seen.first.push_back(to - slots.data());
      continue;
    }
    const int64_t* from = all.slots + all.first[r];
    const int64_t length = all.first[r + 1] - all.first[r], tail = blocks.tail[r];
    const int64_t row = int64_t{blocks.layers == 1 ? 0 : layer} * all.count() + r;
    const uint8_t* kept = blocks.kept.data() + row * blocks.width;
    for (int64_t start = 0; start < tail; start += blocks.block_tokens) {
      if (*kept++) to = std::copy(from + start, from + start + blocks.block_tokens, to);
    }
    to = std::copy(from + tail, from + length, to);
    seen.first.push_back(to - slots.data());
  }
  seen.slots = slots.data();
  return seen;
}

}  // namespace sge

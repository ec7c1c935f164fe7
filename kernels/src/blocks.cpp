#include "blocks.h"

#include <algorithm>

namespace sge {

Blocks one_layer(const Blocks& blocks) {
  Blocks one;
  one.block_tokens = blocks.block_tokens, one.layers = 1, one.width = blocks.width, one.tail = blocks.tail;
  one.kept.resize(blocks.kept.size() / static_cast<size_t>(std::max(1, blocks.layers)));
  return one;
}

void take_layer(const Blocks& blocks, int layer, int requests, Blocks& to) {
  const int64_t size = requests * blocks.width;
  const auto from = blocks.kept.begin() + (blocks.layers == 1 ? 0 : layer) * size;
  std::copy(from, from + size, to.kept.begin());
}

Requests visible(const Requests& all, const Blocks& blocks, int layer, std::vector<int64_t>& slots) {
  Requests seen;
  seen.query = all.query;
  seen.first.reserve(all.first.size());
  seen.first.push_back(0);
  slots.resize(static_cast<size_t>(all.first.back()));
  int64_t* to = slots.data();
  for (int r = 0; r < all.count(); ++r) {
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

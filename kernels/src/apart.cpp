#include "apart.h"

#include <algorithm>

namespace sge {

Apart::Apart(const std::vector<Choice>& choices, const Requests& requests, const Blocks& blocks, int kv_heads)
    : choices_(choices), requests_(requests), blocks_(blocks), kv_heads_(kv_heads) {
  for (const Choice& choice : choices) {
    flags_.push_back(choice.keys ? 1 : 0);
    if (!choice.keys) continue;
    rows_.push_back({static_cast<int>(flags_.size()) - 1, std::vector<uint8_t>(static_cast<size_t>(kv_heads) * choice.blocks)});
  }
  for (size_t i = 0; i <= rows_.size() * static_cast<size_t>(kv_heads); ++i) heads_.query.push_back(static_cast<int64_t>(i));
}

void Apart::list(Row& row, int head, const Attention& a, const KvCache& kv, const AttentionShape& shape, int layer, int64_t* to) {
  const int r = row.request;
  const Choice& choice = choices_[static_cast<size_t>(r)];
  const int64_t *slots = places_.data() + requests_.first[r], *end = places_.data() + requests_.first[r + 1];
  uint8_t* kept = row.kept.data() + static_cast<size_t>(head) * static_cast<size_t>(choice.blocks);
  choose(choice, layer, head, a.q + requests_.query[r] * a.ldq, shape, choice.keys->of(layer), kept);
  const int64_t place = head * (kv.head_stride / kv.head_dim);
  const auto add = [&](const int64_t* from, const int64_t* until) {
    to = std::transform(from, until, to, [&](int64_t slot) { return slot + place; });
  };
  for (int b = 0; b < choice.blocks; ++b, ++kept) {
    const int64_t* from = slots + int64_t{b} * blocks_.block_tokens;
    if (*kept) add(from, from + blocks_.block_tokens);
  }
  add(slots + blocks_.tail[static_cast<size_t>(r)], end);
}

void Apart::attend(const Attention& a, const KvCache& kv, const AttentionShape& shape, int layer) {
  const size_t width = static_cast<size_t>(shape.q_heads) * static_cast<size_t>(kv.head_dim);
  heads_.first.assign(1, 0);
  for (const Row& row : rows_) {
    const size_t r = static_cast<size_t>(row.request);
    const int64_t tail = requests_.first[r + 1] - requests_.first[r] - blocks_.tail[r];
    const int64_t length = int64_t{choices_[r].of_layer(layer)} * blocks_.block_tokens + tail;
    for (int h = 0; h < kv_heads_; ++h) heads_.first.push_back(heads_.first.back() + length);
  }
  slots_.resize(static_cast<size_t>(heads_.first.back()));
  heads_.slots = slots_.data();
  q_.resize(rows_.size() * width), out_.resize(q_.size());
  // Seldom: once a block of new tokens.
  const auto ready = [&](const Row& row) {
    const Choice& choice = choices_[static_cast<size_t>(row.request)];
    return choice.keys->has(layer, choice.blocks);
  };
  if (!std::all_of(rows_.begin(), rows_.end(), ready)) {
    team()->run(static_cast<int>(rows_.size()), [&](int i) {
      const int r = rows_[static_cast<size_t>(i)].request;
      const Choice& choice = choices_[static_cast<size_t>(r)];
      choice.keys->upto(layer, choice.blocks, kv, requests_.slots + requests_.first[r]);
    });
  }
  if (const int64_t step = kv.slot_stride / kv.head_dim; step != step_) {
    step_ = step;
    places_.resize(static_cast<size_t>(requests_.first[requests_.count()]));
    for (size_t i = 0; i < places_.size(); ++i) places_[i] = requests_.slots[i] * step;
  }
  const int group = shape.q_heads / kv_heads_, ld = group * kv.head_dim;
  team()->run(static_cast<int>(rows_.size()) * kv_heads_, [&](int i) {
    Row& row = rows_[static_cast<size_t>(i / kv_heads_)];
    const int head = i % kv_heads_;
    list(row, head, a, kv, shape, layer, slots_.data() + heads_.first[static_cast<size_t>(i)]);
    const float* q = a.q + requests_.query[row.request] * a.ldq + int64_t{head} * ld;
    std::copy(q, q + ld, q_.data() + static_cast<size_t>(i) * static_cast<size_t>(ld));
  });
  attention({q_.data(), ld, out_.data(), ld, nullptr, nullptr, nullptr, 1}, kv.of_one_head(),
            {group, shape.scale, shape.logit_cap, shape.window}, heads_);
  for (size_t i = 0; i < rows_.size(); ++i) {
    const float* from = out_.data() + i * width;
    std::copy(from, from + width, a.out + requests_.query[rows_[i].request] * a.ldo);
  }
}

}  // namespace sge

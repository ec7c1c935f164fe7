// Every operation on random sizes and formats against plain double arithmetic, from several callers at once, while the
// team changes its size; to be built with a sanitizer, which sees what a comparison cannot. No Python in here.
//
//   stress [seconds] [seed]     exit status 1 at a difference
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "choice.h"
#include "decoder.h"
#include "ops.h"
#include "sampling.h"
#include "team.h"
#include "weight.h"

namespace {

using Floats = std::vector<float>;

std::atomic<bool> failed{false};

void expect(bool condition, const char* what) {
  if (!condition && !failed.exchange(true)) std::fprintf(stderr, "stress: %s\n", what);
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  bool coin() { return between(0, 1) == 1; }
  float normal() { return std::normal_distribution<float>()(engine_); }
  Floats normals(size_t count) {
    Floats v(count);
    for (float& x : v) x = normal();
    return v;
  }
  template <class T>
  void shuffle(std::vector<T>& v) {
    std::shuffle(v.begin(), v.end(), engine_);
  }

 private:
  std::mt19937_64 engine_;
};

bool near(double got, double expected, double size) { return std::fabs(got - expected) <= 1e-4 * (1.0 + size); }

uint16_t bf16_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float value_of(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// A matrix that one of the formats holds exactly.
Floats matrix_for(Random& random, int n, int k) {
  Floats m = random.normals(static_cast<size_t>(n) * k);
  const int kind = random.between(0, 3);
  const float step = 1.0f / static_cast<float>(1 << random.between(4, 9));
  for (size_t i = 0; i < m.size(); ++i) {
    const bool edge = i % 32 == 0, other_edge = i % 32 == 1;
    if (kind == 1) m[i] = value_of(bf16_of(m[i]));
    if (kind == 2) m[i] = step * static_cast<float>(edge ? 127 : random.between(-127, 127));
    if (kind == 3) m[i] = step * static_cast<float>(edge ? 0 : other_edge ? 15 : random.between(0, 15)) - 0.25f;
  }
  return m;
}

struct Packed {
  std::shared_ptr<sge::Weight> weight;
  Floats rows;  // what the weight stands for
};

Packed packed(Random& random, int n, int k, bool integer) {
  static const char* const formats[] = {"float32", "lossless", "int8", "small"};
  const Floats matrix = matrix_for(random, n, k);
  const std::string format = formats[integer ? random.between(2, 3) : random.between(0, 3)];
  Packed p{std::make_shared<sge::Weight>(matrix.data(), n, k, format, integer), Floats(matrix.size())};
  for (int r = 0; r < n; ++r) p.weight->row(r, p.rows.data() + static_cast<size_t>(r) * k);
  if (p.weight->exact) expect(p.rows == matrix, "an exact weight is not the matrix");
  if (format != "int8" && format != "small") expect(p.weight->exact, "a lossless format lost something");
  return p;
}

// Double products of float inputs, or of inputs rounded to 8 bits: [rows, n], and the sum of magnitudes as a size.
void plain_linear(const Floats& x, int rows, const Packed& p, std::vector<double>& out, std::vector<double>& size) {
  const int n = p.weight->n, k = p.weight->k;
  out.assign(static_cast<size_t>(rows) * n, 0.0);
  size.assign(out.size(), 0.0);
  for (int r = 0; r < rows; ++r) {
    std::vector<double> input(x.begin() + static_cast<long>(r) * k, x.begin() + static_cast<long>(r + 1) * k);
    for (int start = 0; p.weight->integer && start < k; start += 32) {
      const int end = std::min(k, start + 32);
      float largest = 0;
      for (int i = start; i < end; ++i) largest = std::max(largest, std::fabs(static_cast<float>(input[i])));
      const float inverse = largest > 0 ? 127.0f / largest : 0.0f, scale = largest / 127.0f;
      for (int i = start; i < end; ++i) {
        input[i] = static_cast<double>(scale) * std::nearbyint(static_cast<float>(input[i]) * inverse);
      }
    }
    for (int j = 0; j < n; ++j) {
      for (int i = 0; i < k; ++i) {
        const double term = input[i] * p.rows[static_cast<size_t>(j) * k + i];
        out[static_cast<size_t>(r) * n + j] += term;
        size[static_cast<size_t>(r) * n + j] += std::fabs(term);
      }
    }
  }
}

void check_linear(Random& random) {
  static const int some_rows[] = {0, 1, 2, 3, 4, 5, 11, 13, 97};
  const int rows = some_rows[random.between(0, 8)], n = random.between(1, 150), k = random.between(1, 6) * random.between(1, 40);
  const Packed p = packed(random, n, k, random.coin());
  const Floats x = random.normals(static_cast<size_t>(rows) * k), bias = random.normals(n);
  const Floats before = random.normals(static_cast<size_t>(rows) * n);
  Floats out = before;
  const bool add = random.coin(), biased = random.coin();
  sge::linear(x.data(), k, rows, *p.weight, biased ? bias.data() : nullptr, add, out.data(), n);
  std::vector<double> expected, size;
  plain_linear(x, rows, p, expected, size);
  for (size_t i = 0; i < out.size(); ++i) {
    const double rest = (biased ? bias[i % n] : 0.0) + (add ? before[i] : 0.0);
    expect(near(out[i], expected[i] + rest, size[i]), "linear");
  }
}

void check_head(Random& random) {
  const int rows = random.between(1, 20), n = random.between(1, 900), k = random.between(1, 3) * 16;
  const Packed p = packed(random, n, k, random.coin());
  const Floats x = random.normals(static_cast<size_t>(rows) * k);
  Floats logits(static_cast<size_t>(rows) * n), statistics(static_cast<size_t>(rows) * 4), again(statistics.size());
  Floats chosen(rows);
  std::vector<int64_t> targets(rows);
  for (auto& target : targets) target = random.between(0, n - 1);
  sge::lm_head(x.data(), rows, *p.weight, logits.data(), statistics.data(), nullptr, nullptr);
  sge::lm_head(x.data(), rows, *p.weight, nullptr, again.data(), targets.data(), chosen.data());
  for (int r = 0; r < rows; ++r) {
    const float* row = logits.data() + static_cast<size_t>(r) * n;
    const double top = *std::max_element(row, row + n);
    double z = 0, mean = 0, square = 0;
    for (int j = 0; j < n; ++j) z += std::exp(row[j] - top);
    for (int j = 0; j < n; ++j) {
      const double surprisal = std::log(z) - (row[j] - top), weight = std::exp(-surprisal);
      mean += weight * surprisal;
      square += weight * surprisal * surprisal;
    }
    const double expected[] = {top, top + std::log(z), mean, square - mean * mean};
    for (int i = 0; i < 4; ++i) {
      expect(near(statistics[r * 4 + i], expected[i], std::fabs(expected[i]) + square), "statistics");
      expect(near(again[r * 4 + i], expected[i], std::fabs(expected[i]) + square), "statistics without logits");
    }
    expect(chosen[r] == row[targets[r]], "chosen logits");
  }
}

void check_small(Random& random) {
  const int rows = random.between(1, 120), n = random.between(1, 300);
  const Floats x = random.normals(static_cast<size_t>(rows) * 2 * n), weight = random.normals(n);
  Floats residual = random.normals(static_cast<size_t>(rows) * n), out(residual.size());
  const Floats held = residual;
  const bool with = random.coin();
  sge::rms_norm(x.data(), with ? residual.data() : nullptr, weight.data(), 1e-5f, rows, n, out.data());
  for (int r = 0; r < rows; ++r) {
    const size_t at = static_cast<size_t>(r) * n;
    double squares = 0;
    for (int i = 0; i < n; ++i) squares += std::pow(static_cast<double>(x[at + i]) + (with ? held[at + i] : 0.0f), 2);
    for (int i = 0; i < n; ++i) {
      const double y = static_cast<double>(x[at + i]) + (with ? held[at + i] : 0.0f);
      expect(near(out[at + i], y / std::sqrt(squares / n + 1e-5) * weight[i], std::fabs(out[at + i])), "rms_norm");
    }
  }
  sge::silu_mul(x.data(), rows, n, out.data());
  for (size_t i = 0; i < out.size(); ++i) {
    const double gate = x[i / n * 2 * n + i % n], up = x[i / n * 2 * n + n + i % n];
    expect(near(out[i], gate / (1.0 + std::exp(-gate)) * up, std::fabs(gate * up)), "silu_mul");
  }
}

// One cache of random numbers, in either dtype, slots or heads first, and the same as double.
struct Cache {
  int slots, kv_heads, d;
  bool bf16, heads_first;
  Floats single[2];
  std::vector<uint16_t> half[2];

  Cache(Random& random, int slots_, int kv_heads_, int d_) : slots(slots_), kv_heads(kv_heads_), d(d_), bf16(random.coin()), heads_first(random.coin()) {
    for (int i = 0; i < 2; ++i) {
      single[i] = random.normals(static_cast<size_t>(slots) * kv_heads * d);
      for (float& x : single[i]) {
        half[i].push_back(bf16_of(x));
        if (bf16) x = value_of(half[i].back());
      }
    }
  }
  sge::KvCache view() const {
    const int64_t slot = heads_first ? d : kv_heads * d, head = heads_first ? int64_t{slots} * d : d;
    if (bf16) return {half[0].data(), half[1].data(), true, kv_heads, d, slot, head};
    return {single[0].data(), single[1].data(), false, kv_heads, d, slot, head};
  }
  double at(int which, int64_t slot, int head, int i) const {
    const size_t where = static_cast<size_t>(view().at(slot, head)) + static_cast<size_t>(i);
    return bf16 ? value_of(half[which][where]) : single[which][where];
  }
};

struct Seen {
  std::vector<double> out;
  double lse;
};

Seen attend(const float* q, const Cache& cache, const sge::AttentionShape& shape, int head, const int64_t* slots, int own) {
  const int oldest = shape.window < 0 ? 0 : std::max(0, own - shape.window), kv_head = head / (shape.q_heads / cache.kv_heads);
  std::vector<double> scores;
  for (int t = oldest; t <= own; ++t) {
    double score = 0;
    for (int i = 0; i < cache.d; ++i) score += static_cast<double>(q[i]) * cache.at(0, slots[t], kv_head, i);
    score *= shape.scale;
    scores.push_back(shape.logit_cap > 0 ? shape.logit_cap * std::tanh(score / shape.logit_cap) : score);
  }
  const double top = *std::max_element(scores.begin(), scores.end());
  double z = 0;
  for (double score : scores) z += std::exp(score - top);
  Seen seen{std::vector<double>(cache.d, 0.0), top + std::log(z)};
  for (int t = oldest; t <= own; ++t) {
    const double weight = std::exp(scores[t - oldest] - seen.lse);
    for (int i = 0; i < cache.d; ++i) seen.out[i] += weight * cache.at(1, slots[t], kv_head, i);
  }
  return seen;
}

void check_attention(Random& random) {
  const int kv_heads = random.between(1, 2), q_heads = kv_heads * random.between(1, 8), d = 16 * random.between(1, 4);
  const int count = random.between(1, 4), page_size = random.between(1, 9);
  const bool decode = random.coin();
  sge::Requests requests;
  requests.first.assign(1, 0), requests.query.assign(1, 0);
  std::vector<int64_t> pages(1, 0);
  for (int r = 0; r < count; ++r) {
    const int length = random.between(1, random.between(0, 3) == 0 ? 600 : 80);
    requests.first.push_back(requests.first.back() + length);
    requests.query.push_back(requests.query.back() + (decode ? 1 : random.between(0, length)));
    pages.push_back(pages.back() + (length + page_size - 1) / page_size);
  }
  const Cache cache(random, static_cast<int>(requests.first.back()) + 3, kv_heads, d);
  std::vector<int64_t> slots(cache.slots);
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
  random.shuffle(slots);
  requests.slots = slots.data();
  const sge::AttentionShape shape{q_heads, 1.0f / std::sqrt(static_cast<float>(d)), random.coin() ? 0.0f : 5.0f,
                                  random.coin() ? -1 : random.between(0, 90)};
  const size_t queries = static_cast<size_t>(requests.query.back()), width = static_cast<size_t>(q_heads) * d;
  const Floats q = random.normals(queries * width);
  Floats out(q.size(), NAN), lse(queries * q_heads, NAN), mass(static_cast<size_t>(pages.back()), 0.0f);
  sge::attention({q.data(), static_cast<int>(width), out.data(), static_cast<int>(width), lse.data(),
                  decode ? mass.data() : nullptr, pages.data(), page_size},
                 cache.view(), shape, requests);
  for (int r = 0; r < count; ++r) {
    const int length = static_cast<int>(requests.first[r + 1] - requests.first[r]);
    for (int64_t row = requests.query[r]; row < requests.query[r + 1]; ++row) {
      const int own = length - static_cast<int>(requests.query[r + 1] - row);
      for (int h = 0; h < q_heads; ++h) {
        const size_t at = (static_cast<size_t>(row) * q_heads + h) * d;
        const Seen seen = attend(q.data() + at, cache, shape, h, slots.data() + requests.first[r], own);
        expect(near(lse[row * q_heads + h], seen.lse, std::fabs(seen.lse)), "lse");
        for (int i = 0; i < d; ++i) expect(near(out[at + i], seen.out[i], 1.0), "attention");
      }
    }
    double total = 0;
    for (int64_t p = pages[r]; decode && p < pages[r + 1]; ++p) total += mass[p];
    expect(!decode || near(total, 1.0, 0.0), "page mass");
  }
}

void check_rope(Random& random) {
  const int kv_heads = random.between(1, 3), q_heads = kv_heads * random.between(1, 4), d = 16 * random.between(1, 5);
  const int tokens = random.between(1, 90), rotary = 2 * random.between(1, d / 2), heads = q_heads + 2 * kv_heads;
  const bool neox = random.coin();
  const Cache cache(random, tokens + 2, kv_heads, d);
  const Floats before = random.normals(static_cast<size_t>(tokens) * heads * d), table = random.normals(static_cast<size_t>(40) * rotary);
  Floats qkv = before;
  std::vector<int64_t> positions(tokens), slots(tokens);
  for (int t = 0; t < tokens; ++t) positions[t] = random.between(0, 39), slots[t] = t + 1;
  random.shuffle(slots);
  sge::rope_and_write(qkv.data(), tokens, q_heads, cache.view(), {table.data(), rotary, neox}, {nullptr, nullptr, 0},
                      positions.data(), slots.data());
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < heads; ++h) {
      const size_t at = (static_cast<size_t>(t) * heads + h) * d;
      std::vector<double> expected(before.begin() + static_cast<long>(at), before.begin() + static_cast<long>(at) + d);
      for (int i = 0; h < q_heads + kv_heads && i < rotary / 2; ++i) {
        const int one = neox ? i : 2 * i, other = neox ? i + rotary / 2 : 2 * i + 1;
        const double c = table[positions[t] * rotary + i], s = table[positions[t] * rotary + rotary / 2 + i];
        expected[one] = before[at + one] * c - before[at + other] * s;
        expected[other] = before[at + other] * c + before[at + one] * s;
      }
      for (int i = 0; i < d; ++i) {
        expect(near(qkv[at + i], expected[i], std::fabs(expected[i])), "rope");
        if (h < q_heads) continue;
        const int kv = (h - q_heads) % kv_heads, which = h < q_heads + kv_heads ? 0 : 1;
        const double held = cache.at(which, slots[t], kv, i);
        expect(held == (cache.bf16 ? value_of(bf16_of(qkv[at + i])) : qkv[at + i]), "written keys and values");
      }
    }
  }
}

// What decoded requests of these lengths leave out, in a decoder of two layers; mass for `more` blocks than there are.
struct Choice {
  sge::Blocks blocks;
  Floats mass;

  Choice(Random& random, const sge::Requests& step) {
    const int count = step.count(), more = random.between(0, 2);
    int64_t longest = 0;
    for (int r = 0; r < count; ++r) longest = std::max(longest, step.first[r + 1] - step.first[r]);
    blocks.block_tokens = random.between(0, 9) == 0 ? 0x7fffffff : random.between(1, 40);
    if (random.between(0, 3) != 0) {
      for (int r = 0; r < count; ++r) {
        const int64_t length = step.first[r + 1] - step.first[r];
        const int last = static_cast<int>((length - 1) / blocks.block_tokens);
        blocks.tail.push_back(random.coin() ? 0 : int64_t{random.between(0, last)} * blocks.block_tokens);
        blocks.width = std::max(blocks.width, blocks.tail.back() / blocks.block_tokens);
      }
      blocks.layers = random.between(1, 2), blocks.width += more;
      for (int64_t i = 0; i < blocks.layers * count * blocks.width; ++i) blocks.kept.push_back(random.coin());
    }
    if (blocks.kept.empty() || random.coin()) {
      blocks.mass_width = (longest - 1) / blocks.block_tokens + 1 + more;
      mass.assign(static_cast<size_t>(2 * count * blocks.mass_width), 0.0f);
      blocks.mass = mass.data();
    }
  }
  // A copy would give its attention to this one.
  Choice(const Choice&) = delete;
  Choice& operator=(const Choice&) = delete;

  bool reads_all(int request) const { return blocks.kept.empty() || blocks.tail[request] == 0; }
  // The part of one request of `count`; `to` is its mass.
  sge::Blocks only(int request, int count, Floats& to) const {
    sge::Blocks one = blocks;
    one.kept.clear(), one.tail.clear();
    for (int layer = 0; !blocks.kept.empty() && layer < blocks.layers; ++layer) {
      const auto begin = blocks.kept.begin() + (static_cast<int64_t>(layer) * count + request) * blocks.width;
      one.kept.insert(one.kept.end(), begin, begin + blocks.width);
    }
    if (!blocks.tail.empty()) one.tail.push_back(blocks.tail[request]);
    to.assign(static_cast<size_t>(2 * blocks.mass_width), 0.0f);
    if (blocks.mass) one.mass = to.data();
    return one;
  }
  // Each request's is its own, and all of its attention, or none.
  void expect_mass(int request, int count, const Floats& alone) const {
    for (int layer = 0; blocks.mass && layer < 2; ++layer) {
      const size_t width = static_cast<size_t>(blocks.mass_width);
      const float *own = alone.data() + layer * width, *row = mass.data() + (static_cast<size_t>(layer) * count + request) * width;
      expect(std::memcmp(own, row, sizeof(float) * width) == 0, "blocks receive something else in a batch");
      double total = 0;
      for (size_t b = 0; b < width; ++b) total += row[b];
      expect(reads_all(request) ? near(total, 1.0, 0.0) : total == 0.0, "the mass of blocks");
    }
  }
};

// A request's shares of its first blocks, with keys of their own.
sge::Choice some_choice(Random& random, int blocks, int layers, int kv_heads, int d, Floats& bonus) {
  const auto kind = random.coin() ? sge::BlockKind::kBounds : sge::BlockKind::kCodes;
  const auto keys = std::make_shared<sge::BlockKeys>(layers, kv_heads, d, kind);
  bonus = random.normals(static_cast<size_t>(blocks));
  bonus[random.between(0, blocks - 1)] = random.coin() ? NAN : 0.0f;
  const int budget = random.between(0, blocks), sinks = random.between(0, std::min(budget, 2));
  const int recent = random.between(0, std::min(budget - sinks, 2));
  return {keys, blocks, budget, sinks, recent, bonus.data(), random.between(0, 4) / 4.0};
}

// What products_by_codes() asks keys for.
struct Asked {
  std::vector<bool> numbers;  // [d]
  bool sure = true;           // whether float32 says the same
};

// Three eighths of the fours of numbers: those of the largest sum of squares of query times step of the first segment.
Asked asked_numbers(const Cache& cache, const std::vector<int64_t>& slots, int tokens, int kv_head, const float* queries,
                    int group) {
  const int fours = cache.d / 4, wanted = (3 * fours + 7) / 8;
  int measured = std::min(tokens, 256);
  for (int power = 16; power <= tokens && power <= 256; power *= 2) measured = power;
  std::vector<std::pair<double, int>> energies;
  for (int four = 0; four < fours; ++four) {
    double energy = 0;
    for (int i = 4 * four; i < 4 * four + 4; ++i) {
      double mean = 0, variance = 0;
      for (int t = 0; t < measured; ++t) mean += cache.at(0, slots[t], kv_head, i) / measured;
      for (int t = 0; t < measured; ++t) variance += std::pow(cache.at(0, slots[t], kv_head, i) - mean, 2) / measured;
      for (int g = 0; g < group; ++g) energy += std::pow(queries[g * cache.d + i], 2) * variance;
    }
    energies.emplace_back(-energy, four);
  }
  std::sort(energies.begin(), energies.end());
  Asked asked{std::vector<bool>(cache.d), true};
  for (int n = 0; n < wanted; ++n) {
    for (int i = 0; i < 4; ++i) asked.numbers[4 * energies[n].second + i] = true;
  }
  const double least = -energies[wanted - 1].first, most = -energies[wanted].first;
  asked.sure = most == 0 || most < least * (1 - 1e-4);
  return asked;
}

// Products of a query with the best key of each block by codes of two bits, in doubles; and how far float32 may move each.
std::vector<double> products_by_codes(const Cache& cache, const std::vector<int64_t>& slots, int blocks, int block_tokens,
                                      int kv_head, const float* query, const Asked& asked, std::vector<double>& doubt) {
  const int d = cache.d, tokens = blocks * block_tokens;
  std::vector<double> best(blocks, -INFINITY), product(tokens), unsure(tokens);
  for (int begin = 0; begin < tokens; begin += 256) {
    const int count = std::min(256, tokens - begin);
    int measured = count;
    for (int power = 16; power <= count; power *= 2) measured = power;
    std::vector<double> mean(d), step(d);
    double top = 0;
    const auto key = [&](int t, int i) { return cache.at(0, slots[begin + t], kv_head, i); };
    for (int i = 0; i < d; ++i) {
      for (int t = 0; t < measured; ++t) mean[i] += key(t, i) / measured;
      for (int t = 0; t < measured; ++t) step[i] += (key(t, i) - mean[i]) * (key(t, i) - mean[i]) / measured;
      step[i] = std::sqrt(step[i]);
      if (!asked.numbers[i]) step[i] = 0;
      top = std::max(top, std::fabs(query[i] * step[i]));
    }
    const double unit = top / 127;
    const auto tie = [](double x) { return std::fabs(x - std::floor(x) - 0.5) < 2e-5; };
    for (int t = 0; t < count; ++t) {
      for (int i = 0; i < d; ++i) {
        const double level = step[i] > 0 ? (key(t, i) - mean[i]) / step[i] + 1.5 : 1.5;
        const double code = std::min(3.0, std::max(0.0, std::nearbyint(level)));
        const double number = unit > 0 ? query[i] * step[i] / unit : 0.0;
        product[begin + t] += query[i] * mean[i] + std::nearbyint(number) * unit * (code - 1.5);
        if (!asked.sure) unsure[begin + t] = 100;
        unsure[begin + t] += (tie(level) ? std::fabs(query[i] * step[i]) : 0.0) + (tie(number) ? 1.5 * unit : 0.0);
      }
    }
  }
  for (int t = 0; t < tokens; ++t) {
    best[t / block_tokens] = std::max(best[t / block_tokens], product[t]);
    doubt[t / block_tokens] = std::max(doubt[t / block_tokens], unsure[t]);
  }
  return best;
}

// Blocks that each KV head chooses by one query: as many as may be, the first and the last, and none that scores less than
// one left out.
void check_choice(Random& random) {
  const int kv_heads = random.between(1, 3), q_heads = kv_heads * random.between(1, 6), d = 16 * random.between(1, 4);
  const int blocks = random.between(1, 70), block_tokens = random.between(1, 20);
  const Cache cache(random, blocks * block_tokens + 3, kv_heads, d);
  std::vector<int64_t> slots(cache.slots);
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
  random.shuffle(slots);
  const sge::AttentionShape shape{q_heads, 0.25f, random.coin() ? 0.0f : 3.0f, -1};
  const Floats q = random.normals(static_cast<size_t>(q_heads) * d);
  const int layers = random.between(1, 4), layer = random.between(0, layers - 1);
  Floats bonus;
  const sge::Choice c = some_choice(random, blocks, layers, kv_heads, d, bonus);
  const bool bounds = c.keys->kind() == sge::BlockKind::kBounds;
  expect(c.keys->claim() && !c.keys->claim(), "a claim");
  const int some = random.between(1, blocks);
  c.keys->make_room(some, block_tokens);
  c.keys->upto(layer, some, cache.view(), slots.data());
  c.keys->make_room(blocks, block_tokens);
  const sge::Summary keys = c.keys->upto(layer, blocks, cache.view(), slots.data());
  c.keys->release();
  expect(c.keys->ready() == (layers == 1 ? blocks : 0) && c.keys->block_tokens() == block_tokens, "blocks that are ready");
  std::vector<uint8_t> every(static_cast<size_t>(kv_heads) * blocks, 7);
  for (int h = 0; h < kv_heads; ++h) {
    sge::choose(c, layer, h, q.data(), shape, keys, every.data() + static_cast<size_t>(h) * blocks);
  }
  std::vector<std::vector<double>> of_heads(kv_heads, std::vector<double>(blocks, 0.0));
  std::vector<std::vector<double>> doubts(kv_heads, std::vector<double>(blocks, 0.0));
  for (int h = 0; h < q_heads; ++h) {
    const int kv_head = h / (q_heads / kv_heads);
    std::vector<double> doubt(blocks, 0.0);
    const float* query = q.data() + static_cast<size_t>(h) * d;
    std::vector<double> of_head(blocks, 0.0);
    if (!bounds) {
      const int group = q_heads / kv_heads;
      const float* queries = q.data() + static_cast<size_t>(kv_head) * group * d;
      const Asked asked = asked_numbers(cache, slots, blocks * block_tokens, kv_head, queries, group);
      of_head = products_by_codes(cache, slots, blocks, block_tokens, kv_head, query, asked, doubt);
    }
    for (int b = 0; b < blocks; ++b) {
      for (int i = 0; bounds && i < d; ++i) {
        double low = INFINITY, high = -INFINITY;
        for (int t = 0; t < block_tokens; ++t) {
          const double key = cache.at(0, slots[b * block_tokens + t], kv_head, i);
          low = std::min(low, key), high = std::max(high, key);
        }
        const auto rounded = [](double x) { return static_cast<double>(value_of(bf16_of(static_cast<float>(x)))); };
        of_head[b] += std::max(query[i] * rounded(low), query[i] * rounded(high));
      }
      of_head[b] *= shape.scale;
      if (shape.logit_cap > 0) of_head[b] = shape.logit_cap * std::tanh(of_head[b] / shape.logit_cap);
    }
    const double top = *std::max_element(of_head.begin(), of_head.end());
    double z = 0;
    for (double x : of_head) z += std::exp(x - top);
    double moved = 0;
    for (int b = 0; b < blocks; ++b) moved += std::exp(of_head[b] - top + shape.scale * doubt[b]) / z;
    for (int b = 0; b < blocks; ++b) {
      of_heads[kv_head][b] += std::exp(of_head[b] - top) / z;
      doubts[kv_head][b] = std::max(doubts[kv_head][b], shape.scale * doubt[b] + std::log(moved));
    }
  }
  int of_all = 0;
  for (int l = 0; l < layers; ++l) of_all += c.of_layer(l);
  expect(of_all == layers * c.budget, "the budgets of all layers");
  for (int h = 0; h < kv_heads; ++h) {
    const uint8_t* kept = every.data() + static_cast<size_t>(h) * blocks;
    double least = INFINITY, most = -INFINITY;
    for (int b = 0; b < blocks; ++b) {
      const bool always = b < c.sinks || b >= blocks - c.recent;
      const double score = std::isnan(bonus[b]) ? INFINITY : std::log(of_heads[h][b]) + bonus[b];
      expect(kept[b] == 1 || (kept[b] == 0 && !always), "the first and the last blocks");
      if (kept[b] && !always) least = std::min(least, score + doubts[h][b]);
      if (!kept[b]) most = std::max(most, score - doubts[h][b]);
    }
    expect(std::count(kept, kept + blocks, 1) == c.of_layer(layer), "as many blocks as may be");
    // A bound may round to its other neighbour in bfloat16, and a code or a number of the query to another one.
    expect(least >= most - 5e-3, "a block that scores more is left out");
  }
}

// A step of a decoder: tokens in one batch give what each request gives alone, bit for bit, whatever each of them reads;
// and what is left out of all layers is as if it were not there.
void check_decoder(Random& random) {
  const int d = 16, kv_heads = 2, q_heads = 4, hidden = 32 * random.between(1, 3), intermediate = 32 * random.between(1, 4);
  const bool integer = random.coin();
  sge::Decoder decoder;
  decoder.hidden = hidden, decoder.q_heads = q_heads, decoder.kv_heads = kv_heads, decoder.head_dim = d;
  decoder.intermediate = intermediate, decoder.eps = decoder.head_eps = 1e-6f, decoder.scale = 0.25f;
  const int room = 800;
  decoder.logit_cap = random.coin() ? 0.0f : 2.0f;
  decoder.rope_table = random.normals(400 * 16), decoder.rotary_dim = 16, decoder.neox = random.coin();
  decoder.final_norm = random.normals(hidden), decoder.embedding = packed(random, 70, hidden, false).weight;
  std::vector<std::unique_ptr<Cache>> caches;
  for (int i = 0; i < 2; ++i) {
    caches.push_back(std::make_unique<Cache>(random, room, kv_heads, d));
    sge::Layer layer;
    layer.qkv = packed(random, (q_heads + 2 * kv_heads) * d, hidden, integer).weight;
    layer.o = packed(random, hidden, q_heads * d, integer).weight;
    layer.gate_up = packed(random, 2 * intermediate, hidden, integer).weight;
    layer.down = packed(random, hidden, intermediate, integer).weight;
    layer.input_norm = random.normals(hidden), layer.post_norm = random.normals(hidden);
    if (i == 1) layer.q_norm = random.normals(d), layer.k_norm = random.normals(d);
    layer.kv = caches.back()->view();
    decoder.layers.push_back(std::move(layer));
  }
  decoder.cache_slots = room;
  const bool long_ones = random.between(0, 3) == 0;
  const int count = long_ones ? 2 : random.between(1, 20);
  sge::Requests step;
  step.first.assign(1, 0), step.query.assign(1, 0);
  std::vector<int64_t> slots(room), ids, positions, own;
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
  random.shuffle(slots);
  for (int r = 0; r < count; ++r) {
    const int length = random.between(1, long_ones ? 400 : 39);
    step.first.push_back(step.first.back() + length), step.query.push_back(r + 1);
    ids.push_back(random.between(0, 69)), positions.push_back(length - 1);
    own.push_back(slots[static_cast<size_t>(step.first.back()) - 1]);
  }
  step.slots = slots.data();
  Floats every(static_cast<size_t>(count) * hidden), alone(hidden);
  const Choice choice(random, step);
  const bool chosen = choice.blocks.mass || !choice.blocks.kept.empty();
  // Some of those that leave blocks out choose them.
  std::vector<sge::Choice> choices;
  Floats bonus;
  bool choosing = false;
  if (!choice.blocks.kept.empty() && random.coin()) {
    for (int r = 0; r < count; ++r) {
      const int blocks = static_cast<int>(choice.blocks.tail[r] / choice.blocks.block_tokens);
      const bool chooses = blocks > 0 && random.coin();
      choices.push_back(chooses ? some_choice(random, blocks, 2, kv_heads, d, bonus) : sge::Choice());
      if (chooses) choices.back().keys->make_room(blocks, choice.blocks.block_tokens), choosing = true;
    }
  }
  decoder.forward(ids.data(), positions.data(), own.data(), count, step, every.data(), chosen ? &choice.blocks : nullptr,
                  choices.empty() ? nullptr : &choices);
  if (!choosing && !choice.blocks.kept.empty() && choice.blocks.layers == 1) {
    std::vector<int64_t> left;
    const sge::Requests seen = sge::visible(step, choice.blocks, 0, nullptr, left);
    Floats shorter(every.size());
    decoder.forward(ids.data(), positions.data(), own.data(), count, seen, shorter.data());
    expect(std::memcmp(shorter.data(), every.data(), sizeof(float) * every.size()) == 0, "blocks that are left out");
  }
  for (int r = 0; r < count; ++r) {
    Floats alone_mass;
    const sge::Blocks only = choice.only(r, count, alone_mass);
    sge::Requests one;
    one.first = {0, step.first[r + 1] - step.first[r]}, one.query = {0, 1}, one.slots = slots.data() + step.first[r];
    // Alone by the keys of the batch, or by ones that are computed anew.
    std::vector<sge::Choice> its;
    if (!choices.empty()) its.push_back(choices[r]);
    if (!its.empty() && its[0].keys && random.coin()) {
      its[0].keys->reset();
      its[0].keys->make_room(its[0].blocks, only.block_tokens);
    }
    decoder.forward(ids.data() + r, positions.data() + r, own.data() + r, 1, one, alone.data(), chosen ? &only : nullptr,
                    its.empty() ? nullptr : &its);
    expect(std::memcmp(alone.data(), every.data() + static_cast<size_t>(r) * hidden, sizeof(float) * hidden) == 0,
           "a request decodes to other bits in a batch");
    choice.expect_mass(r, count, alone_mass);
  }
}

// A vocabulary: below, at and above one vector and one block of the sums, and one of a real model.
int vocabulary(Random& random) {
  static const int sizes[] = {1, 2, 15, 16, 17, 33, 1023, 1024, 1025, 2100, 49152};
  return sizes[random.between(0, 10)];
}

int batch(Random& random, int n) { return random.between(1, n > 10000 ? 3 : n > 1000 ? 9 : 33); }

// Rows of logits: wide and narrow ones, equal ones, masked ones, and ones that are no distribution.
Floats sampled_logits(Random& random, int rows, int n) {
  Floats logits = random.normals(static_cast<size_t>(rows) * n);
  for (int r = 0; r < rows; ++r) {
    float* x = logits.data() + static_cast<size_t>(r) * n;
    const int kind = random.between(0, 9), one = random.between(0, n - 1);
    const float scale = random.coin() ? 3.0f : random.coin() ? 20.0f : 0.01f, shift = 10.0f * random.normal();
    for (int i = 0; i < n; ++i) {
      x[i] = x[i] * scale + shift;
      if (kind == 4) x[i] = shift;
      if (kind == 5 && i != one) x[i] = -INFINITY;
      if (kind == 6 && i != one && random.coin()) x[i] = -INFINITY;
      if (kind == 7 && (i == one || random.between(0, 9) == 0)) x[i] = NAN;
      if (kind == 8 && (i == one || random.between(0, 9) == 0)) x[i] = INFINITY;
      if (kind == 9) x[i] = std::nearbyint(x[i]);  // many equal ones
    }
    if (random.between(0, 30) == 0) std::fill(x, x + n, random.coin() ? -INFINITY : NAN);
    if (kind == 3 && random.coin()) x[one] += 40.0f;
  }
  return logits;
}

// A row's distribution at a temperature: e^((x - top) / T), their sum, and its moments, in the limit of infinite logits.
// `proper`: a row with a NaN, or of nothing but -inf, is none.
struct Distribution {
  bool proper;
  float top = -INFINITY;
  std::vector<double> weights;
  double z = 0, entropy = NAN, varentropy = NAN, square = 0;

  Distribution(const float* x, int n, double temperature)
      : proper(std::none_of(x, x + n, [](float y) { return std::isnan(y); })), weights(static_cast<size_t>(n)) {
    for (int i = 0; i < n; ++i) {
      if (x[i] > top) top = x[i];
    }
    proper = proper && top > -INFINITY;
    for (int i = 0; i < n; ++i) {
      const double d = x[i] == top ? 0.0 : (static_cast<double>(x[i]) - top) / temperature;
      z += weights[i] = proper ? std::exp(d) : 0.0;
    }
    if (!proper) return;
    entropy = varentropy = 0;
    for (double weight : weights) {
      if (!(weight > 0)) continue;
      const double p = weight / z, surprisal = -std::log(p);
      entropy += p * surprisal, square += p * surprisal * surprisal;
    }
    varentropy = std::max(0.0, square - entropy * entropy);
  }

  void expect_moments(double got_entropy, double got_varentropy, const char* what) const {
    if (!proper) return expect(std::isnan(got_entropy) && std::isnan(got_varentropy), what);
    expect(got_entropy >= 0 && got_entropy <= std::log(static_cast<double>(weights.size())) + 1e-4, what);
    expect(got_varentropy >= 0, what);
    expect(near(got_entropy, entropy, entropy) && near(got_varentropy, varentropy, square), what);
  }
};

// Everything that draw reads of some rows. `steered`: whether there are controls.
struct Draws {
  int rows, n;
  Floats logits, own, temperatures, top_ps, min_ps, controls, state;
  std::vector<int32_t> top_ks;
  std::vector<double> uniforms;
  std::vector<int64_t> places;
  bool steered;

  float control(sge::Control which, int r) const { return controls[static_cast<size_t>(which) * rows + r]; }

  Draws alone(int r) const {
    const auto from = [&](const Floats& v, int width) {
      return Floats(v.begin() + static_cast<long>(r) * width, v.begin() + static_cast<long>(r + 1) * width);
    };
    Draws one{1, n, from(logits, n), own.empty() ? own : from(own, sge::kStatistics), from(temperatures, 1), from(top_ps, 1),
              from(min_ps, 1), {}, state, {top_ks[r]}, {uniforms[r]}, {places[r]}, steered};
    for (int i = 0; i < sge::kControls; ++i) one.controls.push_back(control(static_cast<sge::Control>(i), r));
    return one;
  }
};

struct Outcome {
  std::vector<int32_t> tokens;
  Floats readings, steered, state;

  explicit Outcome(const Draws& d, bool with_readings = true)
      : tokens(d.rows, -1), readings(with_readings ? static_cast<size_t>(sge::kReadings) * d.rows : 0, -1.0f),
        steered(static_cast<size_t>(sge::kSteered) * d.rows, -1.0f), state(d.state) {
    const sge::Steering steering{d.controls.data(), d.places.data(), state.data(), static_cast<int64_t>(state.size() / 2),
                                 steered.data()};
    sge::draw(d.logits.data(), d.rows, d.n,
              {d.temperatures.data(), d.top_ks.data(), d.top_ps.data(), d.min_ps.data(), d.uniforms.data()},
              d.own.empty() ? nullptr : d.own.data(), nullptr, d.steered ? &steering : nullptr, tokens.data(),
              with_readings ? readings.data() : nullptr);
  }
};

Draws some_draws(Random& random) {
  const int n = vocabulary(random), rows = batch(random, n), places = rows + random.between(0, 5);
  Draws d{rows, n, sampled_logits(random, rows, n), {}, {}, {}, {}, {}, {}, {}, {}, {}, random.coin()};
  const bool known = random.coin();
  for (int r = 0; r < rows; ++r) {
    d.temperatures.push_back(std::exp(random.normal()));
    d.top_ks.push_back(random.between(0, 4) == 0 ? 1 : random.coin() ? 1 << 30 : random.between(1, n));
    d.top_ps.push_back(random.coin() ? 1.0f : 0.01f * static_cast<float>(random.between(0, 99)) + 0.0037f);
    d.min_ps.push_back(random.coin() ? 0.0f : std::exp(-0.037f * static_cast<float>(random.between(0, 300))));
    const int end = random.between(0, 9);
    d.uniforms.push_back(end == 0 ? 0.0 : end == 1 ? std::nextafter(1.0, 0.0) : random.between(0, 999999) / 1e6);
    if (known) {
      const Distribution own(d.logits.data() + static_cast<size_t>(r) * n, n, 1.0);
      const double log_z = own.proper ? own.top + std::log(own.z) : NAN;
      for (double value : {static_cast<double>(own.top), log_z, own.entropy, own.varentropy}) {
        d.own.push_back(static_cast<float>(value));
      }
    }
  }
  d.controls.resize(static_cast<size_t>(sge::kControls) * rows);
  for (int r = 0; r < rows; ++r) {
    const float low = random.normal(), values[] = {random.coin() ? NAN : std::fabs(2.0f * random.normal()),
                                                   0.3f * std::fabs(random.normal()),
                                                   static_cast<float>(random.between(sge::kNotSteered, sge::kExactly)), low,
                                                   low + (random.coin() ? 0.0f : std::fabs(2.0f * random.normal()))};
    for (int i = 0; i < sge::kControls; ++i) d.controls[static_cast<size_t>(i) * rows + r] = values[i];
  }
  for (int i = 0; i < places; ++i) d.places.push_back(i);
  random.shuffle(d.places);
  d.places.resize(rows);
  d.state = random.normals(2 * static_cast<size_t>(places));
  for (int i = places; i < 2 * places; ++i) d.state[i] = random.between(0, 9) == 0 ? NAN : std::fabs(d.state[i]);
  return d;
}

// What steering may do to a row's ln T and to its place; ln T of the draw.
double expect_steering(const Draws& d, const Outcome& got, int r) {
  const auto reported = [&](int i) { return got.steered[static_cast<size_t>(i) * d.rows + r]; };
  const size_t place = static_cast<size_t>(d.places[r]), other = d.state.size() / 2 + place;
  const float own = std::log(d.temperatures[r]), target = d.control(sge::kTarget, r);
  const float low = own + d.control(sge::kLow, r), high = own + d.control(sge::kHigh, r);
  const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  if (!d.steered) {
    expect(same(got.state[place], d.state[place]) && reported(0) == -1.0f, "something was steered without steering");
    return own;
  }
  const int mode = d.top_ks[r] == 1 ? sge::kNotSteered : static_cast<int>(d.control(sge::kMode, r));
  expect(same(got.state[other], d.state[other]), "a target that a draw changed");
  expect(same(reported(3), std::isnan(target) ? d.state[other] : target), "the target of a row");
  expect(reported(2) == 0.0f || reported(2) == 1.0f, "whether a target is out of reach");
  expect(got.state[place] == (mode == sge::kNotSteered ? d.state[place] : reported(1)), "ln T of the next token");
  if (mode == sge::kFixed || mode == sge::kNewton) {
    expect(reported(0) == d.state[place], "a row is not drawn at its place's ln T");
    expect(reported(1) == reported(0) || (reported(1) >= low && reported(1) <= high), "ln T outside its clamps");
  } else {
    expect(reported(0) == reported(1), "ln T changed in a row that no law moves");
    expect(near(reported(0), own, 0.0) || (mode == sge::kExactly && reported(0) >= low && reported(0) <= high), "ln T");
  }
  return reported(0);
}

// Mass that top-k, top-p and min-p keep, of weights in falling order; top-p and min-p looser by `slack`.
double kept_mass(const std::vector<double>& falling, double z, const Draws& d, int r, double slack) {
  double sum = 0;
  for (size_t i = 0; i < falling.size() && i < static_cast<size_t>(d.top_ks[r]); ++i) {
    if (i > 0 && (sum > (d.top_ps[r] + slack) * z || falling[i] < d.min_ps[r] * (1 - slack))) break;
    sum += falling[i];
  }
  return sum;
}

// A token has a place in the running sum of what the cuts keep: by falling weight, or in order where nothing is cut.
void expect_token(const Draws& d, const Distribution& at, int r, int token) {
  const double weight = at.weights[token];
  double before = 0, through = 0, kept = at.z, loosely_kept = at.z;
  if (d.top_ks[r] < d.n || d.top_ps[r] < 1.0f || d.min_ps[r] > 0.0f) {
    int larger = 0;
    for (double other : at.weights) {
      if (other > weight * (1 + 1e-5)) before += other, ++larger;
      if (other >= weight * (1 - 1e-5)) through += other;
    }
    std::vector<double> falling = at.weights;
    std::sort(falling.rbegin(), falling.rend());
    kept = kept_mass(falling, at.z, d, r, -1e-4), loosely_kept = kept_mass(falling, at.z, d, r, 1e-4);
    expect(larger < d.top_ks[r], "a token that top-k cuts");
    expect(larger == 0 || before <= d.top_ps[r] * at.z * (1 + 1e-4), "a token that top-p cuts");
    expect(larger == 0 || weight >= d.min_ps[r] * (1 - 1e-4), "a token that min-p cuts");
  } else {
    for (int i = 0; i < token; ++i) before += at.weights[i];
    through = before + weight;
  }
  expect(d.uniforms[r] * loosely_kept >= before - 1e-4 * at.z && d.uniforms[r] * kept <= through + 1e-4 * at.z,
         "another token than the one that the random number says");
}

// Tokens, readings and steering of rows, each alone and all in one batch, bit for bit.
void check_draw(Random& random) {
  const Draws d = some_draws(random);
  const Floats logits = d.logits;
  const Outcome got(d);
  expect(std::memcmp(logits.data(), d.logits.data(), sizeof(float) * logits.size()) == 0, "logits that a draw changed");
  if (!d.steered) expect(Outcome(d, false).tokens == got.tokens, "tokens without readings");
  for (size_t i = 0; i < d.state.size() / 2; ++i) {
    const bool used = std::find(d.places.begin(), d.places.end(), static_cast<int64_t>(i)) != d.places.end();
    expect(used || got.state[i] == d.state[i], "a place of no row was written");
  }
  for (int r = 0; r < d.rows; ++r) {
    const auto reading = [&](sge::Reading which) { return got.readings[static_cast<size_t>(which) * d.rows + r]; };
    const float* x = d.logits.data() + static_cast<size_t>(r) * d.n;
    const int token = got.tokens[r];
    if (token < 0 || token >= d.n) return expect(false, "a token outside the vocabulary");
    const double log_temperature = expect_steering(d, got, r);
    const Distribution own(x, d.n, 1.0), at(x, d.n, std::exp(log_temperature));
    own.expect_moments(reading(sge::kEntropy), reading(sge::kVarentropy), "entropy and varentropy of a row");
    if (own.proper) {
      expect(at.weights[token] > 0, "a token of no probability");
      const double surprisal = std::log(own.z) + (x[token] == own.top ? 0.0 : static_cast<double>(own.top) - x[token]);
      expect(near(reading(sge::kSurprisal), surprisal, surprisal + std::fabs(own.top)), "surprisal");
    } else {
      expect(std::isnan(reading(sge::kSurprisal)), "surprisal of no distribution");
    }
    if (d.top_ks[r] == 1) {
      const float* first = std::find(x, x + d.n, own.top);
      expect(token == (first == x + d.n ? 0 : first - x), "a greedy row does not take the first of the largest");
      for (auto which : {sge::kSampledEntropy, sge::kSampledVarentropy}) {
        expect(own.proper ? reading(which) == 0.0f : std::isnan(reading(which)), "a greedy row's sampled entropy");
      }
    } else {
      at.expect_moments(reading(sge::kSampledEntropy), reading(sge::kSampledVarentropy), "sampled entropy and varentropy");
      if (own.proper && std::isfinite(own.top)) expect_token(d, at, r, token);
    }
    const Draws one = d.alone(r);
    const Outcome alone(one);
    const auto same = [&](const Floats& each, const Floats& every) {
      for (size_t i = 0; i < each.size(); ++i) {
        if (std::memcmp(&each[i], &every[i * d.rows + r], sizeof(float)) != 0) return false;
      }
      return true;
    };
    const size_t place = static_cast<size_t>(d.places[r]);
    expect(alone.tokens[0] == token && same(alone.readings, got.readings) && same(alone.steered, got.steered) &&
               std::memcmp(&alone.state[place], &got.state[place], sizeof(float)) == 0,
           "a row is drawn otherwise in a batch");
  }
}

// Temperatures: within their ends, as near to the target as these allow, and the same alone and in a batch.
void check_temperatures(Random& random) {
  const int n = vocabulary(random), rows = batch(random, n);
  const Floats logits = sampled_logits(random, rows, n);
  Floats targets, starts, lowest, highest, results(3 * static_cast<size_t>(rows), -99.0f);
  for (int r = 0; r < rows; ++r) {
    targets.push_back(std::fabs(3.0f * random.normal())), starts.push_back(random.normal());
    lowest.push_back(random.normal() - 1.0f);
    highest.push_back(lowest.back() + (random.coin() ? 0.0f : std::fabs(3.0f * random.normal())));
  }
  sge::solve_temperature(logits.data(), rows, n, targets.data(), starts.data(), lowest.data(), highest.data(), results.data());
  for (int r = 0; r < rows; ++r) {
    const Floats x(logits.begin() + static_cast<long>(r) * n, logits.begin() + static_cast<long>(r + 1) * n);
    const float log_temperature = results[r];
    expect(log_temperature >= lowest[r] && log_temperature <= highest[r], "a temperature outside its ends");
    const Distribution at(x.data(), n, std::exp(static_cast<double>(log_temperature)));
    at.expect_moments(results[rows + r], results[2 * rows + r], "entropy and varentropy at a temperature");
    const double coldest = Distribution(x.data(), n, std::exp(static_cast<double>(lowest[r]))).entropy;
    const double hottest = Distribution(x.data(), n, std::exp(static_cast<double>(highest[r]))).entropy;
    if (at.proper) {
      const double nearest = std::min(std::max(static_cast<double>(targets[r]), coldest), hottest);
      expect(std::fabs(at.entropy - nearest) <= 2e-3, "a temperature whose entropy is not nearest to the target");
    }
    if (!at.proper || *std::min_element(x.begin(), x.end()) == at.top) {
      expect(log_temperature == std::min(std::max(starts[r], lowest[r]), highest[r]), "a row that no temperature changes");
    }
    Floats alone(3, -99.0f);
    sge::solve_temperature(x.data(), 1, n, &targets[r], &starts[r], &lowest[r], &highest[r], alone.data());
    for (int i = 0; i < 3; ++i) {
      expect(std::memcmp(&alone[i], &results[static_cast<size_t>(i) * rows + r], sizeof(float)) == 0,
             "a row has another temperature in a batch");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5.0;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const auto going = [&] { return !failed && std::chrono::steady_clock::now() < end; };
  std::atomic<long> rounds{0};
  std::vector<std::thread> callers;
  for (uint64_t c = 0; c < 3; ++c) {
    callers.emplace_back([&, c] {
      Random random(seed * 1000 + c);
      while (going()) {
        check_linear(random), check_head(random), check_small(random);
        check_attention(random), check_rope(random), check_choice(random), check_decoder(random);
        check_draw(random), check_temperatures(random);
        ++rounds;
      }
    });
  }
  Random random(seed);
  while (going()) {
    sge::set_threads(random.between(1, 4));
    std::this_thread::sleep_for(std::chrono::milliseconds(random.between(0, 20)));
    expect(sge::team()->threads() >= 1, "a team without threads");
    expect(sge::team()->regions() + sge::team()->sleeps() < (uint64_t{1} << 40), "counters");
  }
  for (auto& caller : callers) caller.join();
  std::printf("stress: %s, seed %llu, %ld rounds, %s\n", sge::kernels().name, static_cast<unsigned long long>(seed),
              rounds.load(), failed ? "a difference" : "no difference");
  return failed ? 1 : 0;
}

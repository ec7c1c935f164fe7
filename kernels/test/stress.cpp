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

#include "decoder.h"
#include "ops.h"
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

// One cache of random numbers, in either dtype, and the same as double.
struct Cache {
  int slots, kv_heads, d;
  bool bf16;
  Floats single[2];
  std::vector<uint16_t> half[2];

  Cache(Random& random, int slots_, int kv_heads_, int d_) : slots(slots_), kv_heads(kv_heads_), d(d_), bf16(random.coin()) {
    for (int i = 0; i < 2; ++i) {
      single[i] = random.normals(static_cast<size_t>(slots) * kv_heads * d);
      for (float& x : single[i]) {
        half[i].push_back(bf16_of(x));
        if (bf16) x = value_of(half[i].back());
      }
    }
  }
  sge::KvCache view() const {
    if (bf16) return {half[0].data(), half[1].data(), true, kv_heads, d};
    return {single[0].data(), single[1].data(), false, kv_heads, d};
  }
  double at(int which, int64_t slot, int head, int i) const {
    const size_t where = (static_cast<size_t>(slot) * kv_heads + head) * d + i;
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

// A step of a decoder: tokens in one batch give what each request gives alone, bit for bit.
void check_decoder(Random& random) {
  const int d = 16, kv_heads = 2, q_heads = 4, hidden = 32 * random.between(1, 3), intermediate = 32 * random.between(1, 4);
  const bool integer = random.coin();
  sge::Decoder decoder;
  decoder.hidden = hidden, decoder.q_heads = q_heads, decoder.kv_heads = kv_heads, decoder.head_dim = d;
  decoder.intermediate = intermediate, decoder.eps = decoder.head_eps = 1e-6f, decoder.scale = 0.25f;
  decoder.rope_table = random.normals(50 * 16), decoder.rotary_dim = 16, decoder.neox = random.coin();
  decoder.final_norm = random.normals(hidden), decoder.embedding = packed(random, 70, hidden, false).weight;
  std::vector<std::unique_ptr<Cache>> caches;
  for (int i = 0; i < 2; ++i) {
    caches.push_back(std::make_unique<Cache>(random, 200, kv_heads, d));
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
  decoder.cache_slots = 200;
  const int count = random.between(1, 20);
  sge::Requests step;
  step.first.assign(1, 0), step.query.assign(1, 0);
  std::vector<int64_t> slots(200), ids, positions, own;
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
  random.shuffle(slots);
  for (int r = 0; r < count; ++r) {
    const int length = random.between(1, 9);
    step.first.push_back(step.first.back() + length), step.query.push_back(r + 1);
    ids.push_back(random.between(0, 69)), positions.push_back(length - 1);
    own.push_back(slots[static_cast<size_t>(step.first.back()) - 1]);
  }
  step.slots = slots.data();
  Floats every(static_cast<size_t>(count) * hidden), alone(hidden);
  decoder.forward(ids.data(), positions.data(), own.data(), count, step, every.data());
  for (int r = 0; r < count; ++r) {
    sge::Requests one;
    one.first = {0, step.first[r + 1] - step.first[r]}, one.query = {0, 1}, one.slots = slots.data() + step.first[r];
    decoder.forward(ids.data() + r, positions.data() + r, own.data() + r, 1, one, alone.data());
    expect(std::memcmp(alone.data(), every.data() + static_cast<size_t>(r) * hidden, sizeof(float) * hidden) == 0,
           "a request decodes to other bits in a batch");
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
        check_attention(random), check_rope(random), check_decoder(random);
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

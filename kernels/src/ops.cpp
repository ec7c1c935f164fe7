#include "ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace sge {
namespace {

// Rows that share one pass over a strip of weights when there are many; a multiple of every kRows.
constexpr int kRowBlock = 96;
// Weights of one chunk: large against the cost of taking a chunk, small against a time slice of the system.
constexpr size_t kChunkBytes = 48 * 1024;
// Chunks a thread should have to choose from, so that no one waits long for the last.
constexpr int kChunksPerThread = 4;
constexpr int kPanelStep = 4;
// Columns (in panels) over which the statistics of logits are summed at a time.
constexpr int kSumPanels = 16;
// Elementwise work below this is done before a second thread would have heard of it.
constexpr int64_t kSerialElements = 16 * 1024;

int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

struct Grid {
  int row_block, row_blocks, step, steps;
  int chunks() const { return row_blocks * steps; }
};

Grid grid_of(int rows, const Weight& w, int threads) {
  Grid g{};
  g.row_block = rows <= kRowBlock ? std::max(rows, 1) : kRowBlock;
  g.row_blocks = ceil_div(rows, g.row_block);
  const int by_size = static_cast<int>(kChunkBytes / w.panel_bytes);
  const int by_threads = w.panels * g.row_blocks / (threads * kChunksPerThread);
  g.step = std::clamp(std::min(by_size, by_threads) / kPanelStep * kPanelStep, kPanelStep, w.panels + kPanelStep);
  if (w.panels <= kPanelStep * threads) g.step = std::max(1, ceil_div(w.panels, threads));
  g.steps = ceil_div(w.panels, g.step);
  return g;
}

template <class Work>
void by_rows(int rows, int64_t elements_per_row, const Work& work) {
  if (rows * elements_per_row <= kSerialElements) {
    work(0, rows);
    return;
  }
  const auto t = team();
  const int step = std::max(1, ceil_div(rows, t->threads() * kChunksPerThread));
  t->run(ceil_div(rows, step), [&](int chunk) { work(chunk * step, std::min(rows, (chunk + 1) * step)); });
}

std::vector<float>& buffer(int which, size_t size) {
  thread_local std::vector<float> buffers[4];
  if (buffers[which].size() < size) buffers[which].resize(size);
  return buffers[which];
}

// Inputs of an integer product, rounded once for all outputs.
struct RoundedRows {
  std::vector<int8_t> codes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
};

Rounded rounded(const float* x, int ldx, int rows, const Weight& w) {
  thread_local RoundedRows own;
  const size_t blocks = static_cast<size_t>(rows) * w.blocks;
  if (own.scales.size() < blocks) {
    own.codes.resize(blocks * kBlock);
    own.scales.resize(blocks);
    own.sums.resize(blocks);
  }
  const Rounded to{own.codes.data(), own.scales.data(), own.sums.data(), w.blocks};
  by_rows(rows, w.k, [&](int from, int end) { kernels().round_inputs(x, ldx, w.k, from, end - from, to); });
  return to;
}

// One chunk of rows and panels, whichever way the weight is multiplied.
struct Product {
  const float* x;
  int ldx;
  const Weight& w;
  Rounded r;

  Product(const float* x_, int ldx_, int rows, const Weight& w_) : x(x_), ldx(ldx_), w(w_), r{} {
    if (w.integer) r = rounded(x, ldx, rows, w);
  }
  void operator()(int row, int rows, int begin, int end, const float* bias, bool add, float* out, int ldo) const {
    if (w.integer) {
      kernels().linear_integer(r, row, rows, w, begin, end, bias, add, out, ldo);
    } else {
      kernels().linear(x + static_cast<size_t>(row) * ldx, ldx, rows, w, begin, end, bias, add, out, ldo);
    }
  }
};

}  // namespace

void linear(const float* x, int ldx, int rows, const Weight& w, const float* bias, bool add, float* out, int ldo) {
  if (rows == 0) return;
  const auto t = team();
  const Grid g = grid_of(rows, w, t->threads());
  const Product product(x, ldx, rows, w);
  t->run(g.chunks(), [&](int chunk) {
    const int row = chunk / g.steps * g.row_block, panel = chunk % g.steps * g.step;
    product(row, std::min(g.row_block, rows - row), panel, std::min(panel + g.step, w.panels), bias, add,
            out + static_cast<size_t>(row) * ldo, ldo);
  });
}

void lm_head(const float* x, int rows, const Weight& w, float* logits, float* statistics, const int64_t* targets,
             float* target_logits) {
  if (rows == 0) return;
  const auto t = team();
  Grid g = grid_of(rows, w, t->threads());
  // Sums are formed over the same columns whatever the number of rows and threads, so their bits are the same too.
  g.step = ceil_div(g.step, kSumPanels) * kSumPanels;
  g.steps = ceil_div(w.panels, g.step);
  const int parts = ceil_div(w.panels, kSumPanels);
  const Kernels& k = kernels();
  const Product product(x, w.k, rows, w);
  std::vector<RowSums> sums(statistics ? static_cast<size_t>(rows) * parts : 0);
  t->run(g.chunks(), [&](int chunk) {
    const int row = chunk / g.steps * g.row_block, panel = chunk % g.steps * g.step;
    const int count = std::min(g.row_block, rows - row), end = std::min(panel + g.step, w.panels);
    const int column = panel * kPanel, columns = std::min(end * kPanel, w.n) - column;
    float* to;
    int ld;
    if (logits) {
      to = logits + static_cast<size_t>(row) * w.n;
      ld = w.n;
      product(row, count, panel, end, nullptr, false, to, ld);
      to += column;
    } else {
      // The columns of this chunk only: a strip, addressed as if it were the whole row.
      ld = (end - panel) * kPanel;
      to = buffer(0, static_cast<size_t>(count) * ld).data();
      product(row, count, panel, end, nullptr, false, to - column, ld);
    }
    for (int first = panel; statistics && first < end; first += kSumPanels) {
      const int from = first * kPanel - column, to_column = std::min(from + kSumPanels * kPanel, columns);
      k.row_sums(to + from, ld, count, to_column - from,
                 sums.data() + static_cast<size_t>(row) * parts + first / kSumPanels, parts);
    }
    if (targets) {
      for (int r = 0; r < count; ++r) {
        const int64_t target = targets[row + r] - column;
        if (target >= 0 && target < columns) target_logits[row + r] = to[static_cast<size_t>(r) * ld + target];
      }
    }
  });
  if (!statistics) return;
  for (int r = 0; r < rows; ++r) {
    const RowSums* part = sums.data() + static_cast<size_t>(r) * parts;
    double m = -INFINITY, z = 0, s1 = 0, s2 = 0;
    for (int p = 0; p < parts; ++p) m = std::max(m, static_cast<double>(part[p].max));
    for (int p = 0; p < parts; ++p) {
      // Sums relative to the part's maximum, moved to the row's: x - m = (x - part.max) + shift.
      const double shift = part[p].max - m, scale = std::exp(shift);
      if (scale == 0.0 && std::isfinite(part[p].z)) continue;
      z += scale * part[p].z;
      s1 += scale * (part[p].s1 + shift * part[p].z);
      s2 += scale * (part[p].s2 + 2 * shift * part[p].s1 + shift * shift * part[p].z);
    }
    const double log_z = std::log(z), mean = s1 / z;
    float* to = statistics + static_cast<size_t>(r) * kStatistics;
    if (!std::isfinite(m) || !std::isfinite(z)) {
      std::fill(to, to + kStatistics, NAN);
      continue;
    }
    to[0] = static_cast<float>(m);
    to[1] = static_cast<float>(m + log_z);
    to[2] = static_cast<float>(std::max(0.0, log_z - mean));
    to[3] = static_cast<float>(std::max(0.0, s2 / z - mean * mean));
  }
}

void rms_norm(const float* x, float* residual, const float* weight, float eps, int rows, int n, float* out, int ldo) {
  const int ld = ldo ? ldo : n;
  by_rows(rows, n, [&](int from, int to) {
    for (int r = from; r < to; ++r) {
      const size_t at = static_cast<size_t>(r) * n;
      kernels().rms_norm(x + at, residual ? residual + at : nullptr, weight, eps, 1, n, out + static_cast<size_t>(r) * ld);
    }
  });
}

void silu_mul(const float* x, int rows, int n, float* out, int ldo) {
  const int ld = ldo ? ldo : n;
  by_rows(rows, 4 * static_cast<int64_t>(n), [&](int from, int to) {
    for (int r = from; r < to; ++r) {
      kernels().silu_mul(x + static_cast<size_t>(r) * 2 * n, 1, n, out + static_cast<size_t>(r) * ld);
    }
  });
}

void rope_and_write(float* qkv, int tokens, int q_heads, const KvCache& kv, const Rope& rope, const HeadNorms& norms,
                    const int64_t* positions, const int64_t* slots) {
  const int d = kv.head_dim, kv_size = kv.kv_heads * d;
  const int width = q_heads * d + 2 * kv_size;
  const Kernels& kernel = kernels();
  by_rows(tokens, 2 * static_cast<int64_t>(width), [&](int from, int to) {
    for (int t = from; t < to; ++t) {
      float *q = qkv + static_cast<size_t>(t) * width, *k = q + q_heads * d, *v = k + kv_size;
      if (norms.q) {
        kernel.rms_norm(q, nullptr, norms.q, norms.eps, q_heads, d, q);
        kernel.rms_norm(k, nullptr, norms.k, norms.eps, kv.kv_heads, d, k);
      }
      if (rope.table) {
        kernel.rope(q, q_heads + kv.kv_heads, d, rope.rotary_dim, rope.neox,
                    rope.table + static_cast<size_t>(positions[t]) * rope.rotary_dim);
      }
      for (int h = 0; h < kv.kv_heads; ++h, k += d, v += d) {
        const int64_t at = kv.at(slots[t], h);
        if (kv.bf16) {
          kernel.to_bf16(k, d, static_cast<uint16_t*>(const_cast<void*>(kv.k)) + at);
          kernel.to_bf16(v, d, static_cast<uint16_t*>(const_cast<void*>(kv.v)) + at);
        } else {
          std::memcpy(static_cast<float*>(const_cast<void*>(kv.k)) + at, k, sizeof(float) * static_cast<size_t>(d));
          std::memcpy(static_cast<float*>(const_cast<void*>(kv.v)) + at, v, sizeof(float) * static_cast<size_t>(d));
        }
      }
    }
  });
}

namespace {

// One share of a decoded request, or one block of query rows of an extended one for one KV head.
struct Item {
  int request;
  int part;     // decode: share number; extend: first query token
  int kv_head;  // extend only
};

struct Partial {
  float* out;
  float* max;
  float* sum;
  float* pages;  // [q_heads, share_pages]: weights summed over what the share has of each page
};

// Pages that a share can touch.
int share_pages(int page_size) { return (kShare - 2) / page_size + 2; }

// Sums the weights of tokens [from, from + count) page by page.
void sum_pages(const float* w, int64_t from, int count, int page_size, float* to) {
  for (int64_t t = 0, page = from / page_size; t < count; ++page) {
    const int64_t end = std::min<int64_t>(count, (page + 1) * page_size - from);
    // Four sums that do not wait for one another.
    float lanes[4] = {}, rest = 0;
    for (; t + 4 <= end; t += 4) {
      for (int i = 0; i < 4; ++i) lanes[i] += w[t + i];
    }
    for (; t < end; ++t) rest += w[t];
    *to++ = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]) + rest;
  }
}

int query_block(int group) { return std::max(1, 192 / group); }

// Joins the shares of one request in their order, so that the result does not depend on who computed them.
void join(const Attention& a, int request, const Requests& requests, int q_heads, int d, const Partial* parts, int shares,
          int64_t skipped) {
  const int64_t row = requests.query[request];
  float* out = a.out + row * a.ldo;
  const int64_t begin = requests.first[request], length = requests.first[request + 1] - begin;
  float* mass = a.page_mass && a.pages[request] >= 0 ? a.page_mass + a.pages[request] : nullptr;
  for (int h = 0; h < q_heads; ++h) {
    float m = -INFINITY;
    for (int s = 0; s < shares; ++s) m = std::max(m, parts[s].max[h]);
    float z = 0;
    float* to = out + static_cast<size_t>(h) * d;
    if (shares == 0) std::fill(to, to + d, 0.0f);
    for (int s = 0; s < shares; ++s) {
      const float scale = m == -INFINITY ? 0.0f : std::exp(parts[s].max[h] - m);
      z += scale * parts[s].sum[h];
      const float* from = parts[s].out + static_cast<size_t>(h) * d;
      if (s == 0) {
        for (int i = 0; i < d; ++i) to[i] = from[i] * scale;
      } else {
        for (int i = 0; i < d; ++i) to[i] += from[i] * scale;
      }
    }
    const float inverse = z > 0 ? 1 / z : 0;
    for (int i = 0; i < d; ++i) to[i] *= inverse;
    if (a.lse) a.lse[row * q_heads + h] = z > 0 ? m + std::log(z) : -INFINITY;
    if (mass) {
      for (int s = 0; s < shares; ++s) {
        const float scale = std::exp(parts[s].max[h] - m) * inverse / static_cast<float>(q_heads);
        const int64_t from = skipped + static_cast<int64_t>(s) * kShare;
        const int count = static_cast<int>(std::min<int64_t>(kShare, length - from));
        const int64_t first = from / a.page_size, last = (from + count - 1) / a.page_size;
        const float* pages = parts[s].pages + static_cast<size_t>(h) * share_pages(a.page_size);
        for (int64_t page = first; page <= last; ++page) mass[page] += pages[page - first] * scale;
      }
    }
  }
}

}  // namespace

void attention(const Attention& a, const KvCache& kv, const AttentionShape& shape, const Requests& requests) {
  const int d = kv.head_dim, q_heads = shape.q_heads, group = q_heads / kv.kv_heads, block = query_block(group);
  std::vector<Item> items;
  std::vector<int> first_item(requests.count(), -1);
  int64_t work = 0;
  // A window makes a decoded request read only the end of its list.
  const auto skipped = [&](int r) -> int64_t {
    const int64_t length = requests.first[r + 1] - requests.first[r];
    return shape.window < 0 ? 0 : std::max<int64_t>(0, length - 1 - shape.window);
  };
  for (int r = 0; r < requests.count(); ++r) {
    const int64_t length = requests.first[r + 1] - requests.first[r];
    const int queries = static_cast<int>(requests.query[r + 1] - requests.query[r]);
    if (queries == 1) {
      first_item[r] = static_cast<int>(items.size());
      for (int s = 0; s < ceil_div(length - skipped(r), kShare); ++s) items.push_back({r, s, -1});
      work += length * q_heads * d;
    }
  }
  const size_t decode_items = items.size();
  for (int r = 0; r < requests.count(); ++r) {
    const int queries = static_cast<int>(requests.query[r + 1] - requests.query[r]);
    if (queries <= 1) continue;
    // The last rows see the most: started first, so that no one waits for a long chunk at the end.
    for (int start = (queries - 1) / block * block; start >= 0; start -= block) {
      for (int h = 0; h < kv.kv_heads; ++h) items.push_back({r, start, h});
    }
    work += static_cast<int64_t>(queries) * (requests.first[r + 1] - requests.first[r]) * q_heads * d;
  }
  const int pages = a.page_mass ? share_pages(a.page_size) : 0;
  const size_t heads = static_cast<size_t>(q_heads), partial = heads * static_cast<size_t>(d + 2 + pages);
  float* partials = buffer(1, partial * decode_items + 1).data();
  const auto part_of = [&](size_t i) {
    float* out = partials + partial * i;
    return Partial{out, out + heads * d, out + heads * (d + 1), out + heads * (d + 2)};
  };
  const Kernels& kernel = kernels();
  const auto run = [&](int i) {
    const Item& item = items[static_cast<size_t>(i)];
    const int r = item.request;
    const int64_t* slots = requests.slots + requests.first[r];
    const int64_t length = requests.first[r + 1] - requests.first[r];
    if (item.kv_head < 0) {
      const int64_t from = skipped(r) + static_cast<int64_t>(item.part) * kShare;
      const int count = static_cast<int>(std::min<int64_t>(kShare, length - from));
      const Partial p = part_of(static_cast<size_t>(i));
      float* weights = a.page_mass && a.pages[r] >= 0 ? buffer(2, heads * kShare).data() : nullptr;
      kernel.decode_share(a.q + requests.query[r] * a.ldq, kv, shape, slots + from, count, p.out, p.max, p.sum, weights);
      for (int h = 0; weights && h < q_heads; ++h) {
        sum_pages(weights + h * count, from, count, a.page_size, p.pages + h * pages);
      }
      return;
    }
    const int queries = static_cast<int>(requests.query[r + 1] - requests.query[r]);
    const int64_t row = requests.query[r] + item.part;
    kernel.extend_block(a.q + row * a.ldq, a.ldq, kv, shape, item.kv_head, slots,
                        static_cast<int>(length) - queries + item.part, std::min(block, queries - item.part),
                        a.out + row * a.ldo, a.ldo, a.lse ? a.lse + row * q_heads : nullptr);
  };
  if (work <= kSerialElements) {
    for (size_t i = 0; i < items.size(); ++i) run(static_cast<int>(i));
  } else {
    team()->run(static_cast<int>(items.size()), run);
  }
  std::vector<Partial> parts;
  for (int r = 0; r < requests.count(); ++r) {
    if (first_item[r] < 0) continue;
    parts.clear();
    for (size_t i = static_cast<size_t>(first_item[r]); i < decode_items && items[i].request == r; ++i) {
      parts.push_back(part_of(i));
    }
    join(a, r, requests, q_heads, d, parts.data(), static_cast<int>(parts.size()), skipped(r));
  }
}

}  // namespace sge

// Operations on rows and on the KV cache, one at a time.
#include <nanobind/stl/optional.h>

#include <algorithm>

#include "bindings.h"
#include "bindings_checks.h"

namespace bindings {
namespace {

void rms_norm(const Matrix& x, const Vector& weight, double eps, const MatrixOut& out,
              const std::optional<MatrixOut>& residual) {
  for (size_t i = 0; i < 2; ++i) {
    require(out.shape(i) == x.shape(i) && (!residual || residual->shape(i) == x.shape(i)),
            "x, out and residual must have one shape");
  }
  require(weight.shape(0) == x.shape(1), "weight must be [n]");
  require(std::isfinite(eps) && eps >= 0, "eps must be finite and at least 0");
  require_memory(x, weight, out);
  if (residual) require_memory(*residual);
  const int count = as_int(x.shape(0), "rows"), n = as_int(x.shape(1), "n");
  Unlocked unlocked;
  sge::rms_norm(x.data(), residual ? residual->data() : nullptr, weight.data(), static_cast<float>(eps), count, n,
                out.data());
}

void silu_mul(const Matrix& x, const MatrixOut& out) {
  require(x.shape(0) == out.shape(0) && x.shape(1) == 2 * out.shape(1), "x must be [rows, 2 n] and out [rows, n]");
  require_memory(x, out);
  require_apart(x, out);
  const int count = as_int(x.shape(0), "rows"), n = as_int(out.shape(1), "n");
  Unlocked unlocked;
  sge::silu_mul(x.data(), count, n, out.data());
}

std::vector<int64_t> check_rope(const Matrix& table, const Indices& positions, size_t tokens, int head_dim) {
  require(table.shape(1) > 0 && table.shape(1) % 2 == 0 && table.shape(1) <= static_cast<size_t>(head_dim),
          "the rope table must be [positions, rotary_dim], rotary_dim even and at most head_dim");
  require(positions.shape(0) == tokens, "positions must be [tokens]");
  require_memory(table);
  return in_range(positions, static_cast<int64_t>(table.shape(0)), "positions");
}

void rope_write_kv(const MatrixOut& qkv, const Indices& positions, const Indices& slots, const Matrix& table, bool neox,
                   const CacheArray& k_cache, const CacheArray& v_cache) {
  const sge::KvCache kv = cache_of(k_cache, v_cache);
  const size_t tokens = qkv.shape(0), heads = qkv.shape(1) / static_cast<size_t>(kv.head_dim);
  require(qkv.shape(1) % static_cast<size_t>(kv.head_dim) == 0 && heads > 2 * static_cast<size_t>(kv.kv_heads),
          "qkv must be [tokens, (q_heads + 2 kv_heads) head_dim]");
  const int q_heads = check_heads(heads - 2 * static_cast<size_t>(kv.kv_heads), kv);
  require_memory(qkv);
  const std::vector<int64_t> at = check_rope(table, positions, tokens, kv.head_dim);
  require(slots.shape(0) == tokens, "slots must be [tokens]");
  const std::vector<int64_t> to = in_range(slots, static_cast<int64_t>(k_cache.shape(0)), "slots");
  const int count = as_int(tokens, "tokens"), rotary = as_int(table.shape(1), "rotary_dim");
  Unlocked unlocked;
  sge::rope_and_write(qkv.data(), count, q_heads, kv, {table.data(), rotary, neox}, {nullptr, nullptr, 0},
                      at.data(), to.data());
}

// Token slots of the requests whose pages are indices[indptr[r] .. indptr[r + 1]); the last page is filled to last[r].
std::vector<int64_t> slots_of(const Indices& indptr, const Indices& indices, const Indices& last, int page_size,
                              int64_t cache_slots, std::vector<int64_t>& first) {
  require(page_size > 0, "page_size must be at least 1");
  check_offsets(indptr, static_cast<int64_t>(indices.shape(0)), "kv_indptr");
  const size_t requests = indptr.shape(0) - 1;
  require(last.shape(0) == requests, "kv_last_page_len must be [requests]");
  const std::vector<int64_t> pages = in_range(indices, cache_slots / page_size, "kv_indices");
  require_memory(last);
  std::vector<int64_t> slots;
  first.assign(1, 0);
  for (size_t r = 0; r < requests; ++r) {
    const int64_t begin = indptr.data()[r], end = indptr.data()[r + 1];
    if (end > begin) {
      require(last.data()[r] >= 1 && last.data()[r] <= page_size,
              "kv_last_page_len must be between 1 and page_size for a request with pages");
    }
    for (int64_t p = begin; p < end; ++p) {
      const int64_t filled = p + 1 == end ? last.data()[r] : page_size;
      for (int64_t i = 0; i < filled; ++i) slots.push_back(pages[static_cast<size_t>(p)] * page_size + i);
    }
    first.push_back(static_cast<int64_t>(slots.size()));
  }
  return slots;
}

sge::AttentionShape shape_of(int q_heads, double scale, double logit_cap, int window) {
  require(std::isfinite(logit_cap) && logit_cap >= 0, "logit_cap must be finite and at least 0 (0: none)");
  require_finite(scale, "scale");
  return {q_heads, static_cast<float>(scale), static_cast<float>(logit_cap), window};
}

void paged_attention(const Cube& q, const CacheArray& k_cache, const CacheArray& v_cache, const Indices& kv_indptr,
                     const Indices& kv_indices, const Indices& kv_last_page_len, int page_size, double scale,
                     const CubeOut& out, const std::optional<Indices>& q_indptr, int window, double logit_cap,
                     const std::optional<MatrixOut>& lse, const std::optional<Array<float, nb::ndim<1>>>& page_mass) {
  const sge::KvCache kv = cache_of(k_cache, v_cache);
  const int q_heads = check_heads(q.shape(1), kv);
  require(q.shape(2) == static_cast<size_t>(kv.head_dim), "q must be [queries, q_heads, head_dim]");
  require_memory(q, out);
  require_apart(q, out);
  if (lse) require_memory(*lse);
  if (page_mass) require_memory(*page_mass);
  for (size_t i = 0; i < 3; ++i) require(out.shape(i) == q.shape(i), "out must have the shape of q");
  require(!lse || (lse->shape(0) == q.shape(0) && lse->shape(1) == q.shape(1)), "lse must be [queries, q_heads]");
  require(!page_mass || page_mass->shape(0) == kv_indices.shape(0), "page_mass must be [pages], as kv_indices");
  sge::Requests requests;
  const std::vector<int64_t> slots =
      slots_of(kv_indptr, kv_indices, kv_last_page_len, page_size, static_cast<int64_t>(k_cache.shape(0)), requests.first);
  requests.slots = slots.data();
  const size_t count = kv_indptr.shape(0) - 1;
  if (q_indptr) {
    require(q_indptr->shape(0) == count + 1, "q_indptr must be [requests + 1]");
    check_offsets(*q_indptr, static_cast<int64_t>(q.shape(0)), "q_indptr");
    requests.query.assign(q_indptr->data(), q_indptr->data() + count + 1);
  } else {
    require(q.shape(0) == count, "without q_indptr there is one query for each request");
    for (size_t r = 0; r <= count; ++r) requests.query.push_back(static_cast<int64_t>(r));
  }
  for (size_t r = 0; r < count; ++r) {
    const int64_t queries = requests.query[r + 1] - requests.query[r], length = requests.first[r + 1] - requests.first[r];
    require(queries <= std::max<int64_t>(length, 1), "a request has more queries than tokens");
    require(queries == 1 || !page_mass, "page_mass is for requests with one query");
  }
  if (page_mass) std::fill(page_mass->data(), page_mass->data() + page_mass->shape(0), 0.0f);
  const int width = q_heads * kv.head_dim;
  const sge::AttentionShape shape = shape_of(q_heads, scale, logit_cap, window);
  Unlocked unlocked;
  sge::attention({q.data(), width, out.data(), width, lse ? lse->data() : nullptr,
                  page_mass ? page_mass->data() : nullptr, kv_indptr.data(), page_size},
                 kv, shape, requests);
}

}  // namespace

void add_ops(nb::module_& m) {
  m.def("rms_norm", &rms_norm, "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a, "out"_a.noconvert(),
        "residual"_a.noconvert() = nb::none());
  m.def("silu_mul", &silu_mul, "x"_a.noconvert(), "out"_a.noconvert());
  m.def("rope_write_kv", &rope_write_kv, "qkv"_a.noconvert(), "positions"_a.noconvert(), "slots"_a.noconvert(),
        "table"_a.noconvert(), "neox"_a, "k_cache"_a.noconvert(), "v_cache"_a.noconvert());
  m.def("paged_attention", &paged_attention, "q"_a.noconvert(), "k_cache"_a.noconvert(), "v_cache"_a.noconvert(),
        "kv_indptr"_a.noconvert(), "kv_indices"_a.noconvert(), "kv_last_page_len"_a.noconvert(), "page_size"_a, "scale"_a,
        "out"_a.noconvert(), "q_indptr"_a.noconvert() = nb::none(), "window"_a = -1, "logit_cap"_a = 0.0,
        "lse"_a.noconvert() = nb::none(), "page_mass"_a.noconvert() = nb::none());
}

}  // namespace bindings

// What the Python module's files share: the argument types and their checks. Everything that could read or write
// outside its memory is refused here: dtype, shape, contiguity and device by the argument types, sizes and indices by
// the checks. What passes runs without the interpreter's lock.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"
#include "ops.h"

namespace bindings {

namespace nb = nanobind;
using namespace nb::literals;

template <class T, class... Options>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu, Options...>;
using Vector = Array<const float, nb::ndim<1>>;
using Matrix = Array<const float, nb::ndim<2>>;
using MatrixOut = Array<float, nb::ndim<2>>;
using Cube = Array<const float, nb::ndim<3>>;
using CubeOut = Array<float, nb::ndim<3>>;
using Indices = Array<const int64_t, nb::ndim<1>>;
// float32, or bfloat16 seen as uint16; [slots, kv_heads, head_dim], see cache_of.
using CacheArray = nb::ndarray<nb::ndim<3>, nb::device::cpu>;

using Unlocked = nb::gil_scoped_release;

inline void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

inline int as_int(size_t value, const char* what) {
  require(value <= 0x7fffffff, std::string(what) + " must be below 2^31");
  return static_cast<int>(value);
}

// Memory that exists: a tensor may have a shape and no storage.
template <class... Arrays>
void require_memory(const Arrays&... arrays) {
  (require(arrays.size() == 0 || arrays.data() != nullptr, "an array has a shape but no memory"), ...);
}

// A copy that no one can change between the check and the use.
inline std::vector<int64_t> in_range(const Indices& indices, int64_t end, const char* what) {
  require_memory(indices);
  std::vector<int64_t> values(indices.data(), indices.data() + indices.shape(0));
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0 && values[i] < end) continue;
    throw std::invalid_argument(std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) +
                                "; accepted: " + (end > 0 ? "0 to " + std::to_string(end - 1) : "none, there is nothing to index"));
  }
  return values;
}

template <class X, class Out>
void require_apart(const X& x, const Out& out) {
  const auto* begin = reinterpret_cast<const char*>(x.data());
  const auto* end = begin + x.nbytes();
  const auto* other = reinterpret_cast<const char*>(out.data());
  require(end <= other || other + out.nbytes() <= begin || x.size() == 0 || out.size() == 0, "out must not overlap x");
}

inline void require_finite(double value, const char* what) { require(std::isfinite(value), std::string(what) + " must be finite"); }

inline void check_offsets(const Indices& offsets, int64_t end, const char* what) {
  require_memory(offsets);
  require(offsets.shape(0) >= 1 && offsets.data()[0] == 0, std::string(what) + " must begin with 0");
  for (size_t i = 1; i < offsets.shape(0); ++i) {
    require(offsets.data()[i] >= offsets.data()[i - 1], std::string(what) + " must not decrease");
  }
  require(offsets.data()[offsets.shape(0) - 1] == end,
          std::string(what) + " must end with " + std::to_string(end) + ", the number of entries it cuts up");
}

inline bool cache_is_bf16(const CacheArray& a) {
  const bool float32 = a.dtype() == nb::dtype<float>(), bits16 = a.dtype() == nb::dtype<uint16_t>();
  require(float32 || bits16, "the cache must be float32, or bfloat16 viewed as uint16");
  return bits16;
}

inline sge::KvCache cache_of(const CacheArray& k, const CacheArray& v) {
  const bool bf16 = cache_is_bf16(k);
  require_memory(k, v);
  require(cache_is_bf16(v) == bf16, "k_cache and v_cache must have one dtype");
  for (size_t i = 0; i < 3; ++i) {
    require(k.shape(i) == v.shape(i) && k.stride(i) == v.stride(i), "k_cache and v_cache must have one shape and lie alike");
  }
  require(k.shape(1) > 0 && k.shape(2) > 0 && k.shape(2) % sge::kPanel == 0,
          "head_dim must be a positive multiple of 16");
  const auto d = static_cast<int64_t>(k.shape(2));
  const bool rows = k.stride(2) == 1 && k.stride(0) >= d && k.stride(0) % d == 0 && k.stride(1) >= d && k.stride(1) % d == 0;
  require(rows || k.size() == 0, "the cache must lie in rows of head_dim numbers, slots or heads first");
  return {k.data(), v.data(), bf16, as_int(k.shape(1), "kv_heads"), as_int(k.shape(2), "head_dim"), k.stride(0), k.stride(1)};
}

inline int check_heads(size_t q_heads, const sge::KvCache& kv) {
  require(q_heads > 0 && q_heads % static_cast<size_t>(kv.kv_heads) == 0, "q heads must be a multiple of the KV heads");
  return as_int(q_heads, "q_heads");
}

}  // namespace bindings

// Sixteen floats at a time, whatever the instruction set: one register with AVX-512, two with AVX2, a plain array
// elsewhere. A file that includes this is compiled once for each instruction set, see CMakeLists.txt; everything lives
// in a namespace of its own (SGE_ISA), so that the linker never mixes them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef SGE_ISA
#error "compile with -DSGE_ISA=<namespace>"
#endif

namespace sge::SGE_ISA {

constexpr int kWidth = 16;

#if defined(__AVX512F__)

struct F16 {
  __m512 v;
};

inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
inline F16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline float sum(F16 a) { return _mm512_reduce_add_ps(a.v); }
inline float largest(F16 a) { return _mm512_reduce_max_ps(a.v); }
// A sum of products of 16 pairs at a time, in as few registers as it may be.
using Dot = F16;
inline Dot no_products() { return {_mm512_setzero_ps()}; }
inline Dot add_products(F16 x, F16 y, Dot sums) { return fma(x, y, sums); }
// The four sums, each formed in the same order whatever its place.
inline void store_dots(float* p, Dot a, Dot b, Dot c, Dot d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a.v, b.v), _mm512_unpackhi_ps(a.v, b.v));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c.v, d.v), _mm512_unpackhi_ps(c.v, d.v));
  const __m512 lanes = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}
inline F16 nearest(F16 a) { return {_mm512_roundscale_ps(a.v, 0)}; }
// 2^n for integral n in [-126, 127].
inline F16 power_of_two(F16 n) {
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
// `a` where `x` is at least `floor`, else 0.
inline F16 keep_from(F16 a, F16 x, float floor) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(floor), _CMP_GE_OQ), a.v)};
}
// Whether any entry is at least `floor`.
inline int count_from(F16 x, float floor) {
  return __builtin_popcount(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(floor), _CMP_GE_OQ));
}
inline bool any_from(F16 x, float floor) { return _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(floor), _CMP_GE_OQ) != 0; }
inline F16 from_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16))};
}
inline F16 from_fp16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

// Sixteen 32-bit integers; and, under the same name, a quad: four bytes for each of 16 outputs.
struct I16 {
  __m512i v;
};

inline I16 load_quad(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline I16 set1(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I16 low_nibbles(I16 x) { return {_mm512_and_si512(x.v, _mm512_set1_epi8(15))}; }
inline I16 high_nibbles(I16 x) { return {_mm512_and_si512(_mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(15))}; }
// Bits 2i and 2i + 1 of every byte.
template <int i>
inline I16 bit_pairs(I16 x) {
  return {_mm512_and_si512(_mm512_srli_epi16(x.v, 2 * i), _mm512_set1_epi8(3))};
}
// Byte i of every output.
template <int i>
inline I16 byte_of(I16 x) {
  return {_mm512_and_si512(_mm512_srli_epi32(x.v, 8 * i), _mm512_set1_epi32(255))};
}
inline I16 operator+(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline F16 to_float(I16 x) { return {_mm512_cvtepi32_ps(x.v)}; }
// Sums of (weight - 128) . x over quads of a block, exact: begun with the block's sum of all x, added to quad by quad. A
// quad is four unsigned bytes for each output; x four signed bytes from -127 to 127, the same for every output.
inline I16 begin_bytes(int32_t sum_of_x) { return {_mm512_set1_epi32(-128 * sum_of_x)}; }
inline I16 add_bytes(I16 sums, I16 quad, I16 x) { return {_mm512_dpbusd_epi32(sums.v, quad.v, x.v)}; }
// Sums of weight . x over the 8 quads of a block at most, weights from 0 to 15, or 32 quads of weights from 0 to 3, whatever
// they are kept in until the end.
using NibbleSums = I16;
inline NibbleSums begin_nibbles() { return {_mm512_setzero_si512()}; }
inline NibbleSums add_nibbles(NibbleSums sums, I16 quad, I16 x) { return {_mm512_dpbusd_epi32(sums.v, quad.v, x.v)}; }
inline I16 end_nibbles(NibbleSums sums) { return sums; }
inline I16 nearest_int(F16 x) { return {_mm512_cvtps_epi32(x.v)}; }
inline void store_int8(int8_t* p, I16 x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v)); }
inline int32_t sum(I16 x) { return _mm512_reduce_add_epi32(x.v); }
inline int32_t largest(I16 x) { return _mm512_reduce_max_epi32(x.v); }
inline F16 absolute(F16 x) { return {_mm512_abs_ps(x.v)}; }

#elif defined(__AVX2__)

struct F16 {
  __m256 a, b;
};

inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline F16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F16 operator+(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F16 operator-(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F16 operator*(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F16 operator/(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F16 fma(F16 x, F16 y, F16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F16 min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline float sum(F16 x) {
  const __m256 s = _mm256_add_ps(x.a, x.b);
  __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  t = _mm_add_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}
inline float largest(F16 x) {
  const __m256 s = _mm256_max_ps(x.a, x.b);
  __m128 t = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  t = _mm_max_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
}
struct Dot {
  __m256 v;
};
inline Dot no_products() { return {_mm256_setzero_ps()}; }
inline Dot add_products(F16 x, F16 y, Dot sums) {
  return {_mm256_fmadd_ps(x.b, y.b, _mm256_fmadd_ps(x.a, y.a, sums.v))};
}
inline void store_dots(float* p, Dot a, Dot b, Dot c, Dot d) {
  const __m256 x = a.v, y = b.v, z = c.v, w = d.v;
  const __m256 xy = _mm256_add_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y));
  const __m256 zw = _mm256_add_ps(_mm256_unpacklo_ps(z, w), _mm256_unpackhi_ps(z, w));
  const __m256 lanes = _mm256_add_ps(_mm256_shuffle_ps(xy, zw, 0x44), _mm256_shuffle_ps(xy, zw, 0xee));
  _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1)));
}
inline F16 nearest(F16 x) {
  return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline F16 power_of_two(F16 n) {
  const __m256i bias = _mm256_set1_epi32(127);
  return {
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.a), bias), 23)),
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.b), bias), 23))};
}
inline F16 keep_from(F16 x, F16 y, float floor) {
  const __m256 f = _mm256_set1_ps(floor);
  return {_mm256_and_ps(x.a, _mm256_cmp_ps(y.a, f, _CMP_GE_OQ)),
          _mm256_and_ps(x.b, _mm256_cmp_ps(y.b, f, _CMP_GE_OQ))};
}
inline int count_from(F16 x, float floor) {
  const __m256 least = _mm256_set1_ps(floor);
  const auto of_half = [&](__m256 half) { return __builtin_popcount(_mm256_movemask_ps(_mm256_cmp_ps(half, least, _CMP_GE_OQ))); };
  return of_half(x.a) + of_half(x.b);
}
inline bool any_from(F16 x, float floor) {
  const __m256 f = _mm256_set1_ps(floor);
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(x.a, f, _CMP_GE_OQ), _mm256_cmp_ps(x.b, f, _CMP_GE_OQ))) != 0;
}
inline F16 from_bf16(const uint16_t* p) {
  const auto half = [](const uint16_t* q) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q))), 16));
  };
  return {half(p), half(p + 8)};
}
inline F16 from_fp16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}

struct I16 {
  __m256i a, b;
};

inline I16 load_quad(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline I16 set1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I16 low_nibbles(I16 x) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
inline I16 high_nibbles(I16 x) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(x.a, 4), mask), _mm256_and_si256(_mm256_srli_epi16(x.b, 4), mask)};
}
template <int i>
inline I16 bit_pairs(I16 x) {
  const __m256i mask = _mm256_set1_epi8(3);
  return {_mm256_and_si256(_mm256_srli_epi16(x.a, 2 * i), mask), _mm256_and_si256(_mm256_srli_epi16(x.b, 2 * i), mask)};
}
template <int i>
inline I16 byte_of(I16 x) {
  const __m256i mask = _mm256_set1_epi32(255);
  return {_mm256_and_si256(_mm256_srli_epi32(x.a, 8 * i), mask), _mm256_and_si256(_mm256_srli_epi32(x.b, 8 * i), mask)};
}
inline I16 operator+(I16 x, I16 y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline F16 to_float(I16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
// As above. The instruction for bytes saturates at 2^15 - 1: of |weight - 128| and x with its sign, two products are at most
// 2 * 128 * 127, which is less.
inline I16 begin_bytes(int32_t) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline __m256i add_half_bytes(__m256i sums, __m256i quad, __m256i x) {
  const __m256i weight = _mm256_xor_si256(quad, _mm256_set1_epi8(-128));
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weight), _mm256_sign_epi8(x, weight));
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline I16 add_bytes(I16 sums, I16 quad, I16 x) {
  return {add_half_bytes(sums.a, quad.a, x.a), add_half_bytes(sums.b, quad.b, x.b)};
}
// Pairs of products are at most 2 * 15 * 127, of which 8 fit into 16 bits, or 2 * 3 * 127, of which 43 do.
struct NibbleSums {
  __m256i a, b;
};
inline NibbleSums begin_nibbles() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline NibbleSums add_nibbles(NibbleSums sums, I16 quad, I16 x) {
  return {_mm256_add_epi16(sums.a, _mm256_maddubs_epi16(quad.a, x.a)),
          _mm256_add_epi16(sums.b, _mm256_maddubs_epi16(quad.b, x.b))};
}
inline I16 end_nibbles(NibbleSums sums) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(sums.a, ones), _mm256_madd_epi16(sums.b, ones)};
}
inline I16 nearest_int(F16 x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline void store_int8(int8_t* p, I16 x) {
  const auto shorts = [](__m256i v) { return _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)); };
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(shorts(x.a), shorts(x.b)));
}
inline int32_t sum(I16 x) {
  int32_t values[8], total = 0;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(values), _mm256_add_epi32(x.a, x.b));
  for (int32_t value : values) total += value;
  return total;
}
inline int32_t largest(I16 x) {
  const __m256i s = _mm256_max_epi32(x.a, x.b);
  __m128i t = _mm_max_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
}
inline F16 absolute(F16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}

#else

struct F16 {
  float v[16];
};

#define SGE_EACH(expression)                      \
  F16 r;                                          \
  for (int i = 0; i < 16; ++i) r.v[i] = (expression); \
  return r

inline F16 load(const float* p) { SGE_EACH(p[i]); }
inline void store(float* p, F16 x) { std::memcpy(p, x.v, sizeof x.v); }
inline F16 set1(float x) { SGE_EACH(x); }
inline F16 operator+(F16 x, F16 y) { SGE_EACH(x.v[i] + y.v[i]); }
inline F16 operator-(F16 x, F16 y) { SGE_EACH(x.v[i] - y.v[i]); }
inline F16 operator*(F16 x, F16 y) { SGE_EACH(x.v[i] * y.v[i]); }
inline F16 operator/(F16 x, F16 y) { SGE_EACH(x.v[i] / y.v[i]); }
// Rounds twice where the processor has no fused form: the last bit may differ from the other instruction sets.
inline F16 fma(F16 x, F16 y, F16 z) { SGE_EACH(x.v[i] * y.v[i] + z.v[i]); }
inline F16 max(F16 x, F16 y) { SGE_EACH(x.v[i] > y.v[i] ? x.v[i] : y.v[i]); }
inline F16 min(F16 x, F16 y) { SGE_EACH(x.v[i] < y.v[i] ? x.v[i] : y.v[i]); }
inline float sum(F16 x) {
  float s = 0;
  for (float y : x.v) s += y;
  return s;
}
inline float largest(F16 x) {
  float s = x.v[0];
  for (float y : x.v) s = y > s ? y : s;
  return s;
}
using Dot = F16;
inline Dot no_products() { SGE_EACH(0.0f); }
inline Dot add_products(F16 x, F16 y, Dot sums) { return fma(x, y, sums); }
inline void store_dots(float* p, Dot a, Dot b, Dot c, Dot d) { p[0] = sum(a), p[1] = sum(b), p[2] = sum(c), p[3] = sum(d); }
inline F16 nearest(F16 x) { SGE_EACH(std::nearbyint(x.v[i])); }
inline float float_of_bits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline F16 power_of_two(F16 n) { SGE_EACH(float_of_bits(static_cast<uint32_t>(static_cast<int>(n.v[i]) + 127) << 23)); }
inline F16 keep_from(F16 x, F16 y, float floor) { SGE_EACH(y.v[i] >= floor ? x.v[i] : 0.0f); }
inline int count_from(F16 x, float floor) {
  int count = 0;
  for (float value : x.v) count += value >= floor;
  return count;
}
inline bool any_from(F16 x, float floor) {
  bool any = false;
  for (float y : x.v) any |= y >= floor;
  return any;
}
inline F16 from_bf16(const uint16_t* p) { SGE_EACH(float_of_bits(static_cast<uint32_t>(p[i]) << 16)); }
inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 0) {
    const float f = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -f : f;
  }
  if (exponent == 31) return float_of_bits(sign | 0x7f800000 | (mantissa << 13));
  return float_of_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
}
inline F16 from_fp16(const uint16_t* p) { SGE_EACH(half_to_float(p[i])); }

struct I16 {
  int32_t v[16];
};

#define SGE_EACH_INT(expression)                      \
  I16 r;                                              \
  for (int i = 0; i < 16; ++i) r.v[i] = (expression); \
  return r

inline I16 load_quad(const uint8_t* p) {
  I16 r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
inline I16 set1(int32_t x) { SGE_EACH_INT(x); }
inline I16 low_nibbles(I16 x) { SGE_EACH_INT(x.v[i] & 0x0f0f0f0f); }
inline I16 high_nibbles(I16 x) { SGE_EACH_INT(static_cast<int32_t>(static_cast<uint32_t>(x.v[i]) >> 4) & 0x0f0f0f0f); }
template <int j>
inline I16 bit_pairs(I16 x) {
  SGE_EACH_INT(static_cast<int32_t>(static_cast<uint32_t>(x.v[i]) >> (2 * j)) & 0x03030303);
}
template <int j>
inline I16 byte_of(I16 x) {
  SGE_EACH_INT(static_cast<int32_t>(static_cast<uint32_t>(x.v[i]) >> (8 * j)) & 255);
}
inline I16 operator+(I16 x, I16 y) { SGE_EACH_INT(x.v[i] + y.v[i]); }
inline F16 to_float(I16 x) { SGE_EACH(static_cast<float>(x.v[i])); }
inline I16 dot(I16 sums, I16 quad, I16 x) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 4; ++j) {
      sums.v[i] += static_cast<int32_t>(static_cast<uint32_t>(quad.v[i]) >> (8 * j) & 255) *
                   static_cast<int8_t>(static_cast<uint32_t>(x.v[i]) >> (8 * j));
    }
  }
  return sums;
}
inline I16 begin_bytes(int32_t sum_of_x) { SGE_EACH_INT(-128 * sum_of_x); }
inline I16 add_bytes(I16 sums, I16 quad, I16 x) { return dot(sums, quad, x); }
using NibbleSums = I16;
inline NibbleSums begin_nibbles() { SGE_EACH_INT(0); }
inline NibbleSums add_nibbles(NibbleSums sums, I16 quad, I16 x) { return dot(sums, quad, x); }
inline I16 end_nibbles(NibbleSums sums) { return sums; }
inline I16 nearest_int(F16 x) { SGE_EACH_INT(static_cast<int32_t>(std::nearbyint(x.v[i]))); }
inline void store_int8(int8_t* p, I16 x) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(x.v[i]);
}
inline int32_t sum(I16 x) {
  int32_t total = 0;
  for (int32_t value : x.v) total += value;
  return total;
}
inline int32_t largest(I16 x) {
  int32_t most = x.v[0];
  for (int32_t value : x.v) most = value > most ? value : most;
  return most;
}
inline F16 absolute(F16 x) { SGE_EACH(std::fabs(x.v[i])); }

#undef SGE_EACH_INT
#undef SGE_EACH

#endif

}  // namespace sge::SGE_ISA

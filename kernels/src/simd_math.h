// What sixteen floats at a time make together, the same in words for every instruction set.
#pragma once

#include "simd.h"

namespace sge::SGE_ISA {

inline F16 zero() { return set1(0.0f); }

// Round to nearest, ties to even; NaN stays NaN.
inline uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 64);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// e^x to about 1e-7 relative; exactly 0 below -87.3 (so that a masked score of -inf weighs nothing).
// Range reduction by Cody and Waite, a degree-6 minimax polynomial on [-ln2/2, ln2/2] (Cephes, Moshier).
inline F16 exp(F16 x) {
  const float lowest = -87.33654f;
  const F16 clamped = min(max(x, set1(lowest)), set1(88.3762f));
  const F16 n = nearest(clamped * set1(1.44269504088896341f));
  F16 r = fma(n, set1(-0.693359375f), clamped);
  r = fma(n, set1(2.12194440e-4f), r);
  F16 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r + set1(1.0f));
  return keep_from(p * power_of_two(n), x, lowest);
}

}  // namespace sge::SGE_ISA

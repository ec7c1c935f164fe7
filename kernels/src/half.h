// float16 and bfloat16 as 16 bits, for code that is not compiled for a particular instruction set.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace sge {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline float half_value(uint16_t h) {
  const uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023;
  float magnitude;
  if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else if (exponent == 31) {
    magnitude = mantissa ? NAN : INFINITY;
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 1024), static_cast<int>(exponent) - 25);
  }
  return h & 0x8000 ? -magnitude : magnitude;
}

// Round to nearest, ties to even; infinity beyond 65504.
inline uint16_t half_of(float x) {
  const uint16_t sign = static_cast<uint16_t>(bits_of(x) >> 16 & 0x8000);
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude == 0.0f) return sign;  // frexp gives it the exponent of 0.5
  int exponent;
  std::frexp(magnitude, &exponent);
  // The unit in the last place: 2^-10 of the leading bit, and no finer than the subnormals.
  const int unit = exponent - 11 < -24 ? -24 : exponent - 11;
  const long steps = std::lrint(std::ldexp(static_cast<double>(magnitude), -unit));
  // Counting in units walks through subnormals and exponents alike.
  const long code = unit == -24 ? steps : ((static_cast<long>(unit) + 24) << 10) + steps;
  return static_cast<uint16_t>(sign | static_cast<uint16_t>(code));
}

}  // namespace sge

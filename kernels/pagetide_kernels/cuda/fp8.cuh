// Rounding to e4m3 (OCP 8-bit floating point, 2023): four exponent bits of bias 7, three of mantissa, no
// infinity. In integers, because only sm_89 and later have an instruction for it.
#pragma once
#include "prim.cuh"

constexpr float kLargestE4m3 = 448;

// To nearest, ties to even; what is too large becomes the largest value, NaN stays NaN.
DEVICE e4m3 to_e4m3(float x) {
  uint32_t sign = float_bits(x) >> 24 & 0x80;
  if (x != x) return {static_cast<uint8_t>(0x7F)};
  float size = fminf(fabsf(x), kLargestE4m3);
  uint32_t bits;
  if (size < 0.015625f) {  // below 2^-6 values are multiples of 2^-9
    bits = static_cast<uint32_t>(rintf(size * 512));
  } else {
    uint32_t wide = float_bits(size);
    wide += 0x7FFFF + (wide >> 20 & 1);
    bits = (wide >> 20) - ((127 - 7) << 3);
  }
  return {static_cast<uint8_t>(sign | bits)};
}

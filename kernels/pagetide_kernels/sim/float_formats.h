// Sixteen-bit floats on the CPU.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace sim {

inline float decode_bf16(uint16_t bits) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

// Rounds to nearest, ties to even; NaN stays NaN.
inline uint16_t encode_bf16(float value) {
  uint32_t wide;
  memcpy(&wide, &value, 4);
  if (value != value) return 0x7FFF;
  return static_cast<uint16_t>((wide + 0x7FFF + (wide >> 16 & 1)) >> 16);
}

inline float decode_f16(uint16_t bits) { return _cvtsh_ss(bits); }
inline uint16_t encode_f16(float value) {
  return static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace sim

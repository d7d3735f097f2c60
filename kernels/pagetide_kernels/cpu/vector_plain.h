// Sixteen float lanes in portable C++.
#pragma once

#include <cmath>
#include <cstring>

#include "elements.h"

namespace pagetide::PAGETIDE_ISA {

// Sums that stay in registers beside what they add up, and the most rows and vectors of them.
constexpr int kMaxSums = 2;
constexpr int kMaxRows = 2;
constexpr int kMaxColumns = 1;
// Beside those sums, for all vectors at once.
constexpr bool kHasRegisters = false;

struct Vec {
  float lane[kLanes];

  template <class Function>
  static PAGETIDE_INLINE Vec each(Function function) {
    Vec out;
    for (int i = 0; i < kLanes; ++i) out.lane[i] = function(i);
    return out;
  }
};

PAGETIDE_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

PAGETIDE_INLINE float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

PAGETIDE_INLINE Vec kept(Vec v) { return v; }

PAGETIDE_INLINE Vec fill(float value) {
  return Vec::each([=](int) { return value; });
}

PAGETIDE_INLINE Vec load(const float* in) {
  return Vec::each([=](int i) { return in[i]; });
}

PAGETIDE_INLINE Vec load(const bfloat16* in) {
  return Vec::each([=](int i) { return float_of(uint32_t{in[i].bits} << 16); });
}

PAGETIDE_INLINE Vec load(const int8_t* in) {
  return Vec::each([=](int i) { return static_cast<float>(in[i]); });
}

// The first (0) or second (1) bf16 of each of sixteen pairs.
template <int kHalf>
PAGETIDE_INLINE Vec load_halves(const void* pairs) {
  uint32_t bits[kLanes];
  std::memcpy(bits, pairs, sizeof bits);
  return Vec::each([&](int i) { return float_of(kHalf == 0 ? bits[i] << 16 : bits[i] & 0xffff0000); });
}

// Up to sixteen words of 32 bits as they are, with zeros behind them.
PAGETIDE_INLINE Vec load_bits(const void* in, int count) {
  Vec out = fill(0.0f);
  std::memcpy(out.lane, in, sizeof(float) * static_cast<size_t>(count));
  return out;
}

// Pairs of two rows' elements; null: a row of zeros.
PAGETIDE_INLINE Vec paired(const bfloat16* first, const bfloat16* second) {
  return Vec::each([&](int i) {
    const uint32_t low = first != nullptr ? first[i].bits : 0, high = second != nullptr ? second[i].bits : 0;
    return float_of(low | high << 16);
  });
}

PAGETIDE_INLINE void store(Vec v, float* out) { std::memcpy(out, v.lane, sizeof v.lane); }

// To nearest even; NaN stays NaN.
PAGETIDE_INLINE void store(Vec v, bfloat16* out) {
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t bits = bits_of(v.lane[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    out[i].bits = static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40 : rounded);
  }
}

PAGETIDE_INLINE Vec operator+(Vec a, Vec b) {
  return Vec::each([&](int i) { return a.lane[i] + b.lane[i]; });
}

PAGETIDE_INLINE Vec operator-(Vec a, Vec b) {
  return Vec::each([&](int i) { return a.lane[i] - b.lane[i]; });
}

PAGETIDE_INLINE Vec operator*(Vec a, Vec b) {
  return Vec::each([&](int i) { return a.lane[i] * b.lane[i]; });
}

PAGETIDE_INLINE Vec operator/(Vec a, Vec b) {
  return Vec::each([&](int i) { return a.lane[i] / b.lane[i]; });
}

// Where either is NaN: b. The other instruction sets do the same.
PAGETIDE_INLINE Vec max(Vec a, Vec b) {
  return Vec::each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}

PAGETIDE_INLINE Vec fill_now(float value) { return fill(value); }
PAGETIDE_INLINE Vec fill_again(float value) { return fill(value); }

PAGETIDE_INLINE Vec multiply_add(Vec a, Vec b, Vec c) {
  return Vec::each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
}

// Lanes within `range` from v, the others from `outside`.
PAGETIDE_INLINE Vec select(Range range, Vec v, Vec outside) {
  return Vec::each([&](int i) { return i >= range.begin && i < range.end ? v.lane[i] : outside.lane[i]; });
}

PAGETIDE_INLINE Vec min(Vec a, Vec b) {
  return Vec::each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}

// Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the significand.
constexpr float kRounder = 12582912.0f;

PAGETIDE_INLINE Vec round(Vec v) {
  return Vec::each([&](int i) { return (v.lane[i] + kRounder) - kRounder; });
}

// v * 2^n for whole n in [-126, 126].
PAGETIDE_INLINE Vec scale_by_power(Vec v, Vec n) {
  return Vec::each([&](int i) {
    const uint32_t exponent = bits_of(n.lane[i] + kRounder) + 127;
    return v.lane[i] * float_of(exponent << 23);
  });
}

PAGETIDE_INLINE float reduce_max(Vec v) {
  float out = v.lane[0];
  for (int i = 1; i < kLanes; ++i) out = v.lane[i] > out ? v.lane[i] : out;
  return out;
}

PAGETIDE_INLINE float reduce_sum(Vec v) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v.lane[i] += v.lane[i + width];
  }
  return v.lane[0];
}

PAGETIDE_INLINE void transpose(Vec (&rows)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < i; ++j) {
      const float kept = rows[i].lane[j];
      rows[i].lane[j] = rows[j].lane[i];
      rows[j].lane[i] = kept;
    }
  }
}

PAGETIDE_INLINE Vec accumulate(Vec a, Vec b, Vec sum) { return multiply_add(a, b, sum); }

}  // namespace pagetide::PAGETIDE_ISA

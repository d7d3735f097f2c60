// Sixteen float lanes in two AVX2 registers.
#pragma once

#include <immintrin.h>

#include "elements.h"

namespace pagetide::PAGETIDE_ISA {

// Sums that stay in registers beside what they add up, and the most rows and vectors of them.
constexpr int kMaxSums = 6;
constexpr int kMaxRows = 6;
constexpr int kMaxColumns = 4;
// Beside those sums, for all vectors at once.
constexpr bool kHasRegisters = false;

struct Vec {
  __m256 low;
  __m256 high;
};

PAGETIDE_INLINE Vec kept(Vec v) { return v; }

PAGETIDE_INLINE Vec fill(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }

// For what is used at once: gcc would load some earlier, and put sums into memory for them.
PAGETIDE_INLINE Vec fill_now(float value) {
  __m256 lanes = _mm256_set1_ps(value);
  asm volatile("" : "+x"(lanes));
  return {lanes, lanes};
}

// For what is used at once and again later: gcc would keep it. Where it is needed once this is slower, for gcc
// has to compute its address.
PAGETIDE_INLINE Vec fill_again(const float& value) {
  __m256 lanes;
  asm volatile("vbroadcastss %1, %0" : "=x"(lanes) : "m"(value));
  return {lanes, lanes};
}

PAGETIDE_INLINE Vec load(const float* in) { return {_mm256_loadu_ps(in), _mm256_loadu_ps(in + 8)}; }

PAGETIDE_INLINE __m256i load_zero_extended(const bfloat16* in) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
}

PAGETIDE_INLINE __m256 widen(const bfloat16* in) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(load_zero_extended(in), 16));
}

PAGETIDE_INLINE Vec load(const bfloat16* in) { return {widen(in), widen(in + 8)}; }

PAGETIDE_INLINE __m256 widen(const int8_t* in) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in))));
}

PAGETIDE_INLINE Vec load(const int8_t* in) { return {widen(in), widen(in + 8)}; }

alignas(32) constexpr uint32_t kUpperHalves[8] = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                                                   0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};

// The first (0) or second (1) bf16 of each of sixteen pairs.
template <int kHalf>
PAGETIDE_INLINE __m256 widen_half(const void* pairs) {
  __m256i bits = _mm256_loadu_si256(static_cast<const __m256i*>(pairs));
  if constexpr (kHalf == 0) return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
  asm("vpand %1, %0, %0" : "+x"(bits) : "m"(kUpperHalves));
  return _mm256_castsi256_ps(bits);
}

template <int kHalf>
PAGETIDE_INLINE Vec load_halves(const void* pairs) {
  return {widen_half<kHalf>(pairs), widen_half<kHalf>(static_cast<const char*>(pairs) + 32)};
}

// Eight or sixteen words of 32 bits as they are, with zeros behind them.
PAGETIDE_INLINE Vec load_bits(const void* in, int count) {
  const auto* words = static_cast<const float*>(in);
  return {_mm256_loadu_ps(words), count > 8 ? _mm256_loadu_ps(words + 8) : _mm256_setzero_ps()};
}

PAGETIDE_INLINE __m256 paired_half(const bfloat16* first, const bfloat16* second, int at) {
  const __m256i low = first != nullptr ? load_zero_extended(first + at) : _mm256_setzero_si256();
  const __m256i high = second != nullptr ? load_zero_extended(second + at) : _mm256_setzero_si256();
  return _mm256_castsi256_ps(_mm256_or_si256(low, _mm256_slli_epi32(high, 16)));
}

// Pairs of two rows' elements; null: a row of zeros.
PAGETIDE_INLINE Vec paired(const bfloat16* first, const bfloat16* second) {
  return {paired_half(first, second, 0), paired_half(first, second, 8)};
}

PAGETIDE_INLINE void store(Vec v, float* out) {
  _mm256_storeu_ps(out, v.low);
  _mm256_storeu_ps(out + 8, v.high);
}

// To nearest even; NaN stays NaN.
PAGETIDE_INLINE void store_narrowed(__m256 v, bfloat16* out) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 is_nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  const __m256i kept = _mm256_blendv_epi8(_mm256_add_epi32(bits, bias), quiet, _mm256_castps_si256(is_nan));
  const __m256i narrow = _mm256_srli_epi32(kept, 16);
  const __m128i packed =
      _mm_packus_epi32(_mm256_castsi256_si128(narrow), _mm256_extracti128_si256(narrow, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), packed);
}

PAGETIDE_INLINE void store(Vec v, bfloat16* out) {
  store_narrowed(v.low, out);
  store_narrowed(v.high, out + 8);
}

PAGETIDE_INLINE Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}

PAGETIDE_INLINE Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}

PAGETIDE_INLINE Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}

PAGETIDE_INLINE Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}

PAGETIDE_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }

PAGETIDE_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }

PAGETIDE_INLINE Vec multiply_add(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

// Where the sum is: gcc would move sums from register to register, and through memory.
PAGETIDE_INLINE __m256 accumulate(__m256 a, __m256 b, __m256 sum) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  return sum;
}

PAGETIDE_INLINE Vec accumulate(Vec a, Vec b, Vec sum) {
  return {accumulate(a.low, b.low, sum.low), accumulate(a.high, b.high, sum.high)};
}

PAGETIDE_INLINE __m256 lanes_within(Range range, int first_lane) {
  const __m256i lane =
      _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first_lane));
  const __m256i before = _mm256_cmpgt_epi32(_mm256_set1_epi32(range.begin), lane);
  const __m256i below_end = _mm256_cmpgt_epi32(_mm256_set1_epi32(range.end), lane);
  return _mm256_castsi256_ps(_mm256_andnot_si256(before, below_end));
}

// Lanes within `range` from v, the others from `outside`.
PAGETIDE_INLINE Vec select(Range range, Vec v, Vec outside) {
  return {_mm256_blendv_ps(outside.low, v.low, lanes_within(range, 0)),
          _mm256_blendv_ps(outside.high, v.high, lanes_within(range, 8))};
}

PAGETIDE_INLINE Vec round(Vec v) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(v.low, kNearest), _mm256_round_ps(v.high, kNearest)};
}

PAGETIDE_INLINE __m256 power_of_two(__m256 n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}

// v * 2^n for whole n in [-126, 126].
PAGETIDE_INLINE Vec scale_by_power(Vec v, Vec n) {
  return {_mm256_mul_ps(v.low, power_of_two(n.low)), _mm256_mul_ps(v.high, power_of_two(n.high))};
}

PAGETIDE_INLINE float reduce_max(Vec v) {
  const __m256 eight = _mm256_max_ps(v.low, v.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

PAGETIDE_INLINE float reduce_sum(Vec v) {
  const __m256 eight = _mm256_add_ps(v.low, v.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// Rounds of interleaving: pairs of lanes, then pairs of pairs, then halves of registers.
PAGETIDE_INLINE void transpose_8x8(__m256 (&row)[8]) {
  __m256 pair[8];
  for (int i = 0; i < 4; ++i) {
    pair[2 * i] = _mm256_unpacklo_ps(row[2 * i], row[2 * i + 1]);
    pair[2 * i + 1] = _mm256_unpackhi_ps(row[2 * i], row[2 * i + 1]);
  }
  __m256 quad[8];
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const __m256d first = _mm256_castps_pd(pair[4 * i + j]);
      const __m256d second = _mm256_castps_pd(pair[4 * i + j + 2]);
      quad[4 * i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(first, second));
      quad[4 * i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(first, second));
    }
  }
  for (int i = 0; i < 4; ++i) {
    row[i] = _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20);
    row[i + 4] = _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31);
  }
}

PAGETIDE_INLINE void transpose(Vec (&rows)[kLanes]) {
  __m256 corner[4][8];
  for (int i = 0; i < 8; ++i) {
    corner[0][i] = rows[i].low;
    corner[1][i] = rows[i].high;
    corner[2][i] = rows[i + 8].low;
    corner[3][i] = rows[i + 8].high;
  }
  for (auto& square : corner) transpose_8x8(square);
  for (int i = 0; i < 8; ++i) {
    rows[i] = {corner[0][i], corner[2][i]};
    rows[i + 8] = {corner[1][i], corner[3][i]};
  }
}

}  // namespace pagetide::PAGETIDE_ISA

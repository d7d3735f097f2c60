// Sixteen float lanes in one AVX-512 register, and the bf16 dot product.
#pragma once

#include <immintrin.h>

#include "elements.h"

namespace pagetide::PAGETIDE_ISA {

// Sums that stay in registers beside what they add up, and the most rows and vectors of them.
constexpr int kMaxSums = 24;
constexpr int kMaxRows = 12;
constexpr int kMaxColumns = 4;
// Beside those sums, for all vectors at once.
constexpr bool kHasRegisters = true;

struct Vec {
  __m512 lanes;
};

// For what is loaded once and used often: gcc would load it again at each use, and loads are what
// limits `multiply`.
template <class Register>
PAGETIDE_INLINE Register kept(Register lanes) {
  asm("" : "+v"(lanes));
  return lanes;
}

PAGETIDE_INLINE Vec kept(Vec v) { return {kept(v.lanes)}; }

PAGETIDE_INLINE Vec fill(float value) { return {_mm512_set1_ps(value)}; }

PAGETIDE_INLINE Vec load(const float* in) { return {_mm512_loadu_ps(in)}; }

PAGETIDE_INLINE __m512i load_zero_extended(const bfloat16* in) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in)));
}

PAGETIDE_INLINE Vec load(const bfloat16* in) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(load_zero_extended(in), 16))};
}

PAGETIDE_INLINE Vec load(const int8_t* in) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))};
}

// Up to sixteen words of 32 bits as they are, with zeros behind them.
PAGETIDE_INLINE Vec load_bits(const void* in, int count) {
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), in)};
}

// Pairs of two rows' elements; null: a row of zeros.
PAGETIDE_INLINE Vec paired(const bfloat16* first, const bfloat16* second) {
  const __m512i low = first != nullptr ? load_zero_extended(first) : _mm512_setzero_si512();
  const __m512i high = second != nullptr ? load_zero_extended(second) : _mm512_setzero_si512();
  return {_mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)))};
}

PAGETIDE_INLINE void store(Vec v, float* out) { _mm512_storeu_ps(out, v.lanes); }

PAGETIDE_INLINE void store(Vec v, bfloat16* out) {
  const auto narrow = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v.lanes));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), narrow);
}

PAGETIDE_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.lanes, b.lanes)}; }
PAGETIDE_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.lanes, b.lanes)}; }
PAGETIDE_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.lanes, b.lanes)}; }
PAGETIDE_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.lanes, b.lanes)}; }
PAGETIDE_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.lanes, b.lanes)}; }
PAGETIDE_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.lanes, b.lanes)}; }

PAGETIDE_INLINE Vec fill_now(float value) { return fill(value); }
PAGETIDE_INLINE Vec fill_again(float value) { return fill(value); }

PAGETIDE_INLINE Vec multiply_add(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.lanes, b.lanes, c.lanes)}; }

// Lanes within `range` from v, the others from `outside`.
PAGETIDE_INLINE Vec select(Range range, Vec v, Vec outside) {
  const uint32_t below_end = (1u << range.end) - 1;
  const uint32_t before = (1u << range.begin) - 1;
  return {_mm512_mask_mov_ps(outside.lanes, static_cast<__mmask16>(below_end & ~before), v.lanes)};
}

PAGETIDE_INLINE Vec round(Vec v) { return {_mm512_roundscale_ps(v.lanes, _MM_FROUND_TO_NEAREST_INT)}; }

// v * 2^n for whole n.
PAGETIDE_INLINE Vec scale_by_power(Vec v, Vec n) { return {_mm512_scalef_ps(v.lanes, n.lanes)}; }

PAGETIDE_INLINE float reduce_max(Vec v) { return _mm512_reduce_max_ps(v.lanes); }
PAGETIDE_INLINE float reduce_sum(Vec v) { return _mm512_reduce_add_ps(v.lanes); }

template <int kHalves>
PAGETIDE_INLINE __m512 quarters(__m512 a, __m512 b) {
  return _mm512_shuffle_f32x4(a, b, kHalves);
}

// Rounds of interleaving: pairs of lanes, pairs of pairs, then quarters of registers, twice.
PAGETIDE_INLINE void transpose(Vec (&rows)[kLanes]) {
  __m512 pair[16];
  for (int i = 0; i < 8; ++i) {
    pair[2 * i] = _mm512_unpacklo_ps(rows[2 * i].lanes, rows[2 * i + 1].lanes);
    pair[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i].lanes, rows[2 * i + 1].lanes);
  }
  // quad[4 * i + j] holds, in quarter q, column 4 * q + j of rows 4 * i .. 4 * i + 3.
  __m512 quad[16];
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 2; ++j) {
      const __m512d first = _mm512_castps_pd(pair[4 * i + j]);
      const __m512d second = _mm512_castps_pd(pair[4 * i + j + 2]);
      quad[4 * i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(first, second));
      quad[4 * i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(first, second));
    }
  }
  for (int j = 0; j < 4; ++j) {
    const __m512 upper_even = quarters<0x88>(quad[j], quad[4 + j]);
    const __m512 upper_odd = quarters<0xdd>(quad[j], quad[4 + j]);
    const __m512 lower_even = quarters<0x88>(quad[8 + j], quad[12 + j]);
    const __m512 lower_odd = quarters<0xdd>(quad[8 + j], quad[12 + j]);
    rows[j] = {quarters<0x88>(upper_even, lower_even)};
    rows[4 + j] = {quarters<0x88>(upper_odd, lower_odd)};
    rows[8 + j] = {quarters<0xdd>(upper_even, lower_even)};
    rows[12 + j] = {quarters<0xdd>(upper_odd, lower_odd)};
  }
}

PAGETIDE_INLINE Vec accumulate(Vec a, Vec b, Vec sum) { return multiply_add(a, b, sum); }

}  // namespace pagetide::PAGETIDE_ISA

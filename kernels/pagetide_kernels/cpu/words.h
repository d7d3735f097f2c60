// Words, what `multiply` contracts: kPerWord neighbours along the contracted dimension, one float or a pair
// of bf16.
#pragma once

#include <cstring>

#include "vector.h"

namespace pagetide::PAGETIDE_ISA {

PAGETIDE_INLINE Vec load_words(const float* words) { return kept(load(words)); }
PAGETIDE_INLINE Vec fill_words(float word) { return fill(word); }
PAGETIDE_INLINE Vec multiply_accumulate(Vec a, Vec b, Vec sum) { return multiply_add(a, b, sum); }

struct BfloatPair {
  bfloat16 first;
  bfloat16 second;
};

#if defined(__AVX512BF16__)

struct PairVec {
  __m512i lanes;
};

PAGETIDE_INLINE PairVec load_words(const BfloatPair* words) { return {kept(_mm512_loadu_si512(words))}; }

PAGETIDE_INLINE PairVec fill_words(BfloatPair word) {
  int32_t bits;
  std::memcpy(&bits, &word, sizeof bits);
  return {_mm512_set1_epi32(bits)};
}

PAGETIDE_INLINE Vec multiply_accumulate(PairVec a, PairVec b, Vec sum) {
  const auto left = reinterpret_cast<__m512bh>(a.lanes);
  return {_mm512_dpbf16_ps(sum.lanes, left, reinterpret_cast<__m512bh>(b.lanes))};
}

#else

struct PairVec {
  Vec first;
  Vec second;
};

PAGETIDE_INLINE float widened(bfloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

PAGETIDE_INLINE PairVec load_words(const BfloatPair* words) {
  return {load_halves<0>(words), load_halves<1>(words)};
}

PAGETIDE_INLINE PairVec fill_words(BfloatPair word) {
  return {fill(widened(word.first)), fill(widened(word.second))};
}

PAGETIDE_INLINE Vec multiply_accumulate(PairVec a, PairVec b, Vec sum) {
  return multiply_add(a.second, b.second, multiply_add(a.first, b.first, sum));
}

#endif

}  // namespace pagetide::PAGETIDE_ISA

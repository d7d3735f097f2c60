// Words, what `multiply` contracts: kPerWord neighbours along the contracted dimension, one float or a pair
// of bf16.
#pragma once

#include <cstring>

#include "vector.h"

namespace pagetide::PAGETIDE_ISA {

// A word's parts are multiplied one after the other.
template <class Word>
constexpr int kParts = 1;

// What meets such words in a row of `multiply`.
template <class Word>
struct RowOf {
  using type = Word;
};

PAGETIDE_INLINE Vec load_words(const float* words, int) { return kept(load(words)); }
PAGETIDE_INLINE float* elements_of(float* row) { return row; }

// kAgain: there are more columns that it will be loaded for.
template <bool kAgain = false>
PAGETIDE_INLINE Vec fill_words(const float& word, int) {
  return kAgain ? fill_again(word) : fill_now(word);
}

PAGETIDE_INLINE Vec multiply_accumulate(Vec a, Vec b, Vec sum) { return accumulate(a, b, sum); }

struct BfloatPair {
  bfloat16 first;
  bfloat16 second;
};

#if defined(__AVX512BF16__)

struct PairVec {
  __m512i lanes;
};

PAGETIDE_INLINE PairVec load_words(const BfloatPair* words, int) { return {kept(_mm512_loadu_si512(words))}; }

PAGETIDE_INLINE bfloat16* elements_of(BfloatPair* row) { return &row->first; }

template <bool kAgain = false>
PAGETIDE_INLINE PairVec fill_words(BfloatPair word, int) {
  int32_t bits;
  std::memcpy(&bits, &word, sizeof bits);
  return {_mm512_set1_epi32(bits)};
}

PAGETIDE_INLINE Vec multiply_accumulate(PairVec a, PairVec b, Vec sum) {
  const auto left = reinterpret_cast<__m512bh>(a.lanes);
  return {_mm512_dpbf16_ps(sum.lanes, left, reinterpret_cast<__m512bh>(b.lanes))};
}

#else

template <>
constexpr int kParts<BfloatPair> = 2;

// Widened before: with both at once in registers, there would be room for fewer sums.
struct FloatPair {
  float first;
  float second;
};

template <>
struct RowOf<BfloatPair> {
  using type = FloatPair;
};

PAGETIDE_INLINE float widened(bfloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

// Each part is loaded by itself: what was loaded for one would take registers from the sums until the other.
PAGETIDE_INLINE Vec load_words(const BfloatPair* words, int part) {
  asm volatile("" : "+r"(words));
  return part == 0 ? load_halves<0>(words) : load_halves<1>(words);
}

PAGETIDE_INLINE float* elements_of(FloatPair* row) { return &row->first; }

template <bool kAgain = false>
PAGETIDE_INLINE Vec fill_words(const FloatPair& word, int part) {
  return fill_words<kAgain>(part == 0 ? word.first : word.second, 0);
}

#endif

template <class Word>
using RowWord = typename RowOf<Word>::type;

}  // namespace pagetide::PAGETIDE_ISA

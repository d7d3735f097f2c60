// `Vec`, sixteen float lanes, in the best instructions this translation unit may use.
#pragma once

#include "elements.h"

#if defined(__AVX512BF16__)
#include "vector_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "vector_avx2.h"
#else
#include "vector_plain.h"
#endif

namespace pagetide::PAGETIDE_ISA {

// From x^5 down to 1: nearest to 2^x on [-0.5, 0.5] of those that are exact at 0 (9e-8, relative).
constexpr float kExp2[] = {1.3264718e-3f, 9.6715132e-3f, 5.5507338e-2f, 2.4022242e-1f, 6.9314698e-1f, 1.0f};

// The same with an error of 1e-4: a twentieth of what rounding to bf16 adds.
constexpr float kCoarseExp2[] = {5.5008933e-2f, 2.4221097e-1f, 6.9328290e-1f, 1.0f};

template <int kCount>
PAGETIDE_INLINE Vec exp2_with(const float (&coefficients)[kCount], Vec v) {
  const Vec whole = round(v);
  const Vec part = v - whole;
  Vec sum = fill(coefficients[0]);
  for (int i = 1; i < kCount; ++i) sum = multiply_add(sum, part, fill(coefficients[i]));
  return scale_by_power(sum, whole);
}

// 2^v with a relative error of 2e-7, for v in [-126, 126]; beyond that the end of the range. NaN stays.
PAGETIDE_INLINE Vec exp2(Vec v) {
  return exp2_with(kExp2, min(fill(126.0f), max(fill(-126.0f), v)));
}

// The same for v that are hardly above 0, as exact as probabilities that are stored as Element need it.
template <class Element>
PAGETIDE_INLINE Vec exp2_below(Vec v) {
  v = max(fill(-126.0f), v);
  if constexpr (sizeof(Element) == 2) return exp2_with(kCoarseExp2, v);
  return exp2_with(kExp2, v);
}

PAGETIDE_INLINE float exp2(float x) {
  float lanes[kLanes];
  store(exp2(fill(x)), lanes);
  return lanes[0];
}

constexpr float kLog2E = 1.44269504f;

PAGETIDE_INLINE Vec tanh(Vec v) {
  const Vec two = fill(2.0f);
  return fill(1.0f) - two / (exp2(v * fill(2.0f * kLog2E)) + fill(1.0f));
}

// What is left of v when it is stored as elements.
template <class Element>
PAGETIDE_INLINE Vec rounded(Vec v) {
  Element lanes[kLanes];
  store(v, lanes);
  return load(lanes);
}

}  // namespace pagetide::PAGETIDE_ISA

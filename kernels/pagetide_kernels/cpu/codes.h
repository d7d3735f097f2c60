// Weights as small integers, `codes`, in groups of kGroupInputs inputs with a float16 scale, and maybe a
// minimum, for each output:
//
//     weight[n][k] = scale[n][k / 32] * code[n][k] + minimum[n][k / 32]
//
// Sixteen outputs are a column. A column's group lies together, and each 64 bytes of it hold all sixteen
// outputs' codes of neighbouring inputs, 32 bits an output: of 8 bits [32 / 4][16][4]; of 4 bits
// [32 / 8][16][2][4], where input 8 t + 2 j + h is nibble j of the 16 bits [t][n][h].
//
// Whole numbers of 8 bits are exact in bf16, so codes are multiplied as bf16 weights are. A group's scale and
// minimum come in once, in float32: the result is as exact as with dequantised float32 weights.
#pragma once

#include <cstring>

#include "linear.h"
#include "words.h"

namespace pagetide::PAGETIDE_ISA {

constexpr int kLoadBytes = 64;

// With minimums codes start at 0, without them they lie around it.
template <int kWidth, bool kMinimums>
struct CodeFormat {
  static constexpr int kBits = kWidth;
  static constexpr bool kHasMinimums = kMinimums;
  static constexpr int kZero = kBits == 4 && !kMinimums ? 8 : 0;
  static constexpr int kLoads = kGroupInputs * kLanes * kBits / 8 / kLoadBytes;  // of a column's group
  static constexpr int kBytes = kLoads * kLoadBytes;
  static constexpr int kInputs = kGroupInputs / kLoads;         // of a load
  static constexpr int kScales = (kMinimums ? 2 : 1) * kLanes;  // scales, then minimums

  // The code of a load's input `k` in one output's 32 bits.
  static PAGETIDE_INLINE int32_t value(uint32_t bits, int k) {
    if constexpr (kBits == 8) {
      return static_cast<int32_t>(bits << (24 - 8 * k)) >> 24;
    } else {
      return static_cast<int32_t>(bits >> (16 * (k % 2) + 4 * (k / 2)) & 15) - kZero;
    }
  }
};

#if defined(__AVX512F__)

PAGETIDE_INLINE Vec load_float16(const uint16_t* in) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in)))};
}

#else

// Moved to where a float32 has them, the bits are short of a factor of 2^112, subnormal numbers' too.
PAGETIDE_INLINE Vec load_float16(const uint16_t* in) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t bits = (in[i] & 0x8000u) << 16 | (in[i] & 0x7fffu) << 13;
    std::memcpy(&lanes[i], &bits, sizeof bits);
  }
  return load(lanes) * fill(0x1p112f);
}

#endif

// Turns a column's groups into the words that `multiply_accumulate` takes.
template <class Format, class Word>
struct Expansion;

template <class Format>
struct Expansion<Format, float> {
  static constexpr int kDepth = kGroupInputs;

  static void unpack(const uint8_t* group, float* out) {
    for (int i = 0; i < Format::kLoads; ++i) {
      uint32_t bits[kLanes];
      std::memcpy(bits, group + i * kLoadBytes, sizeof bits);
      for (int k = 0; k < Format::kInputs; ++k, out += kLanes) {
        for (int n = 0; n < kLanes; ++n) out[n] = static_cast<float>(Format::value(bits[n], k));
      }
    }
  }
};

#if defined(__AVX512BF16__)

template <int kZero>
struct BfloatTable {
  alignas(64) uint16_t bits[32];

  // The fifth bit of an index is a neighbour's.
  constexpr BfloatTable() : bits() {
    constexpr uint16_t kWholes[] = {0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
                                    0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
    for (int i = 0; i < 32; ++i) {
      const int value = i % 16 - kZero;
      bits[i] = value < 0 ? static_cast<uint16_t>(kWholes[-value] | 0x8000) : kWholes[value];
    }
  }
};

using Codes = __m512i;

PAGETIDE_INLINE Codes load_codes(const uint8_t* in) { return kept(_mm512_loadu_si512(in)); }

template <class Format, bool kIsWide = Format::kBits == 8>
struct PairExpander;

template <class Format>
struct PairExpander<Format, false> {
  static constexpr BfloatTable<Format::kZero> kTable{};

  __m512i table = _mm512_load_si512(kTable.bits);

  PAGETIDE_INLINE PairVec word(__m512i codes, int j) const {
    return {_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, static_cast<unsigned>(4 * j)), table)};
  }
};

// The bytes of bf16, low and high, of whole numbers below 128.
struct BfloatBytes {
  alignas(64) uint8_t low[128];
  alignas(64) uint8_t high[128];

  constexpr BfloatBytes() : low(), high() {
    for (int i = 1, power = 0; i < 128; ++i) {
      if (i == 2 << power) ++power;
      const int bits = ((127 + power) << 7) + ((i - (1 << power)) << (7 - power));
      low[i] = static_cast<uint8_t>(bits & 255);
      high[i] = static_cast<uint8_t>(bits >> 8);
    }
  }
};

// The bytes of magnitudes are looked up; codes are -127 to 127.
template <class Format>
struct PairExpander<Format, true> {
  static constexpr BfloatBytes kBytes{};

  PAGETIDE_INLINE PairVec word(__m512i codes, int j) const {
    // Of four outputs that lie together, the first two codes, then the others.
    const __m512i order = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m512i paired = _mm512_shuffle_epi8(codes, order);
    const __m512i magnitudes = _mm512_abs_epi8(paired);
    const __m512i low = look_up(kBytes.low, magnitudes);
    constexpr int kOrAnd = 0xf8;  // a | (b & c)
    const __m512i high = _mm512_ternarylogic_epi32(look_up(kBytes.high, magnitudes), paired,
                                                   _mm512_set1_epi8(-128), kOrAnd);
    return {j == 0 ? _mm512_unpacklo_epi8(low, high) : _mm512_unpackhi_epi8(low, high)};
  }

 private:
  static PAGETIDE_INLINE __m512i look_up(const uint8_t (&table)[128], __m512i indices) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), indices, _mm512_load_si512(table + 64));
  }
};

template <class Format>
struct Expansion<Format, BfloatPair> {
  static constexpr int kDepth = kGroupInputs / 2;

  static void unpack(const uint8_t* group, BfloatPair* out) {
    const PairExpander<Format> expander;
    for (int i = 0; i < Format::kLoads; ++i) {
      const __m512i codes = _mm512_loadu_si512(group + i * kLoadBytes);
      for (int j = 0; j < Format::kInputs / 2; ++j, out += kLanes) {
        _mm512_storeu_si512(out, expander.word(codes, j).lanes);
      }
    }
  }
};

template <class Format>
struct StreamExpander : PairExpander<Format> {
  static constexpr int kWords = Format::kInputs / 2;  // of a load
};

#elif defined(__AVX2__)

struct Codes {
  __m256i low;
  __m256i high;
};

PAGETIDE_INLINE Codes load_codes(const uint8_t* in) {
  const auto* halves = reinterpret_cast<const __m256i*>(in);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}

// To floats; as Format::value has it.
template <class Format>
struct StreamExpander {
  static constexpr int kWords = Format::kInputs;

  PAGETIDE_INLINE Vec word(Codes codes, int k) const { return {widened(codes.low, k), widened(codes.high, k)}; }

 private:
  static PAGETIDE_INLINE __m256 widened(__m256i bits, int k) {
    if constexpr (Format::kBits == 8) {
      return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(bits, 24 - 8 * k), 24));
    } else {
      const __m256i moved = _mm256_srli_epi32(bits, 16 * (k % 2) + 4 * (k / 2));
      const __m256i code = _mm256_and_si256(moved, _mm256_set1_epi32(15));
      return _mm256_cvtepi32_ps(_mm256_sub_epi32(code, _mm256_set1_epi32(Format::kZero)));
    }
  }
};

#endif

}  // namespace pagetide::PAGETIDE_ISA

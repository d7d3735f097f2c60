// How attention packs its operands into the words that `multiply` contracts. Scores contract over the head
// size, so a key word holds neighbouring elements of one token; outputs contract over tokens, so a value word
// holds one element of neighbouring tokens.
#pragma once

#include <cstring>

#include "codes.h"
#include "lookahead.h"

namespace pagetide::PAGETIDE_ISA {

PAGETIDE_INLINE void store_bits(Vec words, BfloatPair* out) { store(words, reinterpret_cast<float*>(out)); }

// Every element, and every code of an 8-bit cache (kv_codes.h), is widened to a float.
template <class Element, class Cache>
struct Operands {
  using Word = float;
  static constexpr int kPerWord = 1;

  // [16][head_size] -> sixteen columns of [head_size][kTileTokens]
  static void pack_keys(const Cache* block, int head_size, Word* out, Lookahead& ahead) {
    for (int d = 0; d < head_size; d += kLanes) {
      Vec rows[kLanes];
      for (int t = 0; t < kLanes; ++t) rows[t] = load(block + t * head_size + d);
      ahead.fetch_while_packing(kLanes / 2);
      transpose(rows);
      for (int i = 0; i < kLanes; ++i) store(rows[i], out + (d + i) * kTileTokens);
    }
  }

  // [16][head_size] as it is, with zeros for the tokens outside `valid`, whatever stands there.
  static void pack_values(const Cache* block, int head_size, Range valid, Word* out, Lookahead& ahead) {
    for (int t = 0; t < kBlockTokens; ++t) {
      const bool present = t >= valid.begin && t < valid.end;
      const Cache* row = block + t * head_size;
      for (int d = 0; d < head_size; d += kLanes) {
        store(present ? load(row + d) : fill(0.0f), out + t * head_size + d);
      }
      ahead.fetch_while_packing(head_size / (2 * kLanes));
    }
  }
};

template <>
struct Operands<bfloat16, bfloat16> {
  using Word = BfloatPair;
  static constexpr int kPerWord = 2;

  // [16][head_size] -> sixteen columns of [head_size / 2][kTileTokens]
  static void pack_keys(const bfloat16* block, int head_size, Word* out, Lookahead& ahead) {
    const int words = head_size / 2;
    for (int w = 0; w < words; w += kLanes) {
      const int count = words - w < kLanes ? words - w : kLanes;
      Vec rows[kLanes];
      for (int t = 0; t < kLanes; ++t) rows[t] = load_bits(block + t * head_size + 2 * w, count);
      ahead.fetch_while_packing(kLanes / 2);
      transpose(rows);
      for (int i = 0; i < count; ++i) store_bits(rows[i], out + (w + i) * kTileTokens);
    }
  }

  // [16][head_size] -> [8][head_size] of pairs, with zeros for the tokens outside `valid`.
  static void pack_values(const bfloat16* block, int head_size, Range valid, Word* out, Lookahead& ahead) {
    for (int t = 0; t < kBlockTokens; t += 2) {
      const bool first = t >= valid.begin && t < valid.end;
      const bool second = t + 1 >= valid.begin && t + 1 < valid.end;
      const bfloat16* row = block + t * head_size;
      for (int d = 0; d < head_size; d += kLanes) {
        const Vec pairs = paired(first ? row + d : nullptr, second ? row + head_size + d : nullptr);
        store_bits(pairs, out + t / 2 * head_size + d);
      }
      ahead.fetch_while_packing(head_size / (2 * kLanes));
    }
  }
};

#if defined(__AVX512BF16__)

template <>
struct Operands<bfloat16, int8_t> : Operands<bfloat16, bfloat16> {
  using Codes = PairExpander<CodeFormat<8, false>>;

  static void pack_keys(const int8_t* block, int head_size, Word* out, Lookahead& ahead) {
    const Codes expander;
    const int loads = head_size / 4;  // of four neighbouring codes a token
    for (int w = 0; w < loads; w += kLanes) {
      const int count = loads - w < kLanes ? loads - w : kLanes;
      Vec rows[kLanes];
      for (int t = 0; t < kLanes; ++t) rows[t] = load_bits(block + t * head_size + 4 * w, count);
      ahead.fetch_while_packing(kLanes / 2);
      transpose(rows);
      for (int i = 0; i < count; ++i) {
        const __m512i codes = _mm512_castps_si512(rows[i].lanes);
        Word* pairs = out + 2 * (w + i) * kTileTokens;
        _mm512_storeu_si512(pairs, expander.word(codes, 0).lanes);
        _mm512_storeu_si512(pairs + kTileTokens, expander.word(codes, 1).lanes);
      }
    }
  }

  static void pack_values(const int8_t* block, int head_size, Range valid, Word* out, Lookahead& ahead) {
    for (int t = 0; t < kBlockTokens; t += 2) {
      const bool first = t >= valid.begin && t < valid.end;
      const bool second = t + 1 >= valid.begin && t + 1 < valid.end;
      const int8_t* row = block + t * head_size;
      for (int d = 0; d < head_size; d += kLanes) {
        const Vec low = first ? load(row + d) : fill(0.0f);
        const Vec high = second ? load(row + head_size + d) : fill(0.0f);
        _mm512_storeu_si512(out + t / 2 * head_size + d, paired_codes(low, high));
      }
      ahead.fetch_while_packing(head_size / (2 * kLanes));
    }
  }

 private:
  // Of whole numbers that bf16 can hold.
  static PAGETIDE_INLINE __m512i paired_codes(Vec low, Vec high) {
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(low.lanes), 16),
                           _mm512_castps_si512(high.lanes));
  }
};

#endif

}  // namespace pagetide::PAGETIDE_ISA

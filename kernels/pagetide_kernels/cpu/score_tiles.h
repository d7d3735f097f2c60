// Scores of few queries with AMX: sixteen tokens' keys are a tile as they lie in the cache, so they are not
// packed; the queries are, once, as what they meet.
#pragma once

#include "tiles.h"

namespace pagetide::PAGETIDE_ISA {

// At most kTileRows queries of head_size / 2 words, which are whole tiles.
class ScoreTiles {
 public:
  static constexpr int kBlocks = kTileTokens / kBlockTokens;

  // `queries` [rows][words] to [words][16].
  static void pack(const BfloatPair* queries, int rows, int words, BfloatPair* packed) {
    for (int w = 0; w < words; w += kTileWords) {
      Vec part[kLanes] = {};
      for (int r = 0; r < rows; ++r) part[r] = {_mm512_loadu_ps(queries + int64_t{r} * words + w)};
      transpose(part);
      for (int i = 0; i < kTileWords; ++i) _mm512_storeu_ps(packed + (w + i) * kLanes, part[i].lanes);
    }
  }

  ScoreTiles(int rows, int words, const BfloatPair* packed) : rows_(rows), words_(words), packed_(packed) {}

  // The dot products with blocks of keys [16][head_size], where there are such, to `dots` [rows][kTileTokens].
  void score(const bfloat16* const (&blocks)[kBlocks], float* dots, Lookahead& ahead) const {
    alignas(64) float sums[kBlocks][kBlockTokens][kLanes];
    repeat<kBlocks>([](auto i) PAGETIDE_INLINED { zero_tile<i>(); });
    for (int w = 0; w < words_; w += kTileWords) {
      load_tile<kQueries>(packed_ + w * kLanes, sizeof(float) * kLanes);
      repeat<kBlocks>([&](auto i) PAGETIDE_INLINED {
        if (blocks[i] == nullptr) return;
        load_tile<kKeys + i % 2>(blocks[i] + 2 * w, words_ * int64_t{sizeof(BfloatPair)});
        accumulate_tiles<i, kKeys + i % 2, kQueries>();
        ahead.fetch(kLinesPerTile);
      });
    }
    repeat<kBlocks>([&](auto i) PAGETIDE_INLINED { store_tile<i>(sums[i], sizeof sums[i][0]); });
    for (int i = 0; i < kBlocks; ++i) turn(sums[i], dots + i * kBlockTokens);
  }

 private:
  static constexpr int kKeys = 4, kQueries = 6;
  static constexpr int kLinesPerTile = 16;

  // [tokens][queries] to [queries][tokens], four queries at a time.
  void turn(const float (&sums)[kBlockTokens][kLanes], float* dots) const {
    for (int r = 0; r < rows_; r += 4) {
      const __m512 a = every_fourth(sums, 0, r), b = every_fourth(sums, 1, r);
      const __m512 c = every_fourth(sums, 2, r), d = every_fourth(sums, 3, r);
      const __m512d first[] = {_mm512_castps_pd(_mm512_unpacklo_ps(a, b)),
                               _mm512_castps_pd(_mm512_unpackhi_ps(a, b))};
      const __m512d second[] = {_mm512_castps_pd(_mm512_unpacklo_ps(c, d)),
                                _mm512_castps_pd(_mm512_unpackhi_ps(c, d))};
      float* out = dots + r * kTileTokens;
      for (int i = 0; i < 2; ++i, out += 2 * kTileTokens) {
        _mm512_storeu_ps(out, _mm512_castpd_ps(_mm512_unpacklo_pd(first[i], second[i])));
        _mm512_storeu_ps(out + kTileTokens, _mm512_castpd_ps(_mm512_unpackhi_pd(first[i], second[i])));
      }
    }
  }

  // Of tokens `first`, `first` + 4, ..., the sums of queries `r` to `r` + 3.
  static PAGETIDE_INLINE __m512 every_fourth(const float (&sums)[kBlockTokens][kLanes], int first, int r) {
    __m512 all = _mm512_castps128_ps512(_mm_loadu_ps(sums[first] + r));
    all = _mm512_insertf32x4(all, _mm_loadu_ps(sums[first + 4] + r), 1);
    all = _mm512_insertf32x4(all, _mm_loadu_ps(sums[first + 8] + r), 2);
    return _mm512_insertf32x4(all, _mm_loadu_ps(sums[first + 12] + r), 3);
  }

  int rows_;
  int words_;  // of a query
  const BfloatPair* packed_;
};

}  // namespace pagetide::PAGETIDE_ISA

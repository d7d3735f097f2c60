// c = c + a w, where w are codes in groups (codes.h): `multiply` with a scale for each group of the depth.
//
// An element of c is one chain: each group's products in order, from zero, then the group's sum by its scale
// and the inputs' sum by its minimum. How many rows and columns are worked on together, and whether the codes
// come from a stream or were unpacked before, changes the speed and never a bit.
#pragma once

#include "codes.h"
#include "multiply.h"

namespace pagetide::PAGETIDE_ISA {

#if defined(__AVX512BF16__)
// Sums of as many registers as there are, and as many again for the groups'.
constexpr int kGroupRows = 3;
constexpr int kGroupColumns = kMaxColumns;
#else
// The groups' are in memory.
constexpr int kGroupRows = kMaxRows;
constexpr int kGroupColumns = 1;
#endif

template <class Word>
struct GroupProduct {
  Matrix<const RowWord<Word>> a;  // rows x depth
  Matrix<const float> a_sums;     // rows x groups, where there are minimums
  Matrix<float> c;                // rows x columns * kLanes
  int num_groups;
};

// A few groups of a tile, unpacked before.
template <class Format, class Word>
struct UnpackedGroups {
  using Words = Expansion<Format, Word>;
  static constexpr int kGroups = 4;
  static constexpr int kDepth = Words::kDepth;
  static constexpr int kLoads = kDepth;
  static constexpr int kWordsPerLoad = 1;

  alignas(64) Word words[kGroupColumns][kGroups][kDepth * kLanes];
  alignas(64) float scales[kGroupColumns][kGroups][Format::kScales];

  void unpack(const uint8_t* codes, const uint16_t* halves, int column, int group) {
    Words::unpack(codes, words[column][group]);
    float* to = scales[column][group];
    store(load_float16(halves), to);
    if constexpr (Format::kHasMinimums) store(load_float16(halves + kLanes), to + kLanes);
  }

  PAGETIDE_INLINE auto read(int column, int group, int i) const {
    return load_words(words[column][group] + i * kLanes, 0);
  }

  template <class Loaded>
  PAGETIDE_INLINE Loaded word(Loaded loaded, int) const {
    return loaded;
  }

  PAGETIDE_INLINE Vec scale(int column, int group) const { return load(scales[column][group]); }
  PAGETIDE_INLINE Vec minimum(int column, int group) const { return load(scales[column][group] + kLanes); }
};

template <class Format>
struct StreamedGroups;

#if defined(__AVX2__)

// Codes as they lie in memory. What comes `ahead` bytes later is asked for on the way.
template <class Format>
struct StreamedGroups {
  static constexpr int kLoads = Format::kLoads;
  static constexpr int kWordsPerLoad = StreamExpander<Format>::kWords;

  const uint8_t* codes;    // [columns][groups][Format::kBytes]
  const uint16_t* halves;  // [columns][groups][Format::kScales]
  int num_groups;
  int64_t ahead;
  StreamExpander<Format> expander{};

  PAGETIDE_INLINE int64_t place(int column, int group) const { return int64_t{column} * num_groups + group; }

  PAGETIDE_INLINE Codes read(int column, int group, int i) const {
    const uint8_t* from = codes + place(column, group) * Format::kBytes + i * kLoadBytes;
    __builtin_prefetch(from + ahead, 0, 2);
    return load_codes(from);
  }

  PAGETIDE_INLINE auto word(Codes loaded, int j) const { return expander.word(loaded, j); }

  PAGETIDE_INLINE Vec scale(int column, int group) const {
    return load_float16(halves + place(column, group) * Format::kScales);
  }

  PAGETIDE_INLINE Vec minimum(int column, int group) const {
    return load_float16(halves + place(column, group) * Format::kScales + kLanes);
  }
};

#endif

template <int kRows, int kColumns, class Format, class Groups, class Word>
void multiply_groups_block(const Groups& groups, const GroupProduct<Word>& p) {
  constexpr int kDepth = Groups::kLoads * Groups::kWordsPerLoad;
  Vec totals[kRows][kColumns];
  PAGETIDE_UNROLL for (int r = 0; r < kRows; ++r) {
    PAGETIDE_UNROLL for (int c = 0; c < kColumns; ++c) totals[r][c] = load(p.c.row(r) + c * kLanes);
  }
  for (int group = 0; group < p.num_groups; ++group) {
    Vec sums[kRows][kColumns];
    PAGETIDE_UNROLL for (int r = 0; r < kRows; ++r) {
      PAGETIDE_UNROLL for (int c = 0; c < kColumns; ++c) sums[r][c] = fill(0.0f);
    }
    for (int i = 0; i < Groups::kLoads; ++i) {
      decltype(groups.read(0, 0, 0)) loaded[kColumns];
      PAGETIDE_UNROLL for (int c = 0; c < kColumns; ++c) loaded[c] = groups.read(c, group, i);
      PAGETIDE_UNROLL for (int j = 0; j < Groups::kWordsPerLoad; ++j) {
        decltype(groups.word(loaded[0], j)) b[kColumns];
        PAGETIDE_UNROLL for (int c = 0; c < kColumns; ++c) b[c] = groups.word(loaded[c], j);
        PAGETIDE_UNROLL for (int r = 0; r < kRows; ++r) {
          const auto a = fill_words(p.a.row(r)[group * kDepth + i * Groups::kWordsPerLoad + j], 0);
          PAGETIDE_UNROLL for (int c = 0; c < kColumns; ++c) sums[r][c] =
              multiply_accumulate(a, b[c], sums[r][c]);
        }
      }
    }
    PAGETIDE_UNROLL for (int c = 0; c < kColumns; ++c) {
      const Vec scale = kept(groups.scale(c, group));
      PAGETIDE_UNROLL for (int r = 0; r < kRows; ++r) totals[r][c] =
          multiply_add(scale, sums[r][c], totals[r][c]);
      if constexpr (Format::kHasMinimums) {
        const Vec minimum = kept(groups.minimum(c, group));
        PAGETIDE_UNROLL for (int r = 0; r < kRows; ++r) totals[r][c] =
            multiply_add(minimum, fill(p.a_sums.row(r)[group]), totals[r][c]);
      }
    }
  }
  PAGETIDE_UNROLL for (int r = 0; r < kRows; ++r) {
    PAGETIDE_UNROLL for (int c = 0; c < kColumns; ++c) store(totals[r][c], p.c.row(r) + c * kLanes);
  }
}

// Calls multiply_groups_block<rows, columns> for sizes that are known only now, up to kRows and kColumns.
template <int kRows, int kColumns, class Format, class Groups, class Word>
void multiply_groups(int rows, int columns, const Groups& groups, const GroupProduct<Word>& p) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return multiply_groups<kRows - 1, kColumns, Format>(rows, columns, groups, p);
  }
  if constexpr (kColumns > 1) {
    if (columns < kColumns) return multiply_groups<kRows, kColumns - 1, Format>(rows, columns, groups, p);
  }
  multiply_groups_block<kRows, kColumns, Format>(groups, p);
}

}  // namespace pagetide::PAGETIDE_ISA

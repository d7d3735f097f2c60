// The one matrix product of the kernels: c = c * factor + a b, on rows of words.
//
// Every element of c is its own chain of sums over the contracted dimension, in order; with tiles.h each link is
// the sum of a tile's depth. How many rows and columns are worked on together changes the speed and never a bit of
// the result.
#pragma once

#include <type_traits>

#include "product.h"

#if defined(__AMX_BF16__)
#include "tiles.h"
#endif

namespace pagetide::PAGETIDE_ISA {

// The compiler keeps the sums in registers only if it unrolls the loops over them first.
#define PAGETIDE_UNROLL _Pragma("GCC unroll 16")

// What a loop keeps of its operands. With twelve rows their addresses are more than there are registers for.
template <class Operand>
using Kept = std::conditional_t<kHasRegisters, const Operand&, const Operand>;

// Of c, the columns from `column` on. Neither the product nor the look-ahead is copied: to load as one what was
// just stored in parts stalls.
template <int kRows, int kColumns, class Word>
void multiply_block(const Product<Word>& p, int column) {
  const Matrix<float> out{p.c.data + column * kLanes, p.c.stride};
  Vec sums[kRows][kColumns];
  PAGETIDE_UNROLL for (int r = 0; r < kRows; ++r) {
    PAGETIDE_UNROLL for (int c = 0; c < kColumns; ++c) {
      sums[r][c] = p.factors ? load(out.row(r) + c * kLanes) * fill(p.factors[r]) : fill(0.0f);
    }
  }
  constexpr int kTogether = kHasRegisters ? kColumns : 1;
  const Kept<Matrix<const RowWord<Word>>> rows = p.a;
  const Kept<Columns<Word>> columns = p.b;
  Lookahead::Place place = p.ahead->place;
  int until_fetch = p.fetch_every;
  for (int i = 0; i < p.depth; ++i) {
    if (--until_fetch == 0) {
      until_fetch = p.fetch_every;
      p.ahead->fetch(p.fetch_lines, place);
    }
    PAGETIDE_UNROLL for (int part = 0; part < kParts<Word>; ++part) {
      PAGETIDE_UNROLL for (int first = 0; first < kColumns; first += kTogether) {
        decltype(load_words(p.b.data, part)) b[kTogether];
        PAGETIDE_UNROLL for (int c = 0; c < kTogether; ++c) {
          b[c] = load_words(columns.at(i, column + first + c), part);
        }
        PAGETIDE_UNROLL for (int r = 0; r < kRows; ++r) {
          const auto a = fill_words<(kTogether < kColumns)>(rows.row(r)[i], part);
          PAGETIDE_UNROLL for (int c = 0; c < kTogether; ++c) {
            sums[r][first + c] = multiply_accumulate(a, b[c], sums[r][first + c]);
          }
        }
      }
    }
  }
  p.ahead->place = place;
  PAGETIDE_UNROLL for (int r = 0; r < kRows; ++r) {
    PAGETIDE_UNROLL for (int c = 0; c < kColumns; ++c) store(sums[r][c], out.row(r) + c * kLanes);
  }
}

// How a product of such words is cut up.
template <class Word>
struct Cut {
  static constexpr int kRows = kMaxRows;  // that one call takes
  static constexpr int kSums = kMaxSums;
  static constexpr int kDepth = 1;  // words whose products are added up before they join the sum

  // Of many rows, how many come next: as even parts as can be, for a small last one would not hide the loads.
  static int next_rows(int left) {
    return ceil_divided(left, ceil_divided(left, kRows));
  }
};

#if defined(__AMX_BF16__)

template <>
struct Cut<BfloatPair> {
  static constexpr int kRows = 2 * kTileRows;
  static constexpr int kSums = 4 * kTileRows;
  static constexpr int kDepth = kTileWords;

  // Leaves no part of a tile.
  static int next_rows(int left) {
    return left <= kRows ? left : left < kRows + kTileRows ? left - kTileRows : kRows;
  }
};

#endif

constexpr int columns_fitting(int sums, int rows) {
  return sums / rows >= kMaxColumns ? kMaxColumns : sums / rows >= 2 ? 2 : 1;
}

// The columns that many rows take at once: with many of them, the fewer weights stay in the L1 cache.
template <class Word>
constexpr int columns_at_once(int rows) {
  using Of = Cut<Word>;
  return columns_fitting(Of::kSums, rows < Of::kRows ? rows : Of::kRows);
}

// Calls multiply_block<kRows, left> if that is less than kColumns.
template <int kRows, int kColumns, class Word>
void multiply_columns(int left, const Product<Word>& p, int column) {
  if constexpr (kColumns > 1) {
    if (left < kColumns) return multiply_columns<kRows, kColumns - 1>(left, p, column);
  }
  multiply_block<kRows, kColumns>(p, column);
}

// rows <= kMost; any number of columns, counted in vectors.
template <int kMost = kMaxRows, class Word>
void multiply_vectors(int rows, int columns, const Product<Word>& p) {
  if constexpr (kMost > 1) {
    if (rows < kMost) return multiply_vectors<kMost - 1>(rows, columns, p);
  }
  constexpr int kAtOnce = columns_fitting(kMaxSums, kMost);
  for (int column = 0; column < columns; column += kAtOnce) {
    multiply_columns<kMost, kAtOnce>(columns - column, p, column);
  }
}

// rows <= Cut<Word>::kRows; any number of columns, counted in vectors.
template <class Word>
void multiply_rows(int rows, int columns, const Product<Word>& p) {
#if defined(__AMX_BF16__)
  if constexpr (std::is_same_v<Word, BfloatPair>) {
    if (p.depth % kTileWords == 0) return multiply_tiles(rows, columns, p);
    for (int row = 0; row < rows; row += kMaxRows) {
      multiply_vectors(rows - row < kMaxRows ? rows - row : kMaxRows, columns, p.from_row(row));
    }
    return;
  }
#endif
  multiply_vectors(rows, columns, p);
}

// Any number of rows, and of columns, counted in vectors.
template <class Word>
void multiply(int rows, int columns, const Product<Word>& p) {
  if (rows <= Cut<Word>::kRows) return multiply_rows(rows, columns, p);
  const int count = Cut<Word>::next_rows(rows);
  multiply_rows(count, columns, p);
  multiply(rows - count, columns, p.from_row(count));
}

}  // namespace pagetide::PAGETIDE_ISA

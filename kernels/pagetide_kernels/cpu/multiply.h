// The one matrix product of the kernels: c = c * factor + a b, on rows of words.
//
// Every element of c is its own chain of sums over the contracted dimension, in order. How many rows
// and columns are worked on together changes the speed and never a bit of the result.
#pragma once

#include "lookahead.h"
#include "words.h"

namespace pagetide::PAGETIDE_ISA {

template <class T>
struct Matrix {
  T* data;
  int64_t stride;

  PAGETIDE_INLINE T* row(int64_t i) const { return data + i * stride; }
};

// Columns of vectors of words: `stride` from one to the next along the depth, `column_stride` to the next
// column.
template <class Word>
struct Columns {
  const Word* data;
  int64_t stride;
  int64_t column_stride = kLanes;

  PAGETIDE_INLINE const Word* at(int64_t i, int64_t column) const {
    return data + i * stride + column * column_stride;
  }
};

template <class Word>
struct Product {
  Matrix<const Word> a;  // rows x depth
  Columns<Word> b;       // depth x columns
  Matrix<float> c;       // rows x columns * kLanes
  int depth;
  const float* factors;  // one for each row of c; null: c starts from zero
  Lookahead* ahead;
  // So many lines of it each time, after so many steps along the depth.
  int fetch_lines = 2;
  int fetch_every = 1;
};

// The compiler keeps the sums in registers only if it unrolls the loops over them first.
#define PAGETIDE_UNROLL _Pragma("GCC unroll 16")

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
  Lookahead::Place place = p.ahead->place;
  int until_fetch = p.fetch_every;
  for (int i = 0; i < p.depth; ++i) {
    if (--until_fetch == 0) {
      until_fetch = p.fetch_every;
      p.ahead->fetch(p.fetch_lines, place);
    }
    decltype(load_words(p.b.data)) b[kColumns];
    PAGETIDE_UNROLL for (int c = 0; c < kColumns; ++c) b[c] = load_words(p.b.at(i, column + c));
    PAGETIDE_UNROLL for (int r = 0; r < kRows; ++r) {
      const auto a = fill_words(p.a.row(r)[i]);
      PAGETIDE_UNROLL for (int c = 0; c < kColumns; ++c) sums[r][c] =
          multiply_accumulate(a, b[c], sums[r][c]);
    }
  }
  p.ahead->place = place;
  PAGETIDE_UNROLL for (int r = 0; r < kRows; ++r) {
    PAGETIDE_UNROLL for (int c = 0; c < kColumns; ++c) store(sums[r][c], out.row(r) + c * kLanes);
  }
}

// The columns that many rows take at once: with many of them, the fewer weights stay in the L1 cache.
constexpr int columns_at_once(int rows) {
  const int fitting = kMaxSums / (rows < kMaxRows ? rows : kMaxRows);
  return fitting >= kMaxColumns ? kMaxColumns : fitting >= 2 ? 2 : 1;
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
void multiply(int rows, int columns, const Product<Word>& p) {
  if constexpr (kMost > 1) {
    if (rows < kMost) return multiply<kMost - 1>(rows, columns, p);
  }
  constexpr int kAtOnce = columns_at_once(kMost);
  for (int column = 0; column < columns; column += kAtOnce) {
    multiply_columns<kMost, kAtOnce>(columns - column, p, column);
  }
}

}  // namespace pagetide::PAGETIDE_ISA

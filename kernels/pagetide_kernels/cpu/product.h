// What a matrix product is made of: c = c * factor + a b, on rows of words.
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
  Matrix<const RowWord<Word>> a;  // rows x depth
  Columns<Word> b;       // depth x columns
  Matrix<float> c;       // rows x columns * kLanes
  int depth;
  const float* factors;  // one for each row of c; null: c starts from zero
  Lookahead* ahead;
  // So many lines of it each time, after so many steps along the depth.
  int fetch_lines = 2;
  int fetch_every = 1;
  // Rows of a and of c that follow, up to a whole tile of tiles.h, may be read, and those of c written.
  bool has_spare_rows = false;

  // The rows from `row` on.
  Product from_row(int row) const {
    Product rest = *this;
    rest.a.data = a.row(row);
    rest.c.data = c.row(row);
    if (factors != nullptr) rest.factors = factors + row;
    return rest;
  }
};

PAGETIDE_INLINE void scale_row(const float* row, float factor, int columns, float* out) {
  for (int i = 0; i < columns * kLanes; i += kLanes) store(load(row + i) * fill(factor), out + i);
}

}  // namespace pagetide::PAGETIDE_ISA

// `multiply` for bf16 pairs with AMX: tiles of sixteen rows, sixteen words deep, sixteen columns wide.
//
// A tile of words adds the products of its depth up before they join the sum, so what an element's chain looks
// like depends on where along the depth tiles begin, and on nothing else. ThreadSetup (isa.h) has made every
// tile register 16 x 64 bytes.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "lookahead.h"
#include "product.h"

namespace pagetide::PAGETIDE_ISA {

constexpr int kTileRows = 16;
constexpr int kTileWords = 16;

template <int kTile>
PAGETIDE_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}

// Rows `stride` bytes apart.
template <int kTile>
PAGETIDE_INLINE void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
PAGETIDE_INLINE void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}

template <int kSum, int kA, int kB>
PAGETIDE_INLINE void accumulate_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}

template <class Work, int... kIndices>
PAGETIDE_INLINE void repeat(const Work& work, std::integer_sequence<int, kIndices...>) {
  (work(std::integral_constant<int, kIndices>{}), ...);
}

// Calls work(0), ..., work(kCount - 1) with constants: tile registers are named in the code.
template <int kCount, class Work>
PAGETIDE_INLINE void repeat(const Work& work) {
  repeat(work, std::make_integer_sequence<int, kCount>{});
}

#define PAGETIDE_INLINED __attribute__((always_inline))

// kRowTiles * kColumns sums, at most four, in tiles 0 to 3. The second tile of rows starts at `second_row`.
template <int kRowTiles, int kColumns>
struct TileBlock {
  static constexpr int kA = 4, kB = 6;

  const Product<BfloatPair>& p;
  int second_row;

  // Of c, the columns from `column` on, which lie at `c`.
  void run(Matrix<float> c, int column, bool from_zero) const {
    for_sums(c, [&](auto sum, float* at, int64_t stride) PAGETIDE_INLINED {
      from_zero ? zero_tile<sum>() : load_tile<sum>(at, stride);
    });
    Lookahead::Place place = p.ahead->place;
    constexpr int kProducts = kRowTiles * kColumns;  // of a step: each fetches its part
    const int lines = ceil_divided(kTileWords * p.fetch_lines, p.fetch_every * kProducts);
    for (int i = 0; i < p.depth; i += kTileWords) {
      step(i, column, [&]() PAGETIDE_INLINED { p.ahead->fetch(lines, place); });
    }
    p.ahead->place = place;
    for_sums(c, [&](auto sum, float* at, int64_t stride) PAGETIDE_INLINED { store_tile<sum>(at, stride); });
  }

 private:
  template <class Work>
  PAGETIDE_INLINE void for_sums(Matrix<float> c, const Work& work) const {
    repeat<kRowTiles>([&](auto r) PAGETIDE_INLINED {
      repeat<kColumns>([&](auto column) PAGETIDE_INLINED {
        work(std::integral_constant<int, r * kColumns + column>{}, c.row(r * second_row) + column * kLanes,
             c.stride * int64_t{sizeof(float)});
      });
    });
  }

  template <class Fetch>
  PAGETIDE_INLINE void step(int i, int column, const Fetch& fetch) const {
    repeat<kRowTiles>([&](auto r) PAGETIDE_INLINED {
      load_tile<kA + r>(p.a.row(r * second_row) + i, p.a.stride * int64_t{sizeof(BfloatPair)});
    });
    repeat<kColumns>([&](auto c) PAGETIDE_INLINED {
      constexpr int b = kB + c % 2;
      load_tile<b>(p.b.at(i, column + c), p.b.stride * int64_t{sizeof(BfloatPair)});
      repeat<kRowTiles>([&](auto r) PAGETIDE_INLINED {
        accumulate_tiles<r * kColumns + c, kA + r, b>();
        fetch();
      });
    });
  }
};

// Calls TileBlock<kRowTiles, left> if that is less than kColumns.
template <int kRowTiles, int kColumns>
void multiply_tile_columns(int left, const Product<BfloatPair>& p, int second_row, Matrix<float> c, int column,
                           bool from_zero) {
  if constexpr (kColumns > 1) {
    if (left < kColumns) {
      return multiply_tile_columns<kRowTiles, kColumns - 1>(left, p, second_row, c, column, from_zero);
    }
  }
  TileBlock<kRowTiles, kColumns>{p, second_row}.run(c, column, from_zero);
}

// At most two tiles of rows, the second of which ends with the last row; the first may hold spare ones.
template <int kRowTiles, int kAtOnce>
void multiply_whole_tiles(int rows, int columns, const Product<BfloatPair>& p) {
  if (p.factors != nullptr) {
    for (int r = 0; r < rows; ++r) scale_row(p.c.row(r), p.factors[r], columns, p.c.row(r));
  }
  for (int column = 0; column < columns; column += kAtOnce) {
    const Matrix<float> c{p.c.data + column * kLanes, p.c.stride};
    multiply_tile_columns<kRowTiles, kAtOnce>(columns - column, p, rows - kTileRows, c, column,
                                              p.factors == nullptr);
  }
}

// Rows that are no tile, as part of one whose other rows hold anything.
class FewRows {
 public:
  FewRows(int rows, const Product<BfloatPair>& p) : rows_(rows), p_(p) {}

  void multiply(int columns) {
    for (int column = 0; column < columns; column += kMaxColumns) {
      multiply(column, std::min(kMaxColumns, columns - column));
    }
  }

 private:
  static constexpr int kMaxDepth = 512;

  void multiply(int column, int count) {
    if (p_.factors != nullptr) {
      for (int r = 0; r < rows_; ++r) scale_row(c(r, column), p_.factors[r], count, sums_[r]);
    }
    for (int i = 0; i < p_.depth; i += kMaxDepth) {
      const int depth = std::min(kMaxDepth, p_.depth - i);
      Product<BfloatPair> part = p_;
      if (column == 0 || p_.depth > kMaxDepth) copy_inputs(i, depth);
      part.a = {a_[0], kMaxDepth};
      part.b.data = p_.b.at(i, column);
      part.depth = depth;
      multiply_tile_columns<1, kMaxColumns>(count, part, 0, {sums_[0], kMaxColumns * kLanes}, 0,
                                            i == 0 && p_.factors == nullptr);
    }
    for (int r = 0; r < rows_; ++r) {
      std::memcpy(c(r, column), sums_[r], sizeof(float) * static_cast<size_t>(count * kLanes));
    }
  }

  float* c(int row, int column) const { return p_.c.row(row) + column * kLanes; }

  void copy_inputs(int from, int depth) {
    for (int r = 0; r < rows_; ++r) {
      std::memcpy(a_[r], p_.a.row(r) + from, sizeof(BfloatPair) * static_cast<size_t>(depth));
    }
  }

  int rows_;
  const Product<BfloatPair>& p_;
  alignas(64) BfloatPair a_[kTileRows][kMaxDepth];
  alignas(64) float sums_[kTileRows][kMaxColumns * kLanes];
};

// rows <= 2 * kTileRows; any number of columns, counted in vectors; the depth whole tiles.
inline void multiply_tiles(int rows, int columns, const Product<BfloatPair>& p) {
  if (rows < kTileRows && !p.has_spare_rows) return FewRows(rows, p).multiply(columns);
  if (rows <= kTileRows) return multiply_whole_tiles<1, 4>(rows, columns, p);
  multiply_whole_tiles<2, 2>(rows, columns, p);
}

}  // namespace pagetide::PAGETIDE_ISA

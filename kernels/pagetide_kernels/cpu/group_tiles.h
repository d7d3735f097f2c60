// `multiply_groups` for bf16 pairs with AMX: a group of inputs is as deep as a tile.
//
// An element of c is one chain: a tile's sum of a group's products, by the group's scale, and the inputs' sum by
// its minimum, group after group.
#pragma once

#include "multiply_groups.h"
#include "tiles.h"

namespace pagetide::PAGETIDE_ISA {

// At most two tiles of rows, the second of which ends with the last row, and four tiles of sums.
template <int kRowTiles, int kColumns, class Format>
class GroupTiles {
  using Groups = UnpackedGroups<Format, BfloatPair>;
  static constexpr int kA = 4, kB = 6;

 public:
  // p.a has whole tiles of rows.
  GroupTiles(const Groups& groups, const GroupProduct<BfloatPair>& p, int rows, int first_column)
      : groups_(groups), p_(p), rows_(rows), first_column_(first_column) {}

  void run() {
    for (int group = 0; group < p_.num_groups; ++group) {
      multiply(group);
      for (int column = 0; column < kColumns; ++column) add(group, column);
    }
  }

 private:
  int first_row(int tile) const { return tile == 0 ? 0 : rows_ - kTileRows; }

  void multiply(int group) {
    repeat<kRowTiles>([&](auto r) PAGETIDE_INLINED {
      load_tile<kA + r>(p_.a.row(first_row(r)) + group * kTileWords, p_.a.stride * int64_t{sizeof(BfloatPair)});
      repeat<kColumns>([&](auto c) PAGETIDE_INLINED { zero_tile<r * kColumns + c>(); });
    });
    repeat<kColumns>([&](auto c) PAGETIDE_INLINED {
      load_tile<kB + c % 2>(groups_.words[first_column_ + c][group], sizeof(float) * kLanes);
      repeat<kRowTiles>([&](auto r) PAGETIDE_INLINED {
        accumulate_tiles<r * kColumns + c, kA + r, kB + c % 2>();
      });
    });
    repeat<kRowTiles>([&](auto r) PAGETIDE_INLINED {
      repeat<kColumns>([&](auto c) PAGETIDE_INLINED {
        store_tile<r * kColumns + c>(sums_[c][r], sizeof(float) * kLanes);
      });
    });
  }

  // The second tile's rows that the first has too are added once.
  void add(int group, int column) const {
    const Vec scale = groups_.scale(first_column_ + column, group);
    for (int row = 0; row < rows_; ++row) {
      const int tile = row / kTileRows;
      float* total = p_.c.row(row) + (first_column_ + column) * kLanes;
      Vec sum = multiply_add(scale, load(sums_[column][tile][row - first_row(tile)]), load(total));
      if constexpr (Format::kHasMinimums) {
        const Vec minimum = groups_.minimum(first_column_ + column, group);
        sum = multiply_add(minimum, fill(p_.a_sums.row(row)[group]), sum);
      }
      store(sum, total);
    }
  }

  const Groups& groups_;
  const GroupProduct<BfloatPair>& p_;
  int rows_;
  int first_column_;
  alignas(64) float sums_[kColumns][kRowTiles][kTileRows][kLanes];
};

// Calls GroupTiles<kRowTiles, left> if that is less than kColumns.
template <int kRowTiles, int kColumns, class Format>
void multiply_group_columns(int left, const UnpackedGroups<Format, BfloatPair>& groups,
                            const GroupProduct<BfloatPair>& p, int rows, int column) {
  if constexpr (kColumns > 1) {
    if (left < kColumns) return multiply_group_columns<kRowTiles, kColumns - 1>(left, groups, p, rows, column);
  }
  GroupTiles<kRowTiles, kColumns, Format>(groups, p, rows, column).run();
}

// rows <= 2 * kTileRows, columns <= kGroupColumns.
template <class Format>
void multiply_group_tiles(int rows, int columns, const UnpackedGroups<Format, BfloatPair>& groups,
                          GroupProduct<BfloatPair> p) {
  constexpr int kDepth = UnpackedGroups<Format, BfloatPair>::kGroups * kTileWords;
  alignas(64) BfloatPair whole_tile[kTileRows][kDepth];
  if (rows < kTileRows) {
    const size_t bytes = sizeof(BfloatPair) * static_cast<size_t>(p.num_groups * kTileWords);
    for (int row = 0; row < rows; ++row) std::memcpy(whole_tile[row], p.a.row(row), bytes);
    p.a = {whole_tile[0], kDepth};
  }
  if (rows <= kTileRows) return multiply_group_columns<1, 4>(columns, groups, p, rows, 0);
  for (int column = 0; column < columns; column += 2) {
    multiply_group_columns<2, 2>(columns - column, groups, p, rows, column);
  }
}

}  // namespace pagetide::PAGETIDE_ISA

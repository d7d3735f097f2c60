// A tile of keys and values, packed once for all rows that see it.
#pragma once

#include <cstring>
#include <type_traits>

#include "attention_item.h"
#include "operands.h"
#include "softmax.h"

namespace pagetide::PAGETIDE_ISA {

template <class Element, class Cache>
class PackedTile {
  using Pack = Operands<Element, Cache>;

 public:
  using Word = typename Pack::Word;
  static constexpr bool kHasScales = std::is_same_v<Cache, int8_t>;

  // Words are no larger than floats.
  static int64_t num_floats(int head_size) { return 2 * int64_t{kTileTokens} * (head_size + 1); }

  PackedTile(int head_size, float* memory)
      : keys(reinterpret_cast<Word*>(memory)),
        values(keys + int64_t{kTileTokens} * head_size),
        head_size_(head_size),
        key_scales_(memory + 2 * int64_t{kTileTokens} * head_size),
        value_scales_(key_scales_ + kTileTokens) {}

  void pack(const Item<Cache>& item, const Tile& tile, bool with_keys, Lookahead& ahead) {
    for (int i = 0; i < tile.blocks; ++i) {
      const Range valid = tile.seen_of(i);
      if (valid.begin == valid.end) {
        clear(i);
        continue;
      }
      const int position = tile.base + i * kBlockTokens;
      if (with_keys) Pack::pack_keys(item.block(position, 0), head_size_, keys + i * kBlockTokens, ahead);
      Pack::pack_values(item.block(position, 1), head_size_, valid, values_of(i), ahead);
      if constexpr (kHasScales) copy_scales(item, position, valid, i * kBlockTokens);
    }
  }

  auto scales() const {
    if constexpr (kHasScales) {
      return TokenScales{key_scales_, value_scales_};
    } else {
      return NoScales{};
    }
  }

  Word* const keys;    // [head_size][kTileTokens]
  Word* const values;  // [kTileTokens][head_size]

 private:
  Word* values_of(int i) const { return values + int64_t{i} * kBlockTokens / Pack::kPerWord * head_size_; }

  // A block that nobody sees, which may be no block at all. Its keys may be anything.
  void clear(int i) {
    std::memset(values_of(i), 0, sizeof(Word) * static_cast<size_t>(values_of(1) - values));
    store(fill(0.0f), value_scales_ + i * kBlockTokens);
  }

  void copy_scales(const Item<Cache>& item, int position, Range valid, int at) {
    const Vec of_keys = load(tile_scales(item.block(position, 0), head_size_));
    const Vec of_values = load(tile_scales(item.block(position, 1), head_size_));
    store(of_keys, key_scales_ + at);
    store(select(valid, of_values, fill(0.0f)), value_scales_ + at);
  }

  int head_size_;
  float* key_scales_;  // [kTileTokens], of an 8-bit cache
  float* value_scales_;
};

}  // namespace pagetide::PAGETIDE_ISA

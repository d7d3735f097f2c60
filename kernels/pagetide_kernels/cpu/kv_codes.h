// Keys and values as 8-bit codes with a scale for each token and head. One head's block is a tile,
//
//     int8 codes[kBlockTokens][head_size], float scales[kBlockTokens]
//
// and a value is its code times its token's scale. Compiled for each instruction set.
#pragma once

#include <cstring>

#include "vector.h"

namespace pagetide::PAGETIDE_ISA {

// Elements of a tile: what a block holds of one head's keys, or of its values.
template <class Cache>
constexpr int64_t tile_size(int head_size) {
  constexpr int64_t kScaleBytes = sizeof(Cache) == 1 ? sizeof(float) : 0;
  return kBlockTokens * (head_size + kScaleBytes);
}

inline float* tile_scales(int8_t* tile, int head_size) {
  return reinterpret_cast<float*>(tile + int64_t{kBlockTokens} * head_size);
}

inline const float* tile_scales(const int8_t* tile, int head_size) {
  return reinterpret_cast<const float*>(tile + int64_t{kBlockTokens} * head_size);
}

// The nearest codes to `row`, which may not hold infinities.
template <class Element>
void store_row(const Element* row, int head_size, int8_t* tile, int64_t token) {
  Vec most = fill(0.0f);
  for (int d = 0; d < head_size; d += kLanes) {
    const Vec v = load(row + d);
    most = max(most, max(v, fill(0.0f) - v));
  }
  constexpr float kLeastScale = 1e-30f;
  const float scale = reduce_max(most) / 127.0f;
  const Vec inverse = fill(scale > kLeastScale ? 1.0f / scale : 0.0f);
  tile_scales(tile, head_size)[token] = scale;
  int8_t* codes = tile + token * head_size;
  for (int d = 0; d < head_size; d += kLanes) {
    float lanes[kLanes];
    store(round(load(row + d) * inverse), lanes);
    for (int i = 0; i < kLanes; ++i) codes[d + i] = static_cast<int8_t>(lanes[i]);
  }
}

template <class Element>
void store_row(const Element* row, int head_size, Element* tile, int64_t token) {
  std::memcpy(tile + token * head_size, row, sizeof(Element) * static_cast<size_t>(head_size));
}

}  // namespace pagetide::PAGETIDE_ISA

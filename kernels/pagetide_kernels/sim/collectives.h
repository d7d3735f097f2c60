// What a warp does together. Lanes deposit, the last one computes, all take their share.
//
// Memory is read in the lane that owns the address, in code compiled with the kernel, so a sanitizer sees
// who read what.
#pragma once
#include <cstring>

#include "machine.h"

namespace sim {

enum class Precision { kBf16, kF16 };

void combine_shuffle(Warp& warp);
void combine_ballot(Warp& warp);
void combine_ldmatrix(Warp& warp);
void combine_ldmatrix_transposed(Warp& warp);
void combine_mma_bf16(Warp& warp);
void combine_mma_f16(Warp& warp);

template <class T>
T shuffle_from(T value, unsigned source_lane, const Where& where) {
  static_assert(sizeof(T) == 4, "a shuffle moves 32 bits");
  uint32_t in[2] = {0, source_lane};
  memcpy(in, &value, 4);
  warp_collective(combine_shuffle, in, 2, &value, 1, where);
  return value;
}

inline uint32_t ballot(bool predicate, const Where& where) {
  uint32_t in = predicate, out;
  warp_collective(combine_ballot, &in, 1, &out, 1, where);
  return out;
}

// `row`: this lane's 16 bytes, of row lane % 8 of matrix lane / 8. Lanes beyond the last matrix are not read.
template <unsigned kMatrices>
void ldmatrix(uint32_t* registers, const void* row, bool transposed, const Where& where) {
  uint32_t in[4] = {};
  if (lane_index() < 8 * kMatrices) {
    if (reinterpret_cast<uintptr_t>(row) % 16)
      fail(where, "a matrix row must start at a multiple of 16: %p", row);
    for (int i = 0; i < 4; i++) in[i] = static_cast<const uint32_t*>(row)[i];
  }
  Combine combine = transposed ? combine_ldmatrix_transposed : combine_ldmatrix;
  warp_collective(combine, in, 4, registers, kMatrices, where);
}

// m16n8k16, row-major A times column-major B, accumulated in float32.
inline void mma(float* c, const uint32_t* a, uint32_t b0, uint32_t b1, Precision precision,
                const Where& where) {
  uint32_t in[10] = {a[0], a[1], a[2], a[3], b0, b1};
  memcpy(in + 6, c, 16);
  warp_collective(precision == Precision::kBf16 ? combine_mma_bf16 : combine_mma_f16, in, 10, c, 4, where);
}

}  // namespace sim

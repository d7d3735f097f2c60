#include "collectives.h"

#include "float_formats.h"

namespace sim {
namespace {

using Decode = float (*)(uint16_t bits);

// Fragment layouts: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
template <Decode decode>
void combine_mma(Warp& warp) {
  float a[16][16], b[16][8];
  for (unsigned lane = 0; lane < kWarpSize; lane++) {
    const uint32_t* word = warp.in[lane].word;
    unsigned row = lane / 4, column = lane % 4 * 2;
    for (unsigned half = 0; half < 2; half++) {
      auto value = [&](unsigned i) { return decode(static_cast<uint16_t>(word[i] >> (16 * half))); };
      a[row][column + half] = value(0);
      a[row + 8][column + half] = value(1);
      a[row][column + 8 + half] = value(2);
      a[row + 8][column + 8 + half] = value(3);
      b[column + half][row] = value(4);
      b[column + 8 + half][row] = value(5);
    }
  }
  float product[16][8] = {};
  for (int i = 0; i < 16; i++)
    for (int k = 0; k < 16; k++)
      for (int j = 0; j < 8; j++) product[i][j] += a[i][k] * b[k][j];
  for (unsigned lane = 0; lane < kWarpSize; lane++) {
    float c[4];
    memcpy(c, warp.in[lane].word + 6, sizeof c);
    for (unsigned i = 0; i < 4; i++) c[i] += product[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    memcpy(warp.out[lane].word, c, sizeof c);
  }
}

uint16_t half_of(const Lane& lane, unsigned column) {
  return static_cast<uint16_t>(lane.word[column / 2] >> (column % 2 * 16));
}

}  // namespace

void combine_shuffle(Warp& warp) {
  for (unsigned lane = 0; lane < kWarpSize; lane++)
    warp.out[lane].word[0] = warp.in[warp.in[lane].word[1] % kWarpSize].word[0];
}

void combine_ballot(Warp& warp) {
  uint32_t bits = 0;
  for (unsigned lane = 0; lane < kWarpSize; lane++) bits |= (warp.in[lane].word[0] & 1) << lane;
  for (Lane& lane : warp.out) lane.word[0] = bits;
}

void combine_ldmatrix(Warp& warp) {
  for (unsigned lane = 0; lane < kWarpSize; lane++)
    for (unsigned matrix = 0; matrix < 4; matrix++)
      warp.out[lane].word[matrix] = warp.in[8 * matrix + lane / 4].word[lane % 4];
}

void combine_ldmatrix_transposed(Warp& warp) {
  for (unsigned lane = 0; lane < kWarpSize; lane++)
    for (unsigned matrix = 0; matrix < 4; matrix++) {
      const Lane* rows = warp.in + 8 * matrix;
      unsigned row = lane % 4 * 2, column = lane / 4;
      uint32_t low = half_of(rows[row], column), high = half_of(rows[row + 1], column);
      warp.out[lane].word[matrix] = low | high << 16;
    }
}

void combine_mma_bf16(Warp& warp) { combine_mma<decode_bf16>(warp); }
void combine_mma_f16(Warp& warp) { combine_mma<decode_f16>(warp); }

}  // namespace sim

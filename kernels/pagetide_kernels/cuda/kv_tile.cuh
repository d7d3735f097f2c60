// One block of one head's keys or values in shared memory, and the mma fragments read from it.
//
// In global memory a (block, head) tile is 16 rows (tokens) of HEAD_DIM values, contiguous. In shared
// memory each row is cut into 16-byte chunks, and chunk c of row r lies at c ^ f(r), so that the eight
// rows an ldmatrix phase reads fall into eight different groups of banks, for any head size.
//
// HEAD_DIM, ELEMENT (bf16 or f16: queries and outputs) and CACHE (ELEMENT, or e4m3) come from the compiler
// command line.
#pragma once
#include "prim.cuh"

constexpr int kBlockSize = 16;
constexpr int kHeadDim = HEAD_DIM;
constexpr bool kFp8 = sizeof(CACHE) == 1;

using Element = ELEMENT;
using Cache = CACHE;

template <bool fp8>
struct OperandOf {
  using Type = Element;
};
template <>
struct OperandOf<true> {
  using Type = f16;  // holds every e4m3 value exactly
};
using Operand = OperandOf<kFp8>::Type;  // what mma multiplies

// e4m3 bits moved into an f16 have an exponent bias of 15 instead of 7: the value times 2^-8. The factor
// is put back once per score and once per output, not once per cached value.
constexpr float kCacheUnit = kFp8 ? 256.0f : 1.0f;

constexpr int kSteps = kHeadDim / 16;   // mma steps along the head for one score
constexpr int kColumns = kHeadDim / 8;  // mma column tiles of an output row
constexpr int kRowChunks = kHeadDim * static_cast<int>(sizeof(Cache)) / 16;
constexpr int kTileBytes = kBlockSize * kRowChunks * 16;
constexpr int kTileValues = kBlockSize * kHeadDim;
static_assert(kHeadDim % 16 == 0 && kHeadDim <= 256, "head sizes are multiples of 16 up to 256");

constexpr int common_power_of_two(int x, int most) {
  return x % most == 0 ? most : common_power_of_two(x, most / 2);
}

// A row is kRowChunks 16-byte chunks; eight chunks span the 32 banks. With P = gcd(kRowChunks, 8), rows
// 8/P apart start at the same bank; XOR with row / (8/P) sends those P rows to P different chunks.
constexpr int kPhases = common_power_of_two(kRowChunks, 8);

DEVICE int swizzled_offset(int row, int chunk) {
  return (row * kRowChunks + (chunk ^ (row / (8 / kPhases) % kPhases))) * 16;
}

struct alignas(128) Tile {
  unsigned char bytes[kTileBytes];

  DEVICE void* at(int row, int chunk) { return bytes + swizzled_offset(row, chunk); }
  DEVICE const void* at(int row, int chunk) const { return bytes + swizzled_offset(row, chunk); }
};

// Starts one warp's copy of a tile. Rows outside [first_row, end_row) become zeros and are not read: they
// are of no token of this sequence, and even times a probability of 0 a NaN found there would spread.
DEVICE void load_tile(Tile& tile, const Cache* rows, int first_row, int end_row) {
  const unsigned char* bytes = reinterpret_cast<const unsigned char*>(rows);
  int lane = opaque(static_cast<int>(lane_index()));  // else a dozen addresses stay in registers
#pragma unroll
  for (int i = 0; i < divide_up(kBlockSize * kRowChunks, kWarpSize); i++) {
    int index = i * kWarpSize + lane;
    int row = index / kRowChunks, chunk = index % kRowChunks;
    bool valid = row >= first_row && row < end_row;
    if (index < kBlockSize * kRowChunks)
      cp_async16(tile.at(row, chunk), bytes + (valid ? index * 16 : 0), valid);
  }
}

// Two e4m3 values, each in the upper byte of its half, to f16 values of 2^-8 the size.
DEVICE uint32_t widen_pair(uint32_t spread) { return (spread & 0x80008000u) | (spread >> 1 & 0x3F803F80u); }

// A B fragment is two registers a lane; one load gives those of two column tiles.
struct FragmentPair {
  uint32_t b[2][2];  // [column tile][low, high half of k]
};

// Keys: column = token of the block (two tiles: 0-7 and 8-15), k = position in the head. With e4m3 a register
// holds dims 4t..4t+3 of a token; mma is handed dims (4t, 4t+1) as k = (2t, 2t+1) and (4t+2, 4t+3) as
// k = (2t+8, 2t+9). A dot product doesn't care for the order, and queries are laid out the same way.
DEVICE void load_keys(FragmentPair& keys, const Tile& tile, int step) {
  int lane = static_cast<int>(lane_index());
  if constexpr (!kFp8) {
    uint32_t r[4];
    ldmatrix_x4(r, tile.at(lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
    for (int i = 0; i < 4; i++) keys.b[i / 2][i % 2] = r[i];
  } else {
    uint32_t r[2];
    ldmatrix_x2(r, tile.at(lane % 16, step));
    for (int i = 0; i < 2; i++) {
      keys.b[i][0] = widen_pair(permute_bytes(0, r[i], 0x5040));
      keys.b[i][1] = widen_pair(permute_bytes(0, r[i], 0x7060));
    }
  }
}

// Values: column = position in the head, k = token of the block. With e4m3 a transposed register holds dims
// 2g and 2g+1 of two tokens; the even dims go to one column tile, the odd ones to the next.
DEVICE void load_values(FragmentPair& values, const Tile& tile, int first_column) {
  int lane = static_cast<int>(lane_index());
  if constexpr (!kFp8) {
    uint32_t r[4];
    ldmatrix_x4_trans(r, tile.at(lane % 16, first_column + lane / 16));
    for (int i = 0; i < 4; i++) values.b[i / 2][i % 2] = r[i];
  } else {
    uint32_t r[2];
    ldmatrix_x2_trans(r, tile.at(lane % 16, first_column / 2));
    for (int i = 0; i < 2; i++) {
      values.b[0][i] = widen_pair(permute_bytes(0, r[i], 0x6040));
      values.b[1][i] = widen_pair(permute_bytes(0, r[i], 0x7050));
    }
  }
}

// Puts the accumulators of one row tile back into the order of the head: afterwards values 0, 1 (and 2, 3,
// eight rows below) of column tile n are those of dims first_dim(n) and first_dim(n) + 1.
DEVICE void restore_order(float (&o)[kColumns][4]) {
  if constexpr (kFp8) {
#pragma unroll
    for (int n = 0; n < kColumns; n += 2)
      for (int row = 0; row < 4; row += 2) {
        float odd = o[n + 1][row];
        o[n + 1][row] = o[n][row + 1];
        o[n][row + 1] = odd;
      }
  }
}

DEVICE int first_dim(int column) {
  int t = static_cast<int>(lane_index()) % 4;
  return kFp8 ? column / 2 * 16 + 4 * t + column % 2 * 2 : column * 8 + 2 * t;
}

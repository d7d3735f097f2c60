// What the kernels are made of: element types, block geometry, the name of the instruction set that
// this translation unit is compiled for.
#pragma once

#include <cstdint>

// The files of one instruction set live in a namespace of their own, so the linker can never put a
// function compiled with AVX-512 where a plain one was meant.
#if defined(__AMX_BF16__)
#define PAGETIDE_ISA amx
#elif defined(__AVX512BF16__)
#define PAGETIDE_ISA avx512
#elif defined(__AVX2__) && defined(__FMA__)
#define PAGETIDE_ISA avx2
#else
#define PAGETIDE_ISA plain
#endif

#define PAGETIDE_INLINE inline __attribute__((always_inline))
#define PAGETIDE_EXPORT extern "C" __attribute__((visibility("default")))

namespace pagetide {

struct bfloat16 {
  uint16_t bits;
};

constexpr int kBlockTokens = 16;
constexpr int kLanes = 16;

// Keys and values are worked through in tiles: softmax state is updated once a tile.
constexpr int kTileTokens = 64;

// Each partition of the KV starts a softmax state of its own, merged in order afterwards. Partitions
// lie at fixed positions, so a result does not depend on how many threads shared the work.
constexpr int kPartitionTokens = 256;

constexpr int ceil_divided(int a, int b) { return (a + b - 1) / b; }

// Half open.
struct Range {
  int begin;
  int end;
};

// Whole cache lines.
struct Piece {
  const char* begin;
  const char* end;
};

}  // namespace pagetide

// Moves whole KV blocks: a copy within the cache, a gather of scattered blocks into a dense buffer on its way
// to the host tier, and a scatter on the way back.
#include "vector.cuh"

constexpr int kThreads = 256;

// to[to_ids[i]] = from[from_ids[i]] for each of `count` blocks; without ids, block i itself. A negative id
// moves nothing. Grid: (blocks, pieces of a block); strides in bytes, multiples of 16.
KERNEL __launch_bounds__(kThreads)
    move_blocks(unsigned char* __restrict__ to, const unsigned char* __restrict__ from,
                const int64_t* __restrict__ to_ids, const int64_t* __restrict__ from_ids, int64_t to_stride,
                int64_t from_stride, int, int, int, int num_bytes) {
  int64_t to_block = to_ids ? to_ids[blockIdx.x] : blockIdx.x;
  int64_t from_block = from_ids ? from_ids[blockIdx.x] : blockIdx.x;
  if (to_block < 0 || from_block < 0) return;
  to += to_block * to_stride;
  from += from_block * from_stride;
  int step = static_cast<int>(gridDim.y) * kThreads * 16;
  for (int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * 16; i < num_bytes; i += step)
    *reinterpret_cast<Vector*>(to + i) = *reinterpret_cast<const Vector*>(from + i);
}

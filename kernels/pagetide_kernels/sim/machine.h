// The simulated multiprocessor: runs one block at a time, one fiber per CUDA thread.
//
// Compiled without sanitizer instrumentation (build.py), so its own bookkeeping never looks like a race
// of the kernel. Everything a kernel reads or writes is therefore touched in dialect.h and collectives.h,
// which are compiled with the kernel.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sim {

constexpr unsigned kWarpSize = 32;
constexpr unsigned kMaxThreads = 1024;

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// Where a thread waits: an operation's name and the kernel line that called it.
struct Where {
  const char* operation;
  const char* file;
  int line;
};

// One lane's contribution to a warp collective, or its share of the result.
struct Lane {
  uint32_t word[12];
};

struct Warp {
  Lane in[kWarpSize];
  Lane out[kWarpSize];
  uint32_t arrived = 0;  // one bit a lane
  Where where{};         // of the collective in progress
  unsigned generation = 0;
};

// Fills `warp.out` from `warp.in`; runs once, in the last lane to arrive.
using Combine = void (*)(Warp& warp);

struct LaunchShape {
  Dim3 grid, block;
  size_t shared_bytes;  // of dynamic shared memory
  uint64_t seed;        // of the order of blocks and warps and of when async copies land
};

// Runs every block of the grid. `call(args)` is the kernel as one thread sees it.
// Returns null, or what went wrong (valid until the next launch).
const char* launch(const LaunchShape& shape, void (*call)(void** args), void** args);

// Below: for the running kernel.
Dim3 thread_index();
Dim3 block_index();
Dim3 block_dim();
Dim3 grid_dim();
unsigned lane_index();
uint64_t random_bits();

// Ends the launch with an error made like printf. The kernel does not go on.
[[noreturn]] void fail(const Where& where, const char* format, ...) __attribute__((format(printf, 2, 3)));

void sync_block(const Where& where);

// All 32 lanes must come to the same operation on the same line. Copies `in_words` of `in` from each lane;
// once the last has arrived, `combine` has run and each lane takes its `out_words`.
void warp_collective(Combine combine, const void* in, unsigned in_words, void* out, unsigned out_words,
                     const Where& where);
// A collective that also orders memory between the lanes, as __syncwarp does.
void sync_warp(const Where& where);
// __threadfence and atomics order other memory as in the PTX memory model: writes before a fence before an
// atomic of one thread come before reads after a fence after a later atomic, at the same address, of another.
void fence();
void before_atomic(void* address);

// The block's dynamic shared memory: filled with 0xFF, which is NaN in every float format in use.
void* dynamic_shared();
// Static shared memory of the block, one piece for each `key`, filled with 0xFF too.
void* static_shared(const void* key, size_t bytes);

}  // namespace sim

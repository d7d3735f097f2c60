#include "block.h"

#include <cstdlib>

namespace sim {
namespace {

constexpr size_t kGuardBytes = 64;  // behind each piece of shared memory: a write past the end changes it
constexpr unsigned char kGuard = 0xA5;
constexpr unsigned char kNan = 0xFF;
constexpr size_t kAlignment = 128;

// A fresh allocation for every block: to the race detector old memory would be shared between blocks, and
// AddressSanitizer sees every byte past the end.
SharedPiece allocate(const void* key, size_t bytes) {
#ifdef SIM_ASAN
  size_t guard = 0;
#else
  size_t guard = kGuardBytes;
#endif
  void* data = nullptr;
  if (posix_memalign(&data, kAlignment, bytes + guard)) abort();
  volatile unsigned char* byte = static_cast<unsigned char*>(data);
  for (size_t i = 0; i < bytes; i++) byte[i] = kNan;
  for (size_t i = 0; i < guard; i++) byte[bytes + i] = kGuard;
  return {key, static_cast<char*>(data), bytes};
}

}  // namespace

uint64_t random_bits() {
  block.random_state = block.random_state * 6364136223846793005ull + 1442695040888963407ull;
  return block.random_state >> 33;
}

void shuffle(unsigned* values, unsigned count) {
  for (unsigned i = count; i > 1; i--) {
    unsigned j = static_cast<unsigned>(random_bits() % i), value = values[i - 1];
    values[i - 1] = values[j];
    values[j] = value;
  }
}

// What threads synchronise on, for the race detector. Each block has its own, or one block's barriers would
// order its writes before the next block's reads; after two thousand blocks they come round again.
char* Block::token(unsigned index) {
  constexpr unsigned kTokens = 3 + 2 * kMaxThreads / kWarpSize;
  constexpr unsigned kBlocks = 2048;
  static uint64_t space[kTokens * kBlocks];
  return reinterpret_cast<char*>(&space[ordinal % kBlocks * kTokens + index]);
}

void Block::prepare(const LaunchShape& shape, void (*kernel_call)(void**), void** kernel_args) {
  dim = shape.block;
  grid = shape.grid;
  call = kernel_call;
  args = kernel_args;
  num_threads = dim.x * dim.y * dim.z;
  num_warps = num_threads / kWarpSize;
  random_state = shape.seed * 2654435761u + 1;
  for (unsigned i = 0; i < num_warps; i++) warp_order[i] = i;
}

void Block::start(const LaunchShape& shape) {
  num_live = num_threads;
  num_at_barrier = 0;
  ordinal++;
  shuffle(warp_order, num_warps);
  for (unsigned i = 0; i < num_threads; i++) {
    Thread& thread = threads[i];
    thread.state = State::kRunnable;
    thread.index = i;
    thread.thread_index = {i % dim.x, i / dim.x % dim.y, i / (dim.x * dim.y)};
    thread.first_copy = thread.last_copy = thread.num_groups = 0;
    thread.did_fence = false;
    thread.last_atomic = nullptr;
  }
  for (unsigned i = 0; i < num_warps; i++) warps[i].arrived = 0;
  shared[0] = allocate(nullptr, shape.shared_bytes);
}

void* Block::find_shared(const void* key, size_t bytes) {
  happens_after(shared_token());
  for (unsigned i = 1; i < kMaxSharedPieces; i++) {
    if (!shared[i].data) {
      shared[i] = allocate(key, bytes);
      happens_before(shared_token());
    }
    if (shared[i].key == key) return shared[i].data;
  }
  abort();
}

bool Block::guards_intact() const {
#ifndef SIM_ASAN
  for (const SharedPiece& piece : shared)
    for (size_t i = 0; piece.data && i < kGuardBytes; i++)
      if (static_cast<unsigned char>(piece.data[piece.bytes + i]) != kGuard) return false;
#endif
  return true;
}

// To free memory is to write it, and nothing orders what a block did before the next one: the race detector
// would complain. Under it the memory of all blocks is freed when the launch is over.
void Block::retire_shared() {
  for (SharedPiece& piece : shared) {
#ifndef SIM_TSAN
    free(piece.data);
    piece.data = nullptr;
#endif
    if (piece.data) {
      *reinterpret_cast<void**>(piece.data) = retired;
      retired = piece.data;
    }
    piece = {};
  }
}

void Block::free_retired() {
  while (retired) {
    void* next = *static_cast<void**>(retired);
    free(retired);
    retired = next;
  }
}

}  // namespace sim

// The state of the block being simulated: its threads, warps, barrier and shared memory.
#pragma once
#include "fiber.h"
#include "machine.h"

namespace sim {

enum class State : uint8_t { kRunnable, kAtWarp, kAtBarrier, kExited };

// A 16-byte copy to shared memory, under way from the moment it is issued until the thread waits for it.
struct PendingCopy {
  void* to;
  const void* from;  // null: zeros
  unsigned group;    // 0 is the oldest the thread ever committed
};

constexpr unsigned kMaxPendingCopies = 256;

struct Thread {
  Fiber fiber;
  State state = State::kExited;
  unsigned index = 0;
  Dim3 thread_index;
  Where where{};
  PendingCopy copies[kMaxPendingCopies];  // a ring: [first_copy, last_copy) modulo its size
  unsigned first_copy = 0, last_copy = 0;
  unsigned num_groups = 0;  // committed
  bool did_fence = false;
  void* last_atomic = nullptr;
};

struct SharedPiece {
  const void* key = nullptr;  // what asked for it
  char* data = nullptr;
  size_t bytes = 0;
};

constexpr unsigned kMaxSharedPieces = 9;  // the first is the dynamic one

struct Block {
  Thread threads[kMaxThreads];
  Warp warps[kMaxThreads / kWarpSize];
  unsigned warp_order[kMaxThreads / kWarpSize];
  unsigned num_threads = 0, num_warps = 0, num_live = 0, num_at_barrier = 0;
  unsigned barrier_generation = 0;
  unsigned ordinal = 0;  // of the block, among all that ever ran
  char exit_token;
  Thread* current = nullptr;
  Dim3 index, dim, grid;
  void (*call)(void**) = nullptr;
  void** args = nullptr;
  SharedPiece shared[kMaxSharedPieces];
  void* retired = nullptr;  // a list through the first bytes of each: shared memory of blocks that are done
  uint64_t random_state = 0;

  char* barrier_token() { return token(barrier_generation % 2); }
  char* shared_token() { return token(2); }
  char* warp_token(unsigned warp) { return token(3 + 2 * warp + warps[warp].generation % 2); }

  void prepare(const LaunchShape& shape, void (*call)(void**), void** args);
  void start(const LaunchShape& shape);
  void* find_shared(const void* key, size_t bytes);
  bool guards_intact() const;
  void retire_shared();
  void free_retired();

 private:
  char* token(unsigned index);
};

extern Block block;

void shuffle(unsigned* values, unsigned count);

}  // namespace sim

#include "machine.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "async_copy.h"
#include "block.h"
#include "fiber.h"

namespace sim {

// Everything about the launch in progress. One at a time: Python holds a lock around each launch.
Block block;

namespace {

Fiber caller;
char error[2048];

void copy_words(uint32_t* to, const uint32_t* from, unsigned count) {
  for (unsigned i = 0; i < count; i++) to[i] = from[i];
}

// Some runnable thread: mostly one of the same warp (they meet in collectives all the time), at times one
// of another warp, so that no warp's code is ever taken for atomic.
Thread* next_thread() {
  unsigned own = block.current->index / kWarpSize;
  bool stay = random_bits() % 8 != 0;
  for (unsigned i = stay ? 0 : 1; i <= block.num_warps; i++) {
    unsigned warp = i == 0 ? own : block.warp_order[i - 1];
    for (unsigned lane = 0; lane < kWarpSize; lane++) {
      Thread& thread = block.threads[warp * kWarpSize + (lane + block.current->index + 1) % kWarpSize];
      if (thread.state == State::kRunnable) return &thread;
    }
  }
  return nullptr;
}

void run(Thread& next, bool finished = false) {
  Thread& last = *block.current;
  if (&next == &last) return;
  block.current = &next;
  last.fiber.switch_to(next.fiber, finished);
}

void report_deadlock() {
  int used = snprintf(error, sizeof error, "deadlock in block (%u, %u, %u):", block.index.x, block.index.y,
                      block.index.z);
  const Thread* previous = nullptr;
  for (unsigned i = 0; i < block.num_threads && used < static_cast<int>(sizeof error); i++) {
    const Thread& thread = block.threads[i];
    if (thread.state == State::kExited) continue;
    bool same = previous && previous->where.line == thread.where.line &&
                previous->where.operation == thread.where.operation;
    if (!same)
      used += snprintf(error + used, sizeof error - used, " thread %u and on wait at %s (%s:%d);", i,
                       thread.where.operation, thread.where.file, thread.where.line);
    previous = &thread;
  }
}

void give_way(bool finished = false) {
  if (Thread* next = next_thread()) return run(*next, finished);
  if (block.num_live) report_deadlock();
  block.current->fiber.switch_to(caller, finished);
}

void release_barrier() {
  for (unsigned i = 0; i < block.num_threads; i++)
    if (block.threads[i].state == State::kAtBarrier) block.threads[i].state = State::kRunnable;
  block.num_at_barrier = 0;
  block.barrier_generation++;
  shuffle(block.warp_order, block.num_warps);
}

void thread_main() {
  block.current->fiber.arrived();
  block.call(block.args);
  happens_before(&block.exit_token);
  block.current->state = State::kExited;
  block.num_live--;
  if (block.num_live && block.num_at_barrier == block.num_live) release_barrier();  // the exited don't count
  give_way(true);
  abort();
}

void run_block(const LaunchShape& shape, unsigned linear) {
  block.index = {linear % shape.grid.x, linear / shape.grid.x % shape.grid.y,
                 linear / (shape.grid.x * shape.grid.y)};
  block.start(shape);
  for (unsigned i = 0; i < block.num_threads; i++) block.threads[i].fiber.reset(thread_main);
  block.current = &block.threads[block.warp_order[0] * kWarpSize];
  caller.switch_to(block.current->fiber);
  if (!error[0] && !block.guards_intact())
    snprintf(error, sizeof error, "block (%u, %u, %u) wrote past the end of its shared memory", block.index.x,
             block.index.y, block.index.z);
  block.retire_shared();
}

}  // namespace

const char* launch(const LaunchShape& shape, void (*call)(void**), void** args) {
  error[0] = 0;
  unsigned num_threads = shape.block.x * shape.block.y * shape.block.z;
  if (num_threads == 0 || num_threads > kMaxThreads || num_threads % kWarpSize)
    return "a block must have a multiple of 32 threads, at most 1024";
  block.prepare(shape, call, args);
  unsigned num_blocks = shape.grid.x * shape.grid.y * shape.grid.z;
  unsigned* order = static_cast<unsigned*>(malloc(num_blocks * sizeof(unsigned)));
  for (unsigned i = 0; i < num_blocks; i++) order[i] = i;
  shuffle(order, num_blocks);
  for (unsigned i = 0; i < num_blocks && !error[0]; i++) run_block(shape, order[i]);
  free(order);
  happens_after(&block.exit_token);
  block.free_retired();
  return error[0] ? error : nullptr;
}

void fail(const Where& where, const char* format, ...) {
  int used =
      snprintf(error, sizeof error, "block (%u, %u, %u), thread %u, %s (%s:%d): ", block.index.x,
               block.index.y, block.index.z, block.current->index, where.operation, where.file, where.line);
  va_list values;
  va_start(values, format);
  vsnprintf(error + used, sizeof error - used, format, values);
  va_end(values);
  block.current->fiber.switch_to(caller, true);
  abort();
}

void sync_block(const Where& where) {
  Thread& thread = *block.current;
  thread.where = where;
  char* token = block.barrier_token();
  happens_before(token);
  thread.state = State::kAtBarrier;
  if (++block.num_at_barrier == block.num_live) release_barrier();
  give_way();
  happens_after(token);
}

void warp_collective(Combine combine, const void* in, unsigned in_words, void* out, unsigned out_words,
                     const Where& where) {
  Thread& thread = *block.current;
  Warp& warp = block.warps[thread.index / kWarpSize];
  unsigned lane = thread.index % kWarpSize;
  thread.where = where;
  if (warp.arrived == 0) warp.where = where;
  if (warp.where.operation != where.operation || warp.where.line != where.line)
    fail(where, "the warp has diverged: other lanes are at %s (%s:%d)", warp.where.operation, warp.where.file,
         warp.where.line);
  copy_words(warp.in[lane].word, static_cast<const uint32_t*>(in), in_words);
  warp.arrived |= 1u << lane;
  if (warp.arrived != ~0u) {
    thread.state = State::kAtWarp;
    give_way();
  } else {
    combine(warp);
    warp.arrived = 0;
    warp.generation++;
    for (unsigned i = 0; i < kWarpSize; i++) block.threads[thread.index - lane + i].state = State::kRunnable;
  }
  copy_words(static_cast<uint32_t*>(out), warp.out[lane].word, out_words);
}

void sync_warp(const Where& where) {
  // By the parity of its generation: a lane that runs ahead must not pass on later writes.
  char* token = block.warp_token(block.current->index / kWarpSize);
  happens_before(token);
  warp_collective([](Warp&) {}, nullptr, 0, nullptr, 0, where);
  happens_after(token);
}

void fence() {
  Thread& thread = *block.current;
  if (thread.last_atomic) happens_after(thread.last_atomic);
  thread.did_fence = true;
}

void before_atomic(void* address) {
  if (block.current->did_fence) happens_before(address);
  block.current->last_atomic = address;
}

Dim3 thread_index() { return block.current->thread_index; }
Dim3 block_index() { return block.index; }
Dim3 block_dim() { return block.dim; }
Dim3 grid_dim() { return block.grid; }
unsigned lane_index() { return block.current->index % kWarpSize; }
void* dynamic_shared() { return block.shared[0].data; }
void* static_shared(const void* key, size_t bytes) { return block.find_shared(key, bytes); }

}  // namespace sim

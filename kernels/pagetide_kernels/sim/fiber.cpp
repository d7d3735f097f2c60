#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#ifdef SIM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef SIM_TSAN
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* token);
void __tsan_release(void* token);
}
#endif

#ifndef __x86_64__
#error "the simulator's context switch is written for x86-64"
#endif

// Saves what the System V ABI asks a callee to keep, swaps stacks, restores. ucontext would make a
// system call for the signal mask at each switch, about thirty times slower.
extern "C" void sim_swap_stacks(void** save, void* load);
asm(R"(
.text
.globl sim_swap_stacks
.hidden sim_swap_stacks
.type sim_swap_stacks,@function
sim_swap_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sim_swap_stacks, .-sim_swap_stacks
)");

namespace sim {
namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kGuardBytes = 4096;  // below the stack: running over it is a fault, not a corruption
constexpr unsigned kNoSync = 1;       // switching fibers must not look like synchronisation

#ifdef SIM_ASAN
Fiber* asan_leaving = nullptr;  // whose stack bounds the next arrival learns
#endif

char* map_stack() {
  void* base = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) abort();
  mprotect(base, kGuardBytes, PROT_NONE);
  return static_cast<char*>(base) + kGuardBytes;
}

void unmap_stack(char* stack) { munmap(stack - kGuardBytes, kGuardBytes + kStackBytes); }

}  // namespace

Fiber::~Fiber() {
#ifdef SIM_TSAN
  if (stack_ && tsan_fiber_) __tsan_destroy_fiber(tsan_fiber_);
#endif
  if (stack_) unmap_stack(stack_);
}

void Fiber::reset(Entry entry) {
#ifdef SIM_TSAN
  // A new identity and a new stack for each block: with the old ones two blocks would look ordered, or
  // would seem to race on the stack.
  if (tsan_fiber_) __tsan_destroy_fiber(tsan_fiber_);
  tsan_fiber_ = __tsan_create_fiber(0);
  if (stack_) unmap_stack(stack_);
  stack_ = nullptr;
#endif
  if (!stack_) stack_ = map_stack();
#ifdef SIM_ASAN
  __asan_unpoison_memory_region(stack_, kStackBytes);
  asan_stack_ = stack_;
  asan_stack_bytes_ = kStackBytes;
  asan_fake_stack_ = nullptr;
#endif
  void** top = reinterpret_cast<void**>(stack_ + kStackBytes - 64);
  *--top = nullptr;  // entry's return address: it never returns
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; i++) *--top = nullptr;  // the callee-saved registers
  stack_pointer_ = top;
}

void Fiber::switch_to(Fiber& next, [[maybe_unused]] bool finished) {
#ifdef SIM_ASAN
  __sanitizer_start_switch_fiber(finished ? nullptr : &asan_fake_stack_, next.asan_stack_,
                                 next.asan_stack_bytes_);
  asan_leaving = this;
#endif
#ifdef SIM_TSAN
  if (!stack_ && !tsan_fiber_) tsan_fiber_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(next.tsan_fiber_, kNoSync);
#endif
  sim_swap_stacks(&stack_pointer_, next.stack_pointer_);
  arrived();
}

void Fiber::arrived() {
#ifdef SIM_ASAN
  const void* from = nullptr;
  size_t from_bytes = 0;
  __sanitizer_finish_switch_fiber(asan_fake_stack_, &from, &from_bytes);
  asan_leaving->asan_stack_ = from;
  asan_leaving->asan_stack_bytes_ = from_bytes;
#endif
}

void happens_before([[maybe_unused]] void* token) {
#ifdef SIM_TSAN
  __tsan_release(token);
#endif
}

void happens_after([[maybe_unused]] void* token) {
#ifdef SIM_TSAN
  __tsan_acquire(token);
#endif
}

}  // namespace sim

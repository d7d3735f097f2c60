// A fiber is one simulated CUDA thread: a stack, and the point where it last gave way.
#pragma once
#include <cstddef>

namespace sim {

using Entry = void (*)();

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  // Makes the fiber start at `entry` when it is next switched to. Whatever it was running is dropped.
  void reset(Entry entry);

  // Leaves this fiber, which must be the running one, and continues `next`. `finished`: never to come back.
  void switch_to(Fiber& next, bool finished = false);

  // The first thing an entry function must call: it tells AddressSanitizer where the new stack is.
  void arrived();

 private:
  void* stack_pointer_ = nullptr;
  char* stack_ = nullptr;  // null: the thread that called the simulator, on its own stack
  const void* asan_stack_ = nullptr;
  size_t asan_stack_bytes_ = 0;
  void* asan_fake_stack_ = nullptr;
  void* tsan_fiber_ = nullptr;
};

// Race-detector edges. Without ThreadSanitizer they do nothing.
void happens_before(void* token);
void happens_after(void* token);

}  // namespace sim

// Threads that go through a step together.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>

namespace pagetide {

// A barrier for phases of microseconds: who comes first watches for a moment and then sleeps, so it is quick
// on idle cores and leaves busy ones to others. OpenMP's either sleeps at once or spins on.
class Barrier {
 public:
  // Nobody is waiting.
  void set_size(int size) { size_ = size; }

  void wait() {
    const int round = round_.load();
    if (arrived_.fetch_add(1) + 1 == size_) return release(round + 1);
    for (int i = 0; i < kGlances; ++i) {
      if (round_.load(std::memory_order_acquire) != round) return;
      pause();
    }
    sleep_through(round);
  }

 private:
  static constexpr int kGlances = 4000;  // some forty microseconds: longer than threads' shares differ

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  static_assert(sizeof(std::atomic<int>) == sizeof(int), "the kernel watches a plain int");

  long futex(int operation, int value) {
    return syscall(SYS_futex, reinterpret_cast<int*>(&round_), operation, value, nullptr, nullptr, 0);
  }

  void release(int next_round) {
    arrived_.store(0);
    round_.store(next_round);
    if (sleepers_.load() > 0) futex(FUTEX_WAKE_PRIVATE, INT_MAX);
  }

  // Announced before the kernel compares the round, so that a release in between is not missed.
  void sleep_through(int round) {
    sleepers_.fetch_add(1);
    while (round_.load() == round) futex(FUTEX_WAIT_PRIVATE, round);
    sleepers_.fetch_sub(1);
  }

  int size_ = 1;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> round_{0};
  std::atomic<int> sleepers_{0};
};

// Hands out items, each once, to whoever comes.
class Queue {
 public:
  // Nobody is taking.
  void refill() { next_.store(0, std::memory_order_relaxed); }

  int take() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  alignas(64) std::atomic<int> next_{0};
};

}  // namespace pagetide

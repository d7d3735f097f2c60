// What a step works in, kept from step to step.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "linear.h"

namespace pagetide {

// Memory that grows and is never cleared.
class Buffer {
 public:
  template <class T = void>
  T* get() const {
    return static_cast<T*>(memory_.get());
  }

  void reserve(size_t bytes) {
    if (bytes <= capacity_) return;
    memory_.reset(::operator new(bytes, kAlignment));
    capacity_ = bytes;
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(void* memory) const { ::operator delete(memory, kAlignment); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t capacity_ = 0;
};

// What a step's layers hand to its attention and back: a row for each token.
struct Rows {
  Buffer qkv;       // [T][Hq + 2 Hkv][D]
  Buffer attended;  // [T][Hq][D]
};

// What a thread works in.
struct ThreadMemory {
  Buffer attention;
  Buffer ups;  // [P][a piece's columns]
  WidenedInputs inputs;
};

}  // namespace pagetide

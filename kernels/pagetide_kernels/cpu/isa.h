// Which instruction set the kernels run with: the best this CPU has, unless another is forced.
#pragma once

#include <cstdint>

namespace pagetide {

enum class Isa : int { plain = 0, avx2 = 1, avx512 = 2, amx = 3 };

Isa current_isa();

// A core's L1 data cache has more than 32 KiB: room for what is fetched ahead beside what is at hand.
extern const bool kHasRoomInL1;

// Of the L3 cache that cores share, 0 if there is none or the system doesn't say.
extern const int64_t kL3Bytes;

// Kernels run on a thread while one of these is alive on it: AMX wants its tiles laid out, and let go of. The
// instruction set is not changed meanwhile.
class ThreadSetup {
 public:
  ThreadSetup();
  ~ThreadSetup();
  ThreadSetup(const ThreadSetup&) = delete;
  ThreadSetup& operator=(const ThreadSetup&) = delete;
};

// One table of kernels for each instruction set.
template <class Kernels>
struct PerIsa {
  const Kernels& plain;
  const Kernels& avx2;
  const Kernels& avx512;
  const Kernels& amx;

  const Kernels& current() const {
    switch (current_isa()) {
      case Isa::amx:
        return amx;
      case Isa::avx512:
        return avx512;
      case Isa::avx2:
        return avx2;
      default:
        return plain;
    }
  }
};

#if defined(__x86_64__)
#define PAGETIDE_PER_ISA(kernels) {plain::kernels, avx2::kernels, avx512::kernels, amx::kernels}
#else
#define PAGETIDE_PER_ISA(kernels) {plain::kernels, plain::kernels, plain::kernels, plain::kernels}
#endif

}  // namespace pagetide

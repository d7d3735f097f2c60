// Which instruction set the kernels run with: the best this CPU has, unless another is forced.
#pragma once

namespace pagetide {

enum class Isa : int { plain = 0, avx2 = 1, avx512 = 2 };

Isa current_isa();

// One table of kernels for each instruction set.
template <class Kernels>
struct PerIsa {
  const Kernels& plain;
  const Kernels& avx2;
  const Kernels& avx512;

  const Kernels& current() const {
    if (current_isa() == Isa::avx512) return avx512;
    return current_isa() == Isa::avx2 ? avx2 : plain;
  }
};

#if defined(__x86_64__)
#define PAGETIDE_PER_ISA(kernels) {plain::kernels, avx2::kernels, avx512::kernels}
#else
#define PAGETIDE_PER_ISA(kernels) {plain::kernels, plain::kernels, plain::kernels}
#endif

}  // namespace pagetide

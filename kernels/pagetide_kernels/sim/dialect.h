// The CUDA words a kernel may use, as C++ for the simulator. Included before every .cu file (build.py).
//
// Kept small on purpose: no static __shared__ (prim.cuh has SHARED), full-warp collectives only.
#pragma once
#define PAGETIDE_SIM 1

#include <cmath>
#include <cstdint>
#include <utility>

#include "async_copy.h"
#include "collectives.h"
#include "float_formats.h"
#include "machine.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)

#define threadIdx (sim::thread_index())
#define blockIdx (sim::block_index())
#define blockDim (sim::block_dim())
#define gridDim (sim::grid_dim())

#define SIM_HERE(operation) (sim::Where{operation, __builtin_FILE(), __builtin_LINE()})
#define __syncthreads() sim::sync_block(SIM_HERE("__syncthreads"))
#define __syncwarp() sim::sync_warp(SIM_HERE("__syncwarp"))
#define __threadfence() sim::fence()

// Relaxed, as on the GPU: only fences order other memory around it.
template <class T>
T atomicAdd(T* address, T value) {
  sim::before_atomic(address);
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}

namespace sim {

template <class... Args, size_t... I>
void call_with(void (*kernel)(Args...), void** args, std::index_sequence<I...>) {
  kernel(*static_cast<Args*>(args[I])...);
}

// Takes arguments as cuLaunchKernel does: one pointer to each.
template <auto kernel, class... Args>
void unpack(void (*)(Args...), void** args) {
  call_with(kernel, args, std::index_sequence_for<Args...>());
}

template <class... Args>
constexpr int arity(void (*)(Args...)) {
  return sizeof...(Args);
}

template <auto kernel>
void trampoline(void** args) {
  unpack<kernel>(kernel, args);
}

}  // namespace sim

// Exports `kernel` under its own name with `_launch` behind it, for Python and for replay.h, and the number
// of its arguments with `_arity`.
#define SIM_EXPORT(kernel)                                                       \
  extern "C" __attribute__((visibility("default"))) const char* kernel##_launch( \
      const sim::LaunchShape* shape, void** args) {                              \
    return sim::launch(*shape, sim::trampoline<kernel>, args);                   \
  }                                                                              \
  extern "C" __attribute__((visibility("default"))) int kernel##_arity() { return sim::arity(kernel); }

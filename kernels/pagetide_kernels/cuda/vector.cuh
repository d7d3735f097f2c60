// Sixteen bytes of a row at a time, and sums over a block of threads: for kernels bound by memory.
#pragma once
#include "prim.cuh"

constexpr int kVector = 8;  // 16-bit values in 16 bytes

struct alignas(16) Vector {
  uint32_t pair[kVector / 2];
};

template <class T>
DEVICE void load_vector(float (&values)[kVector], const T* from) {
  Vector vector = *reinterpret_cast<const Vector*>(from);
#pragma unroll
  for (int i = 0; i < kVector; i++)
    values[i] = i % 2 ? high_float(T{}, vector.pair[i / 2]) : low_float(T{}, vector.pair[i / 2]);
}

struct alignas(16) Floats {
  float value[4];
};

DEVICE void load_floats(float (&values)[kVector], const float* from) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    Floats floats = reinterpret_cast<const Floats*>(from)[half];
#pragma unroll
    for (int i = 0; i < 4; i++) values[4 * half + i] = floats.value[i];
  }
}

template <class T>
DEVICE void store_vector(T* to, const float (&values)[kVector]) {
  Vector vector;
#pragma unroll
  for (int i = 0; i < kVector / 2; i++) vector.pair[i] = pack(T{}, values[2 * i], values[2 * i + 1]);
  *reinterpret_cast<Vector*>(to) = vector;
}

template <class T>
DEVICE T from_float(float x) {
  return T{static_cast<uint16_t>(pack(T{}, x, 0))};
}

// Combines one value of each thread; every thread gets the result. `scratch` holds one value a warp, and is
// free for the next use when this returns.
template <int kWarps, class T, class Combine>
DEVICE T over_block(T (&scratch)[kWarps], T value, Combine combine) {
#pragma unroll
  for (int mask = 1; mask < kWarpSize; mask *= 2) value = combine(value, shuffle_xor(value, mask));
  if (lane_index() == 0) scratch[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = scratch[0];
  for (int i = 1; i < kWarps; i++) value = combine(value, scratch[i]);
  __syncthreads();
  return value;
}

template <int kWarps>
DEVICE float sum_over_block(float (&scratch)[kWarps], float value) {
  return over_block(scratch, value, [](float a, float b) { return a + b; });
}
template <int kWarps>
DEVICE float max_over_block(float (&scratch)[kWarps], float value) {
  return over_block(scratch, value, [](float a, float b) { return fmaxf(a, b); });
}

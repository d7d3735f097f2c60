// The primitives the kernels are made of, and the only file with two bodies: PTX for a GPU (sm_80 and
// later), the simulator's collectives for a CPU. Needs no header, so NVRTC needs no include path.
//
// Names of instructions are PTX's: PTX ISA, chapters "Data Movement" and "Warp-level Matrix Instructions".
#pragma once

#ifndef PAGETIDE_SIM
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
#endif

// Storage formats. Arithmetic is in float; only mma reads 16-bit values as they are.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
struct e4m3 {
  uint8_t bits;
};

template <class T>
using Same = T;  // lets a macro declare a pointer to an array type

constexpr int kWarpSize = 32;
#define kInfinity (bits_float(0x7F800000u))
#define kNegativeInfinity (bits_float(0xFF800000u))

#ifndef PAGETIDE_SIM
// ------------------------------------------------------------------------------------------ on a GPU
#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ void
// A name for shared memory of one type; every thread of the block gets the same.
#define SHARED(Type, name)                                            \
  __shared__ __align__(128) unsigned char name##_bytes[sizeof(Type)]; \
  auto& name = *reinterpret_cast<Same<Type>*>(name##_bytes)
#define DYNAMIC_SHARED(Type, name)                               \
  extern __shared__ __align__(128) unsigned char name##_bytes[]; \
  auto& name = *reinterpret_cast<Same<Type>*>(name##_bytes)

DEVICE unsigned lane_index() { return threadIdx.x % kWarpSize; }

// `x`, but what is computed from it can't be moved out of a loop: addresses that the compiler would keep in
// registers from one round to the next are computed anew.
DEVICE int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DEVICE uint32_t pack(bf16, float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
DEVICE uint32_t pack(f16, float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
DEVICE float to_float(bf16 x) { return __int_as_float(static_cast<int>(x.bits) << 16); }
DEVICE float to_float(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
DEVICE uint32_t float_bits(float x) { return static_cast<uint32_t>(__float_as_int(x)); }
DEVICE float bits_float(uint32_t x) { return __int_as_float(static_cast<int>(x)); }

// Copies 16 bytes to shared memory in the background; zeros where not `valid` (`from` is not read then).
DEVICE void cp_async16(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kGroupsLeft>
DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
}

// Two or four 8 x 8 matrices of 16-bit values from shared memory: lane 8 i + j gives the address of row j of
// matrix i.
DEVICE void ldmatrix_x2(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
DEVICE void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

#define PAGETIDE_MMA(format, suffix)                                                         \
  DEVICE void mma(format, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." suffix "." suffix                  \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"      \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));            \
  }
PAGETIDE_MMA(bf16, "bf16")
PAGETIDE_MMA(f16, "f16")
#undef PAGETIDE_MMA

template <class T>
DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
}
template <class T>
DEVICE T shuffle(T value, int source_lane) {
  return __shfl_sync(0xFFFFFFFFu, value, source_lane);
}
template <class T>
DEVICE T shuffle_up(T value, int distance) {
  return __shfl_up_sync(0xFFFFFFFFu, value, distance);
}
DEVICE uint32_t warp_ballot(bool predicate) { return __ballot_sync(0xFFFFFFFFu, predicate); }
DEVICE int count_bits(uint32_t bits) { return __popc(bits); }

// Bytes of the two registers chosen by the four hex digits of `selector` (lowest first; 0-3 `a`, 4-7 `b`).
DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}

#else
// ------------------------------------------------------------------------------------------ simulated
#define DEVICE inline
#define KERNEL extern "C" void
#define SHARED(Type, name)          \
  static const char name##_key = 0; \
  auto& name = *static_cast<Same<Type>*>(sim::static_shared(&name##_key, sizeof(Type)))
#define DYNAMIC_SHARED(Type, name) auto& name = *static_cast<Same<Type>*>(sim::dynamic_shared())
// The kernel's own line in the simulator's reports.
#define AT const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define WHERE(operation) (sim::Where{operation, file, line})

DEVICE unsigned lane_index() { return sim::lane_index(); }
DEVICE int opaque(int x) { return x; }
DEVICE float exp2_fast(float x) { return exp2f(x); }
DEVICE uint32_t float_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
DEVICE float bits_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
DEVICE uint32_t pack(bf16, float low, float high) {
  return sim::encode_bf16(low) | static_cast<uint32_t>(sim::encode_bf16(high)) << 16;
}
DEVICE uint32_t pack(f16, float low, float high) {
  return sim::encode_f16(low) | static_cast<uint32_t>(sim::encode_f16(high)) << 16;
}
DEVICE float to_float(bf16 x) { return sim::decode_bf16(x.bits); }
DEVICE float to_float(f16 x) { return sim::decode_f16(x.bits); }

DEVICE void cp_async16(void* to, const void* from, bool valid, AT) {
  sim::async_copy16(to, from, valid, WHERE("cp.async"));
}
DEVICE void cp_async_commit() { sim::async_copy_commit(); }
template <int kGroupsLeft>
DEVICE void cp_async_wait() {
  sim::async_copy_wait(kGroupsLeft);
}

DEVICE void ldmatrix_x2(uint32_t (&r)[2], const void* row, AT) {
  sim::ldmatrix<2>(r, row, false, WHERE("ldmatrix"));
}
DEVICE void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row, AT) {
  sim::ldmatrix<2>(r, row, true, WHERE("ldmatrix.trans"));
}
DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void* row, AT) {
  sim::ldmatrix<4>(r, row, false, WHERE("ldmatrix"));
}
DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, AT) {
  sim::ldmatrix<4>(r, row, true, WHERE("ldmatrix.trans"));
}
DEVICE void mma(bf16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, AT) {
  sim::mma(c, a, b0, b1, sim::Precision::kBf16, WHERE("mma"));
}
DEVICE void mma(f16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, AT) {
  sim::mma(c, a, b0, b1, sim::Precision::kF16, WHERE("mma"));
}
template <class T>
DEVICE T shuffle_xor(T value, int mask, AT) {
  return sim::shuffle_from(value, lane_index() ^ static_cast<unsigned>(mask), WHERE("shfl"));
}
template <class T>
DEVICE T shuffle(T value, int source_lane, AT) {
  return sim::shuffle_from(value, static_cast<unsigned>(source_lane), WHERE("shfl"));
}
template <class T>
DEVICE T shuffle_up(T value, int distance, AT) {
  int source = static_cast<int>(lane_index()) - distance;
  return sim::shuffle_from(value, source < 0 ? lane_index() : static_cast<unsigned>(source), WHERE("shfl"));
}
DEVICE uint32_t warp_ballot(bool predicate, AT) { return sim::ballot(predicate, WHERE("ballot")); }
DEVICE int count_bits(uint32_t bits) { return __builtin_popcount(bits); }
DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  uint64_t bytes = a | static_cast<uint64_t>(b) << 32;
  uint32_t result = 0;
  for (int i = 0; i < 4; i++)
    result |= static_cast<uint32_t>(bytes >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
  return result;
}
#undef AT
#undef WHERE
#endif

// ------------------------------------------------------------------------------------------ for both
DEVICE constexpr int min_of(int a, int b) { return a < b ? a : b; }
DEVICE constexpr int max_of(int a, int b) { return a > b ? a : b; }
DEVICE constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }

// The two values of a register that `pack` made.
template <class T>
DEVICE float low_float(T, uint32_t pair) {
  return to_float(T{static_cast<uint16_t>(pair)});
}
template <class T>
DEVICE float high_float(T, uint32_t pair) {
  return to_float(T{static_cast<uint16_t>(pair >> 16)});
}

// Largest value and sum over the lanes whose index differs only in the bits below `kWidth`.
template <int kWidth>
DEVICE float max_over(float x) {
#pragma unroll
  for (int mask = 1; mask < kWidth; mask *= 2) x = fmaxf(x, shuffle_xor(x, mask));
  return x;
}
template <int kWidth>
DEVICE float sum_over(float x) {
#pragma unroll
  for (int mask = 1; mask < kWidth; mask *= 2) x += shuffle_xor(x, mask);
  return x;
}

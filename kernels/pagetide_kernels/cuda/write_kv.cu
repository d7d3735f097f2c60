// Writes new tokens' keys and values into the paged cache.
//
// `write_kv` copies keys and values as they are. `split_qkv` is what follows a fused QKV projection: it
// normalises query and key heads (Qwen 3), turns them by their position (RoPE, Su et al. 2021, halves paired
// as in Llama), and writes queries to a dense tensor and keys and values to the cache, in one pass.
//
// HEAD_DIM, ELEMENT and CACHE come from the compiler command line.
#include "fp8.cuh"
#include "vector.cuh"

using Element = ELEMENT;
using Cache = CACHE;
constexpr int kHeadDim = HEAD_DIM;
constexpr int kBlockSize = 16;
constexpr int kWarps = 4;
constexpr int kPairs = kHeadDim / 2;
constexpr int kPairsPerLane = (kPairs + kWarpSize - 1) / kWarpSize;

DEVICE void store(Element* to, float value) { *to = from_float<Element>(value); }
DEVICE void store(e4m3* to, float value) { *to = to_e4m3(value); }

// Where a token's head lies in the cache; `kind` 0 is the key, 1 the value. Null for a negative slot.
DEVICE Cache* place(Cache* cache, int64_t slot, int64_t stride, int num_kv_heads, int kind, int kv_head) {
  if (slot < 0) return nullptr;
  int64_t tile = kind * num_kv_heads + kv_head;
  return cache + slot / kBlockSize * stride + (tile * kBlockSize + slot % kBlockSize) * kHeadDim;
}

// Grid: (tokens, heads / kWarps); one warp a (token, KV head).
KERNEL __launch_bounds__(kWarps* kWarpSize)
    write_kv(Cache* __restrict__ kv_cache, const Element* __restrict__ key, const Element* __restrict__ value,
             const int64_t* __restrict__ slots, int64_t cache_stride, int64_t key_stride,
             int64_t value_stride, int, int, int num_kv_heads, int, float key_scale, float value_scale) {
  int kv_head = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / kWarpSize);
  int64_t token = blockIdx.x, slot = slots[token];
  if (kv_head >= num_kv_heads || slot < 0) return;
  const Element* from[2] = {key + token * key_stride, value + token * value_stride};
  float unit[2] = {1 / key_scale, 1 / value_scale};
  for (int kind = 0; kind < 2; kind++) {
    Cache* to = place(kv_cache, slot, cache_stride, num_kv_heads, kind, kv_head);
    for (int dim = static_cast<int>(lane_index()); dim < kHeadDim; dim += kWarpSize)
      store(to + dim, to_float(from[kind][kv_head * kHeadDim + dim]) * unit[kind]);
  }
}

// One head of one token, spread over a warp in the pairs that RoPE turns: of the first `rotary_dim` dims,
// i and i + rotary_dim / 2; of the rest, likewise, but they are not turned.
struct Head {
  float value[kPairsPerLane][2];

  DEVICE static int pair_at(int i) { return i * kWarpSize + static_cast<int>(lane_index()); }
  DEVICE static int dim(int pair, int half, int rotary_dim) {
    int turned = rotary_dim / 2, still = (kHeadDim - rotary_dim) / 2;
    return pair < turned ? pair + half * turned : rotary_dim + (pair - turned) + half * still;
  }

  template <class Body>
  DEVICE void each(int rotary_dim, Body body) {
#pragma unroll
    for (int i = 0; i < kPairsPerLane; i++)
      if (pair_at(i) < kPairs)
        for (int half = 0; half < 2; half++) body(dim(pair_at(i), half, rotary_dim), value[i][half]);
  }

  // x / rms(x) * weight, rounded as a layer of its own would round it.
  DEVICE void normalise(const float* weight, float epsilon, int rotary_dim) {
    float squares = 0;
    each(rotary_dim, [&](int, float& x) { squares += x * x; });
    float scale = 1 / sqrtf(sum_over<kWarpSize>(squares) / kHeadDim + epsilon);
    each(rotary_dim,
         [&](int dim, float& x) { x = to_float(from_float<Element>(x * scale * weight[dim])); });
  }

  // `cos` and `sin` are the token's rows: their halves are alike, but `sin` is negated in its first.
  DEVICE void turn(const float* cos, const float* sin, int rotary_dim) {
#pragma unroll
    for (int i = 0; i < kPairsPerLane; i++) {
      int pair = pair_at(i);
      if (pair >= rotary_dim / 2) continue;
      float cosine = cos[pair], sine = sin[rotary_dim / 2 + pair];
      float x = value[i][0], y = value[i][1];
      value[i][0] = x * cosine - y * sine;
      value[i][1] = y * cosine + x * sine;
    }
  }
};

// Grid: (tokens, heads / kWarps) over Hq query heads, then Hkv key heads, then Hkv value heads, as they lie
// in a row of `qkv`. `norm` has a row for each query and key head; null where a model has none.
KERNEL __launch_bounds__(kWarps* kWarpSize)
    split_qkv(Element* __restrict__ query, Cache* __restrict__ kv_cache, const Element* __restrict__ qkv,
              const float* __restrict__ cos, const float* __restrict__ sin, const int64_t* __restrict__ slots,
              const float* __restrict__ norm, int64_t query_stride, int64_t cache_stride, int64_t qkv_stride,
              int, int, int num_heads, int num_kv_heads, int, int rotary_dim, float epsilon, float key_scale,
              float value_scale) {
  int head = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / kWarpSize);
  int64_t token = blockIdx.x;
  if (head >= num_heads + 2 * num_kv_heads) return;
  bool is_query = head < num_heads, is_value = head >= num_heads + num_kv_heads;
  Head values;
  const Element* from = qkv + token * qkv_stride + head * kHeadDim;
  values.each(rotary_dim, [&](int dim, float& x) { x = to_float(from[dim]); });
  if (norm && !is_value) values.normalise(norm + head * kHeadDim, epsilon, rotary_dim);
  if (!is_value) values.turn(cos + token * rotary_dim, sin + token * rotary_dim, rotary_dim);

  if (is_query) {
    Element* to = query + token * query_stride + head * kHeadDim;
    values.each(rotary_dim, [&](int dim, float& x) { store(to + dim, x); });
    return;
  }
  int kv_head = head - num_heads - (is_value ? num_kv_heads : 0);
  Cache* to = place(kv_cache, slots[token], cache_stride, num_kv_heads, is_value, kv_head);
  float unit = 1 / (is_value ? value_scale : key_scale);
  if (to) values.each(rotary_dim, [&](int dim, float& x) { store(to + dim, x * unit); });
}

// Writes the keys and values of a step's tokens to their places in the paged cache.

#include <cstring>

#include "elements.h"
#include "error.h"
#include "kv_codes.h"
#include "kv_scales.h"

namespace pagetide {
namespace {

// Below this many bytes, starting threads costs more than it saves.
constexpr int64_t kSerialBytes = 1 << 18;

// The arguments of signatures.WRITE_KV, in its order. Strides are in elements.
template <class Element, class Cache>
struct KvWrite {
  Cache* cache;
  const Element* key;
  const Element* value;
  const int64_t* slots;
  int64_t cache_stride;
  int64_t key_stride;
  int64_t value_stride;
  int num_tokens;
  int num_blocks;
  int num_kv_heads;
  int head_size;

  const char* problem() const {
    const int64_t num_slots = int64_t{num_blocks} * kBlockTokens;
    for (int token = 0; token < num_tokens; ++token) {
      if (slots[token] >= num_slots) {
        return error(
            "write_kv: slots[%d] is %lld; expected less than %lld, the cache's %d blocks of %d tokens", token,
            static_cast<long long>(slots[token]), static_cast<long long>(num_slots), num_blocks,
            kBlockTokens);
      }
    }
    return nullptr;
  }

  void write(int token) const {
    const int64_t slot = slots[token];
    if (slot < 0) return;
    using namespace PAGETIDE_ISA;
    Cache* block = cache + slot / kBlockTokens * cache_stride;
    const int64_t size = tile_size<Cache>(head_size);
    for (int64_t head = 0; head < num_kv_heads; ++head) {
      const auto write_row = [&](const Element* row, int64_t tile) {
        store_row(row + head * head_size, head_size, block + tile * size, slot % kBlockTokens);
      };
      write_row(key + token * key_stride, head);
      write_row(value + token * value_stride, num_kv_heads + head);
    }
  }

  void write_all() const {
    const int64_t bytes = int64_t{num_tokens} * num_kv_heads * head_size * int64_t{sizeof(Element)};
#pragma omp parallel for if (bytes > kSerialBytes)
    for (int token = 0; token < num_tokens; ++token) write(token);
  }
};

template <class Element, class Cache>
const char* write_kv(const KvWrite<Element, Cache>& call) {
  if (const char* problem = call.problem()) return problem;
  call.write_all();
  return nullptr;
}

}  // namespace
}  // namespace pagetide

#define PAGETIDE_WRITE_KV(name, Element, Cache)                                                            \
  PAGETIDE_EXPORT const char* name(Cache* cache, const Element* key, const Element* value,                 \
                                   const int64_t* slots, int64_t cache_stride, int64_t key_stride,         \
                                   int64_t value_stride, int num_tokens, int num_blocks, int num_kv_heads, \
                                   int head_size, float key_scale, float value_scale) {                    \
    if (const char* problem = pagetide::scale_problem("write_kv", key_scale, value_scale)) return problem; \
    return pagetide::write_kv<Element, Cache>({cache, key, value, slots, cache_stride, key_stride,         \
                                               value_stride, num_tokens, num_blocks, num_kv_heads,         \
                                               head_size});                                                \
  }

PAGETIDE_WRITE_KV(write_kv_bf16, pagetide::bfloat16, pagetide::bfloat16)
PAGETIDE_WRITE_KV(write_kv_f32, float, float)
PAGETIDE_WRITE_KV(write_kv_int8_bf16, pagetide::bfloat16, int8_t)
PAGETIDE_WRITE_KV(write_kv_int8_f32, float, int8_t)

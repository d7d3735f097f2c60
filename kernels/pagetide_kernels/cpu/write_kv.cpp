// Writes the keys and values of a step's tokens to their places in the paged cache.

#include <cstring>

#include "elements.h"
#include "error.h"
#include "kv_scales.h"

namespace pagetide {
namespace {

// Below this many bytes, starting threads costs more than it saves.
constexpr int64_t kSerialBytes = 1 << 18;

// The arguments of signatures.WRITE_KV, in its order. Strides are in elements.
template <class Element>
struct KvWrite {
  Element* cache;
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
    const size_t bytes = sizeof(Element) * static_cast<size_t>(head_size);
    const int64_t plane = int64_t{num_kv_heads} * kBlockTokens * head_size;
    Element* keys = cache + slot / kBlockTokens * cache_stride + slot % kBlockTokens * head_size;
    for (int64_t head = 0; head < num_kv_heads; ++head) {
      Element* out = keys + head * kBlockTokens * head_size;
      std::memcpy(out, key + token * key_stride + head * head_size, bytes);
      std::memcpy(out + plane, value + token * value_stride + head * head_size, bytes);
    }
  }

  void write_all() const {
    const int64_t bytes = int64_t{num_tokens} * num_kv_heads * head_size * int64_t{sizeof(Element)};
#pragma omp parallel for if (bytes > kSerialBytes)
    for (int token = 0; token < num_tokens; ++token) write(token);
  }
};

template <class Element>
const char* write_kv(const KvWrite<Element>& call) {
  if (const char* problem = call.problem()) return problem;
  call.write_all();
  return nullptr;
}

}  // namespace
}  // namespace pagetide

#define PAGETIDE_WRITE_KV(name, Element)                                                                   \
  PAGETIDE_EXPORT const char* name(Element* cache, const Element* key, const Element* value,               \
                                   const int64_t* slots, int64_t cache_stride, int64_t key_stride,         \
                                   int64_t value_stride, int num_tokens, int num_blocks, int num_kv_heads, \
                                   int head_size, float key_scale, float value_scale) {                    \
    if (const char* problem = pagetide::scale_problem("write_kv", key_scale, value_scale)) return problem; \
    return pagetide::write_kv<Element>({cache, key, value, slots, cache_stride, key_stride, value_stride,  \
                                        num_tokens, num_blocks, num_kv_heads, head_size});                 \
  }

PAGETIDE_WRITE_KV(write_kv_bf16, pagetide::bfloat16)
PAGETIDE_WRITE_KV(write_kv_f32, float)

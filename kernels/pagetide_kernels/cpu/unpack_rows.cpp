// Rows of a packed weight (linear.h) as they were before: an embedding that shares the head's memory.

#include <cstring>

#include "elements.h"
#include "error.h"

namespace pagetide {
namespace {

// Words below which waking a thread costs more than it saves.
constexpr int64_t kSerialWords = 1 << 15;

// A word is one element, or two neighbours of 16 bits.
struct PackedRows {
  const uint32_t* words;  // [columns][width][kLanes]
  int64_t width;

  void copy(int64_t row, uint32_t* out) const {
    const uint32_t* from = words + row / kLanes * width * kLanes + row % kLanes;
    for (int64_t i = 0; i < width; ++i) out[i] = from[i * kLanes];
  }
};

const char* unpack(const PackedRows& rows, const int64_t* ids, int num_ids, int num_rows, char* out,
                   int64_t out_stride_bytes) {
  for (int i = 0; i < num_ids; ++i) {
    if (ids[i] < 0 || ids[i] >= num_rows) {
      return error("unpack_rows: ids[%d] is %lld; expected 0 to %d", i, static_cast<long long>(ids[i]), num_rows - 1);
    }
  }
#pragma omp parallel for schedule(static) if (num_ids * rows.width > kSerialWords)
  for (int i = 0; i < num_ids; ++i) rows.copy(ids[i], reinterpret_cast<uint32_t*>(out + i * out_stride_bytes));
  return nullptr;
}

}  // namespace
}  // namespace pagetide

// The arguments of signatures.UNPACK_ROWS, in its order; strides are in elements.
#define PAGETIDE_UNPACK_ROWS(name, Element)                                                                  \
  PAGETIDE_EXPORT const char* name(void* out, const void* weight, const int64_t* ids, int64_t out_stride,   \
                                   int num_ids, int num_inputs, int, int num_rows) {                        \
    constexpr int64_t kSize = sizeof(Element);                                                              \
    const pagetide::PackedRows rows{static_cast<const uint32_t*>(weight),                                   \
                                    num_inputs * kSize / int64_t{sizeof(uint32_t)}};                        \
    return pagetide::unpack(rows, ids, num_ids, num_rows, static_cast<char*>(out), out_stride * kSize);     \
  }

PAGETIDE_UNPACK_ROWS(unpack_rows_bf16, pagetide::bfloat16)
PAGETIDE_UNPACK_ROWS(unpack_rows_f32, float)

// What passes between the part of paged attention that plans and shares out work (compiled once) and
// the part that computes (compiled for each instruction set).
#pragma once

#include <algorithm>

#include "elements.h"

namespace pagetide {

// The arguments of signatures.PAGED_ATTENTION, in its order. Strides are in elements, that of an 8-bit cache
// in bytes.
struct AttentionCall {
  void* out;
  const void* query;
  const void* kv_cache;
  const int32_t* block_table;
  const int32_t* query_starts;
  const int32_t* kv_lens;
  int64_t out_stride;
  int64_t query_stride;
  int64_t cache_stride;
  int64_t table_stride;
  int num_tokens;
  int num_sequences;
  int table_width;
  int num_blocks;
  int num_heads;
  int num_kv_heads;
  int head_size;
  float scale;
  int window;
  float soft_cap;
  const int64_t* wanted = nullptr;  // rising: the queries whose outputs somebody asks for; null: all
  int num_wanted = 0;

  // From the first to the last of some queries that is wanted.
  Range wanted_among(Range queries) const {
    if (wanted == nullptr) return queries;
    const int64_t* first = std::lower_bound(wanted, wanted + num_wanted, queries.begin);
    const int64_t* end = std::lower_bound(first, wanted + num_wanted, queries.end);
    if (first == end) return {queries.begin, queries.begin};
    return {static_cast<int>(*first), static_cast<int>(end[-1]) + 1};
  }

  int group() const { return num_heads / num_kv_heads; }
  int64_t state_size() const { return kLanes + head_size; }

  // KV positions that the query at `position` attends to.
  Range visible(int position) const {
    const int begin = window > 0 && position >= window ? position - window + 1 : 0;
    return {begin, position + 1};
  }
};

// Neighbouring queries and the query heads of one KV head, over some KV partitions. The queries are of one
// sequence, or each of another that has the same blocks there.
struct WorkItem {
  int sequence;
  int kv_head;
  int first_query;  // row of query and out
  int num_queries;
  int first_position;  // of the first query in its sequence
  Range partitions;
  // Null: the item covers all partitions and writes its outputs. Otherwise it leaves a state for each
  // partition and row here, [query][head of the group][state_size], `partition_stride` floats after the one
  // before.
  float* states;
  int64_t partition_stride;
};

struct AttentionKernels {
  // Floats of scratch memory, aligned to 64 bytes, that `attend` and `merge` need.
  int64_t (*scratch_size)(const AttentionCall&, int num_queries);
  // The KV that `next` starts with, unless that is null, is on its way to the cache when it returns.
  void (*attend)(const AttentionCall&, const WorkItem&, const WorkItem* next, float* scratch);
  // Merges the states of all of the item's partitions and writes the outputs.
  void (*merge)(const AttentionCall&, const WorkItem&, const WorkItem* next, float* scratch);
};

#define PAGETIDE_DECLARE_KERNELS(isa)                \
  namespace isa {                                    \
  extern const AttentionKernels attention_bf16;      \
  extern const AttentionKernels attention_f32;       \
  extern const AttentionKernels attention_int8_bf16; \
  extern const AttentionKernels attention_int8_f32;  \
  }

PAGETIDE_DECLARE_KERNELS(plain)
#if defined(__x86_64__)
PAGETIDE_DECLARE_KERNELS(avx2)
PAGETIDE_DECLARE_KERNELS(avx512)
PAGETIDE_DECLARE_KERNELS(amx)
#endif

}  // namespace pagetide

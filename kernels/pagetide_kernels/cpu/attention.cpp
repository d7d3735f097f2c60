// Paged attention: checks what the step refers to, plans the work, shares it out to threads.
//
// Whatever the plan, every query's KV is cut into the same partitions, summed in the same order, so a
// result depends neither on the other sequences, nor on how a prompt was chunked, nor on the threads.

#include <omp.h>

#include <memory>
#include <new>
#include <vector>

#include "attention_plan.h"
#include "error.h"
#include "isa.h"
#include "kv_scales.h"

namespace pagetide {
namespace {

const char* call_problem(const AttentionCall& call) {
  if (call.window < 0 || !(call.soft_cap >= 0.0f)) {
    return error("paged_attention: window is %d and soft_cap %g; expected 0 (none) or more", call.window,
                 static_cast<double>(call.soft_cap));
  }
  return attention_problem("paged_attention", call);
}

// Scratch memory of one thread, kept from call to call.
float* thread_scratch(int64_t floats) {
  constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(float* memory) const { ::operator delete(memory, kAlignment); }
  };
  thread_local std::unique_ptr<float, Free> memory;
  thread_local int64_t capacity = 0;
  if (capacity < floats) {
    memory.reset(
        static_cast<float*>(::operator new(sizeof(float) * static_cast<size_t>(floats), kAlignment)));
    capacity = floats;
  }
  return memory.get();
}

using Work = void (*)(const AttentionCall&, const WorkItem&, const WorkItem*, float*);

void run_all(const AttentionCall& call, const std::vector<WorkItem>& items, bool shared,
             int64_t scratch_size, Work work) {
  const auto count = static_cast<int64_t>(items.size());
#pragma omp parallel if (shared && count > 1)
  {
    const ThreadSetup setup;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < count; ++i) {
      work(call, items[static_cast<size_t>(i)], nullptr, thread_scratch(scratch_size));
    }
  }
}

void run(const AttentionCall& call, const AttentionKernels& kernels) {
  const AttentionPlan plan(call, omp_get_max_threads());
  const int64_t scratch_size = kernels.scratch_size(call, plan.queries_per_item());
  run_all(call, plan.items(), plan.is_shared(), scratch_size, kernels.attend);
  run_all(call, plan.merges(), plan.is_shared(), scratch_size, kernels.merge);
}

const PerIsa<AttentionKernels> kBf16 = PAGETIDE_PER_ISA(attention_bf16);
const PerIsa<AttentionKernels> kF32 = PAGETIDE_PER_ISA(attention_f32);
const PerIsa<AttentionKernels> kInt8Bf16 = PAGETIDE_PER_ISA(attention_int8_bf16);
const PerIsa<AttentionKernels> kInt8F32 = PAGETIDE_PER_ISA(attention_int8_f32);

const char* paged_attention(const AttentionCall& call, const PerIsa<AttentionKernels>& kernels) {
  if (const char* problem = call_problem(call)) return problem;
  run(call, kernels.current());
  return nullptr;
}

}  // namespace
}  // namespace pagetide

#define PAGETIDE_PAGED_ATTENTION(name, kernels)                                                         \
  PAGETIDE_EXPORT const char* name(                                                                     \
      void* out, const void* query, const void* kv_cache, const int32_t* block_table,                   \
      const int32_t* query_starts, const int32_t* kv_lens, int64_t out_stride, int64_t query_stride,    \
      int64_t cache_stride, int64_t table_stride, int num_tokens, int num_sequences, int table_width,   \
      int num_blocks, int num_heads, int num_kv_heads, int head_size, float scale, int window,          \
      float soft_cap, float key_scale, float value_scale) {                                             \
    if (const char* problem = pagetide::scale_problem("paged_attention", key_scale, value_scale))       \
      return problem;                                                                                   \
    const pagetide::AttentionCall call{                                                                 \
        out,          query,        kv_cache,     block_table, query_starts,  kv_lens,     out_stride,  \
        query_stride, cache_stride, table_stride, num_tokens,  num_sequences, table_width, num_blocks,  \
        num_heads,    num_kv_heads, head_size,    scale,       window,        soft_cap};                \
    return pagetide::paged_attention(call, pagetide::kernels);                                          \
  }

PAGETIDE_PAGED_ATTENTION(paged_attention_bf16, kBf16)
PAGETIDE_PAGED_ATTENTION(paged_attention_f32, kF32)
PAGETIDE_PAGED_ATTENTION(paged_attention_int8_bf16, kInt8Bf16)
PAGETIDE_PAGED_ATTENTION(paged_attention_int8_f32, kInt8F32)

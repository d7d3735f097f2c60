// Paged attention: checks what the step refers to, plans the work, shares it out to threads.
//
// Whatever the plan, every query's KV is cut into the same partitions, summed in the same order, so a
// result depends neither on the other sequences, nor on how a prompt was chunked, nor on the threads.

#include "attention.h"

#include <omp.h>

#include <memory>
#include <new>
#include <vector>

#include "error.h"
#include "isa.h"
#include "kv_scales.h"

namespace pagetide {
namespace {

// Rows of an item share the packing of a tile; more of them would push the tile out of the L1 cache.
constexpr int kRowsPerItem = 32;

// An item for each thread is uneven; this many even out.
constexpr int kItemsPerThread = 4;

// Estimated nanoseconds below which starting threads costs more than it saves.
constexpr int64_t kSerialNanoseconds = 20000;

int clamped(int64_t value, int64_t low, int64_t high) {
  return static_cast<int>(value < low ? low : value > high ? high : value);
}

// The queries of one sequence in this step, and how much KV it has, including theirs.
struct Sequence {
  int index;
  Range queries;
  int kv_len;

  int num_queries() const { return queries.end - queries.begin; }
  int first_position() const { return kv_len - num_queries(); }
};

Sequence sequence_at(const AttentionCall& call, int i) {
  return {i, {call.query_starts[i], call.query_starts[i + 1]}, call.kv_lens[i]};
}

const char* block_problem(const AttentionCall& call, const Sequence& sequence) {
  if (sequence.num_queries() == 0 || sequence.kv_len == 0) return nullptr;
  const int32_t* table = call.block_table + sequence.index * call.table_stride;
  const int first = call.visible(sequence.first_position()).begin / kBlockTokens;
  for (int i = first; i * kBlockTokens < sequence.kv_len; ++i) {
    if (table[i] < 0 || table[i] >= call.num_blocks) {
      return error("paged_attention: block_table[%d][%d] is %d; expected a block id in [0, %d)",
                   sequence.index, i, table[i], call.num_blocks);
    }
  }
  return nullptr;
}

const char* sequence_problem(const AttentionCall& call, const Sequence& sequence) {
  const Range queries = sequence.queries;
  if (queries.begin < 0 || queries.end < queries.begin || queries.end > call.num_tokens) {
    return error("paged_attention: query_starts[%d:%d] is %d, %d; expected to rise from 0 to T = %d",
                 sequence.index, sequence.index + 2, queries.begin, queries.end, call.num_tokens);
  }
  const int64_t capacity = int64_t{call.table_width} * kBlockTokens;
  if (sequence.kv_len < 0 || sequence.kv_len > capacity) {
    return error("paged_attention: kv_lens[%d] is %d; expected 0 to %lld, what block_table can hold",
                 sequence.index, sequence.kv_len, static_cast<long long>(capacity));
  }
  if (sequence.kv_len > 0 && sequence.kv_len < sequence.num_queries()) {
    return error("paged_attention: kv_lens[%d] is %d; expected at least its %d queries, or 0", sequence.index,
                 sequence.kv_len, sequence.num_queries());
  }
  return block_problem(call, sequence);
}

const char* call_problem(const AttentionCall& call) {
  if (call.window < 0 || !(call.soft_cap >= 0.0f)) {
    return error("paged_attention: window is %d and soft_cap %g; expected 0 (none) or more", call.window,
                 static_cast<double>(call.soft_cap));
  }
  for (int i = 0; i < call.num_sequences; ++i) {
    if (const char* problem = sequence_problem(call, sequence_at(call, i))) return problem;
  }
  return nullptr;
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

class Plan {
 public:
  explicit Plan(const AttentionCall& call)
      : call_(call), queries_per_item_(clamped(kRowsPerItem / call.group(), 1, kRowsPerItem)) {
    for (int i = 0; i < call.num_sequences; ++i) add(sequence_at(call, i));
    const int64_t wanted = int64_t{omp_get_max_threads()} * kItemsPerThread;
    if (nanoseconds_ > kSerialNanoseconds && static_cast<int64_t>(items_.size()) < wanted) split(wanted);
  }

  void run(const AttentionKernels& kernels) const {
    run_all(items_, kernels, kernels.attend);
    run_all(merges_, kernels, kernels.merge);
  }

 private:
  using Step = void (*)(const AttentionCall&, const WorkItem&, float*);

  // The last queries of a prompt see most; they go first, so that no thread is left with them at the end.
  void add(const Sequence& sequence) {
    const int count = sequence.num_queries();
    const int last = (count - 1) / queries_per_item_ * queries_per_item_;
    for (int first = count > 0 ? last : -1; first >= 0; first -= queries_per_item_) {
      for (int head = 0; head < call_.num_kv_heads; ++head) {
        add(item(sequence, head, first, clamped(count - first, 1, queries_per_item_)));
      }
    }
  }

  WorkItem item(const Sequence& sequence, int head, int first, int count) const {
    const int position = sequence.kv_len > 0 ? sequence.first_position() + first : -count;
    const int begin = call_.visible(position).begin;
    const int end = position + count;
    const Range partitions{begin / kPartitionTokens, (end + kPartitionTokens - 1) / kPartitionTokens};
    return {sequence.index, head, sequence.queries.begin + first, count, position, partitions, nullptr};
  }

  void add(const WorkItem& item) {
    const int64_t rows = int64_t{item.num_queries} * call_.group();
    const int64_t partitions = item.partitions.end - item.partitions.begin;
    const int64_t elements = partitions * kPartitionTokens * call_.head_size;
    nanoseconds_ += elements * (4 + rows) / 64;
    num_partitions_ += partitions;
    items_.push_back(item);
  }

  // Too few items for all threads: cut them where their partitions meet, to be merged afterwards.
  void split(int64_t wanted) {
    const int share = clamped((num_partitions_ + wanted - 1) / wanted, 1, num_partitions_);
    std::vector<WorkItem> whole;
    whole.swap(items_);
    states_.reset(new float[static_cast<size_t>(size_of_states(whole))]);
    float* states = states_.get();
    for (WorkItem& item : whole) {
      item.states = states;
      states += size_of_states(item);
      cut(item, share);
    }
    merges_.swap(whole);
  }

  void cut(const WorkItem& whole, int share) {
    for (int begin = whole.partitions.begin; begin < whole.partitions.end; begin += share) {
      WorkItem part = whole;
      part.partitions = {begin, clamped(begin + share, begin, whole.partitions.end)};
      part.states = whole.states + (begin - whole.partitions.begin) * size_of_partition(whole);
      items_.push_back(part);
    }
  }

  int64_t size_of_partition(const WorkItem& item) const {
    return int64_t{item.num_queries} * call_.group() * call_.state_size();
  }

  int64_t size_of_states(const WorkItem& item) const {
    return (item.partitions.end - item.partitions.begin) * size_of_partition(item);
  }

  int64_t size_of_states(const std::vector<WorkItem>& items) const {
    int64_t size = 0;
    for (const WorkItem& item : items) size += size_of_states(item);
    return size;
  }

  void run_all(const std::vector<WorkItem>& items, const AttentionKernels& kernels, Step step) const {
    const auto count = static_cast<int64_t>(items.size());
    const int64_t scratch_size = kernels.scratch_size(call_, queries_per_item_);
    const bool shared = count > 1 && nanoseconds_ > kSerialNanoseconds;
#pragma omp parallel for schedule(dynamic) if (shared)
    for (int64_t i = 0; i < count; ++i) {
      step(call_, items[static_cast<size_t>(i)], thread_scratch(scratch_size));
    }
  }

  const AttentionCall& call_;
  const int queries_per_item_;
  std::vector<WorkItem> items_;
  std::vector<WorkItem> merges_;
  std::unique_ptr<float[]> states_;
  int64_t num_partitions_ = 0;
  int64_t nanoseconds_ = 0;
};

const PerIsa<AttentionKernels> kBf16 = PAGETIDE_PER_ISA(attention_bf16);
const PerIsa<AttentionKernels> kF32 = PAGETIDE_PER_ISA(attention_f32);

const char* paged_attention(const AttentionCall& call, const PerIsa<AttentionKernels>& kernels) {
  if (const char* problem = call_problem(call)) return problem;
  Plan(call).run(kernels.current());
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

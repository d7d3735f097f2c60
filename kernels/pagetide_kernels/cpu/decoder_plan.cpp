#include "decoder_plan.h"

#include <algorithm>

#include "error.h"

namespace pagetide {
namespace {

// Rows of an item share the packing of a tile; more of them would push the tile out of the L1 cache.
constexpr int kRowsPerItem = 32;

// An item for each thread is uneven; this many even out.
constexpr int kItemsPerThread = 4;

int ceil_divided(int a, int b) { return (a + b - 1) / b; }

int num_partitions(const WorkItem& item) { return item.partitions.end - item.partitions.begin; }

const char* slot_problem(const DecoderStep& step) {
  const int64_t num_slots = int64_t{step.num_blocks} * kBlockTokens;
  for (int token = 0; token < step.num_tokens; ++token) {
    if (step.slots[token] >= num_slots) {
      return error("decoder: slots[%d] is %lld; expected less than %lld, the cache's %d blocks of %d tokens",
                   token, static_cast<long long>(step.slots[token]), static_cast<long long>(num_slots),
                   step.num_blocks, kBlockTokens);
    }
  }
  return nullptr;
}

const char* table_problem(const DecoderStep& step, int sequence, int window) {
  const int32_t* table = step.block_table + sequence * step.table_stride;
  const int num_queries = step.query_starts[sequence + 1] - step.query_starts[sequence];
  const int first = step.kv_lens[sequence] - num_queries - window + 1;
  const int first_block = window > 0 && first > 0 ? first / kBlockTokens : 0;
  for (int i = first_block; num_queries > 0 && i * kBlockTokens < step.kv_lens[sequence]; ++i) {
    if (table[i] < 0 || table[i] >= step.num_blocks) {
      return error("decoder: block_table[%d][%d] is %d; expected a block id in [0, %d)", sequence, i,
                   table[i], step.num_blocks);
    }
  }
  return nullptr;
}

const char* sequence_problem(const DecoderStep& step, int sequence, int window) {
  const int begin = step.query_starts[sequence], end = step.query_starts[sequence + 1];
  if (begin < 0 || end < begin || end > step.num_tokens) {
    return error("decoder: query_starts[%d:%d] is %d, %d; expected to rise from 0 to T = %d", sequence,
                 sequence + 2, begin, end, step.num_tokens);
  }
  const int kv_len = step.kv_lens[sequence];
  const int64_t capacity = int64_t{step.table_width} * kBlockTokens;
  if (kv_len < end - begin || kv_len > capacity) {
    return error("decoder: kv_lens[%d] is %d; expected its %d queries to %lld, what block_table can hold",
                 sequence, kv_len, end - begin, static_cast<long long>(capacity));
  }
  return table_problem(step, sequence, window);
}

}  // namespace

const char* step_problem(const DecoderStep& step, int window) {
  for (int i = 0; i < step.num_sequences; ++i) {
    if (const char* problem = sequence_problem(step, i, window)) return problem;
  }
  return slot_problem(step);
}

AttentionCall attention_call(const DecoderShape& shape, const DecoderStep& step, const DecoderLayer& layer) {
  AttentionCall call{};
  call.block_table = step.block_table;
  call.query_starts = step.query_starts;
  call.kv_lens = step.kv_lens;
  call.out_stride = shape.query_size();
  call.query_stride = shape.qkv_size();
  call.cache_stride = step.cache_stride;
  call.table_stride = step.table_stride;
  call.num_tokens = step.num_tokens;
  call.num_sequences = step.num_sequences;
  call.table_width = step.table_width;
  call.num_blocks = step.num_blocks;
  call.num_heads = shape.num_heads;
  call.num_kv_heads = shape.num_kv_heads;
  call.head_size = shape.head_size;
  call.scale = layer.scale;
  call.window = layer.window;
  call.soft_cap = layer.soft_cap;
  return call;
}

AttentionPlan::AttentionPlan(const AttentionCall& call, int num_threads)
    : window_(call.window), queries_per_item_(std::max(1, kRowsPerItem / call.group())) {
  for (int i = 0; i < call.num_sequences; ++i) add_sequence(call, i);
  cut_long_items(call, num_threads);
}

// The last queries of a prompt see most; they go first, so that no thread is left with them at the end.
void AttentionPlan::add_sequence(const AttentionCall& call, int sequence) {
  const int begin = call.query_starts[sequence];
  const int count = call.query_starts[sequence + 1] - begin;
  for (int i = ceil_divided(count, queries_per_item_) - 1; i >= 0; --i) {
    const int first = i * queries_per_item_;
    const int num_queries = std::min(queries_per_item_, count - first);
    const int position = call.kv_lens[sequence] - count + first;
    const Range partitions{call.visible(position).begin / kPartitionTokens,
                           ceil_divided(position + num_queries, kPartitionTokens)};
    for (int head = 0; head < call.num_kv_heads; ++head) {
      items_.push_back({sequence, head, begin + first, num_queries, position, partitions, nullptr});
    }
  }
}

// No item is to hold up the others for long.
void AttentionPlan::cut_long_items(const AttentionCall& call, int num_threads) {
  int total = 0;
  for (const WorkItem& item : items_) total += num_partitions(item);
  const int share = std::max(1, ceil_divided(total, num_threads * kItemsPerThread));
  const auto is_long = [=](const WorkItem& item) { return num_partitions(item) > share; };
  const auto first_long = std::stable_partition(items_.begin(), items_.end(),
                                                [=](const WorkItem& item) { return !is_long(item); });
  merges_.assign(first_long, items_.end());
  items_.erase(first_long, items_.end());
  const auto partition_size = [&](const WorkItem& item) {
    return int64_t{item.num_queries} * call.group() * call.state_size();
  };
  int64_t size = 0;
  for (const WorkItem& item : merges_) size += num_partitions(item) * partition_size(item);
  states_.reset(new float[static_cast<size_t>(size)]);
  float* states = states_.get();
  for (WorkItem& item : merges_) {
    item.states = states;
    states += num_partitions(item) * partition_size(item);
    cut(item, share, partition_size(item));
  }
}

void AttentionPlan::cut(const WorkItem& whole, int share, int64_t partition_size) {
  for (int begin = whole.partitions.begin; begin < whole.partitions.end; begin += share) {
    WorkItem part = whole;
    part.partitions = {begin, std::min(begin + share, whole.partitions.end)};
    part.states = whole.states + (begin - whole.partitions.begin) * partition_size;
    items_.push_back(part);
  }
}

}  // namespace pagetide

#include "attention_plan.h"

#include <algorithm>

#include "error.h"
#include "isa.h"

namespace pagetide {
namespace {

// Rows of an item share the packing of a tile; more of them would push the tile out of the L1 cache. With AMX
// packing takes longer than what follows.
int rows_per_item() { return current_isa() == Isa::amx ? 96 : 48; }

// An item for each thread is uneven; this many even out.
constexpr int kItemsPerThread = 4;

// Estimated nanoseconds below which starting threads, or merging parts, costs more than it saves.
constexpr int64_t kSerialNanoseconds = 20000;

constexpr int kBlocksPerPartition = kPartitionTokens / kBlockTokens;

int num_partitions(const WorkItem& item) { return item.partitions.end - item.partitions.begin; }

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

// Of two sequences: how many of their first partitions are whole and the same blocks.
int common_partitions(const AttentionCall& call, int one, int other) {
  const int num_whole = std::min(call.kv_lens[one], call.kv_lens[other]) / kPartitionTokens;
  const int32_t* blocks = call.block_table + one * call.table_stride;
  const int32_t* end = blocks + num_whole * kBlocksPerPartition;
  const auto differing = std::mismatch(blocks, end, call.block_table + other * call.table_stride).first;
  return static_cast<int>(differing - blocks) / kBlocksPerPartition;
}

const char* block_problem(const char* op, const AttentionCall& call, const Sequence& sequence) {
  if (sequence.num_queries() == 0 || sequence.kv_len == 0) return nullptr;
  const int32_t* table = call.block_table + sequence.index * call.table_stride;
  const int first = call.visible(sequence.first_position()).begin / kBlockTokens;
  for (int i = first; i * kBlockTokens < sequence.kv_len; ++i) {
    if (table[i] < 0 || table[i] >= call.num_blocks) {
      return error("%s: block_table[%d][%d] is %d; expected a block id in [0, %d)", op,
                   sequence.index, i, table[i], call.num_blocks);
    }
  }
  return nullptr;
}

const char* sequence_problem(const char* op, const AttentionCall& call, const Sequence& sequence) {
  const Range queries = sequence.queries;
  if (queries.begin < 0 || queries.end < queries.begin || queries.end > call.num_tokens) {
    return error("%s: query_starts[%d:%d] is %d, %d; expected to rise from 0 to T = %d", op,
                 sequence.index, sequence.index + 2, queries.begin, queries.end, call.num_tokens);
  }
  const int64_t capacity = int64_t{call.table_width} * kBlockTokens;
  if (sequence.kv_len < 0 || sequence.kv_len > capacity) {
    return error("%s: kv_lens[%d] is %d; expected 0 to %lld, what block_table can hold", op,
                 sequence.index, sequence.kv_len, static_cast<long long>(capacity));
  }
  if (sequence.kv_len > 0 && sequence.kv_len < sequence.num_queries()) {
    return error("%s: kv_lens[%d] is %d; expected at least its %d queries, or 0", op, sequence.index,
                 sequence.kv_len, sequence.num_queries());
  }
  return block_problem(op, call, sequence);
}

}  // namespace

const char* attention_problem(const char* op, const AttentionCall& call) {
  for (int i = 0; i < call.num_sequences; ++i) {
    if (const char* problem = sequence_problem(op, call, sequence_at(call, i))) return problem;
  }
  return nullptr;
}

AttentionPlan::AttentionPlan(const AttentionCall& call, int num_threads)
    : window_(call.window), queries_per_item_(std::max(1, rows_per_item() / call.group())) {
  for (int i = 0; i < call.num_sequences;) {
    const Sharers sharers = sharers_from(call, i);
    sharers.count > 1 ? add_sharers(call, i, sharers) : add_sequence(call, i);
    i += sharers.count;
  }
  is_shared_ = num_threads > 1 && estimated_ns(call) > kSerialNanoseconds;
  if (is_shared_) cut_long_items(call, num_threads);
}

// The last queries of a prompt see most; they go first, so that no thread is left with them at the end.
void AttentionPlan::add_sequence(const AttentionCall& call, int sequence) {
  const int begin = call.query_starts[sequence];
  const int count = call.query_starts[sequence + 1] - begin;
  for (int i = ceil_divided(count, queries_per_item_) - 1; i >= 0; --i) {
    const int first_of_all = begin + i * queries_per_item_;
    const Range queries =
        call.wanted_among({first_of_all, std::min(first_of_all + queries_per_item_, begin + count)});
    const int first = queries.begin - begin, num_queries = queries.end - queries.begin;
    if (num_queries == 0) continue;
    const bool has_kv = call.kv_lens[sequence] > 0;
    const int position = has_kv ? call.kv_lens[sequence] - count + first : -num_queries;
    const Range partitions{call.visible(position).begin / kPartitionTokens,
                           ceil_divided(position + num_queries, kPartitionTokens)};
    for (int head = 0; head < call.num_kv_heads; ++head) {
      items_.push_back({sequence, head, begin + first, num_queries, position, partitions, nullptr, 0});
    }
  }
}

Sharers AttentionPlan::sharers_from(const AttentionCall& call, int first) const {
  const auto is_decode = [&](int i) {
    return i < call.num_sequences && call.query_starts[i + 1] - call.query_starts[i] == 1 &&
           call.kv_lens[i] > 0;
  };
  if (window_ > 0 || !is_decode(first)) return {1, 0};
  Sharers found{1, call.kv_lens[first] / kPartitionTokens};
  for (int i = first + 1; found.count < queries_per_item_ && is_decode(i); ++i) {
    const int partitions = std::min(found.partitions, common_partitions(call, first, i));
    if (partitions == 0) break;
    found = {found.count + 1, partitions};
  }
  return found;
}

// What is shared is read and packed once for all; the rest is each sequence's own.
void AttentionPlan::add_sharers(const AttentionCall& call, int first, Sharers sharers) {
  const int* lens = call.kv_lens + first;
  const int longest = *std::max_element(lens, lens + sharers.count);
  const int64_t row = call.group() * call.state_size(), stride = sharers.count * row;
  const int64_t floats_per_head = ceil_divided(longest, kPartitionTokens) * stride;
  float* states = new_states(call.num_kv_heads * floats_per_head);
  const int query = call.query_starts[first], last_shared = sharers.partitions * kPartitionTokens - 1;
  for (int head = 0; head < call.num_kv_heads; ++head, states += floats_per_head) {
    const Range all_shared{0, sharers.partitions};
    cut({first, head, query, sharers.count, last_shared, all_shared, states, stride}, 1);
    for (int i = 0; i < sharers.count; ++i) {
      const Range all{0, ceil_divided(lens[i], kPartitionTokens)};
      const WorkItem whole{first + i, head, query + i, 1, lens[i] - 1, all, states + i * row, stride};
      merges_.push_back(whole);
      WorkItem own = whole;
      own.partitions.begin = sharers.partitions;
      own.states += sharers.partitions * stride;
      if (num_partitions(own) > 0) items_.push_back(own);
    }
  }
}

// Nanoseconds on one thread, from what was measured: reading the KV, then each row's share.
int64_t AttentionPlan::estimated_ns(const AttentionCall& call) const {
  int64_t total = 0;
  for (const WorkItem& item : items_) {
    const int64_t elements = int64_t{num_partitions(item)} * kPartitionTokens * call.head_size;
    total += elements * (4 + int64_t{item.num_queries} * call.group()) / 64;
  }
  return total;
}

// No item is to hold up the others for long.
void AttentionPlan::cut_long_items(const AttentionCall& call, int num_threads) {
  int total = 0;
  for (const WorkItem& item : items_) total += num_partitions(item);
  const int share = std::max(1, ceil_divided(total, num_threads * kItemsPerThread));
  const auto is_long = [=](const WorkItem& item) { return num_partitions(item) > share; };
  const auto first_long = std::stable_partition(items_.begin(), items_.end(),
                                                [=](const WorkItem& item) { return !is_long(item); });
  std::vector<WorkItem> long_items(first_long, items_.end());
  items_.erase(first_long, items_.end());
  for (WorkItem& item : long_items) {
    if (item.states == nullptr) {
      item.partition_stride = int64_t{item.num_queries} * call.group() * call.state_size();
      item.states = new_states(num_partitions(item) * item.partition_stride);
      merges_.push_back(item);
    }
    cut(item, share);
  }
}

float* AttentionPlan::new_states(int64_t floats) {
  states_.emplace_back(new float[static_cast<size_t>(floats)]);
  return states_.back().get();
}

void AttentionPlan::cut(const WorkItem& whole, int share) {
  for (int begin = whole.partitions.begin; begin < whole.partitions.end; begin += share) {
    WorkItem part = whole;
    part.partitions = {begin, std::min(begin + share, whole.partitions.end)};
    part.states = whole.states + (begin - whole.partitions.begin) * whole.partition_stride;
    items_.push_back(part);
  }
}

}  // namespace pagetide

// What a work item of paged attention covers: its rows, (query, head) pairs that share a KV head, and where the
// KV they see lies.
#pragma once

#include "attention.h"
#include "kv_codes.h"

namespace pagetide::PAGETIDE_ISA {

PAGETIDE_INLINE Range overlap(Range a, Range b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

PAGETIDE_INLINE Range shifted(Range range, int by) { return {range.begin - by, range.end - by}; }

PAGETIDE_INLINE Range within_block(Range range, int block) {
  const auto clip = [=](int token) {
    const int lane = token - block * kBlockTokens;
    return lane < 0 ? 0 : lane > kLanes ? kLanes : lane;
  };
  return {clip(range.begin), clip(range.end)};
}

// A tile clipped to the steps that an item sees: `tokens` of them from position `base` on matter.
struct Tile {
  int base;
  int blocks;
  Range tokens;

  // Of its block i.
  Range seen_of(int i) const { return within_block(shifted(tokens, base), i); }
};

PAGETIDE_INLINE Tile clipped_tile(int start, Range visible, int step) {
  const Range tokens = overlap({start, start + kTileTokens}, visible);
  const int base = tokens.begin / step * step;
  const int steps = ceil_divided(tokens.end - base, step);
  return {base, steps * step / kBlockTokens, tokens};
}

template <class Cache>
struct Item {
  const AttentionCall& call;
  const WorkItem& work;

  int num_rows() const { return work.num_queries * call.group(); }
  int position(int row) const { return work.first_position + row / call.group(); }
  int64_t token(int row) const { return work.first_query + row / call.group(); }

  int64_t head_offset(int row) const {
    return (int64_t{work.kv_head} * call.group() + row % call.group()) * call.head_size;
  }

  // Positions that at least one of rows [first, last] sees.
  Range visible_to(int first, int last) const {
    return {call.visible(position(first)).begin, position(last) + 1};
  }

  // Positions of the KV that it works through.
  Range seen() const {
    const Range all{call.visible(work.first_position).begin, work.first_position + work.num_queries};
    return overlap(all, {work.partitions.begin * kPartitionTokens, work.partitions.end * kPartitionTokens});
  }

  float* states(int partition) const {
    return work.states + (partition - work.partitions.begin) * work.partition_stride;
  }

  const Cache* block(int position, int key_or_value) const {
    const int32_t* table = call.block_table + work.sequence * call.table_stride;
    const auto* cache = static_cast<const Cache*>(call.kv_cache);
    const int64_t head = int64_t{key_or_value} * call.num_kv_heads + work.kv_head;
    return cache + table[position / kBlockTokens] * call.cache_stride + head * tile_size<Cache>(call.head_size);
  }
};

}  // namespace pagetide::PAGETIDE_ISA

// The attention of one step, planned once for all layers that have the same window.
#pragma once

#include <memory>
#include <vector>

#include "attention.h"
#include "decoder.h"

namespace pagetide {

// What is wrong with the places and lengths that a step names; null: nothing. Blocks that lie before the
// widest `window` of the layers (0: all of them see everything) are not read and may be anything.
const char* step_problem(const DecoderStep& step, int window);

// The arguments of a layer's attention.
AttentionCall attention_call(const DecoderShape& shape, const DecoderStep& step, const DecoderLayer& layer);

// Who attends to what. KV is cut where its partitions meet, see elements.h, so that how it is shared out
// changes no result. Items of `merges` wait for all of `items`.
class AttentionPlan {
 public:
  AttentionPlan(const AttentionCall& call, int num_threads);

  int window() const { return window_; }
  int queries_per_item() const { return queries_per_item_; }
  const std::vector<WorkItem>& items() const { return items_; }
  const std::vector<WorkItem>& merges() const { return merges_; }

 private:
  void add_sequence(const AttentionCall& call, int sequence);
  void cut_long_items(const AttentionCall& call, int num_threads);
  void cut(const WorkItem& whole, int share, int64_t partition_size);

  int window_;
  int queries_per_item_;
  std::vector<WorkItem> items_;
  std::vector<WorkItem> merges_;
  std::unique_ptr<float[]> states_;
};

}  // namespace pagetide

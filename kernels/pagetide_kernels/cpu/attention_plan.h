// Who attends to what: checked and planned once for all layers that see the same KV.
#pragma once

#include <memory>
#include <vector>

#include "attention.h"

namespace pagetide {

// What is wrong with the lengths and blocks that `op` is called with; null: nothing. Blocks that lie before the
// call's window are not read and may be anything.
const char* attention_problem(const char* op, const AttentionCall& call);

// Neighbouring sequences with one query each, whose first partitions are the same blocks.
struct Sharers {
  int count;
  int partitions;
};

// Who attends to what. KV is cut where its partitions meet, see elements.h, so that how it is shared out
// changes no result. Items of `merges` wait for all of `items`.
class AttentionPlan {
 public:
  AttentionPlan(const AttentionCall& call, int num_threads);

  int window() const { return window_; }
  int queries_per_item() const { return queries_per_item_; }
  const std::vector<WorkItem>& items() const { return items_; }
  const std::vector<WorkItem>& merges() const { return merges_; }

  // Whether there is enough to do for several threads.
  bool is_shared() const { return is_shared_; }

 private:
  int64_t estimated_ns(const AttentionCall& call) const;
  void add_sequence(const AttentionCall& call, int sequence);
  Sharers sharers_from(const AttentionCall& call, int first) const;
  void add_sharers(const AttentionCall& call, int first, Sharers sharers);
  void cut_long_items(const AttentionCall& call, int num_threads);
  void cut(const WorkItem& whole, int share);
  float* new_states(int64_t floats);

  int window_;
  int queries_per_item_;
  bool is_shared_ = false;
  std::vector<WorkItem> items_;
  std::vector<WorkItem> merges_;
  std::vector<std::unique_ptr<float[]>> states_;
};

}  // namespace pagetide

// What a step tells its layers' attention.
#pragma once

#include <optional>
#include <vector>

#include "attention_plan.h"
#include "decoder.h"

namespace pagetide {

// What is wrong with the places and lengths that a step names; null: nothing. Blocks that lie before the
// widest `window` of the layers (0: all of them see everything) are not read and may be anything.
const char* step_problem(const DecoderShape& shape, const DecoderStep& step, int window);

// The arguments of a layer's attention.
AttentionCall attention_call(const DecoderShape& shape, const DecoderStep& step, const DecoderLayer& layer);

// Who attends to what in each layer: the same in all with one window, and less in the last of a narrowed step.
class LayerPlans {
 public:
  LayerPlans(const DecoderShape& shape, const DecoderStep& step, const std::vector<DecoderLayer>& layers,
             int num_threads);

  const AttentionPlan& of(const DecoderLayer& layer) const;
  int queries_per_item() const { return plans_.front().queries_per_item(); }

 private:
  const AttentionPlan* with_window(int window) const;

  std::vector<AttentionPlan> plans_;
  const DecoderLayer* last_layer_;
  std::optional<AttentionPlan> last_plan_;
};

}  // namespace pagetide

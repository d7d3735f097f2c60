#include "decoder_plan.h"

#include <algorithm>

#include "error.h"

namespace pagetide {
namespace {

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

const char* wanted_problem(const DecoderStep& step) {
  for (int i = 0; i < step.num_wanted; ++i) {
    const int64_t before = i > 0 ? step.wanted[i - 1] : -1;
    if (step.wanted[i] <= before || step.wanted[i] >= step.num_tokens) {
      return error("decoder: wanted[%d] is %lld; expected more than %lld and less than T = %d", i,
                   static_cast<long long>(step.wanted[i]), static_cast<long long>(before), step.num_tokens);
    }
  }
  return nullptr;
}

}  // namespace

const char* step_problem(const DecoderShape& shape, const DecoderStep& step, int window) {
  DecoderLayer widest{};
  widest.window = window;
  const char* problem = attention_problem("decoder", attention_call(shape, step, widest));
  if (problem == nullptr) problem = slot_problem(step);
  return problem != nullptr ? problem : wanted_problem(step);
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

LayerPlans::LayerPlans(const DecoderShape& shape, const DecoderStep& step,
                       const std::vector<DecoderLayer>& layers, int num_threads)
    : last_layer_(&layers.back()) {
  for (const DecoderLayer& layer : layers) {
    if (with_window(layer.window) == nullptr) {
      plans_.emplace_back(attention_call(shape, step, layer), num_threads);
    }
  }
  if (!step.is_narrowed()) return;
  AttentionCall call = attention_call(shape, step, *last_layer_);
  call.wanted = step.wanted;
  call.num_wanted = step.num_wanted;
  last_plan_.emplace(call, num_threads);
}

const AttentionPlan& LayerPlans::of(const DecoderLayer& layer) const {
  return last_plan_ && &layer == last_layer_ ? *last_plan_ : *with_window(layer.window);
}

const AttentionPlan* LayerPlans::with_window(int window) const {
  const auto found = std::find_if(plans_.begin(), plans_.end(),
                                  [=](const AttentionPlan& plan) { return plan.window() == window; });
  return found != plans_.end() ? &*found : nullptr;
}

}  // namespace pagetide

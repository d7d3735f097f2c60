#include "decoder_plan.h"

#include "attention_plan.h"
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

}  // namespace

const char* step_problem(const DecoderShape& shape, const DecoderStep& step, int window) {
  DecoderLayer widest{};
  widest.window = window;
  const char* problem = attention_problem("decoder", attention_call(shape, step, widest));
  return problem != nullptr ? problem : slot_problem(step);
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

}  // namespace pagetide

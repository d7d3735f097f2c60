#include "decoder_kv_ahead.h"

#include "decoder_plan.h"
#include "isa.h"

namespace pagetide {
namespace {

int64_t weight_bytes(const DecoderLayer& layer, int64_t element_size) {
  int64_t elements = 0;
  for (const DecoderLinear& linear : {layer.qkv, layer.out, layer.gate_up, layer.down}) {
    elements += int64_t{linear.in_features} * linear.out_features;
  }
  return elements * element_size;
}

// In the order in which attention comes to them; what neighbours share, once.
std::vector<int32_t> earlier_blocks(const AttentionCall& call, int64_t most) {
  std::vector<int32_t> blocks;
  for (int i = 0; i < call.num_sequences; ++i) {
    const int num_earlier = call.kv_lens[i] - (call.query_starts[i + 1] - call.query_starts[i]);
    const int32_t* table = call.block_table + i * call.table_stride;
    const int32_t* neighbours = i > 0 ? table - call.table_stride : nullptr;
    for (int b = call.visible(num_earlier).begin / kBlockTokens; b * kBlockTokens < num_earlier; ++b) {
      if (neighbours != nullptr && neighbours[b] == table[b]) continue;
      if (static_cast<int64_t>(blocks.size()) >= most) return blocks;
      blocks.push_back(table[b]);
    }
  }
  return blocks;
}

}  // namespace

KvAhead::KvAhead(const DecoderShape& shape, const DecoderStep& step, const std::vector<DecoderLayer>& layers,
                 int64_t element_size)
    : step_(step), layers_(layers), block_bytes_(step.cache_stride * (step.has_int8_caches ? 1 : element_size)) {
  // A layer's weights pass through the L3 cache meanwhile, and half of it is others'.
  const int64_t most = (kL3Bytes / 2 - weight_bytes(layers.front(), element_size)) / block_bytes_;
  for (const DecoderLayer& layer : layers) {
    if (blocks_.count(layer.window) != 0) continue;
    blocks_[layer.window] = earlier_blocks(attention_call(shape, step, layer), most);
  }
  turn_to(0);
}

void KvAhead::turn_to(size_t layer) {
  if (layer == layers_.size()) return reads_.stop();
  reads_.start(step_.kv_caches[layer], blocks_.at(layers_[layer].window), block_bytes_);
}

}  // namespace pagetide

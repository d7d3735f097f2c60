// A decoder's layers as data, and what passes between the part that walks through them (compiled once) and
// the part that computes (compiled for each instruction set). `pagetide_kernels/decoder.py` mirrors the
// structures.
#pragma once

#include "linear.h"

namespace pagetide {

// Heads that fit a buffer on the stack.
constexpr int kMaxHeadSize = 512;

// A packed linear layer, see linear.h.
struct DecoderLinear {
  const void* weight;
  const void* bias;  // null: none
  int32_t out_features;
  int32_t in_features;
  CodedWeights codes = {};
};

// An RMSNorm. A null weight: the identity.
struct DecoderNorm {
  const float* weight;
  float eps;
};

enum class Activation : int32_t { silu = 0, gelu = 1, gelu_tanh = 2, relu = 3 };

struct DecoderLayer {
  DecoderNorm attn_in;
  DecoderNorm attn_out;
  DecoderNorm ffn_in;
  DecoderNorm ffn_out;
  DecoderNorm qk_norm;  // weight [Hq + Hkv][D]
  DecoderLinear qkv;
  DecoderLinear out;
  DecoderLinear gate_up;
  DecoderLinear down;
  int32_t rope;
  int32_t window;
  float scale;
  float soft_cap;
  Activation activation;
};

struct DecoderShape {
  int32_t num_layers;
  int32_t hidden_size;
  int32_t intermediate_size;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_size;

  int num_rotated() const { return num_heads + num_kv_heads; }
  int64_t query_size() const { return int64_t{num_heads} * head_size; }
  int64_t qkv_size() const { return int64_t{num_rotated() + num_kv_heads} * head_size; }
};

// RoPE of a head's first rotary_dim dimensions: pair i is turned by position * frequencies[i].
struct DecoderRope {
  const float* frequencies;  // [rotary_dim / 2], radians
  int32_t rotary_dim;
  float amplitude;  // of cos and sin
};

// One step: T tokens of B sequences. Strides are in elements, that of 8-bit caches in bytes.
struct DecoderStep {
  void* hidden;  // [T][hidden_size], updated in place; with `wanted`, its first rows are those in the end
  const int64_t* positions;
  void* const* kv_caches;
  const int32_t* block_table;
  const int32_t* query_starts;
  const int32_t* kv_lens;
  const int64_t* slots;
  const int64_t* wanted;  // [num_wanted], rising: the tokens whose states somebody asks for
  int64_t cache_stride;
  int64_t table_stride;
  int32_t num_tokens;
  int32_t num_sequences;
  int32_t table_width;
  int32_t num_blocks;
  int32_t num_wanted;  // kAllWanted: all
  int32_t num_threads;
  int32_t has_int8_caches = 0;

  static constexpr int32_t kAllWanted = -1;
  bool is_narrowed() const { return num_wanted != kAllWanted && num_wanted < num_tokens; }
};

// `hidden += out_norm(added)`, then `normed = in_norm(hidden)`, on rows of hidden_size.
struct ResidualCall {
  void* hidden;
  const void* added;  // null: nothing
  void* normed;       // may be `hidden`
  DecoderNorm out_norm;
  DecoderNorm in_norm;
  int size;
};

// A step's angles for one rope: [T][cos, sin][rotary_dim / 2].
struct DecoderTurns {
  const float* cos_and_sin;
  int rotary_dim;
};

// Norm and turn the queries, in place; norm, turn and store the keys; store the values.
struct RotaryCall {
  const DecoderShape& shape;
  const DecoderStep& step;
  DecoderNorm qk_norm;
  DecoderTurns turns;
  void* qkv;
  void* kv_cache;
};

// `gate = activation(gate) * up`. Gates lie in rows of `width`; of ups there are only those of the elements at
// hand, in rows of `ups_width`.
struct ActivationCall {
  void* gates;
  const void* ups;
  int64_t width;
  int64_t ups_width;
  Activation activation;
};

struct DecoderKernels {
  void (*add_and_norm)(const ResidualCall&, Range tokens);
  void (*rotate_and_store)(const RotaryCall&, Range tokens);
  void (*rotate_and_store_int8)(const RotaryCall&, Range tokens);
  void (*activate)(const ActivationCall&, Range tokens, Range elements);
};

#define PAGETIDE_DECLARE_DECODER(isa)       \
  namespace isa {                           \
  extern const DecoderKernels decoder_bf16; \
  extern const DecoderKernels decoder_f32;  \
  }

PAGETIDE_DECLARE_DECODER(plain)
#if defined(__x86_64__)
PAGETIDE_DECLARE_DECODER(avx2)
PAGETIDE_DECLARE_DECODER(avx512)
PAGETIDE_DECLARE_DECODER(amx)
#endif

}  // namespace pagetide

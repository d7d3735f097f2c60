// What a decoder does between its products: norms, residuals, rotary embedding, activation. Compiled once for
// each instruction set.
//
// Each works on one row at a time, in float32, and rounds where the layers in `pagetide.layers` round: a
// row's bits depend on nothing beside it.

#include <cmath>
#include <cstring>

#include "decoder.h"
#include "kv_codes.h"

namespace pagetide::PAGETIDE_ISA {
namespace {

template <class Element>
PAGETIDE_INLINE Element* row_of(void* rows, int64_t token, int64_t stride) {
  return static_cast<Element*>(rows) + token * stride;
}

template <class In>
PAGETIDE_INLINE float inverse_rms(const In* in, int size, float eps) {
  Vec squares = fill(0.0f);
  for (int i = 0; i < size; i += kLanes) {
    const Vec v = load(in + i);
    squares = multiply_add(v, v, squares);
  }
  return 1.0f / std::sqrt(reduce_sum(squares) / static_cast<float>(size) + eps);
}

// `in` and `out` may be the same.
template <class In, class Out>
void normalize(const In* in, DecoderNorm norm, int size, Out* out) {
  const Vec factor = fill(inverse_rms(in, size, norm.eps));
  for (int i = 0; i < size; i += kLanes) store(load(in + i) * factor * load(norm.weight + i), out + i);
}

template <class Element>
void add(const Element* added, DecoderNorm norm, int size, Element* hidden) {
  if (norm.weight == nullptr) {
    for (int i = 0; i < size; i += kLanes) store(load(hidden + i) + load(added + i), hidden + i);
    return;
  }
  const Vec factor = fill(inverse_rms(added, size, norm.eps));
  for (int i = 0; i < size; i += kLanes) {
    const Vec normed = rounded<Element>(load(added + i) * factor * load(norm.weight + i));
    store(load(hidden + i) + normed, hidden + i);
  }
}

template <class Element>
void add_and_norm(const ResidualCall& call, Range tokens) {
  for (int64_t token = tokens.begin; token < tokens.end; ++token) {
    auto* hidden = row_of<Element>(call.hidden, token, call.size);
    if (call.added != nullptr) {
      add(static_cast<const Element*>(call.added) + token * call.size, call.out_norm, call.size, hidden);
    }
    auto* normed = row_of<Element>(call.normed, token, call.size);
    if (call.in_norm.weight != nullptr) {
      normalize(hidden, call.in_norm, call.size, normed);
    } else if (normed != hidden) {
      std::memcpy(normed, hidden, sizeof(Element) * static_cast<size_t>(call.size));
    }
  }
}

// One token's heads. The cache holds them as [K|V][kv_head][tile], see kv_codes.h.
template <class Element, class Cache>
class Rotator {
 public:
  Rotator(const RotaryCall& call, int64_t token)
      : call_(call),
        cos_(call.turns.cos_and_sin + token * call.turns.rotary_dim),
        sin_(cos_ + call.turns.rotary_dim / 2),
        heads_(row_of<Element>(call.qkv, token, call.shape.qkv_size())),
        slot_(call.step.slots[token]) {}

  void run() const {
    const DecoderShape& shape = call_.shape;
    for (int head = 0; head < shape.num_heads; ++head) turn(head, at(head));
    if (slot_ < 0) return;
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      Element key[kMaxHeadSize];
      turn(shape.num_heads + head, key);
      keep(key, 0, head);
      keep(at(shape.num_rotated() + head), 1, head);
    }
  }

 private:
  Element* at(int head) const { return heads_ + int64_t{head} * call_.shape.head_size; }

  void keep(const Element* row, int key_or_value, int kv_head) const {
    const DecoderShape& shape = call_.shape;
    const int64_t tile = int64_t{key_or_value} * shape.num_kv_heads + kv_head;
    Cache* block = row_of<Cache>(call_.kv_cache, slot_ / kBlockTokens, call_.step.cache_stride);
    store_row(row, shape.head_size, block + tile * tile_size<Cache>(shape.head_size), slot_ % kBlockTokens);
  }

  void turn(int head, Element* out) const {
    const int size = call_.shape.head_size;
    float values[kMaxHeadSize];
    float turned[kMaxHeadSize];
    read(head, values);
    const int half = call_.turns.rotary_dim / 2;
    for (int i = 2 * half; i < size; ++i) turned[i] = values[i];
    for (int i = 0; i < half; ++i) {
      turned[i] = values[i] * cos_[i] - values[half + i] * sin_[i];
      turned[half + i] = values[half + i] * cos_[i] + values[i] * sin_[i];
    }
    for (int i = 0; i < size; i += kLanes) store(load(turned + i), out + i);
  }

  void read(int head, float* values) const {
    const Element* in = at(head);
    const int size = call_.shape.head_size;
    if (call_.qk_norm.weight == nullptr) {
      for (int i = 0; i < size; i += kLanes) store(load(in + i), values + i);
      return;
    }
    const DecoderNorm norm{call_.qk_norm.weight + int64_t{head} * size, call_.qk_norm.eps};
    normalize(in, norm, size, values);
    for (int i = 0; i < size; i += kLanes) store(rounded<Element>(load(values + i)), values + i);
  }

  const RotaryCall& call_;
  const float* cos_;
  const float* sin_;
  Element* heads_;
  int64_t slot_;
};

template <class Element, class Cache>
void rotate_and_store(const RotaryCall& call, Range tokens) {
  for (int token = tokens.begin; token < tokens.end; ++token) Rotator<Element, Cache>(call, token).run();
}

PAGETIDE_INLINE Vec silu(Vec x) { return x / (fill(1.0f) + exp2(x * fill(-kLog2E))); }

PAGETIDE_INLINE Vec gelu(Vec x) {
  float lanes[kLanes];
  store(x * fill(0.70710678f), lanes);
  for (float& lane : lanes) lane = std::erf(lane);
  return x * fill(0.5f) * (fill(1.0f) + load(lanes));
}

PAGETIDE_INLINE Vec gelu_tanh(Vec x) {
  const Vec inner = multiply_add(x * x * fill(0.044715f), x, x);
  return x * fill(0.5f) * (fill(1.0f) + tanh(inner * fill(0.79788456f)));
}

PAGETIDE_INLINE Vec relu(Vec x) { return max(x, fill(0.0f)); }

template <class Element, class Function>
PAGETIDE_INLINE void activate_with(Function function, const ActivationCall& call, Range tokens,
                                   Range elements) {
  for (int64_t token = tokens.begin; token < tokens.end; ++token) {
    auto* gate = static_cast<Element*>(call.gates) + token * call.width;
    const auto* up = static_cast<const Element*>(call.ups) + token * call.ups_width - elements.begin;
    for (int i = elements.begin; i < elements.end; i += kLanes) {
      store(rounded<Element>(function(load(gate + i))) * load(up + i), gate + i);
    }
  }
}

template <class Element>
void activate(const ActivationCall& call, Range tokens, Range elements) {
  switch (call.activation) {
    case Activation::silu:
      return activate_with<Element>([](Vec x) { return silu(x); }, call, tokens, elements);
    case Activation::gelu:
      return activate_with<Element>([](Vec x) { return gelu(x); }, call, tokens, elements);
    case Activation::gelu_tanh:
      return activate_with<Element>([](Vec x) { return gelu_tanh(x); }, call, tokens, elements);
    case Activation::relu:
      return activate_with<Element>([](Vec x) { return relu(x); }, call, tokens, elements);
  }
}

template <class Element>
constexpr DecoderKernels kKernels{add_and_norm<Element>, rotate_and_store<Element, Element>,
                                  rotate_and_store<Element, int8_t>, activate<Element>};

}  // namespace

const DecoderKernels decoder_bf16 = kKernels<bfloat16>;
const DecoderKernels decoder_f32 = kKernels<float>;

}  // namespace pagetide::PAGETIDE_ISA

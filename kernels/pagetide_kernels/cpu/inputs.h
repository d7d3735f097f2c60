// The inputs of a linear layer, as the rows that its product takes.
#pragma once

#include <algorithm>
#include <vector>

#include "linear.h"
#include "product.h"

namespace pagetide::PAGETIDE_ISA {

// As they lie in memory.
template <class Element, class Row>
class Inputs {
 public:
  explicit Inputs(const LinearCall& call)
      : rows_{static_cast<const Row*>(call.input),
              call.input_stride * int64_t{sizeof(Element)} / int64_t{sizeof(Row)}} {}

  // As many of the tokens as are there at once, for `rows_from` until it is called again.
  Range take(Range tokens) { return tokens; }

  Matrix<const Row> rows_from(int token) const { return {rows_.row(token), rows_.stride}; }

 private:
  Matrix<const Row> rows_;
};

#if !defined(__AVX512BF16__)

// Widened, once for all columns that a thread computes if there are no more rows than are kept.
template <class Row>
class Inputs<bfloat16, Row> {
 public:
  explicit Inputs(const LinearCall& call) : call_(call), widened_(*call.widened) {}

  Range take(Range tokens) {
    if (tokens.begin < widened_.tokens.begin || tokens.begin >= widened_.tokens.end) {
      widen({tokens.begin, std::min(tokens.end, tokens.begin + kMostRows)});
    }
    return {tokens.begin, std::min(tokens.end, widened_.tokens.end)};
  }

  Matrix<const Row> rows_from(int token) const {
    const float* row = widened_.rows.data() + int64_t{token - widened_.tokens.begin} * call_.in_features;
    return {reinterpret_cast<const Row*>(row), call_.in_features * int64_t{sizeof(float)} / int64_t{sizeof(Row)}};
  }

 private:
  static constexpr int kMostRows = 96;

  void widen(Range tokens) {
    const size_t num_floats = static_cast<size_t>(tokens.end - tokens.begin) * static_cast<size_t>(call_.in_features);
    if (widened_.rows.size() < num_floats) widened_.rows.resize(num_floats);
    float* out = widened_.rows.data();
    for (int64_t token = tokens.begin; token < tokens.end; ++token, out += call_.in_features) {
      widen_row(static_cast<const bfloat16*>(call_.input) + token * call_.input_stride, out);
    }
    widened_.tokens = tokens;
  }

  void widen_row(const bfloat16* in, float* out) const {
    const int whole = call_.in_features / kLanes * kLanes;
    for (int i = 0; i < whole; i += kLanes) store(load(in + i), out + i);
    for (int i = whole; i < call_.in_features; ++i) out[i] = widened(in[i]);
  }

  const LinearCall& call_;
  WidenedInputs& widened_;
};

#endif

}  // namespace pagetide::PAGETIDE_ISA

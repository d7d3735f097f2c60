// Computes some outputs of a linear layer. Compiled once for each instruction set.
//
// An output is one chain of sums over the input features, in order, whatever is computed beside it: the
// same bits for a token alone and in any batch.

#include "linear.h"
#include "multiply.h"

namespace pagetide::PAGETIDE_ISA {
namespace {

template <class Element>
struct WordOf {
  using type = float;
};

template <>
struct WordOf<bfloat16> {
  using type = BfloatPair;
};

int ceil_divided(int a, int b) { return (a + b - 1) / b; }

template <class Element>
class Projection {
  using Word = typename WordOf<Element>::type;
  static constexpr int kPerWord = sizeof(Word) / sizeof(Element);

 public:
  explicit Projection(const LinearCall& call) : call_(call), depth_(call.in_features / kPerWord) {}

  void run(Range tokens, Range columns) const {
    for (int column = columns.begin; column < columns.end; column += kMaxColumns) {
      const int left = columns.end - column;
      run_columns(tokens, column, left < kMaxColumns ? left : kMaxColumns);
    }
  }

 private:
  // As even groups of tokens as can be: a small last one would not hide the loads of the weights.
  void run_columns(Range tokens, int column, int num_columns) const {
    int token = tokens.begin;
    for (int groups = ceil_divided(tokens.end - token, kLinearRows); groups > 0; --groups) {
      const int count = ceil_divided(tokens.end - token, groups);
      run_tile(token, count, column, num_columns);
      token += count;
    }
  }

  void run_tile(int token, int num_tokens, int column, int num_columns) const {
    float sums[kLinearRows][kMaxColumns * kLanes];
    const auto* input = static_cast<const Element*>(call_.input) + token * call_.input_stride;
    const auto* weight = static_cast<const Word*>(call_.weight);
    const int64_t column_stride = int64_t{depth_} * kLanes;
    const Product<Word> product{{reinterpret_cast<const Word*>(input), call_.input_stride / kPerWord},
                                {weight + column * column_stride, kLanes, column_stride},
                                {sums[0], kMaxColumns * kLanes},
                                depth_,
                                nullptr};
    multiply<kLinearRows>(num_tokens, num_columns, product);
    for (int i = 0; i < num_tokens; ++i) {
      for (int c = 0; c < num_columns; ++c) write(load(sums[i] + c * kLanes), token + i, column + c);
    }
  }

  void write(Vec sum, int token, int column) const {
    const int first = column * kLanes;
    const int count = call_.out_features - first < kLanes ? call_.out_features - first : kLanes;
    auto* out = static_cast<Element*>(call_.out) + token * call_.out_stride + first;
    if (call_.bias != nullptr) sum = sum + load_some(static_cast<const Element*>(call_.bias) + first, count);
    if (count == kLanes) return store(sum, out);
    Element lanes[kLanes];
    store(sum, lanes);
    std::memcpy(out, lanes, sizeof(Element) * static_cast<size_t>(count));
  }

  static Vec load_some(const Element* in, int count) {
    if (count == kLanes) return load(in);
    Element lanes[kLanes] = {};
    std::memcpy(lanes, in, sizeof(Element) * static_cast<size_t>(count));
    return load(lanes);
  }

  const LinearCall& call_;
  int depth_;
};

template <class Element>
void project(const LinearCall& call, Range tokens, Range columns) {
  Projection<Element>(call).run(tokens, columns);
}

}  // namespace

const LinearKernels linear_bf16{project<bfloat16>};
const LinearKernels linear_f32{project<float>};

}  // namespace pagetide::PAGETIDE_ISA

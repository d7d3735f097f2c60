#include "linear_checks.h"

#include <cmath>

#include "random.h"

using Linear = const char*(void*, const void*, const void*, const void*, int64_t, int64_t, int, int, int,
                           int);

extern "C" Linear linear_bf16;
extern "C" Linear linear_f32;

namespace {

constexpr int kLanes = pagetide::kLanes;

template <class Element>
struct Layer {
  int num_tokens, num_outputs, num_inputs;
  std::vector<Element> input, weight, bias, out;

  static constexpr int kPerWord = 4 / sizeof(Element);

  int num_columns() const { return (num_outputs + kLanes - 1) / kLanes; }

  // Where output n's weight of input k lies: [columns][inputs / kPerWord][16][kPerWord].
  Element packed(int n, int k) const {
    const size_t word = size_t(n / kLanes) * size_t(num_inputs / kPerWord) + size_t(k / kPerWord);
    return weight[(word * kLanes + size_t(n % kLanes)) * kPerWord + size_t(k % kPerWord)];
  }
};

template <class Element>
Layer<Element> random_layer() {
  Layer<Element> layer{random_int(0, 20), random_int(1, 150), 2 * random_int(1, 700), {}, {}, {}, {}};
  fill(layer.input, size_t(layer.num_tokens) * size_t(layer.num_inputs));
  fill(layer.weight, size_t(layer.num_columns() * kLanes) * size_t(layer.num_inputs));
  fill(layer.bias, size_t(layer.num_outputs));
  layer.out.resize(size_t(layer.num_tokens) * size_t(layer.num_outputs));
  return layer;
}

template <class Element>
void compare(const Layer<Element>& layer, int token, int n, bool biased) {
  const Element* input = &layer.input[size_t(token) * size_t(layer.num_inputs)];
  double sum = biased ? double(number(layer.bias[size_t(n)])) : 0.0;
  double magnitude = 1.0;
  for (int k = 0; k < layer.num_inputs; ++k) {
    const double product = double(number(input[k])) * double(number(layer.packed(n, k)));
    sum += product;
    magnitude += std::abs(product);
  }
  const double rounding = sizeof(Element) == 2 ? std::abs(sum) / 256.0 : 0.0;
  const double got = double(number(layer.out[size_t(token) * size_t(layer.num_outputs) + size_t(n)]));
  if (std::abs(got - sum) <= rounding + 1e-6 * magnitude) return;
  std::printf("linear: token %d output %d: %g, expected %g\n", token, n, got, sum);
  std::exit(1);
}

template <class Element>
int check(Linear linear) {
  Layer<Element> layer = random_layer<Element>();
  const bool biased = random_int(0, 1) == 1;
  require(linear(layer.out.data(), layer.input.data(), layer.weight.data(),
                 biased ? layer.bias.data() : nullptr, layer.num_outputs, layer.num_inputs, layer.num_tokens,
                 layer.num_outputs, layer.num_inputs, layer.num_columns()));
  for (int token = 0; token < layer.num_tokens; ++token) {
    for (int n = 0; n < layer.num_outputs; ++n) compare(layer, token, n, biased);
  }
  return layer.num_tokens;
}

}  // namespace

int check_linear() { return check<bfloat16>(linear_bf16) + check<float>(linear_f32); }

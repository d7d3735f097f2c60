#include "linear_checks.h"

#include <cmath>

#include "random.h"

using Linear = const char*(void*, const void*, const void*, const void*, int64_t, int64_t, int, int, int,
                           int);

using QuantisedLinear = const char*(void*, const void*, const void*, const uint16_t*, const void*, int64_t,
                                    int64_t, int, int, int, int, int, int, int);

extern "C" Linear linear_bf16;
extern "C" Linear linear_f32;
extern "C" QuantisedLinear quantised_linear_bf16;
extern "C" QuantisedLinear quantised_linear_f32;

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

constexpr uint16_t kHalves[] = {0x3800, 0x3c00, 0x4000};  // 0.5, 1, 2 as float16
constexpr double kNumbers[] = {0.5, 1.0, 2.0};

// The weights of a layer as random codes, all scales of one value and all minimums of another.
struct Codes {
  int bits, parts, groups, columns;
  int scale, minimum;
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales;

  int group_bytes() const { return bits * 64; }

  double weight(int n, int k) const {
    const uint8_t* group = &codes[size_t(n / kLanes * groups + k / 32) * size_t(group_bytes())];
    const int lane = n % kLanes, input = k % 32;
    if (bits == 8) return double(int8_t(group[input / 4 * 64 + 4 * lane + input % 4])) * kNumbers[scale];
    const int nibble = input % 8 / 2;
    const uint8_t pair = group[input / 8 * 64 + 4 * lane + 2 * (input % 2) + nibble / 2];
    const int code = nibble % 2 == 0 ? pair & 15 : pair >> 4;
    return parts == 2 ? code * kNumbers[scale] + kNumbers[minimum] : (code - 8) * kNumbers[scale];
  }
};

Codes random_codes(int num_outputs, int num_inputs) {
  Codes codes{4 * random_int(1, 2), 1, num_inputs / 32, (num_outputs + kLanes - 1) / kLanes, 0, 0, {}, {}};
  if (codes.bits == 4) codes.parts = random_int(1, 2);
  codes.scale = random_int(0, 2);
  codes.minimum = random_int(0, 2);
  const size_t groups = size_t(codes.columns) * size_t(codes.groups);
  codes.codes.resize(groups * size_t(codes.group_bytes()));
  for (uint8_t& code : codes.codes) code = uint8_t(random_int(-127, 127));
  for (size_t i = 0; i < groups * size_t(codes.parts); ++i) {
    const bool is_minimum = codes.parts == 2 && i % 2 == 1;
    codes.scales.insert(codes.scales.end(), kLanes, kHalves[is_minimum ? codes.minimum : codes.scale]);
  }
  return codes;
}

template <class Element>
void compare_codes(const Layer<Element>& layer, const Codes& codes, int token, int n) {
  const Element* input = &layer.input[size_t(token) * size_t(layer.num_inputs)];
  double sum = 0.0, magnitude = 1.0;
  for (int k = 0; k < layer.num_inputs; ++k) {
    const double product = double(number(input[k])) * codes.weight(n, k);
    sum += product;
    magnitude += std::abs(product);
  }
  const double rounding = sizeof(Element) == 2 ? std::abs(sum) / 256.0 : 0.0;
  const double got = double(number(layer.out[size_t(token) * size_t(layer.num_outputs) + size_t(n)]));
  if (std::abs(got - sum) <= rounding + 1e-5 * magnitude) return;
  std::printf("quantised linear: %d bits, token %d output %d: %g, expected %g\n", codes.bits, token, n, got, sum);
  std::exit(1);
}

template <class Element>
int check_codes(QuantisedLinear linear) {
  Layer<Element> layer{random_int(0, 12), random_int(1, 150), 32 * random_int(1, 20), {}, {}, {}, {}};
  const Codes codes = random_codes(layer.num_outputs, layer.num_inputs);
  fill(layer.input, size_t(layer.num_tokens) * size_t(layer.num_inputs));
  layer.out.resize(size_t(layer.num_tokens) * size_t(layer.num_outputs));
  require(linear(layer.out.data(), layer.input.data(), codes.codes.data(), codes.scales.data(), nullptr,
                 layer.num_outputs, layer.num_inputs, layer.num_tokens, layer.num_outputs, layer.num_inputs,
                 codes.columns, codes.groups, codes.group_bytes(), codes.parts));
  for (int token = 0; token < layer.num_tokens; ++token) {
    for (int n = 0; n < layer.num_outputs; ++n) compare_codes(layer, codes, token, n);
  }
  return layer.num_tokens;
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

int check_linear() {
  return check<bfloat16>(linear_bf16) + check<float>(linear_f32) +
         check_codes<bfloat16>(quantised_linear_bf16) + check_codes<float>(quantised_linear_f32);
}

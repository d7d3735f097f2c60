// Runs the CPU kernels on random ragged steps and layers against naive loops, with every instruction set this
// CPU has. Built with sanitizers: all memory is on the heap in its exact size, so a read beyond it is caught.
// Prints the number of comparisons; exits with 1 at the first that fails.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#include "decoder_checks.h"
#include "draw_checks.h"
#include "later_checks.h"
#include "linear_checks.h"
#include "random.h"

extern "C" {
int pagetide_supports(int isa);
void pagetide_use_isa(int isa);
}

template <class Element>
using Attention = const char*(void*, const void*, const void*, const int32_t*, const int32_t*, const int32_t*,
                              int64_t, int64_t, int64_t, int64_t, int, int, int, int, int, int, int, float,
                              int, float, float, float);
template <class Element>
using Write = const char*(Element*, const Element*, const Element*, const int64_t*, int64_t, int64_t, int64_t,
                          int, int, int, int, float, float);

extern "C" Attention<bfloat16> paged_attention_bf16;
extern "C" Attention<float> paged_attention_f32;
extern "C" Write<bfloat16> write_kv_bf16;
extern "C" Write<float> write_kv_f32;

namespace {

constexpr int kBlock = pagetide::kBlockTokens;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Shape {
  int heads, kv_heads, head_size, window;
  float soft_cap;
};

// One step's arguments; the cache is NaN but for the tokens that are written through write_kv.
template <class Element>
struct Step {
  Shape shape;
  std::vector<int32_t> starts{0};
  std::vector<int32_t> kv_lens;
  std::vector<int32_t> table;
  std::vector<Element> query, cache, out;
  int width = 0;
  int num_blocks = 0;

  size_t row_size() const { return size_t(shape.heads) * size_t(shape.head_size); }
  int num_sequences() const { return int(kv_lens.size()); }

  Element& kv(int block, int value, int head, int offset) {
    const size_t index =
        ((size_t(block) * 2 + size_t(value)) * size_t(shape.kv_heads) + size_t(head)) * kBlock;
    return cache[(index + size_t(offset)) * size_t(shape.head_size)];
  }
};

template <class Element>
void place_blocks(Step<Element>& step) {
  std::vector<int32_t> ids(size_t(step.num_blocks));
  for (int i = 0; i < step.num_blocks; ++i) ids[size_t(i)] = i;
  std::shuffle(ids.begin(), ids.end(), random_bits);
  step.table.assign(size_t(step.width) * step.kv_lens.size(), -1);
  for (int s = 0; s < step.num_sequences(); ++s) {
    for (int i = 0; i * kBlock < step.kv_lens[size_t(s)]; ++i) {
      step.table[size_t(s * step.width + i)] = ids.back();
      ids.pop_back();
    }
  }
}

template <class Element>
const char* write_tokens(Step<Element>& step, Write<Element> write) {
  std::vector<int64_t> slots{-1};
  for (int s = 0; s < step.num_sequences(); ++s) {
    for (int position = 0; position < step.kv_lens[size_t(s)]; ++position) {
      slots.push_back(int64_t{step.table[size_t(s * step.width + position / kBlock)]} * kBlock +
                      position % kBlock);
    }
  }
  std::vector<Element> key, value;
  const int64_t stride = int64_t{step.shape.kv_heads} * step.shape.head_size;
  fill(key, slots.size() * size_t(stride));
  fill(value, slots.size() * size_t(stride));
  return write(step.cache.data(), key.data(), value.data(), slots.data(), 2 * kBlock * stride, stride, stride,
               int(slots.size()), step.num_blocks, step.shape.kv_heads, step.shape.head_size, 1, 1);
}

template <class Element>
Step<Element> random_step(const Shape& shape) {
  Step<Element> step;
  step.shape = shape;
  const int num_sequences = random_int(1, 5);
  for (int s = 0; s < num_sequences; ++s) {
    const int queries = random_int(0, 2) == 0 ? random_int(0, 40) : 1;
    const int kv_len = random_int(0, 7) == 0 ? 0 : queries + random_int(0, random_int(0, 3) == 0 ? 600 : 70);
    step.starts.push_back(step.starts.back() + queries);
    step.kv_lens.push_back(kv_len);
    step.width = std::max(step.width, (kv_len + kBlock - 1) / kBlock);
    step.num_blocks += (kv_len + kBlock - 1) / kBlock;
  }
  step.num_blocks += 2;
  fill(step.query, size_t(step.starts.back()) * step.row_size());
  step.out.resize(step.query.size());
  step.cache.resize(size_t(step.num_blocks) * 2 * kBlock * size_t(shape.kv_heads) * size_t(shape.head_size));
  for (Element& element : step.cache) assign(element, kNan);
  place_blocks(step);
  return step;
}

// Attention of one query and head, token by token.
template <class Element>
std::vector<double> naive(Step<Element>& step, int sequence, int position, const Element* query, int head) {
  const Shape& shape = step.shape;
  const int kv_head = head / (shape.heads / shape.kv_heads);
  const int first = shape.window > 0 ? std::max(0, position - shape.window + 1) : 0;
  std::vector<double> sum(size_t(shape.head_size));
  double total = 0.0;
  for (int t = first; t <= position; ++t) {
    const int block = step.table[size_t(sequence * step.width + t / kBlock)];
    const Element* key = &step.kv(block, 0, kv_head, t % kBlock);
    const Element* value = &step.kv(block, 1, kv_head, t % kBlock);
    double score = 0.0;
    for (int d = 0; d < shape.head_size; ++d) score += double(number(query[d])) * double(number(key[d]));
    score /= std::sqrt(double(shape.head_size));
    if (shape.soft_cap > 0.0f) score = double(shape.soft_cap) * std::tanh(score / double(shape.soft_cap));
    const double weight = std::exp(score);
    total += weight;
    for (int d = 0; d < shape.head_size; ++d) sum[size_t(d)] += weight * double(number(value[d]));
  }
  for (double& x : sum) x = total > 0.0 ? x / total : 0.0;
  return sum;
}

template <class Element>
void compare_query(Step<Element>& step, int sequence, int row, int position) {
  constexpr double kTolerance = sizeof(Element) == 2 ? 0.008 : 1e-5;
  for (int head = 0; head < step.shape.heads; ++head) {
    const size_t offset = size_t(row) * step.row_size() + size_t(head) * size_t(step.shape.head_size);
    const std::vector<double> expected = naive(step, sequence, position, &step.query[offset], head);
    for (size_t d = 0; d < expected.size(); ++d) {
      const double got = double(number(step.out[offset + d]));
      if (std::abs(got - expected[d]) <= kTolerance) continue;
      std::printf("sequence %d position %d head %d element %zu: %g, expected %g\n", sequence, position, head,
                  d, got, expected[d]);
      std::exit(1);
    }
  }
}

template <class Element>
int compare(Step<Element>& step) {
  int compared = 0;
  for (int s = 0; s < step.num_sequences(); ++s) {
    const int end = step.starts[size_t(s) + 1];
    const int kv_len = step.kv_lens[size_t(s)];
    for (int row = step.starts[size_t(s)]; row < end; ++row, ++compared) {
      compare_query(step, s, row, kv_len > 0 ? kv_len - (end - row) : -1);
    }
  }
  return compared;
}

template <class Element>
int run(const Shape& shape, Attention<Element> attention, Write<Element> write) {
  Step<Element> step = random_step<Element>(shape);
  require(write_tokens(step, write));
  const int64_t row = int64_t(step.row_size());
  const int64_t block = int64_t{2} * kBlock * shape.kv_heads * shape.head_size;
  const float scale = 1.0f / std::sqrt(float(shape.head_size));
  require(attention(step.out.data(), step.query.data(), step.cache.data(), step.table.data(),
                    step.starts.data(), step.kv_lens.data(), row, row, block, step.width, step.starts.back(),
                    step.num_sequences(), step.width, step.num_blocks, shape.heads, shape.kv_heads,
                    shape.head_size, scale, shape.window, shape.soft_cap, 1, 1));
  return compare(step);
}

int run_all(int isa, int rounds) {
  pagetide_use_isa(isa);
  int compared = 0;
  for (int i = 0; i < rounds; ++i) {
    const int kv_heads = random_int(1, 3);
    const int window = random_int(0, 2) == 0 ? random_int(1, 300) : 0;
    const float soft_cap = random_int(0, 3) == 0 ? 2.0f : 0.0f;
    const Shape shape{kv_heads * random_int(1, 9), kv_heads, 16 * random_int(1, 8), window, soft_cap};
    compared += run<bfloat16>(shape, paged_attention_bf16, write_kv_bf16);
    compared += run<float>(shape, paged_attention_f32, write_kv_f32);
    compared += check_linear();
    compared += check_decoder();
    for (int draw = 0; draw < 100; ++draw) check_draw();
  }
  return compared;
}

}  // namespace

int main(int, char** arguments) {
  const int rounds = std::atoi(arguments[1]);
  for (int i = 0; i < rounds; ++i) check_later_reads();
  for (int isa = 0; isa < 4; ++isa) {
    if (pagetide_supports(isa)) std::printf("instruction set %d: %d rows right\n", isa, run_all(isa, rounds));
  }
  return 0;
}

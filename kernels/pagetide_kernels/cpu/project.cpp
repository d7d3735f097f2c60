// Computes some outputs of a linear layer. Compiled once for each instruction set.
//
// An output is one chain of sums over the input features, in order, whatever is computed beside it: the
// same bits for a token alone and in any batch.

#include <array>
#include <cmath>
#include <type_traits>

#include "inputs.h"
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

// A chunk of a tile's weights, the inputs that meet it and the next chunk stay in the L2 cache together.
#if defined(__AMX_BF16__)
constexpr int kRowsAtOnce = 192;
#else
constexpr int kRowsAtOnce = 96;
#endif
#if defined(__AVX512BF16__)
constexpr int kChunkInputs = 2048;
#else
constexpr int kChunkInputs = 640;
#endif

// While a core computes so many products of a row and a vector of words, memory can bring it a line.
#if defined(__AMX_BF16__)
constexpr int kProductsPerLine = 128;
#elif defined(__AVX512BF16__)
constexpr int kProductsPerLine = 16;
#else
constexpr int kProductsPerLine = 8;
#endif

template <class Element>
class Projection {
  using Word = typename WordOf<Element>::type;
  static constexpr int kPerWord = sizeof(Word) / sizeof(Element);

  static constexpr int kChunkDepth = kChunkInputs / kPerWord;

 public:
  explicit Projection(const LinearCall& call)
      : call_(call), depth_(call.in_features / kPerWord), inputs_(call) {}

  void run(Range tokens, Range columns, Range after) {
    while (tokens.begin < tokens.end) {
      const Range taken = inputs_.take(tokens);
      run_taken(taken, columns, after);
      tokens.begin = taken.end;
    }
  }

 private:
  void run_taken(Range tokens, Range columns, Range after) {
    const int width = columns_at_once<Word>(tokens.end - tokens.begin);
    for (int column = columns.begin; column < columns.end; column += width) {
      const Range tile = first(width, {column, columns.end});
      const Range next = first(width, tile.end < columns.end ? Range{tile.end, columns.end} : after);
      for (int token = tokens.begin; token < tokens.end; token += kRowsAtOnce) {
        run_tile(first(kRowsAtOnce, {token, tokens.end}), tile, next);
      }
    }
  }

  // Of as many chunks as it takes, in whole tiles of tiles.h.
  static int even_part(int depth) {
    constexpr int kStep = 16;
    return ceil_divided(ceil_divided(depth, ceil_divided(depth, kChunkDepth)), kStep) * kStep;
  }

  static Range first(int count, Range range) {
    return {range.begin, range.end - range.begin < count ? range.end : range.begin + count};
  }

  const Word* weights(int column, int depth) const {
    return static_cast<const Word*>(call_.weight) + (int64_t{column} * depth_ + depth) * kLanes;
  }

  // A chunk of the inputs at a time; if there are many, the sums of a tile wait while its weights pass by.
  void run_tile(Range tokens, Range columns, Range next_columns) {
    if (call_.is_widened && call_.largest == nullptr) fetch_outputs(tokens, columns);
    const int size = even_part(depth_);
    later_lines_ = call_.later != nullptr ? spare_lines(tokens, columns) : 0;
    for (int depth = 0; depth < depth_; depth += size) {
      const Range chunk = first(size, {depth, depth_});
      if (chunk.end < depth_) {
        look_ahead(columns, first(size, {chunk.end, depth_}));
      } else if (next_columns.begin == next_columns.end && call_.then != nullptr) {
        ahead_.clear();
        ahead_.add(call_.then, call_.then_bytes);
      } else {
        look_ahead(next_columns, first(size, {0, depth_}));
      }
      if (later_lines_ > 0) ahead_.add(*call_.later, later_lines_ * (chunk.end - chunk.begin));
      run_chunk(tokens, columns, chunk);
    }
  }

  // A head's logits are more than the caches keep: writing them waits for memory, unless their lines are there.
  void fetch_outputs(Range tokens, Range columns) const {
    for (int64_t token = tokens.begin; token < tokens.end; ++token) {
      const float* out = static_cast<const float*>(call_.out) + token * call_.out_stride;
      for (int i = columns.begin; i < columns.end; ++i) __builtin_prefetch(out + i * kLanes, 1, 2);
    }
  }

  void look_ahead(Range columns, Range chunk) {
    ahead_.clear();
    const int64_t bytes = int64_t{chunk.end - chunk.begin} * kLanes * int64_t{sizeof(Word)};
    for (int column = columns.begin; column < columns.end; ++column) {
      ahead_.add(weights(column, chunk.begin), bytes);
    }
  }

  // How many lines memory has time to bring, for each step along the depth, beside those of the next weights:
  // at most as many again, for more at once would stall.
  static int spare_lines(Range tokens, Range columns) {
    const int width = columns.end - columns.begin;
    const int spare = width * (tokens.end - tokens.begin) / kProductsPerLine - width;
    return spare < 0 ? 0 : spare < width ? spare : width;
  }

  void run_chunk(Range tokens, Range columns, Range chunk) {
    fetch_every_ = ceil_divided(tokens.end - tokens.begin, Cut<Word>::kRows);
    for (int token = tokens.begin; token < tokens.end;) {
      const Range group{token, token + Cut<Word>::next_rows(tokens.end - token)};
      float* sums = sums_[depth_ > kChunkDepth ? token - tokens.begin : 0];
      add_chunk(group, sums, columns, chunk);
      if (chunk.end == depth_) write(group, sums, columns);
      token = group.end;
    }
  }

  void add_chunk(Range tokens, float* sums, Range columns, Range chunk) {
    static constexpr auto kOnes = [] {
      std::array<float, Cut<Word>::kRows> ones{};
      for (float& one : ones) one = 1.0f;
      return ones;
    }();
    const Matrix<const RowWord<Word>> input = inputs_.rows_from(tokens.begin);
    const Product<Word> product{
        {input.data + chunk.begin, input.stride},
        {weights(columns.begin, chunk.begin), kLanes, int64_t{depth_} * kLanes},
        {sums, kMaxColumns * kLanes},
        chunk.end - chunk.begin,
        chunk.begin == 0 ? nullptr : kOnes.data(),
        &ahead_,
        columns.end - columns.begin + later_lines_,
        fetch_every_};
    multiply(tokens.end - tokens.begin, columns.end - columns.begin, product);
  }

  void write(Range tokens, const float* sums, Range columns) const {
    if (call_.largest != nullptr) return keep_largest(tokens, sums, columns);
    call_.is_widened ? write_as<float>(tokens, sums, columns) : write_as<Element>(tokens, sums, columns);
  }

  template <class Out>
  void write_as(Range tokens, const float* sums, Range columns) const {
    const int first = columns.begin * kLanes;
    for (int token = tokens.begin; token < tokens.end; ++token, sums += kMaxColumns * kLanes) {
      write_row(sums, columns,
                static_cast<Out*>(call_.out) + token * call_.out_stride + first - call_.out_column * kLanes);
    }
  }

  // One token's outputs in some columns.
  template <class Out>
  void write_row(const float* sums, Range columns, Out* out) const {
    const int size = (columns.end - columns.begin) * kLanes, first = columns.begin * kLanes;
    const bool is_plain = call_.bias == nullptr && first + size <= call_.out_features;
    for (int i = 0; i < size; i += kLanes) {
      is_plain ? store(as<Out>(load(sums + i)), out + i) : write_some(load(sums + i), out + i, first + i);
    }
  }

  // Columns come in rising order.
  void keep_largest(Range tokens, const float* sums, Range columns) const {
    const int first = columns.begin * kLanes;
    const int end = columns.end * kLanes < call_.out_features ? columns.end * kLanes : call_.out_features;
    float row[kMaxColumns * kLanes];
    for (int i = end - first; i < (columns.end - columns.begin) * kLanes; ++i) row[i] = -INFINITY;
    for (int token = tokens.begin; token < tokens.end; ++token, sums += kMaxColumns * kLanes) {
      write_row(sums, columns, row);
      const float most = largest_of(row, columns.end - columns.begin);
      Largest& found = call_.largest[token];
      if (most > found.value) found = {most, first + place_of(most, row)};
    }
  }

  static PAGETIDE_INLINE float largest_of(const float* row, int num_columns) {
    Vec found = fill(-INFINITY);
    for (int i = 0; i < num_columns; ++i) found = max(load(row + i * kLanes), found);
    return reduce_max(found);
  }

  static PAGETIDE_INLINE int place_of(float value, const float* row) {
    int place = 0;
    while (row[place] != value) ++place;
    return place;
  }

  // What is stored as Out.
  template <class Out>
  static PAGETIDE_INLINE Vec as(Vec sum) {
    if constexpr (std::is_same_v<Out, Element>) return sum;
    return rounded<Element>(sum);
  }

  // With a bias, or to the last outputs.
  template <class Out>
  void write_some(Vec sum, Out* out, int first) const {
    const int count = call_.out_features - first < kLanes ? call_.out_features - first : kLanes;
    if (call_.bias != nullptr) sum = sum + load_some(static_cast<const Element*>(call_.bias) + first, count);
    Out lanes[kLanes];
    store(as<Out>(sum), lanes);
    std::memcpy(out, lanes, sizeof(Out) * static_cast<size_t>(count));
  }

  static Vec load_some(const Element* in, int count) {
    if (count == kLanes) return load(in);
    Element lanes[kLanes] = {};
    std::memcpy(lanes, in, sizeof(Element) * static_cast<size_t>(count));
    return load(lanes);
  }

  const LinearCall& call_;
  int depth_;
  Inputs<Element, RowWord<Word>> inputs_;
  Lookahead ahead_;
  int later_lines_ = 0;
  int fetch_every_ = 1;
  float sums_[kRowsAtOnce][kMaxColumns * kLanes];
};

template <class Element>
void project(const LinearCall& call, Range tokens, Range columns, Range next) {
  Projection<Element>(call).run(tokens, columns, next);
}

}  // namespace

const LinearKernels linear_bf16{project<bfloat16>};
const LinearKernels linear_f32{project<float>};

}  // namespace pagetide::PAGETIDE_ISA

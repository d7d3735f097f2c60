// Computes some outputs of a linear layer whose weights are codes (codes.h). Compiled once for each instruction
// set.
//
// Codes are expanded on their way into the product: those of 4 bits take a shift and a look-up. Those of 8 bits
// take twice that, and are unpacked into the L1 cache where many rows share them.

#include <type_traits>

#include "inputs.h"
#include "linear.h"
#include "multiply_groups.h"

#if defined(__AMX_BF16__)
#include "group_tiles.h"
#endif

namespace pagetide::PAGETIDE_ISA {
namespace {

// The sums of a tile wait while its weights are unpacked, a few groups at a time.
constexpr int kTileRows = 96;

// Up to so many bytes, the next tile is asked for while this one is read; columns longer than a quarter of it
// the hardware sees coming.
constexpr int64_t kMaxAhead = 256 << 10;

template <class Element, class Format>
class QuantisedProjection {
#if defined(__AVX512BF16__)
  using Word = std::conditional_t<std::is_same_v<Element, float>, float, BfloatPair>;
#else
  using Word = float;
#endif
  using Unpacked = UnpackedGroups<Format, Word>;
  static constexpr int kDepth = Unpacked::kDepth;
#if defined(__AMX_BF16__)
  static constexpr bool kHasTiles = std::is_same_v<Word, BfloatPair>;
#else
  static constexpr bool kHasTiles = false;
#endif
#if defined(__AVX512BF16__)
  static constexpr bool kStreams = std::is_same_v<Word, BfloatPair> && !kHasTiles;
  static constexpr int kStreamedRows = Format::kBits == 4 ? kTileRows : 2 * kGroupRows;
#elif defined(__AVX2__)
  static constexpr bool kStreams = true;
  static constexpr int kStreamedRows = kGroupRows;
#else
  static constexpr bool kStreams = false;
  static constexpr int kStreamedRows = 0;
#endif

 public:
  explicit QuantisedProjection(const LinearCall& call)
      : call_(call), num_groups_(call.in_features / kGroupInputs), inputs_(call) {}

  void run(Range tokens, Range columns, Range after) {
    while (tokens.begin < tokens.end) {
      const Range taken = inputs_.take(tokens);
      run_taken(taken, columns, after);
      tokens.begin = taken.end;
    }
  }

 private:
  void run_taken(Range tokens, Range columns, Range after) {
    for (int column = columns.begin; column < columns.end; column += kGroupColumns) {
      const Range tile = first(kGroupColumns, {column, columns.end});
      const int next = tile.end < columns.end ? tile.end : after.begin < after.end ? after.begin : tile.end;
      const int64_t ahead = (next - tile.begin) * column_bytes();
      ahead_ = ahead < kMaxAhead && ahead > -kMaxAhead ? ahead : 0;
      for (int token = tokens.begin; token < tokens.end; token += kTileRows) {
        run_tile(first(kTileRows, {token, tokens.end}), tile);
      }
    }
  }

  static Range first(int count, Range range) {
    return {range.begin, range.end - range.begin < count ? range.end : range.begin + count};
  }

  int64_t column_bytes() const { return int64_t{num_groups_} * Format::kBytes; }

  const uint8_t* codes(int column, int group) const {
    return static_cast<const uint8_t*>(call_.weight) + column * column_bytes() +
           int64_t{group} * Format::kBytes;
  }

  const uint16_t* scales(int column, int group) const {
    return call_.codes.scales + (int64_t{column} * num_groups_ + group) * Format::kScales;
  }

  // What some groups add to the sums of the tokens from `token` on.
  GroupProduct<Word> product(int token, float* sums, Range groups) const {
    const Matrix<const Word> input = inputs_.rows_from(token);
    const float* input_sums = call_.codes.input_sums;
    if (input_sums != nullptr) input_sums += int64_t{token} * num_groups_ + groups.begin;
    return {{input.data + int64_t{groups.begin} * kDepth, input.stride},
            {input_sums, num_groups_},
            {sums, kGroupColumns * kLanes},
            groups.end - groups.begin};
  }

  void run_tile(Range tokens, Range columns) {
    std::memset(sums_, 0, sizeof sums_[0] * static_cast<size_t>(tokens.end - tokens.begin));
    if (kStreams && tokens.end - tokens.begin <= kStreamedRows) {
      stream(tokens, columns);
    } else {
      for (int group = 0; group < num_groups_; group += Unpacked::kGroups) {
        const Range chunk = first(Unpacked::kGroups, {group, num_groups_});
        unpack(columns, chunk);
        multiply_unpacked(tokens, columns, chunk);
      }
    }
    write(tokens, columns);
  }

  void multiply_unpacked(Range tokens, Range columns, Range groups) {
#if defined(__AMX_BF16__)
    if constexpr (kHasTiles) return multiply_by_tiles(tokens, columns, groups);
#endif
    multiply(tokens, columns, groups, unpacked_);
  }

  void stream(Range tokens, Range columns) {
    if constexpr (kStreams) {
      const StreamedGroups<Format> groups{codes(columns.begin, 0), scales(columns.begin, 0), num_groups_,
                                          ahead_};
      multiply(tokens, columns, {0, num_groups_}, groups);
    }
  }

  void unpack(Range columns, Range groups) {
    for (int column = columns.begin; column < columns.end; ++column) {
      for (int group = groups.begin; group < groups.end; ++group) {
        const uint8_t* from = codes(column, group);
        for (int i = 0; i < Format::kBytes; i += kLoadBytes) __builtin_prefetch(from + ahead_ + i, 0, 2);
        unpacked_.unpack(from, scales(column, group), column - columns.begin, group - groups.begin);
      }
    }
  }

#if defined(__AMX_BF16__)
  // A row's sums are the same whatever is beside it, so few rows take tiles too.
  void multiply_by_tiles(Range tokens, Range columns, Range range) {
    for (int token = tokens.begin; token < tokens.end;) {
      const int rows = Cut<Word>::next_rows(tokens.end - token);
      multiply_group_tiles<Format>(rows, columns.end - columns.begin, unpacked_,
                                   product(token, sums_[token - tokens.begin], range));
      token += rows;
    }
  }
#endif

  // As even sets of tokens as can be.
  template <class Groups>
  void multiply(Range tokens, Range columns, Range range, const Groups& groups) {
    int token = tokens.begin;
    for (int sets = ceil_divided(tokens.end - token, kGroupRows); sets > 0; --sets) {
      const int rows = ceil_divided(tokens.end - token, sets);
      multiply_groups<kGroupRows, kGroupColumns, Format>(rows, columns.end - columns.begin, groups,
                                                       product(token, sums_[token - tokens.begin], range));
      token += rows;
    }
  }

  void write(Range tokens, Range columns) const {
    for (int token = tokens.begin; token < tokens.end; ++token) {
      const float* sums = sums_[token - tokens.begin];
      for (int column = columns.begin; column < columns.end; ++column, sums += kLanes) {
        write(load(sums), token, column);
      }
    }
  }

  void write(Vec sum, int token, int column) const {
    const int begin = column * kLanes;
    const int count = call_.out_features - begin < kLanes ? call_.out_features - begin : kLanes;
    const size_t bytes = sizeof(Element) * static_cast<size_t>(count);
    Element lanes[kLanes] = {};
    if (call_.bias != nullptr) {
      std::memcpy(lanes, static_cast<const Element*>(call_.bias) + begin, bytes);
      sum = sum + load(lanes);
    }
    store(sum, lanes);
    auto* out = static_cast<Element*>(call_.out) + token * call_.out_stride;
    std::memcpy(out + begin - call_.out_column * kLanes, lanes, bytes);
  }

  const LinearCall& call_;
  int num_groups_;
  Inputs<Element, Word> inputs_;
  int64_t ahead_ = 0;
  Unpacked unpacked_;
  alignas(64) float sums_[kTileRows][kGroupColumns * kLanes];
};

template <class Element>
void project(const LinearCall& call, Range tokens, Range columns, Range next) {
  if (call.codes.bits == 8) {
    QuantisedProjection<Element, CodeFormat<8, false>>(call).run(tokens, columns, next);
  } else if (call.codes.has_minimums) {
    QuantisedProjection<Element, CodeFormat<4, true>>(call).run(tokens, columns, next);
  } else {
    QuantisedProjection<Element, CodeFormat<4, false>>(call).run(tokens, columns, next);
  }
}

template <class Element>
void sum_inputs(const LinearCall& call, Range tokens) {
  const int num_groups = call.in_features / kGroupInputs;
  for (int64_t token = tokens.begin; token < tokens.end; ++token) {
    const auto* input = static_cast<const Element*>(call.input) + token * call.input_stride;
    float* sums = call.codes.input_sums + token * num_groups;
    for (int group = 0; group < num_groups; ++group, input += kGroupInputs) {
      sums[group] = reduce_sum(load(input) + load(input + kLanes));
    }
  }
}

template <class Element>
constexpr QuantisedKernels kKernels{project<Element>, sum_inputs<Element>};

}  // namespace

const QuantisedKernels quantised_bf16 = kKernels<bfloat16>;
const QuantisedKernels quantised_f32 = kKernels<float>;

}  // namespace pagetide::PAGETIDE_ISA

// Computes one work item of paged attention. Compiled once for each instruction set.
//
// The item's rows, (query, head) pairs that share a KV head, walk the KV in tiles of kTileTokens. A tile's
// keys and values are packed once and used by all rows, some of them at a time.

#include <algorithm>
#include <type_traits>

#include "attention_item.h"
#include "multiply.h"
#include "packed_tile.h"
#include "softmax.h"

#if defined(__AMX_BF16__)
#include "score_tiles.h"
#endif

namespace pagetide::PAGETIDE_ISA {
namespace {

template <class Element, class Cache>
class Worker {
  using Pack = Operands<Element, Cache>;
  using Word = typename Pack::Word;
  using Row = RowWord<Word>;
  static constexpr int kTileDepth = kTileTokens / Pack::kPerWord;
#if defined(__AMX_BF16__)
  // Tiles wait for what was just stored: there is to be time between.
  static constexpr int kRows = std::is_same_v<Word, BfloatPair> ? 64 : kMaxRows;
  static constexpr bool kReadsKeys = std::is_same_v<Word, BfloatPair> && std::is_same_v<Cache, bfloat16>;
#else
  static constexpr int kRows = kMaxRows;
  static constexpr bool kReadsKeys = false;
#endif
  // Behind the last row, for products that take whole tiles of them. What else there is in scratch memory does
  // for those that are only read.
  static constexpr int kSpareRows = Cut<Word>::kDepth > 1 ? kLanes : 0;
  static constexpr int kRowLanes = ceil_divided(kRows, kLanes) * kLanes;
  // Tokens whose values are added up before they join the sum: a tile starts and ends with whole ones.
  static constexpr int kStepTokens = std::max(kBlockTokens, Cut<Word>::kDepth * Pack::kPerWord);

 public:
  // Counted in floats: words are no larger.
  static int64_t scratch_size(const AttentionCall& call, int num_queries) {
    const int64_t rows = int64_t{num_queries} * call.group();
    return PackedTile<Element, Cache>::num_floats(call.head_size) + 2 * int64_t{kRows} * kTileTokens +
           (rows + kSpareRows) * call.state_size() + rows * (call.head_size + call.state_size());
  }

  Worker(const AttentionCall& call, const WorkItem& item, const WorkItem* next, float* scratch)
      : call_(call),
        item_{call, item},
        next_(next),
        num_rows_(item_.num_rows()),
        tile_(call.head_size, scratch) {
    scratch += tile_.num_floats(call.head_size);
    const auto take = [&](int64_t floats) {
      float* start = scratch;
      scratch += floats;
      return start;
    };
    queries_ = reinterpret_cast<Row*>(take(int64_t{num_rows_} * call.head_size));  // not last: see kSpareRows
    dots_ = take(int64_t{kRows} * kTileTokens);
    probabilities_ = reinterpret_cast<Row*>(take(int64_t{kRows} * kTileTokens));
    states_ = take((num_rows_ + kSpareRows) * call.state_size());
    totals_ = take(num_rows_ * call.state_size());
  }

  void attend() {
    pack_queries();
#if defined(__AMX_BF16__)
    if constexpr (kReadsKeys) {
      if (reads_keys()) ScoreTiles::pack(queries_, num_rows_, words_per_row(), tile_.keys);
    }
#endif
    if (item_.work.states == nullptr) clear(totals_);
    for (int partition = item_.work.partitions.begin; partition < item_.work.partitions.end; ++partition) {
      clear(states_);
      attend_partition(partition);
      item_.work.states == nullptr ? add_to_totals(states_) : leave_states(item_.states(partition));
    }
    if (item_.work.states == nullptr) write_outputs();
    ahead_.fetch_all();
  }

  void merge() {
    clear(totals_);
    for (int partition = item_.work.partitions.begin; partition < item_.work.partitions.end; ++partition) {
      add_to_totals(item_.states(partition));
    }
    write_outputs();
  }

 private:
  int words_per_row() const { return call_.head_size / Pack::kPerWord; }
  RowState state(float* states, int row) const { return {states + row * call_.state_size()}; }

  void clear(float* states) const {
    for (int row = 0; row < num_rows_; ++row) state(states, row).clear(call_.head_size);
  }

  void add_to_totals(float* states) const {
    for (int row = 0; row < num_rows_; ++row) {
      state(totals_, row).merge(state(states, row), call_.head_size);
    }
  }

  void leave_states(float* to) const {
    std::memcpy(to, states_, sizeof(float) * static_cast<size_t>(num_rows_ * call_.state_size()));
  }

  void pack_queries() const {
    for (int row = 0; row < num_rows_; ++row) {
      const auto* in =
          static_cast<const Element*>(call_.query) + item_.token(row) * call_.query_stride + item_.head_offset(row);
      auto* query = elements_of(queries_ + int64_t{row} * words_per_row());
      for (int d = 0; d < call_.head_size; d += kLanes) store(load(in + d), query + d);
    }
  }

  void write_outputs() const {
    for (int row = 0; row < num_rows_; ++row) {
      auto* out = static_cast<Element*>(call_.out) + item_.token(row) * call_.out_stride + item_.head_offset(row);
      state(totals_, row).write_output(call_.head_size, out);
    }
  }

  void attend_partition(int partition) {
    const int start = partition * kPartitionTokens;
    const Range all = item_.seen();
    const Range seen = overlap({start, start + kPartitionTokens}, all);
    const int first_tile = seen.begin / kTileTokens * kTileTokens;
    for (int tile_start = first_tile; tile_start < seen.end; tile_start += kTileTokens) {
      look_ahead(tile_start + kTileTokens, all);
      attend_tile(clipped_tile(tile_start, seen, kStepTokens));
    }
  }

  // To the tile from `start` on, or the first one of the next item.
  void look_ahead(int start, Range all) {
    ahead_.clear();
    if (start < all.end) return add_ahead(item_, overlap({start, start + kTileTokens}, all));
    if (next_ == nullptr) return;
    const Item<Cache> next{call_, *next_};
    const Range seen = next.seen();
    add_ahead(next, overlap(seen, {0, (seen.begin / kTileTokens + 1) * kTileTokens}));
  }

  // In the order in which they are packed.
  void add_ahead(const Item<Cache>& item, Range tokens) {
    for (int position = tokens.begin; position < tokens.end; position += kBlockTokens) {
      for (int key_or_value = 0; key_or_value < 2; ++key_or_value) {
        ahead_.add(item.block(position, key_or_value), tile_size<Cache>(call_.head_size) * int64_t{sizeof(Cache)});
      }
    }
  }

  void attend_tile(const Tile& tile) {
    tile_.pack(item_, tile, !reads_keys(), ahead_);
    for (int row = 0; row < num_rows_; row += kRows) {
      const int count = num_rows_ - row < kRows ? num_rows_ - row : kRows;
      const Range seen = overlap(tile.tokens, item_.visible_to(row, row + count - 1));
      if (seen.begin < seen.end) attend_rows(row, count, tile);
    }
  }

  // Few queries meet the keys as they lie in the cache.
  bool reads_keys() const {
    return kReadsKeys && num_rows_ <= kLanes && call_.head_size % (kLanes * Pack::kPerWord) == 0;
  }

  void score(int row, int count, const Tile& tile) {
#if defined(__AMX_BF16__)
    if constexpr (kReadsKeys) {
      if (reads_keys()) return score_few(tile);
    }
#endif
    const int64_t words = words_per_row();
    Product<Word> scoring{{queries_ + row * words, words},
                          {tile_.keys, kTileTokens},
                          {dots_, kTileTokens},
                          words_per_row(),
                          nullptr,
                          &ahead_};
    scoring.fetch_lines = Lookahead::lines_a_step();
    scoring.has_spare_rows = true;
    multiply(count, tile.blocks, scoring);
  }

#if defined(__AMX_BF16__)
  void score_few(const Tile& tile) {
    const Cache* blocks[ScoreTiles::kBlocks] = {};
    for (int i = 0; i < tile.blocks; ++i) {
      const Range seen = tile.seen_of(i);
      if (seen.begin < seen.end) blocks[i] = item_.block(tile.base + i * kBlockTokens, 0);
    }
    ScoreTiles{num_rows_, words_per_row(), tile_.keys}.score(blocks, dots_, ahead_);
  }
#endif

  void attend_rows(int row, int count, const Tile& tile) {
    score(row, count, tile);
    float factors[kRowLanes];
    soften(row, count, tile, factors);
    const int depth = tile.blocks * kBlockTokens / Pack::kPerWord;
    Product<Word> weighting{{probabilities_, kTileDepth},
                            {tile_.values, call_.head_size},
                            {state(states_, row).values(), call_.state_size()},
                            depth,
                            factors,
                            &ahead_};
    weighting.fetch_lines = Lookahead::lines_a_step();
    weighting.has_spare_rows = true;
    multiply(count, call_.head_size / kLanes, weighting);
  }

  void soften(int row, int count, const Tile& tile, float (&factors)[kRowLanes]) {
    const ScoreScale scale{call_.scale, call_.soft_cap};
    if constexpr (!PackedTile<Element, Cache>::kHasScales) {
      if (call_.soft_cap == 0.0f && call_.scale > 0.0f) {
        return soften(row, count, tile, FactoredScores{scale.factor()}, factors);
      }
    }
    soften(row, count, tile, StoredScores<decltype(tile_.scales())>{scale, tile_.scales()}, factors);
  }

  // Rows in two passes, so that their chains of sums and powers overlap.
  template <class Scores>
  void soften(int row, int count, const Tile& tile, const Scores& scores, float (&factors)[kRowLanes]) {
    float before[kRowLanes] = {}, highest[kRowLanes] = {};
    const auto seen_by_row = [&](int i, const auto& work) {
      const Range visible = shifted(call_.visible(item_.position(row + i)), tile.base);
      return with_seen(tile.blocks, visible, work);
    };
    for (int i = 0; i < count; ++i) {
      before[i] = state(states_, row + i).max();
      highest[i] = seen_by_row(
          i, [&](auto seen) { return largest_score(dots_ + i * kTileTokens, seen, scores, before[i]); });
    }
    for (int i = 0; i < count; i += kLanes) {
      store(exp2(load(before + i) - load(highest + i)), factors + i);
    }
    for (int i = 0; i < count; ++i) {
      const float sum = seen_by_row(i, [&](auto seen) {
        return soften_row<Element>(dots_ + i * kTileTokens, seen, scores, tile_.scales(), highest[i],
                                   elements_of(probabilities_ + i * kTileDepth));
      });
      const RowState row_state = state(states_, row + i);
      row_state.sum() = row_state.sum() * factors[i] + sum;
      row_state.max() = highest[i];
    }
  }

  const AttentionCall& call_;
  const Item<Cache> item_;
  const WorkItem* next_;
  int num_rows_;
  PackedTile<Element, Cache> tile_;
  Row* queries_;         // [rows][head_size]
  float* dots_;          // [kRows][kTileTokens]
  Row* probabilities_;   // [kRows][kTileTokens]
  float* states_;        // of the partition at hand
  float* totals_;
  Lookahead ahead_;
};

template <class Element, class Cache>
void attend(const AttentionCall& call, const WorkItem& item, const WorkItem* next, float* scratch) {
  Worker<Element, Cache>(call, item, next, scratch).attend();
}

template <class Element, class Cache>
void merge(const AttentionCall& call, const WorkItem& item, const WorkItem* next, float* scratch) {
  Worker<Element, Cache>(call, item, next, scratch).merge();
}

template <class Element, class Cache = Element>
constexpr AttentionKernels kKernels{Worker<Element, Cache>::scratch_size, attend<Element, Cache>,
                                    merge<Element, Cache>};

}  // namespace

const AttentionKernels attention_bf16 = kKernels<bfloat16>;
const AttentionKernels attention_f32 = kKernels<float>;
const AttentionKernels attention_int8_bf16 = kKernels<bfloat16, int8_t>;
const AttentionKernels attention_int8_f32 = kKernels<float, int8_t>;

}  // namespace pagetide::PAGETIDE_ISA

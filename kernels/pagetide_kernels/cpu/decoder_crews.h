// How the threads of a step share out its tokens between one attention and the next.
//
// With few tokens all threads share each product: they are one crew. With many, each thread is a crew of its own
// that takes a panel of tokens all the way: what one product writes is in that core's cache when the next reads
// it, and nobody waits for anybody.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "decoder_memory.h"
#include "decoder_share.h"
#include "decoder_team.h"
#include "isa.h"

namespace pagetide {

// What products hand to each other: a row for each token of a panel.
struct PanelRows {
  Buffer normed;  // [P][hidden]
  Buffer gates;   // [P][intermediate]
  Buffer added;   // [P][hidden], what a residual layer adds
  Buffer sums;    // [P][widest input / kGroupInputs] float, for weights that have minimums
};

// Threads that work on the same panel.
struct Crew {
  Barrier barrier;
  Shares shares;
  PanelRows rows;
};

// A thread on its way through the step: its place in its crew, and the products it has come to.
struct Member {
  int thread;
  int rank;
  int crew_size;
  Crew& crew;
  int round;

  // Its part of something that the crew shares.
  Range share(int size) const { return share_of(rank, crew_size, size); }

  Shares::Round next_round(int num_tokens, int num_columns) { return {++round, num_tokens, num_columns}; }
};

class Crews {
 public:
  // Before a step; keeps the crews' memory. Nobody is working.
  void set_up(int num_tokens, int num_threads) {
    is_apart_ = num_tokens >= kTokensPerCrew * num_threads;
    const size_t count = is_apart_ ? static_cast<size_t>(num_threads) : 1;
    while (crews_.size() < count) crews_.push_back(std::make_unique<Crew>());
    const int tokens_at_once = panel_tokens() * num_threads;
    const int num_panels = is_apart_ ? ceil_divided(num_tokens, tokens_at_once) * num_threads : 1;
    cut(num_tokens, num_panels);
  }

  // The threads that came may be fewer than was asked for.
  void set_size(int num_threads) {
    num_threads_ = num_threads;
    for (const auto& crew : crews_) {
      crew->barrier.set_size(is_apart_ ? 1 : num_threads);
      crew->shares.set_size(is_apart_ ? 1 : num_threads);
    }
    next_.refill();
  }

  // Of a panel, a whole tile of rows at its end.
  int most_tokens() const {
    int most = 0;
    for (const Range panel : panels_) most = std::max(most, tiles_of(panel.end - panel.begin));
    return most * kTokensPerTile;
  }

  const std::vector<std::unique_ptr<Crew>>& all() const { return crews_; }

  Member member(int thread) const {
    if (is_apart_) return {thread, 0, 1, *crews_[static_cast<size_t>(thread)], 0};
    return {thread, thread, num_threads_, *crews_.front(), 0};
  }

  // Calls work(panel) for each panel that falls to a member's crew.
  template <class Work>
  void for_panels(const Work& work) {
    if (!is_apart_) return work(panels_.front());
    const auto count = static_cast<int>(panels_.size());
    for (int i = next_.take(); i < count; i = next_.take()) work(panels_[static_cast<size_t>(i)]);
  }

  // From now on there are fewer rows. Nobody is working.
  void cut_again(int num_rows) {
    const int most = most_tokens();
    const int count = is_apart_ ? std::max(ceil_divided(num_rows, most), std::min(num_threads_, num_rows)) : 1;
    cut(num_rows, count);
    next_.refill();
  }

  // All panels are to be worked through again. Nobody is at it.
  void refill() { next_.refill(); }

 private:
  // Panels of more tokens would leave the L2 cache, of fewer would read the weights too often: the faster the
  // products, the more that matters. Without AVX-512 inputs take twice the memory (inputs.h).
  static int panel_tokens() { return current_isa() == Isa::amx ? 192 : current_isa() == Isa::avx512 ? 96 : 48; }

  // AMX takes so many rows at a time.
  static constexpr int kTokensPerTile = 16;

  static int tiles_of(int num_tokens) { return ceil_divided(num_tokens, kTokensPerTile); }

  // Fewer tokens for each thread are not worth reading the weights once a thread.
  static constexpr int kTokensPerCrew = 64;

  // Into panels of whole tiles.
  void cut(int num_tokens, int num_panels) {
    panels_.clear();
    for (int i = 0; i < num_panels; ++i) {
      const Range tiles = share_of(i, num_panels, tiles_of(num_tokens));
      if (tiles.begin == tiles.end) continue;
      panels_.push_back({tiles.begin * kTokensPerTile, std::min(tiles.end * kTokensPerTile, num_tokens)});
    }
  }

  bool is_apart_ = false;
  int num_threads_ = 1;
  std::vector<std::unique_ptr<Crew>> crews_;
  std::vector<Range> panels_;
  Queue next_;
};

}  // namespace pagetide

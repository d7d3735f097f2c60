// How threads share out rows and products.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "elements.h"

namespace pagetide {

struct Share {
  Range tokens;
  Range columns;
};

inline Range share_of(int i, int num_shares, int size) {
  return {static_cast<int>(int64_t{size} * i / num_shares),
          static_cast<int>(int64_t{size} * (i + 1) / num_shares)};
}

// Of the ways to cut tokens and columns into one share a thread, that whose largest share is smallest.
inline Share share_of(int thread, int num_threads, int num_tokens, int num_columns) {
  // Fewer tokens are not worth a share: weights are read once for each.
  constexpr int kTokensPerShare = 96;
  int best = 1;
  int64_t least = INT64_MAX;
  for (int cuts = 1; cuts <= num_threads && (cuts == 1 || cuts * kTokensPerShare <= num_tokens); ++cuts) {
    const int64_t largest =
        int64_t{ceil_divided(num_tokens, cuts)} * ceil_divided(num_columns, num_threads / cuts);
    if (largest >= least) continue;
    best = cuts;
    least = largest;
  }
  const int column_shares = num_threads / best;
  if (thread >= best * column_shares) return {{0, 0}, {0, 0}};
  return {share_of(thread % best, best, num_tokens), share_of(thread / best, column_shares, num_columns)};
}

// The shares of one product after the other. Each thread works through its own from the front, a few columns
// at a time, and then takes from the back of the others': a thread that the system has stopped for a moment
// holds up no more than the columns it has in hand.
class Shares {
 public:
  // One product, as every thread sees it: they count them alike.
  struct Round {
    int number;
    int num_tokens;
    int num_columns;
  };

  static constexpr int kGrain = 4;  // columns of a piece: what the widest kernel computes together

  // Nobody is working.
  void set_size(int num_threads) { left_ = std::vector<Left>(static_cast<size_t>(num_threads)); }

  // Calls work(tokens, columns, own columns that come next) for each piece that `thread` gets.
  template <class Work>
  void work_through(int thread, const Round& round, const Work& work) {
    const int num_threads = static_cast<int>(left_.size());
    for (int i = 0; i < num_threads; ++i) {
      const int owner = (thread + i) % num_threads;
      const Share share = share_of(owner, num_threads, round.num_tokens, round.num_columns);
      const bool from_front = i == 0;
      for (Range piece = take(owner, round, share.columns, from_front); piece.begin < piece.end;
           piece = take(owner, round, share.columns, from_front)) {
        const int next = from_front ? piece.end : share.columns.end;
        const int end = next + kGrain < share.columns.end ? next + kGrain : share.columns.end;
        work(share.tokens, piece, Range{next, end});
      }
    }
  }

 private:
  // Round, begin and end of what is left of a share, in one word. One of an earlier round is over: its owner
  // has not come to this one yet, and its share is whole.
  struct Left {
    std::atomic<uint64_t> word{0};
    char padding[56];
  };

  static uint64_t packed(const Round& round, Range left) {
    return (uint64_t{static_cast<uint16_t>(round.number)} << 48) |
           (static_cast<uint64_t>(left.begin) << 24) | static_cast<uint64_t>(left.end);
  }

  static Range unpacked(uint64_t word, const Round& round, Range whole) {
    constexpr uint64_t kMask = (1u << 24) - 1;
    if (word >> 48 != static_cast<uint16_t>(round.number)) return whole;
    return {static_cast<int>((word >> 24) & kMask), static_cast<int>(word & kMask)};
  }

  Range take(int owner, const Round& round, Range whole, bool from_front) {
    std::atomic<uint64_t>& word = left_[static_cast<size_t>(owner)].word;
    uint64_t seen = word.load(std::memory_order_relaxed);
    while (true) {
      Range left = unpacked(seen, round, whole);
      const int count = left.end - left.begin < kGrain ? left.end - left.begin : kGrain;
      if (count <= 0) return {0, 0};
      const Range piece = from_front ? Range{left.begin, left.begin + count} : Range{left.end - count, left.end};
      (from_front ? left.begin : left.end) += from_front ? count : -count;
      if (word.compare_exchange_weak(seen, packed(round, left), std::memory_order_relaxed)) return piece;
    }
  }

  std::vector<Left> left_;
};

}  // namespace pagetide

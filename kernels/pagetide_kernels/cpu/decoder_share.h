// How the threads of a step share out rows and products.
#pragma once

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
  const auto ceil_divided = [](int a, int b) { return (a + b - 1) / b; };
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

}  // namespace pagetide

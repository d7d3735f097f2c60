// Online softmax, one row at a time (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022).
#pragma once

#include "attention_item.h"
#include "operands.h"

namespace pagetide::PAGETIDE_ISA {

// No score is lower, and differences to it stay finite.
constexpr float kLowest = -1e30f;

// The state of one row: the largest score so far, in units of log 2, the sum of the probabilities
// relative to it, and the values weighted by them. It lies in memory as [max, sum, ...14 unused, values].
struct RowState {
  static constexpr int kHeader = kLanes;

  float* data;

  PAGETIDE_INLINE float& max() const { return data[0]; }
  PAGETIDE_INLINE float& sum() const { return data[1]; }
  PAGETIDE_INLINE float* values() const { return data + kHeader; }

  void clear(int head_size) const {
    for (int i = 0; i < kHeader + head_size; ++i) data[i] = 0.0f;
    max() = kLowest;
  }

  // Adds what `other` saw.
  void merge(RowState other, int head_size) const {
    const float new_max = other.max() > max() ? other.max() : max();
    const float factor = exp2(max() - new_max);
    const float other_factor = exp2(other.max() - new_max);
    sum() = sum() * factor + other.sum() * other_factor;
    max() = new_max;
    for (int d = 0; d < head_size; d += kLanes) {
      const Vec added = load(other.values() + d) * fill(other_factor);
      store(load(values() + d) * fill(factor) + added, values() + d);
    }
  }

  template <class Element>
  void write_output(int head_size, Element* out) const {
    const Vec inverse = fill(sum() != 0.0f ? 1.0f / sum() : 0.0f);
    for (int d = 0; d < head_size; d += kLanes) store(load(values() + d) * inverse, out + d);
  }
};

// From a dot product to a score in units of log 2.
struct ScoreScale {
  float scale;
  float soft_cap;  // 0: none

  PAGETIDE_INLINE float factor() const { return scale * kLog2E; }

  PAGETIDE_INLINE Vec apply(Vec dot) const {
    if (soft_cap == 0.0f) return dot * fill(factor());
    return tanh(dot * fill(scale / soft_cap)) * fill(soft_cap * kLog2E);
  }
};

// A tile's keys and values are what they are.
struct NoScales {
  PAGETIDE_INLINE Vec scaled_dots(Vec dots, int) const { return dots; }
  PAGETIDE_INLINE Vec scaled_probabilities(Vec p, int) const { return p; }
};

// Each token of a tile has a factor for its key and one for its value; those of no token are 0 for values.
struct TokenScales {
  const float* keys;
  const float* values;

  PAGETIDE_INLINE Vec scaled_dots(Vec dots, int i) const { return dots * load(keys + i * kLanes); }
  PAGETIDE_INLINE Vec scaled_probabilities(Vec p, int i) const { return p * load(values + i * kLanes); }
};

// One row's share of a tile: `blocks` vectors of tokens, those in `visible` count. `kWhole`: all of a whole
// tile.
template <bool kWhole>
struct Seen {
  int blocks;
  Range visible;

  PAGETIDE_INLINE int size() const { return kWhole ? kTileTokens / kLanes : blocks; }
  PAGETIDE_INLINE Vec select(int block, Vec v, float outside) const {
    return kWhole ? v : pagetide::PAGETIDE_ISA::select(within_block(visible, block), v, fill(outside));
  }
};

// Scores that are no more than a factor away from dot products: they stay what they are in memory.
struct FactoredScores {
  float factor;  // above 0

  PAGETIDE_INLINE Vec first(float* dots, int i) const { return load(dots + i * kLanes); }
  PAGETIDE_INLINE float largest(Vec firsts) const { return reduce_max(firsts) * factor; }
  PAGETIDE_INLINE Vec below(Vec max, const float* dots, int i) const {
    return multiply_add(load(dots + i * kLanes), fill(factor), fill(0.0f) - max);
  }
};

// Any others take the place of the dot products.
template <class Scales>
struct StoredScores {
  ScoreScale scale;
  Scales scales;

  PAGETIDE_INLINE Vec first(float* dots, int i) const {
    const Vec score = scale.apply(scales.scaled_dots(load(dots + i * kLanes), i));
    store(score, dots + i * kLanes);
    return score;
  }
  PAGETIDE_INLINE float largest(Vec firsts) const { return reduce_max(firsts); }
  PAGETIDE_INLINE Vec below(Vec max, const float* scores, int i) const { return load(scores + i * kLanes) - max; }
};

// The largest score of a row's dot products with a tile, `max` among them.
template <bool kWhole, class Scores>
PAGETIDE_INLINE float largest_score(float* dots, Seen<kWhole> seen, const Scores& scores, float max) {
  Vec highest = fill(kLowest);
  for (int i = 0; i < seen.size(); ++i) {
    highest = pagetide::PAGETIDE_ISA::max(highest, seen.select(i, scores.first(dots, i), kLowest));
  }
  const float largest = scores.largest(highest);
  return largest > max ? largest : max;
}

// Turns a row's scores into probabilities relative to `max`; tokens that are not seen get none. Returns their
// sum.
template <class Element, bool kWhole, class Scores, class Scales, class Out>
PAGETIDE_INLINE float soften_row(const float* dots, Seen<kWhole> seen, const Scores& scores, const Scales& scales,
                                 float max, Out* probabilities) {
  Vec sums = fill(0.0f);
  for (int i = 0; i < seen.size(); ++i) {
    const Vec p = seen.select(i, exp2_below<Element>(scores.below(fill(max), dots, i)), 0.0f);
    sums = sums + p;
    store(scales.scaled_probabilities(p, i), probabilities + i * kLanes);
  }
  return reduce_sum(sums);
}

// Calls work(seen) for what a row sees.
template <class Work>
PAGETIDE_INLINE float with_seen(int blocks, Range visible, const Work& work) {
  const bool whole = blocks * kLanes == kTileTokens && visible.begin <= 0 && visible.end >= kTileTokens;
  return whole ? work(Seen<true>{blocks, visible}) : work(Seen<false>{blocks, visible});
}

}  // namespace pagetide::PAGETIDE_ISA

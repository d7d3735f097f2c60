// Draws a token for each row of logits: shares out the rows to threads.
//
// By inverse transform: the token at which the running mass, in the order of the vocabulary, passes the row's uniform
// number times the total. Filters look at the likeliest tokens only: those above a threshold that the blocks' maxima
// give, which is lowered until no filter could keep a token below it.

#include "draw.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "isa.h"

namespace pagetide {
namespace {

const PerIsa<DrawKernels> kDraw = PAGETIDE_PER_ISA(draw);

struct Draw {
  float temperature;  // above 0
  int32_t top_k;      // 0: all
  float top_p;
  float min_p;
  double uniform;
};

struct Candidate {
  float logit;
  int32_t token;
  double mass;  // relative to the likeliest token's
};

using Candidates = std::vector<Candidate>;

// A thread's memory, kept from call to call.
struct Scratch {
  std::vector<float> maxima;  // of blocks
  std::vector<float> ordered_maxima;
  std::vector<float> masses;
  Candidates candidates;
  Candidates ordered;
};

class Row {
 public:
  Row(const float* logits, int64_t size, const Draw& draw, Scratch& scratch)
      : logits_(logits), size_(size), draw_(draw), scratch_(scratch) {
    scratch.maxima.resize(static_cast<size_t>((size + kDrawBlock - 1) / kDrawBlock));
    kDraw.current().block_maxima(logits, size, scratch.maxima.data());
    max_ = *std::max_element(scratch.maxima.begin(), scratch.maxima.end());
    factor_ = M_LOG2E / static_cast<double>(draw.temperature);
  }

  int64_t token() {
    if (!std::isfinite(max_)) return first_of(max_);
    return is_filtered() ? filtered() : unfiltered();
  }

 private:
  static constexpr int64_t kFirstBlocks = 32, kTimesMore = 8;

  bool has_top_k() const { return draw_.top_k > 0 && draw_.top_k < size_; }
  bool is_filtered() const { return has_top_k() || draw_.top_p < 1.0f || draw_.min_p > 0.0f; }

  // Where nothing can be drawn: any token.
  int64_t first_of(float logit) const {
    const float* found = std::find(logits_, logits_ + size_, logit);
    return found != logits_ + size_ ? found - logits_ : 0;
  }

  double exponent(float logit) const { return (double{logit} - max_) * factor_; }
  double mass(float logit) const { return std::exp2(exponent(logit)); }
  double target_of(double total) const { return std::min(draw_.uniform * total, std::nextafter(total, 0.0)); }

  // None of a block whose tokens have hardly a chance, for the kernel sees one in -infinity too, or with NaN.
  double block_mass(size_t block) const {
    const float mass = scratch_.masses[block];
    return exponent(scratch_.maxima[block]) > -126.0 && mass > 0.0f ? double{mass} : 0.0;
  }

  double whole_mass() {
    scratch_.masses.resize(scratch_.maxima.size());
    kDraw.current().block_masses(logits_, size_, max_, static_cast<float>(factor_), scratch_.masses.data());
    double total = 0.0;
    for (size_t i = 0; i < scratch_.masses.size(); ++i) total += block_mass(i);
    return total;
  }

  int64_t unfiltered() {
    const double target = target_of(whole_mass());
    double before = 0.0;
    size_t block = 0, last = 0;
    for (; block < scratch_.masses.size(); ++block) {
      const double mass = block_mass(block);
      if (mass > 0.0) last = block;
      if (before + mass > target) break;
      before += mass;
    }
    if (block == scratch_.masses.size()) block = last;
    return within(static_cast<int64_t>(block) * kDrawBlock, target - before);
  }

  // Of a block that has a chance. Rounding may leave a bit of the target: it is the last token's.
  int64_t within(int64_t begin, double target) const {
    int64_t last = begin;
    double sum = 0.0;
    for (int64_t i = begin; i < std::min(begin + kDrawBlock, size_); ++i) {
      const double mass = this->mass(logits_[i]);
      if (!(mass > 0.0)) continue;
      last = i;
      sum += mass;
      if (sum > target) break;
    }
    return last;
  }

  int64_t filtered() {
    const double whole = draw_.top_p < 1.0f && !has_top_k() ? whole_mass() : 0.0;
    const float lowest = lowest_that_counts();
    for (int64_t blocks = has_top_k() ? draw_.top_k : kFirstBlocks;; blocks *= kTimesMore) {
      const float threshold = std::max(largest_maximum(blocks), lowest);
      collect(threshold);
      if (threshold == lowest || is_enough(whole)) break;
    }
    return pick(lowest_kept(whole));
  }

  // What lies below min_p counts only where top_p is of what top_k keeps.
  float lowest_that_counts() const {
    if (!(draw_.min_p > 0.0f) || (has_top_k() && draw_.top_p < 1.0f)) return -FLT_MAX;
    const double lowest = max_ + std::log(double{draw_.min_p}) * static_cast<double>(draw_.temperature);
    return std::nextafter(static_cast<float>(std::max(lowest, -double{FLT_MAX})), -FLT_MAX);
  }

  // Of the blocks' maxima the one that `count` are no less than.
  float largest_maximum(int64_t count) {
    std::vector<float>& ordered = scratch_.ordered_maxima;
    ordered = scratch_.maxima;
    if (count > static_cast<int64_t>(ordered.size())) return -FLT_MAX;
    std::nth_element(ordered.begin(), ordered.begin() + (count - 1), ordered.end(), std::greater<float>());
    return std::max(ordered[static_cast<size_t>(count - 1)], -FLT_MAX);
  }

  // In the order of the vocabulary.
  void collect(float threshold) {
    scratch_.candidates.clear();
    for (size_t block = 0; block < scratch_.maxima.size(); ++block) {
      if (scratch_.maxima[block] < threshold) continue;
      const int64_t begin = static_cast<int64_t>(block) * kDrawBlock;
      for (int64_t i = begin; i < std::min(begin + kDrawBlock, size_); ++i) {
        const float logit = logits_[i];
        if (logit >= threshold) scratch_.candidates.push_back({logit, static_cast<int32_t>(i), mass(logit)});
      }
    }
  }

  bool is_enough(double whole) const {
    const Candidates& found = scratch_.candidates;
    if (has_top_k()) return found.size() >= static_cast<size_t>(draw_.top_k);
    return draw_.top_p < 1.0f && mass_of(found.begin(), found.end()) >= double{draw_.top_p} * whole;
  }

  static double mass_of(Candidates::const_iterator begin, Candidates::const_iterator end) {
    return std::accumulate(begin, end, 0.0, [](double sum, const Candidate& each) { return sum + each.mass; });
  }

  static bool is_likelier(const Candidate& a, const Candidate& b) { return a.logit > b.logit; }

  // By top_k, and by top_p of what that keeps; tokens that are as likely are kept too.
  float lowest_kept(double whole) {
    Candidates& ordered = scratch_.ordered;
    ordered = scratch_.candidates;
    float lowest = -FLT_MAX;
    auto end = ordered.end();
    if (has_top_k() && ordered.size() > static_cast<size_t>(draw_.top_k)) {
      const auto last = ordered.begin() + (draw_.top_k - 1);
      std::nth_element(ordered.begin(), last, end, is_likelier);
      lowest = last->logit;
      end = std::partition(last, end, [=](const Candidate& each) { return each.logit >= lowest; });
    }
    if (!(draw_.top_p < 1.0f)) return lowest;
    const double total = has_top_k() ? mass_of(ordered.begin(), end) : whole;
    return passing(ordered.begin(), end, double{draw_.top_p} * total);
  }

  // The logit at which the mass, likeliest first, reaches `most`.
  static float passing(Candidates::iterator begin, Candidates::iterator end, double most) {
    while (end - begin > 1) {
      const auto middle = begin + (end - begin) / 2;
      std::nth_element(begin, middle, end, is_likelier);
      const double mass = mass_of(begin, middle);
      if (mass >= most) {
        end = middle;
      } else {
        most -= mass;
        begin = middle;
      }
    }
    return begin->logit;
  }

  int64_t pick(float lowest) {
    Candidates& found = scratch_.candidates;
    const double least = draw_.min_p > 0.0f ? std::log2(double{draw_.min_p}) : -INFINITY;
    const auto is_dropped = [=](const Candidate& each) {
      return each.logit < lowest || (each.logit < max_ && exponent(each.logit) < least);
    };
    found.erase(std::remove_if(found.begin(), found.end(), is_dropped), found.end());
    const double target = target_of(mass_of(found.begin(), found.end()));
    double sum = 0.0;
    for (const Candidate& each : found) {
      sum += each.mass;
      if (sum > target) return each.token;
    }
    return found.back().token;
  }

  const float* logits_;
  int64_t size_;
  const Draw& draw_;
  Scratch& scratch_;
  float max_;
  double factor_;
};

}  // namespace
}  // namespace pagetide

// The arguments of signatures.DRAW, in its order; strides are in elements.
PAGETIDE_EXPORT const char* draw_f32(int64_t* tokens, const float* logits, const float* temperature,
                                     const int32_t* top_k, const float* top_p, const float* min_p,
                                     const double* uniform, int64_t stride, int num_rows, int vocab_size) {
#pragma omp parallel for schedule(dynamic) if (num_rows > 1)
  for (int i = 0; i < num_rows; ++i) {
    thread_local pagetide::Scratch scratch;
    const pagetide::Draw draw{temperature[i], top_k[i], top_p[i], min_p[i], uniform[i]};
    tokens[i] = pagetide::Row(logits + i * stride, vocab_size, draw, scratch).token();
  }
  return nullptr;
}

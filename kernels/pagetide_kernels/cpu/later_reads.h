// KV that attention reads after the products at hand, for them to fetch on their way.
//
// Where products of many rows are bound by arithmetic memory rests; where attention comes to its KV arithmetic
// does. So the KV of the next attention is fetched while products compute: more than the L2 caches keep, but what
// leaves them waits in the L3 cache.
#pragma once

#include <atomic>
#include <vector>

#include "elements.h"

namespace pagetide {

class LaterReads {
 public:
  // Blocks of `cache`, `block_bytes` from one to the next. Nobody is taking; `blocks` are not copied.
  void start(const void* cache, const std::vector<int32_t>& blocks, int64_t block_bytes);
  void stop() { num_lines_ = 0; }

  // The next lines that nobody has taken, up to `most` pieces of them; returns how many pieces there are.
  int take(int lines, Piece* pieces, int most);

 private:
  static constexpr int64_t kLine = 64;

  int64_t lines_per_block() const { return block_bytes_ / kLine; }

  const char* cache_ = nullptr;
  const int32_t* blocks_ = nullptr;
  int64_t block_bytes_ = kLine;
  int64_t num_lines_ = 0;
  std::atomic<int64_t> next_{0};
};

}  // namespace pagetide

#include "later_reads.h"

#include <algorithm>

namespace pagetide {

void LaterReads::start(const void* cache, const std::vector<int32_t>& blocks, int64_t block_bytes) {
  cache_ = static_cast<const char*>(cache);
  blocks_ = blocks.data();
  block_bytes_ = block_bytes;
  num_lines_ = static_cast<int64_t>(blocks.size()) * lines_per_block();
  next_.store(0, std::memory_order_relaxed);
}

// A range of lines that starts within a block has a part of one more.
int LaterReads::take(int lines, Piece* pieces, int most) {
  if (most < 2 || next_.load(std::memory_order_relaxed) >= num_lines_) return 0;
  const int64_t count = std::min(int64_t{lines}, (most - 1) * lines_per_block());
  int64_t line = next_.fetch_add(count, std::memory_order_relaxed);
  const int64_t end = std::min(line + count, num_lines_);
  int num_pieces = 0;
  while (line < end) {
    const int64_t block = line / lines_per_block(), first = line % lines_per_block();
    const int64_t size = std::min(lines_per_block() - first, end - line);
    const char* begin = cache_ + blocks_[block] * block_bytes_ + first * kLine;
    pieces[num_pieces++] = {begin, begin + size * kLine};
    line += size;
  }
  return num_pieces;
}

}  // namespace pagetide

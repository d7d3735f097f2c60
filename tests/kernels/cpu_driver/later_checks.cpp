#include "later_checks.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <thread>

#include "later_reads.h"
#include "random.h"

using pagetide::LaterReads;
using pagetide::Piece;

namespace {

constexpr int kLine = 64;

struct Taken {
  int lines;  // asked for at once
  int pieces;
  std::vector<Piece> all = {};

  void take_all(LaterReads& reads) {
    std::vector<Piece> found(size_t(pieces), Piece{});
    while (const int count = reads.take(lines, found.data(), pieces)) {
      all.insert(all.end(), found.begin(), found.begin() + count);
    }
  }
};

std::vector<int32_t> random_blocks(int num_blocks) {
  std::vector<int32_t> blocks(size_t(num_blocks), 0);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), random_bits);
  blocks.resize(size_t(random_int(0, num_blocks)));
  return blocks;
}

void count_lines(const Taken& taken, const char* cache, std::map<int64_t, int>& counts) {
  for (const Piece& piece : taken.all) {
    for (const char* line = piece.begin; line < piece.end; line += kLine) ++counts[line - cache];
  }
}

}  // namespace

void check_later_reads() {
  const int num_blocks = random_int(1, 40), block_lines = random_int(1, 30);
  const std::vector<int32_t> blocks = random_blocks(num_blocks);
  const std::vector<char> cache(size_t(num_blocks * block_lines * kLine));
  LaterReads reads;
  reads.start(cache.data(), blocks, block_lines * kLine);
  Taken one{random_int(1, 100), random_int(2, 16)}, other{random_int(1, 100), random_int(2, 16)};
  std::thread beside([&] { other.take_all(reads); });
  one.take_all(reads);
  beside.join();
  std::map<int64_t, int> counts;
  for (const Taken& taken : {one, other}) count_lines(taken, cache.data(), counts);
  bool is_right = counts.size() == blocks.size() * size_t(block_lines);
  for (const int32_t block : blocks) {
    for (int line = 0; line < block_lines; ++line) {
      is_right = is_right && counts[(int64_t{block} * block_lines + line) * kLine] == 1;
    }
  }
  if (is_right) return;
  std::puts("later reads: a line was taken twice, or not at all, or is of no block");
  std::exit(1);
}

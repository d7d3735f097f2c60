// Fetches the memory of the next tile into the L2 cache, a few lines at a time, while this one is computed.
//
// KV blocks are short and scattered, so the hardware does not see the next one coming; and lines asked for
// all at once fill the CPU's queue of misses and stall it. Spread out, they doubled the speed of decode.
#pragma once

#include "elements.h"

namespace pagetide::PAGETIDE_ISA {

class Lookahead {
 public:
  static constexpr int kMaxPieces = 2 * kTileTokens / kBlockTokens;

  // Forgets what was not fetched. Pieces are a multiple of 64 bytes.
  void clear(int64_t piece_bytes) {
    piece_bytes_ = piece_bytes;
    line_ = piece_end_ = nullptr;
    num_pieces_ = next_ = 0;
  }

  void add(const void* piece) {
    pieces_[num_pieces_++] = static_cast<const char*>(piece);
    if (line_ == nullptr) start_piece();
  }

  void fetch_all() { fetch(INT32_MAX); }

  PAGETIDE_INLINE void fetch(int lines) {
    constexpr int kIntoL2 = 2;
    for (; lines > 0 && line_ != nullptr; --lines) {
      __builtin_prefetch(line_, 0, kIntoL2);
      line_ += 64;
      if (line_ == piece_end_) start_piece();
    }
  }

 private:
  PAGETIDE_INLINE void start_piece() {
    line_ = next_ < num_pieces_ ? pieces_[next_++] : nullptr;
    piece_end_ = line_ + piece_bytes_;
  }

  const char* line_ = nullptr;
  const char* piece_end_ = nullptr;
  int64_t piece_bytes_ = 0;
  int num_pieces_ = 0;
  int next_ = 0;
  const char* pieces_[kMaxPieces];
};

}  // namespace pagetide::PAGETIDE_ISA

// Fetches the memory of the next tile into the cache, a few lines at a time, while this one is computed.
//
// KV blocks are short and scattered, so the hardware does not see the next one coming; and lines asked for
// all at once fill the CPU's queue of misses and stall it. Spread out, they doubled the speed of decode.
#pragma once

#include "elements.h"

namespace pagetide::PAGETIDE_ISA {

class Lookahead {
 public:
#if defined(__AMX_BF16__)
  static constexpr int kIntoCache = 2;  // L2: what tiles read would not stay in L1
#else
  static constexpr int kIntoCache = 3;  // L1
#endif
  static constexpr int kMaxPieces = 2 * kTileTokens / kBlockTokens;

  // What to fetch next. A loop keeps its own copy in registers, and hands it back.
  struct Place {
    const char* line = nullptr;
    const char* piece_end = nullptr;
  };

  // Forgets what was not fetched. Pieces are a multiple of 64 bytes.
  void clear(int64_t piece_bytes) {
    piece_bytes_ = piece_bytes;
    place = {};
    num_pieces_ = next_ = 0;
  }

  void add(const void* piece) {
    pieces_[num_pieces_++] = static_cast<const char*>(piece);
    if (place.line == nullptr) start_piece(place);
  }

  void fetch_all() { fetch(INT32_MAX); }

  PAGETIDE_INLINE void fetch(int lines) { fetch(lines, place); }

  PAGETIDE_INLINE void fetch(int lines, Place& from) {
    for (; lines > 0 && from.line != nullptr; --lines) {
      __builtin_prefetch(from.line, 0, kIntoCache);
      from.line += 64;
      if (from.line == from.piece_end) start_piece(from);
    }
  }

  Place place;

 private:
  PAGETIDE_INLINE void start_piece(Place& at) {
    at.line = next_ < num_pieces_ ? pieces_[next_++] : nullptr;
    at.piece_end = at.line + piece_bytes_;
  }

  int64_t piece_bytes_ = 0;
  int num_pieces_ = 0;
  int next_ = 0;
  const char* pieces_[kMaxPieces];
};

}  // namespace pagetide::PAGETIDE_ISA

// Fetches the memory of the next tile into the cache, a few lines at a time, while this one is computed.
//
// KV blocks are short and scattered, so the hardware does not see the next one coming; and lines asked for
// all at once fill the CPU's queue of misses and stall it. Spread out, they doubled the speed of decode.
#pragma once

#include "elements.h"
#include "isa.h"

namespace pagetide::PAGETIDE_ISA {

class Lookahead {
 public:
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
      prefetch(from.line);
      from.line += 64;
      if (from.line == from.piece_end) start_piece(from);
    }
  }

  Place place;

 private:
  // With AMX into L2: what tiles read would not stay in L1.
  static PAGETIDE_INLINE void prefetch(const char* line) {
#if defined(__AMX_BF16__)
    constexpr bool kIntoL1 = false;
#else
    const bool kIntoL1 = kHasRoomInL1;
#endif
    kIntoL1 ? __builtin_prefetch(line, 0, 3) : __builtin_prefetch(line, 0, 2);
  }

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

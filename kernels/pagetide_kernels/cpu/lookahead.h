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

  // Of a tile's lines: those that packing it asks for, and each step of its two products.
  PAGETIDE_INLINE void fetch_while_packing(int lines) {
    if (packing_fetches()) fetch(lines);
  }
  static PAGETIDE_INLINE int lines_a_step() { return packing_fetches() ? 2 : 4; }

  PAGETIDE_INLINE void fetch(int lines, Place& from) {
    for (; lines > 0 && from.line != nullptr; --lines) {
      prefetch(from.line);
      from.line += 64;
      if (from.line == from.piece_end) start_piece(from);
    }
  }

  Place place;

 private:
#if defined(__AMX_BF16__)
  // What tiles read would not stay in L1. Packing takes longer than what follows.
  static constexpr bool goes_into_l1() { return false; }
  static constexpr bool packing_fetches() { return true; }
#else
  static PAGETIDE_INLINE bool goes_into_l1() { return kHasRoomInL1; }
#if defined(__AVX512BF16__)
  // With a small L1 what is packed comes from L2, by the queue that a fetch would wait in.
  static PAGETIDE_INLINE bool packing_fetches() { return kHasRoomInL1; }
#else
  // What follows takes so long that packing has time to wait.
  static constexpr bool packing_fetches() { return true; }
#endif
#endif

  static PAGETIDE_INLINE void prefetch(const char* line) {
    goes_into_l1() ? __builtin_prefetch(line, 0, 3) : __builtin_prefetch(line, 0, 2);
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

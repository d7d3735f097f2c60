// Fetches the memory of the next tile into the cache, a few lines at a time, while this one is computed.
//
// KV blocks are short and scattered, so the hardware does not see the next one coming; and lines asked for
// all at once fill the CPU's queue of misses and stall it. Spread out, they doubled the speed of decode.
#pragma once

#include "elements.h"
#include "isa.h"
#include "later_reads.h"

namespace pagetide::PAGETIDE_ISA {

class Lookahead {
 public:
  static constexpr int kMaxPieces = 16;

  // What to fetch next. A loop keeps its own copy in registers, and hands it back.
  struct Place {
    const char* line = nullptr;
    const char* piece_end = nullptr;
    bool is_later = false;
  };

  // Forgets what was not fetched.
  void clear() {
    place = {};
    num_pieces_ = num_next_ = taken_ = 0;
  }

  // `bytes` are a multiple of 64.
  void add(const void* piece, int64_t bytes) {
    const auto* begin = static_cast<const char*>(piece);
    pieces_[num_pieces_++] = {begin, begin + bytes};
    num_next_ = num_pieces_;
    if (place.line == nullptr) start_piece(place);
  }

  // After all else, up to `lines` of what is read later.
  void add(LaterReads& later, int lines) {
    num_pieces_ += later.take(lines, pieces_ + num_pieces_, kMaxPieces - num_pieces_);
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
      prefetch(from.line, from.is_later);
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

  static PAGETIDE_INLINE void prefetch(const char* line, bool is_later) {
    goes_into_l1() && !is_later ? __builtin_prefetch(line, 0, 3) : __builtin_prefetch(line, 0, 2);
  }

  PAGETIDE_INLINE void start_piece(Place& at) {
    if (taken_ == num_pieces_) {
      at.line = nullptr;
      return;
    }
    at = {pieces_[taken_].begin, pieces_[taken_].end, taken_ >= num_next_};
    ++taken_;
  }

  int num_pieces_ = 0;
  int num_next_ = 0;  // pieces before those that are read later
  int taken_ = 0;
  Piece pieces_[kMaxPieces];
};

}  // namespace pagetide::PAGETIDE_ISA

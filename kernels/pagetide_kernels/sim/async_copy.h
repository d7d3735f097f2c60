// cp.async: a copy to shared memory that lands some time between its issue and the wait that covers it.
//
// The simulator makes the most of that freedom. From its issue on the destination holds 0xFF (it is
// undefined until the wait, so whoever still reads the old tile reads NaN), and by a coin thrown at each
// commit the data lands at once or at the last legal moment.
#pragma once
#include "machine.h"

namespace sim {

struct DueCopy {
  void* to;  // null: none is due
  const void* from;
};

// Bookkeeping, in the uninstrumented part: what is under way, and which copy must land next so that at most
// `groups_left` committed groups stay under way.
void async_copy_issued(void* to, const void* from, const Where& where);
bool async_copy_committed();  // true: everything under way should land now
DueCopy async_copy_due(unsigned groups_left);

inline void fill16(void* to, uint64_t value) {
  for (int i = 0; i < 2; i++) static_cast<uint64_t*>(to)[i] = value;
}

inline void land(unsigned groups_left) {
  for (DueCopy due = async_copy_due(groups_left); due.to; due = async_copy_due(groups_left)) {
    if (!due.from) fill16(due.to, 0);
    for (int i = 0; due.from && i < 2; i++)
      static_cast<uint64_t*>(due.to)[i] = static_cast<const uint64_t*>(due.from)[i];
  }
}

inline void async_copy16(void* to, const void* from, bool valid, const Where& where) {
  if (reinterpret_cast<uintptr_t>(to) % 16 || (valid && reinterpret_cast<uintptr_t>(from) % 16))
    fail(where, "addresses of a 16-byte copy must be multiples of 16: %p from %p", to, from);
  fill16(to, ~0ull);
  async_copy_issued(to, valid ? from : nullptr, where);
}

inline void async_copy_commit() {
  if (async_copy_committed()) land(0);
}

inline void async_copy_wait(unsigned groups_left) { land(groups_left); }

}  // namespace sim

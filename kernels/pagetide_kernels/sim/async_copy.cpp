#include "async_copy.h"

#include "block.h"

namespace sim {

void async_copy_issued(void* to, const void* from, const Where& where) {
  Thread& thread = *block.current;
  if (thread.last_copy - thread.first_copy == kMaxPendingCopies)
    fail(where, "more than %u copies under way in one thread", kMaxPendingCopies);
  thread.copies[thread.last_copy++ % kMaxPendingCopies] = {to, from, thread.num_groups};
}

bool async_copy_committed() {
  block.current->num_groups++;
  return random_bits() % 4 == 0;
}

DueCopy async_copy_due(unsigned groups_left) {
  Thread& thread = *block.current;
  if (thread.first_copy == thread.last_copy) return {nullptr, nullptr};
  const PendingCopy& oldest = thread.copies[thread.first_copy % kMaxPendingCopies];
  if (oldest.group + groups_left >= thread.num_groups) return {nullptr, nullptr};
  thread.first_copy++;
  return {oldest.to, oldest.from};
}

}  // namespace sim

#include "isa.h"

#include <atomic>

#include "elements.h"

namespace pagetide {
namespace {

bool is_supported(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (isa == Isa::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == Isa::avx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16");
  }
#endif
  return isa == Isa::plain;
}

Isa best_isa() {
  if (is_supported(Isa::avx512)) return Isa::avx512;
  return is_supported(Isa::avx2) ? Isa::avx2 : Isa::plain;
}

std::atomic<Isa> isa_in_use{best_isa()};

}  // namespace

Isa current_isa() { return isa_in_use.load(std::memory_order_relaxed); }

}  // namespace pagetide

PAGETIDE_EXPORT int pagetide_supports(int isa) {
  return pagetide::is_supported(static_cast<pagetide::Isa>(isa));
}

PAGETIDE_EXPORT int pagetide_current_isa() { return static_cast<int>(pagetide::current_isa()); }

// The caller has asked pagetide_supports first.
PAGETIDE_EXPORT void pagetide_use_isa(int isa) {
  pagetide::isa_in_use.store(static_cast<pagetide::Isa>(isa));
}

#include "isa.h"

#include <unistd.h>

#include <atomic>
#include <initializer_list>

#include "elements.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#endif

namespace pagetide {
namespace {

#if defined(__x86_64__)

// Linux gives a process the tile registers when it asks for them.
bool may_use_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

// Palette 1: eight tiles of sixteen rows of 64 bytes.
struct alignas(64) TileLayout {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

__attribute__((target("amx-tile"))) void lay_out_tiles() {
  static constexpr TileLayout kLayout;
  _tile_loadconfig(&kLayout);
}

__attribute__((target("amx-tile"))) void release_tiles() { _tile_release(); }

#else

void lay_out_tiles() {}
void release_tiles() {}

#endif

bool is_supported(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (isa == Isa::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == Isa::avx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16");
  }
  if (isa == Isa::amx) {
    return is_supported(Isa::avx512) && __builtin_cpu_supports("amx-tile") &&
           __builtin_cpu_supports("amx-bf16") && may_use_tiles();
  }
#endif
  return isa == Isa::plain;
}

Isa best_isa() {
  for (const Isa isa : {Isa::amx, Isa::avx512, Isa::avx2}) {
    if (is_supported(isa)) return isa;
  }
  return Isa::plain;
}

std::atomic<Isa> isa_in_use{best_isa()};

// 0 or less: the system doesn't say.
#if defined(_SC_LEVEL1_DCACHE_SIZE)
long l1_bytes() { return sysconf(_SC_LEVEL1_DCACHE_SIZE); }
long l3_bytes() { return sysconf(_SC_LEVEL3_CACHE_SIZE); }
#else
long l1_bytes() { return 0; }
long l3_bytes() { return 0; }
#endif

}  // namespace

const bool kHasRoomInL1 = l1_bytes() > 32 << 10;
const int64_t kL3Bytes = l3_bytes() > 0 ? l3_bytes() : 0;

Isa current_isa() { return isa_in_use.load(std::memory_order_relaxed); }

ThreadSetup::ThreadSetup() {
  if (current_isa() == Isa::amx) lay_out_tiles();
}

ThreadSetup::~ThreadSetup() {
  if (current_isa() == Isa::amx) release_tiles();
}

}  // namespace pagetide

PAGETIDE_EXPORT int pagetide_supports(int isa) {
  return pagetide::is_supported(static_cast<pagetide::Isa>(isa));
}

PAGETIDE_EXPORT int pagetide_current_isa() { return static_cast<int>(pagetide::current_isa()); }

// The caller has asked pagetide_supports first.
PAGETIDE_EXPORT void pagetide_use_isa(int isa) {
  pagetide::isa_in_use.store(static_cast<pagetide::Isa>(isa));
}

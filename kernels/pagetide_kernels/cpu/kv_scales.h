// Scales are of e4m3 caches, which only GPUs have; the CPU takes them so that the arguments are the same.
#pragma once

#include "error.h"

namespace pagetide {

inline const char* scale_problem(const char* op, float key_scale, float value_scale) {
  if (key_scale != 1) return error("%s: key_scale is %g; expected 1 on a CPU", op, double{key_scale});
  if (value_scale != 1) return error("%s: value_scale is %g; expected 1 on a CPU", op, double{value_scale});
  return nullptr;
}

}  // namespace pagetide

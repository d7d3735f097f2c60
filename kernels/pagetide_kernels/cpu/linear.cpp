// Linear layers over packed weights: shares out the work to threads.

#include "linear.h"

#include <omp.h>

#include <cmath>
#include <vector>

#include "decoder_share.h"
#include "error.h"
#include "isa.h"

namespace pagetide {
namespace {

// Multiplications below which starting threads costs more than it saves.
constexpr int64_t kSerialWork = 1 << 18;

void project_all(const LinearCall& call, LinearKernels::Project project) {
  const int64_t work = int64_t{call.num_tokens} * call.in_features * call.out_features;
  const int count = work > kSerialWork ? omp_get_max_threads() : 1;
#pragma omp parallel for schedule(static) if (count > 1)
  for (int i = 0; i < count; ++i) {
    const Share share = share_of(i, count, call.num_tokens, call.num_columns);
    const ThreadSetup setup;
    static thread_local WidenedInputs widened;
    LinearCall own = call;
    own.widened = &widened;
    if (call.largest != nullptr) own.largest += int64_t{i} * call.num_tokens;
    widened.tokens = {0, 0};
    project(own, share.tokens, share.columns, {0, 0});
  }
}

const char* columns_problem(const char* op, const LinearCall& call) {
  if (call.num_columns == ceil_divided(call.out_features, kLanes)) return nullptr;
  return error("%s: weight has %d columns of 16; expected %d for N = %d", op, call.num_columns,
               ceil_divided(call.out_features, kLanes), call.out_features);
}

const char* linear(const LinearCall& call, const PerIsa<LinearKernels>& kernels) {
  if (const char* problem = columns_problem("linear", call)) return problem;
  project_all(call, kernels.current().project);
  return nullptr;
}

// Each thread keeps what it finds; of equals the first thread's comes first.
const char* linear_likeliest(int64_t* tokens, LinearCall call, const PerIsa<LinearKernels>& kernels) {
  if (const char* problem = columns_problem("linear_likeliest", call)) return problem;
  const auto num_tokens = static_cast<size_t>(call.num_tokens);
  std::vector<Largest> found(num_tokens * static_cast<size_t>(omp_get_max_threads()), {-INFINITY, 0});
  call.largest = found.data();
  project_all(call, kernels.current().project);
  for (size_t token = 0; token < num_tokens; ++token) {
    Largest most = found[token];
    for (size_t i = token + num_tokens; i < found.size(); i += num_tokens) {
      if (found[i].value > most.value) most = found[i];
    }
    tokens[token] = most.place;
  }
  return nullptr;
}

// The form of the codes: of one column's group, their bytes and how many parts its scales have.
struct CodeForm {
  int num_groups;
  int group_bytes;
  int parts;

  const char* problem(const LinearCall& call) const {
    if (num_groups * kGroupInputs != call.in_features) {
      return error("quantised_linear: codes have %d groups; expected K / 32 = %d", num_groups,
                   call.in_features / kGroupInputs);
    }
    const bool has_form = (group_bytes == 256 && (parts == 1 || parts == 2)) || (group_bytes == 512 && parts == 1);
    if (has_form) return nullptr;
    return error("quantised_linear: codes have %d bytes a group and scales %d parts; "
                 "expected 256 and 1 or 2, or 512 and 1", group_bytes, parts);
  }
};

const char* quantised_linear(LinearCall call, const CodeForm& form, const PerIsa<QuantisedKernels>& isas) {
  if (const char* problem = columns_problem("quantised_linear", call)) return problem;
  if (const char* problem = form.problem(call)) return problem;
  const QuantisedKernels& kernels = isas.current();
  call.codes.bits = form.group_bytes / 64;
  call.codes.has_minimums = form.parts == 2;
  std::vector<float> sums;
  if (call.codes.has_minimums) {
    sums.resize(static_cast<size_t>(call.num_tokens) * static_cast<size_t>(form.num_groups));
    call.codes.input_sums = sums.data();
    kernels.sum_inputs(call, {0, call.num_tokens});
  }
  project_all(call, kernels.project);
  return nullptr;
}

const PerIsa<LinearKernels> kBf16 = PAGETIDE_PER_ISA(linear_bf16);
const PerIsa<LinearKernels> kF32 = PAGETIDE_PER_ISA(linear_f32);
const PerIsa<QuantisedKernels> kQuantisedBf16 = PAGETIDE_PER_ISA(quantised_bf16);
const PerIsa<QuantisedKernels> kQuantisedF32 = PAGETIDE_PER_ISA(quantised_f32);

}  // namespace
}  // namespace pagetide

#define PAGETIDE_LINEAR(name, kernels, is_widened)                                                          \
  PAGETIDE_EXPORT const char* name(void* out, const void* input, const void* weight, const void* bias,     \
                                   int64_t out_stride, int64_t input_stride, int num_tokens,               \
                                   int out_features, int in_features, int num_columns) {                   \
    return pagetide::linear({out, input, weight, bias, out_stride, input_stride, num_tokens, out_features, \
                             in_features, num_columns, {}, 0, is_widened},                                 \
                            pagetide::kernels);                                                            \
  }

PAGETIDE_LINEAR(linear_bf16, kBf16, false)
PAGETIDE_LINEAR(linear_f32, kF32, false)
PAGETIDE_LINEAR(linear_widened_bf16, kBf16, true)
PAGETIDE_LINEAR(linear_widened_f32, kF32, true)

#define PAGETIDE_LINEAR_LIKELIEST(name, kernels)                                                              \
  PAGETIDE_EXPORT const char* name(int64_t* tokens, const void* input, const void* weight,                   \
                                   int64_t input_stride, int num_tokens, int in_features, int num_columns,   \
                                   int out_features) {                                                       \
    return pagetide::linear_likeliest(tokens, {nullptr, input, weight, nullptr, 0, input_stride, num_tokens, \
                                               out_features, in_features, num_columns},                      \
                                      pagetide::kernels);                                                    \
  }

PAGETIDE_LINEAR_LIKELIEST(linear_likeliest_bf16, kBf16)
PAGETIDE_LINEAR_LIKELIEST(linear_likeliest_f32, kF32)

#define PAGETIDE_QUANTISED_LINEAR(name, kernels)                                                           \
  PAGETIDE_EXPORT const char* name(void* out, const void* input, const void* codes, const uint16_t* scales, \
                                   const void* bias, int64_t out_stride, int64_t input_stride,             \
                                   int num_tokens, int out_features, int in_features, int num_columns,     \
                                   int num_groups, int group_bytes, int parts) {                           \
    return pagetide::quantised_linear({out, input, codes, bias, out_stride, input_stride, num_tokens,      \
                                       out_features, in_features, num_columns, {0, 0, scales, nullptr}},   \
                                      {num_groups, group_bytes, parts}, pagetide::kernels);                \
  }

PAGETIDE_QUANTISED_LINEAR(quantised_linear_bf16, kQuantisedBf16)
PAGETIDE_QUANTISED_LINEAR(quantised_linear_f32, kQuantisedF32)

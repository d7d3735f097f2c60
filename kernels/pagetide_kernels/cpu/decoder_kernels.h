#pragma once

#include "attention.h"
#include "decoder.h"
#include "isa.h"
#include "linear.h"

namespace pagetide {

// What a step computes with, of each element type and instruction set.
struct Kernels {
  size_t element_size;
  PerIsa<DecoderKernels> rows;
  PerIsa<LinearKernels> linear;
  PerIsa<QuantisedKernels> quantised;
  PerIsa<AttentionKernels> attention;
  PerIsa<AttentionKernels> int8_attention;
};

inline const Kernels kBf16{2, PAGETIDE_PER_ISA(decoder_bf16), PAGETIDE_PER_ISA(linear_bf16),
                    PAGETIDE_PER_ISA(quantised_bf16), PAGETIDE_PER_ISA(attention_bf16),
                    PAGETIDE_PER_ISA(attention_int8_bf16)};
inline const Kernels kF32{4, PAGETIDE_PER_ISA(decoder_f32), PAGETIDE_PER_ISA(linear_f32),
                   PAGETIDE_PER_ISA(quantised_f32), PAGETIDE_PER_ISA(attention_f32),
                   PAGETIDE_PER_ISA(attention_int8_f32)};

}  // namespace pagetide

// The products of a step: what each is called with, and what the thread that computes it reads next.
#pragma once

#include <algorithm>

#include "decoder.h"
#include "decoder_crews.h"
#include "linear.h"

namespace pagetide {

inline int columns_of(const DecoderLinear& linear) { return ceil_divided(linear.out_features, kLanes); }

// A product and how many of its columns are shared out; of gates the ups go with them.
struct Sharing {
  const DecoderLinear* linear = nullptr;
  int num_columns = 0;
};

inline Sharing sharing_of(const DecoderLinear& linear) { return {&linear, columns_of(linear)}; }

inline Sharing sharing_of_gates(const DecoderLayer& layer) {
  return {&layer.gate_up, columns_of(layer.gate_up) / 2};
}

// A product of a panel's rows.
struct PanelProduct {
  const DecoderLinear& linear;
  const void* input;
  int64_t input_stride;
  void* out;
  Sharing then = {};  // the product that comes next, if it is known

  LinearCall call(const Member& member, int num_tokens, int64_t element_size) const {
    LinearCall call{};
    call.out = out;
    call.input = input;
    call.weight = linear.weight;
    call.bias = linear.bias;
    call.out_stride = linear.out_features;
    call.input_stride = input_stride;
    call.num_tokens = num_tokens;
    call.out_features = linear.out_features;
    call.in_features = linear.in_features;
    call.num_columns = columns_of(linear);
    call.codes = linear.codes;
    call.codes.input_sums = member.crew.rows.sums.get<float>();
    if (then.linear != nullptr && then.linear->codes.bits == 0) {
      const Range columns = share_of(member.rank, member.crew_size, num_tokens, then.num_columns).columns;
      const int64_t column_bytes = element_size * kLanes * then.linear->in_features;
      call.then = static_cast<const char*>(then.linear->weight) + columns.begin * column_bytes;
      call.then_bytes = column_bytes * std::min(columns.end - columns.begin, kColumnsAhead);
    }
    return call;
  }

 private:
  static constexpr int kColumnsAhead = 4;
};

}  // namespace pagetide

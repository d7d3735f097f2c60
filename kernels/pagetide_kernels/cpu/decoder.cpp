// A step through all layers of a decoder over packed weights: one parallel region, barriers between phases.
//
// Every output is computed as it would be alone: products by linear.h's kernels, attention in fixed
// partitions, the rest row by row. Threads and batches change no bit.

#include "decoder.h"

#include <omp.h>

#include <algorithm>

#include "attention_plan.h"
#include "decoder_memory.h"
#include "decoder_plan.h"
#include "decoder_share.h"
#include "decoder_team.h"
#include "isa.h"
#include "linear.h"

namespace pagetide {
namespace {

// What the layers of a step hand to each other: rows of one token each.
struct Rows {
  Buffer normed;    // [T][hidden]
  Buffer qkv;       // [T][Hq + 2 Hkv][D]
  Buffer attended;  // [T][Hq][D]
  Buffer gate_up;   // [T][2 * intermediate]
  Buffer added;     // [T][hidden], what a residual layer adds
  Buffer sums;      // [T][widest input / kGroupInputs] float, for weights that have minimums
};

struct Kernels {
  size_t element_size;
  PerIsa<DecoderKernels> rows;
  PerIsa<LinearKernels> linear;
  PerIsa<QuantisedKernels> quantised;
  PerIsa<AttentionKernels> attention;
  PerIsa<AttentionKernels> int8_attention;
};

const Kernels kBf16{2, PAGETIDE_PER_ISA(decoder_bf16), PAGETIDE_PER_ISA(linear_bf16),
                    PAGETIDE_PER_ISA(quantised_bf16), PAGETIDE_PER_ISA(attention_bf16),
                    PAGETIDE_PER_ISA(attention_int8_bf16)};
const Kernels kF32{4, PAGETIDE_PER_ISA(decoder_f32), PAGETIDE_PER_ISA(linear_f32),
                   PAGETIDE_PER_ISA(quantised_f32), PAGETIDE_PER_ISA(attention_f32),
                   PAGETIDE_PER_ISA(attention_int8_f32)};

struct Decoder {
  DecoderShape shape;
  std::vector<DecoderLayer> layers;
  Rows rows;
  std::vector<Buffer> scratch;  // of each thread

  int widest_window() const {
    int widest = 0;
    for (const DecoderLayer& layer : layers) {
      if (layer.window == 0) return 0;
      widest = std::max(widest, layer.window);
    }
    return widest;
  }
};

class Run {
 public:
  Run(Decoder& decoder, const DecoderStep& step, const Kernels& kernels)
      : decoder_(decoder),
        shape_(decoder.shape),
        step_(step),
        rows_(decoder.rows),
        row_kernels_(kernels.rows.current()),
        linear_(kernels.linear.current()),
        quantised_(kernels.quantised.current()),
        attention_((step.has_int8_caches ? kernels.int8_attention : kernels.attention).current()),
        num_threads_(std::max(step.num_threads, 1)) {
    reserve_rows(kernels.element_size);
    for (const DecoderLayer& layer : decoder.layers) plan(layer);
    reserve_scratch();
  }

  void run() {
#pragma omp parallel num_threads(num_threads_)
    {
#pragma omp single
      {
        num_threads_ = omp_get_num_threads();
        barrier_.set_size(num_threads_);
        shares_.set_size(num_threads_);
      }
      run_layers({omp_get_thread_num(), 0});
    }
  }

 private:
  // A thread on its way through the step, and the products it has come to.
  struct Member {
    int thread;
    int round;
  };

  void reserve_rows(size_t element_size) {
    const auto reserve = [&](Buffer& buffer, int64_t size) {
      buffer.reserve(element_size * static_cast<size_t>(step_.num_tokens * size));
    };
    reserve(rows_.normed, shape_.hidden_size);
    reserve(rows_.qkv, shape_.qkv_size());
    reserve(rows_.attended, shape_.query_size());
    reserve(rows_.gate_up, 2 * int64_t{shape_.intermediate_size});
    reserve(rows_.added, shape_.hidden_size);
    const int64_t widest = std::max<int64_t>(
        {shape_.hidden_size, shape_.query_size(), shape_.intermediate_size});
    rows_.sums.reserve(sizeof(float) * static_cast<size_t>(step_.num_tokens * (widest / kGroupInputs)));
  }

  void plan(const DecoderLayer& layer) {
    const auto same = [&](const AttentionPlan& plan) { return plan.window() == layer.window; };
    if (std::any_of(plans_.begin(), plans_.end(), same)) return;
    plans_.emplace_back(attention_call(shape_, step_, layer), num_threads_);
  }

  const AttentionPlan& plan_of(const DecoderLayer& layer) const {
    return *std::find_if(plans_.begin(), plans_.end(),
                         [&](const AttentionPlan& plan) { return plan.window() == layer.window; });
  }

  void reserve_scratch() {
    const AttentionCall call = attention_call(shape_, step_, decoder_.layers.front());
    const int64_t floats = attention_.scratch_size(call, plans_.front().queries_per_item());
    decoder_.scratch.resize(std::max(decoder_.scratch.size(), static_cast<size_t>(num_threads_)));
    for (Buffer& scratch : decoder_.scratch) scratch.reserve(sizeof(float) * static_cast<size_t>(floats));
  }

  Range tokens_of(int thread) const { return share_of(thread, num_threads_, step_.num_tokens); }

  void run_layers(Member member) {
    const int thread = member.thread;
    const std::vector<DecoderLayer>& layers = decoder_.layers;
    add_and_norm(thread, nullptr, {}, &layers.front().attn_in);
    for (size_t i = 0; i < layers.size(); ++i) {
      attend(member, layers[i], step_.kv_caches[i]);
      add_and_norm(thread, rows_.added.get(), layers[i].attn_out, &layers[i].ffn_in);
      feed_forward(member, layers[i]);
      const DecoderNorm* next = i + 1 < layers.size() ? &layers[i + 1].attn_in : nullptr;
      add_and_norm(thread, rows_.added.get(), layers[i].ffn_out, next);
    }
  }

  void add_and_norm(int thread, const void* added, DecoderNorm out_norm, const DecoderNorm* in_norm) {
    const ResidualCall call{step_.hidden,
                            added,
                            in_norm != nullptr ? rows_.normed.get() : nullptr,
                            out_norm,
                            in_norm != nullptr ? *in_norm : DecoderNorm{},
                            shape_.hidden_size};
    row_kernels_.add_and_norm(call, tokens_of(thread));
    barrier_.wait();
  }

  void attend(Member& member, const DecoderLayer& layer, void* kv_cache) {
    const int thread = member.thread;
    multiply(member, layer.qkv, rows_.normed.get(), shape_.hidden_size, rows_.qkv.get());
    if (thread == 0) {
      items_.refill();
      merges_.refill();
    }
    barrier_.wait();
    const RotaryCall rotary{shape_,          step_,   layer.qk_norm, step_.rotations[layer.rope],
                            rows_.qkv.get(), kv_cache};
    const auto rotate = step_.has_int8_caches ? row_kernels_.rotate_and_store_int8 : row_kernels_.rotate_and_store;
    rotate(rotary, tokens_of(thread));
    barrier_.wait();
    look_up(thread, layer, kv_cache);
    multiply(member, layer.out, rows_.attended.get(), shape_.query_size(), rows_.added.get());
    barrier_.wait();
  }

  void look_up(int thread, const DecoderLayer& layer, const void* kv_cache) {
    const AttentionPlan& plan = plan_of(layer);
    AttentionCall call = attention_call(shape_, step_, layer);
    call.out = rows_.attended.get();
    call.query = rows_.qkv.get();
    call.kv_cache = kv_cache;
    take_all(thread, items_, plan.items(), call, attention_.attend);
    barrier_.wait();
    if (plan.merges().empty()) return;
    take_all(thread, merges_, plan.merges(), call, attention_.merge);
    barrier_.wait();
  }

  void take_all(int thread, Queue& queue, const std::vector<WorkItem>& items, const AttentionCall& call,
                void (*work)(const AttentionCall&, const WorkItem&, const WorkItem*, float*)) const {
    auto* scratch = decoder_.scratch[static_cast<size_t>(thread)].get<float>();
    for (size_t i = queue.take(); i < items.size();) {
      const size_t next = queue.take();
      work(call, items[i], next < items.size() ? &items[next] : nullptr, scratch);
      i = next;
    }
  }

  void feed_forward(Member& member, const DecoderLayer& layer) {
    const int width = shape_.intermediate_size, columns = width / kLanes;
    const LinearCall call =
        linear_call(layer.gate_up, rows_.normed.get(), shape_.hidden_size, rows_.gate_up.get());
    sum_inputs(member.thread, call);
    shares_.work_through(
        member.thread, next_round(member, columns), [&](Range tokens, Range gates, Range next) {
          const Range ups{columns + gates.begin, columns + gates.end};
          project(call, tokens, gates, ups);
          project(call, tokens, ups, next);
          row_kernels_.activate({rows_.gate_up.get(), width, layer.activation}, tokens,
                                {gates.begin * kLanes, gates.end * kLanes});
        });
    barrier_.wait();
    multiply(member, layer.down, rows_.gate_up.get(), 2 * int64_t{width}, rows_.added.get());
    barrier_.wait();
  }

  void multiply(Member& member, const DecoderLinear& linear, const void* input, int64_t input_stride,
                void* out) {
    const LinearCall call = linear_call(linear, input, input_stride, out);
    sum_inputs(member.thread, call);
    shares_.work_through(member.thread, next_round(member, call.num_columns),
                         [&](Range tokens, Range columns, Range next) {
                           project(call, tokens, columns, next);
                         });
  }

  // The product before is done with the sums: a barrier lies between.
  void sum_inputs(int thread, const LinearCall& call) {
    if (!call.codes.has_minimums) return;
    quantised_.sum_inputs(call, tokens_of(thread));
    barrier_.wait();
  }

  void project(const LinearCall& call, Range tokens, Range columns, Range next) const {
    (call.codes.bits != 0 ? quantised_.project : linear_.project)(call, tokens, columns, next);
  }

  Shares::Round next_round(Member& member, int num_columns) const {
    return {++member.round, step_.num_tokens, num_columns};
  }

  LinearCall linear_call(const DecoderLinear& linear, const void* input, int64_t input_stride,
                         void* out) const {
    LinearCall call{};
    call.out = out;
    call.input = input;
    call.weight = linear.weight;
    call.bias = linear.bias;
    call.out_stride = linear.out_features;
    call.input_stride = input_stride;
    call.num_tokens = step_.num_tokens;
    call.out_features = linear.out_features;
    call.in_features = linear.in_features;
    call.num_columns = (linear.out_features + kLanes - 1) / kLanes;
    call.codes = linear.codes;
    call.codes.input_sums = rows_.sums.get<float>();
    return call;
  }

  Decoder& decoder_;
  const DecoderShape& shape_;
  const DecoderStep& step_;
  Rows& rows_;
  const DecoderKernels& row_kernels_;
  const LinearKernels& linear_;
  const QuantisedKernels& quantised_;
  const AttentionKernels& attention_;
  int num_threads_;
  std::vector<AttentionPlan> plans_;
  Barrier barrier_;
  Shares shares_;
  Queue items_;
  Queue merges_;
};

const char* run(Decoder& decoder, const DecoderStep& step, const Kernels& kernels) {
  if (const char* problem = step_problem(decoder.shape, step, decoder.widest_window())) return problem;
  if (step.num_tokens > 0) Run(decoder, step, kernels).run();
  return nullptr;
}

}  // namespace
}  // namespace pagetide

// The layers are copied; what their pointers refer to must outlive the decoder.
PAGETIDE_EXPORT pagetide::Decoder* decoder_create(const pagetide::DecoderShape* shape,
                                                  const pagetide::DecoderLayer* layers) {
  return new pagetide::Decoder{*shape, {layers, layers + shape->num_layers}, {}, {}};
}

PAGETIDE_EXPORT void decoder_destroy(pagetide::Decoder* decoder) { delete decoder; }

// One call at a time for each decoder.
PAGETIDE_EXPORT const char* decoder_run_bf16(pagetide::Decoder* decoder, const pagetide::DecoderStep* step) {
  return pagetide::run(*decoder, *step, pagetide::kBf16);
}

PAGETIDE_EXPORT const char* decoder_run_f32(pagetide::Decoder* decoder, const pagetide::DecoderStep* step) {
  return pagetide::run(*decoder, *step, pagetide::kF32);
}

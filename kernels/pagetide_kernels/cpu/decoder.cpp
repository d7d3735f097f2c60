// A step through all layers of a decoder over packed weights: one parallel region, barriers between phases.
//
// Every output is computed as it would be alone: products by linear.h's kernels, attention in fixed
// partitions, the rest row by row. Threads and batches change no bit.

#include "decoder.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "decoder_kernels.h"
#include "decoder_kv_ahead.h"
#include "decoder_plan.h"
#include "decoder_products.h"
#include "decoder_state.h"

namespace pagetide {
namespace {

class Run {
 public:
  Run(Decoder& decoder, const DecoderStep& step, const Kernels& kernels)
      : decoder_(decoder),
        shape_(decoder.shape),
        step_(step),
        rows_(decoder.rows),
        crews_(decoder.crews),
        row_kernels_(kernels.rows.current()),
        linear_(kernels.linear.current()),
        quantised_(kernels.quantised.current()),
        attention_((step.has_int8_caches ? kernels.int8_attention : kernels.attention).current()),
        element_size_(static_cast<int64_t>(kernels.element_size)),
        num_threads_(std::max(step.num_threads, 1)),
        plans_(decoder.shape, step, decoder.layers, num_threads_),
        kv_ahead_(decoder.shape, step, decoder.layers, element_size_) {
    crews_.set_up(step.num_tokens, num_threads_);
    decoder.angles.reserve(step.num_tokens);
    reserve_rows();
    reserve_threads();
  }

  void run() {
#pragma omp parallel num_threads(num_threads_)
    {
#pragma omp single
      {
        num_threads_ = omp_get_num_threads();
        everyone_.set_size(num_threads_);
        crews_.set_size(num_threads_);
      }
      const ThreadSetup setup;
      run_layers(crews_.member(omp_get_thread_num()));
    }
  }

 private:
  static constexpr int kUpsWidth = Shares::kGrain * kLanes;

  static int size(Range range) { return range.end - range.begin; }

  void reserve_rows() {
    const auto reserve = [&](Buffer& buffer, int num_rows, int64_t width) {
      buffer.reserve(static_cast<size_t>(element_size_ * num_rows * width));
    };
    reserve(rows_.qkv, step_.num_tokens, shape_.qkv_size());
    reserve(rows_.attended, step_.num_tokens, shape_.query_size());
    const int64_t num_groups =
        std::max<int64_t>({shape_.hidden_size, shape_.query_size(), shape_.intermediate_size}) / kGroupInputs;
    for (const auto& crew : crews_.all()) {
      reserve(crew->rows.normed, crews_.most_tokens(), shape_.hidden_size);
      reserve(crew->rows.gates, crews_.most_tokens(), shape_.intermediate_size);
      reserve(crew->rows.added, crews_.most_tokens(), shape_.hidden_size);
      crew->rows.sums.reserve(sizeof(float) * static_cast<size_t>(crews_.most_tokens() * num_groups));
    }
  }

  void* row(void* rows, int64_t token, int64_t width) const {
    return static_cast<char*>(rows) + element_size_ * token * width;
  }

  void reserve_threads() {
    const AttentionCall call = attention_call(shape_, step_, decoder_.layers.front());
    const int64_t floats = attention_.scratch_size(call, plans_.queries_per_item());
    decoder_.threads.resize(std::max(decoder_.threads.size(), static_cast<size_t>(num_threads_)));
    for (ThreadMemory& memory : decoder_.threads) {
      memory.attention.reserve(sizeof(float) * static_cast<size_t>(floats));
      memory.ups.reserve(static_cast<size_t>(element_size_ * crews_.most_tokens() * kUpsWidth));
    }
  }

  // Attention is everyone's; what lies between is a crew's.
  void run_layers(Member member) {
    const std::vector<DecoderLayer>& layers = decoder_.layers;
    crews_.for_panels([&](Range panel) {
      const Range share = member.share(size(panel));
      decoder_.angles.find(step_.positions, {panel.begin + share.begin, panel.begin + share.end});
      add_and_norm(member, panel, nullptr, {}, layers.front().attn_in, member.crew.rows.normed.get());
      project_heads(member, panel, layers.front(), step_.kv_caches[0]);
    });
    for (size_t i = 0; i < layers.size(); ++i) {
      const DecoderLayer* next = i + 1 < layers.size() ? &layers[i + 1] : nullptr;
      const bool is_narrowed = next == nullptr && step_.is_narrowed();
      if (is_narrowed && step_.num_wanted == 0) return;
      attend(member.thread, i);
      if (is_narrowed) keep_wanted(member.thread);
      crews_.for_panels([&](Range panel) {
        feed_forward(member, panel, layers[i], next);
        if (next != nullptr) project_heads(member, panel, *next, step_.kv_caches[i + 1]);
      });
    }
  }

  // Nothing after the last layer's keys and values needs the other rows.
  void keep_wanted(int thread) {
    if (thread == 0) {
      for (int i = 0; i < step_.num_wanted; ++i) {
        const auto keep = [&](void* rows, int64_t width) {
          std::memmove(row(rows, i, width), row(rows, step_.wanted[i], width),
                       static_cast<size_t>(element_size_ * width));
        };
        keep(step_.hidden, shape_.hidden_size);
        keep(rows_.attended.get(), shape_.query_size());
      }
      crews_.cut_again(step_.num_wanted);
    }
    everyone_.wait();
  }

  // The queries of normed rows; their keys and values go to the cache.
  void project_heads(Member& member, Range panel, const DecoderLayer& layer, void* kv_cache) {
    multiply(member, panel,
             {layer.qkv, member.crew.rows.normed.get(), shape_.hidden_size,
              row(rows_.qkv.get(), panel.begin, shape_.qkv_size()), sharing_of(layer.out)});
    const RotaryCall rotary{shape_,          step_,   layer.qk_norm, decoder_.angles.of(layer.rope),
                            rows_.qkv.get(), kv_cache};
    const Range share = member.share(size(panel));
    const auto rotate =
        step_.has_int8_caches ? row_kernels_.rotate_and_store_int8 : row_kernels_.rotate_and_store;
    rotate(rotary, {panel.begin + share.begin, panel.begin + share.end});
  }

  // From what a layer's attention found to what the next layer starts with, or, after the last, to the states.
  void feed_forward(Member& member, Range panel, const DecoderLayer& layer, const DecoderLayer* next) {
    void* added = member.crew.rows.added.get();
    const int64_t query_size = shape_.query_size();
    multiply(member, panel,
             {layer.out, row(rows_.attended.get(), panel.begin, query_size), query_size, added,
              sharing_of_gates(layer)});
    add_and_norm(member, panel, added, layer.attn_out, layer.ffn_in, member.crew.rows.normed.get());
    activate_gates(member, panel, layer);
    multiply(member, panel,
             {layer.down, member.crew.rows.gates.get(), shape_.intermediate_size, added,
              next != nullptr ? sharing_of(next->qkv) : Sharing{}});
    if (next != nullptr) {
      add_and_norm(member, panel, added, layer.ffn_out, next->attn_in, member.crew.rows.normed.get());
    } else {
      add_and_norm(member, panel, added, layer.ffn_out, decoder_.norm, hidden(panel));
    }
  }

  void add_and_norm(Member& member, Range panel, const void* added, DecoderNorm out_norm, DecoderNorm in_norm,
                    void* normed) {
    row_kernels_.add_and_norm({hidden(panel), added, normed, out_norm, in_norm, shape_.hidden_size},
                              member.share(size(panel)));
    member.crew.barrier.wait();
  }

  void* hidden(Range panel) const { return row(step_.hidden, panel.begin, shape_.hidden_size); }

  // A thread has the ups of one piece at a time.
  void activate_gates(Member& member, Range panel, const DecoderLayer& layer) {
    const int width = shape_.intermediate_size, columns = width / kLanes;
    const PanelProduct product{layer.gate_up, member.crew.rows.normed.get(), shape_.hidden_size,
                               member.crew.rows.gates.get(), sharing_of(layer.down)};
    LinearCall to_gates = call_of(product, member, panel);
    to_gates.out_stride = width;
    LinearCall to_ups = to_gates;
    to_ups.out = decoder_.threads[static_cast<size_t>(member.thread)].ups.get();
    to_ups.out_stride = kUpsWidth;
    sum_inputs(member, to_gates);
    member.crew.shares.work_through(
        member.rank, member.next_round(size(panel), columns), [&](Range tokens, Range gates, Range next) {
          const Range ups{columns + gates.begin, columns + gates.end};
          to_ups.out_column = ups.begin;
          project(to_gates, tokens, gates, ups);
          project(to_ups, tokens, ups, next);
          row_kernels_.activate({to_gates.out, to_ups.out, width, kUpsWidth, layer.activation}, tokens,
                                {gates.begin * kLanes, gates.end * kLanes});
        });
    member.crew.barrier.wait();
  }

  void multiply(Member& member, Range panel, const PanelProduct& product) {
    const LinearCall call = call_of(product, member, panel);
    sum_inputs(member, call);
    member.crew.shares.work_through(member.rank, member.next_round(size(panel), call.num_columns),
                                    [&](Range tokens, Range columns, Range next) {
                                      project(call, tokens, columns, next);
                                    });
    member.crew.barrier.wait();
  }

  LinearCall call_of(const PanelProduct& product, const Member& member, Range panel) {
    LinearCall call = product.call(member, size(panel), element_size_);
    call.widened = &decoder_.threads[static_cast<size_t>(member.thread)].inputs;
    call.widened->tokens = {0, 0};
    call.later = &kv_ahead_.reads();
    return call;
  }

  // The product before is done with the sums: a barrier lies between.
  void sum_inputs(Member& member, const LinearCall& call) {
    if (!call.codes.has_minimums) return;
    quantised_.sum_inputs(call, member.share(call.num_tokens));
    member.crew.barrier.wait();
  }

  void project(const LinearCall& call, Range tokens, Range columns, Range next) const {
    (call.codes.bits != 0 ? quantised_.project : linear_.project)(call, tokens, columns, next);
  }

  void attend(int thread, size_t layer_index) {
    const DecoderLayer& layer = decoder_.layers[layer_index];
    const AttentionPlan& plan = plans_.of(layer);
    AttentionCall call = attention_call(shape_, step_, layer);
    call.out = rows_.attended.get();
    call.query = rows_.qkv.get();
    call.kv_cache = step_.kv_caches[layer_index];
    if (thread == 0) items_.refill();
    everyone_.wait();
    if (thread == 0) {
      crews_.refill();
      merges_.refill();
      kv_ahead_.turn_to(layer_index + 1);
    }
    take_all(thread, items_, plan.items(), call, attention_.attend);
    everyone_.wait();
    if (plan.merges().empty()) return;
    take_all(thread, merges_, plan.merges(), call, attention_.merge);
    everyone_.wait();
  }

  void take_all(int thread, Queue& queue, const std::vector<WorkItem>& items, const AttentionCall& call,
                void (*work)(const AttentionCall&, const WorkItem&, const WorkItem*, float*)) const {
    auto* scratch = decoder_.threads[static_cast<size_t>(thread)].attention.get<float>();
    for (size_t i = queue.take(); i < items.size();) {
      const size_t next = queue.take();
      work(call, items[i], next < items.size() ? &items[next] : nullptr, scratch);
      i = next;
    }
  }

  Decoder& decoder_;
  const DecoderShape& shape_;
  const DecoderStep& step_;
  Rows& rows_;
  Crews& crews_;
  const DecoderKernels& row_kernels_;
  const LinearKernels& linear_;
  const QuantisedKernels& quantised_;
  const AttentionKernels& attention_;
  int64_t element_size_;
  int num_threads_;
  LayerPlans plans_;
  KvAhead kv_ahead_;
  Barrier everyone_;
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

// The descriptions are copied; what their pointers refer to must outlive the decoder.
PAGETIDE_EXPORT pagetide::Decoder* decoder_create(const pagetide::DecoderShape* shape,
                                                  const pagetide::DecoderLayer* layers,
                                                  const pagetide::DecoderRope* ropes, int num_ropes,
                                                  const pagetide::DecoderNorm* norm) {
  return new pagetide::Decoder{
      *shape, {layers, layers + shape->num_layers}, *norm, pagetide::Angles({ropes, ropes + num_ropes})};
}

PAGETIDE_EXPORT void decoder_destroy(pagetide::Decoder* decoder) { delete decoder; }

// One call at a time for each decoder.
PAGETIDE_EXPORT const char* decoder_run_bf16(pagetide::Decoder* decoder, const pagetide::DecoderStep* step) {
  return pagetide::run(*decoder, *step, pagetide::kBf16);
}

PAGETIDE_EXPORT const char* decoder_run_f32(pagetide::Decoder* decoder, const pagetide::DecoderStep* step) {
  return pagetide::run(*decoder, *step, pagetide::kF32);
}

#include "decoder_checks.h"

#include <algorithm>
#include <list>

#include "decoder.h"
#include "random.h"

using pagetide::DecoderLayer;
using pagetide::DecoderLinear;
using pagetide::DecoderNorm;
using pagetide::DecoderRope;
using pagetide::DecoderShape;
using pagetide::DecoderStep;

extern "C" {
void* decoder_create(const DecoderShape* shape, const DecoderLayer* layers, const DecoderRope* ropes,
                     int num_ropes, const DecoderNorm* norm);
void decoder_destroy(void* decoder);
const char* decoder_run_bf16(void* decoder, const DecoderStep* step);
const char* decoder_run_f32(void* decoder, const DecoderStep* step);
}

namespace {

using Run = const char*(void*, const DecoderStep*);
constexpr int kBlock = pagetide::kBlockTokens;
constexpr int kMaxLen = 80;
constexpr int kBlocksEach = kMaxLen / kBlock;

template <class Element>
class Model {
 public:
  Model() {
    const int kv_heads = random_int(1, 3);
    shape_ = {random_int(1, 3), 16 * random_int(1, 5), 16 * random_int(1, 5), kv_heads * random_int(1, 4),
              kv_heads,         16 * random_int(1, 4)};
    for (int i = 0; i < shape_.num_layers; ++i) layers_.push_back(random_layer());
    const int half = random_int(0, shape_.head_size / 2);
    for (int i = 0; i < half; ++i) frequencies_.push_back(1.0f / float(1 + i));
    const DecoderRope rope{frequencies_.data(), 2 * half, 1.5f};
    const DecoderNorm last = norm(shape_.hidden_size);
    handle_ = decoder_create(&shape_, layers_.data(), &rope, 1, &last);
  }

  ~Model() { decoder_destroy(handle_); }

  const DecoderShape& shape() const { return shape_; }
  void* handle() const { return handle_; }

 private:
  DecoderNorm norm(int size) {
    norms_.emplace_back();
    fill(norms_.back(), static_cast<size_t>(size));
    return {random_int(0, 2) > 0 ? norms_.back().data() : nullptr, 1e-5f};
  }

  const void* elements(int64_t size) {
    weights_.emplace_back();
    fill(weights_.back(), static_cast<size_t>(size));
    return weights_.back().data();
  }

  DecoderLinear linear(int64_t outputs, int64_t inputs) {
    const int64_t padded = (outputs + pagetide::kLanes - 1) / pagetide::kLanes * pagetide::kLanes;
    const void* weight = elements(padded * inputs);
    return {weight, random_int(0, 1) ? elements(outputs) : nullptr, static_cast<int32_t>(outputs),
            static_cast<int32_t>(inputs)};
  }

  DecoderLayer random_layer() {
    const int hidden = shape_.hidden_size, inner = shape_.intermediate_size;
    DecoderLayer layer{};
    for (DecoderNorm* each : {&layer.attn_in, &layer.attn_out, &layer.ffn_in, &layer.ffn_out}) {
      *each = norm(hidden);
    }
    layer.qk_norm = norm(shape_.num_rotated() * shape_.head_size);
    layer.qkv = linear(shape_.qkv_size(), hidden);
    layer.out = linear(hidden, shape_.query_size());
    layer.gate_up = linear(2 * int64_t{inner}, hidden);
    layer.down = linear(hidden, inner);
    layer.window = random_int(0, 1) * random_int(1, 40);
    layer.scale = 0.2f;
    layer.soft_cap = random_int(0, 1) ? 3.0f : 0.0f;
    layer.activation = static_cast<pagetide::Activation>(random_int(0, 3));
    return layer;
  }

  DecoderShape shape_;
  std::vector<DecoderLayer> layers_;
  std::vector<float> frequencies_;
  std::list<std::vector<float>> norms_;
  std::list<std::vector<Element>> weights_;
  void* handle_;
};

template <class Element>
struct Prompt {
  std::vector<Element> hidden;  // [length][hidden_size]
  int length;
};

// Sequences of their own cache, and what came out for each of their tokens.
template <class Element>
class World {
 public:
  World(const Model<Element>& model, const std::vector<Prompt<Element>>& prompts, bool has_int8_caches)
      : model_(model),
        prompts_(prompts),
        lens_(prompts.size()),
        outputs_(prompts.size()),
        has_int8_caches_(has_int8_caches) {
    const DecoderShape& shape = model.shape();
    const int64_t scales = has_int8_caches ? int64_t{sizeof(float)} : 0;
    block_size_ = int64_t{2} * shape.num_kv_heads * kBlock * (shape.head_size + scales);
    const size_t bytes = static_cast<size_t>(block_size_) * (has_int8_caches ? 1 : sizeof(Element));
    for (int i = 0; i < shape.num_layers; ++i) caches_.emplace_back(prompts.size() * kBlocksEach * bytes);
    std::vector<int32_t> ids(prompts.size() * kBlocksEach);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    std::shuffle(ids.begin(), ids.end(), random_bits);
    table_ = ids;
  }

  // The next `counts[i]` tokens of each prompt. `only_last`: what comes out for the others is not kept.
  void step(const std::vector<int>& counts, Run run, bool only_last = false) {
    std::vector<Element> hidden;
    std::vector<int32_t> starts{0};
    std::vector<int64_t> positions, slots, wanted;
    const auto size = static_cast<size_t>(model_.shape().hidden_size);
    for (size_t i = 0; i < counts.size(); ++i) {
      for (int n = 0; n < counts[i]; ++n, ++lens_[i]) {
        const int position = lens_[i];
        const Element* row = prompts_[i].hidden.data() + static_cast<size_t>(position) * size;
        hidden.insert(hidden.end(), row, row + size);
        const int64_t block = table_[i * kBlocksEach + static_cast<size_t>(position / kBlock)];
        slots.push_back(block * kBlock + position % kBlock);
        positions.push_back(position);
      }
      starts.push_back(static_cast<int32_t>(slots.size()));
      if (counts[i] > 0) wanted.push_back(starts.back() - 1);
    }
    std::vector<void*> caches;
    for (auto& cache : caches_) caches.push_back(cache.data());
    const auto num_sequences = static_cast<int32_t>(counts.size());
    const DecoderStep step{hidden.data(),
                           positions.data(),
                           caches.data(),
                           table_.data(),
                           starts.data(),
                           lens_.data(),
                           slots.data(),
                           wanted.data(),
                           block_size_,
                           kBlocksEach,
                           starts.back(),
                           num_sequences,
                           kBlocksEach,
                           num_sequences * kBlocksEach,
                           only_last ? static_cast<int32_t>(wanted.size()) : DecoderStep::kAllWanted,
                           random_int(1, 3),
                           has_int8_caches_};
    require(run(model_.handle(), &step));
    auto last = hidden.begin();
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      const int num_kept = only_last ? 1 : counts[i];
      outputs_[i].insert(outputs_[i].end(), last, last + num_kept * model_.shape().hidden_size);
      last += num_kept * model_.shape().hidden_size;
    }
  }

  const std::vector<Element>& output(size_t i) const { return outputs_[i]; }

 private:
  const Model<Element>& model_;
  const std::vector<Prompt<Element>>& prompts_;
  std::vector<int32_t> lens_;
  std::vector<std::vector<Element>> outputs_;
  std::vector<std::vector<char>> caches_;
  std::vector<int32_t> table_;
  int64_t block_size_;
  bool has_int8_caches_;
};

template <class Element>
int check(Run run, bool has_int8_caches) {
  const Model<Element> model;
  std::vector<Prompt<Element>> prompts(static_cast<size_t>(random_int(1, 4)));
  std::vector<int> lengths, firsts, rests;
  for (Prompt<Element>& prompt : prompts) {
    prompt.length = random_int(1, kMaxLen);
    fill(prompt.hidden, static_cast<size_t>(prompt.length) * static_cast<size_t>(model.shape().hidden_size));
    lengths.push_back(prompt.length);
    firsts.push_back(random_int(0, prompt.length));
    rests.push_back(prompt.length - firsts.back());
  }
  World<Element> whole(model, prompts, has_int8_caches), cut(model, prompts, has_int8_caches);
  whole.step(lengths, run);
  cut.step(firsts, run);
  cut.step(rests, run, true);
  const auto size = static_cast<size_t>(model.shape().hidden_size);
  int compared = 0;
  for (size_t i = 0; i < prompts.size(); ++i, compared += lengths[i - 1]) {
    std::vector<Element> a = whole.output(i);
    const auto first_dropped = a.begin() + static_cast<int64_t>(static_cast<size_t>(firsts[i]) * size);
    if (rests[i] > 0) a.erase(first_dropped, a.end() - static_cast<int64_t>(size));
    const auto& b = cut.output(i);
    if (a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(Element)) == 0) continue;
    std::printf("decoder: sequence %zu of %d tokens has other bits in two steps than in one\n", i,
                lengths[i]);
    std::exit(1);
  }
  return compared;
}

}  // namespace

int check_decoder() {
  const bool has_int8_caches = random_int(0, 1) == 1;
  return check<bfloat16>(decoder_run_bf16, has_int8_caches) + check<float>(decoder_run_f32, has_int8_caches);
}

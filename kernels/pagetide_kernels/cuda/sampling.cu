// From logits to tokens without sorting them. Logits are float32, one row a block of threads.
#include "vector.cuh"

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kBins = 256;

// Floats as unsigned integers in the same order.
DEVICE uint32_t order_key(float x) {
  uint32_t bits = float_bits(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Penalties as vLLM and OpenAI define them, in place. Row rows[i] has seen tokens starts[i] to starts[i + 1]
// of `tokens`, each once, and given them `counts` times (0: they are in the prompt only). Grid: listed rows.
KERNEL __launch_bounds__(kThreads)
    penalise(float* __restrict__ logits, const int64_t* __restrict__ rows, const int64_t* __restrict__ starts,
             const int* __restrict__ tokens, const int* __restrict__ counts,
             const float* __restrict__ repetition, const float* __restrict__ presence,
             const float* __restrict__ frequency, int64_t logits_stride, int, int, int) {
  int row = static_cast<int>(blockIdx.x);
  logits += rows[row] * logits_stride;
  for (int64_t i = starts[row] + threadIdx.x; i < starts[row + 1]; i += kThreads) {
    float* logit = logits + tokens[i];
    float value = *logit, count = static_cast<float>(counts[i]);
    value = value > 0 ? value / repetition[row] : value * repetition[row];
    *logit = value - frequency[row] * count - (count > 0 ? presence[row] : 0);
  }
}

// -inf for tokens whose bit is 0, in place; the mask of row rows[i] is row i of `bitmask`, the lowest bit of
// a word first. Grid: (masks, pieces of kThreads * 8 tokens).
KERNEL __launch_bounds__(kThreads)
    apply_bitmask(float* __restrict__ logits, const int64_t* __restrict__ rows,
                  const int* __restrict__ bitmask, int64_t logits_stride, int64_t mask_stride, int, int,
                  int vocab_size) {
  logits += rows[blockIdx.x] * logits_stride;
  bitmask += blockIdx.x * mask_stride;
  int first = static_cast<int>(blockIdx.y) * kThreads * 8, end = min_of(first + kThreads * 8, vocab_size);
  for (int i = first + static_cast<int>(threadIdx.x); i < end; i += kThreads)
    if (!(bitmask[i / 32] >> i % 32 & 1)) logits[i] = kNegativeInfinity;
}

struct Best {
  float value;
  int token;

  // The larger value is better; of equal ones the smaller token, whatever the order of comparison.
  DEVICE bool better_than(Best other) const {
    return value > other.value || (value == other.value && token < other.token);
  }
};

// The best of this thread's share of a row among those that `last` is better than.
DEVICE Best best_after(const float* logits, int vocab_size, Best last) {
  Best best{kNegativeInfinity, vocab_size};
  for (int i = static_cast<int>(threadIdx.x); i < vocab_size; i += kThreads) {
    Best here{logits[i], i};
    if (last.better_than(here) && here.better_than(best)) best = here;
  }
  return best;
}

// The `count` likeliest tokens of each row in falling order, and their log-probabilities (unless null). Each
// thread holds the best of its share; the one whose token was taken looks for its next. Grid: rows.
KERNEL __launch_bounds__(kThreads)
    greedy(int64_t* __restrict__ tokens, float* __restrict__ logprobs, const float* __restrict__ logits,
           int64_t logits_stride, int, int count, int vocab_size) {
  SHARED(float[kWarps], values);
  SHARED(int[kWarps], indices);
  logits += blockIdx.x * logits_stride;
  int64_t first = static_cast<int64_t>(blockIdx.x) * count;
  Best mine = best_after(logits, vocab_size, {kInfinity, -1});
  float largest = max_over_block(values, mine.value), log_sum = 0;
  if (logprobs) {
    float sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < vocab_size; i += kThreads)
      sum += exp2_fast((logits[i] - largest) * 1.4426950408889634f);
    log_sum = logf(sum_over_block(values, sum));
  }
  for (int i = 0; i < count; i++) {
    float value = i == 0 ? largest : max_over_block(values, mine.value);
    int token = over_block(indices, mine.value == value ? mine.token : vocab_size,
                           [](int a, int b) { return min_of(a, b); });
    if (threadIdx.x == 0) {
      tokens[first + i] = min_of(token, vocab_size - 1);  // a row of NaN has no likeliest
      if (logprobs) logprobs[first + i] = value - largest - log_sum;
    }
    if (mine.token == token) mine = best_after(logits, vocab_size, mine);
  }
}

// Probability mass as integers: sums don't depend on the order, so neither does the token. NaN has none.
DEVICE uint64_t mass_of(float logit, float largest, float scale) {
  float mass = exp2_fast((logit - largest) * scale);
  return mass > 0 ? static_cast<uint64_t>(mass * 4294967296.0f) : 0;
}

struct FilterShared {
  uint64_t mass[kBins];
  int count[kBins];
  uint64_t remaining_mass;
  int remaining_count;
  uint32_t prefix;
};

struct Row {
  const float* logits;
  int vocab_size;
  float largest, scale;

  template <class Body>
  DEVICE void each(Body body) const {
    for (int i = static_cast<int>(threadIdx.x); i < vocab_size; i += kThreads) body(i, logits[i]);
  }
  DEVICE uint64_t mass(float logit) const { return mass_of(logit, largest, scale); }
};

// The key of the last token kept when the tokens are taken in falling order until `count` of them or the mass
// `mass` is reached: a radix search, eight bits of the key a round.
DEVICE uint32_t search_threshold(const Row& row, FilterShared& shared, uint32_t at_least, int count,
                                 uint64_t mass) {
  if (threadIdx.x == 0) {
    shared.prefix = 0;
    shared.remaining_count = count;
    shared.remaining_mass = mass;
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) {
      shared.mass[i] = 0;
      shared.count[i] = 0;
    }
    __syncthreads();
    uint32_t above = shift == 24 ? 0 : ~0u << (shift + 8);
    row.each([&](int, float logit) {
      uint32_t key = order_key(logit);
      if (key < at_least || (key & above) != shared.prefix) return;
      atomicAdd(&shared.mass[key >> shift & (kBins - 1)], row.mass(logit));
      atomicAdd(&shared.count[key >> shift & (kBins - 1)], 1);
    });
    __syncthreads();
    if (threadIdx.x == 0) {
      int bin = kBins - 1;
      while (bin > 0 && shared.count[bin] < shared.remaining_count &&
             shared.mass[bin] < shared.remaining_mass) {
        shared.remaining_count -= shared.count[bin];
        shared.remaining_mass -= shared.mass[bin];
        bin--;
      }
      shared.prefix |= static_cast<uint32_t>(bin) << shift;
    }
    __syncthreads();
  }
  return shared.prefix;
}

DEVICE uint64_t shuffle64(uint64_t value, int mask) {
  uint32_t low = shuffle_xor(static_cast<uint32_t>(value), mask);
  return low | static_cast<uint64_t>(shuffle_xor(static_cast<uint32_t>(value >> 32), mask)) << 32;
}

DEVICE uint64_t warp_sum(uint64_t value) {
  for (int mask = 1; mask < kWarpSize; mask *= 2) value += shuffle64(value, mask);
  return value;
}

struct SampleShared {
  FilterShared filter;
  float largest[kWarps];
  uint64_t warp_mass[kWarps];
};

// The tokens that top-k, top-p and min-p leave: those of at least this key and this mass.
struct Kept {
  uint32_t key;
  uint64_t mass;

  DEVICE uint64_t mass_of(const Row& row, float logit) const {
    uint64_t own = row.mass(logit);
    return order_key(logit) >= key && own >= mass ? own : 0;
  }
};

// The mass of what is kept of each warp's share of the vocabulary, in `warp_mass`; returns the share's size.
DEVICE int share_out(const Row& row, const Kept& kept, uint64_t (&warp_mass)[kWarps]) {
  int share = divide_up(row.vocab_size, kThreads) * kWarpSize;
  int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  uint64_t mass = 0;
  for (int i = warp * share + static_cast<int>(lane_index()); i < min_of((warp + 1) * share, row.vocab_size);
       i += kWarpSize)
    mass += kept.mass_of(row, row.logits[i]);
  mass = warp_sum(mass);
  if (lane_index() == 0) warp_mass[warp] = mass;
  __syncthreads();
  return share;
}

DEVICE uint64_t total_of(const uint64_t (&warp_mass)[kWarps]) {
  uint64_t total = 0;
  for (int i = 0; i < kWarps; i++) total += warp_mass[i];
  return total;
}

// One warp: the first token of [first, end) at which the running mass exceeds `target`.
DEVICE int find_token(const Row& row, const Kept& kept, int first, int end, uint64_t target) {
  for (; first < end; first += kWarpSize) {
    int i = first + static_cast<int>(lane_index());
    uint64_t own = i < end ? kept.mass_of(row, row.logits[i]) : 0, total = warp_sum(own);
    if (target < total) {
      for (int lane = 0; lane < kWarpSize; lane++) {
        uint32_t low = shuffle(static_cast<uint32_t>(own), lane);
        uint64_t mass = low | static_cast<uint64_t>(shuffle(static_cast<uint32_t>(own >> 32), lane)) << 32;
        if (target < mass) return first + lane;
        target -= mass;
      }
    }
    target -= total;
  }
  return end - 1;  // not reached: the range holds more mass than `target`
}

// One token a row, drawn by inverse transform: the token at which the running mass, in the order of the
// vocabulary, passes `uniform` of the total. Filters as in vLLM: the `top_k` likeliest (0: all; of tokens
// that tie for the last place, all), of those the fewest whose mass reaches `top_p`, of those the ones at
// least `min_p` times as likely as the likeliest. Temperatures are above 0.
KERNEL __launch_bounds__(kThreads)
    sample(int64_t* __restrict__ tokens, const float* __restrict__ logits,
           const float* __restrict__ temperature, const int* __restrict__ top_k,
           const float* __restrict__ top_p, const float* __restrict__ min_p,
           const double* __restrict__ uniform, int64_t logits_stride, int, int vocab_size) {
  SHARED(SampleShared, shared);
  int64_t index = blockIdx.x;
  Row row{logits + index * logits_stride, vocab_size, kNegativeInfinity, 0};
  float largest = kNegativeInfinity;
  row.each([&](int, float logit) { largest = fmaxf(largest, logit); });
  row.largest = max_over_block(shared.largest, largest);
  row.scale = 1.4426950408889634f / temperature[index];

  Kept kept{0, 1};
  constexpr uint64_t kAnyMass = ~0ull;
  constexpr int kAnyCount = 0x7FFFFFFF;
  if (top_k[index] > 0 && top_k[index] < vocab_size)
    kept.key = search_threshold(row, shared.filter, 0, top_k[index], kAnyMass);
  if (top_p[index] < 1) {
    share_out(row, kept, shared.warp_mass);
    float wanted = static_cast<float>(total_of(shared.warp_mass)) * top_p[index];
    uint64_t mass = wanted < 1 ? 1 : static_cast<uint64_t>(wanted);
    kept.key = search_threshold(row, shared.filter, kept.key, kAnyCount, mass);
  }
  kept.mass = 1 + static_cast<uint64_t>(min_p[index] * 4294967295.0f);

  int share = share_out(row, kept, shared.warp_mass);
  uint64_t total = total_of(shared.warp_mass);
  if (total == 0) {  // nothing to draw from: a row of NaN, or all of it is forbidden
    if (threadIdx.x == 0) tokens[index] = vocab_size - 1;
    return;
  }
  uint64_t target = static_cast<uint64_t>(static_cast<double>(total) * uniform[index]);
  target = target < total ? target : total - 1;
  int owner = 0;
  for (; target >= shared.warp_mass[owner]; owner++) target -= shared.warp_mass[owner];
  if (static_cast<int>(threadIdx.x) / kWarpSize != owner) return;
  int token = find_token(row, kept, owner * share, min_of((owner + 1) * share, vocab_size), target);
  if (lane_index() == 0) tokens[index] = token;
}

// Paged attention for few queries a sequence: decoding, and the verification of drafted tokens.
//
// Bound by reading the KV cache once, so: a sequence's keys are cut into runs that fill the GPU (split-KV,
// "flash decoding", Dao et al. 2023), tensor cores take the whole GQA group in one product, and every warp
// keeps a ring of cp.async copies in flight. One unit of work is (a run of KV blocks, KV head, row tile);
// its warps take every kWarps-th block, each with its own ring, and meet only at the end. The last run of a
// sequence to finish merges what the runs left.
//
// A result depends on its own sequence only: runs start at fixed places and are merged in order, however
// many blocks of threads the batch happens to fill.
#include "attention.cuh"
#include "work_item.cuh"

constexpr int kWarps = kTileBytes > 4096 ? 2 : 4;  // keeps the rings of one block of threads below 100 KiB
// Queries of the largest heads don't fit the registers next to the outputs: they wait in shared memory.
constexpr bool kParkQuery = kHeadDim > 128;
constexpr int kStages = kParkQuery ? 2 : 3;
constexpr int kThreads = kWarps * kWarpSize;
// Blocks of threads that should fit a multiprocessor: bounds the registers (docs/kernels.md, "Occupancy").
constexpr int kResident = kHeadDim <= 64 ? 4 : kHeadDim <= 96 || (kFp8 && kHeadDim <= 128) ? 3 : 2;
constexpr int kMergeStride = kHeadDim + 8;  // eight rows of a column fall into different banks
constexpr int kMinRunBlocks = 32;
constexpr int kMaxRuns = 64;  // of a sequence: bounds the memory that runs leave their outputs in

struct WarpOutputs {
  float values[kWarps][kRowsPerTile][kMergeStride];
  float largest[kWarps][kRowsPerTile], sum[kWarps][kRowsPerTile];
};

struct DecodeShared {
  union {
    Tile ring[kWarps][kStages][2];  // keys, values
    WarpOutputs outputs;            // once every ring is drained
  };
  Fragment query[kParkQuery ? kSteps : 1][kWarpSize];
  ItemSearch<kWarps> search;
  bool is_last;
};
static_assert(sizeof(DecodeShared) == SHARED_BYTES, "attention_plan.py computes the shared memory");

// The KV blocks [first, end) the decode kernel reads for a sequence, and the runs they are cut into: run i
// is [i * run_blocks, (i + 1) * run_blocks), for first_run <= i < first_run + num_runs.
struct Runs {
  int first, end, run_blocks, first_run, num_runs;

  DEVICE Runs(const Attention& op, const Sequence& sequence) {
    first = sequence.first_key(0, op.window) / kBlockSize;
    end = divide_up(sequence.kv_len, kBlockSize);
    run_blocks = kMinRunBlocks;
    while (end > run_blocks * kMaxRuns) run_blocks *= 2;
    first_run = first / run_blocks;
    num_runs = max_of(divide_up(end, run_blocks) - first_run, 1);  // one, to write zeros, if there is no key
    if (sequence.num_queries <= 0 || sequence.num_queries > op.max_decode_queries) num_runs = 0;
  }
};

// A unit of work: one run of one sequence, for one KV head and row tile.
struct Unit {
  int sequence, run;
  int item;  // the number of the sequence's first run among the runs of the batch
  int kv_head, row_tile;
};

// The block ids one warp needs, 32 at a time, so that no copy waits for a read of the table.
class TableReader {
 public:
  DEVICE TableReader(const int* table, int first, int end) : table_(table), first_(first), end_(end) {}

  // The id of the warp's i-th block, asked for in order.
  DEVICE int next(int i) {
    if (i % kWarpSize == 0) {
      int block = first_ + (i + static_cast<int>(lane_index())) * kWarps;
      ids_ = block < end_ ? table_[block] : 0;
    }
    return shuffle(ids_, i % kWarpSize);
  }

 private:
  const int* table_;
  int first_, end_, ids_ = 0;
};

// The blocks of one run that one warp takes: those whose number is the warp's modulo kWarps.
class BlockStream {
 public:
  DEVICE BlockStream(const Attention& op, const Sequence& sequence, const Runs& runs, const Unit& unit,
                     int warp)
      : heads_(op.kv_cache + unit.kv_head * kTileValues),
        cache_stride_(op.cache_stride),
        values_offset_(static_cast<int64_t>(op.num_kv_heads) * kTileValues),
        oldest_key_(sequence.first_key(0, op.window)),
        kv_len_(sequence.kv_len),
        first_(max_of(runs.first, unit.run * runs.run_blocks) / kWarps * kWarps + warp),
        end_(min_of(runs.end, (unit.run + 1) * runs.run_blocks)),
        table_(op.block_table + unit.sequence * op.table_stride, first_, end_) {}

  DEVICE int first_key(int i) const { return (first_ + i * kWarps) * kBlockSize; }
  DEVICE bool has(int i) const { return first_ + i * kWarps < end_; }

  // Block i to `tiles` (keys, values); an empty group beyond the last, so that waiting goes by count.
  DEVICE void start_copy(int i, Tile (&tiles)[2]) {
    int64_t id = table_.next(i);
    if (has(i)) {
      const Cache* keys = heads_ + id * cache_stride_;
      load_tile(tiles[0], keys, oldest_key_ - first_key(i), kv_len_ - first_key(i));
      load_tile(tiles[1], keys + values_offset_, oldest_key_ - first_key(i), kv_len_ - first_key(i));
    }
    cp_async_commit();
  }

 private:
  const Cache* heads_;
  int64_t cache_stride_, values_offset_;
  int oldest_key_, kv_len_, first_, end_;
  TableReader table_;
};

// Attention of one row tile over one warp's blocks.
template <class Query>
DEVICE void attend(const Attention& op, const RowMask& mask, BlockStream& stream, Tile (&ring)[kStages][2],
                   Query query, float (&o)[1][kColumns][4], Softmax& softmax) {
  ScoreScale scale(op);
  for (int i = 0; stream.has(i); i++) {
    cp_async_wait<kStages - 2>();
    __syncwarp();  // every lane's part of block i is in, and no lane still reads block i - 1
    stream.start_copy(i + kStages - 1, ring[(i + kStages - 1) % kStages]);
    float scores[1][2][4];
    multiply_keys<1, 1>(scores, &ring[i % kStages][0], query);
    scale.cap(scores[0]);
    mask.apply(scores[0], stream.first_key(i));
    softmax.update(scores[0], scale.factor, o[0]);
    multiply_values<1, 1>(o, scores, &ring[i % kStages][1]);
  }
  softmax.finish();
}

// Fills the ring, fetches the queries meanwhile, and attends.
DEVICE void attend_unit(const Attention& op, const Sequence& sequence, const Runs& runs, const Unit& unit,
                        DecodeShared& shared, float (&o)[1][kColumns][4], Softmax& softmax) {
  int warp = static_cast<int>(threadIdx.x) / kWarpSize, first_row = unit.row_tile * kRowsPerTile;
  Tile(&ring)[kStages][2] = shared.ring[warp];
  BlockStream stream(op, sequence, runs, unit, warp);
  for (int i = 0; i < kStages - 1; i++) stream.start_copy(i, ring[i]);
  QueryRows rows(op, sequence, unit.kv_head, first_row);
  RowMask mask(op, sequence, first_row);
  if constexpr (kParkQuery) {
    for (int step = warp; step < kSteps; step += kWarps)
      shared.query[step][lane_index()] = rows.fragment(step);
    __syncthreads();
    auto query = [&](int, int step) { return shared.query[step][lane_index()]; };
    attend(op, mask, stream, ring, query, o, softmax);
  } else {
    Fragment fragments[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; step++) fragments[step] = rows.fragment(step);
    attend(op, mask, stream, ring, [&](int, int step) { return fragments[step]; }, o, softmax);
  }
}

DEVICE void publish(WarpOutputs& outputs, float (&o)[kColumns][4], const Softmax& softmax) {
  int warp = static_cast<int>(threadIdx.x) / kWarpSize, row = static_cast<int>(lane_index()) / 4;
  restore_order(o);
#pragma unroll
  for (int n = 0; n < kColumns; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) outputs.values[warp][row + i / 2 * 8][first_dim(n) + i % 2] = o[n][i];
  if (lane_index() % 4 == 0)
    for (int i = 0; i < 2; i++) {
      outputs.largest[warp][row + 8 * i] = softmax.largest[i];
      outputs.sum[warp][row + 8 * i] = softmax.sum[i];
    }
}

// Two neighbouring values of an output row, as parts are merged into it.
struct MergedPair {
  float largest = kNegativeInfinity, sum = 0, value[2] = {0, 0};

  DEVICE void add(float part_largest, float part_sum, float value0, float value1) {
    float most = fmaxf(largest, part_largest);
    if (most == kNegativeInfinity) return;  // neither has seen a key
    float mine = exp2_fast(largest - most), theirs = exp2_fast(part_largest - most);
    largest = most;
    sum = sum * mine + part_sum * theirs;
    value[0] = value[0] * mine + value0 * theirs;
    value[1] = value[1] * mine + value1 * theirs;
  }

  DEVICE void store(const Attention& op, Element* to) const {
    float scale = sum > 0 ? op.value_scale * kCacheUnit / sum : 0;
    *reinterpret_cast<uint32_t*>(to) = pack(Element{}, value[0] * scale, value[1] * scale);
  }
};

DEVICE MergedPair merge_warps(const WarpOutputs& outputs, int row, int dim) {
  MergedPair merged;
  for (int warp = 0; warp < kWarps; warp++)
    merged.add(outputs.largest[warp][row], outputs.sum[warp][row], outputs.values[warp][row][dim],
               outputs.values[warp][row][dim + 1]);
  return merged;
}

// Whether this block of threads is the last of `count` here. What the others wrote before is visible after.
DEVICE bool is_last_of(int* arrivals, int count, bool& shared_answer) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // what the barrier brought together goes out before the arrival
    shared_answer = atomicAdd(arrivals, 1) == count - 1;
    if (shared_answer) *arrivals = 0;  // as the next launch must find it
    __threadfence();                   // and nothing below is read before it
  }
  __syncthreads();
  return shared_answer;
}

// Where the runs of a sequence leave their outputs: for each unit of work, kHeadDim unnormalised values, the
// largest score and the sum for each of `rows` rows.
struct Scratch {
  float* partials;
  int* arrivals;  // one for each (sequence, KV head, row tile)
  int rows, row_tiles;

  DEVICE float* row(const Attention& op, const Unit& unit, int run, int index) const {
    int64_t place =
        (static_cast<int64_t>(unit.item + run) * op.num_kv_heads + unit.kv_head) * row_tiles + unit.row_tile;
    return partials + (place * rows + index) * (kHeadDim + 2);
  }
  DEVICE int* arrivals_of(const Attention& op, const Unit& unit) const {
    return arrivals + (unit.sequence * op.num_kv_heads + unit.kv_head) * row_tiles + unit.row_tile;
  }
};

DEVICE void work(const Attention& op, const Scratch& scratch, const Unit& unit, DecodeShared& shared) {
  Sequence sequence(op, unit.sequence);
  Runs runs(op, sequence);
  int first_row = unit.row_tile * kRowsPerTile;
  int num_rows = min_of(sequence.num_queries * op.group() - first_row, kRowsPerTile);
  if (num_rows <= 0) return;

  float o[1][kColumns][4] = {};
  Softmax softmax;
  attend_unit(op, sequence, runs, unit, shared, o, softmax);
  __syncthreads();  // the rings are drained: their memory takes the outputs
  publish(shared.outputs, o[0], softmax);
  __syncthreads();

  auto each_pair = [&](auto body) {
    for (int i = static_cast<int>(threadIdx.x); i < num_rows * (kHeadDim / 2); i += kThreads)
      body(i / (kHeadDim / 2), i % (kHeadDim / 2) * 2);
  };
  auto store = [&](const MergedPair& merged, int row, int dim) {
    merged.store(op, op.out + row_offset(op, sequence, unit.kv_head, first_row + row, op.out_stride) + dim);
  };
  if (runs.num_runs == 1) {
    each_pair([&](int row, int dim) { store(merge_warps(shared.outputs, row, dim), row, dim); });
    return;
  }
  each_pair([&](int row, int dim) {
    float* to = scratch.row(op, unit, unit.run - runs.first_run, row);
    MergedPair merged = merge_warps(shared.outputs, row, dim);
    for (int i = 0; i < 2; i++) to[dim + i] = merged.value[i];
    if (dim == 0) to[kHeadDim] = merged.largest;
    if (dim == 0) to[kHeadDim + 1] = merged.sum;
  });
  if (!is_last_of(scratch.arrivals_of(op, unit), runs.num_runs, shared.is_last)) return;
  each_pair([&](int row, int dim) {
    MergedPair merged;
    for (int run = 0; run < runs.num_runs; run++) {
      const float* from = scratch.row(op, unit, run, row);
      merged.add(from[kHeadDim], from[kHeadDim + 1], from[dim], from[dim + 1]);
    }
    store(merged, row, dim);
  });
}

// Grid: as many blocks of threads as the GPU holds at once, or fewer; each takes an equal share of the
// units. `partials` has room for the batch's runs (attention_plan.py), `arrivals` is zero before and after.
KERNEL __launch_bounds__(kThreads, kResident)
    paged_attention_decode(ATTENTION_PARAMETERS, float* partials, int* arrivals, int row_tiles,
                           int partial_rows) {
  DYNAMIC_SHARED(DecodeShared, shared);
  Attention op{ATTENTION_ARGUMENTS};
  auto num_runs = [&](int i) { return Runs(op, Sequence(op, i)).num_runs; };
  int units_per_run = num_kv_heads * row_tiles;
  int64_t units =
      static_cast<int64_t>(sum_of<kWarps>(shared.search, num_sequences, num_runs)) * units_per_run;
  int64_t first = units * blockIdx.x / gridDim.x, end = units * (blockIdx.x + 1) / gridDim.x;
  if (first == end) return;

  Item item =
      find_item<kWarps>(shared.search, num_sequences, static_cast<int>(first / units_per_run), num_runs);
  for (int64_t i = first; i < end; i++) {
    int within = static_cast<int>(i % units_per_run);
    if (within == 0 && i != first) item.advance(num_runs);
    int run = Runs(op, Sequence(op, item.sequence)).first_run + item.offset;
    work(op, {partials, arrivals, partial_rows, row_tiles},
         {item.sequence, run, item.first_item, within / row_tiles, within % row_tiles}, shared);
    __syncthreads();  // before the next unit's copies land where this one's outputs were
  }
}

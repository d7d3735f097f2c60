// Paged attention for many queries a sequence: whole prompts, chunks of prompts over an existing prefix, and
// mixtures of both. FlashAttention-2 (Dao, 2023) over a paged cache.
//
// Bound by the tensor cores, so: a block of threads takes 64 or 128 packed rows (query, head of the group)
// of one KV head, and each of its four warps 16 or 32 of them, so that a fragment of keys or values read
// from shared memory feeds two products. Keys and values come four blocks at a time; the copy of the next
// runs under the product on the last.
#include "attention.cuh"
#include "work_item.cuh"

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
// Row tiles of a warp: two where the outputs fit the registers. With e4m3 a fragment is half the bytes to
// read, so one is enough, and widening takes registers.
constexpr int kRowTiles = kHeadDim > 128 || (kFp8 && kHeadDim == 128) ? 1 : 2;
constexpr int kWarpRows = kRowTiles * kRowsPerTile;
constexpr int kRows = kWarps * kWarpRows;
constexpr int kBlocks = kWarps;  // KV blocks in flight: each warp copies one
constexpr int kKeys = kBlocks * kBlockSize;

// What a block of threads attends to: packed rows from `first_row` on, and the KV blocks [first, end) that
// they see.
struct RowBlock {
  Sequence sequence;
  int first_row, kv_head, first, end;
  const int* table;
  ScoreScale scale;

  DEVICE int last_token(const Attention& op, int end_row) const {
    return min_of((end_row - 1) / op.group(), sequence.num_queries - 1);
  }
};

struct PrefillShared {
  Fragment query[kWarps][kRowTiles][kSteps][kWarpSize];  // each lane writes and reads its own
  Tile keys[kBlocks];
  Tile values[kBlocks];
  RowBlock rows;  // here because registers are short
  ItemSearch<kWarps> search;
};
static_assert(sizeof(PrefillShared) == SHARED_BYTES, "attention_plan.py computes the shared memory");

// Copies `kBlocks` KV blocks from `first` on; those beyond the end become zeros.
DEVICE void start_copy(const Attention& op, const RowBlock& rows, int first, bool values, Tile* tiles) {
  int warp = static_cast<int>(threadIdx.x) / kWarpSize, block = first + warp;
  int end_token = block < rows.end ? rows.sequence.kv_len - block * kBlockSize : 0;
  int64_t id = block < rows.end ? rows.table[block] : 0;
  int head = rows.kv_head + (values ? op.num_kv_heads : 0);
  load_tile(tiles[warp], op.kv_cache + id * op.cache_stride + head * kTileValues, 0, end_token);
  cp_async_commit();
}

// Whether some row of the warp may not see some of the kKeys keys from `first_key` on.
DEVICE bool needs_mask(const Attention& op, const RowBlock& rows, int first_row, int first_key) {
  int last_token = rows.last_token(op, first_row + kWarpRows);
  return first_key + kKeys > rows.sequence.end_key(first_row / op.group()) ||
         first_key < rows.sequence.first_key(last_token, op.window);
}

// One warp's rows. Every warp walks the same keys, also those that only other warps' rows may see: the
// barriers are the block's.
DEVICE void attend(const Attention& op, PrefillShared& shared, float (&o)[kRowTiles][kColumns][4],
                   Softmax (&softmax)[kRowTiles]) {
  const RowBlock& rows = shared.rows;
  int warp = static_cast<int>(threadIdx.x) / kWarpSize, first_row = rows.first_row + warp * kWarpRows;
  auto query = [&](int m, int step) { return shared.query[warp][m][step][lane_index()]; };
  start_copy(op, rows, rows.first, false, shared.keys);
  for (int first = rows.first; first < rows.end; first += kBlocks) {
    cp_async_wait<0>();
    __syncthreads();  // these keys are in, and the last values are no longer read
    start_copy(op, rows, first, true, shared.values);
    float scores[kRowTiles][2 * kBlocks][4];
    multiply_keys<kRowTiles, kBlocks>(scores, shared.keys, query);
    bool masked = needs_mask(op, rows, first_row, first * kBlockSize);
#pragma unroll
    for (int m = 0; m < kRowTiles; m++) {
      rows.scale.cap(scores[m]);
      if (masked)
        RowMask(op, rows.sequence, first_row + m * kRowsPerTile).apply(scores[m], first * kBlockSize);
      softmax[m].update(scores[m], rows.scale.factor, o[m]);
    }
    cp_async_wait<0>();
    __syncthreads();  // these values are in, and the keys are no longer read
    if (first + kBlocks < rows.end) start_copy(op, rows, first + kBlocks, false, shared.keys);
    multiply_values<kRowTiles, kBlocks>(o, scores, shared.values);
  }
}

DEVICE void store(const Attention& op, const Sequence& sequence, int kv_head, int first_row,
                  float (&o)[kColumns][4], Softmax& softmax) {
  softmax.finish();
  restore_order(o);
  for (int i = 0; i < 2; i++) {
    int row = first_row + static_cast<int>(lane_index()) / 4 + 8 * i;
    if (row >= sequence.num_queries * op.group()) continue;
    float factor = softmax.sum[i] > 0 ? op.value_scale * kCacheUnit / softmax.sum[i] : 0;
    Element* to = op.out + row_offset(op, sequence, kv_head, row, op.out_stride);
#pragma unroll
    for (int n = 0; n < kColumns; n++)
      *reinterpret_cast<uint32_t*>(to + first_dim(n)) =
          pack(Element{}, o[n][2 * i] * factor, o[n][2 * i + 1] * factor);
  }
}

// The last rows of a sequence, which see the most keys, come first.
DEVICE RowBlock row_block(const Attention& op, const Item& item, int num_row_blocks) {
  int first_row = (num_row_blocks - 1 - item.offset) * kRows;
  RowBlock rows{Sequence(op, item.sequence),
                first_row,
                static_cast<int>(blockIdx.x),
                0,
                0,
                op.block_table + item.sequence * op.table_stride,
                ScoreScale(op)};
  rows.first = rows.sequence.first_key(first_row / op.group(), op.window) / kBlockSize;
  rows.end = divide_up(rows.sequence.end_key(rows.last_token(op, first_row + kRows)), kBlockSize);
  return rows;
}

// Grid: (KV heads, row blocks); the second is an upper bound.
KERNEL __launch_bounds__(kThreads) paged_attention_prefill(ATTENTION_PARAMETERS) {
  DYNAMIC_SHARED(PrefillShared, shared);
  Attention op{ATTENTION_ARGUMENTS};
  auto num_row_blocks = [&](int i) {
    Sequence sequence(op, i);
    return sequence.num_queries > op.max_decode_queries ? divide_up(sequence.num_queries * op.group(), kRows)
                                                        : 0;
  };
  Item item = find_item<kWarps>(shared.search, num_sequences, static_cast<int>(blockIdx.y), num_row_blocks);
  if (item.sequence < 0) return;
  if (threadIdx.x == 0) shared.rows = row_block(op, item, num_row_blocks(item.sequence));
  __syncthreads();

  const RowBlock& rows = shared.rows;
  int warp = static_cast<int>(threadIdx.x) / kWarpSize, first_row = rows.first_row + warp * kWarpRows;
#pragma unroll
  for (int m = 0; m < kRowTiles; m++) {
    QueryRows query(op, rows.sequence, rows.kv_head, first_row + m * kRowsPerTile);
    for (int step = 0; step < kSteps; step++)
      shared.query[warp][m][step][lane_index()] = query.fragment(step);
  }
  float o[kRowTiles][kColumns][4] = {};
  Softmax softmax[kRowTiles];
  attend(op, shared, o, softmax);
#pragma unroll
  for (int m = 0; m < kRowTiles; m++)
    store(op, rows.sequence, rows.kv_head, first_row + m * kRowsPerTile, o[m], softmax[m]);
}

// What the decode and the prefill kernel share: how rows are packed, where queries lie in registers, masks,
// the two matrix products and the running softmax between them (Milakov and Gimelshein, 2018; tiled as in
// Dao, FlashAttention-2, 2023).
//
// The queries of one sequence that read the same KV head are packed into rows: row r is query r / G of the
// sequence, head r % G of the group, with G = Hq / Hkv. Rows are taken 16 at a time, the M of mma. In its
// accumulator layout a lane holds rows g = lane / 4 and g + 8 of a row tile, and of every 8-column tile
// columns 2t and 2t + 1, with t = lane % 4.
#pragma once
#include "kv_tile.cuh"

constexpr int kRowsPerTile = 16;
constexpr float kLog2E = 1.4426950408889634f;

// The arguments both kernels take: pointers, strides (in elements), sizes and scalars in the order of the
// signature table. Sizes that the kernels don't need have no name.
#define ATTENTION_PARAMETERS                                                                           \
  Element *__restrict__ out, const Element *__restrict__ query, const Cache *__restrict__ kv_cache,    \
      const int *__restrict__ block_table, const int *__restrict__ query_starts,                       \
      const int *__restrict__ kv_lens, int64_t out_stride, int64_t query_stride, int64_t cache_stride, \
      int64_t table_stride, int, int num_sequences, int, int, int num_heads, int num_kv_heads, int,    \
      float scale, int window, float soft_cap, float key_scale, float value_scale, int max_decode_queries
#define ATTENTION_ARGUMENTS                                                                                  \
  out, query, kv_cache, block_table, query_starts, kv_lens, out_stride, query_stride, cache_stride,          \
      table_stride, num_sequences, num_heads, num_kv_heads, scale, window, soft_cap, key_scale, value_scale, \
      max_decode_queries

struct Attention {
  Element* out;
  const Element* query;
  const Cache* kv_cache;
  const int* block_table;
  const int* query_starts;
  const int* kv_lens;
  int64_t out_stride, query_stride, cache_stride, table_stride;  // elements from one row to the next
  int num_sequences, num_heads, num_kv_heads;
  float scale;
  int window;                    // 0: every earlier key
  float soft_cap;                // 0: none
  float key_scale, value_scale;  // what a cached value is multiplied by
  int max_decode_queries;        // sequences with more queries than this are the prefill kernel's

  DEVICE int group() const { return num_heads / num_kv_heads; }
};

// One sequence of the batch. Keys are numbered from the sequence's start.
struct Sequence {
  int first_query, num_queries, kv_len;

  DEVICE Sequence(const Attention& op, int index)
      : first_query(op.query_starts[index]),
        num_queries(op.query_starts[index + 1] - first_query),
        kv_len(op.kv_lens[index]) {}

  // The keys query `token` may see are [first_key, end_key).
  DEVICE int end_key(int token) const { return kv_len - num_queries + token + 1; }
  DEVICE int first_key(int token, int window) const {
    return window > 0 ? max_of(end_key(token) - window, 0) : 0;
  }
};

// The keys that the two rows of a lane may see; none where the row doesn't exist.
struct RowMask {
  int first[2], end[2];

  DEVICE RowMask(const Attention& op, const Sequence& sequence, int first_row) {
    for (int i = 0; i < 2; i++) {
      int token = (first_row + static_cast<int>(lane_index()) / 4 + 8 * i) / op.group();
      first[i] = sequence.first_key(token, op.window);
      end[i] = token < sequence.num_queries ? sequence.end_key(token) : 0;
    }
  }

  // Removes what a row may not see from the scores of kTiles x 8 keys that start at `first_key`.
  template <int kTiles>
  DEVICE void apply(float (&scores)[kTiles][4], int first_key) const {
#pragma unroll
    for (int n = 0; n < kTiles; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int key = first_key + n * 8 + static_cast<int>(lane_index()) % 4 * 2 + i % 2;
        if (key < first[i / 2] || key >= end[i / 2]) scores[n][i] = kNegativeInfinity;
      }
  }
};

// Where row `row` of a (sequence, KV head) lies in `query` or `out`.
DEVICE int64_t row_offset(const Attention& op, const Sequence& sequence, int kv_head, int row,
                          int64_t stride) {
  int group = op.group();
  return (sequence.first_query + row / group) * stride + (kv_head * group + row % group) * kHeadDim;
}

// Two neighbouring query values as mma wants them.
DEVICE uint32_t query_pair(const Element* from) {
  uint32_t pair = *reinterpret_cast<const uint32_t*>(from);
  if constexpr (sizeof(Cache) == 1)
    return pack(Operand{}, low_float(Element{}, pair), high_float(Element{}, pair));
  return pair;
}

// A lane's part of the A operand: a row tile by one step of 16 dims.
struct alignas(16) Fragment {
  uint32_t a[4];
};

// The two rows of a lane in `query`.
class QueryRows {
 public:
  DEVICE QueryRows(const Attention& op, const Sequence& sequence, int kv_head, int first_row) {
    for (int i = 0; i < 2; i++) {
      int index = first_row + static_cast<int>(lane_index()) / 4 + 8 * i;
      bool exists = index < sequence.num_queries * op.group();
      row_[i] = exists ? op.query + row_offset(op, sequence, kv_head, index, op.query_stride) : nullptr;
    }
  }

  // Rows g and g + 8, zeros where a row doesn't exist. The order of the dims is that of KeyFragments.
  DEVICE Fragment fragment(int step) const {
    int t = static_cast<int>(lane_index()) % 4;
    int low = step * 16 + (kFp8 ? 4 * t : 2 * t), high = low + (kFp8 ? 2 : 8);
    Fragment result;
    for (int i = 0; i < 2; i++) {
      result.a[i] = row_[i] ? query_pair(row_[i] + low) : 0;
      result.a[i + 2] = row_[i] ? query_pair(row_[i] + high) : 0;
    }
    return result;
  }

 private:
  const Element* row_[2];  // null where it doesn't exist
};

// Unscaled scores of kRowTiles row tiles against kBlocks blocks of keys. `query(row_tile, step)` gives the
// A fragment.
template <int kRowTiles, int kBlocks, class Query>
DEVICE void multiply_keys(float (&scores)[kRowTiles][2 * kBlocks][4], const Tile* keys, Query query) {
#pragma unroll
  for (int m = 0; m < kRowTiles; m++)
#pragma unroll
    for (int n = 0; n < 2 * kBlocks; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) scores[m][n][i] = 0;
#pragma unroll
  for (int step = 0; step < kSteps; step++) {
    Fragment a[kRowTiles];
#pragma unroll
    for (int m = 0; m < kRowTiles; m++) a[m] = query(m, step);
#pragma unroll
    for (int block = 0; block < kBlocks; block++) {
      FragmentPair pair;
      load_keys(pair, keys[block], step);
#pragma unroll
      for (int i = 0; i < 2 * kRowTiles; i++)
        mma(Operand{}, scores[i / 2][2 * block + i % 2], a[i / 2].a, pair.b[i % 2][0], pair.b[i % 2][1]);
    }
  }
}

// Adds probabilities times values to the outputs. The accumulator layout of scores is the A layout of the
// next product, so probabilities never leave the registers.
template <int kRowTiles, int kBlocks>
DEVICE void multiply_values(float (&o)[kRowTiles][kColumns][4], const float (&p)[kRowTiles][2 * kBlocks][4],
                            const Tile* values) {
#pragma unroll
  for (int block = 0; block < kBlocks; block++) {
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; m++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        a[m][i] = pack(Operand{}, p[m][2 * block + i / 2][i % 2 * 2], p[m][2 * block + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int column = 0; column < kColumns; column += 2) {
      FragmentPair pair;
      load_values(pair, values[block], column);
#pragma unroll
      for (int i = 0; i < 2 * kRowTiles; i++)
        mma(Operand{}, o[i / 2][column + i % 2], a[i / 2], pair.b[i % 2][0], pair.b[i % 2][1]);
    }
  }
}

// How a product of a query and a cached key becomes a score in units of log 2.
struct ScoreScale {
  float factor;           // of the scores `update` gets
  float inside, outside;  // of tanh; `outside` 0: no soft cap

  DEVICE explicit ScoreScale(const Attention& op) {
    float scale = op.scale * op.key_scale * kCacheUnit;
    bool capped = op.soft_cap > 0;
    factor = capped ? 1 : scale * kLog2E;
    inside = capped ? 2 * kLog2E * scale / op.soft_cap : 0;
    outside = capped ? op.soft_cap * kLog2E : 0;
  }

  // cap * tanh(score / cap), as Gemma 2 does; tanh.approx is too coarse for caps of 30 to 50.
  template <int kTiles>
  DEVICE void cap(float (&scores)[kTiles][4]) const {
    if (outside == 0) return;
#pragma unroll
    for (int n = 0; n < kTiles; n++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        scores[n][i] = outside - 2 * outside / (exp2_fast(scores[n][i] * inside) + 1);
  }
};

// Largest score so far (log 2 units) and sum of exp2(score - largest) of this lane's columns, for two rows.
struct Softmax {
  float largest[2] = {kNegativeInfinity, kNegativeInfinity};
  float sum[2] = {0, 0};

  // Turns scores into probabilities relative to the new largest score, and shrinks the outputs so far to it.
  template <int kTiles>
  DEVICE void update(float (&scores)[kTiles][4], float factor, float (&o)[kColumns][4]) {
    float shrink[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float most = kNegativeInfinity;
#pragma unroll
      for (int n = 0; n < kTiles; n++) most = fmaxf(most, fmaxf(scores[n][2 * i], scores[n][2 * i + 1]));
      most = fmaxf(largest[i], max_over<4>(most) * factor);
      float base = most == kNegativeInfinity ? 0 : most;  // a row that has seen no key yet
      shrink[i] = exp2_fast(largest[i] - base);
      largest[i] = most;
      sum[i] *= shrink[i];
#pragma unroll
      for (int n = 0; n < kTiles; n++)
#pragma unroll
        for (int j = 2 * i; j < 2 * i + 2; j++) {
          scores[n][j] = exp2_fast(scores[n][j] * factor - base);
          sum[i] += scores[n][j];
        }
    }
#pragma unroll
    for (int n = 0; n < kColumns; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) o[n][i] *= shrink[i / 2];
  }

  // Makes `sum` the whole row's.
  DEVICE void finish() {
    for (int i = 0; i < 2; i++) sum[i] = sum_over<4>(sum[i]);
  }
};

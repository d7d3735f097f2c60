// How a block of threads finds its share of a ragged batch by itself. Lengths are known on the device only
// (a captured CUDA graph is replayed with other lengths), so the grid is an upper bound and every block
// scans the batch: two or three coalesced reads a sequence, from L2.
#pragma once
#include "prim.cuh"

template <int kWarps>
struct ItemSearch {
  int warp_total[kWarps];
  int sequence, offset, first_item;
};

// One of the items that the sequences of a batch have, each `count(i)` of them.
struct Item {
  int sequence;    // negative: there are fewer items
  int offset;      // which of the sequence's items
  int first_item;  // the number of the sequence's first item in the batch

  // To the next item, which must exist.
  template <class Count>
  DEVICE void advance(Count count) {
    if (++offset < count(sequence)) return;
    first_item += offset;
    offset = 0;
    do sequence++;
    while (count(sequence) == 0);
  }
};

DEVICE int inclusive_scan(int value) {
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    int below = shuffle_up(value, distance);
    if (static_cast<int>(lane_index()) >= distance) value += below;
  }
  return value;
}

// The sequence that item `wanted` belongs to when sequence i has `count(i)` of them, in order. All threads
// of the block call it.
template <int kWarps, class Count>
DEVICE Item find_item(ItemSearch<kWarps>& shared, int num_sequences, int wanted, Count count) {
  int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  if (threadIdx.x == 0) shared.sequence = -1;
  int before = 0;
  for (int base = 0; base < num_sequences; base += kWarps * kWarpSize) {
    int index = base + static_cast<int>(threadIdx.x);
    int items = index < num_sequences ? count(index) : 0;
    int end = inclusive_scan(items);
    if (lane_index() == kWarpSize - 1) shared.warp_total[warp] = end;
    __syncthreads();
    end += before;
    for (int i = 0; i < kWarps; i++) {
      if (i < warp) end += shared.warp_total[i];
      before += shared.warp_total[i];
    }
    if (wanted < end && wanted >= end - items) {
      shared.sequence = index;
      shared.offset = wanted - (end - items);
      shared.first_item = end - items;
    }
    __syncthreads();
  }
  return {shared.sequence, shared.offset, shared.first_item};
}

// Sum of `count(i)` over all sequences, in every thread of the block.
template <int kWarps, class Count>
DEVICE int sum_of(ItemSearch<kWarps>& shared, int num_sequences, Count count) {
  int sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < num_sequences; i += kWarps * kWarpSize) sum += count(i);
  sum = inclusive_scan(sum);
  if (lane_index() == kWarpSize - 1) shared.warp_total[threadIdx.x / kWarpSize] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < kWarps; i++) sum += shared.warp_total[i];
  __syncthreads();
  return sum;
}

// What happens to the rows of hidden states between matrix products. ELEMENT comes from the compiler command
// line. Rows are multiples of eight values and start at multiples of 16 bytes.
#include "vector.cuh"

using Element = ELEMENT;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;

template <class Body>
DEVICE void each_vector(int width, Body body) {
  for (int i = static_cast<int>(threadIdx.x) * kVector; i < width; i += kThreads * kVector) body(i);
}

// residual += added (where there is one); out = residual / rms(residual) * weight. RMSNorm, Zhang and
// Sennrich 2019. Grid: rows.
KERNEL __launch_bounds__(kThreads)
    add_rms_norm(Element* __restrict__ out, Element* __restrict__ residual, const Element* __restrict__ added,
                 const float* __restrict__ weight, int64_t out_stride, int64_t residual_stride,
                 int64_t added_stride, int, int width, float epsilon) {
  SHARED(float[kWarps], scratch);
  int64_t row = blockIdx.x;
  residual += row * residual_stride;
  float squares = 0;
  each_vector(width, [&](int i) {
    float sum[kVector];
    load_vector(sum, residual + i);
    if (added) {
      float change[kVector];
      load_vector(change, added + row * added_stride + i);
#pragma unroll
      for (int j = 0; j < kVector; j++) sum[j] += change[j];
      store_vector(residual + i, sum);
      load_vector(sum, residual + i);  // the norm is of what the next layer adds to: the rounded sum
    }
#pragma unroll
    for (int j = 0; j < kVector; j++) squares += sum[j] * sum[j];
  });
  float scale = 1 / sqrtf(sum_over_block(scratch, squares) / static_cast<float>(width) + epsilon);
  each_vector(width, [&](int i) {
    float values[kVector], weights[kVector];
    load_vector(values, residual + i);
    load_floats(weights, weight + i);
#pragma unroll
    for (int j = 0; j < kVector; j++) values[j] *= scale * weights[j];
    store_vector(out + row * out_stride + i, values);
  });
}

enum Activation { kSilu, kGelu, kGeluTanh, kRelu };  // the order of signatures.ACTIVATIONS

DEVICE float activate(float x, int kind) {
  if (kind == kSilu) return x / (1 + exp2_fast(-1.4426950408889634f * x));
  if (kind == kRelu) return fmaxf(x, 0);
  if (kind == kGelu) return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
  float inner = 0.79788456080286536f * (x + 0.044715f * x * x * x);
  return x - x / (exp2_fast(2 * 1.4426950408889634f * inner) + 1);  // x * (1 + tanh(inner)) / 2
}

// out = activation(gate) * up, where a row of `gate_up` is the gate and then the up projection. Grid:
// (rows, pieces of a row).
KERNEL __launch_bounds__(kThreads)
    activate_and_multiply(Element* __restrict__ out, const Element* __restrict__ gate_up, int64_t out_stride,
                          int64_t gate_up_stride, int, int width, int kind) {
  int64_t row = blockIdx.x;
  int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kVector;
  if (i >= width) return;
  float gate[kVector], up[kVector];
  load_vector(gate, gate_up + row * gate_up_stride + i);
  load_vector(up, gate_up + row * gate_up_stride + width + i);
#pragma unroll
  for (int j = 0; j < kVector; j++) gate[j] = activate(gate[j], kind) * up[j];
  store_vector(out + row * out_stride + i, gate);
}

// out[i] = table[ids[i]]: embeddings, or the last row of each sequence. An id outside gives zeros.
KERNEL __launch_bounds__(kThreads)
    gather_rows(Element* __restrict__ out, const Element* __restrict__ table, const int64_t* __restrict__ ids,
                int64_t out_stride, int64_t table_stride, int, int num_rows, int width) {
  int64_t row = blockIdx.x, id = ids[row];
  bool inside = id >= 0 && id < num_rows;
  each_vector(width, [&](int i) {
    Vector zeros = {};
    Vector vector = inside ? *reinterpret_cast<const Vector*>(table + id * table_stride + i) : zeros;
    *reinterpret_cast<Vector*>(out + row * out_stride + i) = vector;
  });
}

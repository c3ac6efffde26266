// linear_head: y = W f + bias per read-out, a loss, and the gradients of states, weight and bias.
//
//   h [B, T, M]   lengths [B]   weight [C, M]   bias [C]   labels [B] or values [B, C]
//   pooled [B, M]   delta [B, S, C]   logits [B, C]   loss [1]
//
// S is 1 for the poolings last and mean, T for every. A read-out is n = b S + s.
//
//   pool           block (row); threads over M, serial over T (mean)
//   score          block (read-out); a warp a class, lanes over M; then softmax and loss over C by the whole block
//   mean_logits    block (row); threads over C, serial over T (pooling every alone)
//   finish         one block; the mean of the rows' losses
//   combine        threads over B S C: the gradient of each read-out
//   weight_partial threads over C (M + 1), serial over a chunk of kChunk read-outs; column M is the bias
//   weight_sum     threads over C (M + 1), serial over the chunks
//   state_grad     threads over B S M, serial over C
//
// Bytes: h read once (last: one step of it), grad_h written once. Flops: 2 B S M C forward, twice that backward. At the
// sizes that are trained here (10^5 to 10^7 flops) launch latency is the cost, so there is one shape of each kernel.
// Every sum runs in an order that sizes alone decide: no atomics, the same bits every time. Steps at and beyond a row's
// length are never read.
typedef long long i64;

constexpr int kLast = 0, kMean = 1, kEvery = 2;
constexpr int kCrossEntropy = 0;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kChunk = 256;
constexpr unsigned kAll = 0xffffffffu;
constexpr float kHuge = 3.402823466e+38f;

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
  __device__ int operator()(int a, int b) const { return a + b; }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// The reduction over a block of kThreads, known to every thread; `slots` holds kWarps values. The butterfly pairs lanes
// in one order, and each warp folds the warps' results by itself.
template <typename T, typename F>
__device__ T block_reduce(T x, T* slots, F f) {
  for (int step = 16; step > 0; step /= 2) x = f(x, __shfl_xor_sync(kAll, x, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = x;
  __syncthreads();
  x = slots[0];
  for (int w = 1; w < kWarps; ++w) x = f(x, slots[w]);
  return x;
}

__device__ __forceinline__ int valid_steps(const int* lengths, int b, int steps) {
  return min(max(lengths[b], 0), steps);
}

// The rows that count, at least 1.
__device__ int valid_rows(const int* lengths, int batch, int steps, int* slots) {
  int n = 0;
  for (int b = threadIdx.x; b < batch; b += kThreads) n += valid_steps(lengths, b, steps) > 0;
  return max(block_reduce(n, slots, Add()), 1);
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    pool(const float* h, const int* lengths, float* pooled, int steps, int features, int pooling) {
  const i64 b = blockIdx.x;
  const int len = valid_steps(lengths, b, steps);
  const float* row = h + b * steps * features;
  for (int m = threadIdx.x; m < features; m += kThreads) {
    float f = 0.0f;
    if (len > 0) {
      if (pooling == kLast) {
        f = row[(i64)(len - 1) * features + m];
      } else {
        for (int t = 0; t < len; ++t) f += row[(i64)t * features + m];
        f /= len;
      }
    }
    pooled[b * features + m] = f;
  }
}

// `y` [B, S, C] gets the read-outs, `delta` (if wanted) the gradient of the loss, `losses` [B, S] each read-out's share
// of its row's loss.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
    score(const float* f, const int* lengths, const float* weight, const float* bias, const int* labels,
          const float* values, float* y, float* delta, float* losses, int batch, int steps, int readouts, int features,
          int classes, int loss_kind) {
  __shared__ float slots[kWarps];
  __shared__ int counts[kWarps];
  const i64 n = blockIdx.x;
  const int b = n / readouts, s = n % readouts;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int len = valid_steps(lengths, b, steps);
  float* out = y + n * classes;
  float* d = delta ? delta + n * classes : nullptr;
  if (s >= (readouts > 1 ? len : min(len, 1))) {
    for (int c = threadIdx.x; c < classes; c += kThreads) {
      out[c] = 0.0f;
      if (d) d[c] = 0.0f;
    }
    if (threadIdx.x == 0) losses[n] = 0.0f;
    return;
  }
  const float* x = f + n * features;
  for (int c = warp; c < classes; c += kWarps) {
    const float* w = weight + (i64)c * features;
    float sum = 0.0f;
    for (int m = lane; m < features; m += 32) sum = fmaf(w[m], x[m], sum);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAll, sum, step);
    if (lane == 0) out[c] = sum + bias[c];
  }
  // The barrier inside also makes the block's writes to `out` visible to all of its threads.
  const float rows = valid_rows(lengths, batch, steps, counts);
  const float steps_of_row = readouts > 1 ? len : 1;
  const float share = 1.0f / (rows * steps_of_row);
  if (loss_kind == kCrossEntropy) {
    const int label = labels[b];
    float top = -kHuge;
    for (int c = threadIdx.x; c < classes; c += kThreads) top = fmaxf(top, out[c]);
    top = block_reduce(top, slots, Max());
    float sum = 0.0f;
    for (int c = threadIdx.x; c < classes; c += kThreads) sum += expf(out[c] - top);
    sum = block_reduce(sum, slots, Add());
    const float scale = share / sum;
    if (d) {
      for (int c = threadIdx.x; c < classes; c += kThreads) {
        d[c] = expf(out[c] - top) * scale - (c == label ? share : 0.0f);
      }
    }
    // A label that is no class must not read outside the row: the loss says so instead.
    const bool known = label >= 0 && label < classes;
    if (threadIdx.x == 0) losses[n] = known ? (logf(sum) + (top - out[label])) / steps_of_row : __int_as_float(0x7fc00000);
  } else {
    float sum = 0.0f;
    for (int c = threadIdx.x; c < classes; c += kThreads) {
      const float e = out[c] - values[(i64)b * classes + c];
      if (d) d[c] = 2.0f * share / classes * e;
      sum = fmaf(e, e, sum);
    }
    sum = block_reduce(sum, slots, Add());
    if (threadIdx.x == 0) losses[n] = sum / classes / steps_of_row;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    mean_logits(const float* y, const int* lengths, float* logits, int steps, int classes) {
  const i64 b = blockIdx.x;
  const int len = valid_steps(lengths, b, steps);
  for (int c = threadIdx.x; c < classes; c += kThreads) {
    float sum = 0.0f;
    for (int t = 0; t < len; ++t) sum += y[(b * steps + t) * classes + c];
    logits[b * classes + c] = len > 0 ? sum / len : 0.0f;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    finish(const float* losses, const int* lengths, float* loss, int batch, int steps, int count) {
  __shared__ float slots[kWarps];
  __shared__ int counts[kWarps];
  float sum = 0.0f;
  for (int n = threadIdx.x; n < count; n += kThreads) sum += losses[n];
  sum = block_reduce(sum, slots, Add());
  const int rows = valid_rows(lengths, batch, steps, counts);
  if (threadIdx.x == 0) loss[0] = sum / rows;
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    combine(const float* delta, const float* grad_loss, const float* grad_logits, const int* lengths, float* d,
            i64 count, int steps, int readouts, int classes) {
  const float g = grad_loss[0];
  for (i64 i = blockIdx.x * (i64)kThreads + threadIdx.x; i < count; i += (i64)gridDim.x * kThreads) {
    const i64 n = i / classes;
    const int c = i % classes, b = n / readouts, s = n % readouts;
    const int len = valid_steps(lengths, b, steps);
    const bool counts = s < (readouts > 1 ? len : min(len, 1));
    const float direct = counts ? grad_logits[(i64)b * classes + c] / (readouts > 1 ? len : 1) : 0.0f;
    d[i] = counts ? fmaf(g, delta[i], direct) : 0.0f;
  }
}

// partial [chunks, C, M + 1]
extern "C" __global__ void __launch_bounds__(kThreads, 4)
    weight_partial(const float* d, const float* f, const int* lengths, float* partial, int count, int chunks, int steps,
                   int readouts, int features, int classes) {
  const i64 width = features + 1, elements = classes * width;
  const i64 i = blockIdx.x * (i64)kThreads + threadIdx.x;
  if (i >= elements) return;
  const int c = i / width, m = i % width;
  for (int chunk = blockIdx.y; chunk < chunks; chunk += gridDim.y) {
    const int first = chunk * kChunk, end = min(count, first + kChunk);
    float sum = 0.0f;
    for (int n = first; n < end; ++n) {
      const int len = valid_steps(lengths, n / readouts, steps);
      if (n % readouts >= (readouts > 1 ? len : min(len, 1))) continue;
      const float x = m < features ? f[(i64)n * features + m] : 1.0f;
      sum = fmaf(d[(i64)n * classes + c], x, sum);
    }
    partial[chunk * elements + i] = sum;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    weight_sum(const float* partial, float* grad_weight, float* grad_bias, int chunks, int features, int classes) {
  const i64 width = features + 1, elements = classes * width;
  const i64 i = blockIdx.x * (i64)kThreads + threadIdx.x;
  if (i >= elements) return;
  float sum = 0.0f;
  for (int chunk = 0; chunk < chunks; ++chunk) sum += partial[chunk * elements + i];
  const int c = i / width, m = i % width;
  if (m < features) {
    grad_weight[(i64)c * features + m] = sum;
  } else {
    grad_bias[c] = sum;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    state_grad(const float* d, const float* weight, const int* lengths, float* grad_h, i64 count, int steps,
               int readouts, int features, int classes, int pooling) {
  for (i64 i = blockIdx.x * (i64)kThreads + threadIdx.x; i < count; i += (i64)gridDim.x * kThreads) {
    const i64 n = i / features;
    const int m = i % features, b = n / readouts, s = n % readouts;
    const int len = valid_steps(lengths, b, steps);
    float g = 0.0f;
    if (s < (pooling == kEvery ? len : min(len, 1))) {
      for (int c = 0; c < classes; ++c) g = fmaf(d[n * classes + c], weight[(i64)c * features + m], g);
    }
    if (pooling == kEvery) {
      grad_h[i] = g;
      continue;
    }
    if (pooling == kMean && len > 0) g /= len;
    float* out = grad_h + (i64)b * steps * features + m;
    for (int t = 0; t < steps; ++t) {
      const bool reaches = pooling == kMean ? t < len : t == len - 1;
      out[(i64)t * features] = reaches ? g : 0.0f;
    }
  }
}

// ghost_norms: squared norms of the gradients of single samples, of one linear map a launch.
//
//   x [B, G, T, D / G], grad [B, K, T, H / K], lengths [B]: steps that are no padding, which is never read
//   squares [B] = |sum_t g_t (x_t, 1)^T|^2 = sum_rs (x_r.x_s + 1) (g_r.g_s); A = D (+ 1, the bias's one)
//
//   ghost_rows      T = 1, warp a sample: (|x|^2 + 1) |g|^2
//   ghost_short16   T <= 16, sixteen threads a sample, sixteen samples a block: the same of all pairs of its steps, each read once
//   ghost_short32   T <= 32, 64 threads a sample, four a block
//   ghost_pairs     block a sample and a part: tiles of 64 x 64 pairs of steps r >= s, those with r > s twice; x_r.x_s stays in
//                   registers, and what g_r.g_s has of 256 channels at a time is multiplied by it and summed there
//   ghost_gradient  block a sample and a part: tiles of 64 x 64 of the gradient [H, A], squared and summed in registers
//   ghost_fold      warp a sample: the parts' sums, of f64
//
// Tiles fall to parts in turns, by a sample's own length. A sum goes to the slot of its sample and part, [samples, parts] of f64, to
// which the maps of a call add one after the other, each in a launch; without parts the last map writes `squares` itself. So no sum
// depends on what runs when. A sample has no word in another's sums, and elements beyond the steps or the gradient in none: a NaN, or
// 0 times an infinity, stays where it is.
//
// Floors: 4 B T (D + H) bytes, each input once. Pairs are B T (T + 1) (A + H) operations, the gradient 2 B T A H. At B = 64, T = 128,
// D = H = 256: 17 MB, 3.9 us at 4.28 TB/s; by pairs 0.54 GFLOP, 10.6 us at 51 TFLOP/s of f32, which is what binds. At B = 512, T = 1,
// D = 784, H = 512: 2.7 MB, 0.6 us, and less than what a launch takes. What is done beyond it: tiles across the diagonal whole, steps
// rounded up to 16, 32 or multiples of 64, and the gradient's sides to 64: at T = 128 3 tiles of 4096 for 8256 pairs, 1.5 times
// the floor. Tiles read their steps (pairs) or channels (gradient) again, T / 64 + 1 times and A / 64 or H / 64 times, from L2.
#include "channels.cuh"

// The map's share of a sample, behind what earlier maps left in the slot of `part`: those before `started` hold something.
__device__ __forceinline__ void put(double* slots, float* squares, i64 first, i64 b, int part, int stride, int started, double sum) {
  double* slot = slots + b * stride + part;
  if (part < started) sum += *slot;
  if (squares) squares[first + b] = (float)sum;
  else *slot = sum;
}

// |x|^2 by a warp, known to every lane.
__device__ __forceinline__ double square_of(const float* x, i64 n) {
  double sum = 0;
  for (i64 c = threadIdx.x % 32; c < n; c += 128) {
    float some = 0.f;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float v = c + 32 * k < n ? x[c + 32 * k] : 0.f;
      some = fmaf(v, v, some);
    }
    sum += some;
  }
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  return sum;
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    ghost_rows(const float* x, const float* grad, const int* lengths, double* slots, float* squares, i64 first, i64 samples,
               int from_count, int to_count, int inputs, int stride, int started) {
  const i64 b = blockIdx.x * (i64)kWarps + threadIdx.x / 32;
  if (b >= samples) return;
  const bool live = lengths[first + b] > 0;
  const double of_x = live ? square_of(x + (first + b) * from_count, from_count) + (inputs - from_count) : 0.;
  const double of_g = live ? square_of(grad + (first + b) * to_count, to_count) : 0.;
  if (threadIdx.x % 32 == 0) put(slots, squares, first, b, 0, stride, started, live ? of_x * of_g : 0.);
}

// Samples of at most SIDE steps, beside one another.
template <int SIDE>
struct Rows {
  static constexpr int kGroup = SIDE * SIDE / 16, kSamples = kThreads / kGroup, kRows = kSamples * SIDE;
  float steps[kDepth][kRows + 4];
  i64 places[kThreads];
  int lengths[kSamples];
  double slots[kWarps];
};

// Products of steps i and j of this thread's sample, to `take` a run of 256 channels after the other: an error grows with the roots of
// 256 and of how many runs there are.
template <int SIDE, class Take>
__device__ __forceinline__ void products(Rows<SIDE>& rows, const Side& s, i64 first, Take take) {
  using R = Rows<SIDE>;
  constexpr int each = kDepth * R::kRows / kThreads;
  const int group = threadIdx.x / R::kGroup * SIDE, of = threadIdx.x % R::kGroup;
  const int row = group + of / (SIDE / 4) * 4, column = group + of % (SIDE / 4) * 4;
  const bool k_first = s.width > 1;
  const i64 begin = first * s.steps * s.count, sample = s.steps * s.count;
  for (i64 c0 = 0; c0 < s.columns; c0 += kThreads) {
    __syncthreads();
    rows.places[threadIdx.x] = place_of(s, c0 + threadIdx.x);
    float some[4][4] = {};
    const int depth = (int)min((i64)kThreads, s.columns - c0);
    for (int k0 = 0; k0 < depth; k0 += kDepth) {
      __syncthreads();
#pragma unroll 4
      for (int n = 0; n < each; ++n) {
        const int e = threadIdx.x + n * kThreads;
        const int k = k_first ? e % kDepth : e / R::kRows, r = k_first ? e / kDepth : e % R::kRows, t = r % SIDE;
        const i64 at = t < rows.lengths[r / SIDE] ? begin + r / SIDE * sample + t * (i64)s.width : -1;
        rows.steps[k][r] = value(s, at, rows.places[k0 + k]);
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        const float4 x = *(const float4*)&rows.steps[k][row], y = *(const float4*)&rows.steps[k][column];
        const float p[4] = {x.x, x.y, x.z, x.w}, q[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int e = 0; e < 16; ++e) some[e / 4][e % 4] = fmaf(p[e / 4], q[e % 4], some[e / 4][e % 4]);
      }
    }
    take(some);
  }
}

// acc += some, and the sum of acc times some over those elements of a tile that is `height` x `width` from this thread's first on.
__device__ __forceinline__ void add(float (&acc)[4][4], const float (&some)[4][4]) {
#pragma unroll
  for (int e = 0; e < 16; ++e) acc[e / 4][e % 4] += some[e / 4][e % 4];
}
__device__ __forceinline__ float dot(const float (&acc)[4][4], const float (&some)[4][4], i64 height, i64 width) {
  float sum = 0.f;
#pragma unroll
  for (int e = 0; e < 16; ++e)
    if (e / 4 < height && e % 4 < width) sum = fmaf(acc[e / 4][e % 4], some[e / 4][e % 4], sum);
  return sum;
}

template <int SIDE>
__device__ __forceinline__ void short_pairs(Rows<SIDE>& rows, const Side& x, const Side& g, const int* lengths, double* slots,
                                            float* squares, i64 first, i64 samples, int stride, int started) {
  using R = Rows<SIDE>;
  const i64 block = blockIdx.x * (i64)R::kSamples, b = block + threadIdx.x / R::kGroup;
  if (threadIdx.x < R::kSamples) {
    const i64 mine = block + threadIdx.x;
    rows.lengths[threadIdx.x] = mine < samples ? (int)min((i64)lengths[first + mine], x.steps) : 0;
  }
  float xx[4][4] = {};
  double sum = 0;
  const int of = threadIdx.x % R::kGroup;
  products(rows, x, first + block, [&](const float(&some)[4][4]) { add(xx, some); });
  products(rows, g, first + block, [&](const float(&some)[4][4]) {
    const int len = rows.lengths[threadIdx.x / R::kGroup];
    sum += dot(xx, some, len - of / (SIDE / 4) * 4, len - of % (SIDE / 4) * 4);
  });
  for (int o = min(R::kGroup, 32) / 2; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  if (R::kGroup > 32) {
    if (threadIdx.x % 32 == 0) rows.slots[threadIdx.x / 32] = sum;
    __syncthreads();
    const int warp = threadIdx.x / R::kGroup * (R::kGroup / 32);
    sum = 0;
    for (int w = 0; w < R::kGroup / 32; ++w) sum += rows.slots[warp + w];
  }
  if (of == 0 && b < samples) put(slots, squares, first, b, 0, stride, started, sum);
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    ghost_short16(const float* x, const float* grad, const int* lengths, double* slots, float* squares, i64 first, i64 samples,
                  i64 steps, int from_count, int from_width, int to_count, int to_width, int inputs, int stride, int started) {
  __shared__ __align__(16) Rows<16> rows;
  const Side of_x = {x, steps, from_count, from_width, inputs}, of_g = {grad, steps, to_count, to_width, to_count};
  short_pairs(rows, of_x, of_g, lengths, slots, squares, first, samples, stride, started);
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    ghost_short32(const float* x, const float* grad, const int* lengths, double* slots, float* squares, i64 first, i64 samples,
                  i64 steps, int from_count, int from_width, int to_count, int to_width, int inputs, int stride, int started) {
  __shared__ __align__(16) Rows<32> rows;
  const Side of_x = {x, steps, from_count, from_width, inputs}, of_g = {grad, steps, to_count, to_width, to_count};
  short_pairs(rows, of_x, of_g, lengths, slots, squares, first, samples, stride, started);
}

// Products of steps r + i and c + j below `len` of the row that begins at `row`, to `take` as above.
template <class Take>
__device__ __forceinline__ void dots(Stage& stage, i64* places, const Side& s, i64 row, i64 r, i64 c, i64 len, Take take) {
  const i64 left = row + r * s.width, right = row + c * s.width;
  const int height = (int)min((i64)kTile, len - r), width = (int)min((i64)kTile, len - c);
  for (i64 c0 = 0; c0 < s.columns; c0 += kThreads) {
    __syncthreads();
    places[threadIdx.x] = place_of(s, c0 + threadIdx.x);
    __syncthreads();
    auto one = [&](i64 k, int i) { return value(s, i < height ? left + i * (i64)s.width : -1, places[k]); };
    auto other = [&](i64 k, int j) { return value(s, j < width ? right + j * (i64)s.width : -1, places[k]); };
    float some[4][4] = {};
    tile(some, stage, min((i64)kThreads, s.columns - c0), one, s.width > 1, other, s.width > 1);
    take(some);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    ghost_pairs(const float* x, const float* grad, const int* lengths, double* slots, float* squares, i64 first, i64 samples,
                i64 steps, int from_count, int from_width, int to_count, int to_width, int inputs, int stride, int started) {
  __shared__ __align__(16) Stage stage;
  __shared__ i64 places[kThreads];
  __shared__ double sums[kWarps];
  const Side of_x = {x, steps, from_count, from_width, inputs}, of_g = {grad, steps, to_count, to_width, to_count};
  const i64 b = blockIdx.x, row_x = (first + b) * steps * from_count, row_g = (first + b) * steps * to_count;
  const i64 len = min((i64)max(lengths[first + b], 0), steps), tiles = (len + kTile - 1) / kTile;
  double sum = 0;
  // Tile `j` of row i of tiles; `j` runs on into the rows behind it.
  for (i64 i = 0, j = blockIdx.y;; j += gridDim.y) {
    while (j > i) j -= ++i;
    if (i >= tiles) break;
    const i64 r = i * kTile, c = j * kTile;
    float xx[4][4] = {};
    dots(stage, places, of_x, row_x, r, c, len, [&](const float(&some)[4][4]) { add(xx, some); });
    dots(stage, places, of_g, row_g, r, c, len, [&](const float(&some)[4][4]) {
      const float both = dot(xx, some, len - r - threadIdx.x / 16 * 4, len - c - threadIdx.x % 16 * 4);
      sum += i == j ? both : 2.f * both;
    });
  }
  sum = block_sum(sum, sums);
  if (threadIdx.x == 0) put(slots, squares, first, b, blockIdx.y, stride, started, sum);
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    ghost_gradient(const float* x, const float* grad, const int* lengths, double* slots, float* squares, i64 first, i64 samples,
                   i64 steps, int from_count, int from_width, int to_count, int to_width, int inputs, int stride, int started) {
  __shared__ __align__(16) Stage stage;
  __shared__ i64 of_left[kTile], of_right[kTile];
  __shared__ double sums[kWarps];
  const Side of_x = {x, steps, from_count, from_width, inputs}, of_g = {grad, steps, to_count, to_width, to_count};
  const i64 b = blockIdx.x, row_x = (first + b) * steps * from_count, row_g = (first + b) * steps * to_count;
  const i64 len = min((i64)max(lengths[first + b], 0), steps);
  const i64 across = (inputs + kTile - 1) / kTile, tiles = len > 0 ? (to_count + kTile - 1) / kTile * across : 0;
  double sum = 0;
  for (i64 n = blockIdx.y; n < tiles; n += gridDim.y) {
    const i64 h = n / across * kTile, a = n % across * kTile;
    __syncthreads();
    if (threadIdx.x < kTile) {
      of_left[threadIdx.x] = place_of(of_g, h + threadIdx.x);
      of_right[threadIdx.x] = place_of(of_x, a + threadIdx.x);
    }
    __syncthreads();
    float acc[4][4] = {};
    for (i64 t = 0; t < len; t += kThreads) {
      auto one = [&](i64 k, int i) { return value(of_g, row_g + (t + k) * of_g.width, of_left[i]); };
      auto other = [&](i64 k, int j) { return value(of_x, row_x + (t + k) * of_x.width, of_right[j]); };
      float some[4][4] = {};
      tile(some, stage, min((i64)kThreads, len - t), one, of_g.width == 1, other, of_x.width == 1);
      add(acc, some);
    }
    sum += dot(acc, acc, to_count - h - threadIdx.x / 16 * 4, inputs - a - threadIdx.x % 16 * 4);
  }
  sum = block_sum(sum, sums);
  if (threadIdx.x == 0) put(slots, squares, first, b, blockIdx.y, stride, started, sum);
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    ghost_fold(const double* slots, float* squares, i64 first, i64 samples, int stride) {
  const i64 b = blockIdx.x * (i64)kWarps + threadIdx.x / 32;
  if (b >= samples) return;
  double sum = 0;
  for (int s = threadIdx.x % 32; s < stride; s += 32) sum += slots[b * stride + s];
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  if (threadIdx.x % 32 == 0) squares[first + b] = (float)sum;
}

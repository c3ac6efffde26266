// Inverse roots X = (A + eps I)^(-1/p) of symmetric matrices [n, n] by Newton's method, one block each; blocks stride over the batch.
//
//   eps = max(absolute, relative ||A||_F)
//   X <- X T, M <- T^p M, T = (1 + 1/p) I - M / p, from X = z^(1/p) I, M = z (A + eps I), z = (p + 1) / (2 s)
//
// What ends with ||M - I||_F above 0.1 is left to eigen.cu, whose counters this kernel sets to 0.
//
// All matrices of one Newton iteration are polynomials in A: they commute and are symmetric, so the tiles on and below the
// diagonal are made and written to both sides. The block decides by itself when it is done: nothing returns to the host.
//
// A product is n^3 multiply-adds of half the tiles, 2 + log2 p of them an iteration: 64 x 128^2 at a condition number of 34 (6
// iterations, p = 4) are 3.2 GFLOP; at 60 TFLOP/s of f32 the floor is 0.05 ms, and at one block of 256 threads on each of 64
// multiprocessors 0.11 ms. One block a matrix is not what 4 x 1024^2 and larger want (129 GFLOP each, on one multiprocessor of
// 132): this is the kernel that is right for every size and architecture; newton.cu is faster from n = 33 on where there are tensor
// cores for halves.
// Workspace: 5 matrices a block in global memory (L2 up to n = 256).
#include "meet.cuh"
#include "sums.cuh"

typedef long long i64;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTile = 64, kDepth = 16, kPitch = kTile + 4;
constexpr int kMostIterations = 100;
constexpr float kWorst = 0.1f;
enum { kNewton = 0, kFailed = 3 };

// The largest number, or NaN if one is.
__device__ __forceinline__ float block_max(float x, double* slots) {
  auto most = [](float a, float b) { return a != a || b != b ? __int_as_float(0x7fffffff) : max(a, b); };
  for (int o = 16; o > 0; o /= 2) x = most(x, __shfl_xor_sync(~0u, x, o));
  __syncthreads();
  float* of = (float*)slots;
  if (threadIdx.x % 32 == 0) of[threadIdx.x / 32] = x;
  __syncthreads();
  x = of[0];
  for (int w = 1; w < kWarps; ++w) x = most(x, of[w]);
  return x;
}

// c[i][j] = sum_k a[k][i] b[k][j], symmetric: the product of symmetric matrices that commute, or a Gram matrix.
__device__ void product(float* c, const float* a, const float* b, int n, float (*sa)[kPitch], float (*sb)[kPitch]) {
  const int tiles = (n + kTile - 1) / kTile, row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  for (int ti = 0; ti < tiles; ++ti) {
    for (int tj = 0; tj <= ti; ++tj) {
      float acc[4][4];
#pragma unroll
      for (int e = 0; e < 16; ++e) acc[e / 4][e % 4] = 0.f;
      for (int k0 = 0; k0 < n; k0 += kDepth) {
        __syncthreads();
        for (int e = threadIdx.x; e < kDepth * kTile; e += kThreads) {
          const int k = k0 + e / kTile, x = e % kTile;
          const int i = ti * kTile + x, j = tj * kTile + x;
          sa[e / kTile][x] = k < n && i < n ? a[(i64)k * n + i] : 0.f;
          sb[e / kTile][x] = k < n && j < n ? b[(i64)k * n + j] : 0.f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kDepth; ++k) {
          const float4 x = *(const float4*)&sa[k][row], y = *(const float4*)&sb[k][column];
          const float p[4] = {x.x, x.y, x.z, x.w}, q[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
          for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) acc[i][j] = fmaf(p[i], q[j], acc[i][j]);
        }
      }
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        const int i = ti * kTile + row + e / 4, j = tj * kTile + column + e % 4;
        if (i >= n || j > i) continue;
        c[(i64)i * n + j] = acc[e / 4][e % 4];
        c[(i64)j * n + i] = acc[e / 4][e % 4];
      }
    }
  }
  __syncthreads();
}

// Not inlined: its addresses would be live through the products, whose registers are all in use.
__device__ __noinline__ void copy(float* to, const float* from, i64 size) {
  for (i64 e = threadIdx.x; e < size; e += kThreads) to[e] = from[e];
}

// ||m - I||_F. It is at least 1 while an eigenvalue of m is near 0, where the largest element may be small, and stand still.
__device__ float distance(const float* m, int n, double* slots) {
  double squares = 0;
  for (i64 e = threadIdx.x; e < (i64)n * n; e += kThreads) {
    const float d = m[e] - (e / n == e % n ? 1.f : 0.f);
    squares = fma((double)d, (double)d, squares);
  }
  return (float)sqrt(block_sum<kWarps>(squares, slots));
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    inverse_root(const float* __restrict__ a,  // [N, n, n]
                 float* root,                  // [N, n, n]
                 float* record,                // [N, 4]
                 float* work,                  // [blocks, 5, n, n]
                 unsigned* counters, int idle, i64 count, int n, int denominator, double absolute, double relative) {
  __shared__ __align__(16) float sa[kDepth][kPitch];
  __shared__ __align__(16) float sb[kDepth][kPitch];
  __shared__ double slots[kWarps];
  const i64 size = (i64)n * n;
  float* mean = work + blockIdx.x * 5 * size;
  clear_counters(counters, idle);
  for (i64 nth = blockIdx.x; nth < count; nth += gridDim.x) {
    const float* from = a + nth * size;
    float* to = root + nth * size;
    float *x = mean + size, *m = mean + 2 * size, *t = mean + 3 * size, *spare = mean + 4 * size;
    double squares = 0;
    for (i64 e = threadIdx.x; e < size; e += kThreads) {
      const float y = 0.5f * (from[e] + from[e % n * n + e / n]);
      mean[e] = y;
      squares += (double)y * y;
    }
    const double norm = sqrt(block_sum<kWarps>(squares, slots));
    const double eps = max(absolute, relative * norm);
    float row_sum = 0.f;
    for (int r = threadIdx.x; r < n; r += kThreads) {
      float sum = 0.f;
      for (int c = 0; c < n; ++c) sum += fabsf(mean[(i64)c * n + r]);
      row_sum = max(row_sum, sum);
    }
    // Both bound the largest eigenvalue; sums of f32 may be a little low.
    const double scale = min(norm, 1.0001 * block_max(row_sum, slots)) + eps;
    int status = kFailed, iterations = 0;
    float error = __int_as_float(0x7fffffff);
    if (norm < 1e300 && scale > 0) {
      const double p = denominator, z = (p + 1) / (2 * scale);
      const float start = (float)pow(z, 1 / p), slope = (float)(-1 / p), on_diagonal = (float)(1 + 1 / p);
      for (i64 e = threadIdx.x; e < size; e += kThreads) {
        const bool diagonal = e / n == e % n;
        x[e] = diagonal ? start : 0.f;
        m[e] = (float)(z * (mean[e] + (diagonal ? eps : 0.)));
      }
      __syncthreads();
      error = distance(m, n, slots);
      copy(to, x, size);
      while (iterations < kMostIterations) {
        for (i64 e = threadIdx.x; e < size; e += kThreads) t[e] = fmaf(slope, m[e], e / n == e % n ? on_diagonal : 0.f);
        __syncthreads();
        product(spare, x, t, n, sa, sb);
        float* other = x;
        x = spare, spare = other;
        for (int power = denominator;;) {
          if (power & 1) {
            product(spare, t, m, n, sa, sb);
            other = m, m = spare, spare = other;
          }
          power >>= 1;
          if (power == 0) break;
          product(spare, t, t, n, sa, sb);
          other = t, t = spare, spare = other;
        }
        ++iterations;
        const float now = distance(m, n, slots);
        // What no longer falls has come to what f32 can do; NaN ends it too. `to` keeps the root that was best at the end.
        const bool ends = now != now || (error < 0.5f && now >= 0.9f * error);
        if (!ends || now <= error) {
          copy(to, x, size);
          error = now;
        }
        if (ends) break;
      }
      __syncthreads();
      if (error <= kWorst) status = kNewton;
    }
    if (threadIdx.x == 0) {
      float* r = record + nth * 4;
      r[0] = (float)status, r[1] = (float)iterations, r[2] = error, r[3] = (float)eps;
    }
    __syncthreads();
  }
}

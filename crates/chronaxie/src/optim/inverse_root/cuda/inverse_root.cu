// Inverse roots X = (A + eps I)^(-q/p) of symmetric matrices [n, n], one block each; blocks stride over the batch.
//
//   eps = max(absolute, relative ||A||_F)
//   Newton (q = 1): X <- X T, M <- T^p M, T = (1 + 1/p) I - M / p, from X = z^(1/p) I, M = z (A + eps I), z = (p + 1) / (2 s)
//   else, and where max |M - I| ends above 0.1: cyclic Jacobi, n / 2 rotations at a time; X = sum_k f(lambda_k) v_k v_k^T
//
// All matrices of one Newton iteration are polynomials in A: they commute and are symmetric, so the tiles on and below the
// diagonal are made and written to both sides. The block decides by itself when it is done: nothing returns to the host.
//
// A product is n^3 multiply-adds of half the tiles, 2 + log2 p of them an iteration: 64 x 128^2 at a condition number of 34 (6
// iterations, p = 4) are 3.2 GFLOP; at 60 TFLOP/s of f32 the floor is 0.05 ms, and at one block of 256 threads on each of 64
// multiprocessors 0.11 ms. One block a matrix is not what 4 x 1024^2 and larger want (129 GFLOP each, on one multiprocessor of
// 132): this is the kernel that is right for every size and architecture; newton.cu is faster from n = 33 on where there are tensor
// cores for halves, and leaves to this one what it does not solve (`only_failed`).
// Workspace: 5 matrices and 2 numbers a block in global memory (L2 up to n = 256): the residual's two vectors begin in the last
// matrix, which does not hold both where n = 1.
typedef long long i64;

constexpr int kThreads = 256;
constexpr int kTile = 64, kDepth = 16, kPitch = kTile + 4;
constexpr int kMostIterations = 100, kMostSweeps = 40;
constexpr float kWorst = 0.1f;
constexpr int kMostPairs = 1024;  // rotations whose angles are kept at a time
enum { kNewton = 0, kEigen = 1, kShifted = 2, kFailed = 3 };

__device__ __forceinline__ double block_sum(double x, double* slots) {
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(~0u, x, o);
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = x;
  __syncthreads();
  x = slots[0];
  for (int w = 1; w < kThreads / 32; ++w) x += slots[w];
  return x;
}
// The largest number, or NaN if one is.
__device__ __forceinline__ float block_max(float x, double* slots) {
  auto most = [](float a, float b) { return a != a || b != b ? __int_as_float(0x7fffffff) : max(a, b); };
  for (int o = 16; o > 0; o /= 2) x = most(x, __shfl_xor_sync(~0u, x, o));
  __syncthreads();
  float* of = (float*)slots;
  if (threadIdx.x % 32 == 0) of[threadIdx.x / 32] = x;
  __syncthreads();
  x = of[0];
  for (int w = 1; w < kThreads / 32; ++w) x = most(x, of[w]);
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
  return (float)sqrt(block_sum(squares, slots));
}

// The two rows that pair k of round r turns, of an even number of them: everybody meets everybody in players - 1 rounds.
__device__ __forceinline__ int2 pair_of(int k, int r, int players) {
  const int m = players - 1;
  if (k == 0) return make_int2(r, m);
  const int x = (r + k) % m, y = (r - k + m) % m;
  return make_int2(min(x, y), max(x, y));
}

// Turns rows p and q of [n, n] for every pair.
__device__ void turn_rows(float* a, int n, int r, int players, int first, int pairs, const float2* turns) {
  for (i64 e = threadIdx.x; e < (i64)pairs * n; e += kThreads) {
    const int k = (int)(e / n), c = (int)(e % n);
    const int2 at = pair_of(first + k, r, players);
    if (at.y >= n) continue;
    const float2 t = turns[k];
    const float x = a[(i64)at.x * n + c], y = a[(i64)at.y * n + c];
    a[(i64)at.x * n + c] = fmaf(t.x, x, -t.y * y);
    a[(i64)at.y * n + c] = fmaf(t.y, x, t.x * y);
  }
  __syncthreads();
}
__device__ void turn_columns(float* a, int n, int r, int players, int first, int pairs, const float2* turns) {
  for (i64 e = threadIdx.x; e < (i64)pairs * n; e += kThreads) {
    const int k = (int)(e % pairs);
    const i64 row = e / pairs * n;
    const int2 at = pair_of(first + k, r, players);
    if (at.y >= n) continue;
    const float2 t = turns[k];
    const float x = a[row + at.x], y = a[row + at.y];
    a[row + at.x] = fmaf(t.x, x, -t.y * y);
    a[row + at.y] = fmaf(t.y, x, t.x * y);
  }
  __syncthreads();
}

// Eigenvalues onto the diagonal of a, eigenvectors into the rows of v. Returns the sweeps.
__device__ int jacobi(float* a, float* v, int n, double norm, float2* turns, double* slots) {
  for (i64 e = threadIdx.x; e < (i64)n * n; e += kThreads) v[e] = e / n == e % n ? 1.f : 0.f;
  const int players = (n + 1) / 2 * 2;
  int sweep = 0;
  double before = norm * norm;
  for (; sweep < kMostSweeps; ++sweep) {
    double off = 0;
    for (i64 e = threadIdx.x; e < (i64)n * n; e += kThreads)
      if (e / n != e % n) off += (double)a[e] * a[e];
    off = block_sum(off, slots);
    // What converges quadratically and no longer falls is what rotations in f32 leave.
    if (off == 0 || (off < 1e-8 * norm * norm && off > 0.1 * before)) break;
    before = off;
    for (int r = 0; r + 1 < players; ++r) {
      for (int first = 0; first < players / 2; first += kMostPairs) {
        const int pairs = min(kMostPairs, players / 2 - first);
        for (int k = threadIdx.x; k < pairs; k += kThreads) {
          const int2 at = pair_of(first + k, r, players);
          float2 t = make_float2(1.f, 0.f);
          if (at.y < n) {
            const double pq = a[(i64)at.x * n + at.y], pp = a[(i64)at.x * n + at.x], qq = a[(i64)at.y * n + at.y];
            if (fabs(pq) > 1e-300) {
              const double theta = (qq - pp) / (2 * pq);
              const double tangent = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(fma(theta, theta, 1.)));
              const double c = rsqrt(fma(tangent, tangent, 1.));
              t = make_float2((float)c, (float)(c * tangent));
            }
          }
          turns[k] = t;
        }
        __syncthreads();
        turn_rows(a, n, r, players, first, pairs, turns);
        turn_rows(v, n, r, players, first, pairs, turns);
        turn_columns(a, n, r, players, first, pairs, turns);
      }
    }
  }
  return sweep;
}

// ||(A + shift I)^q X^p z - z|| / ||z|| of a vector z of signs; two vectors in `work`.
__device__ float residual(const float* a, const float* x, float* work, int n, int numerator, int denominator, double shift,
                          double* slots) {
  float *y = work, *next = work + n;
  auto sign = [](int k) { return (k * 2654435761u >> 15 ^ k * 40503u >> 7) & 1 ? 1.f : -1.f; };
  for (int k = threadIdx.x; k < n; k += kThreads) y[k] = sign(k);
  __syncthreads();
  for (int roots = 0, powers = 0; roots < denominator || powers < numerator;) {
    const bool root = roots * numerator <= powers * denominator && roots < denominator;
    const float* by = root ? x : a;
    for (int r = threadIdx.x; r < n; r += kThreads) {
      double sum = root ? 0 : shift * y[r];
      for (int c = 0; c < n; ++c) sum = fma((double)by[(i64)c * n + r], (double)y[c], sum);
      next[r] = (float)sum;
    }
    __syncthreads();
    float* other = y;
    y = next, next = other;
    ++(root ? roots : powers);
  }
  double off = 0;
  for (int k = threadIdx.x; k < n; k += kThreads) off += ((double)y[k] - sign(k)) * ((double)y[k] - sign(k));
  return (float)sqrt(block_sum(off, slots) / n);
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    inverse_root(const float* __restrict__ a,  // [N, n, n]
                 float* root,                  // [N, n, n]
                 float* record,                // [N, 4]
                 float* work,                  // [blocks, 5 n^2 + 2]
                 i64 count, int n, int numerator, int denominator, int by_newton, int only_failed, double absolute,
                 double relative) {
  __shared__ __align__(16) float sa[kDepth][kPitch];
  __shared__ __align__(16) float sb[kDepth][kPitch];
  __shared__ double slots[kThreads / 32];
  __shared__ float2 turns[kMostPairs];
  const i64 size = (i64)n * n;
  float* mean = work + blockIdx.x * (5 * size + 2);
  for (i64 nth = blockIdx.x; nth < count; nth += gridDim.x) {
    // What newton.cu has done stays.
    if (only_failed && record[nth * 4] != (float)kFailed) continue;
    const float* from = a + nth * size;
    float* to = root + nth * size;
    float *x = mean + size, *m = mean + 2 * size, *t = mean + 3 * size, *spare = mean + 4 * size;
    double squares = 0;
    for (i64 e = threadIdx.x; e < size; e += kThreads) {
      const float y = 0.5f * (from[e] + from[e % n * n + e / n]);
      mean[e] = y;
      squares += (double)y * y;
    }
    const double norm = sqrt(block_sum(squares, slots));
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
    if (norm < 1e300 && scale > 0 && by_newton) {
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
    if (status == kFailed && norm < 1e300 && scale > 0) {
      m = mean + 2 * size, t = mean + 3 * size, spare = mean + 4 * size;
      copy(m, mean, size);
      __syncthreads();
      iterations = jacobi(m, t, n, norm, turns, slots);
      float least = __int_as_float(0x7f800000);
      for (int k = threadIdx.x; k < n; k += kThreads) least = min(least, m[(i64)k * n + k]);
      least = -block_max(-least, slots);
      const bool shifted = least + eps < 0.5 * eps;
      const double shift = shifted ? eps - least : eps, power = -0.5 * numerator / denominator;
      bool bad = false;
      for (i64 e = threadIdx.x; e < size; e += kThreads) {
        const int k = (int)(e / n);
        const double damped = m[(i64)k * n + k] + shift;
        bad |= !(damped > 0);
        spare[e] = damped > 0 ? (float)(pow(damped, power) * t[e]) : 0.f;
      }
      if (block_max(bad ? 1.f : 0.f, slots) == 0.f) {
        product(to, spare, spare, n, sa, sb);
        status = shifted ? kShifted : kEigen;
        error = residual(mean, to, spare, n, numerator, denominator, shift, slots);
      }
    }
    if (status == kFailed)
      for (i64 e = threadIdx.x; e < size; e += kThreads) to[e] = __int_as_float(0x7fffffff);
    if (threadIdx.x == 0) {
      float* r = record + nth * 4;
      r[0] = (float)status, r[1] = (float)iterations, r[2] = error, r[3] = (float)eps;
    }
    __syncthreads();
  }
}

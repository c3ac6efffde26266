// Eigenvalues and eigenvectors of a symmetric matrix by a group of blocks: one-sided block Jacobi (Hestenes; Golub and Van Loan, "Matrix
// Computations", 8.6) in f64.
//
// Of A the caller makes A + c I, c = 2 ||A||_F, where a power of two has brought ||A||_F to between 1 and 2. All of its eigenvalues lie
// between c / 2 and 3 c / 2, so none is small, however many of A are 0: what comes out are rows at right angles to the roundings of f64
// whatever the rank, and eigenvalues to some 1e-14 c. Rows are turned among each other until all are at right angles; then row k is
// (lambda_k + c) v_k.
//
// A visit takes two parts of 16 rows: their Gram matrix, 32 x 32; sweeps of rotations of that, which are gathered in a matrix; and that
// matrix times the rows. Parts meet in rounds, everybody everybody else in a sweep; a block has one visit at a time, and the blocks of a
// group wait for each other between rounds. Rows of different parts are turned, twice each, and in the first round all; the longer of two rows
// comes first: without that, sweeps are twice as many where eigenvalues span decades (numpy, n = 128: 19 and 10).
//
// Floors of a visit of n columns, whose products are made by mma.sync of f64, 128 multiply-adds a clock on a multiprocessor of an H200: 640 n
// for the Gram matrix on and below the diagonal and 1024 n for the rows, 7 us at n = 1024; 256 n bytes read twice and written once, 64 a clock
// from L2: 7 us. The rotations, 32 rounds one behind the other of two barriers each, are latency, 20 us measured, which other blocks of the
// multiprocessor fill. A matrix of 1024 is 2016 visits a sweep, in 63 rounds, and takes 13 sweeps, 128 take 8, the last of which is for what is left.
//
// H200, 2026-11-29, matrices A A^T / 2n, ms, jacobi() alone: 1 of 1024 39, of which (clocks of a block) Gram matrices 15 %, rotations 46, rows
// 28, waiting for others 11; 34 of 1024 278: twelve are at work at once and do not fit L2, so that rows take 41 %; 132 of 512 122, 16 of 512
// 15.2, 64 of 128 2.0. What led there, 1 of 1024 and 34: products by fused multiply-adds from shared memory, 62 rounds of rotations a visit,
// 118 and 597; by mma.sync with 32 rounds 40.7 and 331; the next columns of rows asked for ahead 39.0 and 278. One sweep of rotations a visit
// 39.5 and 361 (15 sweeps), three 51.8 and 362. Two blocks a multiprocessor 39.1 and 331, four (spills) 45.3 and 409. All of these with kRight
// at 1e-10; with the last sweep's rotations and all that is around them roots take 39.5 and 278 (inverse_root/cuda/eigen.cu).
#pragma once

#include "meet.cuh"
#include "sums.cuh"

typedef long long i64;

constexpr int kJacobiThreads = 128, kJacobiWarps = kJacobiThreads / 32;
// Blocks of a multiprocessor, whose registers hold a visit without spills.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kJacobiBlocks = 2;
#else
constexpr int kJacobiBlocks = 3;
#endif
// The same of kernels that hold more beside it, for which the older compiler has no room.
#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ < 13
constexpr int kJacobiBlocksBeside = 2;
#else
constexpr int kJacobiBlocksBeside = kJacobiBlocks;
#endif
constexpr int kPart = 16, kPair = 2 * kPart, kPairPitch = kPair + 2;
constexpr int kMostSweeps = 40;
// Sweeps of a visit's rotations: more, where there is no other visit.
constexpr int kInner = 2, kInnerAlone = 12;
// A cosine is turned away from kRight on. Where none of a sweep is above kAgain, what it leaves are its squares, and no other sweep follows.
constexpr double kRight = 1e-14, kAgain = 1e-10;

struct JacobiShared {
  __align__(16) double gram[kPair][kPairPitch];
  __align__(16) double turn[kPair][kPairPitch];
  double2 angles[kPart];
  double slots[kJacobiWarps];
};

// A group of blocks, of which this one is the `rank`th.
struct JacobiGroup {
  unsigned* counters;  // [4], zeros at first: arrivals, and whether another follows on the sweep of that number modulo 3
  unsigned round, sweep;
  int rank, blocks;
};
__device__ __forceinline__ JacobiGroup jacobi_group(unsigned* counters, int blocks) {
  const int group = blockIdx.x / blocks;
  return {counters + 16 * group, 0, 0, (int)blockIdx.x % blocks, blocks};
}
// Between the blocks of a group: all that was written before is seen after.
__device__ __forceinline__ void jacobi_meet(JacobiGroup& g) {
  __syncthreads();
  if (g.blocks == 1) return;
  g.round += g.blocks;
  if (threadIdx.x == 0) blocks_meet(g.counters, g.round);
  __syncthreads();
}

// c of a matrix of this norm.
constexpr double kJacobiShift = 2;
// The power of two by which a matrix of this norm comes to one of 1 to 2; 1 for 0.
__device__ __forceinline__ double jacobi_scale(double norm) {
  const double unit = __longlong_as_double(__double_as_longlong(norm) & 0x7ff0000000000000ll);
  return unit > 0 ? 1 / unit : 1.;
}

// The two that meet as pair k of round r, of an even number of players: everybody meets everybody in players - 1 rounds.
__device__ __forceinline__ int2 jacobi_pair(int k, int r, int players) {
  const int m = players - 1;
  if (k == 0) return make_int2(r, m);
  const int x = (r + k) % m, y = (r - k + m) % m;
  return make_int2(min(x, y), max(x, y));
}

// The rotation (c, s) of rows p and q, p' = c p - s q and q' = s p + c q, behind which they are at right angles and p' is the longer one.
// The angle is of f32, and what that leaves falls like all the rest; that it is a rotation holds in f64.
__device__ __forceinline__ double2 jacobi_angle(double pp, double qq, double pq) {
  double c = 1, s = 0;
  if (fabs(pq) > 1e-30) {
    const float theta = (float)(qq - pp) / (2.f * (float)pq);
    const double tangent = copysignf(1.f / (fabsf(theta) + sqrtf(fmaf(theta, theta, 1.f))), theta);
    c = rsqrt(fma(tangent, tangent, 1.)), s = c * tangent;
  }
  return pp < qq ? make_double2(s, -c) : make_double2(c, s);
}

// d [8, 8] += a [8, 4] b [4, 8], by a warp: lane l has a[l / 4][l % 4], b[l % 4][l / 4] and d[l / 4][2 (l % 4) ..].
__device__ __forceinline__ void jacobi_product(double (&d)[2], double a, double b) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(d[0]), "+d"(d[1]) : "d"(a), "d"(b));
#else
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const double left = __shfl_sync(~0u, a, lane / 4 * 4 + k);
#pragma unroll
    for (int j = 0; j < 2; ++j) d[j] = fma(left, __shfl_sync(~0u, b, (lane % 4 * 2 + j) * 4 + k), d[j]);
  }
#endif
}

// Turns parts x and y, x < y, of a [n, n], in as many sweeps of rotations as `inner` says, of all pairs or those of both parts; whether they
// were far from right angles. All threads of the block.
__device__ __forceinline__ bool jacobi_visit(double* a, int n, int x, int y, int inner, bool all, JacobiShared& s) {
  // Opaque: what is reckoned from it ahead would have no registers.
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  const int lane = thread % 32, warp = thread / 32;
  const auto row = [&](int i) { return (i < kPart ? x : y - 1) * kPart + i; };
  // Gram matrix: tiles on and below the diagonal, sixteen columns in four a warp.
  {
    constexpr int kRows = kPair / 8, kTiles = kRows * (kRows + 1) / 2, kSteps = 4;
    double sum[kTiles][2] = {}, next[kSteps][kRows];
    auto fetch = [&](int first) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int r = row(8 * i + lane / 4), c = first + lane % 4;
        const double* from = a + (i64)r * n + c;
#pragma unroll
        for (int k = 0; k < kSteps; ++k) next[k][i] = r < n && c + 4 * k < n ? from[4 * k] : 0.;
      }
    };
    fetch(4 * kSteps * warp);
#pragma unroll 1
    for (int first = 4 * kSteps * warp; first < n; first += 4 * kSteps * kJacobiWarps) {
      double now[kSteps][kRows];
#pragma unroll
      for (int e = 0; e < kSteps * kRows; ++e) now[e / kRows][e % kRows] = next[e / kRows][e % kRows];
      fetch(first + 4 * kSteps * kJacobiWarps);
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
#pragma unroll
        for (int i = 0, nth = 0; i < kRows; ++i)
#pragma unroll
          for (int j = 0; j <= i; ++j, ++nth) jacobi_product(sum[nth], now[k][i], now[k][j]);
    }
    // Two warps lay theirs down, two add to that.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      double(*to)[kPairPitch] = warp % 2 ? s.turn : s.gram;
      if (warp / 2 == half) {
#pragma unroll
        for (int i = 0, nth = 0; i < kRows; ++i)
#pragma unroll
          for (int j = 0; j <= i; ++j, ++nth) {
            double2* cell = (double2*)&to[8 * i + lane / 4][8 * j + lane % 4 * 2];
            double2 v = make_double2(sum[nth][0], sum[nth][1]);
            if (half) v.x += cell->x, v.y += cell->y;
            *cell = v;
          }
      }
      __syncthreads();
    }
  }
  constexpr int kEach = kPair / kJacobiWarps;
  double mine[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = warp + e * kJacobiWarps, low = max(i, lane), left = min(i, lane);
    mine[e] = s.gram[low][left] + s.turn[low][left];
  }
  __syncthreads();
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = warp + e * kJacobiWarps;
    s.gram[i][lane] = mine[e], s.turn[i][lane] = i == lane ? 1. : 0.;
  }
  __syncthreads();
  bool off = false, far = false;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = warp + e * kJacobiWarps;
    const double square = mine[e] * mine[e], lengths = s.gram[i][i] * s.gram[lane][lane];
    off |= i != lane && square > kRight * kRight * lengths;
    far |= i != lane && square > kAgain * kAgain * lengths;
  }
  if (!__syncthreads_or(off)) return false;
  const bool again = __syncthreads_or(far);

  const int rounds = inner * (all ? kPair - 1 : kPart);
  int r = 0;
#pragma unroll 1
  for (int nth = 0; nth < rounds; ++nth) {
    // Rows that pair k turns.
    const auto pair_of = [&](int k) { return all ? jacobi_pair(k, r, kPair) : make_int2(k, kPart + (k + r) % kPart); };
    if (threadIdx.x < kPart) {
      const int2 at = pair_of(threadIdx.x);
      s.angles[threadIdx.x] = jacobi_angle(s.gram[at.x][at.x], s.gram[at.y][at.y], s.gram[at.x][at.y]);
    }
    __syncthreads();
#pragma unroll
    for (int e = threadIdx.x; e < kPart * kPart; e += kJacobiThreads) {
      const int2 i = pair_of(e / kPart), j = pair_of(e % kPart);
      const double2 left = s.angles[e / kPart], right = s.angles[e % kPart];
      double* const p = s.gram[i.x];
      double* const q = s.gram[i.y];
      const double pj = p[j.x], pk = p[j.y], qj = q[j.x], qk = q[j.y];
      const double uj = left.x * pj - left.y * qj, uk = left.x * pk - left.y * qk;
      const double vj = left.y * pj + left.x * qj, vk = left.y * pk + left.x * qk;
      p[j.x] = right.x * uj - right.y * uk, p[j.y] = right.y * uj + right.x * uk;
      q[j.x] = right.x * vj - right.y * vk, q[j.y] = right.y * vj + right.x * vk;
    }
#pragma unroll
    for (int k = warp; k < kPart; k += kJacobiWarps) {
      const int2 at = pair_of(k);
      const double2 t = s.angles[k];
      const double p = s.turn[at.x][lane], q = s.turn[at.y][lane];
      s.turn[at.x][lane] = t.x * p - t.y * q;
      s.turn[at.y][lane] = t.y * p + t.x * q;
    }
    __syncthreads();
    if (++r == (all ? kPair - 1 : kPart)) r = 0;
  }

  // The rotations times the rows: eight columns at a time a warp.
  constexpr int kRows = kPair / 8, kSteps = kPair / 4;
  double turn[kRows][kSteps];
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int k = 0; k < kSteps; ++k) turn[i][k] = s.turn[8 * i + lane / 4][4 * k + lane % 4];
  double next[kSteps];
  auto fetch = [&](int first) {
    const int c = first + lane / 4;
    // Opaque, so that not every row has its registers.
    int low = x * kPart + lane % 4, high = y * kPart + lane % 4;
    asm volatile("" : "+r"(low), "+r"(high));
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int i = (k < kSteps / 2 ? low : high) + 4 * (k % (kSteps / 2));
      next[k] = i < n && c < n ? a[i * n + c] : 0.;
    }
  };
  fetch(8 * warp);
#pragma unroll 1
  for (int first = 8 * warp; first < n; first += 8 * kJacobiWarps) {
    double sum[kRows][2] = {}, from[kSteps];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) from[k] = next[k];
    fetch(first + 8 * kJacobiWarps);
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int i = 0; i < kRows; ++i) jacobi_product(sum[i], turn[i][k], from[k]);
    int low = x * kPart + lane / 4, high = y * kPart + lane / 4;
    asm volatile("" : "+r"(low), "+r"(high));
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int to = (i < kRows / 2 ? low : high) + 8 * (i % (kRows / 2)), at = first + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (to < n && at + j < n) a[to * n + at + j] = sum[i][j];
    }
  }
  // The next visit writes to what this one reads.
  __syncthreads();
  return again;
}

// Turns the rows of a [n, n] until they are at right angles, by all blocks of the group, which meet behind that; how many sweeps it took.
__device__ __forceinline__ int jacobi(double* a, int n, JacobiGroup& g, JacobiShared& s) {
  const int parts = (n + kPart - 1) / kPart, players = max(2, parts + parts % 2);
  for (int sweep = 0; sweep < kMostSweeps; ++sweep, ++g.sweep) {
    volatile unsigned* again = g.counters + 1;
    if (g.rank == 0 && threadIdx.x == 0) again[(g.sweep + 1) % 3] = 0;
    for (int r = 0; r + 1 < players; ++r) {
      for (int k = g.rank; k < players / 2; k += g.blocks) {
        const int2 at = jacobi_pair(k, r, players);
        // Of an odd number of parts one rests, but in the first round, where the rows of each part meet each other.
        if (at.y >= parts && r > 0) continue;
        const bool alone = players == 2;
        if (jacobi_visit(a, n, at.x, at.y, alone ? kInnerAlone : kInner, r == 0, s) && threadIdx.x == 0) again[g.sweep % 3] = 1;
      }
      jacobi_meet(g);
    }
    if (!again[g.sweep % 3]) {
      ++g.sweep;
      return sweep + 1;
    }
  }
  return kMostSweeps;
}

// |row| of the row that begins at `a`, by a warp.
__device__ __forceinline__ double jacobi_length(const double* a, int n) {
  double square = 0;
  for (int i = threadIdx.x % 32; i < n; i += 32) square = fma(a[i], a[i], square);
  return sqrt(warp_sum(square));
}

extern "C" __global__ void jacobi_clear(unsigned* counters, int count) { clear_counters(counters, count); }

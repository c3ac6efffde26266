// Products of f32 on f32 units: 64 x 64 elements a block of 256 threads, 4 x 4 a thread, 16 terms of the sums at a time from
// shared memory. A step of the inner loop is 2 loads of 16 bytes for 16 multiply-adds: half of the rate of those units.
#pragma once

constexpr int kTile = 64;
constexpr int kDepth = 16;
// A row of a tile is 68 floats: rows start in different banks and at multiples of 16 bytes.
constexpr int kRow = kTile + 4;

struct Tiles {
  float a[kDepth][kRow];
  float b[kDepth][kRow];
};

// acc[i][j] += sum_k a[k][4 i'] b[k][4 j'] for the thread's 4 rows of a and 4 of b.
__device__ __forceinline__ void multiply(const Tiles& s, float (&acc)[4][4]) {
  const int i = threadIdx.x % 16 * 4, j = threadIdx.x / 16 * 4;
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
    const float4 a = *reinterpret_cast<const float4*>(&s.a[k][i]);
    const float4 b = *reinterpret_cast<const float4*>(&s.b[k][j]);
    const float x[4] = {a.x, a.y, a.z, a.w}, w[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int p = 0; p < 4; ++p) {
#pragma unroll
      for (int q = 0; q < 4; ++q) acc[p][q] = fmaf(x[p], w[q], acc[p][q]);
    }
  }
}

// acc += some, which begins again.
__device__ __forceinline__ void add_up(float (&acc)[4][4], float (&some)[4][4]) {
#pragma unroll
  for (int p = 0; p < 4; ++p) {
#pragma unroll
    for (int q = 0; q < 4; ++q) acc[p][q] += some[p][q], some[p][q] = 0.0f;
  }
}

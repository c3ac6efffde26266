// Products of tiles of 16-bit numbers on tensor cores by mma.sync, sums in f32 (compute capability 8.0 and later).
//
// A tile lies in shared memory by rows with 16 bytes between them, so that the eight rows of an ldmatrix lie in eight
// different banks: its width is a multiple of 16, which makes a row an odd number of 16-byte pieces. In a product a b over k
// either tile may lie by its own rows (a by m, b by n) or by rows of k.
#pragma once

__device__ __forceinline__ unsigned shared_at(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Bytes from one row of a tile to the next.
constexpr int pitch_of(int width) { return 2 * width + 16; }

// Four 8 x 8 matrices; lane i says where row i % 8 of matrix i / 8 is.
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], unsigned from) {
  if (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

// d (16 x 8) += a (16 x 16) b (16 x 8). With g = lane / 4 and c = lane % 4 a thread has d of rows g and g + 8, columns 2c
// and 2c + 1.
template <bool kBf16>
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if (kBf16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers rounded to 16 bits, the first in the lower half; and the two numbers again.
template <bool kBf16>
__device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned d;
  if (kBf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
template <bool kBf16>
__device__ __forceinline__ float2 unpack(unsigned x) {
  float2 d;
  if (kBf16) {
    d.x = __uint_as_float(x << 16);
    d.y = __uint_as_float(x & 0xffff0000u);
  } else {
    asm("{\n\t.reg .b16 low, high;\n\t"
        "mov.b32 {low, high}, %2;\n\t"
        "cvt.f32.f16 %0, low;\n\t"
        "cvt.f32.f16 %1, high;\n\t}"
        : "=f"(d.x), "=f"(d.y)
        : "r"(x));
  }
  return d;
}
// Two numbers as sums of two of f16, the larger ones and what they leave.
__device__ __forceinline__ void split(unsigned& high, unsigned& low, float x0, float x1) {
  high = pack<false>(x0, x1);
  const float2 y = unpack<false>(high);
  low = pack<false>(x0 - y.x, x1 - y.y);
}
// The products of two pairs, rounded. Multiplications alone of bf16 came with sm_90.
template <bool kBf16>
__device__ __forceinline__ unsigned times(unsigned x, unsigned y) {
  unsigned d;
  if (kBf16)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(y), "r"(0x80008000u));
  else
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(y), "r"(0x80008000u));
  return d;
}

// 16 bytes to shared memory, or zeros there; they come when the group they are committed to is waited for.
__device__ __forceinline__ void copy_ahead(unsigned to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16u : 0u) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `groups` of a thread's latest groups are under way, of 0 to 2.
__device__ __forceinline__ void copy_wait(int groups) {
  if (groups == 0)
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  else if (groups == 1)
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  else
    asm volatile("cp.async.wait_group 2;" ::: "memory");
}

// Where a lane's row lies of four matrices that make 16 x 16 elements, counted along the rows of memory first, or across.
template <int kPitch>
__device__ __forceinline__ unsigned lane_down() {
  const unsigned lane = threadIdx.x % 32;
  return lane % 16 * kPitch + lane / 16 * 16;
}
template <int kPitch>
__device__ __forceinline__ unsigned lane_across() {
  const unsigned lane = threadIdx.x % 32;
  return (lane % 8 + lane / 16 * 8) * kPitch + lane / 8 % 2 * 16;
}

// acc (16 MT x 8 NT, one warp) += a b over kTerms terms, tiles at the shared addresses a and b. kAByTerms and kBByTerms: the
// tile lies by rows of terms, not by rows of its own. kWeigh: each term of b has a weight, the pairs of terms at `weights`.
template <bool kBf16, int kTerms, bool kAByTerms, int kPitchA, bool kBByTerms, int kPitchB, bool kWeigh, int MT, int NT>
__device__ __forceinline__ void multiply(float (&acc)[MT][NT][4], unsigned a, unsigned b, const unsigned* weights) {
  static_assert(NT % 2 == 0 && kTerms % 16 == 0, "matrices of b are loaded for 16 columns at a time");
  a += kAByTerms ? lane_across<kPitchA>() : lane_down<kPitchA>();
  b += kBByTerms ? lane_down<kPitchB>() : lane_across<kPitchB>();
#pragma unroll
  for (int k = 0; k < kTerms / 16; ++k) {
    unsigned fb[NT / 2][4];
#pragma unroll
    for (int n = 0; n < NT / 2; ++n)
      load_matrices<kBByTerms>(fb[n], b + n * (kBByTerms ? 32 : 16 * kPitchB) + k * (kBByTerms ? 16 * kPitchB : 32));
    if (kWeigh) {
      const unsigned low = weights[8 * k + threadIdx.x % 4], high = weights[8 * k + 4 + threadIdx.x % 4];
#pragma unroll
      for (int n = 0; n < NT / 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) fb[n][e] = times<kBf16>(fb[n][e], e % 2 ? high : low);
    }
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      unsigned fa[4];
      load_matrices<kAByTerms>(fa, a + m * (kAByTerms ? 32 : 16 * kPitchA) + k * (kAByTerms ? 16 * kPitchA : 32));
#pragma unroll
      for (int n = 0; n < NT; ++n) mma<kBf16>(acc[m][n], fa, fb[n / 2][n % 2 * 2], fb[n / 2][n % 2 * 2 + 1]);
    }
  }
}

// The pairs that a quad of lanes holds of 32 columns of a row, x[j] being columns 8 j + 2 c: lane c gets columns 8 c to 8 c + 7.
__device__ __forceinline__ uint4 gather_columns(unsigned x0, unsigned x1, unsigned x2, unsigned x3) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
  unsigned s = __shfl_xor_sync(~0u, odd ? x0 : x1, 1);
  if (odd) x0 = s; else x1 = s;
  s = __shfl_xor_sync(~0u, odd ? x2 : x3, 1);
  if (odd) x2 = s; else x3 = s;
  s = __shfl_xor_sync(~0u, high ? x0 : x2, 2);
  if (high) x0 = s; else x2 = s;
  s = __shfl_xor_sync(~0u, high ? x1 : x3, 2);
  if (high) x1 = s; else x3 = s;
  return {x0, x1, x2, x3};
}

// What the mLSTM kernels by chains (sm_90a) share: what is known of a chunk of 64 tokens before any state is, and how blocks come to it.
#pragma once
#include "hopper_chains.cuh"
#include "cluster.cuh"

// A chunk's record in memory: P' and dS as slices, rounded; then, 64 numbers each, what tokens put into the state, what rows read
// of it, l's part, e^-m, and what is left of the state (one number); then u = q.dq - k.dk and k.dk, at first of the chunk's pairs alone.
// Forward it is P, and those vectors with sums of P's rows as l's part and, once that is known, 1 / N instead of it.
constexpr int kPairsAt = 0, kSlopesAt = kSlice, kVectorsAt = 2 * kSlice, kVectors = 16 * kRows + 16;
constexpr int kRatesAt = kVectorsAt + kVectors, kRecord = kRatesAt + 8 * kRows;
constexpr int kWeighedAt = kSlice, kWeighed = kWeighedAt + kVectors;
enum { kInto = 0, kRead = kRows, kOfL = 2 * kRows, kFloor = 3 * kRows, kLeft = 4 * kRows };

__device__ __forceinline__ char* record_of(const Call& x, i64 chain, i64 chunk) {
  return x.records + (chain * x.chunks + chunk) * kRecord;
}
__device__ __forceinline__ char* weighed_of(const Call& x, i64 chain, i64 chunk) {
  return x.records + (chain * x.chunks + chunk) * kWeighed;
}

// A chunk of a chain that a block has, of as many blocks as are resident, and the next one: from where it is on, and behind it.
struct Turn {
  i64 nth;
  Chain chain;
};
__device__ __forceinline__ void skip_turn(const Call& x, Turn& turn) {
  turn.nth += gridDim.x % x.chunks;
  turn.chain.nth += gridDim.x / x.chunks + (turn.nth >= x.chunks);
  if (turn.nth >= x.chunks) turn.nth -= x.chunks;
}
__device__ __forceinline__ bool find_turn(const Call& x, Turn& turn) {
  for (; turn.chain.nth < x.chains; skip_turn(x, turn)) {
    turn.chain = chain_of(x, turn.chain.nth);
    if (turn.nth < turn.chain.chunks) return true;
  }
  return false;
}
__device__ __forceinline__ bool next_turn(const Call& x, Turn& turn) {
  skip_turn(x, turn);
  return find_turn(x, turn);
}
__device__ __forceinline__ bool first_turn(const Call& x, Turn& turn) {
  turn.nth = blockIdx.x % x.chunks;
  turn.chain.nth = blockIdx.x / x.chunks;
  return find_turn(x, turn);
}

// A place that 128 threads fill with slices of tokens: of a whole chunk that has maps (`whole`) one thread asks the copy engine for all
// its `bytes`, of another all threads bring what is there.
__device__ __forceinline__ void place_begins(u64* full, int bytes, bool whole) {
  if (!whole) return;
  if (threadIdx.x % 128 == 0)
    barrier_expect(full, bytes);
  else
    barrier_arrive(full);
}
__device__ __forceinline__ void place_ends(u64* full, bool whole) {
  if (whole) return;
  copy_commit();
  copy_wait(0);
  products_see();
  barrier_arrive(full);
}
// Of it `slices` of a tensor, from token `first` and column d.
__device__ __forceinline__ void bring_slices(const Call& x, const Maps& maps, const Chain& chain, i64 first, int count, char* to,
                                             int slices, const Tokens& y, int bit, int map, int d, i64 width, u64* full, bool whole) {
  if (whole) {
    if (threadIdx.x % 128 > 0) return;
#pragma unroll 1
    for (int s = 0; s < slices; ++s)
      box_copy(shared_at(to) + s * kSlice, maps.of[map], d + 64 * s, (int)first, (int)chain.head, (int)chain.batch, shared_at(full));
    return;
  }
  Source s = tokens_at(x, y, bit, chain, first, d, count, width);
#pragma unroll 1
  for (int nth = 0; nth < slices; ++nth) {
    fetch_slice(to + nth * kSlice, s);
    s.data += 64 * s.step;
    s.columns -= 64;
  }
}
// The blocks that each have a part of q.dq and k.dk: of heads of v above 256 two blocks have half of the columns each.
__device__ __forceinline__ int parts_of(const Call& x) { return (int)((x.dk + 127) / 128) * (x.dv > 256 ? 2 : 1); }
// A block's part of a chunk, of its eight warps' in shared memory, by 64 threads.
__device__ __forceinline__ void store_rates(const Call& x, float* to, const float* from, i64 chain, i64 chunk, int t) {
  float sum = 0.f;
#pragma unroll
  for (int w = 0; w < 8; ++w) sum += from[w * kRows + t];
  to[((chain * x.chunks + chunk) * gridDim.x + blockIdx.x) * kRows + t] = sum;
}
// Of two numbers that lanes d apart have, the sum of the first for the lower lane, of the second for the other.
__device__ __forceinline__ float2 fold(float2 first, float2 second, int d) {
  const bool high = threadIdx.x & d;
  const float2 mine = high ? second : first, other = high ? first : second;
  return {mine.x + __shfl_xor_sync(~0u, other.x, d), mine.y + __shfl_xor_sync(~0u, other.y, d)};
}

// Four 8 x 8 matrices of 16-bit numbers, as mma has them, turned, to rows of 16 bytes: lane l has the address of row l % 8 of matrix
// l / 8.
__device__ __forceinline__ void store_turned(unsigned to, const unsigned (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]),
               "r"(x[3])
               : "memory");
}
// The same of matrices as they are.
__device__ __forceinline__ void store_matrices(unsigned to, const unsigned (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

// Shared memory by its own addresses, which are half as wide.
__device__ __forceinline__ float shared1(unsigned at) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at));
  return x;
}
__device__ __forceinline__ float2 shared2(unsigned at) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at));
  return x;
}
__device__ __forceinline__ float4 shared4(unsigned at) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(at));
  return x;
}
__device__ __forceinline__ void store_shared2(unsigned at, float2 x) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x.x), "f"(x.y) : "memory");
}
__device__ __forceinline__ uint4 shared_piece(unsigned at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at));
  return x;
}
// Eight elements that lie `step` apart, together where they are plain.
__device__ __forceinline__ uint4 load_at(const char* from, i64 step, bool plain) {
  if (plain) return *reinterpret_cast<const uint4*>(from);
  unsigned w[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const unsigned low = *reinterpret_cast<const unsigned short*>(from + 2 * e * step);
    w[e] = low | (unsigned)*reinterpret_cast<const unsigned short*>(from + (2 * e + 1) * step) << 16;
  }
  return {w[0], w[1], w[2], w[3]};
}
__device__ __forceinline__ void store_at(char* to, i64 step, bool plain, uint4 piece) {
  if (plain) {
    *reinterpret_cast<uint4*>(to) = piece;
    return;
  }
#pragma unroll 1
  for (int e = 0; e < 8; ++e, to += 2 * step) {
    *reinterpret_cast<unsigned short*>(to) = (unsigned short)piece.x;
    piece = {piece.x >> 16 | piece.y << 16, piece.y >> 16 | piece.z << 16, piece.z >> 16 | piece.w << 16, piece.w >> 16};
  }
}
// Sums that a wait for others made ready too: no use of them moves before it, nor one before this behind it.
__device__ __forceinline__ void made_ready(float (&y)[8][4]) {
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(y[j][e]));
}

// Two weights as the products that change the state have them.
__device__ __forceinline__ unsigned rounded(float2 w) {
  return kBf16 ? pack<kBf16>(w.x, w.y) : pack<kBf16>(within_f16(w.x), within_f16(w.y));
}

// out += state b, of 64 tokens: of the state 64 rows in a warpgroup's registers, rounded, in one part or in two; b lies by its own rows.
// seen(step, operand) of the first parts of 16 columns each.
template <int kParts, int NT, typename F>
__device__ __forceinline__ void read_state(float (&out)[8][4], const float (&state)[NT][4], u64 b, F seen) {
  constexpr int kAtOnce = 3 - kParts;  // times 16 columns
  constexpr int kDeep = 2;             // groups of products at a time
  unsigned a[kDeep][2][4];
#pragma unroll
  for (int s = 0; s < NT / (2 * kAtOnce); ++s) {
    // Of the first nothing is waited for, but the compiler waits itself where no one does.
    if (s > 0) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kDeep - 1) : "memory");
    if (s >= kDeep) keep(a[s % kDeep]);
#pragma unroll
    for (int e = 0; e < kAtOnce; ++e) {
      const int j = 2 * (s * kAtOnce + e);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float low = state[j + w / 2][w % 2 * 2], high = state[j + w / 2][w % 2 * 2 + 1];
        a[s % kDeep][e][w] = pack<kBf16>(low, high);
        if (kParts == 1) continue;
        const float2 of = unpack<kBf16>(a[s % kDeep][0][w]);
        a[s % kDeep][1][w] = pack<kBf16>(low - of.x, high - of.y);
      }
      seen(s * kAtOnce + e, a[s % kDeep][e]);
    }
    products_begin();
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int at = s * kAtOnce + (kParts == 1 ? e : 0);  // times 16 columns
      wgmma_of<kBf16, false>(out, a[s % kDeep][e], further(b, at / 4 * kSlice + at % 4 * 32));
    }
    products_end();
  }
  products_wait(out);
#pragma unroll
  for (int s = 0; s < kDeep; ++s) keep(a[s]);
}

// For the gates: what a warp has of the products of sums and the rows `own` that they are of, weighed as the other pass has them; over the
// eight lanes that have the same tokens lane l gets those of tokens 2 l and 2 l + 1. `turn` as load_matrices has it of a slice.
__device__ __forceinline__ float2 rate_tokens(const float (&out)[8][4], unsigned own, unsigned turn, unsigned weights) {
  float2 dots[2][2];
#pragma unroll
  for (int near = 0; near < 2; ++near) {
    float2 of[2][2];
#pragma unroll
    for (int far = 0; far < 2; ++far) {
      const int e = near + 2 * far;
      unsigned rows[4];
      load_matrices<true>(rows, own + turn + 16 * e * kLine);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned w = rounded(shared2(weights + 64 * e + 32 * half));
        const float2 one = unpack<kBf16>(times<kBf16>(rows[2 * half], w)), two = unpack<kBf16>(times<kBf16>(rows[2 * half + 1], w));
        const auto& with = out[2 * e + half];
        of[far][half] = {fmaf(one.x, with[0], two.x * with[2]), fmaf(one.y, with[1], two.y * with[3])};
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) dots[near][half] = fold(of[0][half], of[1][half], 16);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) dots[0][half] = fold(dots[0][half], dots[1][half], 8);
  return fold(dots[0][0], dots[0][1], 4);
}
// Sums of two tokens a thread, as `weights` of the thread's tokens has them.
__device__ __forceinline__ void scale_tokens(float (&out)[8][4], unsigned weights) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 w = shared2(weights + 32 * j);
#pragma unroll
    for (int e = 0; e < 4; ++e) out[j][e] *= e % 2 ? w.y : w.x;
  }
}

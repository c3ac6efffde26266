// What the mLSTM kernels for heads of at most 64 share: a chunk of up to 64 tokens a block, whose every tile is one square of
// shared memory, and warps that have 16 rows of a product with all of its columns, so that pairs are operands where they are.
#pragma once
#include "tensor.cuh"

// Blocks a multiprocessor: where the compiler spills for more, or shared memory has no room, fewer.
constexpr bool kRoomy = kArch >= 900 && kArch < 1000;
static_assert(kEdge == 64 && kColumns == 64 && kBlock == 128, "four warps of 16 rows");
constexpr int kSquare = kEdge * kPairPitch;  // bytes of a tile
typedef float Rows[8][4];                    // sums of 16 rows of a warp, 64 columns

constexpr int kSteps16 = kEdge / 16;         // steps of 16 terms of a product
constexpr float kLog2E = 1.44269504f;
typedef unsigned Operand[kSteps16][4];       // 16 rows of a warp as the first operand of a product

// As chain_of, of numbers that 32 bits hold.
__device__ __forceinline__ Chain chain_at(const Call& x, unsigned nth) {
  const unsigned heads = (unsigned)x.heads, s = nth / heads;
  Chain chain = {nth, s, nth - s * heads, 0, x.steps, 0};
  if (x.cuts) {
    // Cuts that are none cannot be refused here, but lead nowhere either.
    const int steps = (int)x.steps, from = min(max(x.cuts[s], 0), steps), to = min(max(x.cuts[s + 1], from), steps);
    chain = {nth, 0, nth - s * heads, from, to - from, 0};
  }
  const unsigned length = (unsigned)x.length;
  chain.chunks = ((unsigned)chain.len + length - 1) / length;
  return chain;
}

// As chunk_of, likewise.
__device__ __forceinline__ Chunk chunk_at(const Call& x, const Chain& chain, int nth) {
  const int begin = nth * (int)x.length;
  const i64 first = chain.from + begin;
  return {first, (chain.batch * x.heads + chain.head) * x.steps + first, min((int)x.length, (int)chain.len - begin)};
}

__device__ __forceinline__ int first_row() { return threadIdx.x / 32 * 16; }

// f(half, row, column, x, y) for each pair of neighbours of a row that this thread holds, of its two rows.
template <typename F>
__device__ __forceinline__ void each_of_rows(Rows& acc, F f) {
  const int lane = threadIdx.x % 32, row = first_row() + lane / 4, column = lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) f(half, row + 8 * half, column + 8 * n, acc[n][2 * half], acc[n][2 * half + 1]);
}
__device__ __forceinline__ void clear(Rows& acc) { each_of_rows(acc, [](int, int, int, float& y, float& z) { y = z = 0.f; }); }
// The sum of what the four threads of a row have.
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ __forceinline__ float2 pair_at(const char* square, int row, int column) {
  return unpack<kBf16>(*reinterpret_cast<const unsigned*>(square + row * kPairPitch + 2 * column));
}

// The warp's rows of a tile as an operand.
__device__ __forceinline__ void take(Operand& of, const char* square) {
  const unsigned from = shared_at(square) + first_row() * kPairPitch + lane_down<kPairPitch>();
#pragma unroll
  for (int k = 0; k < kSteps16; ++k) load_matrices<false>(of[k], from + k * 32);
}
// f(half, eight, pair) for the pairs of an operand: it lies in registers as sums of a product do, of which `eight` counts the
// columns in eights.
template <typename F>
__device__ __forceinline__ void each_of_operand(const Operand& of, F f) {
#pragma unroll
  for (int k = 0; k < kSteps16; ++k)
#pragma unroll
    for (int e = 0; e < 4; ++e) f(e % 2, 2 * k + e / 2, unpack<kBf16>(of[k][e]));
}
// One step of 16 terms of acc += a b, b's tile by rows of terms or by its own.
template <bool kByTerms>
__device__ __forceinline__ void multiply_step(Rows& acc, const unsigned (&a)[4], const char* b, int k) {
  const unsigned from = shared_at(b) + (kByTerms ? lane_down<kPairPitch>() + k * 16 * kPairPitch : lane_across<kPairPitch>() + k * 32);
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    unsigned fb[4];
    load_matrices<kByTerms>(fb, from + n * (kByTerms ? 32 : 16 * kPairPitch));
    mma<kBf16>(acc[2 * n], a, fb[0], fb[1]);
    mma<kBf16>(acc[2 * n + 1], a, fb[2], fb[3]);
  }
}
template <bool kByTerms>
__device__ __forceinline__ void multiply_all(Rows& acc, const Operand& a, const char* b) {
#pragma unroll
  for (int k = 0; k < kSteps16; ++k) multiply_step<kByTerms>(acc, a[k], b, k);
}
// acc += pairs b, b by rows of terms, of which none behind the warp's last row has a pair.
__device__ __forceinline__ void multiply_pairs(Rows& acc, const Operand& pairs, const char* b) {
#pragma unroll
  for (int k = 0; k < kSteps16; ++k)
    if (16 * k <= first_row()) multiply_step<true>(acc, pairs[k], b, k);
}
// acc += pairs^T b of the pairs of all warps, in a tile, of which those of terms before the warp's first row are none.
__device__ __forceinline__ void multiply_across(Rows& acc, const char* pairs, const char* b) {
  const unsigned from = shared_at(pairs) + first_row() * 2 + lane_across<kPairPitch>();
#pragma unroll
  for (int k = 0; k < kSteps16; ++k)
    if (16 * k >= first_row()) {
      unsigned a[4];
      load_matrices<true>(a, from + k * 16 * kPairPitch);
      multiply_step<true>(acc, a, b, k);
    }
}
// Pairs of the warp's rows and 16 columns at a time, those that there are: weigh(half, column) is what a sum of a . b^T is
// multiplied by, plus(half) what is added before. Returns sums of rows, not yet of all four threads.
template <typename Weigh, typename Plus>
__device__ __forceinline__ float2 make_pairs(Operand& pairs, const Operand& a, const char* b, Weigh weigh, Plus plus) {
  const unsigned from = shared_at(b) + lane_across<kPairPitch>();
  const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
  float sums[2] = {0.f, 0.f};
#pragma unroll
  for (int j = 0; j < kSteps16; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) pairs[j][e] = 0;
    if (16 * j > first_row()) continue;
    float s[2][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps16; ++k) {
      unsigned fb[4];
      load_matrices<false>(fb, from + j * 16 * kPairPitch + k * 32);
      mma<kBf16>(s[0], a[k], fb[0], fb[1]);
      mma<kBf16>(s[1], a[k], fb[2], fb[3]);
    }
    // On the diagonal later tokens have none.
    const bool diagonal = 16 * j == first_row();
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int n = e / 2, half = e % 2, later = 8 * n + column - row - 8 * half;
      const float2 w = weigh(half, 16 * j + 8 * n + column);
      const float y = diagonal && later > 0 ? 0.f : (s[n][2 * half] + plus(half)) * w.x;
      const float z = diagonal && later > -1 ? 0.f : (s[n][2 * half + 1] + plus(half)) * w.y;
      sums[half] += y + z;
      pairs[j][e] = pack<kBf16>(y, z);
    }
  }
  return {sums[0], sums[1]};
}
// Where this thread's numbers lie in the warp's rows of a tile.
__device__ __forceinline__ char* row_of(char* square) {
  const int lane = threadIdx.x % 32;
  return square + (first_row() + lane / 4) * kPairPitch + lane % 4 * 4;
}
// Into the warp's rows of a tile, which nobody else reads any more.
__device__ __forceinline__ void put(char* square, const Operand& of) {
  __syncwarp();
  char* at = row_of(square);
#pragma unroll
  for (int k = 0; k < kSteps16; ++k)
#pragma unroll
    for (int e = 0; e < 4; ++e) *reinterpret_cast<unsigned*>(at + e % 2 * 8 * kPairPitch + 32 * k + e / 2 * 16) = of[k][e];
}

// Where a chunk's tokens begin, in bytes from a tensor's first.
__device__ __forceinline__ char* tokens_of(const Tokens& y, const Chain& chain, const Chunk& chunk) {
  return y.data + 2 * place(y, chain, chunk.first, 0);
}
// Rows of `width` numbers to memory, rounded, by way of the warp's rows of a tile that nobody else reads.
__device__ __forceinline__ void store_rows(const Call& x, const Tokens& to, int bit, const Chain& chain, const Chunk& chunk,
                                           i64 width, Rows& acc, char* square) {
  __syncwarp();
  char* at = row_of(square);
  each_of_rows(acc, [&](int half, int, int d, float& y, float& z) {
    *reinterpret_cast<unsigned*>(at + half * 8 * kPairPitch + 2 * (d - threadIdx.x % 4 * 2)) = pack<kBf16>(y, z);
  });
  __syncwarp();
  const int lane = threadIdx.x % 32, d = lane % 8 * 8, row = first_row() + lane / 8;
  const char* from = square + row * kPairPitch + 2 * d;
  char* data = tokens_of(to, chain, chunk) + 2 * row * to.t + 2 * d * to.d;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (row + 4 * i >= chunk.n || d >= (int)width) break;
    const uint4 piece = *reinterpret_cast<const uint4*>(from + 4 * i * kPairPitch);
    if (x.plain & bit) {
      *reinterpret_cast<uint4*>(data + 8 * i * to.t) = piece;
      continue;
    }
    const unsigned words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int e = 0; e < 8; ++e)
      *reinterpret_cast<unsigned short*>(data + 8 * i * to.t + 2 * e * to.d) = (unsigned short)(words[e / 2] >> e % 2 * 16);
  }
}

// A tile of `rows` rows of `width` numbers, the others zeros.
__device__ __forceinline__ void fetch_square(char* to, const char* from, i64 stride, int rows, int width) {
  const int row = threadIdx.x / 8, column = threadIdx.x % 8 * 8;
  const unsigned at = shared_at(to) + row * kPairPitch + 2 * column;
  const char* data = from + row * stride + 2 * column;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool there = row + 16 * i < rows && column < width;
    copy_ahead(at + 16 * i * kPairPitch, there ? data + 16 * i * stride : from, there);
  }
}
__device__ __forceinline__ void fetch_tokens(char* to, const Call& x, const Tokens& y, int bit, const Chain& chain,
                                             const Chunk& chunk, i64 width) {
  if (x.plain & bit)
    fetch_square(to, tokens_of(y, chain, chunk), 2 * y.t, chunk.n, (int)width);
  else
    fetch<kEdge, kEdge>(to, tokens_at(x, y, bit, chain, chunk.first, 0, chunk.n, width));
}
__device__ __forceinline__ void fetch_state(char* to, const Call& x, const float* c, i64 slot) {
  fetch_square(to, reinterpret_cast<const char*>(c) + 2 * slot * x.dk * x.dv, 2 * x.dv, (int)x.dk, (int)x.dv);
}

// max(|l|, e^-m) + eps, and whether l decides.
__device__ __forceinline__ float denominator_of(const Call& x, float l, float m, bool* open) {
  const float floor = expf(-m), size = fabsf(l);
  *open = size > floor;
  return (size < floor ? floor : size) + (float)x.eps;
}

// A warp makes the gates of a chunk: the sums b of log f, log i - b, and the largest of them up to each token, with log i within
// bounds, or -b with the sigmoid gate; lane l has tokens 2 l and 2 l + 1. All of it goes to memory, too.
struct ChunkGates {
  double b[2];
  float column[2], until[2];
  double sum;  // b of the last token
  float ref;   // what weighs 1 in the sum of the chunk: the largest log i - b, or -b of the last token
  bool on[2];

  __device__ __forceinline__ ChunkGates(const Call& x, const Chain& chain, const Chunk& chunk, i64 nth) {
    const int lane = threadIdx.x % 32;
    const float lowest = __int_as_float(0xff800000);
    auto log_of = [](float y) { return min(y, 0.f) - log1pf(expf(-fabsf(y))); };
    float i[2];
    double log_f[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int t = 2 * lane + e;
      on[e] = t < chunk.n;
      log_f[e] = on[e] ? load_gate(x.f, chain, chunk.first + t) : 0.f;
      i[e] = on[e] ? load_gate(x.i, chain, chunk.first + t) : 0.f;
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      log_f[e] = on[e] ? at_least(log_of((float)log_f[e]), kLogForgetLeast) : 0.f;
      if (x.sigmoid) i[e] = log_of(i[e]);
    }
    double both = log_f[0] + log_f[1];
    for (int d = 1; d < 32; d *= 2) {
      const double other = __shfl_up_sync(~0u, both, d);
      if (lane >= d) both += other;
    }
    double before = __shfl_up_sync(~0u, both, 1);
    if (lane == 0) before = 0;
    b[0] = before + log_f[0];
    b[1] = both;
    sum = __shfl_sync(~0u, both, 31);
    float high[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      column[e] = on[e] ? (float)(i[e] - b[e]) : lowest;
      high[e] = on[e] ? (float)(at_least(i[e], kGaugeLeast) - b[e]) : lowest;
    }
    float most = max(high[0], high[1]);
    for (int d = 1; d < 32; d *= 2) {
      const float other = __shfl_up_sync(~0u, most, d);
      if (lane >= d) most = max(most, other);
    }
    float earlier = __shfl_up_sync(~0u, most, 1);
    if (lane == 0) earlier = lowest;
    until[0] = x.sigmoid ? (float)-b[0] : max(earlier, high[0]);
    until[1] = x.sigmoid ? (float)-b[1] : most;
    most = __shfl_sync(~0u, most, 31);
    ref = x.sigmoid ? (float)-sum : most;
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if (on[e]) {
        const i64 flat = chunk.flat + 2 * lane + e;
        x.sums[flat] = b[e];
        x.input[flat] = i[e];
        x.column[flat] = column[e];
        x.until[flat] = until[e];
      }
    if (lane == 0) x.most[chain.nth * x.chunks + nth] = most;
  }
};

// Weights of a chunk's tokens, exactly, and in pairs as multiply takes them.
struct Weights {
  float exact[kEdge];
  unsigned pairs[kEdge / 2];
  __device__ __forceinline__ void put(int pair, float low, float high, float low_n, float high_n) {
    exact[2 * pair] = low_n;
    exact[2 * pair + 1] = high_n;
    if (!kBf16) low = within_f16(low), high = within_f16(high);
    pairs[pair] = pack<kBf16>(low, high);
  }
};

// f16 holds no numbers that are some times 1 / N where a normaliser nearly vanishes. What a chunk makes of such ones it makes in
// units of a power of 2, beyond which none of x is larger than kMostWeight. The whole block takes part; `slots` is of four.
constexpr float kMostWeight = 256.f;
__device__ __forceinline__ float units_of(float x, float* slots) {
  const unsigned most = __reduce_max_sync(~0u, __float_as_uint(x));
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = __uint_as_float(most);
  __syncthreads();
  const float all = max(max(slots[0], slots[1]), max(slots[2], slots[3]));
  return __uint_as_float((__float_as_uint(all / kMostWeight) & 0x7f800000u) + 0x00800000u);
}

// One chunk's part of the state, or of its gradient, for memory: [K, V] in f32 and, where h is normalised, [K] of n. The whole
// block takes part; `parts` is [4][kEdge]. Weights of pairs are in `units`.
__device__ __forceinline__ void store_sum(const Call& x, const char* keys, const char* values, const Weights& weights, float* c,
                                          float* n, i64 at, float* parts, float units) {
  if (x.normalize) {
  const int group = threadIdx.x / 32, k = threadIdx.x % 32 * 2;
  float2 sum = {0.f, 0.f};
#pragma unroll
  for (int t = 0; t < kEdge; t += 4) {
    const float w = weights.exact[t + group];
    const float2 y = pair_at(keys, t + group, k);
    sum.x = fmaf(w, y.x, sum.x);
    sum.y = fmaf(w, y.y, sum.y);
  }
  parts[group * kEdge + k] = sum.x;
  parts[group * kEdge + k + 1] = sum.y;
  __syncthreads();
  const int own = threadIdx.x;
  if (own < x.dk)
    n[at * x.dk + own] = parts[own] + parts[kEdge + own] + parts[2 * kEdge + own] + parts[3 * kEdge + own];
  }
  Rows acc;
  clear(acc);
  const unsigned from = shared_at(keys) + first_row() * 2 + lane_across<kPairPitch>();
#pragma unroll
  for (int k = 0; k < kSteps16; ++k) {
    unsigned of_keys[4];
    load_matrices<true>(of_keys, from + k * 16 * kPairPitch);
    const unsigned low = weights.pairs[8 * k + threadIdx.x % 4], high = weights.pairs[8 * k + 4 + threadIdx.x % 4];
#pragma unroll
    for (int e = 0; e < 4; ++e) of_keys[e] = times<kBf16>(of_keys[e], e / 2 ? high : low);
    multiply_step<true>(acc, of_keys, values, k);
  }
  const int lane = threadIdx.x % 32, row = first_row() + lane / 4, dk = (int)x.dk, dv = (int)x.dv;
  float* to = c + at * x.dk * x.dv + row * dv + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (row + 8 * half < dk && 8 * i + lane % 4 * 2 < dv)
        *reinterpret_cast<float2*>(to + 8 * half * dv + 8 * i) = {units * acc[i][2 * half], units * acc[i][2 * half + 1]};
}

// Four elements of the state, or of n, of one chain through all its chunks: y <- left y + enters part, both factors of the
// chunk. Factors come from `factors(first, shared)` for kTileOf chunks at a time, parts kFlight chunks ahead; `parts` is that
// of the first chunk gone through, and null where there is none. store(y) is called for each.
constexpr int kTileOf = 128, kFlight = 8;
template <typename Factors, typename Store>
__device__ __forceinline__ float4 walk(float4 y, const char* parts, i64 stride, i64 chunks, float2* shared, Factors factors,
                                       Store store) {
  float4 part[kFlight];
  i64 more = parts ? chunks : 0;
  auto load_part = [&](float4& to) {
    if (more <= 0) return;
    to = __ldg(reinterpret_cast<const float4*>(parts));
    parts += stride;
    --more;
  };
  auto step = [&](float4& now, float2 f) {
    const float4 p = now;
    load_part(now);
    store(y);
    y.x = fmaf(f.x, y.x, f.y * p.x);
    y.y = fmaf(f.x, y.y, f.y * p.y);
    y.z = fmaf(f.x, y.z, f.y * p.z);
    y.w = fmaf(f.x, y.w, f.y * p.w);
  };
#pragma unroll
  for (int e = 0; e < kFlight; ++e) {
    part[e] = {0.f, 0.f, 0.f, 0.f};
    load_part(part[e]);
  }
  for (i64 first = 0; first < chunks; first += kTileOf) {
    __syncthreads();
    factors(first, shared);
    __syncthreads();
    const int count = (int)min((i64)kTileOf, chunks - first);
    int i = 0;
    for (; i + kFlight <= count; i += kFlight)
#pragma unroll
      for (int e = 0; e < kFlight; ++e) step(part[e], shared[i + e]);
#pragma unroll
    for (int e = 0; e < kFlight; ++e)
      if (i + e < count) step(part[e], shared[i + e]);
  }
  return y;
}
// Four numbers, rounded.
__device__ __forceinline__ uint2 pack_four(float4 y) { return {pack<kBf16>(y.x, y.y), pack<kBf16>(y.z, y.w)}; }

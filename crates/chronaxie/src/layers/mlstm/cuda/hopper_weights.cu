// mLSTM, forward by chains (sm_90a): what is known of chunks before any state is. Formulas and names are those of tensor_forward.cu; h is
// made by hopper_walks.cu.
//
//   chain_weights   block: chunks of 64 tokens, as many blocks as there is room for: P, its rows' sums, what tokens weigh, m, and what the
//                   chunk's keys add to n; what it reads next, 64 columns of q and k, comes meanwhile
//   chain_norms     thread: a number of n of a chain: before each chunk, where what that adds was
//   chain_scales    block: a chunk of a chain, 16 tokens a warp, or 32 where q has at most 128 columns, 8 of them a lane: l, and 1 / N
//                   where its part of pairs was
//
// At 8 heads, 256 / 512, 65536 tokens: q and k read, 0.54 GB, and records of 0.08 GB written: 0.14 ms at 4.28 TB/s; 0.02 TFLOP; and q once
// more, 0.06 ms. They take 0.157, 0.016 and, in an earlier form with the same loads, 0.074 ms (NVIDIA H200, 2026-11-28). As long as a
// warpgroup of the kernel that makes h did all of this beside it, that took 1.10 where it takes 0.62, and 0.78 as long as it made l there.
#include "hopper_walks.cuh"

constexpr int kRing = 4, kHeld = 2 * kSlice, kAdds = 256;  // of which q and k have at most

// What is known of a token before its chunk is looked at; it is read a chunk ahead.
struct Token {
  float before, end, column, until;
  double sum;
};
__device__ __forceinline__ Token look(const Call& x, const Chain& chain, i64 nth, int thread) {
  const Chunk chunk = chunk_of(x, chain, nth);
  const i64 flat = chunk.flat + min(thread, chunk.n - 1);
  return {before_of(x, chain, nth), x.until[chunk.flat + chunk.n - 1], x.column[flat], x.until[flat], x.sigmoid ? 0. : x.sums[flat]};
}

extern "C" __global__ void __launch_bounds__(128, 3) chain_weights(const Call x, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(16) char dynamic[];
  __shared__ float column[kRows], top[kRows], into[kRows], adds[4][kAdds];
  __shared__ u64 full[kRing];
  char* begin = dynamic + (1024 - shared_at(dynamic) % 1024) % 1024;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, steps = (int)((x.dk + 63) / 64);
  constexpr int kMapped = 1 << kMapQ | 1 << kMapK;
  const bool mapped = (maps.which & kMapped) == kMapped;
  if (thread == 0) {
    for (int i = 0; i < kRing; ++i) barrier_init(&full[i], 128);
    barrier_init_fence();
  }
  __syncthreads();
  Turn now, ahead;
  bool here = first_turn(x, now), more = here;
  ahead = now;
  int step = 0, to_fill = 0, to_read = 0, parity = 0;
  // What is read kRing - 1 steps later, of this chunk or of one behind it.
  auto push = [&] {
    if (!more) return;
    char* to = begin + to_fill * kHeld;
    u64* arrived = &full[to_fill];
    to_fill = to_fill + 1 == kRing ? 0 : to_fill + 1;
    const i64 first = ahead.chain.from + ahead.nth * kRows;
    const int count = (int)min(ahead.chain.len - ahead.nth * kRows, (i64)kRows);
    const bool whole = mapped && count == kRows;
    place_begins(arrived, kHeld, whole);
    bring_slices(x, maps, ahead.chain, first, count, to, 1, x.q, kQ, kMapQ, 64 * step, x.dk, arrived, whole);
    bring_slices(x, maps, ahead.chain, first, count, to + kSlice, 1, x.k, kK, kMapK, 64 * step, x.dk, arrived, whole);
    place_ends(arrived, whole);
    if (++step == steps) {
      step = 0;
      more = next_turn(x, ahead);
    }
  };
  for (int j = 0; j + 1 < kRing; ++j) push();
  Token token = {};
  if (thread < kRows && here) token = look(x, now.chain, now.nth, thread);
#pragma unroll 1
  while (here) {
    constexpr float kLog2 = 1.4426950408889634f;
    char* record = weighed_of(x, now.chain.nth, now.nth);
    float *vectors = reinterpret_cast<float*>(record + kWeighedAt), *to_n = x.n + (now.chain.nth * x.chunks + now.nth) * x.dk;
    if (thread < kRows) {
      const bool on = thread < now.chain.len - now.nth * kRows;
      const float before = token.before, behind = max(before, token.end), highest = max(before, token.until), scale = (float)x.scale;
      const double m = token.sum + highest;
      const float exact = on ? expf(token.column - behind) : 0.f, weight = kBf16 ? exact : within_f16(exact);
      column[thread] = on ? kLog2 * token.column : __int_as_float(0xff800000);
      top[thread] = on ? kLog2 * highest - log2f(scale) : __int_as_float(0x7f800000);
      into[thread] = vectors[kInto + thread] = weight;
      vectors[kRead + thread] = on ? scale * expf(before - highest) : 0.f;
      vectors[kFloor + thread] = x.sigmoid ? 1.f : (float)exp(-m);
      if (thread < 4) vectors[kLeft + thread] = expf(before - behind);
      if (on && x.m) x.m[chunk_of(x, now.chain, now.nth).flat + thread] = x.sigmoid ? 0.f : (float)m;
    }
    here = next_turn(x, now);
    if (thread < kRows && here) token = look(x, now.chain, now.nth, thread);
    float pairs[8][4];
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) pairs[n][e] = 0.f;
    char* place = begin;
#pragma unroll 1
    for (int j = 0; j < steps; ++j) {
      barrier_wait(&full[to_read], parity);
      // What all threads have read is filled again.
      __syncthreads();
      push();
      place = begin + to_read * kHeld;
      parity ^= to_read + 1 == kRing;
      to_read = to_read + 1 == kRing ? 0 : to_read + 1;
      const u64 a = by_rows(shared_at(place));
      products_begin();
#pragma unroll
      for (int e = 0; e < 4; ++e) wgmma<kBf16, false, false>(pairs, further(a, 32 * e), further(a, kSlice + 32 * e));
      products_end();
      // What keys add to n: two columns a lane, of a quarter of the tokens a warp.
      if (x.normalize) {
        float2 sum = {0.f, 0.f};
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const int t = 16 * warp + i;
          const float2 of = unpack<kBf16>(*reinterpret_cast<const unsigned*>(place + kSlice + swizzled_at(t, 2 * lane)));
          sum.x = fmaf(into[t], of.x, sum.x);
          sum.y = fmaf(into[t], of.y, sum.y);
        }
        *reinterpret_cast<float2*>(&adds[warp][64 * j + 2 * lane]) = sum;
      }
      products_wait(pairs);
    }
    const int row = 16 * warp + lane / 4;
    const float tops[2] = {top[row], top[row + 8]};
    float sums[2] = {};
    // Nothing is copied to the place read last before all threads are at the next chunk.
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int s = 8 * n + lane % 4 * 2;
      const float columns[2] = {column[s], column[s + 1]};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int t = row + 8 * half;
        const float p0 = s <= t ? pairs[n][2 * half] * power(columns[0] - tops[half]) : 0.f;
        const float p1 = s < t ? pairs[n][2 * half + 1] * power(columns[1] - tops[half]) : 0.f;
        sums[half] += p0 + p1;
        *reinterpret_cast<unsigned*>(place + swizzled_at(t, s)) = pack<kBf16>(p0, p1);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums[half] += __shfl_xor_sync(~0u, sums[half], 1);
      sums[half] += __shfl_xor_sync(~0u, sums[half], 2);
      if (lane % 4 == 0) vectors[kOfL + row + 8 * half] = sums[half];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      reinterpret_cast<uint4*>(record + kPairsAt)[128 * i + thread] = reinterpret_cast<const uint4*>(place)[128 * i + thread];
    if (x.normalize)
      for (int d = thread; d < x.dk; d += 128) to_n[d] = (adds[0][d] + adds[1][d]) + (adds[2][d] + adds[3][d]);
    // The copy engine comes after these threads there.
    products_see();
  }
}

extern "C" __global__ void __launch_bounds__(128) chain_norms(const Call x) {
  const Chain chain = chain_of(x, blockIdx.y);
  const int d = blockIdx.x * 128 + threadIdx.x;
  if (d >= x.dk) return;
  float n = x.n_initial ? x.n_initial[chain.nth * x.dk + d] : 0.f;
  float* of = x.n + chain.nth * x.chunks * x.dk + d;
  constexpr int kAhead = 8;
#pragma unroll 1
  for (i64 c = 0; c < chain.chunks; c += kAhead) {
    float adds[kAhead], left[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const i64 at = min(c + i, chain.chunks - 1);
      adds[i] = of[at * x.dk];
      left[i] = reinterpret_cast<const float*>(weighed_of(x, chain.nth, at) + kWeighedAt)[kLeft];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (c + i >= chain.chunks) break;
      of[(c + i) * x.dk] = n;
      n = fmaf(left[i], n, adds[i]);
    }
  }
  if (x.n_last) x.n_last[chain.nth * x.dk + d] = n;
}

// l and 1 / N of a warp's tokens, of each of which `kLanes` lanes have all columns, eight a lane.
template <int kLanes>
__device__ __forceinline__ void measure_tokens(const Call& x, const Chain& chain, i64 nth) {
  constexpr int kTokens = 16 * 32 / kLanes;
  const int lane = threadIdx.x % 32, of_token = lane % kLanes, first = threadIdx.x / 32 * kTokens + lane / kLanes * 16;
  const int count = (int)min(chain.len - nth * kRows, (i64)kRows) - first;
  // Whose sum this lane has in the end.
  const int token = (kLanes == 32 ? lane / 2 : lane) % 16;
  float* vectors = reinterpret_cast<float*>(weighed_of(x, chain.nth, nth) + kWeighedAt) + first + token;
  const float read = vectors[kRead], pairs = vectors[kOfL], floor = vectors[kFloor];
  const Source q = tokens_at(x, x.q, kQ, chain, chain.from + nth * kRows + first, 8 * of_token, count, x.dk);
  const bool inside = q.columns > 0;
  uint4 pieces[16];
#pragma unroll
  for (int t = 0; t < 16; ++t)
    pieces[t] = inside && t < count ? load_at(q.data + t * q.stride, q.step, q.plain) : uint4{0u, 0u, 0u, 0u};
  float4 low = {0.f, 0.f, 0.f, 0.f}, high = low;
  if (inside) {
    const float4* n = reinterpret_cast<const float4*>(x.n + (chain.nth * x.chunks + nth) * x.dk + 8 * of_token);
    low = n[0];
    high = n[1];
  }
  float2 dots[8];
#pragma unroll
  for (int t = 0; t < 16; ++t) {
    const float2 a = unpack<kBf16>(pieces[t].x), b = unpack<kBf16>(pieces[t].y), c = unpack<kBf16>(pieces[t].z),
                 d = unpack<kBf16>(pieces[t].w);
    const float dot = fmaf(a.x, low.x, fmaf(a.y, low.y, fmaf(b.x, low.z, b.y * low.w))) +
                      fmaf(c.x, high.x, fmaf(c.y, high.y, fmaf(d.x, high.z, d.y * high.w)));
    (t % 2 ? dots[t / 2].y : dots[t / 2].x) = dot;
  }
  // Of two halves of the tokens each of two lanes goes on with one.
#pragma unroll
  for (int i = 0; i < 4; ++i) dots[i] = fold(dots[i], dots[i + 4], kLanes / 2);
#pragma unroll
  for (int i = 0; i < 2; ++i) dots[i] = fold(dots[i], dots[i + 2], kLanes / 4);
  const float2 two = fold(dots[0], dots[1], kLanes / 8);
  const bool second = lane & kLanes / 16;
  float dot = (second ? two.y : two.x) + __shfl_xor_sync(~0u, second ? two.x : two.y, kLanes / 16);
  if (kLanes == 32) dot += __shfl_xor_sync(~0u, dot, 1);
  if (kLanes == 32 && lane % 2) return;
  const float l = fmaf(read, dot, pairs), size = fabsf(l);
  // No `max`, which would lose what is no number.
  vectors[kOfL] = 1.f / ((size < floor ? floor : size) + (float)x.eps);
  if (x.l && token < count) x.l[chunk_of(x, chain, nth).flat + first + token] = l;
}

extern "C" __global__ void __launch_bounds__(128) chain_scales(const Call x) {
  const Chain chain = chain_of(x, blockIdx.y);
  if (blockIdx.x >= chain.chunks) return;
  if (x.dk > 128)
    measure_tokens<32>(x, chain, blockIdx.x);
  else
    measure_tokens<16>(x, chain, blockIdx.x);
}

// mLSTM, forward, for heads of q, k and v of at most 64, on tensor cores (mma.sync, sm_80 and newer); the equations are those of
// tensor_forward.cu. There one block goes through the chunks of a chain, and waits at each: 32 chains of 2048 tokens took 3.5 us a
// chunk. Here what a chunk adds to the state is made of all chunks at once, in a gauge of its own, and only multiplications of
// elements follow each other.
//
//   small_sums      block: a chunk: its gates, by one warp, and sum_s e^(col_s - r) k_s v_s^T, r the chunk's largest log i - b
//   small_states    thread: four elements of C or n of one chain: C' = e^(m - M_L) C + e^(r - M_L) sum, loads 8 chunks ahead; every
//                   block makes the gauges m of its chain anew, one warp, 32 chunks at a time
//   small_outputs   block: a chunk: pairs, which stay in registers, then h = q C + P v
// All three take some chains at a time, from `base` on, so that sums and states are few.
//
// At 32 chains of 2048 tokens, 64 / 64: 33.5 MB in and out, 8 us at 4.28 TB/s; beside that 16.8 MB of sums and 8.4 MB of states
// are written and read, in L2 as long as they fit; 1.6 GFLOP count for nothing. Three launches.
// Measured there (H200): 13.2 + 9.9 + 16.0 us. Of 1024 chains, whose sums and states go by memory, the three move 3.4, 4.2 and 4.0
// TB/s; groups of chains that L2 would hold are no faster (64 at a time by a quarter slower), since small grids fill badly.
#include "small.cuh"

extern "C" __global__ void __launch_bounds__(kBlock, kRoomy ? 8 : 5) small_sums(const Call x, int base) {
  __shared__ __align__(16) char keys[kSquare], values[kSquare];
  __shared__ Weights weights;
  __shared__ float parts[4 * kEdge];
  const Chain chain = chain_at(x, base + blockIdx.y);
  const int nth = blockIdx.x;
  if (nth >= chain.chunks) return;
  const Chunk chunk = chunk_at(x, chain, nth);
  fetch_tokens(keys, x, x.k, kK, chain, chunk, x.dk);
  fetch_tokens(values, x, x.v, kV, chain, chunk, x.dv);
  copy_commit();
  if (threadIdx.x < 32) {
    const ChunkGates gates(x, chain, chunk, nth);
    // Of tokens that are not there the column is -infinity.
    const float low = expf(gates.column[0] - gates.ref), high = expf(gates.column[1] - gates.ref);
    weights.put(threadIdx.x, low, high, low, high);
  }
  copy_wait(0);
  __syncthreads();
  store_sum(x, keys, values, weights, x.sum_c, x.sum_n, blockIdx.y * x.chunks + nth, parts, 1.f);
}

extern "C" __global__ void __launch_bounds__(kBlock) small_states(const Call x, int base) {
  __shared__ float2 shared[kTileOf];
  const Chain chain = chain_at(x, base + blockIdx.y);
  const i64 size = x.dk * x.dv, e = 4 * (blockIdx.x * (i64)kBlock + threadIdx.x), k = e - size;
  const bool of_c = e < size, of_n = !of_c && x.normalize && k < x.dk;
  const i64 first = blockIdx.y * x.chunks, at = of_c ? chain.nth * size + e : chain.nth * x.dk + k;
  const float* begin = of_c ? x.c_initial : of_n ? x.n_initial : nullptr;
  float4 y = {0.f, 0.f, 0.f, 0.f};
  if (begin) y = {begin[at], begin[at + 1], begin[at + 2], begin[at + 3]};
  const double lowest = __int_as_float(0xff800000);
  double m = x.m_initial ? x.m_initial[chain.nth] : 0;
  // Behind a chunk m is max(m + g, a): maps that compose to such maps.
  auto factors = [&](i64 from, float2* to) {
    if (threadIdx.x >= 32) return;
    const int lane = threadIdx.x;
    for (int c0 = 0; c0 < kTileOf && from + c0 < chain.chunks; c0 += 32) {
      const i64 c = from + c0 + lane;
      const bool on = c < chain.chunks;
      double g = 0, most = lowest;
      if (on) {
        const Chunk chunk = chunk_at(x, chain, (int)c);
        g = x.sums[chunk.flat + chunk.n - 1];
        most = x.most[chain.nth * x.chunks + c];
      }
      double map_g = g, map_a = on ? g + most : lowest;
      for (int d = 1; d < 32; d *= 2) {
        const double other_g = __shfl_up_sync(~0u, map_g, d), other_a = __shfl_up_sync(~0u, map_a, d);
        if (lane < d) continue;
        map_a = max(other_a + map_g, map_a);
        map_g += other_g;
      }
      const double until_g = __shfl_up_sync(~0u, map_g, 1), until_a = __shfl_up_sync(~0u, map_a, 1);
      const float before = x.sigmoid ? 0.f : (float)(lane == 0 ? m : max(m + until_g, until_a));
      m = max(m + __shfl_sync(~0u, map_g, 31), __shfl_sync(~0u, map_a, 31));
      const float top = x.sigmoid ? (float)-g : max(before, (float)most);
      to[c0 + lane] = {expf(before - top), x.sigmoid ? 1.f : expf((float)most - top)};
      if (on && blockIdx.x == 0 && x.before) x.before[chain.nth * (x.chunks + 1) + c] = before;
    }
  };
  const float* parts = of_c ? x.sum_c + first * size + e : of_n ? x.sum_n + first * x.dk + k : nullptr;
  const i64 width = of_c ? size : x.dk, slot = blockIdx.y * (x.window + 1) * width + (of_c ? e : k);
  char* to = of_c ? reinterpret_cast<char*>(x.c) + 2 * slot : reinterpret_cast<char*>(x.n + slot);
  y = walk(y, reinterpret_cast<const char*>(parts), 4 * width, chain.chunks, shared, factors, [&](float4 state) {
    if (of_c)
      *reinterpret_cast<uint2*>(to) = pack_four(state);
    else if (of_n)
      *reinterpret_cast<float4*>(to) = state;
    to += (of_c ? 2 : 4) * width;
  });
  float* last = of_c ? x.c_last : of_n ? x.n_last : nullptr;
  if (last) last[at] = y.x, last[at + 1] = y.y, last[at + 2] = y.z, last[at + 3] = y.w;
  if (blockIdx.x != 0 || threadIdx.x != 0 || x.sigmoid) return;
  x.before[chain.nth * (x.chunks + 1) + chain.chunks] = (float)m;
  if (x.m_last) x.m_last[chain.nth] = (float)m;
}

extern "C" __global__ void __launch_bounds__(kBlock, kRoomy ? 6 : 4) small_outputs(const Call x, int base) {
  __shared__ __align__(16) char queries[kSquare], keys[kSquare], values[kSquare], state[kSquare];
  __shared__ __align__(8) float column[kEdge], n[kEdge];
  const Chain chain = chain_at(x, base + blockIdx.y);
  const int nth = blockIdx.x;
  if (nth >= chain.chunks) return;
  const Chunk chunk = chunk_at(x, chain, nth);
  const i64 slot = blockIdx.y * (x.window + 1) + nth;
  fetch_tokens(queries, x, x.q, kQ, chain, chunk, x.dk);
  fetch_tokens(keys, x, x.k, kK, chain, chunk, x.dk);
  copy_commit();
  fetch_state(state, x, x.c, slot);
  fetch_tokens(values, x, x.v, kV, chain, chunk, x.dv);
  copy_commit();
  const int thread = threadIdx.x, lane = thread % 32, own = first_row() + lane / 4;
  const float lowest = __int_as_float(0xff800000), before = before_of(x, chain, nth);
  // Of this thread's two rows.
  float until[2], column_of = lowest, n_of = 0.f;
  double sum[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = min(own + 8 * half, chunk.n - 1);
    until[half] = x.until[chunk.flat + t];
    sum[half] = x.sums[chunk.flat + t];
  }
  if (thread < chunk.n) column_of = x.column[chunk.flat + thread];
  if (x.normalize && thread < x.dk) n_of = x.n[slot * x.dk + thread];
  if (thread < kEdge) {
    column[thread] = column_of;
    n[thread] = n_of;
  }
  float top[2], weight[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    top[half] = max(before, until[half]);
    weight[half] = (float)x.scale * power((before - top[half]) * kLog2E);
  }
  copy_wait(1);
  __syncthreads();
  Operand of_q, pairs;
  take(of_q, queries);
  // The scale of a pair is in its exponent.
  const float shift = log2f((float)x.scale);
  auto weigh = [&](int half, int s) {
    const float2 c = *reinterpret_cast<const float2*>(column + s);
    return float2{power(fmaf(c.x - top[half], kLog2E, shift)), power(fmaf(c.y - top[half], kLog2E, shift))};
  };
  const float2 inner = make_pairs(pairs, of_q, keys, weigh, [](int) { return 0.f; });
  // q.n, exactly: a quarter of the terms each.
  float dots[2] = {0.f, 0.f};
  if (x.normalize)
    each_of_operand(of_q, [&](int half, int eight, float2 q) {
      const float2 with = *reinterpret_cast<const float2*>(n + 8 * eight + lane % 4 * 2);
      dots[half] = fmaf(q.x, with.x, fmaf(q.y, with.y, dots[half]));
    });
  float over[2] = {1.f, 1.f};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool writes = own + 8 * half < chunk.n && lane % 4 == 0;
    const i64 flat = chunk.flat + own + 8 * half;
    const float m = x.sigmoid ? 0.f : (float)(sum[half] + top[half]);
    if (writes && x.m) x.m[flat] = m;
    if (!x.normalize) continue;
    const float l = fmaf(weight[half], row_sum(dots[half]), row_sum(half ? inner.y : inner.x));
    bool open;
    over[half] = 1.f / denominator_of(x, l, m, &open);
    if (writes && x.l) x.l[flat] = l;
  }
  copy_wait(0);
  __syncthreads();
  Rows acc;
  clear(acc);
  multiply_all<true>(acc, of_q, state);
  each_of_rows(acc, [&](int half, int, int, float& y, float& z) {
    y *= weight[half];
    z *= weight[half];
  });
  multiply_pairs(acc, pairs, values);
  each_of_rows(acc, [&](int half, int, int, float& y, float& z) {
    y *= over[half];
    z *= over[half];
  });
  store_rows(x, x.h, kH, chain, chunk, x.dv, acc, queries);
}

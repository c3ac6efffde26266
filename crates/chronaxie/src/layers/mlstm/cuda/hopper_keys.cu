// mLSTM, backward, the gradients of k and v of heads whose state one block holds (sm_90a): q and k of at most 128, v and h of at most 256.
// Formulas and names are those of hopper_walks.cu, whose roles 1 and 2 go through a chain once each.
//
//   hopper_keys    block: a chain, against time, all of dC, chunk of 64 tokens after chunk:
//     warpgroups 0, 1   64 rows of dC each, in registers. dk^T = dC' v^T (w) + q^T dS of these rows, as role 1 has it; what dC is,
//                       rounded, they leave in shared memory, too, for half of the columns each of dv = k dC' (w) + P'^T dh
//     warpgroup 2       asks the copy engine ahead: for v, for k with dS, and for dh, q and P', each as soon as its place is free;
//                       stores dk
//
// At 16 heads, 128 / 256, 65536 tokens of 16 sequences: v, dh, k and q read once instead of twice, 2.8 GB, 0.65 ms at 4.28 TB/s (an
// H200), where the two roles move 4.1 and took 0.50 and 0.52; 0.43 TFLOP, 0.55 ms at 0.79 PFLOP/s. It takes 0.75 to 0.77 (NVIDIA H200,
// 2026-11-28), with L2 at 91 % of what that gives. A chunk is 4900 clocks of tensor cores, of which dC in two parts is 2050. Both passes
// of dv in registers at a time were more than there are.
#include "hopper_walks.cuh"

constexpr int kWideSlices = kColumns / 64, kOwn = 2, kPasses = kColumns / 128;
static_assert(kColumns == 128 || kColumns == 256, "a warpgroup has 64 columns of dv at a time");
constexpr int kBlockRows = 128 * kLine;  // bytes of 64 columns of dC in shared memory
// v; twice k and dS; dh, q and P'; dC; dk on its way out; vectors, and what warps have of k.dk, of two chunks.
constexpr int kKeysAt = kWideSlices * kSlice, kKeys = (kOwn + 1) * kSlice;
constexpr int kIntoAt = kKeysAt + 2 * kKeys, kGoesIn = (kWideSlices + kOwn + 1) * kSlice;
constexpr int kStateAt = kIntoAt + kGoesIn, kGoesOutAt = kStateAt + kWideSlices * kBlockRows, kVectorsIn = kGoesOutAt + kOwn * kSlice;
constexpr int kRatesIn = kVectorsIn + 2 * kVectors, kRatesOf = 32 * kRows, kBarriersAt = kRatesIn + 2 * kRatesOf;
// Filled places and read ones, of k two; and dk that was left.
enum { kFullV, kFullK, kFullInto = kFullK + 2, kReadV, kReadK, kReadInto = kReadK + 2, kLeftK, kBarriers };

// Both warpgroups that multiply.
__device__ __forceinline__ void multipliers_meet() { asm volatile("bar.sync 2, 256;" ::: "memory"); }

extern "C" __global__ void __launch_bounds__(384, 1) hopper_keys(const Call x, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(16) char dynamic[];
  const Chain chain = chain_of(x, blockIdx.y);
  const int thread = threadIdx.x, group = __shfl_sync(~0u, thread / 128, 0), chunks = (int)chain.chunks;
  char* begin = dynamic + (1024 - shared_at(dynamic) % 1024) % 1024;
  unsigned base = shared_at(begin);
  u64* barriers = reinterpret_cast<u64*>(begin + kBarriersAt);
  if (thread == 0) {
    for (int i = 0; i < kBarriers; ++i) barrier_init(&barriers[i], i < kReadV ? 128 : 256);
    barrier_init_fence();
  }
  __syncthreads();

  if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    const unsigned h = threadIdx.x % 128u;
    constexpr int kMapped = 1 << kMapV | 1 << kMapK | 1 << kMapGradH | 1 << kMapQ;
    const bool mapped = (maps.which & kMapped) == kMapped;
    auto bring = [&](int i, int to, int slices, const Tokens& y, int bit, int map, int full, i64 width, bool whole) {
      const int c = chunks - 1 - i, count = (int)min(chain.len - (i64)c * kRows, (i64)kRows);
      bring_slices(x, maps, chain, chain.from + (i64)c * kRows, count, begin + to, slices, y, bit, map, 0, width, &barriers[full], whole);
    };
    // `bytes` of the chunk's record.
    auto record = [&](int i, int to, int from, int bytes, int full, bool whole) {
      const char* data = record_of(x, chain.nth, chunks - 1 - i) + from;
      if (whole) {
        if (h == 0) bulk_copy_at(base + to, data, bytes, base + kBarriersAt + 8 * full);
        return;
      }
      for (int at = 16 * h; at < bytes; at += 2048) copy_ahead(base + to + at, data + at, true);
    };
    auto is_whole = [&](int i) { return mapped && chain.len - (i64)(chunks - 1 - i) * kRows >= kRows; };
    auto bring_v = [&](int i) {
      const bool whole = is_whole(i);
      place_begins(&barriers[kFullV], kWideSlices * kSlice, whole);
      bring(i, 0, kWideSlices, x.v, kV, kMapV, kFullV, x.dv, whole);
      place_ends(&barriers[kFullV], whole);
    };
    auto bring_k = [&](int i) {
      const bool whole = is_whole(i);
      const int full = kFullK + i % 2, to = kKeysAt + i % 2 * kKeys;
      place_begins(&barriers[full], kKeys + kVectors, whole);
      bring(i, to, kOwn, x.k, kK, kMapK, full, x.dk, whole);
      record(i, to + kOwn * kSlice, kSlopesAt, kSlice, full, whole);
      record(i, kVectorsIn + i % 2 * kVectors, kVectorsAt, kVectors, full, whole);
      place_ends(&barriers[full], whole);
    };
    auto bring_into = [&](int i) {
      const bool whole = is_whole(i);
      place_begins(&barriers[kFullInto], kGoesIn, whole);
      bring(i, kIntoAt, kWideSlices, x.grad_h, kGradH, kMapGradH, kFullInto, x.dv, whole);
      bring(i, kIntoAt + kWideSlices * kSlice, kOwn, x.q, kQ, kMapQ, kFullInto, x.dk, whole);
      record(i, kIntoAt + (kWideSlices + kOwn) * kSlice, kPairsAt, kSlice, kFullInto, whole);
      place_ends(&barriers[kFullInto], whole);
    };
    if (chunks == 0) return;
    bring_v(0);
    bring_k(0);
    bring_into(0);
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) {
      const bool more = i + 1 < chunks;
      // What goes into the state has its place late, and little time then: as far as L2 it comes now.
      if (more && h == 0 && is_whole(i + 1)) {
        const int c = chunks - 2 - i, first = (int)chain.from + c * kRows;
#pragma unroll 1
        for (int s = 0; s < kWideSlices + kOwn; ++s) {
          const bool of_q = s >= kWideSlices;
          box_prefetch(maps.of[of_q ? kMapQ : kMapGradH], 64 * (of_q ? s - kWideSlices : s), first, (int)chain.head, (int)chain.batch);
        }
        bulk_prefetch(record_of(x, chain.nth, c) + kPairsAt, kSlice);
      }
      if (more) {
        barrier_wait(&barriers[kReadV], i & 1);
        bring_v(i + 1);
        if (i > 0) barrier_wait(&barriers[kReadK + (i + 1) % 2], (i - 1) / 2 & 1);
        bring_k(i + 1);
      }
      barrier_wait(&barriers[kLeftK], i & 1);
      // All warps but that which asks store rows of 128 bytes, before these threads say that the next chunk is here.
      if (h >= 32 && h < 32 + kRows)
        store_rates(x, x.rate_i, reinterpret_cast<const float*>(begin + kRatesIn + i % 2 * kRatesOf), chain.nth, chunks - 1 - i, h - 32);
      if (h >= 32 && x.grad_k.data) {
        const int c = chunks - 1 - i, left = min((int)chain.len - c * kRows, kRows), piece = h % 8, first = (h - 32) / 8;
#pragma unroll 1
        for (int of = 0; of < kOwn; ++of) {
          const int d = 64 * of + 8 * piece;
          if (d >= x.dk) break;
          unsigned from = base + kGoesOutAt + of * kSlice + swizzled(first, piece);
          char* to = x.grad_k.data + 2 * place(x.grad_k, chain, chain.from + c * kRows + first, d);
#pragma unroll 2
          for (int t = first; t < left; t += 12, to += 24 * x.grad_k.t, from = (from ^ 64) + 12 * kLine)
            store_at(to, x.grad_k.d, x.plain & kGradK, shared_piece(from));
        }
      }
      if (more) {
        barrier_wait(&barriers[kReadInto], i & 1);
        bring_into(i + 1);
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
  int lane = thread % 32, warp = thread / 32 % 4;
  // This thread's rows of the state are `row` and 8 further.
  const int row = 64 * group + 16 * warp + lane / 4;
  float state[kColumns / 8][4], n[2] = {};
  auto each_state = [&](auto f) {
    int r0 = row, s0 = lane % 4 * 2;
    // Addresses are made here each time, and not kept.
    asm volatile("" : "+r"(r0), "+r"(s0));
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      asm volatile("" : "+r"(s0));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = r0 + e / 2 * 8, s = s0 + 8 * j + e % 2;
        f(r < x.dk && s < x.dv, (blockIdx.y * x.dk + r) * x.dv + s, state[j][e]);
      }
    }
  };
  each_state([&](bool, i64, float& y) { y = 0.f; });
  if (x.grad_c_last) each_state([&](bool there, i64 at, float& y) { y = there ? x.grad_c_last[at] : 0.f; });
  if (x.grad_n_last)
#pragma unroll
    for (int half = 0; half < 2; ++half) n[half] = row + 8 * half < x.dk ? x.grad_n_last[blockIdx.y * x.dk + row + 8 * half] : 0.f;
  const bool valued = x.grad_v.data;
  // And where its gradients of v go: of rows 8 apart 8 columns of each 32.
  const int length = (int)chain.len;
  char* to = x.grad_v.data + 2 * place(x.grad_v, chain, chain.from + max(chunks - 1, 0) * kRows + 16 * warp + lane / 4, lane % 4 * 8);
  auto full = [&](int of, int parity) { barrier_wait_at(base + kBarriersAt + 8 * of, parity); };
  auto done = [&](int of) { barrier_arrive_at(base + kBarriersAt + 8 * of); };

#pragma unroll 1
  for (int i = 0; i < chunks; ++i) {
    // What follows from these is made each time, and not kept.
    asm volatile("" : "+r"(lane), "+r"(warp), "+r"(base), "+l"(to), "+f"(n[0]), "+f"(n[1]));
    const unsigned keys = base + kKeysAt + i % 2 * kKeys, vectors = base + kVectorsIn + i % 2 * kVectors, of_lane = vectors + lane % 4 * 8;
    const unsigned turn = swizzled(lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2);
    float out[8][4];
    auto clear = [](float (&y)[8][4]) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) y[j][e] = 0.f;
    };
    full(kFullV, i & 1);
    clear(out);
    // Nobody reads the last chunk's dC any more.
    if (valued && i > 0) multipliers_meet();
    read_state<2>(out, state, by_rows(base), [&](int s, const unsigned(&a)[4]) {
      const unsigned column = 2 * s + lane / 16;
      const unsigned at = base + kStateAt + s / 4 * kBlockRows + swizzled(64 * group + 16 * warp + lane % 16, column % 8);
      if (valued) store_matrices(at, a);
    });
    done(kReadV);
    products_see();
    if (valued) multipliers_meet();
    full(kFullK + i % 2, i / 2 & 1);
    // 64 columns of dv: what comes by the state, and what comes by pairs.
    auto by_state = [&](float (&y)[8][4], int block) {
      clear(y);
      made_ready(y);
      const u64 a = by_rows(keys), b = by_terms(base + kStateAt + block * kBlockRows, 0);
      products_begin();
#pragma unroll
      for (int e = 0; e < 8; ++e)
        wgmma<kBf16, false, true>(y, further(a, e / 4 * kSlice + e % 4 * 32), further(b, 16 * e * kLine));
      products_end();
    };
    auto by_pairs = [&](float (&y)[8][4], int block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float w = shared1(vectors + 4 * (kInto + 16 * warp + lane / 4 + 8 * half));
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) y[j][2 * half + e] *= w;
      }
      const u64 a = by_terms(base + kIntoAt + (kWideSlices + kOwn) * kSlice, 0), b = by_terms(base + kIntoAt + block * kSlice, 0);
      products_begin();
#pragma unroll
      for (int e = 0; e < 4; ++e) wgmma<kBf16, true, true>(y, further(a, 16 * e * kLine), further(b, 16 * e * kLine));
      products_end();
    };
    auto store_values = [&](const float (&y)[8][4], int pass) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
          unsigned w[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) w[e] = pack<kBf16>(y[j + e][2 * half], y[j + e][2 * half + 1]);
          const uint4 piece = gather_columns(w[0], w[1], w[2], w[3]);
          const int d = 64 * (kPasses * group + pass) + 8 * j, t = 16 * warp + lane / 4 + 8 * half;
          // One address at a time.
          char* at = to;
          asm volatile("" : "+l"(at));
          if (t < length - (chunks - 1 - i) * kRows && d + lane % 4 * 8 < (int)x.dv)
            store_at(at + 16 * half * x.grad_v.t + 2 * d * x.grad_v.d, x.grad_v.d, x.plain & kGradV, piece);
        }
    };
    if (x.normalize)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[j][e] += n[e / 2];
    store_shared2(base + kRatesIn + i % 2 * kRatesOf + (4 * group + warp) * (4 * kRows) + 8 * lane,
                  rate_tokens(out, keys + group * kSlice, turn, of_lane + 4 * kInto));
    scale_tokens(out, of_lane + 4 * kInto);
    full(kFullInto, i & 1);
    unsigned of_rows[4][4];
#pragma unroll
    for (int e = 0; e < 4; ++e) load_matrices<true>(of_rows[e], base + kIntoAt + (kWideSlices + group) * kSlice + turn + 16 * e * kLine);
    const u64 pairs = by_terms(keys + kOwn * kSlice, 0);
    products_begin();
#pragma unroll
    for (int e = 0; e < 4; ++e) wgmma_of<kBf16, true>(out, of_rows[e], further(pairs, 16 * e * kLine));
    products_end();
    const float left = shared1(vectors + 4 * kLeft);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[j][e] *= left;
    products_wait(out);
    keep(of_rows);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const unsigned at = of_lane + 4 * kRead + 64 * e, low = rounded(shared2(at)), high = rounded(shared2(at + 32));
#pragma unroll
      for (int w = 0; w < 4; ++w) of_rows[e][w] = times<kBf16>(of_rows[e][w], w < 2 ? low : high);
    }
    const u64 into = by_terms(base + kIntoAt, kSlice);
    products_begin();
#pragma unroll
    for (int e = 0; e < 4; ++e) wgmma_of<kBf16, true>(state, of_rows[e], further(into, 16 * e * kLine));
    products_end();
    const unsigned tile = base + kGoesOutAt + group * kSlice + swizzled(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2);
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      unsigned ready[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) ready[w] = pack<kBf16>(out[2 * b + w / 2][w % 2 * 2], out[2 * b + w / 2][w % 2 * 2 + 1]);
      store_turned(tile + 16 * b * kLine, ready);
    }
    done(kLeftK);
    if (valued) by_state(out, kPasses * group);
    if (x.normalize) {
      float more[2] = {};
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const float2 z = unpack<kBf16>(of_rows[e][w]), r = shared2(of_lane + 4 * kOfL + 64 * e + w / 2 * 32);
          more[w % 2] = fmaf(z.x, r.x, fmaf(z.y, r.y, more[w % 2]));
        }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        more[half] += __shfl_xor_sync(~0u, more[half], 1);
        more[half] += __shfl_xor_sync(~0u, more[half], 2);
        n[half] = fmaf(left, n[half], more[half]);
      }
    }
    products_wait(state);
    keep(of_rows);
    if (valued) {
      made_ready(out);
      by_pairs(out, kPasses * group);
      products_wait(out);
      if (kPasses > 1) {
        // Before the other pass, since two of them in registers are more than there are.
        store_values(out, 0);
        by_state(out, kPasses * group + 1);
        products_wait(out);
        by_pairs(out, kPasses * group + 1);
        products_wait(out);
      }
    }
    done(kReadK + i % 2);
    done(kReadInto);
    if (valued) store_values(out, kPasses - 1);
    to -= 2 * kRows * x.grad_v.t;
  }

  float *c = x.grad_c_initial, *other = x.carry_c;
  if (c || other) each_state([&](bool there, i64 at, float& z) {
    if (there && c) c[at] = z;
    if (there && other) other[at] = z;
  });
  if (!x.normalize || lane % 4 != 0) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const i64 at = blockIdx.y * x.dk + row + 8 * half;
    if (row + 8 * half < x.dk && x.grad_n_initial) x.grad_n_initial[at] = n[half];
    if (row + 8 * half < x.dk && x.carry_n) x.carry_n[at] = n[half];
  }
}

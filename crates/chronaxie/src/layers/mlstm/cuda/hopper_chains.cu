// mLSTM, forward in one kernel (sm_90a); names, formulas and the kernels of gates are those of tensor_forward.cu.
//
//   hopper_forward    block: a chain, and 128 columns of h: all chunks of 64 tokens one after the other
//     warpgroups 0, 1   64 columns of h each: of C^T the rows of these columns, all of K, in registers.
//                       h^T = C^T q^T + v^T P^T, so that what C is as sums of wgmma it is, rounded, as an operand too
//     warpgroup 2       asks the copy engine for chunks, two ahead; P of the chunk, into shared memory; n and l, as products whose
//                       terms in f32 are sums of three of 16 bits, in tiles of eight rows; what tokens weigh
//
// So no state is ever written. At 8 heads, 256 / 512, 65536 tokens: 1.6 GB, 0.38 ms at 4.28 TB/s; 0.38 TFLOP, 0.48 ms at
// 0.79 PFLOP/s; from L2 80 KB a chunk and block, 2.7 GB, 0.5 ms. A chunk is 2820 clocks of tensor cores; two blocks follow each
// other on a multiprocessor. What binds is the third warpgroup, which has one warp on each scheduler: the others wait for its pairs in
// a third of their time. 1.44 ms with n's products by mma.sync, each of which waits for what wgmma has in hand, and with copies by
// cp.async; 1.15 as it is (mlstm_sig 0.95; NVIDIA H200, 2026-11-23). In samples of its 8400 clocks a chunk, 22 % wait for the pairs'
// products, 18 % are their weights, 18 % were one thread's asking for ten slices, which a thread of each warp shares since then.
#include "hopper_chains.cuh"

extern "C" __global__ void __launch_bounds__(384, 1) hopper_forward(const Call x, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(16) char dynamic[];
  __shared__ Weights weights;
  // Of a chunk's pairs, as powers of 2: log i - b, and the gauge less log s; and the gauge itself.
  __shared__ __align__(8) float column[kRows], top[kRows];
  __shared__ float gauge_of[kRows], scales[2];
  // n; registers are few.
  __shared__ __align__(8) float2 n_of[128];
  __shared__ u64 full[kAhead + 1], empty_q[kAhead], empty_k[kAhead + 1], full_p, empty_p;
  const Chain chain = chain_of(x, blockIdx.y);
  const int thread = threadIdx.x, group = __shfl_sync(~0u, thread / 128, 0), chunks = (int)chain.chunks;
  int v0 = blockIdx.x * 128, length = (int)chain.len;
  constexpr int kOfK = kSlices + 2;
  char* begin = dynamic + (1024 - shared_at(dynamic) % 1024) % 1024;
  char *of_q = begin, *of_k = begin + kAhead * kSlices * kSlice, *pairs = of_k + (kAhead + 1) * kOfK * kSlice;
  // What tokens weigh in n, and n, in three parts that are exact together: the first rows of tiles of eight.
  char *into = pairs + kSlice, *n_before = into + kTile8;
  if (thread == 0) {
    scales[0] = (float)x.scale;
    scales[1] = log2f((float)x.scale);
    for (int i = 0; i <= kAhead; ++i) {
      barrier_init(&full[i], 128);
      barrier_init(&empty_k[i], 12);
    }
    for (int i = 0; i < kAhead; ++i) barrier_init(&empty_q[i], 12);
    barrier_init(&full_p, 128);
    barrier_init(&empty_p, 256);
    barrier_init_fence();
  }
  __syncthreads();

  if (group == 2) {
    if (kSlices == 4) asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
    unsigned h = threadIdx.x % 128u;
    constexpr int kMapped = 1 << kMapQ | 1 << kMapK | 1 << kMapV;
    const bool mapped = (maps.which & kMapped) == kMapped;
    // Of a whole chunk a thread of each warp asks for slices; of another all threads bring what is there.
    auto bring = [&](int c) {
      if (c < chunks) {
        char *q = of_q + c % kAhead * (kSlices * kSlice), *k = of_k + c % (kAhead + 1) * (kOfK * kSlice);
        const int rows = min(length - c * kRows, kRows);
        // Made anew, so that little of it stays in registers.
        const Chain chain = chain_of(x, blockIdx.y);
        const i64 first = chain.from + (i64)c * kRows;
        if (mapped && rows == kRows) {
          u64* arrived = &full[c % (kAhead + 1)];
          if (h % 32 > 0) {
            barrier_arrive(arrived);
          } else {
            // Every fourth slice: one thread alone would keep its warp, and the others wait for that.
            constexpr int kAll = 2 * kSlices + 2;
            barrier_expect(arrived, (kAll - (int)(h / 32) + 3) / 4 * kSlice);
#pragma unroll 1
            for (int s = h / 32; s < kAll; s += 4) {
              const bool of_q = s >= kSlices + 2, of_v = !of_q && s >= kSlices;
              const int nth = s - (of_q ? kSlices + 2 : of_v ? kSlices : 0);
              box_copy(shared_at(of_q ? q + nth * kSlice : k + s * kSlice), maps.of[of_q ? kMapQ : of_v ? kMapV : kMapK],
                       64 * nth + (of_v ? v0 : 0), (int)first, (int)chain.head, (int)chain.batch, shared_at(arrived));
            }
          }
        } else {
#pragma unroll 1
          for (int s = 0; s < 2 * kSlices + 2; ++s) {
            const int of = s < kSlices ? 0 : s < kSlices + 2 ? 1 : 2, nth = s - (of == 0 ? 0 : of == 1 ? kSlices : kSlices + 2);
            const Tokens& y = of == 0 ? x.k : of == 1 ? x.v : x.q;
            fetch_slice(of == 2 ? q + nth * kSlice : k + s * kSlice,
                        tokens_at(x, y, of == 0 ? kK : of == 1 ? kV : kQ, chain, first, 64 * nth + (of == 1 ? v0 : 0), rows,
                                  of == 1 ? x.dv : x.dk));
          }
        }
      }
      copy_commit();
    };
    for (int c = 0; c < kAhead; ++c) bring(c);
    const i64 begin_flat = (chain.batch * x.heads + chain.head) * x.steps + chain.from;
    // As its sums come, each thread has n of one row and of the eighth behind it.
    auto own_n = [&] { return 64 * (h % 4) + h / 32 * 16 + h % 32 / 4; };
    auto put_n = [&](float2 n) {
      n_of[h] = n;
      if ((int)(h % 4) >= kSlices) return;
      const unsigned row = own_n() % 64;
      char* tile = n_before + h % 4 * kTile8;
      split(n.x, n.y, [&](int part, unsigned pair) {
        *reinterpret_cast<unsigned short*>(tile + swizzled_at(part, row)) = (unsigned short)pair;
        *reinterpret_cast<unsigned short*>(tile + swizzled_at(part, row + 8)) = (unsigned short)(pair >> 16);
      });
    };
    for (int at = 16 * h; at < (kSlices + 1) * kTile8; at += 2048) *reinterpret_cast<uint4*>(into + at) = {};
    if (x.normalize) {
      float2 n = {};
      if (x.n_initial && own_n() < x.dk) n.x = x.n_initial[blockIdx.y * x.dk + own_n()];
      if (x.n_initial && own_n() + 8 < x.dk) n.y = x.n_initial[blockIdx.y * x.dk + own_n() + 8];
      helpers_meet();
      put_n(n);
    }
    // What the gates of the next chunk are, read a chunk ahead.
    struct {
      float before, end, column, until;
    } next = {};
    auto look = [&](int c) {
      if (c >= chunks) return;
      i64 begins = begin_flat + c * kRows, of = blockIdx.y * (x.chunks + 1) + c;
      const int count = min(length - c * kRows, kRows);
      // Were these known to be the same for all threads, they would be waited for here.
      asm volatile("" : "+l"(begins), "+l"(of));
      if (!x.sigmoid) next.before = x.before[of];
      next.end = x.until[begins + count - 1];
      next.column = __int_as_float(0xff800000);
      next.until = __int_as_float(0x7f800000);
      if ((int)h >= count) return;
      next.column = x.column[begins + h];
      next.until = x.until[begins + h];
    };
    look(0);
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) {
      // What follows from these is made each time, and not kept.
      asm volatile("" : "+r"(h), "+r"(v0), "+r"(length));
      const i64 begins = begin_flat + c * kRows;
      const int count = min(length - c * kRows, kRows);
      const float before = next.before, behind = max(before, next.end);
      const float own_column = next.column, own_top = max(before, next.until);
      // Infinity times zero would be no number.
      const float exact_into = expf(own_column - behind), own_into = kBf16 ? exact_into : min(exact_into, 65504.f);
      const unsigned q = shared_at(of_q) + c % kAhead * (kSlices * kSlice);
      const unsigned k = shared_at(of_k) + c % (kAhead + 1) * (kOfK * kSlice);
      if (!mapped || count < kRows) {
        copy_wait(kAhead - 1);
        products_see();
        barrier_arrive(&full[c % (kAhead + 1)]);
      }
      // n's parts too.
      products_see();
      helpers_meet();
      barrier_wait(&full[c % (kAhead + 1)], c / (kAhead + 1) & 1);
      // Pairs, and q.n, its parts as columns 0 to 2.
      float acc[kRows / 8][4], dots[1][4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        dots[0][e] = 0.f;
#pragma unroll
        for (int i = 0; i < kRows / 8; ++i) acc[i][e] = 0.f;
      }
      products_begin();
#pragma unroll 1
      for (unsigned s = 0, n = shared_at(n_before); s < kSlices * kSlice; s += kSlice, n += kTile8)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          wgmma<kBf16, false, false>(acc, by_rows(q + s + 32 * e), by_rows(k + s + 32 * e));
          if (x.normalize) wgmma<kBf16, false, false>(dots, by_rows(q + s + 32 * e), by_rows(n + 32 * e));
        }
      products_end();
      if (h < kRows) {
        constexpr float kLog2 = 1.4426950408889634f;
        column[h] = kLog2 * own_column;
        top[h] = kLog2 * own_top - scales[1];
        gauge_of[h] = own_top;
        const float other = __shfl_xor_sync(~0u, own_into, 1);
        if (x.normalize && h % 2 == 0)
          split(own_into, other, [&](int part, unsigned pair) { *reinterpret_cast<unsigned*>(into + swizzled_at(part, h)) = pair; });
        // Those of two chunks before are read: their pairs were taken, and those of the last one wait.
        weights.query[c & 1][h] = scales[0] * expf(before - own_top);
        if (!x.normalize) weights.last[c & 1][h] = 1.f;
        if (h % 2 == 0) weights.key[c & 1][h / 2] = pack<kBf16>(own_into, other);
        if (h == 0) weights.left[c & 1] = expf(before - behind);
      }
      products_wait(acc);
      made(dots);
      products_see();
      helpers_meet();
      warp_arrives(&empty_q[c % kAhead]);
      float inter = 0.f;
      if (x.normalize) {
        // Of a row's four threads the first has two parts of q.n, the second the third; it goes to the two that have rows below.
        const float one = dots[0][0] + dots[0][1] + __shfl_down_sync(~0u, dots[0][0], 1);
        const float two = __shfl_up_sync(~0u, dots[0][2] + dots[0][3] + __shfl_down_sync(~0u, dots[0][2], 1), 1);
        inter = h % 4 == 0 ? one : two;
      }
      const int own_token = threadIdx.x % 128u / 32u * 16u + threadIdx.x % 32u / 4u + 8 * (h % 4);
      double sum = 0;
      if (!x.sigmoid && h % 4 < 2 && own_token < count) sum = x.sums[begins + own_token];
      if (c > 0) barrier_wait(&empty_p, (c - 1) & 1);
      int tile = v0;
      asm volatile("" : "+r"(tile));
      int row = threadIdx.x % 128u / 32u * 16u + threadIdx.x % 32u / 4u, pair = threadIdx.x % 4u * 2u;
      asm volatile("" : "+r"(row), "+r"(pair));
      const float tops[2] = {top[row], top[row + 8]};
      float sums[2] = {};
#pragma unroll
      for (int i = 0; i < kRows / 8; ++i) {
        const int s = 8 * i + pair;
        const float2 columns = *reinterpret_cast<const float2*>(column + s);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int t = row + 8 * half;
          const float w0 = power(columns.x - tops[half]), w1 = power(columns.y - tops[half]);
          const float p0 = s <= t ? acc[i][2 * half] * w0 : 0.f, p1 = s < t ? acc[i][2 * half + 1] * w1 : 0.f;
          sums[half] += p0 + p1;
          *reinterpret_cast<unsigned*>(pairs + swizzled_at(t, s)) = pack<kBf16>(p0, p1);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums[half] += __shfl_xor_sync(~0u, sums[half], 1);
        sums[half] += __shfl_xor_sync(~0u, sums[half], 2);
      }
      // A row is of one warp, whose two threads had q.n of it too.
      const int t = row + 8 * (int)(h % 4);
      if (h % 4 < 2 && t < count) {
        const i64 flat = begins + t;
        const double m = x.sigmoid ? 0. : sum + gauge_of[t];
        if (x.m && tile == 0) x.m[flat] = (float)m;
        if (x.normalize) {
          const float l = weights.query[c & 1][t] * inter + (h % 4 == 0 ? sums[0] : sums[1]);
          bool open;
          weights.last[c & 1][t] = 1.f / denominator(x, l, m, &open);
          if (x.l && tile == 0) x.l[flat] = l;
        }
      }
      products_see();
      barrier_arrive(&full_p);
      // What tokens add to n, its parts as columns 0 to 2: made while the next are copied.
      float more[kSlices][1][4];
      if (x.normalize) {
#pragma unroll
        for (int s = 0; s < kSlices; ++s)
#pragma unroll
          for (int e = 0; e < 4; ++e) more[s][0][e] = 0.f;
#pragma unroll
        for (int s = 0; s < kSlices; ++s) made(more[s]);
        products_begin();
#pragma unroll
        for (int s = 0; s < kSlices; ++s)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            wgmma<kBf16, true, false>(more[s], by_terms(k + s * kSlice + 16 * e * kLine, 0), by_rows(shared_at(into) + 32 * e));
        products_end();
      }
      look(c + 1);
      if (c + kAhead < chunks) {
        if (c > 0) barrier_wait(&empty_k[(c - 1) % (kAhead + 1)], (c - 1) / (kAhead + 1) & 1);
        barrier_wait(&empty_q[c % kAhead], c / kAhead & 1);
      }
      bring(c + kAhead);
      if (x.normalize) {
        products_wait(more[0]);
        // Of a row's four threads the first has two parts, the second the third; thread s gets what the rows of slice s get.
        float2 sum = {};
#pragma unroll
        for (int s = 0; s < kSlices; ++s) {
          made(more[s]);
          float2 of = {more[s][0][0] + more[s][0][1], more[s][0][2] + more[s][0][3]};
          of.x += __shfl_down_sync(~0u, more[s][0][0], 1);
          of.y += __shfl_down_sync(~0u, more[s][0][2], 1);
          of.x = __shfl_sync(~0u, of.x, 0, 4);
          of.y = __shfl_sync(~0u, of.y, 0, 4);
          if ((int)(h % 4) == s) sum = of;
        }
        const float left = weights.left[c & 1];
        float2 n = n_of[h];
        n.x = fmaf(left, n.x, sum.x);
        n.y = fmaf(left, n.y, sum.y);
        put_n(n);
      }
      warp_arrives(&empty_k[c % (kAhead + 1)]);
    }
    if (x.n_last && v0 == 0 && own_n() < x.dk) x.n_last[blockIdx.y * x.dk + own_n()] = n_of[h].x;
    if (x.n_last && v0 == 0 && own_n() + 8 < x.dk) x.n_last[blockIdx.y * x.dk + own_n() + 8] = n_of[h].y;
    return;
  }

  if (kSlices == 4) asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
  const int lane = thread % 32, warp = thread / 32 % 4, own = v0 + 64 * group + 16 * warp + lane / 4;
  float state[8 * kSlices][4];
  const i64 size = x.dk * x.dv;
  auto each_state = [&](auto f) {
#pragma unroll
    for (int n = 0; n < 8 * kSlices; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int k = 8 * n + lane % 4 * 2 + e % 2, v = own + e / 2 * 8;
        f(k < x.dk && v < x.dv, blockIdx.y * size + k * x.dv + v, state[n][e]);
      }
  };
  each_state([&](bool, i64, float& y) { y = 0.f; });
  if (x.c_initial) each_state([&](bool there, i64 at, float& y) { y = there ? x.c_initial[at] : 0.f; });
  // This thread stores 16 columns of rows that are 32 apart.
  const int d = v0 + 64 * group + 16 * warp;
  char* to = x.h.data + 2 * place(x.h, chain, chain.from + lane % 4 * 8 + lane / 4, d);
  auto put = [&](char* at, uint4 piece) {
    if (x.plain & kH) {
      *reinterpret_cast<uint4*>(at) = piece;
      return;
    }
#pragma unroll 1
    for (int e = 0; e < 8; ++e, at += 2 * x.h.d) {
      *reinterpret_cast<unsigned short*>(at) = (unsigned short)piece.x;
      piece = {piece.x >> 16 | piece.y << 16, piece.y >> 16 | piece.z << 16, piece.z >> 16 | piece.w << 16, piece.w >> 16};
    }
  };
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    const unsigned q = shared_at(of_q) + c % kAhead * (kSlices * kSlice);
    const unsigned k = shared_at(of_k) + c % (kAhead + 1) * (kOfK * kSlice);
    barrier_wait(&full[c % (kAhead + 1)], c / (kAhead + 1) & 1);
    float out[kRows / 8][4];
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[i][e] = 0.f;
    unsigned a[2][2][4];
#pragma unroll
    for (int s = 0; s < 2 * kSlices; ++s) {
      if (s > 1) {
        products_wait_but_last();
        keep(a[s % 2]);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const auto &low = state[4 * s + 2 * e], &high = state[4 * s + 2 * e + 1];
        a[s % 2][e][0] = pack<kBf16>(low[0], low[1]);
        a[s % 2][e][1] = pack<kBf16>(low[2], low[3]);
        a[s % 2][e][2] = pack<kBf16>(high[0], high[1]);
        a[s % 2][e][3] = pack<kBf16>(high[2], high[3]);
      }
      products_begin();
#pragma unroll
      for (int e = 0; e < 2; ++e) wgmma_of<kBf16, false>(out, a[s % 2][e], by_rows(q + s / 2 * kSlice + 64 * (s % 2) + 32 * e));
      products_end();
    }
    products_wait(out);
    keep(a[0]);
    keep(a[1]);
    warp_arrives(&empty_q[c % kAhead]);
    barrier_wait(&full_p, c & 1);
    scale_columns(out, weights.query[c & 1]);
    const unsigned v = k + (kSlices + group) * kSlice;
    unsigned of_v[4][4];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      load_matrices<true>(of_v[e], v + swizzled(16 * e + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2));
    products_begin();
#pragma unroll
    for (int e = 0; e < 4; ++e) wgmma_of<kBf16, false>(out, of_v[e], by_rows(shared_at(pairs) + 32 * e));
    products_end();
    const unsigned* by_key = weights.key[c & 1];
    const float left = weights.left[c & 1];
#pragma unroll
    for (int n = 0; n < 8 * kSlices; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[n][e] *= left;
    products_wait(out);
    keep(of_v);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const unsigned low = by_key[8 * e + lane % 4], high = by_key[8 * e + 4 + lane % 4];
      of_v[e][0] = times<kBf16>(of_v[e][0], low);
      of_v[e][1] = times<kBf16>(of_v[e][1], low);
      of_v[e][2] = times<kBf16>(of_v[e][2], high);
      of_v[e][3] = times<kBf16>(of_v[e][3], high);
    }
    products_begin();
#pragma unroll
    for (int e = 0; e < 4; ++e) wgmma_of<kBf16, true>(state, of_v[e], by_terms(k + 16 * e * kLine, kSlice));
    products_end();
    scale_columns(out, weights.last[c & 1]);
    barrier_arrive(&empty_p);
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      uint4 piece[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) w[j] = turned(pack<kBf16>(out[4 * b + j][2 * half], out[4 * b + j][2 * half + 1]));
        piece[half] = gather_columns(w[0], w[1], w[2], w[3]);
      }
      const int t = 32 * b + lane % 4 * 8 + lane / 4;
      if (t < length - c * kRows && d < x.dv) {
        char* at = to + b * 64 * x.h.t;
        put(at, piece[0]);
        put(at + 16 * x.h.d, piece[1]);
      }
    }
    to += 2 * kRows * x.h.t;
    products_wait(state);
    keep(of_v);
    warp_arrives(&empty_k[c % (kAhead + 1)]);
  }
  if (x.c_last) each_state([&](bool there, i64 at, float& y) {
    if (there) x.c_last[at] = y;
  });
}

// mLSTM, backward, gradients of q, k and v by chains (sm_90a); what runs before and behind is in hopper_pairs.cu, formulas and names
// are those of tensor_backward.cu.
//
//   hopper_walk    block: rows of a state of one chain, all of its columns, chunk of 64 tokens after chunk. kRole:
//     0  dq of 64 or 128 columns: of C the rows of these, with time;      dq^T = C dh^T (w) + k^T dS^T
//     1  dk likewise: of dC, against time;                                dk^T = dC' v^T (w) + q^T dS
//     2  dv likewise: of dC^T, against time;                              dv^T = dC'^T k^T (w) + dh^T P'
//     warpgroups 0, 1   64 rows each and all columns, or the same 64 rows and half of the columns (above 256), in registers:
//                       what the state is as sums of wgmma it is, rounded, as an operand too
//     warpgroup 2       asks the copy engine ahead, through a ring of three places: for what reads the state, and a slice of
//                       pairs; then for what goes into it. Chunks that are not whole its threads bring
//
// So no state is ever written. n is one more column of C, of which v has ones and dh l's part. For the gates q.dq and k.dk of what
// comes by the state are sums of products as they change the state, weights rounded as there, and the state read in two parts
// (hopper_pairs.cu says why).
//
// At 8 heads, 256 / 512, 65536 tokens: roles 0 and 1 read 1.6 GB and write 0.3, 0.45 ms at 4.28 TB/s; a chunk and block is 152 KB
// from L2, 5 GB, 0.9 ms at 5.5 TB/s, which holds them; and 13 MFLOP, 0.43 TFLOP, 0.55 ms at 0.79 PFLOP/s. Role 2: 0.38 ms of
// memory, 0.54 of L2, 0.39 of tensor cores. Measured (2026-11-23, the exponential gate): together 2.9 ms, 3.4 with copies by cp.async.
// Every thread arrives where a place is free again: one of each warp would do, but racecheck does not know what __syncwarp orders.
#include "hopper_walks.cuh"

constexpr bool kBack = kRole > 0, kRated = kRole < 2;
constexpr bool kHalved = kColumns == 512;
constexpr int kWide = kHalved ? 256 : kColumns;  // columns of a warpgroup
constexpr int kOwn = kHalved ? 1 : 2;            // slices of the rows of a block
constexpr int kRing = 3, kHold = (kSlices + kOwn) * kSlice;
constexpr int kOwnAt = kRing * kHold, kVectorsIn = kOwnAt + (kRated ? kOwn * kSlice : 0), kBarriersAt = kVectorsIn + 2 * kVectors;
constexpr int kParts = kRated ? 2 : 1;  // of the state as it is read
constexpr int kAtOnce = 3 - kParts;     // times 16 columns
static_assert(kColumns == 128 || kColumns == 256 || kColumns == 512, "warpgroups of 128 or 256 columns");

__device__ __forceinline__ void group_meets(int group) { asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory"); }
__device__ __forceinline__ void groups_meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

extern "C" __global__ void __launch_bounds__(384, 1) hopper_walk(const Call x, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(16) char dynamic[];
  const Chain chain = chain_of(x, blockIdx.y);
  const int thread = threadIdx.x, group = __shfl_sync(~0u, thread / 128, 0), chunks = (int)chain.chunks;
  const i64 rows_all = kRated ? x.dk : x.dv, columns_all = kRated ? x.dv : x.dk;
  const int r0 = blockIdx.x * (64 * kOwn);
  char* begin = dynamic + (1024 - shared_at(dynamic) % 1024) % 1024;
  u64 *full = reinterpret_cast<u64*>(begin + kBarriersAt), *empty = full + kRing;
  if (thread == 0) {
    for (int i = 0; i < kRing; ++i) {
      barrier_init(&full[i], 128);
      barrier_init(&empty[i], 256);
    }
    barrier_init_fence();
  }
  __syncthreads();

  if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    const unsigned h = threadIdx.x % 128u;
    const Tokens &reads = kRole == 0 ? x.grad_h : kRole == 1 ? x.v : x.k, &into = kRole == 0 ? x.v : kRole == 1 ? x.grad_h : x.q;
    const Tokens &rows = kRole == 0 ? x.k : kRole == 1 ? x.q : x.grad_h, &own = kRole == 0 ? x.q : x.k;
    constexpr int kReads = kRole == 0 ? kGradH : kRole == 1 ? kV : kK, kIntoBit = kRole == 0 ? kV : kRole == 1 ? kGradH : kQ;
    constexpr int kOfRows = kRole == 0 ? kK : kRole == 1 ? kQ : kGradH, kOfOwn = kRole == 0 ? kQ : kK;
    const int steps = 2 * chunks;
    auto fill = [&](int p) {
      const int i = p / 2, c = kBack ? chunks - 1 - i : i;
      char* to = begin + p % kRing * kHold;
      const i64 first = chain.from + (i64)c * kRows;
      const int count = (int)min(chain.len - (i64)c * kRows, (i64)kRows);
      const bool last = p % 2;
      auto bring = [&](char* at, int slices, const Tokens& y, int bit, i64 d, i64 width) {
        Source s = tokens_at(x, y, bit, chain, first, d, count, width);
#pragma unroll 1
        for (int nth = 0; nth < slices; ++nth, at += kSlice) {
          fetch_slice(at, s);
          s.data += 64 * s.step;
          s.columns -= 64;
        }
      };
      bring(to, kSlices, last ? into : reads, last ? kIntoBit : kReads, 0, columns_all);
      if (last) {
        bring(to + kSlices * kSlice, kOwn, rows, kOfRows, r0, rows_all);
        if (kRated) bring(begin + kOwnAt, kOwn, own, kOfOwn, r0, rows_all);
        return;
      }
      const char* record = record_of(x, chain.nth, c);
#pragma unroll
      for (int e = 0; e < kSlice; e += 2048)
        copy_ahead(shared_at(to) + kSlices * kSlice + e + 16 * h, record + (kRole == 2 ? kPairsAt : kSlopesAt) + e + 16 * h, true);
      if (16 * h < kVectors) copy_ahead(shared_at(begin) + kVectorsIn + i % 2 * kVectors + 16 * h, record + kVectorsAt + 16 * h, true);
    };
    constexpr int kMapOfReads = kRole == 0 ? kMapGradH : kRole == 1 ? kMapV : kMapK;
    constexpr int kMapInto = kRole == 0 ? kMapV : kRole == 1 ? kMapGradH : kMapQ;
    constexpr int kMapOfRows = kRole == 0 ? kMapK : kRole == 1 ? kMapQ : kMapGradH, kMapOfOwn = kRole == 0 ? kMapQ : kMapK;
    constexpr int kMapped = 1 << kMapOfReads | 1 << kMapInto | 1 << kMapOfRows | (kRated ? 1 << kMapOfOwn : 0);
    const bool mapped = (maps.which & kMapped) == kMapped;
#pragma unroll 1
    for (int p = 0; p < steps; ++p) {
      if (p >= kRing) barrier_wait(&empty[p % kRing], (p / kRing - 1) & 1);
      const int i = p / 2, c = kBack ? chunks - 1 - i : i;
      u64* arrived = &full[p % kRing];
      if (!mapped || chain.len - (i64)c * kRows < kRows) {
        // A chunk that is not whole, or tensors without maps: all threads bring what is there.
        fill(p);
        copy_commit();
        copy_wait(0);
        products_see();
        barrier_arrive(arrived);
      } else if (h > 0) {
        barrier_arrive(arrived);
      } else {
        const unsigned to = shared_at(begin) + p % kRing * kHold, at = shared_at(arrived);
        const int first = (int)chain.from + c * kRows;
        auto ask = [&](unsigned to, int slices, int map, int d) {
#pragma unroll 1
          for (int s = 0; s < slices; ++s, d += 64, to += kSlice)
            box_copy(to, maps.of[map], d, first, (int)chain.head, (int)chain.batch, at);
        };
        if (p % 2) {
          barrier_expect_at(at, (kSlices + kOwn + (kRated ? kOwn : 0)) * kSlice);
          ask(to, kSlices, kMapInto, 0);
          ask(to + kSlices * kSlice, kOwn, kMapOfRows, r0);
          if (kRated) ask(shared_at(begin) + kOwnAt, kOwn, kMapOfOwn, r0);
        } else {
          const char* record = record_of(x, chain.nth, c);
          barrier_expect_at(at, (kSlices + 1) * kSlice + kVectors);
          ask(to, kSlices, kMapOfReads, 0);
          bulk_copy_at(to + kSlices * kSlice, record + (kRole == 2 ? kPairsAt : kSlopesAt), kSlice, at);
          bulk_copy_at(shared_at(begin) + kVectorsIn + i % 2 * kVectors, record + kVectorsAt, kVectors, at);
        }
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
  int lane = thread % 32, warp = thread / 32 % 4;
  // This thread's rows of the state are `row` and 8 further.
  const int row = r0 + (kHalved ? 0 : 64 * group) + 16 * warp + lane / 4, c0 = kHalved ? kWide * group : 0;
  float state[kWide / 8][4], n[2] = {};
  const i64 size = x.dk * x.dv;
  auto each_state = [&](auto f) {
    int r0 = row, s0 = c0 + lane % 4 * 2;
    // Addresses are made here each time, and not kept.
    asm volatile("" : "+r"(r0), "+r"(s0));
#pragma unroll
    for (int j = 0; j < kWide / 8; ++j) {
      asm volatile("" : "+r"(s0));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = r0 + e / 2 * 8, s = s0 + 8 * j + e % 2;
        f(r < rows_all && s < columns_all, blockIdx.y * size + (kRated ? r * x.dv + s : s * x.dv + r), state[j][e]);
      }
    }
  };
  const float *from = kBack ? x.grad_c_last : x.c_initial, *from_n = kBack ? x.grad_n_last : x.n_initial;
  each_state([&](bool, i64, float& y) { y = 0.f; });
  if (from) each_state([&](bool there, i64 at, float& y) { y = there ? from[at] : 0.f; });
  if (kRated && from_n)
#pragma unroll
    for (int half = 0; half < 2; ++half) n[half] = row + 8 * half < x.dk ? from_n[blockIdx.y * x.dk + row + 8 * half] : 0.f;
  const Tokens& y = kRole == 0 ? x.grad_q : kRole == 1 ? x.grad_k : x.grad_v;
  const bool plain = x.plain & (kRole == 0 ? kGradQ : kRole == 1 ? kGradK : kGradV);
  const int d = r0 + (kHalved ? 0 : 64 * group) + 16 * warp, length = (int)chain.len;
  // This thread stores 16 columns of rows that are 32 apart.
  char* to = y.data + 2 * place(y, chain, chain.from + (kBack ? max(chunks - 1, 0) * kRows : 0) + lane % 4 * 8 + lane / 4, d);
  auto put = [&](char* at, uint4 piece) {
    if (plain) {
      *reinterpret_cast<uint4*>(at) = piece;
      return;
    }
#pragma unroll 1
    for (int e = 0; e < 8; ++e, at += 2 * y.d) {
      *reinterpret_cast<unsigned short*>(at) = (unsigned short)piece.x;
      piece = {piece.x >> 16 | piece.y << 16, piece.y >> 16 | piece.z << 16, piece.z >> 16 | piece.w << 16, piece.w >> 16};
    }
  };
  // What this warp has of q.dq or k.dk.
  const int part = blockIdx.x * 8 + thread / 32, parts = gridDim.x * 8;
  float* rates = kRole == 0 ? x.rate_q : x.rate_i;
  rates += ((blockIdx.y * x.chunks + (kBack ? max(chunks - 1, 0) : 0)) * parts + part) * kRows + 2 * lane;
  auto rounded = [](float2 w) { return kBf16 ? pack<kBf16>(w.x, w.y) : pack<kBf16>(min(w.x, 65504.f), min(w.y, 65504.f)); };

#pragma unroll 1
  for (int i = 0; i < chunks; ++i) {
    // What follows from these is made each time, and not kept.
    asm volatile("" : "+r"(lane), "+r"(warp), "+l"(begin));
    const int c = kBack ? chunks - 1 - i : i, p = 2 * i;
    const int place_r = p % kRing, place_w = (p + 1) % kRing;
    const unsigned reads = shared_at(begin) + place_r * kHold, into = shared_at(begin) + place_w * kHold;
    const float* vectors = reinterpret_cast<const float*>(begin + kVectorsIn + i % 2 * kVectors);
    const float *reading = vectors + (kRole == 0 ? kRead : kInto), *writing = vectors + (kRole == 0 ? kInto : kRead);
    barrier_wait(&full[place_r], p / kRing & 1);
    float out[8][4];
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[j][e] = 0.f;
    {
      const unsigned from = reads + (kHalved ? group * (4 * kSlice) : 0);
      unsigned a[2][2][4];
#pragma unroll
      for (int s = 0; s < kWide / (16 * kAtOnce); ++s) {
        if (s > 1) {
          products_wait_but_last();
          keep(a[s % 2]);
        }
#pragma unroll
        for (int e = 0; e < kAtOnce; ++e) {
          const int j = 2 * (s * kAtOnce + e);
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            const float low = state[j + w / 2][w % 2 * 2], high = state[j + w / 2][w % 2 * 2 + 1];
            a[s % 2][e][w] = pack<kBf16>(low, high);
            if (kParts == 1) continue;
            const float2 of = unpack<kBf16>(a[s % 2][0][w]);
            a[s % 2][1][w] = pack<kBf16>(low - of.x, high - of.y);
          }
        }
        products_begin();
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = s * kAtOnce + (kParts == 1 ? e : 0);  // times 16 columns
          wgmma_of<kBf16, false>(out, a[s % 2][e], by_rows(from + at / 4 * kSlice + at % 4 * 32));
        }
        products_end();
      }
      products_wait(out);
      keep(a[0]);
      keep(a[1]);
    }
    barrier_wait(&full[place_w], (p + 1) / kRing & 1);
    const unsigned turn = swizzled(lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2);
    if (kRated) {
      if (x.normalize && (!kHalved || group == 0)) {
        asm volatile("" : "+r"(lane));
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float2 w = kRole == 0 ? *reinterpret_cast<const float2*>(vectors + kOfL + 8 * j + lane % 4 * 2) : float2{1.f, 1.f};
#pragma unroll
          for (int e = 0; e < 4; ++e) out[j][e] = fmaf(n[e / 2], e % 2 ? w.y : w.x, out[j][e]);
        }
      }
      // Over the eight lanes that have the same tokens: lane l gets 2 l and 2 l + 1.
      float2 dots[2][2];
#pragma unroll
      for (int near = 0; near < 2; ++near) {
        float2 of[2][2];
#pragma unroll
        for (int far = 0; far < 2; ++far) {
          const int e = near + 2 * far;
          unsigned own[4];
          load_matrices<true>(own, shared_at(begin) + kOwnAt + (kHalved ? 0 : group * kSlice) + turn + 16 * e * kLine);
          const float* by = reading + 16 * e + lane % 4 * 2;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            asm volatile("" : "+r"(lane));
            const unsigned w = rounded(*reinterpret_cast<const float2*>(by + 8 * half));
            const float2 one = unpack<kBf16>(times<kBf16>(own[2 * half], w)), two = unpack<kBf16>(times<kBf16>(own[2 * half + 1], w));
            const auto& with = out[2 * e + half];
            of[far][half] = {fmaf(one.x, with[0], two.x * with[2]), fmaf(one.y, with[1], two.y * with[3])};
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) dots[near][half] = fold(of[0][half], of[1][half], 16);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) dots[0][half] = fold(dots[0][half], dots[1][half], 8);
      *reinterpret_cast<float2*>(rates) = fold(dots[0][0], dots[0][1], 4);
      rates += (kBack ? -1 : 1) * (int)gridDim.x * (8 * kRows);
    }
    scale_columns(out, reading);
    unsigned of_rows[4][4];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      load_matrices<true>(of_rows[e], into + (kSlices + (kHalved ? 0 : group)) * kSlice + turn + 16 * e * kLine);
    // Where rows are halved, each warpgroup has half of the terms.
    constexpr int kOfPairs = kHalved ? 2 : 4;
    unsigned weighed[kOfPairs][4];
#pragma unroll
    for (int e = 0; e < kOfPairs; ++e)
#pragma unroll
      for (int w = 0; w < 4; ++w) weighed[e][w] = kHalved && group ? of_rows[2 + e % 2][w] : of_rows[e][w];
    const unsigned of_pairs = reads + kSlices * kSlice + (kHalved ? group * (kRole == 0 ? 64 : 32 * kLine) : 0);
    products_begin();
#pragma unroll
    for (int e = 0; e < kOfPairs; ++e)
      wgmma_of<kBf16, kRole != 0>(out, weighed[e], kRole == 0 ? by_rows(of_pairs + 32 * e) : by_terms(of_pairs + 16 * e * kLine, 0));
    products_end();
    const float left = vectors[kLeft];
#pragma unroll
    for (int j = 0; j < kWide / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[j][e] *= left;
    products_wait(out);
    keep(weighed);
    unsigned ready[2][2][4];
    if (!kHalved)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) ready[j / 4][e][j % 4] = turned(pack<kBf16>(out[j][2 * e], out[j][2 * e + 1]));
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int at = 16 * e + lane % 4 * 2;
      const unsigned low = rounded(*reinterpret_cast<const float2*>(writing + at));
      const unsigned high = rounded(*reinterpret_cast<const float2*>(writing + at + 8));
#pragma unroll
      for (int w = 0; w < 4; ++w) of_rows[e][w] = times<kBf16>(of_rows[e][w], w < 2 ? low : high);
    }
    products_begin();
#pragma unroll
    for (int e = 0; e < 4; ++e)
      wgmma_of<kBf16, true>(state, of_rows[e], by_terms(into + (kHalved ? group * (4 * kSlice) : 0) + 16 * e * kLine, kSlice));
    products_end();
    auto store = [&](const unsigned(&w)[2][4], int b) {
      uint4 piece[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) piece[half] = gather_columns(w[half][0], w[half][1], w[half][2], w[half][3]);
      if (y.data && 32 * b + lane % 4 * 8 + lane / 4 < length - c * kRows && d < rows_all) {
        char* at = to + b * 64 * y.t;
        put(at, piece[0]);
        put(at + 16 * y.d, piece[1]);
      }
    };
    if (kHalved) {
      // A warpgroup ends half of the tokens; what the other's are goes through what this one has read.
      float half[4][4];
      group_meets(group);
      float4* there = reinterpret_cast<float4*>(begin + place_r * kHold + group * (4 * kSlice)) + thread % 128;
      const float4* here = reinterpret_cast<const float4*>(begin + place_r * kHold + (1 - group) * (4 * kSlice)) + thread % 128;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float4 away;
        away.x = group ? out[j][0] : out[j + 4][0];
        away.y = group ? out[j][1] : out[j + 4][1];
        away.z = group ? out[j][2] : out[j + 4][2];
        away.w = group ? out[j][3] : out[j + 4][3];
        there[128 * j] = away;
#pragma unroll
        for (int e = 0; e < 4; ++e) half[j][e] = group ? out[j + 4][e] : out[j][e];
      }
      groups_meet();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float4 other = here[128 * j];
        half[j][0] += other.x;
        half[j][1] += other.y;
        half[j][2] += other.z;
        half[j][3] += other.w;
      }
      // What comes here next is written by the copy engine.
      products_see();
      barrier_arrive(&empty[place_r]);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) ready[0][e][j] = turned(pack<kBf16>(half[j][2 * e], half[j][2 * e + 1]));
      store(ready[0], group);
    } else {
      barrier_arrive(&empty[place_r]);
#pragma unroll
      for (int b = 0; b < 2; ++b) store(ready[b], b);
    }
    to += (kBack ? -2 : 2) * kRows * y.t;
    if (kRated && x.normalize) {
      float more[2] = {};
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const float2 z = unpack<kBf16>(of_rows[e][w]);
          const float* of = vectors + kOfL + 16 * e + lane % 4 * 2 + w / 2 * 8;
          const float2 r = kRole == 0 ? float2{1.f, 1.f} : *reinterpret_cast<const float2*>(of);
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
    barrier_arrive(&empty[place_w]);
  }

  if (kRole == 0) {
    if (!x.grad_c_last) return;
    float sum = 0.f;
    each_state([&](bool there, i64 at, float& z) {
      if (there) sum = fmaf(z, x.grad_c_last[at], sum);
    });
    if (x.grad_n_last && lane % 4 == 0 && (!kHalved || group == 0))
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (row + 8 * half < x.dk) sum = fmaf(n[half], x.grad_n_last[blockIdx.y * x.dk + row + 8 * half], sum);
    double whole = sum;
    for (int e = 16; e > 0; e /= 2) whole += __shfl_xor_sync(~0u, whole, e);
    if (lane == 0) x.products[blockIdx.y * parts + part] = whole;
  }
  if (kRole != 1) return;
  float *c = x.grad_c_initial, *other = x.carry_c;
  if (c || other) each_state([&](bool there, i64 at, float& z) {
    if (there && c) c[at] = z;
    if (there && other) other[at] = z;
  });
  if (!x.normalize || lane % 4 != 0 || (kHalved && group != 0)) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const i64 at = blockIdx.y * x.dk + row + 8 * half;
    if (row + 8 * half < x.dk && x.grad_n_initial) x.grad_n_initial[at] = n[half];
    if (row + 8 * half < x.dk && x.carry_n) x.carry_n[at] = n[half];
  }
}

// mLSTM by chains (sm_90a), h and the gradients of q, k and v; what runs before and behind is in hopper_weights.cu and hopper_pairs.cu,
// formulas and names are those of tensor_forward.cu and tensor_backward.cu.
//
//   hopper_walk    block: 128 rows of a state of one chain and at most 256 of its columns, chunk of 64 tokens after chunk. kRole:
//     0  dq of these 128 columns: of C the rows of these, with time;      dq^T = C dh^T (w) + k^T dS^T
//     1  dk likewise: of dC, against time;                                dk^T = dC' v^T (w) + q^T dS
//     2  dv likewise: of dC^T, against time;                              dv^T = dC'^T k^T (w) + dh^T P'
//     3  h likewise: of C^T, with time;                                   h^T = (C^T q^T (w) + v^T P^T) / N
//     warpgroups 0, 1   64 rows each, in registers: what the state is as sums of wgmma it is, rounded, as an operand too
//     warpgroup 2       asks the copy engine ahead, through a ring of places: for what reads the state, and a slice of pairs; then
//                       for what goes into it. Chunks that are not whole its threads bring. What the others leave in shared memory,
//                       gradients or h, it stores
//
// Of states of more columns two blocks have halves: each ends half of the tokens, and gets from the other what that has of them. Two
// blocks of a chain are a cluster, and what both read each brings half of, to both.
//
// So no state is ever written. n is one more column of C, of which v has ones and dh l's part. For the gates q.dq and k.dk of what
// comes by the state are sums of products as they change the state, weights rounded as there, and the state read in two parts
// (hopper_pairs.cu says why).
//
// At 8 heads, 256 / 512, 65536 tokens (NVIDIA H200, 2026-11-28, the exponential gate): roles 0 and 1 move 2.03 GB each, 0.47 ms at 4.28
// TB/s, and 0.43 TFLOP, 0.55 ms at 0.79 PFLOP/s; 88 KB a chunk and block from L2, which is 78 % of what that gives. They take 0.85 and 0.84
// ms. Nothing binds alone (a chunk is 5700 clocks, 1660 of them a warpgroup's own products): without any copies 0.78, without the second
// part of the state 0.73, without what goes into it 0.78, without q.dq 0.81, without decays 0.81, without what the halves send each
// other as long as with it; 60 instructions fewer of a chunk's 1230, for tiles' descriptors, gained half a percent. Role 2: 1.70 GB, 0.40
// ms, 0.39 of tensor cores; 0.60 ms. Role 3 as much; 0.62, and 0.78 while the third warpgroup made N beside it. Blocks of 64 rows and all
// 512 columns had 152 KB from L2 and took, on an H100, 1.00, 0.99 and 0.84 ms where these took 0.89, 0.89 and 0.64.
// Clusters of four bring 52 KB, but fewer than 32 of them run at once, so that blocks come in three waves instead of two (1.30 ms).
// What binds all of them together is the card's power: an H200 that goes through passes lowers its clock from 1980 to 1440 .. 1875 MHz at 700 W,
// and 0.96 and 2.93 ms (forward, backward, exponential) become 1.03 and 3.25. Of the 3.25 the second part of the states takes a tenth. Without
// it, and with the gates' sums begun anew every eight chunks from <C, dC>, they were off by up to 1.4e-2 (bf16, unit gates), and C kept for that
// moved 8 KB more a chunk. One part of f16, under powers of two that bounds of what chunks add to C and dC allow, would do (grad_f off by
// 1.6e-3 to 3e-3 over 2048 to 8192 tokens), but what reads the state must then be f16 too: made so in place by the third warpgroup, roles
// 0 and 1 took 0.91 ms where two parts took 0.845; without that, which is wrong, 0.72, and 0.79 with its barriers. With three places of a
// chunk, each free as soon as it is read, those barriers were hidden, but all roles slower (0.89, two parts 0.92, role 2 0.70).
// One arrival of a warp instead of one of a thread gained nothing.
// Turns with the products that read the state, so that one warpgroup's run beneath what the other does between, took 0.92 there.
// Every thread arrives where a place is free again: one of each warp would do, but racecheck does not know what __syncwarp orders.
#include "hopper_places.cuh"

extern "C" __global__ void __launch_bounds__(384, 1) hopper_walk(const Call x, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(16) char dynamic[];
  const Chain chain = chain_of(x, blockIdx.y);
  const int thread = threadIdx.x, group = __shfl_sync(~0u, thread / 128, 0), chunks = (int)chain.chunks;
  const i64 rows_all = kRated ? x.dk : x.dv, columns_all = kRated ? x.dv : x.dk;
  const int rank = cluster_rank(), blocks = cluster_blocks();
  const int half_of = kHalved ? blockIdx.x % 2 : 0, c0 = kWide * half_of;
  const int r0 = blockIdx.x / (kHalved ? 2 : 1) * 128;
  char* begin = dynamic + (1024 - shared_at(dynamic) % 1024) % 1024;
  unsigned base = shared_at(begin);
  // Filled places, those that this block has read, and those that all blocks have; what the other half's block sent.
  u64 *full = reinterpret_cast<u64*>(begin + kBarriersAt), *empty = full + kRing, *free = empty + kRing, *came = free + kRing;
  if (thread == 0) {
    for (int i = 0; i < kRing; ++i) {
      barrier_init(&full[i], 128);
      barrier_init(&empty[i], 256);
      barrier_init(&free[i], blocks);
    }
    for (int i = 0; i < 4; ++i) barrier_init(&came[i], 1);
    barrier_init_fence();
  }
  if (blocks > 1)
    cluster_sync();
  else
    __syncthreads();

  if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(56));
    const unsigned h = threadIdx.x % 128u;
    // What reads the state, what goes into it, with rows that are weighed, and, for the gates, the rows that gradients are of.
    const Tokens &reads = kRole == 0 ? x.grad_h : kRole == 1 ? x.v : kRole == 2 ? x.k : x.q;
    const Tokens &into = kRole == 0 ? x.v : kRole == 1 ? x.grad_h : kRole == 2 ? x.q : x.k;
    const Tokens &rows = kRole == 0 ? x.k : kRole == 1 ? x.q : kRole == 2 ? x.grad_h : x.v, &own = kRole == 0 ? x.q : x.k;
    constexpr int kReadsBit = kRole == 0 ? kGradH : kRole == 1 ? kV : kRole == 2 ? kK : kQ;
    constexpr int kIntoBit = kRole == 0 ? kV : kRole == 1 ? kGradH : kRole == 2 ? kQ : kK;
    constexpr int kOfRows = kRole == 0 ? kK : kRole == 1 ? kQ : kRole == 2 ? kGradH : kV, kOfOwn = kRole == 0 ? kQ : kK;
    // A chunk's pairs, its vectors, and n before it.
    auto pairs_of = [&](const Chain& chain, int c) {
      return kForward ? weighed_of(x, chain.nth, c) + kPairsAt : record_of(x, chain.nth, c) + (kRole == 2 ? kPairsAt : kSlopesAt);
    };
    auto vectors_of = [&](const Chain& chain, int c) {
      return kForward ? weighed_of(x, chain.nth, c) + kWeighedAt : record_of(x, chain.nth, c) + kVectorsAt;
    };
    auto fill = [&](const Chain& chain, int p) {
      const int i = p / 2, c = kBack ? chunks - 1 - i : i;
      char* to = begin + place_of(p);
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
      bring(to, kWideSlices, last ? into : reads, last ? kIntoBit : kReadsBit, c0, columns_all);
      if (last) {
        bring(to + kWideSlices * kSlice, kOwn, rows, kOfRows, r0, rows_all);
        return;
      }
      if (kRated) bring(to + kOwnAt, kOwn, own, kOfOwn, r0, rows_all);
      const char *pairs = pairs_of(chain, c), *vectors = vectors_of(chain, c);
#pragma unroll
      for (int e = 0; e < kSlice; e += 2048) copy_ahead(shared_at(to) + kWideSlices * kSlice + e + 16 * h, pairs + e + 16 * h, true);
      if (16 * h < kVectors) copy_ahead(shared_at(begin) + kVectorsIn + i % kVectorsOf * kVectors + 16 * h, vectors + 16 * h, true);
    };
    constexpr int kMapOfReads = kRole == 0 ? kMapGradH : kRole == 1 ? kMapV : kRole == 2 ? kMapK : kMapQ;
    constexpr int kMapInto = kRole == 0 ? kMapV : kRole == 1 ? kMapGradH : kRole == 2 ? kMapQ : kMapK;
    constexpr int kMapOfRows = kRole == 0 ? kMapK : kRole == 1 ? kMapQ : kRole == 2 ? kMapGradH : kMapV;
    constexpr int kMapOfOwn = kRole == 0 ? kMapQ : kMapK;
    constexpr int kMapped = 1 << kMapOfReads | 1 << kMapInto | 1 << kMapOfRows | (kRated ? 1 << kMapOfOwn : 0);
    const bool mapped = (maps.which & kMapped) == kMapped;
    // Chunk i's gradients and rates, which both warpgroups have left: all warps but that which asks store rows of 128 bytes.
    auto drain = [&](const Chain& chain, int i) {
      if (h < 32) return;
      const int c = kBack ? chunks - 1 - i : i, left = (int)chain.len - c * kRows - (kHalved ? 32 * half_of : 0);
      if (kRated && h < 32 + kRows)
        store_rates(x, kRole == 0 ? x.rate_q : x.rate_i, reinterpret_cast<const float*>(begin + kRatesIn + i % 2 * kRatesOf), chain.nth, c,
                    h - 32);
      const Tokens& y = kRole == 0 ? x.grad_q : kRole == 1 ? x.grad_k : kRole == 2 ? x.grad_v : x.h;
      if (!y.data) return;
      const bool plain = x.plain & (kRole == 0 ? kGradQ : kRole == 1 ? kGradK : kRole == 2 ? kGradV : kH);
      // A thread has one piece of every twelfth row, whose places follow from each other.
      const int piece = h % 8, first = (h - 32) / 8;
#pragma unroll 1
      for (int of = 0; of < 2; ++of) {
        const int d = r0 + 64 * of + 8 * piece;
        if (d >= rows_all) break;
        unsigned from = shared_at(begin) + kGoesOutAt + (i % 2 * 2 + of) * kGoesOut + swizzled(first, piece);
        char* to = y.data + 2 * place(y, chain, chain.from + c * kRows + (kHalved ? 32 * half_of : 0) + first, d);
#pragma unroll 2
        for (int t = first; t < min(left, kGoesOut / kLine); t += 12, to += 24 * y.t, from = (from ^ 64) + 12 * kLine)
          store_at(to, y.d, plain, shared_piece(from));
      }
    };
    auto bring = [&](const Chain& chain, int p) {
      if (p >= 2 * chunks) {
        // Nothing comes any more, but what is under way goes out.
        if (p >= kRing && p - kRing < 2 * chunks && (p - kRing) % 2) {
          barrier_wait(&empty[p % kRing], (p / kRing - 1) & 1);
          drain(chain, (p - kRing) / 2);
        }
        return;
      }
      if (p >= kRing) {
        barrier_wait(&empty[p % kRing], (p / kRing - 1) & 1);
        // Before this thread says that the place is filled, without which nobody comes to the chunk that has this one's tile.
        if ((p - kRing) % 2) drain(chain, (p - kRing) / 2);
        // What comes here goes to other blocks, too.
        if (blocks > 1 && h == 0) {
#pragma unroll 1
          for (int b = 0; b < blocks; ++b) barrier_arrive_in(in_block(shared_at(&free[p % kRing]), b));
          barrier_wait(&free[p % kRing], (p / kRing - 1) & 1);
        }
      }
      const int i = p / 2, c = kBack ? chunks - 1 - i : i;
      u64* arrived = &full[p % kRing];
      if (!mapped || chain.len - (i64)c * kRows < kRows) {
        // A chunk that is not whole, or tensors without maps: all threads bring what is there.
        fill(chain, p);
        copy_commit();
        copy_wait(0);
        products_see();
        barrier_arrive(arrived);
      } else if (h > 0) {
        barrier_arrive(arrived);
      } else {
        const unsigned to = shared_at(begin) + place_of(p), at = shared_at(arrived);
        const int first = (int)chain.from + c * kRows;
        // Of what several blocks read, each brings its share to all of them.
        auto ask = [&](unsigned to, int slices, int map, int d, int nth, int of, unsigned all) {
#pragma unroll 1
          for (int s = nth; s < slices; s += of) {
            if (of > 1)
              box_copy_to(to + s * kSlice, maps.of[map], d + 64 * s, first, (int)chain.head, (int)chain.batch, at, all);
            else
              box_copy(to + s * kSlice, maps.of[map], d + 64 * s, first, (int)chain.head, (int)chain.batch, at);
          }
        };
        // Those that have the same columns, and the same rows.
        const int nth_c = kHalved ? rank / 2 : rank, of_c = kHalved ? (blocks + 1) / 2 : blocks;
        const int nth_r = kHalved ? rank % 2 : 0, of_r = kHalved ? 2 : 1;
        const unsigned whole = (1u << blocks) - 1, all_c = kHalved ? (whole & 0x55) << half_of : whole;
        const unsigned all_r = kHalved ? 3u << (rank & ~1) : 0;
        if (p % 2) {
          barrier_expect_at(at, kGoesIn);
          ask(to, kWideSlices, kMapInto, c0, nth_c, of_c, all_c);
          ask(to + kWideSlices * kSlice, kOwn, kMapOfRows, r0, nth_r, of_r, all_r);
        } else {
          barrier_expect_at(at, kReads + kVectors);
          ask(to, kWideSlices, kMapOfReads, c0, nth_c, of_c, all_c);
          if (kRated) ask(to + kOwnAt, kOwn, kMapOfOwn, r0, nth_r, of_r, all_r);
          const char* pairs = pairs_of(chain, c);
          if (blocks > 1) {
            const int bytes = kSlice / blocks;
            bulk_copy_to(to + kWideSlices * kSlice + rank * bytes, pairs + rank * bytes, bytes, at, whole);
          } else {
            bulk_copy_at(to + kWideSlices * kSlice, pairs, kSlice, at);
          }
          bulk_copy_at(shared_at(begin) + kVectorsIn + i % kVectorsOf * kVectors, vectors_of(chain, c), kVectors, at);
        }
      }
    };
#pragma unroll 1
    for (int p = 0; p < 2 * chunks + kRing; ++p) bring(chain, p);
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(224));
  int lane = thread % 32, warp = thread / 32 % 4;
  // This thread's rows of the state are `row` and 8 further.
  const int row = r0 + 64 * group + 16 * warp + lane / 4;
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

#pragma unroll 1
  for (int i = 0; i < chunks; ++i) {
    // What follows from these is made each time, and not kept.
    asm volatile("" : "+r"(lane), "+r"(warp), "+r"(base), "+f"(n[0]), "+f"(n[1]));
    const int p = 2 * i;
    const int place_r = p % kRing, place_w = (p + 1) % kRing;
    const unsigned reads = base + place_of(p), into = base + place_of(p + 1);
    const unsigned vectors = base + kVectorsIn + i % kVectorsOf * kVectors, of_lane = vectors + lane % 4 * 8;
    const unsigned reading = of_lane + 4 * (kBack ? kInto : kRead), writing = of_lane + 4 * (kBack ? kRead : kInto);
    barrier_wait_at(base + kBarriersAt + 0 + 8 * (place_r), p / kRing & 1);
    float out[8][4];
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[j][e] = 0.f;
    read_state<kParts>(out, state, by_rows(reads), [](int, const unsigned(&)[4]) {});
    barrier_wait_at(base + kBarriersAt + 0 + 8 * (place_w), (p + 1) / kRing & 1);
    const unsigned turn = swizzled(lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2);
    if (kRated) {
      if (x.normalize && half_of == 0) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float2 w = kRole == 0 ? shared2(of_lane + 4 * kOfL + 32 * j) : float2{1.f, 1.f};
#pragma unroll
          for (int e = 0; e < 4; ++e) out[j][e] = fmaf(n[e / 2], e % 2 ? w.y : w.x, out[j][e]);
        }
      }
      const unsigned rates = base + kRatesIn + i % 2 * kRatesOf + (4 * group + warp) * (4 * kRows) + 8 * lane;
      store_shared2(rates, rate_tokens(out, reads + kOwnAt + group * kSlice, turn, reading));
    }
    scale_tokens(out, reading);
    // Where columns are halved, each block has half of the pairs' terms, and these come first.
    constexpr int kOfPairs = kHalved ? 2 : 4;
    const unsigned first = kHalved ? 2 * half_of : 0;  // times 16 tokens
    auto nth_of = [&](int e) { return kHalved ? first ^ e : (unsigned)e; };
    unsigned of_rows[4][4];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      load_matrices<true>(of_rows[e], into + (kWideSlices + group) * kSlice + turn + 16 * nth_of(e) * kLine);
    const unsigned of_pairs = reads + kWideSlices * kSlice + (kHalved ? half_of * (kRole == 0 ? 64 : 32 * kLine) : 0);
    const u64 pairs = kBack ? by_terms(of_pairs, 0) : by_rows(of_pairs);
    products_begin();
#pragma unroll
    for (int e = 0; e < kOfPairs; ++e)
      wgmma_of<kBf16, kBack>(out, of_rows[e], further(pairs, (kBack ? 16 * kLine : 32) * e));
    products_end();
    const float left = shared2(vectors + 4 * kLeft).x;
#pragma unroll
    for (int j = 0; j < kWide / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[j][e] *= left;
    products_wait(out);
    keep(of_rows);
    barrier_arrive_at(base + kBarriersAt + 8 * kRing + 8 * (place_r));
    float half[4][4];
    if (kHalved) {
      // A block ends half of the tokens, and sends what it has of the others.
      const unsigned peer = in_block(base, rank ^ 1), nth = 2 * group + i % 2;
      const unsigned there = peer + kExchange + nth * kExchanged + thread % 128 * 16;
      const unsigned heard = peer + kBarriersAt + (3 * kRing + nth) * 8;
      if (thread % 128 == 0) barrier_expect_at(base + kBarriersAt + 8 * (3 * kRing + nth), kExchanged);
      // Chosen by a branch, which is fewer instructions than a choice for each.
      auto send = [&](int ends, int sends) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          store_async(there + 2048 * j, out[sends + j], heard);
#pragma unroll
          for (int e = 0; e < 4; ++e) half[j][e] = out[ends + j][e];
        }
      };
      if (half_of)
        send(4, 0);
      else
        send(0, 4);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const unsigned at = writing + 64 * nth_of(e), low = rounded(shared2(at)), high = rounded(shared2(at + 32));
#pragma unroll
      for (int w = 0; w < 4; ++w) of_rows[e][w] = times<kBf16>(of_rows[e][w], w < 2 ? low : high);
    }
    const u64 of_into = by_terms(into, kSlice);
    products_begin();
#pragma unroll
    for (int e = 0; e < 4; ++e) wgmma_of<kBf16, true>(state, of_rows[e], further(of_into, 16 * nth_of(e) * kLine));
    products_end();
    // By lane: token lane % 8 of eight, and of 16, and half of a warp's columns.
    const unsigned tile = base + kGoesOutAt + (i % 2 * 2 + group) * kGoesOut + swizzled(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2);
    if (kHalved) {
      const int nth = 2 * group + i % 2;
      barrier_wait_at(base + kBarriersAt + 8 * (3 * kRing + nth), i / 2 & 1);
      const unsigned here = base + kExchange + nth * kExchanged + thread % 128 * 16;
      unsigned ready[2][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float4 other = shared4(here + 2048 * j);
        half[j][0] += other.x;
        half[j][1] += other.y;
        half[j][2] += other.z;
        half[j][3] += other.w;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) ready[j / 2][j % 2 * 2 + e] = pack<kBf16>(half[j][2 * e], half[j][2 * e + 1]);
#pragma unroll
      for (int b = 0; b < 2; ++b) store_turned(tile + 16 * b * kLine, ready[b]);
    } else {
      if (kForward && x.normalize) scale_tokens(out, of_lane + 4 * kOfL);
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        unsigned ready[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) ready[w] = pack<kBf16>(out[2 * b + w / 2][w % 2 * 2], out[2 * b + w / 2][w % 2 * 2 + 1]);
        store_turned(tile + 16 * b * kLine, ready);
      }
    }
    if (kRated && x.normalize) {
      float more[2] = {};
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const float2 z = unpack<kBf16>(of_rows[e][w]);
          const float2 r = kRole == 0 ? float2{1.f, 1.f} : shared2(of_lane + 4 * kOfL + 64 * nth_of(e) + w / 2 * 32);
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
    barrier_arrive_at(base + kBarriersAt + 8 * kRing + 8 * (place_w));
  }

  if (kRole == 0) {
    if (!x.grad_c_last) return;
    float sum = 0.f;
    each_state([&](bool there, i64 at, float& z) {
      if (there) sum = fmaf(z, x.grad_c_last[at], sum);
    });
    if (x.grad_n_last && lane % 4 == 0 && half_of == 0)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (row + 8 * half < x.dk) sum = fmaf(n[half], x.grad_n_last[blockIdx.y * x.dk + row + 8 * half], sum);
    double whole = sum;
    for (int e = 16; e > 0; e /= 2) whole += __shfl_xor_sync(~0u, whole, e);
    if (lane == 0) x.products[(blockIdx.y * gridDim.x + blockIdx.x) * 8 + thread / 32] = whole;
  }
  if (kForward && x.c_last) each_state([&](bool there, i64 at, float& z) {
    if (there) x.c_last[at] = z;
  });
  if (kRole != 1) return;
  float *c = x.grad_c_initial, *other = x.carry_c;
  if (c || other) each_state([&](bool there, i64 at, float& z) {
    if (there && c) c[at] = z;
    if (there && other) other[at] = z;
  });
  if (!x.normalize || lane % 4 != 0 || half_of > 0) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const i64 at = blockIdx.y * x.dk + row + 8 * half;
    if (row + 8 * half < x.dk && x.grad_n_initial) x.grad_n_initial[at] = n[half];
    if (row + 8 * half < x.dk && x.carry_n) x.carry_n[at] = n[half];
  }
}

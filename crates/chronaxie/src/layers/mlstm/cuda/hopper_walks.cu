// mLSTM, backward, gradients of q, k and v by chains (sm_90a); what runs before and behind is in hopper_pairs.cu, formulas and names
// are those of tensor_backward.cu.
//
//   hopper_walk    block: 128 rows of a state of one chain and at most 256 of its columns, chunk of 64 tokens after chunk. kRole:
//     0  dq of these 128 columns: of C the rows of these, with time;      dq^T = C dh^T (w) + k^T dS^T
//     1  dk likewise: of dC, against time;                                dk^T = dC' v^T (w) + q^T dS
//     2  dv likewise: of dC^T, against time;                              dv^T = dC'^T k^T (w) + dh^T P'
//     warpgroups 0, 1   64 rows each, in registers: what the state is as sums of wgmma it is, rounded, as an operand too
//     warpgroup 2       asks the copy engine ahead, through a ring of places: for what reads the state, and a slice of pairs; then
//                       for what goes into it. Chunks that are not whole its threads bring. Gradients, which the others leave in
//                       shared memory, it stores. Where a block has a whole chain it makes the pairs, a chunk ahead
//
// Of states of more columns two blocks have halves: each ends half of the tokens, and gets from the other what that has of them. Two
// blocks of a chain are a cluster, and what both read each brings half of, to both.
//
// So no state is ever written. n is one more column of C, of which v has ones and dh l's part. For the gates q.dq and k.dk of what
// comes by the state are sums of products as they change the state, weights rounded as there, and the state read in two parts
// (hopper_pairs.cu says why).
//
// At 8 heads, 256 / 512, 65536 tokens (NVIDIA H100, 2026-11-27, the exponential gate): roles 0 and 1 move 2.03 GB each, 0.68 ms at the
// 3.0 TB/s of a copy, and 0.43 TFLOP, 0.55 ms at 0.79 PFLOP/s; 88 KB a chunk and block from L2. They take 0.89 ms, without any copies
// 0.79: what a warpgroup does between its products binds (5700 clocks a chunk, 1660 of them its own products), then L2. Role 2: 1.70 GB,
// 0.57 ms, 0.39 of tensor cores; 0.64 ms. Blocks of 64 rows and all 512 columns had 152 KB from L2 and took 1.00, 0.99 and 0.84 ms.
// Clusters of four bring 52 KB, but fewer than 32 of them run at once, so that blocks come in three waves instead of two (1.30 ms).
// Turns with the products that read the state, so that one warpgroup's run beneath what the other does between, took 0.92.
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
  u64 *made = came + 4, *taken = made + 2;
  if (thread == 0) {
    for (int i = 0; i < kRing; ++i) {
      barrier_init(&full[i], 128);
      barrier_init(&empty[i], kPaired ? 384 : 256);
      barrier_init(&free[i], blocks);
    }
    for (int i = 0; i < 4; ++i) barrier_init(&came[i], 1);
    for (int i = 0; i < 2; ++i) {
      barrier_init(&made[i], 128);
      barrier_init(&taken[i], 256);
    }
    barrier_init_fence();
  }
  if (blocks > 1)
    cluster_sync();
  else
    __syncthreads();

  if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kPaired ? 88 : 56));
    const unsigned h = threadIdx.x % 128u;
    const Tokens &reads = kRole == 0 ? x.grad_h : kRole == 1 ? x.v : x.k, &into = kRole == 0 ? x.v : kRole == 1 ? x.grad_h : x.q;
    const Tokens &rows = kRole == 0 ? x.k : kRole == 1 ? x.q : x.grad_h, &own = kRole == 0 ? x.q : x.k;
    constexpr int kReadsBit = kRole == 0 ? kGradH : kRole == 1 ? kV : kK, kIntoBit = kRole == 0 ? kV : kRole == 1 ? kGradH : kQ;
    constexpr int kOfRows = kRole == 0 ? kK : kRole == 1 ? kQ : kGradH, kOfOwn = kRole == 0 ? kQ : kK;
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
      if (kPaired) return;
      const char* record = record_of(x, chain.nth, c);
#pragma unroll
      for (int e = 0; e < kSlice; e += 2048)
        copy_ahead(shared_at(to) + kWideSlices * kSlice + e + 16 * h, record + (kRole == 2 ? kPairsAt : kSlopesAt) + e + 16 * h, true);
      if (16 * h < kVectors)
        copy_ahead(shared_at(begin) + kVectorsIn + i % kVectorsOf * kVectors + 16 * h, record + kVectorsAt + 16 * h, true);
    };
    constexpr int kMapOfReads = kRole == 0 ? kMapGradH : kRole == 1 ? kMapV : kMapK;
    constexpr int kMapInto = kRole == 0 ? kMapV : kRole == 1 ? kMapGradH : kMapQ;
    constexpr int kMapOfRows = kRole == 0 ? kMapK : kRole == 1 ? kMapQ : kMapGradH, kMapOfOwn = kRole == 0 ? kMapQ : kMapK;
    constexpr int kMapped = 1 << kMapOfReads | 1 << kMapInto | 1 << kMapOfRows | (kRated ? 1 << kMapOfOwn : 0);
    const bool mapped = (maps.which & kMapped) == kMapped;
    // Chunk i's gradients, which both warpgroups have left: all warps but that which asks store rows of 128 bytes.
    auto drain = [&](const Chain& chain, int i) {
      const Tokens& y = kRole == 0 ? x.grad_q : kRole == 1 ? x.grad_k : x.grad_v;
      if (!kTiled || h < 32 || !y.data) return;
      const bool plain = x.plain & (kRole == 0 ? kGradQ : kRole == 1 ? kGradK : kGradV);
      const int c = kBack ? chunks - 1 - i : i, left = (int)chain.len - c * kRows - (kHalved ? 32 * half_of : 0);
      const char* tiles = begin + kGoesOutAt + i % 2 * (2 * kGoesOut);
#pragma unroll 1
      for (int at = h - 32; at < kGoesOut / 8; at += 96) {
        const int piece = at % 8, t = at / 8 % (kGoesOut / kLine), of = at / 8 / (kGoesOut / kLine), d = r0 + 64 * of + 8 * piece;
        if (t >= left || d >= rows_all) continue;
        const uint4 data = *reinterpret_cast<const uint4*>(tiles + of * kGoesOut + swizzled(t, piece));
        store_piece(y, plain, chain, chain.from + c * kRows + (kHalved ? 32 * half_of : 0) + t, d, data);
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
          const char* record = record_of(x, chain.nth, c);
          barrier_expect_at(at, kReads + (kPaired ? 0 : kVectors));
          ask(to, kWideSlices, kMapOfReads, c0, nth_c, of_c, all_c);
          if (kRated) ask(to + kOwnAt, kOwn, kMapOfOwn, r0, nth_r, of_r, all_r);
          if (kPaired) return;
          const char* pairs = record + (kRole == 2 ? kPairsAt : kSlopesAt);
          if (blocks > 1) {
            const int bytes = kSlice / blocks;
            bulk_copy_to(to + kWideSlices * kSlice + rank * bytes, pairs + rank * bytes, bytes, at, whole);
          } else {
            bulk_copy_at(to + kWideSlices * kSlice, pairs, kSlice, at);
          }
          bulk_copy_at(shared_at(begin) + kVectorsIn + i % kVectorsOf * kVectors, record + kVectorsAt, kVectors, at);
        }
      }
    };
    if (!kPaired) {
#pragma unroll 1
      for (int p = 0; p < 2 * chunks + (kTiled ? kRing : 0); ++p) bring(chain, p);
      return;
    }
    #pragma unroll 1
    for (int p = 0; p < kRing; ++p) bring(chain, p);
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) {
      const int p = 2 * c;
      int own = threadIdx.x % 128, now = c;
      // Made anew, so that little of it stays in registers.
      auto chain_again = [&] {
        int nth = blockIdx.y;
        asm volatile("" : "+r"(nth), "+r"(own), "+r"(now), "+l"(begin));
        return chain_of(x, nth);
      };
      {
        const Chain chain = chain_again();
        const Chunk chunk = chunk_of(x, chain, now);
        Making& making = *reinterpret_cast<Making*>(begin + kMakingAt + 3 * kSlice);
        const bool through = x.normalize && x.through;
        float dot[4] = {};
        uint4 of_h[4];
        if (through) load_h(x, chain, chunk, own, 0, of_h);
        barrier_wait_at(shared_at(begin) + kBarriersAt + p % kRing * 8, p / kRing & 1);
        if (through) {
#pragma unroll
          for (int s = 0; s < kWideSlices; ++s) {
            dot_slice(begin + place_of(p) + s * kSlice, own, of_h, dot);
            if (s + 1 < kWideSlices) load_h(x, chain, chunk, own, 64 * (s + 1), of_h);
          }
          sum_dots(making, own, dot);
        }
        helpers_meet();
      }
      {
        const Chain chain = chain_again();
        const Chunk chunk = chunk_of(x, chain, now);
        // What two chunks before had is read.
        if (c > 1) barrier_wait_at(shared_at(begin) + kBarriersAt + (3 * kRing + 6 + c % 2) * 8, (c / 2 - 1) & 1);
        if (own < kRows)
          weigh_tokens(x, chain, chunk, now, *reinterpret_cast<Making*>(begin + kMakingAt + 3 * kSlice), own,
                       reinterpret_cast<float*>(begin + kVectorsIn + c % kVectorsOf * kVectors));
        helpers_meet();
      }
      // The chunk behind this one, to where the one before it was: its products are made by now, and that comes while pairs are made.
      if (c > 0)
#pragma unroll 1
        for (int ahead = 2; ahead < 4; ++ahead) bring(chain_again(), p + ahead);
      {
        asm volatile("" : "+r"(own), "+l"(begin));
        barrier_wait_at(shared_at(begin) + kBarriersAt + (p + 1) % kRing * 8, (p + 1) / kRing & 1);
        // Half of the columns at a time: registers are few.
        float rows[2] = {};
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {
          float pairs[4][4], slopes[4][4];
#pragma unroll
          for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) pairs[n][e] = slopes[n][e] = 0.f;
          unsigned base = shared_at(begin);
          asm volatile("" : "+r"(base));
          const unsigned at_r = base + place_of(2 * now), at_w = base + place_of(2 * now + 1), down = 32 * kLine * half;
          products_begin();
#pragma unroll
          for (int s = 0; s < kOwn; ++s)
#pragma unroll
            for (int e = 0; e < 4; ++e)
              wgmma<kBf16, false, false>(pairs, by_rows(at_r + kOwnAt + s * kSlice + 32 * e),
                                         by_rows(at_w + (kWideSlices + s) * kSlice + down + 32 * e));
#pragma unroll
          for (int s = 0; s < kWideSlices; ++s)
#pragma unroll
            for (int e = 0; e < 4; ++e)
              wgmma<kBf16, false, false>(slopes, by_rows(at_r + s * kSlice + 32 * e), by_rows(at_w + s * kSlice + down + 32 * e));
          products_end();
          products_wait(pairs);
#pragma unroll
          for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(slopes[n][e]));
          asm volatile("" : "+r"(own), "+r"(now), "+l"(begin));
          if (half > 0) {
            const unsigned barriers = shared_at(begin) + kBarriersAt;
            barrier_arrive_at(barriers + (kRing + 2 * now % kRing) * 8);
            barrier_arrive_at(barriers + (kRing + (2 * now + 1) % kRing) * 8);
          }
          Making& making = *reinterpret_cast<Making*>(begin + kMakingAt + 3 * kSlice);
          weigh_pairs(making, own, 32 * half, pairs, slopes, rows, begin + kMakingAt + 2 * kSlice, begin + kMakingAt + now % 2 * kSlice);
          if (half > 0) sum_pairs(making, own, rows);
        }
        products_see();
        barrier_arrive_at(shared_at(begin) + kBarriersAt + (3 * kRing + 4 + now % 2) * 8);
        helpers_meet();
      }
      const Chain chain = chain_again();
      store_pairs(record_of(x, chain.nth, now), *reinterpret_cast<Making*>(begin + kMakingAt + 3 * kSlice), own,
                  begin + kMakingAt + 2 * kSlice, begin + kMakingAt + now % 2 * kSlice);
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kPaired ? 208 : 224));
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
  const Tokens& y = kRole == 0 ? x.grad_q : kRole == 1 ? x.grad_k : x.grad_v;
  const bool plain = x.plain & (kRole == 0 ? kGradQ : kRole == 1 ? kGradK : kGradV);
  const int d = r0 + 64 * group + 16 * warp, length = (int)chain.len;
  // This thread stores 8 columns of two rows, and of two that are 32 further: lanes with the others have the rest of 32 bytes.
  const int stored = lane % 4 * 8 + lane / 8 * 2;
  char* to = y.data + 2 * place(y, chain, chain.from + (kBack ? max(chunks - 1, 0) * kRows : 0) + stored, d + lane / 4 % 2 * 8);
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
    asm volatile("" : "+r"(lane), "+r"(warp), "+r"(base), "+l"(to), "+l"(rates), "+f"(n[0]), "+f"(n[1]));
    const int c = kBack ? chunks - 1 - i : i, p = 2 * i;
    const int place_r = p % kRing, place_w = (p + 1) % kRing;
    const unsigned reads = base + place_of(p), into = base + place_of(p + 1);
    const unsigned vectors = base + kVectorsIn + i % kVectorsOf * kVectors, of_lane = vectors + lane % 4 * 8;
    const unsigned reading = of_lane + 4 * (kRole == 0 ? kRead : kInto), writing = of_lane + 4 * (kRole == 0 ? kInto : kRead);
    barrier_wait_at(base + kBarriersAt + 0 + 8 * (place_r), p / kRing & 1);
    float out[8][4];
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[j][e] = 0.f;
    {
      unsigned a[2][2][4];
#pragma unroll
      for (int s = 0; s < kWide / (16 * kAtOnce); ++s) {
        // Of the first nothing is waited for, but the compiler waits itself where no one does.
        if (s > 0) products_wait_but_last();
        if (s > 1) keep(a[s % 2]);
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
          wgmma_of<kBf16, false>(out, a[s % 2][e], by_rows(reads + at / 4 * kSlice + at % 4 * 32));
        }
        products_end();
      }
      products_wait(out);
      keep(a[0]);
      keep(a[1]);
    }
    if (kPaired) barrier_wait_at(base + kBarriersAt + 8 * (3 * kRing + 4 + i % 2), i / 2 & 1);
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
      // Over the eight lanes that have the same tokens: lane l gets 2 l and 2 l + 1.
      float2 dots[2][2];
#pragma unroll
      for (int near = 0; near < 2; ++near) {
        float2 of[2][2];
#pragma unroll
        for (int far = 0; far < 2; ++far) {
          const int e = near + 2 * far;
          unsigned own[4];
          load_matrices<true>(own, reads + kOwnAt + group * kSlice + turn + 16 * e * kLine);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const unsigned w = rounded(shared2(reading + 64 * e + 32 * half));
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
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 w = shared2(reading + 32 * j);
#pragma unroll
      for (int e = 0; e < 4; ++e) out[j][e] *= e % 2 ? w.y : w.x;
    }
    unsigned of_rows[4][4];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      load_matrices<true>(of_rows[e], into + (kWideSlices + group) * kSlice + turn + 16 * e * kLine);
    // Where columns are halved, each block has half of the terms.
    constexpr int kOfPairs = kHalved ? 2 : 4;
    unsigned picked[2][4];
    if (kHalved)
#pragma unroll
      for (int e = 0; e < 2; ++e)
#pragma unroll
        for (int w = 0; w < 4; ++w) picked[e][w] = half_of ? of_rows[2 + e][w] : of_rows[e][w];
    const unsigned of_pairs = (kPaired ? base + kMakingAt + i % 2 * kSlice : reads + kWideSlices * kSlice) +
                              (kHalved ? half_of * (kRole == 0 ? 64 : 32 * kLine) : 0);
    products_begin();
#pragma unroll
    for (int e = 0; e < kOfPairs; ++e)
      wgmma_of<kBf16, kRole != 0>(out, kHalved ? picked[e % 2] : of_rows[e],
                                  kRole == 0 ? by_rows(of_pairs + 32 * e) : by_terms(of_pairs + 16 * e * kLine, 0));
    products_end();
    const float left = shared2(vectors + 4 * kLeft).x;
#pragma unroll
    for (int j = 0; j < kWide / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[j][e] *= left;
    products_wait(out);
    if (kHalved)
      keep(picked);
    else
      keep(of_rows);
    barrier_arrive_at(base + kBarriersAt + 8 * kRing + 8 * (place_r));
    unsigned ready[2][2][4];
    float half[4][4];
    if (!kHalved) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const unsigned pair = pack<kBf16>(out[j][2 * e], out[j][2 * e + 1]);
          if (kTiled)
            ready[j / 4][j / 2 % 2][j % 2 * 2 + e] = pair;
          else
            ready[j / 4][e][j % 4] = turned(pair);
        }
    } else {
      // A block ends half of the tokens, and sends what it has of the others.
      const unsigned peer = in_block(base, rank ^ 1), nth = 2 * group + i % 2;
      const unsigned there = peer + kExchange + nth * kExchanged + thread % 128 * 16;
      const unsigned heard = peer + kBarriersAt + (3 * kRing + nth) * 8;
      if (thread % 128 == 0) barrier_expect_at(base + kBarriersAt + 8 * (3 * kRing + nth), kExchanged);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float away[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          away[e] = half_of ? out[j][e] : out[j + 4][e];
          half[j][e] = half_of ? out[j + 4][e] : out[j][e];
        }
        store_async(there + 2048 * j, away, heard);
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const unsigned low = rounded(shared2(writing + 64 * e)), high = rounded(shared2(writing + 64 * e + 32));
#pragma unroll
      for (int w = 0; w < 4; ++w) of_rows[e][w] = times<kBf16>(of_rows[e][w], w < 2 ? low : high);
    }
    products_begin();
#pragma unroll
    for (int e = 0; e < 4; ++e)
      wgmma_of<kBf16, true>(state, of_rows[e], by_terms(into + 16 * e * kLine, kSlice));
    products_end();
    auto store = [&](const unsigned(&w)[2][4], int b) {
      uint4 piece[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) piece[half] = gather_columns(w[half][0], w[half][1], w[half][2], w[half][3]);
      const bool odd = lane & 4;
      uint4 of = odd ? piece[0] : piece[1];
      of.x = __shfl_xor_sync(~0u, of.x, 4);
      of.y = __shfl_xor_sync(~0u, of.y, 4);
      of.z = __shfl_xor_sync(~0u, of.z, 4);
      of.w = __shfl_xor_sync(~0u, of.w, 4);
      const int left = length - c * kRows - 32 * b - (lane % 4 * 8 + lane / 8 * 2);
      char* at = to + b * 64 * y.t;
      if (!y.data || r0 + 64 * group + 16 * warp >= rows_all) return;
      if (left > 0) put(at, odd ? of : piece[0]);
      if (left > 1) put(at + 2 * y.t, odd ? piece[1] : of);
    };
    // By lane: token lane % 8 of eight, and of 16, and half of a warp's columns.
    const unsigned tile = base + kGoesOutAt + (i % 2 * 2 + group) * kGoesOut + swizzled(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2);
    if (kHalved) {
      const int nth = 2 * group + i % 2;
      barrier_wait_at(base + kBarriersAt + 8 * (3 * kRing + nth), i / 2 & 1);
      const unsigned here = base + kExchange + nth * kExchanged + thread % 128 * 16;
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
        for (int e = 0; e < 2; ++e) ready[0][j / 2][j % 2 * 2 + e] = pack<kBf16>(half[j][2 * e], half[j][2 * e + 1]);
#pragma unroll
      for (int b = 0; b < 2; ++b) store_turned(tile + 16 * b * kLine, ready[0][b]);
    } else if (kTiled) {
#pragma unroll
      for (int b = 0; b < 4; ++b) store_turned(tile + 16 * b * kLine, ready[b / 2][b % 2]);
    } else {
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
          const float2 r = kRole == 0 ? float2{1.f, 1.f} : shared2(of_lane + 4 * kOfL + 64 * e + w / 2 * 32);
          more[w % 2] = fmaf(z.x, r.x, fmaf(z.y, r.y, more[w % 2]));
        }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        more[half] += __shfl_xor_sync(~0u, more[half], 1);
        more[half] += __shfl_xor_sync(~0u, more[half], 2);
        n[half] = fmaf(left, n[half], more[half]);
      }
    }
    if (kPaired) barrier_arrive_at(base + kBarriersAt + 8 * (3 * kRing + 6 + i % 2));
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
    if (lane == 0) x.products[blockIdx.y * parts + part] = whole;
  }
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

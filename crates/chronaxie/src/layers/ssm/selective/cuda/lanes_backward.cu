// selective_scan, backward, where A is real, the rule `exp`, B and C vary, and time is contiguous.
//
//   as in lanes.cu; grad_out [B, D, T], grad_last [B, D, N]; gradients of all inputs
//
// With lambda_t = C_t dy_t + mu_t, mu_{t-1} = a_t lambda_t and q_t = a_t h_{t-1}, p = lambda q:
//   grad_delta = sum_n A p + u sum_n lambda B    grad_u = delta sum_n lambda B + D dy    grad_A = sum_t delta p
//   grad_B = sum_d lambda delta u                grad_C = sum_d dy h
//
// A warp takes tiles of 64 steps against time, and in each tile its channels one after the other: lane (i, j) has the
// states i, i + 4, i + 8 and i + 12 over steps 8 j to 8 j + 7. So what sums over channels (grad_B, grad_C: 64 numbers a lane)
// stays in registers while the channels pass by, and what sums over states (y, sum A p, sum lambda B) goes through shared
// memory, 24 words a lane and channel.
//
// Both scans are done at once: each lane runs its steps from zero, h forward and mu backward, and puts the ends into shared
// memory; then lane n strings together the eight runs of h of state n from the saved state, and lane 16 + n those of mu from
// what the tile behind has left; and the lanes run their steps again from where they truly start. (By shuffles a scan took
// three rounds a state, one after the other: 4.5 instructions a step of a state where this takes 1.2, and their latency.)
// The four warps of a block share the tiles of B and C and add up grad_B and grad_C at the end of each; the blocks' shares
// lie in scratch and are summed in one order by selective_fold_slices.
//
// More states than sixteen (kSplit) are taken sixteen at a time, in each tile over all channels: mu and the sums of grad_A
// wait in scratch, what sums over states in shared memory.
//
// Where there are too few channels for the machine, time is cut into segments: carry.cu has said what mu each would hand to
// the one before it from none, and a block folds those of the later segments in their order.
//
// What binds, B8 D2048 T2048 N16, which is 3972 channels of a tile for each of 132 multiprocessors, at 1.98 GHz: memory 0.11
// (bf16) or 0.22 ms (f32) on an H200, 0.17 and 0.32 on an H100; exponentials 0.18 ms; instructions, of which 4 warps issue a
// clock: 901 a channel of a tile as counted on an H100, tiles' beginnings and ends among them (655 of them arithmetic), that is
// 28 a step of a state, 225 clocks, 0.45 ms; shared memory, 128 bytes a clock: 237 such words a channel, 64 of them B, which
// both runs read, 48 what sums over states and 40 the scans, 0.48 ms. Measured on an H100 0.82 ms (2026-11-26; 0.88 with 943
// instructions, when a block's sums over channels went word by word), and 0.04 for the sums of slices: the schedulers issue in
// 56 of a hundred clocks and shared memory is busy in 61, for two warps a scheduler wait for their own results (of each
// instruction's 3.4 clocks 0.85 for a fixed latency, 0.5 for shared memory or an exponential, 0.4 for the dispatch unit). Where
// the code is dense, in the runs from their true start, a warp alone issues in 60 to 70 of a hundred. The arithmetic alone, 17
// instructions a step of a state (a gate 2, a run from zero 4, the run from the true start 11), would be 0.27 ms, and what a
// channel's step costs, 4, another 0.06.
//
// Tried on one H100 in one run, this kernel 0.86 with its sums: eight states and four steps a lane, a state's run
// from its true start beside the next channel's run from zero, so that B is read once, with two barriers a channel (16 runs to
// string together: 990 instructions and 249 such words): 0.96 to 1.00, whether a lane holds 0, 2, 4 or all of its states' C. Of
// this shape, in a later run, this kernel 0.864: where a warp is and a channel's words side by side in shared memory, fewer
// registers outside of the loop: 0.882; ends and gates stored as pairs as well: 0.877; the next tile's weights loaded before the
// sums of this: 0.907; what belongs to a channel alone one channel ahead, while the strings wait: 5 % more than without (B8 D1536
// T8192, both with the 0.882's layout).
// What kCross does takes a twelfth of the clocks that operands would take, were a bank's word a clock what binds (1360 to 1250 a
// channel), but 1 % of the time of bf16 (0.866 to 0.856) and none of f32's (0.857 both): it does not bind.
// Three blocks a multiprocessor: 168 registers, of which 65 would spill.
// Tried on one H200 (2026-11-29), this kernel 0.82 to 0.845 (bf16; 1.62 M clocks): the mapping of many.cu, two states of two
// channels a thread, serial in time and so without scans, 128 registers, 16 warps a multiprocessor; states before every fourth
// step in shared memory, from there forward and back; sums over channels and over states by mma.sync. 0.92 in tf32 (1.66 M
// clocks) and 0.91 in bf16 (1.63 M): 29 and 29.9 instructions a step of a state, of which schedulers issue in 57 and 60 of a
// hundred clocks. 15 of them walk (forward twice, back once), 7.5 belong to a channel's step, the others load and sum. Without
// mma.sync, its sums then wrong: 0.77, 1.52 M clocks. And mma.sync slows the clock: wherever 8 to 26 of 250 instructions are
// that, whatever its type, clocks (sm__cycles_elapsed) over time are 1.80 GHz, and 1.98 GHz in this kernel and without them,
// while nvidia-smi says 1980 MHz of all, 590 W and no reason to slow down.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "lanes.cuh"

constexpr int kLanesOfTime = 8, kRun = 8, kRow = kLanesOfTime * kRun;
constexpr int kStates = 16, kPer = 4, kParts = kStates / kPer, kWarps = kThreads / 32;
static_assert(kRow == kChunk, "a tile starts from a saved state");
// Four words lie between the rows that lanes of different states use at once, and between the ends of one s and the next:
// the lanes of a quarter of a warp, of four runs and two rows, meet eight different groups of banks.
constexpr int kPitch = kRow + 4, kEndsPitch = kParts * kLanesOfTime + 4;
// Words of a warp: five rows of what belongs to the channel's steps and (3 x 4 rows) what each part of the states adds up,
// or, at the end of a tile, 16 rows of sums over channels; the ends of the runs and their gates, forward and backward. Then,
// for each channel: sums of grad_A, grad_D and bias, lane by lane; rates; mu; its D and bias; where its rows begin, which
// would take sixteen registers or as many multiplications.
constexpr int kShares = 5 * kRow, kStage = kShares + 3 * kParts * kPitch, kEnds = kPer * kEndsPitch;
constexpr int kOfWarp = kStage + 4 * kEnds, kRows = 8;
constexpr int kOfChannel = 6 * 32 + 2 * kStates + 4 + 2 * kRows + (kSplit ? 3 * kRow : 0);
static_assert(kStage >= kStates * kPitch, "the stage holds the sums over channels");

// A thread's share of a tile of weights, [kStates][64], as it is stored: the same four steps of some states. What lies
// outside is 0.
constexpr int kQuads = kRow / 4, kShareOfTile = kStates * kQuads / kThreads;
typedef Raw<4> Quad;
__device__ __forceinline__ void load_tile(Quad (&to)[kShareOfTile], const Array& from, i64 row, i64 group, int base,
                                          int states, i64 t, i64 steps, bool aligned) {
  const int q = threadIdx.x % kQuads, first = threadIdx.x / kQuads;
  const int left = static_cast<int>(min(steps - t, 64ll));
  const bool whole = aligned && left == 64;
  const Stored* at = reinterpret_cast<const Stored*>(from.base) + offset(from, row, group, base) + t + 4 * q;
#pragma unroll
  for (int i = 0; i < kShareOfTile; ++i) {
    const int n = first + i * (kThreads / kQuads);
    to[i] = fetch_part<4>(at + min(n, states - 1) * from.s[2], left - 4 * q, whole);
  }
}
__device__ __forceinline__ void keep_tile(float* to, const Quad (&from)[kShareOfTile], int states) {
  const int q = threadIdx.x % kQuads, first = threadIdx.x / kQuads;
#pragma unroll
  for (int i = 0; i < kShareOfTile; ++i) {
    const int n = first + i * (kThreads / kQuads);
    float x[4];
    widen_run(x, from[i]);
#pragma unroll
    for (int k = 0; k < 4; ++k) x[k] = n < states ? x[k] : 0.0f;
    store_words(to + n * kPitch + q * 4, x);
  }
}

// Two steps of a row as they are stored: made wide where they are used, so that nobody waits for them before.
template <int kType>
struct PairOf {
  typedef unsigned type;
};
template <>
struct PairOf<0> {
  typedef float2 type;
};
typedef PairOf<kStored>::type Pair;
__device__ __forceinline__ void pair_of(float2& to, float a, float b) { to = make_float2(a, b); }
__device__ __forceinline__ void pair_of(unsigned& to, unsigned short a, unsigned short b) { to = a | b << 16; }
__device__ __forceinline__ void widen_pair(float (&to)[2], float2 x) { to[0] = x.x, to[1] = x.y; }
__device__ __forceinline__ void widen_pair(float (&to)[2], unsigned x) {
  to[0] = widen(static_cast<unsigned short>(x));
  to[1] = kStored == 1 ? __uint_as_float(x & 0xffff0000u) : widen(static_cast<unsigned short>(x >> 16));
}

// By name: the compiler does not know that an address which it loads is a global one.
__device__ __forceinline__ void store_pair(float* to, const float (&x)[2]) {
  __stwb(reinterpret_cast<float2*>(to), make_float2(x[0], x[1]));
}
__device__ __forceinline__ void store_pair(unsigned short* to, const float (&x)[2]) {
  __stwb(reinterpret_cast<unsigned*>(to), narrow_pair(x[0], x[1]));
}
// What a lane loads for a channel: two steps, and (lane n below 16) the state n before the tile.
struct Fetched {
  Pair u, delta, z, grad;
  float start;
};

// What stays in registers: of how many of a lane's four states the weights C while channels pass by, the gates between the
// two runs, and a channel's loads while the one before it is at work. What is named here is the most without spills, and
// differs with the architecture and the compiler.
#ifdef __CUDA_ARCH__
constexpr int kArch = __CUDA_ARCH__;
constexpr bool kNewCompiler = __CUDACC_VER_MAJOR__ >= 13;
#else
constexpr int kArch = 900;
constexpr bool kNewCompiler = true;
#endif
constexpr bool kKeep = !kSplit || kArch >= 1000;
constexpr bool kShort = kArch < 890 || (kArch < 900 && kStored == 0) || (kArch >= 900 && !kNewCompiler);
constexpr int kHold = kSplit ? (kArch >= 1200 ? 3 : 2) : kShort ? 3 : 4;
constexpr bool kAhead = kArch >= 900 && kArch < 1000 && (!kSplit || kNewCompiler);

// The lane of a run and a part of the states. Its neighbours by bits 0 and 3 have the same run, and so read the same words
// of the channel, which costs one trip to shared memory.
__device__ __forceinline__ int lane_of(int run, int part) {
  return (part & 1) | (run & 3) << 1 | (part & 2) << 2 | (run & 4) << 2;
}

// Registers lie in two banks, the even and the odd ones, and vectors of shared memory go to registers side by side: what is
// multiplied step by step with B or C, or added up from such products, is kept with the two steps of each pair changed over, so
// that a step's operands lie in different banks.
constexpr int kCross = kArch >= 890 ? 1 : 0;
template <int kCount>
__device__ __forceinline__ void load_crossed(float (&to)[kCount], const float* from) {
  float words[kCount];
  load_words(words, from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = words[i ^ kCross];
}
template <int kCount>
__device__ __forceinline__ void store_crossed(float* to, const float (&from)[kCount]) {
  float words[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) words[i] = from[i ^ kCross];
  store_words(to, words);
}

extern "C" __global__ void __launch_bounds__(kThreads, 2) selective_lanes_backward(Tensors p) {
  extern __shared__ __align__(16) float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, seg = (lane >> 1 & 3) | (lane >> 2 & 4);
  const int part_of_n = (lane & 1) | (lane >> 2 & 2);
  const int most = static_cast<int>(p.channels_a_warp), states = static_cast<int>(p.states);
  float *tile_b = shared, *tile_c = tile_b + kStates * kPitch, *stages = tile_c + kStates * kPitch;
  float *stage = stages + warp * kOfWarp, *of_channels = stages + kWarps * kOfWarp + warp * most * kOfChannel;
  float *sums_a = of_channels, *sums_d = sums_a + most * 128, *rates = sums_d + most * 64, *mus = rates + most * kStates;
  float2* vectors = reinterpret_cast<float2*>(mus + most * kStates);
  // Where a lane's eight words lie in rows of its part of the states, and its run's ends, h's and (from behind) mu's.
  const int at_run = part_of_n * kPitch + seg * kRun;
  float *ends = stage + kStage, *my_h = ends + part_of_n * kLanesOfTime + seg;
  float* my_mu = ends + kEnds + part_of_n * kLanesOfTime + (kLanesOfTime - 1 - seg);

  const i64 width = p.channels / p.groups, steps = p.marks.steps, batch = p.batch;
  // Blocks: [row, segment, group, slice].
  unsigned at = blockIdx.x;
  const unsigned slices = static_cast<unsigned>(p.slices), groups = static_cast<unsigned>(p.groups);
  const unsigned segments = static_cast<unsigned>(p.segments);
  const int slice = at % slices, group = (at /= slices) % groups, segment = (at /= groups) % segments, row = at / segments;
  const i64 begin = (static_cast<i64>(slice) * kWarps + warp) * most;
  const int mine = static_cast<int>(max(0ll, min(width - begin, static_cast<i64>(most))));
  const int first = static_cast<int>(group * width + begin), part = row * segments + segment;
  const i64 tiles = (steps + kChunk - 1) / kChunk;
  const int first_tile = static_cast<int>(segment * tiles / p.segments);
  const int end_tile = static_cast<int>((segment + 1) * tiles / p.segments);
  const bool aligned = p.aligned != 0, gated = p.z.base != nullptr;

  // What comes from behind: the gradient by the last state, and what later segments hand on.
  auto from_behind = [&](i64 d, int n) {
    float mu = load_float(p.grad_last, offset(p.grad_last, row, d, n));
    for (i64 s = p.segments - 1; s > segment; --s) {
      const i64 cell = (s * batch + row) * p.channels + d;
      const float2 of_segment = reinterpret_cast<const float2*>(p.carry)[cell * states + n];
      mu = fmaf(of_segment.y, mu, of_segment.x);
    }
    return mu;
  };
  float* passed = reinterpret_cast<float*>(p.trace);
  // Rates and mu of sixteen states from `base` on, which the lanes keep while channels pass by.
  auto take_states = [&](int base, bool last) {
    for (int i = lane; i < most * kStates; i += 32) {
      const int j = i / kStates, n = base + i % kStates;
      float rate = 0.0f, mu = 0.0f;
      if (j < mine && n < states) {
        rate = kLog2e * load_float(p.a, offset(p.a, first + j, n));
        mu = last ? from_behind(first + j, n) : passed[(part * p.channels + first + j) * states + n];
      }
      rates[i] = rate, mus[i] = mu;
    }
    for (int i = lane; i < most * 128; i += 32) sums_a[i] = 0.0f;
  };
  // What they have come to; the sums of grad_A are added to those of later tiles.
  auto give_states = [&](int base, bool last, bool ends_here) {
    const int here = min(states - base, kStates);
    for (int i = lane; i < mine * here; i += 32) {
      const int j = i / here, n = i % here;
      const i64 cell = (part * p.channels + first + j) * states + base + n;
      float sum = 0.0f;
#pragma unroll
      for (int k = 0; k < kLanesOfTime; ++k) sum += sums_a[j * 128 + lane_of(k, n % kParts) * kPer + n / kParts];
      float* to = reinterpret_cast<float*>(p.part_a) + cell;
      *to = last ? sum : *to + sum;
      if (!ends_here) passed[cell] = mus[j * kStates + n];
      if (!ends_here || !p.g_h0.base || segment > 0) continue;
      store_float(p.g_h0, offset(p.g_h0, row, first + j, base + n), mus[j * kStates + n]);
    }
  };
  if (!kSplit) take_states(0, true);
  for (int i = lane; i < most * 64; i += 32) sums_d[i] = 0.0f;
  for (int j = lane; j < mine; j += 32) {
    const i64 d = first + j;
    const float skip = p.skip.base ? load_float(p.skip, d * p.skip.s[0]) : 0.0f;
    vectors[j] = make_float2(skip, p.bias.base ? load_float(p.bias, d * p.bias.s[0]) : 0.0f);
  }
  // u, delta, z, grad_out, chunk_states; gradients of u, delta, z.
  char** rows_of = reinterpret_cast<char**>(vectors + most * 2);
  float* held = reinterpret_cast<float*>(rows_of + most * kRows);  // shares of other states: y, sum A p, sum lambda B
  __syncwarp();

  for (int tile = end_tile - 1; tile >= first_tile; --tile) {
    const i64 from = static_cast<i64>(tile) * kChunk;
    const int left = static_cast<int>(max(0ll, min(steps - from - 2 * lane, 2ll)));
    // Alike for all lanes; opaque, or the compiler finds it anew, from 64 bits, wherever it is used.
    int whole = aligned && steps - from >= kChunk;
    asm volatile("" : "+r"(whole));
    // Where the tile begins in its channels' rows, and where the states before it lie.
    const int start_stride = tile == 0 ? static_cast<int>(p.h0.s[2]) : 1;
    for (int j = lane; j < mine; j += 32) {
      const Array of_row[kRows] = {p.u, p.delta, p.z, p.grad_out, tile == 0 ? p.h0 : p.chunks, p.g_u, p.g_delta, p.g_z};
      const i64 d = first + j;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const i64 *by = of_row[r].s, at = row * by[0];
        const i64 of_state = tile == 0 ? d * by[1] : tile * by[1] + d * by[2];
        const i64 bytes = r == 4 ? sizeof(float) * (at + of_state) : sizeof(Stored) * (at + d * by[1] + from);
        rows_of[j * kRows + r] = of_row[r].base + bytes;
      }
    }
    __syncwarp();
    // More states than sixteen: one group of them after the other, over all channels.
#pragma unroll 1
    for (int base = 0; base < (kSplit ? states : 1); base += kStates) {
      const int here = kSplit ? min(states - base, kStates) : states;
      const bool last_states = !kSplit || base + kStates >= states;
      const bool starts = lane < here && (tile > 0 || p.h0.base);
      if (kSplit) {
        take_states(base, tile == end_tile - 1);
        __syncwarp();
      }
      auto row_at = [&](int j, int r) { return reinterpret_cast<Stored*>(rows_of[j * kRows + r]) + 2 * lane; };
      auto fetch = [&](int j) {
        Fetched r = {};
        const Stored *delta = row_at(j, 1), *grad = row_at(j, 3), *z = row_at(j, 2), *u = row_at(j, 0);
        if (whole) {
          r.delta = __ldg(reinterpret_cast<const Pair*>(delta)), r.grad = __ldg(reinterpret_cast<const Pair*>(grad));
          if (gated) r.z = __ldg(reinterpret_cast<const Pair*>(z));
          r.u = __ldg(reinterpret_cast<const Pair*>(u));
        } else {
          auto some = [&](const Stored* x) {
            Pair v;
            pair_of(v, left > 0 ? x[0] : Stored(0), left > 1 ? x[1] : Stored(0));
            return v;
          };
          r.delta = some(delta), r.grad = some(grad);
          if (gated) r.z = some(z);
          r.u = some(u);
        }
        if (!starts) return r;
        r.start = reinterpret_cast<const float*>(rows_of[j * kRows + 4])[(base + lane) * start_stride];
        return r;
      };
      Fetched next = {};
      if (kAhead && mine > 0) next = fetch(0);
      Quad quads_b[kShareOfTile], quads_c[kShareOfTile];
      load_tile(quads_b, p.b, row, group, base, here, from, steps, aligned);
      load_tile(quads_c, p.c, row, group, base, here, from, steps, aligned);
      __syncthreads();  // everybody is done with the last tile
      keep_tile(tile_b, quads_b, here);
      keep_tile(tile_c, quads_c, here);
      __syncthreads();
      float of_b[kPer][kRun], of_c[kPer][kRun];
#pragma unroll
      for (int s = 0; s < kPer; ++s) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) of_b[s][k] = of_c[s][k] = 0.0f;
      }
      const float *my_b = tile_b + at_run, *my_c = tile_c + at_run;
      float held_c[kPer][kRun];
#pragma unroll
      for (int s = 0; s < kHold; ++s) load_words(held_c[s], my_c + s * kParts * kPitch);
#pragma unroll 1
      for (int j = 0; j < mine; ++j) {
        const Fetched raw = kAhead ? next : fetch(j);
        const int pair = 2 * lane;
        {
          const float bias = vectors[j].y;
          float u[2], delta[2], du[2], dy[2], slope[2], of_gate[2], x[2], z[2];  // of softplus, and of the output by z but for y
          widen_pair(u, raw.u);
          widen_pair(x, raw.delta);
          widen_pair(dy, raw.grad);
          widen_pair(z, raw.z);
#pragma unroll
          for (int k = 0; k < 2; ++k) delta[k] = x[k] += bias, slope[k] = 1.0f, of_gate[k] = 0.0f;
          if (p.softplus) {
#pragma unroll
            for (int k = 0; k < 2; ++k) {
              const float e = ex2(-fabsf(x[k]) * kLog2e), r = rcp(1.0f + e);
              delta[k] = fmaxf(x[k], 0.0f) + log_one_plus(e);
              slope[k] = x[k] < 0.0f ? e * r : r;
            }
          }
          if (gated) {
#pragma unroll
            for (int k = 0; k < 2; ++k) {
              const float s = sigmoid_of(z[k]), silu = z[k] * s;
              of_gate[k] = dy[k] * fmaf(silu, 1.0f - s, s);
              dy[k] *= silu;
            }
          }
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            if (k >= left) delta[k] = 0.0f, slope[k] = 0.0f;
            du[k] = delta[k] * u[k];
          }
          *reinterpret_cast<float2*>(stage + pair) = make_float2(delta[0], delta[1]);
          *reinterpret_cast<float2*>(stage + kRow + pair) = make_float2(dy[kCross], dy[1 ^ kCross]);
          *reinterpret_cast<float2*>(stage + 2 * kRow + pair) = make_float2(du[kCross], du[1 ^ kCross]);
          *reinterpret_cast<float2*>(stage + 3 * kRow + pair) = make_float2(slope[0], slope[1]);
          *reinterpret_cast<float2*>(stage + 4 * kRow + pair) = make_float2(of_gate[0], of_gate[1]);
        }
        if (kAhead && j + 1 < mine) next = fetch(j + 1);
        __syncwarp();
        float delta[kRun], dy[kRun], du[kRun], total = 0.0f;
        load_words(delta, stage + seg * kRun);
        load_crossed(dy, stage + kRow + seg * kRun);
        load_crossed(du, stage + 2 * kRow + seg * kRun);
#pragma unroll
        for (int k = 0; k < kRun; ++k) total += delta[k];
        // The runs from zero.
        float a[kPer][kRun], rate[kPer];
#pragma unroll
        for (int s = 0; s < kPer; ++s) {
          rate[s] = rates[j * kStates + s * kParts + part_of_n];
          const float product = ex2(rate[s] * total);
          float b[kRun], c[kRun];
          if (s < kHold) {
#pragma unroll
            for (int k = 0; k < kRun; ++k) c[k] = held_c[s][k];
          } else {
            load_words(c, my_c + s * kParts * kPitch);
          }
#pragma unroll
          for (int k = 0; k < kRun; ++k) a[s][k] = ex2(rate[s] * delta[k]);
          load_words(b, my_b + s * kParts * kPitch);
          float h = b[0] * du[0];
#pragma unroll
          for (int k = 1; k < kRun; ++k) h = fmaf(a[s][k], h, b[k] * du[k]);
          my_h[s * kEndsPitch] = h;
          my_h[s * kEndsPitch + 2 * kEnds] = product;
          float lambda = c[kRun - 1] * dy[kRun - 1];
#pragma unroll
          for (int k = kRun - 2; k >= 0; --k) lambda = fmaf(a[s][k + 1], lambda, c[k] * dy[k]);
          my_mu[s * kEndsPitch] = a[s][0] * lambda;
          my_mu[s * kEndsPitch + 2 * kEnds] = product;
        }
        __syncwarp();
        {
          const int n = lane % kStates, backward = lane / kStates;
          float* my_ends = ends + backward * kEnds + n / kParts * kEndsPitch + n % kParts * kLanesOfTime;
          float carry = backward ? mus[j * kStates + n] : raw.start;
          float x[kRun], gate[kRun];
          load_words(x, my_ends);
          load_words(gate, my_ends + 2 * kEnds);
#pragma unroll
          for (int k = 0; k < kRun; ++k) {
            const float after = fmaf(gate[k], carry, x[k]);
            x[k] = carry, carry = after;
          }
          store_words(my_ends, x);
          if (backward) mus[j * kStates + n] = carry;
        }
        __syncwarp();
        float y[kRun], of_rate[kRun], of_drive[kRun], of_a[kPer];
#pragma unroll
        for (int k = 0; k < kRun; ++k) y[k] = of_rate[k] = of_drive[k] = 0.0f;
#pragma unroll
        for (int s = 0; s < kPer; ++s) {
          float h = my_h[s * kEndsPitch], mu = my_mu[s * kEndsPitch];
          float b[kRun], c[kRun], q[kRun];
          rate[s] = rates[j * kStates + s * kParts + part_of_n];
          if (!kKeep) {
#pragma unroll
            for (int k = 0; k < kRun; ++k) a[s][k] = ex2(rate[s] * delta[k]);
          }
          if (s < kHold) {
#pragma unroll
            for (int k = 0; k < kRun; ++k) c[k] = held_c[s][k];
          } else {
            load_words(c, my_c + s * kParts * kPitch);
          }
          load_words(b, my_b + s * kParts * kPitch);
#pragma unroll
          for (int k = 0; k < kRun; ++k) {
            q[k] = a[s][k] * h;
            h = fmaf(b[k], du[k], q[k]);
            y[k] = fmaf(c[k], h, y[k]);
            of_c[s][k] = fmaf(dy[k], h, of_c[s][k]);
          }
#pragma unroll
          for (int k = kRun - 1; k >= 0; --k) {
            const float lambda = fmaf(c[k], dy[k], mu), product_q = lambda * q[k];
            of_rate[k] = fmaf(rate[s], product_q, of_rate[k]);
            of_a[s] = k == kRun - 1 ? delta[k] * product_q : fmaf(delta[k], product_q, of_a[s]);
            of_drive[k] = fmaf(b[k], lambda, of_drive[k]);
            of_b[s][k] = fmaf(du[k], lambda, of_b[s][k]);
            mu = a[s][k] * lambda;
          }
        }
        float* shares = stage + kShares + at_run;
        store_crossed(shares, y);
        store_crossed(shares + kParts * kPitch, of_rate);
        store_crossed(shares + 2 * kParts * kPitch, of_drive);
        float kept[kPer];
        load_words(kept, sums_a + j * 128 + lane * kPer);
#pragma unroll
        for (int s = 0; s < kPer; ++s) kept[s] += of_a[s];
        store_words(sums_a + j * 128 + lane * kPer, kept);
        __syncwarp();
        float sum[3][2];
#pragma unroll
        for (int i = 0; i < 3; ++i) {
#pragma unroll
          for (int s = 0; s < kParts; ++s) {
            const float2 v = *reinterpret_cast<const float2*>(stage + kShares + (kParts * i + s) * kPitch + pair);
            const float two[2] = {v.x, v.y};
#pragma unroll
            for (int k = 0; k < 2; ++k) sum[i][k] = s ? sum[i][k] + two[k ^ kCross] : two[k ^ kCross];
          }
        }
        if (kSplit) {
          float* mine_held = held + j * 3 * kRow + 2 * lane;
#pragma unroll
          for (int i = 0; i < 3; ++i) {
            float2* cell = reinterpret_cast<float2*>(mine_held + i * kRow);
            if (base > 0) sum[i][0] += cell->x, sum[i][1] += cell->y;
            if (!last_states) *cell = make_float2(sum[i][0], sum[i][1]);
          }
          if (!last_states) {
            __syncwarp();  // the stage is written again
            continue;
          }
        }
        const float2 of_pair = *reinterpret_cast<const float2*>(stage + pair);
        const float2 dy_pair = *reinterpret_cast<const float2*>(stage + kRow + pair);
        const float2 slopes = *reinterpret_cast<const float2*>(stage + 3 * kRow + pair);
        const float2 gates = *reinterpret_cast<const float2*>(stage + 4 * kRow + pair);
        const float slope[2] = {slopes.x, slopes.y}, of_gate[2] = {gates.x, gates.y};
        const float deltas[2] = {of_pair.x, of_pair.y}, crossed[2] = {dy_pair.x, dy_pair.y};
        const float dys[2] = {crossed[kCross], crossed[1 ^ kCross]};
        const float skip = vectors[j].x;
        float u[2], g_u[2], g_delta[2], g_z[2], g_skip = 0.0f, g_bias = 0.0f;
        widen_pair(u, raw.u);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          g_u[k] = fmaf(deltas[k], sum[2][k], skip * dys[k]);
          g_delta[k] = fmaf(kLn2, sum[1][k], u[k] * sum[2][k]) * slope[k];
          g_z[k] = of_gate[k] * fmaf(skip, u[k], sum[0][k]);
          g_skip = fmaf(dys[k], u[k], g_skip), g_bias += g_delta[k];
        }
        Stored *to_u = row_at(j, 5), *to_delta = row_at(j, 6), *to_z = row_at(j, 7);
        if (whole) {
          store_pair(to_u, g_u);
          store_pair(to_delta, g_delta);
          if (gated) store_pair(to_z, g_z);
        } else {
          store_run(to_u, 0, left, false, g_u);
          store_run(to_delta, 0, left, false, g_delta);
          if (gated) store_run(to_z, 0, left, false, g_z);
        }
        float2* others = reinterpret_cast<float2*>(sums_d) + j * 32 + lane;
        *others = make_float2(others->x + g_skip, others->y + g_bias);
        __syncwarp();  // the stage is written again
      }
      // The block's sums over channels, B's and then C's.
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        __syncthreads();
#pragma unroll
        for (int s = 0; s < kPer; ++s) {
          store_words(stage + s * kParts * kPitch + at_run, which ? of_c[s] : of_b[s]);
        }
        __syncthreads();
        float* to = reinterpret_cast<float*>(which ? p.part_c : p.part_b);
        to += (((slice * batch + row) * p.groups + group) * p.states + base) * steps + from;
        // Opaque: addresses are not to wait in registers while channels pass by.
        int i = threadIdx.x;
        asm volatile("" : "+r"(i));
#pragma unroll 1
        for (; i < here * kQuads; i += kThreads) {
          const int n = i / kQuads, k = i % kQuads * 4;
          float sum[4];
          load_words(sum, stages + n * kPitch + k);
#pragma unroll
          for (int w = 1; w < kWarps; ++w) {
            float other[4];
            load_words(other, stages + w * kOfWarp + n * kPitch + k);
#pragma unroll
            for (int l = 0; l < 4; ++l) sum[l] += other[l];
          }
          float* cell = to + n * steps + k;
          if (steps % 4 == 0) {
            if (from + k < steps) *reinterpret_cast<float4*>(cell) = make_float4(sum[0], sum[1], sum[2], sum[3]);
          } else {
#pragma unroll
            for (int l = 0; l < 4; ++l) {
              if (from + k + l < steps) cell[l] = sum[l];
            }
          }
        }
      }
      if (kSplit) {
        give_states(base, tile == end_tile - 1, tile == first_tile);
        __syncwarp();
      }
    }
  }
  __syncwarp();
  if (!kSplit) give_states(0, true, true);
  // Without steps no tile has done it.
  for (int base = 0; kSplit && first_tile == end_tile && base < states; base += kStates) {
    take_states(base, true);
    __syncwarp();
    give_states(base, true, true);
    __syncwarp();
  }
  for (int j = lane; j < mine; j += 32) {
    float skip = 0.0f, bias = 0.0f;
    for (int i = 0; i < 32; ++i) {
      skip += sums_d[j * 64 + 2 * i], bias += sums_d[j * 64 + 2 * i + 1];
    }
    p.part_vectors[part * p.channels + first + j] = skip;
    p.part_vectors[(p.parts + part) * p.channels + first + j] = bias;
  }
}

// LTC, forward, of wirings that are nearly acyclic, level by level (levels.cuh) in one kernel: a block has all synapses and walks one batch
// row, whose levels are a tile of 64 unfolds apart (the equations: forward.cu). In one phase, side by side:
//   16 workers    states of lone neurons of tile n, of which each step is a line; then the chain's sums over them, and the sinks' sums of tile
//                 n - 2, as levels_sums.cu makes them
//   the chain     its unfolds of tile n - 1, of which near synapses alone are left: a warp or some, that meet once an unfold
//   one warp      states of the sinks of tile n - 3
// and at its end the workers meet the others. So nothing waits for an unfold but the chain, which has other work beside it. Synapses are in shared memory but for
// near ones, in registers; sums and states that another role reads go through a ring in global memory, which the second-level cache holds.
//
// Floor (1.98 GHz) of B128 T64 H256 K6 by AutoNCP, 7,348 synapses in workers' hands, 384 unfolds, 128 rows on 132 multiprocessors: a special
// operation a gate, 16 a clock: 89 us; shared memory 2.1 clocks for 32 gates: 94 us; registers, three multiply-adds a gate of which each reads
// three and two are read in a clock, some 100 us. Beside it the chain: 384 unfolds of some 300 clocks, 58 us, and what fills and empties the
// phases, three of nine. Bytes: 17 MB of sums over the inputs.
// Measured (H100, ms, with sensory sums and folding, which are 0.025): that case 0.223, by lone.cu 0.258; four times the rows 0.769 (0.988); exact 0.310
// (0.649). By ncu's samples of an earlier state workers are at sums for 0.8 of their time, 13 clocks of a scheduler for 32 gates, and wait for 0.16 at phases'
// ends, most of it in the last three, where the chain has 16 us alone; an unfold of the chain takes some 480 clocks, of which 180 are its steps'
// ends and copies.
// Tried: lone neurons' unfolds one after the other with sums of steps ahead, 39 of 225 us; two unfolds a lane and a synapse to all lanes 0.2356 where
// four and half of the synapses 0.2315; addresses of shared memory by way of a number, which made all loads generic ones, 0.29; a branch for
// each gate of the chain, 0.26; constants that the chain reads anew each unfold, each thirty clocks.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "levels.cuh"

constexpr int kWorkers = 512, kWorkingWarps = kWorkers / 32;
// Unfolds whose sums come to the chain together, and steps that lie there; steps whose lines do.
constexpr int kGroup = 4, kStepsHere = 2 * kGroup, kLines = 12;

// A tile of a row: which row, its first unfold, how many.
struct Tile {
  i64 b;
  int first, rows;
};
__device__ __forceinline__ Tile tile_of(int n, int tiles, int all) {
  const int row = n / tiles, first = (n - row * tiles) * kTileRows;
  return {blockIdx.x + (i64)row * gridDim.x, first, min(kTileRows, all - first)};
}

// So many threads, a number that the compiler knows.
template <int kBarrier, int kCount>
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kCount) : "memory");
}
// kMore threads and the chain's, of which there are one, two or three warps.
template <int kBarrier, int kMore>
__device__ __forceinline__ void meet_with_chain(int threads) {
  if (threads == 32) {
    if constexpr (kMore == 0)
      __syncwarp();
    else
      meet<kBarrier, kMore + 32>();
  } else if (threads == 64) {
    meet<kBarrier, kMore + 64>();
  } else {
    meet<kBarrier, kMore + 96>();
  }
}
__device__ __forceinline__ void workers_meet() { meet<1, kWorkers>(); }
__device__ __forceinline__ void chain_meets(int threads) { meet_with_chain<2, 0>(threads); }
// The workers and another role, each at a place of its own. The chain and the warp of the sinks have nothing from each other.
__device__ __forceinline__ void chain_and_workers(int threads) { meet_with_chain<3, kWorkers>(threads); }
__device__ __forceinline__ void sinks_and_workers() { meet<4, kWorkers + 32>(); }

// The synapses of some targets in shared memory (levels_sums.cu has their schedule), and those targets that a warp has.
struct Gates {
  float4* synapses;
  uint2* from;       // columns of four
  float2* constant;  // of each target, fast: the sums of its q and p
  const int4* units;
  int2 mine;
  static __device__ __forceinline__ int bytes(int most, int targets) { return (18 * most + 8 * targets + 15) / 16 * 16; }
  __device__ __forceinline__ Gates(const Schedule& s, char* shared, int most, int targets, int warp) {
    synapses = (float4*)shared, from = (uint2*)(synapses + most), constant = (float2*)(from + most / 4);
    units = (const int4*)s.target + 1;
    mine = targets > 0 && warp < kWorkingWarps ? s.warps[warp] : make_int2(0, 0);
  }
  // By all workers, which wait for it; and then, when they have met, by each warp.
  __device__ __forceinline__ void read(const Schedule& s, int most) const {
    for (int e = threadIdx.x; e < most; e += kWorkers) copy_ahead<16>(synapses + e, s.folded + e);
    for (int e = threadIdx.x; e < most / 4; e += kWorkers) copy_ahead<8>(from + e, (const uint2*)s.from + e);
  }
  __device__ __forceinline__ void add_up(int lane) const {
    for (int n = mine.x; n < mine.x + mine.y; n++) {
      const int4 unit = units[n];
      float p = 0.0f, q = 0.0f;
      if (kFast)
        for (int e = lane; e < 8 * unit.y; e += 32) p += synapses[unit.x + e].z, q += synapses[unit.x + e].w;
      p = lanes_sum(p, 32), q = lanes_sum(q, 32);
      if (lane == 0) constant[unit.z] = make_float2(q, p);
    }
  }
  // Both sums of this warp's targets, of a tile; to [targets, kTileRows].
  __device__ __forceinline__ void sums(const float* tile, float2* to, int lane) const {
#pragma unroll 1
    for (int n = mine.x; n < mine.x + mine.y; n++) {
      const int4 unit = units[n];
      const float2 begin = constant[unit.z];
      float num[2] = {begin.x, begin.x}, den[2] = {begin.y, begin.y};
      tile_sums(synapses, from, unit, tile, lane, num, den);
#pragma unroll
      for (int r = 0; r < 2; r++) to[unit.z * kTileRows + (lane + 32 * r)] = make_float2(num[r], den[r]);
    }
  }
};

// A neuron and where its step is.
struct Walk {
  float v, c, num, den;
  int k, s;  // unfolds and steps done
  // c, and what num and den begin with, of a step with these sums.
  __device__ __forceinline__ void step(const Cell& cell, float2 sums, bool timed, float time) {
    // Without a call where the compiler has fewer registers.
    const auto over = [&] { return kOldCompiler ? quotient(cell.rate_c, time) : __fdiv_rn(cell.rate_c, time); };
    c = timed ? over() : cell.rate_c;
    num = cell.num + sums.x, den = cell.den + c + sums.y;
  }
};

// Dynamic shared memory: tiles of lone neurons and of what sinks read; both kinds of synapses with their columns, 18 bytes each, and
// constants, 8 bytes a target, rounded to 16; of each of the chain's threads 16 kGroup and 12 kStepsHere bytes ahead and two states; of each
// lone neuron 8 kLines bytes and a state.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_levels_row(Schedule far, Schedule near, Schedule out_of, const int* __restrict__ ids,  // the sources, and then the sinks
               int lone, int chain, int sinks, int read_from, int read,                     // sinks read so many sources from that one on
               int far_most, int sinks_most, int chain_threads,
               float2* __restrict__ ring_sums,                                              // [blocks, 2, chain + sinks, kTileRows]
               float* __restrict__ ring_states,                                             // [blocks, 4, kTileRows, read]
               const float* __restrict__ gleak, const float* __restrict__ vleak, const float* __restrict__ cm,
               const float2* __restrict__ sensory,                                          // [B, steps, H]
               const float* start, i64 start_b, i64 start_h,                                // [B, H], any strides, or null: zeros
               const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,   // [B, T] or null: dt
               const float* __restrict__ output_w, const float* __restrict__ output_b,      // [M] or null
               float* __restrict__ out, float* __restrict__ states, float* final_state,     // [B, T, M]; [B, T, H] or null; [B, H]
               int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int constrained, float epsilon) {
  extern __shared__ __align__(128) char shared[];  // tile_sums
  const int thread = threadIdx.x, lane = thread % 32, warp = uniform(thread / 32);
  const int all = steps * unfolds, tiles = (all + kTileRows - 1) / kTileRows, rows = (batch - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
  const int count = rows * tiles;
  const Pass pass = {sensory, elapsed, elapsed_b, elapsed_t, hidden, unfolds, total_steps, t0, steps};
  const Ends ends = {output_w, output_b, out, states, final_state, outputs};
  const float unit = elapsed ? 1.0f : dt;
  auto begin = [&](i64 b, int j) { return start ? start[b * start_b + j * start_h] : 0.0f; };
  if (all == 0)
    for (i64 b = blockIdx.x; b < batch; b += gridDim.x)
      for (int i = thread; i < lone + chain + sinks; i += blockDim.x) final_state[b * hidden + ids[i]] = begin(b, ids[i]);
  if (count == 0) return;

  // Offsets, since an address that is made of a number is one of any memory to the compiler.
  float* const lone_tile = (float*)shared;
  float* const read_tile = lone_tile + lone * kTileRows;
  const int tiles_end = 4 * kTileRows * (lone + read), far_end = tiles_end + Gates::bytes(far_most, chain);
  const int gates_end = far_end + Gates::bytes(sinks_most, sinks);
  const Gates of_chain(far, shared + tiles_end, far_most, chain, warp), of_sinks(out_of, shared + far_end, sinks_most, sinks, warp);
  float4* const chain_pairs = (float4*)(shared + gates_end);
  float2* const chain_steps = (float2*)(chain_pairs + kGroup * chain_threads);
  float2* const lines = chain_steps + kStepsHere * chain_threads;  // [kLines, lone]
  float* const chain_times = (float*)(lines + kLines * lone);
  float* const chain_states = chain_times + kStepsHere * chain_threads;  // [2, chain_threads]
  float* const lone_states = chain_states + 2 * chain_threads;
  float2* const sums = ring_sums + (i64)blockIdx.x * 2 * (chain + sinks) * kTileRows;
  float* const read_states = ring_states + (i64)blockIdx.x * 4 * kTileRows * read;
  auto sums_of = [&](int n, int target) { return sums + ((n & 1) * (chain + sinks) + target) * kTileRows; };
  auto states_of = [&](int n, int column) { return read_states + (n & 3) * kTileRows * read + column; };

  if (warp < kWorkingWarps) {
    of_chain.read(far, far_most), of_sinks.read(out_of, sinks_most);
    // Of a lone neuron's steps some threads make the lines v' = a v + b, a thread each and step; then one follows them.
    const int teams = kWorkers / lone, team = thread / lone, i = thread - team * lone, j = team < teams ? ids[i] : -1;
    const int column = i - read_from;
    const Cell cell = cell_of(j, gleak, vleak, cm, unfolds, unit, constrained, epsilon);
    float v = 0.0f;
    // Of the steps from `s` on, to the end of the tile or as many as there is room for: their sums on their way, and then their lines.
    auto of_lines = [&](const Tile& t, int s, auto&& each) {
      const int most = min(kLines, (t.first + t.rows - 1) / unfolds - s + 1);
      if (team < teams)
        for (int e = team; e < most; e += teams) each(lines[e * lone + i], s + e);
    };
    auto copy_lines = [&](const Tile& t, int s) {
      of_lines(t, s, [&](float2& line, int step) { copy_ahead<8>(&line, sensory + ((t.b * steps + step) * hidden + j)); });
    };
    auto make_lines = [&](const Tile& t, int s) {
      copies_here();
      of_lines(t, s, [&](float2& line, int step) {
        Walk w;
        w.step(cell, line, elapsed, pass.time(t.b, step));
        const float inverse = reciprocal(w.den);
        line = make_float2(quotient(w.c, w.den, inverse), quotient(w.num, w.den, inverse));
      });
    };
    const Tile begins = tile_of(0, tiles, all);
    copy_lines(begins, 0);
    make_lines(begins, 0);
    workers_meet();
    of_chain.add_up(lane), of_sinks.add_up(lane);
#pragma unroll 1
    for (int n = 0; n < count + 3; n++) {
      const int before = n - 2;  // the sinks' tile
      const bool has_sinks = sinks > 0 && before >= 0 && before < count;
      if (has_sinks) {
        const float* const from = states_of(before, 0);
        for (int d = lane; d < read; d += 32)
#pragma unroll
          for (int q = 0; q < kTileRows / kWorkingWarps; q++)
            copy_ahead<4>(read_tile + (in_tile(d, warp) + kWorkingWarps * q), from + ((warp + kWorkingWarps * q) * read + d));
      }
      if (n < count) {
        const Tile t = tile_of(n, tiles, all);
        const int last = (t.first + t.rows - 1) / unfolds;
        if (t.first == 0 && thread < lone) v = begin(t.b, j);
#pragma unroll 1
        for (int s = t.first / unfolds; s <= last; s += kLines) {
          if (s > t.first / unfolds) {
            copy_lines(t, s);
            make_lines(t, s);
            workers_meet();
          }
          const int steps_here = min(kLines, last - s + 1);
          if (thread < lone) {
            float* const kept = column >= 0 && sinks > 0 ? states_of(n, column) : nullptr;
            int m = max(0, s * unfolds - t.first);
#pragma unroll 1
            for (int e = 0; e < steps_here; e++) {
              const float2 line = lines[e * lone + thread];
              const int end = min(t.rows, (s + e + 1) * unfolds - t.first);
#pragma unroll 2
              for (; m < end; m++) {
                lone_tile[in_tile(thread, m)] = v;
                if (kept) kept[m * read] = v;
                v = fmaf(line.x, v, line.y);
              }
            }
            lone_states[thread] = v;
            if (t.first + m == all) final_state[t.b * hidden + j] = v;
          }
          workers_meet();
          if (team < teams)
            for (int e = team; e < steps_here; e += teams) {
              const int end = (s + e + 1) * unfolds - t.first;
              if (end > t.rows) break;
              const bool ahead = end == t.rows || e + 1 == steps_here;  // its state is in no row yet
              ends.step(t.b * total_steps + (t0 + s + e), hidden, j, ahead ? lone_states[i] : lone_tile[in_tile(i, end)]);
            }
        }
      }
      copies_here();
      workers_meet();
      const Tile next = tile_of(n + 1, tiles, all);
      if (n + 1 < count) copy_lines(next, next.first / unfolds);
      if (n < count) of_chain.sums(lone_tile, sums_of(n, 0), lane);
      if (has_sinks) of_sinks.sums(read_tile, sums_of(before, chain), lane);
      if (n + 1 < count) make_lines(next, next.first / unfolds);
      chain_and_workers(chain_threads), sinks_and_workers();
    }
  } else if (thread < kWorkers + chain_threads) {
    // By way of the warp, so that they stay in registers: a constant is some thirty clocks away.
    const int own = thread - kWorkers, threads = uniform(chain_threads), each = uniform(unfolds), pitch = uniform(read);
    int2 shape = near.warps[own / 32];
    shape = make_int2(uniform(shape.x), uniform(shape.y));
    const int i = near.target[own], j = i < 0 ? -1 : ids[lone + i], column = lone + i - read_from;
    const bool leads = i >= 0 && (lane & (shape.x - 1)) == 0, kept = leads && sinks > 0 && column >= 0 && column < read;
    float p0, q0;
    const Held held = hold(near, 0, p0, q0, nullptr, threads, own);
    Cell cell = cell_of(j, gleak, vleak, cm, unfolds, unit, constrained, epsilon);
    cell.num += lanes_sum(q0, shape.x), cell.den += lanes_sum(p0, shape.x);
    Walk w = {0.0f, 0.0f, 0.0f, 1.0f, 0, 0};
    int left = 0, ahead = 0;  // unfolds until the next step that is to come, and which
    const float2* next_sums = nullptr;
    const float* next_time = nullptr;
    float *state_out = nullptr, *y_out = nullptr;
    const bool motor = leads && j < outputs;
    const float weight = motor && output_w ? output_w[j] : 1.0f, bias = motor && output_b ? output_b[j] : 0.0f;
    // Slots that are not in use read any place, and what they make of it counts nothing.
    chain_states[own] = chain_states[threads + own] = 0.0f;
    chain_meets(threads);
#pragma unroll 1
    for (int n = -1; n < count + 2; n++) {
      if (n >= 0 && n < count) {
        const Tile t = tile_of(n, tiles, all);
        if (t.first == 0) {
          w.v = leads ? begin(t.b, j) : 0.0f, w.k = w.s = left = ahead = 0;
          if (leads) chain_states[i] = w.v;
          chain_meets(threads);
        }
        const float2* const from = sums_of(n, leads ? i : 0);
        float* to = states_of(n, kept ? column : 0);
        if (t.first == 0) {
          const i64 row = t.b * total_steps + t0;
          next_sums = sensory + (t.b * steps * hidden + (leads ? j : 0)), next_time = elapsed ? elapsed + (t.b * elapsed_b + t0 * elapsed_t) : nullptr;
          state_out = states && leads ? states + (row * hidden + j) : nullptr;
          y_out = leads && j < outputs ? out + (row * outputs + j) : nullptr;
        }
        // The sums of a group of unfolds, and of the steps that begin in it.
        auto copy = [&](int group) {
          if (group * kGroup < t.rows) {
            for (; left < kGroup; left += each, ahead++)
              if (leads && ahead < steps) {
                copy_ahead<8>(chain_steps + (ahead & kStepsHere - 1) * threads + own, next_sums);
                next_sums += hidden;
                if (next_time) {
                  copy_ahead<4>(chain_times + (ahead & kStepsHere - 1) * threads + own, next_time);
                  next_time += elapsed_t;
                }
              }
            left -= kGroup;
            if (leads)
              for (int e = 0; e < kGroup / 2; e++)
                copy_ahead<16>(chain_pairs + ((group & 1) * (kGroup / 2) + e) * threads + own, from + (group * kGroup + 2 * e));
          }
          commit_copies();
        };
        copy(0);
#pragma unroll 1
        for (int group = 0; group * kGroup < t.rows; group++) {
          copy(group + 1);
          earlier_copies_here();
#pragma unroll
          for (int e = 0; e < kGroup; e++) {
            const int m = group * kGroup + e;
            if (m >= t.rows) break;
            const float* const here = chain_states + (e & 1) * threads;
            float x[kSlots], num = 0.0f, den = 0.0f;
#pragma unroll
            for (int h = 0; h < kSlots; h++) x[h] = *(const volatile float*)((const char*)here + source_of(held, h));
            if (w.k == 0) {
              const int at = (w.s & kStepsHere - 1) * threads + own;
              w.step(cell, chain_steps[at], elapsed, elapsed ? chain_times[at] : 0.0f);
            }
            const float2 sum = ((const float2*)(chain_pairs + ((group & 1) * (kGroup / 2) + e / 2) * threads + own))[e & 1];
            if (kept) *to = w.v;
            to += pitch;
            const float above = fmaf(w.c, w.v, w.num + sum.x), below = w.den + sum.y;
            // Most lanes have one, and a branch for each would make gates wait for each other.
            if (shape.y > 1) {
#pragma unroll
              for (int h = 0; h < kSlots; h++) x[h] = gate_of(held.a[h], held.b[h], x[h]);
#pragma unroll
              for (int h = 0; h < kSlots; h++) num = fmaf(held.q[h], x[h], num), den = fmaf(held.p[h], x[h], den);
              num = lanes_sum(num, shape.x), den = lanes_sum(den, shape.x);
            } else if (shape.y > 0) {
              x[0] = gate_of(held.a[0], held.b[0], x[0]);
              num = held.q[0] * x[0], den = held.p[0] * x[0];
            }
            w.v = quotient(above + num, below + den);
            if (leads) chain_states[(1 - (e & 1)) * threads + i] = w.v;
            chain_meets(threads);
            if (++w.k == each) {
              if (state_out) *state_out = w.v, state_out += hidden;
              if (y_out) *y_out = ends.output(w.v, weight, bias), y_out += outputs;
              w.k = 0, w.s++;
            }
          }
        }
        if (leads && t.first + t.rows == all) final_state[t.b * hidden + j] = w.v;
      }
      chain_and_workers(threads);
    }
  } else {
    // A state is kept from tile to tile where the last one goes.
#pragma unroll 1
    for (int n = -3; n < count; n++) {
      if (n >= 0) {
        const Tile t = tile_of(n, tiles, all);
        for (int i = lane; i < sinks; i += 32) {
          const int j = ids[lone + chain + i];
          const Cell cell = cell_of(j, gleak, vleak, cm, unfolds, unit, constrained, epsilon);
          const float4* const from = (const float4*)sums_of(n, chain + i);
          const int s = t.first / unfolds;
          Walk w = {t.first == 0 ? begin(t.b, j) : final_state[t.b * hidden + j], 0.0f, 0.0f, 1.0f, t.first - s * unfolds, s};
          float2 next = pass.sums(t.b, s, j);
          float time = pass.time(t.b, s);
          auto step = [&] {
            w.step(cell, next, elapsed, time);
            if (w.s + 1 < steps) next = pass.sums(t.b, w.s + 1, j), time = pass.time(t.b, w.s + 1);
          };
          if (w.k > 0) step();
          float4 later[2] = {from[0], from[1]};
#pragma unroll 1
          for (int m = 0; m < t.rows; m += 4) {
            const float4 pair[2] = {later[0], later[1]};
            if (m + 4 < t.rows) later[0] = from[m / 2 + 2], later[1] = from[m / 2 + 3];
#pragma unroll
            for (int e = 0; e < 4; e++) {
              if (m + e >= t.rows) break;
              const float2 sum = e & 1 ? make_float2(pair[e / 2].z, pair[e / 2].w) : make_float2(pair[e / 2].x, pair[e / 2].y);
              if (w.k == 0) step();
              w.v = quotient(fmaf(w.c, w.v, w.num) + sum.x, w.den + sum.y);
              if (++w.k == unfolds) {
                ends.step(t.b * total_steps + (t0 + w.s), hidden, j, w.v);
                w.k = 0, w.s++;
              }
            }
          }
          final_state[t.b * hidden + j] = w.v;
        }
      }
      sinks_and_workers();
    }
  }
}

// Steps of a network whose synapses change, all of a chunk in one launch: a grid whose blocks are all resident at once.
//
//   step n:  1. cells advance under what arrives at step n; those that fire are listed, and leave an entry behind
//            2. the grid meets
//            3. the rows of those that fired are walked: what a synapse passes on is added to the ring of future inputs, and
//               synapses that change catch up with what the cells behind them did, then lose
//            4. the grid meets
//
// Who computes what: a lane advances a cell; a warp takes 32 synapses of a row, one a lane. Every synapse has one writer a
// step, sums are whole numbers, and what a synapse catches up with follows from entries alone, so that blocks do not show.
// What another block has written is read past the first cache. See spiking/plasticity/README.md for the rule.
//
//   ring [steps, ports, cells] of i32; history [cells, depth, width] entries; counts [cells] entries ever left
//   rows that do not change: words {slot: 32, delay: 16, weight: 16}; that do: {cell, delay, rule} in 32 bits, and strengths
//
// Full microcircuit with every excitatory synapse changing, on an H200, a step (25 spikes, 71,000 + 26,000 events):
//   bytes   71,000 x (8 read, 4 written) + 26,000 x 8 read = 1.06 MB: 0.25 us at 4.3 TB/s
//   second cache  71,000 entries of 32 bytes and counts of 32, 97,000 additions: 7.6 MB of sectors at 7 TB/s, 1.1 us
//   path    two meetings 2.4, cells 0.4, list, degrees and a scan 1.2, row 0.7, count and entries 0.8, addition 0.3: 5.8 us a step,
//           a real-time factor of 0.058. Latency is the bound, not bandwidth.
#include "draws.cuh"
#include "models.cuh"
#include "rules.cuh"

struct Part {
  float* state;               // [variable, count]
  const float* coefficients;  // [coefficient, stride]; with stride 0 [coefficient], the same for all
  const unsigned* chances;    // [count] or, with chance_stride 0, one: 2^32 P(a source fires in a step)
  const u64* replay;          // [replays] rising step << 32 | cell of the population
  unsigned replays, model, count, cell;  // the network's number of the first cell
  unsigned stride, chance_stride, owner;
  unsigned drive, drives;
  float unit[2];
  unsigned unused;
};

struct Drive {
  const unsigned* thresholds;
  u64 start, stop;
  unsigned count, owner, port;
  int code;
};

struct Rows {
  const u64* first;    // [cells + 1]
  const void* words;   // u64 where strengths is null, else unsigned
  unsigned* strengths;
};

struct Net {
  const Part* parts;
  const Drive* drives;
  const uint2* tasks;  // [task_count] part and first cell in it of what a warp advances
  const Rows* rows;    // [row_count]
  const Rule* rules;
  const Trace* traces;  // [trace_count]
  const Short* shorts;  // [short_count]
  int* ring;
  unsigned* history;
  unsigned* counts;
  unsigned* kept;  // [cells] the first entry that is still asked for
  u64 seed;
  unsigned cells, ports, task_count, row_count;
  unsigned trace_count, short_count, width;
  unsigned steps, depth;  // powers of two
  unsigned cell_bits, delay_bits;
  unsigned grown;  // synapses are grown up to before this step of theirs, at least
};

struct Run {
  u64* log;           // [capacity] (step - from) << 32 | cell
  u64* logged;        // how many
  unsigned* arrived;  // blocks at meetings, ever
  unsigned* full;     // a cell's entries fill their room
  u64* result;        // [2] steps done, spikes logged
  u64 from, capacity; // capacity: at least twice the cells
  unsigned steps, unused;
};

// A word that another block may be writing.
__device__ __forceinline__ unsigned peek(const unsigned* p) { return *(volatile unsigned*)p; }
__device__ __forceinline__ void poke(unsigned* p, unsigned x) { *(volatile unsigned*)p = x; }

constexpr unsigned kWarps = kThreads / 32;

// Entry `index` of a cell.
__device__ __forceinline__ unsigned* entry(const Net& net, unsigned cell, unsigned index) {
  return net.history + ((u64)cell * net.depth + (index & (net.depth - 1))) * net.width;
}

// What a synapse must know of the spikes of its source.
struct Passing {
  unsigned last;           // the step of the spike before; kNone where there is none
  const unsigned* before;  // its entry
};

// The strength of a synapse once everything before `end`, a step of its target, was applied; `until` becomes how many entries of
// the target lie before that.
__device__ __forceinline__ unsigned caught_up(const Net& net, const Rule& rule, unsigned strength, const Passing& passing,
                                              unsigned target, unsigned delay, long long end, unsigned& until) {
  until = __ldcg(net.counts + target);
  while (until > 0 && (long long)__ldcg(entry(net, target, until - 1)) >= end) --until;
  if (passing.last == kNone) return strength;
  const long long seen = (long long)passing.last - delay, behind = (long long)net.grown - delay;
  const long long begin = seen > behind ? seen : behind;
  const Trace trace = net.traces[rule.x];
  // A source that was silent for long has many entries behind it, one trip to the second cache each: halves, then those that
  // find something left of the trace.
  unsigned from = __ldcg(net.kept + target), past = until;
  from = until - from > net.depth ? until - net.depth : from;
  while (from < past) {
    const unsigned half = from + (past - from) / 2;
    if ((long long)__ldcg(entry(net, target, half)) >= begin)
      past = half;
    else
      from = half + 1;
  }
  if (from == until) return strength;
  const unsigned before = __ldcg(passing.before + 1 + rule.x);
  for (; from < until; ++from) {
    const unsigned steps = (unsigned)((long long)__ldcg(entry(net, target, from)) - seen);
    if (steps >= trace.length) break;
    // The spike of the same time counts nothing, but those before it do.
    strength = grown(rule, strength, steps == 0 ? before : later(trace, before, steps), trace.bits);
  }
  return strength;
}

struct Grid {
  const Net& net;
  const Run& run;

  // All blocks are here before one goes on, and what they wrote before is seen after.
  __device__ __forceinline__ void meet(unsigned& target) const {
    __syncthreads();
    target += gridDim.x;
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(run.arrived, 1u);
      while ((int)(peek(run.arrived) - target) < 0) {
      }
      __threadfence();
    }
    __syncthreads();
  }

  __device__ __forceinline__ int* slots(u64 step) const {
    return net.ring + (u64)((unsigned)step & (net.steps - 1)) * net.ports * net.cells;
  }

  __device__ __forceinline__ unsigned draw_word(unsigned purpose, unsigned owner, u64 step, unsigned cell) const {
    const Words words = draw(net.seed, purpose, owner, (step / 4) << 32 | cell);
    const unsigned k = (unsigned)step % 4;
    return k < 2 ? (k == 0 ? words.w[0] : words.w[1]) : (k == 2 ? words.w[2] : words.w[3]);
  }

  // What arrives at a cell's port; the slot becomes 0.
  __device__ __forceinline__ float arrived(const Part& part, u64 step, unsigned port, unsigned i) const {
    int* at = slots(step) + (u64)port * net.cells + part.cell + i;
    unsigned sum = (unsigned)__ldcg(at);
    if (sum != 0) __stcg(at, 0);
    for (unsigned d = part.drive; d < part.drive + part.drives; ++d) {
      const Drive& drive = net.drives[d];
      if (drive.port != port || step < drive.start || step >= drive.stop) continue;
      const unsigned bits = draw_word(kDrive, drive.owner, step, i);
      sum += (unsigned)reached(bits, drive.thresholds, drive.count) * (unsigned)drive.code;
    }
    return (float)(int)sum * part.unit[port];
  }

  template <class M>
  __device__ __forceinline__ bool dynamics(const Part& part, u64 step, unsigned i) const {
    float input[M::kPorts], c[M::kCoefficients], s[M::kVariables];
#pragma unroll
    for (int k = 0; k < M::kVariables; ++k) s[k] = part.state[(u64)k * part.count + i];
#pragma unroll
    for (int k = 0; k < M::kCoefficients; ++k)
      c[k] = part.coefficients[part.stride > 0 ? (u64)k * part.stride + i : k];
#pragma unroll
    for (int k = 0; k < M::kPorts; ++k) input[k] = arrived(part, step, k, i);
    const bool fires = M::step(c, s, input);
#pragma unroll
    for (int k = 0; k < M::kVariables; ++k) part.state[(u64)k * part.count + i] = s[k];
    return fires;
  }

  __device__ __forceinline__ bool replayed(const Part& part, u64 key) const {
    unsigned low = 0, count = part.replays;
    while (count > 0) {
      const unsigned half = count / 2;
      const bool right = __ldg(part.replay + low + half) < key;
      low = right ? low + half + 1 : low;
      count = right ? count - half - 1 : half;
    }
    return low < part.replays && __ldg(part.replay + low) == key;
  }

  __device__ __forceinline__ bool fires(const Part& part, u64 step, unsigned i) const {
    switch (part.model) {
      case kLifExpOne: return dynamics<LifExpOne>(part, step, i);
      case kLifExp: return dynamics<LifExp>(part, step, i);
      case kLifDelta: return dynamics<LifDelta>(part, step, i);
      case kIzhikevich: return dynamics<Izhikevich>(part, step, i);
      case kPoisson: return draw_word(kSource, part.owner, step, i) < __ldg(part.chances + i * part.chance_stride);
      case kReplay: return replayed(part, step << 32 | i);
    }
    if constexpr (kHeavy) {
      if (part.model == kLifAlpha) return dynamics<LifAlpha>(part, step, i);
      if (part.model == kLifCond) return dynamics<LifCond>(part, step, i);
      if (part.model == kAdEx) return dynamics<AdEx>(part, step, i);
      if (part.model == kHodgkinHuxley) return dynamics<HodgkinHuxley>(part, step, i);
    }
    return false;
  }

  // The entry of a spike.
  __device__ __forceinline__ void remember(unsigned cell, unsigned step) const {
    const unsigned count = __ldcg(net.counts + cell), traces = net.trace_count;
    const unsigned* last = count > 0 ? entry(net, cell, count - 1) : nullptr;
    unsigned* out = entry(net, cell, count);
    const unsigned past = last != nullptr ? step - __ldcg(last) : 0;
    for (unsigned k = 0; k < traces; ++k)
      __stcg(out + 1 + k, last != nullptr ? later(net.traces[k], __ldcg(last + 1 + k), past) : 0);
    for (unsigned k = 0; k < net.short_count; ++k) {
      const Short s = net.shorts[k];
      unsigned u = s.u, x = kOne;
      if (last != nullptr) {
        u = __ldcg(last + 1 + traces + 2 * k), x = __ldcg(last + 2 + traces + 2 * k);
        next_short(s, past, u, x);
      }
      __stcg(out + 1 + traces + 2 * k, u);
      __stcg(out + 2 + traces + 2 * k, x);
    }
    __stcg(out, step);
    __stcg(net.counts + cell, count + 1);
    // The next one might have no room.
    if (count + 1 - net.kept[cell] >= net.depth) poke(run.full, 1);
  }

  __device__ __forceinline__ void advance(u64 step) const {
    for (unsigned t = blockIdx.x * kWarps + threadIdx.x / 32; t < net.task_count; t += gridDim.x * kWarps) {
      const uint2 task = __ldg(net.tasks + t);
      const Part& part = net.parts[task.x];
      const unsigned i = task.y + threadIdx.x % 32;
      if (i >= part.count || !fires(part, step, i)) continue;
      const u64 at = atomicAdd(run.logged, 1ull);
      __stcg(run.log + at, (step - run.from) << 32 | (part.cell + i));
      remember(part.cell + i, (unsigned)step);
    }
  }

  __device__ __forceinline__ void add(u64 step, unsigned slot, unsigned delay, int amount) const {
    if (amount != 0) atomicAdd(slots(step + delay) + slot, amount);
  }

  // Synapse `i` of rows that change is passed by the spike of `source` in `step`.
  __device__ __forceinline__ void pass(const Rows& rows, u64 i, u64 step, unsigned source) const {
    const unsigned word = __ldcs((const unsigned*)rows.words + i), strength = __ldcg(rows.strengths + i);
    const unsigned spikes = __ldcg(net.counts + source);
    const unsigned target = word & ((1u << net.cell_bits) - 1);
    const unsigned delay = word >> net.cell_bits & ((1u << net.delay_bits) - 1);
    // A shift by 32 bits is none.
    const unsigned bits = net.cell_bits + net.delay_bits;
    const Rule& rule = net.rules[bits < 32 ? word >> bits : 0];
    const unsigned slot = target + rule.port * net.cells;
    unsigned effect = kOne;
    if (rule.short_rule != kNone) {
      const unsigned* own = entry(net, source, spikes - 1) + 1 + net.trace_count + 2 * rule.short_rule;
      effect = share(__ldcg(own), __ldcg(own + 1));
    }
    unsigned until = 0, now = strength;
    if (rule.kind & 1) {
      Passing passing = {kNone, nullptr};
      if (spikes > 1) passing.before = entry(net, source, spikes - 2), passing.last = __ldcg(passing.before);
      now = caught_up(net, rule, strength, passing, target, delay, (long long)step - delay, until);
    }
    add(step, slot, delay, (int)(((u64)now * effect + (1ull << 46)) >> 47) * rule.sign);
    if (until > 0) {
      const unsigned* last = entry(net, target, until - 1);
      const Trace trace = net.traces[rule.y];
      const unsigned steps = (unsigned)((long long)step - delay - __ldcg(last));
      now = shrunk(rule, now, later(trace, __ldcg(last + 1 + rule.y), steps), trace.bits);
    }
    if (now != strength) __stcg(rows.strengths + i, now);
  }

  // Walks the rows of spikes `begin .. end` of the log, all of `step`; a row is cut into pieces of 32.
  __device__ __forceinline__ void deliver(u64 step, u64 begin, u64 end, unsigned (&ends)[kThreads], unsigned (&sums)[kWarps]) const {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64 items = (end - begin) * net.row_count;
    for (u64 base = 0; base < items; base += kThreads) {
      // Pieces of one row a thread, then where they end among all.
      const u64 item = base + threadIdx.x;
      unsigned pieces = 0;
      if (item < items) {
        const unsigned cell = (unsigned)__ldcg(run.log + begin + item / net.row_count);
        const u64* first = net.rows[item % net.row_count].first + cell;
        pieces = (unsigned)((__ldg(first + 1) - __ldg(first) + 31) / 32);
      }
      for (unsigned reach = 1; reach < 32; reach *= 2) {
        const unsigned x = __shfl_up_sync(~0u, pieces, reach);
        if (lane >= reach) pieces += x;
      }
      if (lane == 31) sums[warp] = pieces;
      __syncthreads();
      unsigned before = 0;
      for (unsigned w = 0; w < warp; ++w) before += sums[w];
      ends[threadIdx.x] = before + pieces;
      __syncthreads();
      const unsigned all = ends[kThreads - 1];
      // Neighbouring pieces go to other multiprocessors, so that few spikes keep all of them busy.
      for (unsigned p = warp * gridDim.x + blockIdx.x; p < all; p += gridDim.x * kWarps) {
        unsigned low = 0;
        for (unsigned half = kThreads / 2; half > 0; half /= 2)
          if (ends[low + half - 1] <= p) low += half;
        const unsigned before_row = low > 0 ? ends[low - 1] : 0;
        const u64 here = base + low;
        const unsigned cell = (unsigned)__ldcg(run.log + begin + here / net.row_count);
        const Rows rows = net.rows[here % net.row_count];
        const u64 i = __ldg(rows.first + cell) + (u64)(p - before_row) * 32 + lane;
        if (i >= __ldg(rows.first + cell + 1)) continue;
        if (rows.strengths != nullptr) {
          pass(rows, i, step, cell);
        } else {
          const u64 word = __ldcs((const u64*)rows.words + i);
          add(step, (unsigned)word, (unsigned)(word >> 32) & 0xFFFFu, (int)((long long)word >> 48));
        }
      }
      __syncthreads();
    }
  }
};

extern "C" __global__ void __launch_bounds__(kThreads, 1) spiking_learn(const Net net, const Run run) {
  __shared__ unsigned ends[kThreads], sums[kWarps];
  const Grid grid = {net, run};
  unsigned target = 0;
  u64 begin = 0, step = run.from;
  for (;;) {
    grid.advance(step);
    grid.meet(target);
    const u64 end = __ldcg(run.logged);
    // All blocks decide alike: nobody fires between meetings 1 and 2.
    const bool full = peek(run.full) != 0;
    grid.deliver(step, begin, end, ends, sums);
    begin = end;
    ++step;
    if (step - run.from >= run.steps || full || begin + net.cells > run.capacity) break;
    grid.meet(target);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    run.result[0] = step - run.from;
    run.result[1] = begin;
  }
}

// The strengths of synapses that change, of rows `index`, once everything before `now` was applied. A warp a row.
extern "C" __global__ void __launch_bounds__(kThreads, 1) spiking_catch_up(const Net net, unsigned index, unsigned now, unsigned* out) {
  const Rows rows = net.rows[index];
  for (u64 cell = blockIdx.x * kWarps + threadIdx.x / 32; cell < net.cells; cell += gridDim.x * kWarps) {
    const unsigned spikes = net.counts[cell];
    Passing passing = {kNone, nullptr};
    if (spikes > 0) passing.before = entry(net, (unsigned)cell, spikes - 1), passing.last = passing.before[0];
    for (u64 i = rows.first[cell] + threadIdx.x % 32; i < rows.first[cell + 1]; i += 32) {
      const unsigned word = __ldcs((const unsigned*)rows.words + i), bits = net.cell_bits + net.delay_bits;
      const unsigned delay = word >> net.cell_bits & ((1u << net.delay_bits) - 1);
      const Rule& rule = net.rules[bits < 32 ? word >> bits : 0];
      unsigned strength = rows.strengths[i], until;
      if (rule.kind & 1)
        strength = caught_up(net, rule, strength, passing, word & ((1u << net.cell_bits) - 1), delay, (long long)now - delay, until);
      out[i] = strength;
    }
  }
}

// Where each cell's entries begin that are asked for after `now`: the last before `oldest`, and what follows.
extern "C" __global__ void __launch_bounds__(kThreads, 1) spiking_keep(const Net net, long long oldest) {
  for (u64 cell = blockIdx.x * (u64)kThreads + threadIdx.x; cell < net.cells; cell += gridDim.x * (u64)kThreads) {
    unsigned from = net.counts[cell];
    while (from > net.kept[cell] && (long long)entry(net, (unsigned)cell, from - 1)[0] >= oldest) --from;
    if (from > net.kept[cell]) net.kept[cell] = from - 1;
  }
}

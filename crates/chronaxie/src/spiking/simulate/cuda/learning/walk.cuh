// How a resident block walks rows of synapses that change, and what it keeps of its own cells' spikes.
//
// The spikes of a step are listed in shared memory and a warp takes a row, so that rows are spread over the block: one trip to
// memory brings a row with what is known of its cell. Of each cell of the block, the steps of its last `deep` spikes and the
// traces at its last `shallow` lie in shared memory, all of the last `depth` in global memory, which nobody else touches.
#pragma once
#include "laps.cuh"
#include "rows.cuh"

// Whether rows are walked after later steps of the block's own cells.
#ifdef CHRONAXIE_LATE
constexpr bool kLate = true;
#else
constexpr bool kLate = false;
#endif

struct Past {
  const Learn& learn;
  const Rule* rules;
  const Trace* traces;
  unsigned* counts;   // [rows]
  unsigned* steps;    // [deep, rows]
  unsigned* values;   // [shallow, traces, rows]
  unsigned* known;    // [16] of this warp: what the row is known by that it walks
  const unsigned short* cell_of;
  unsigned rows;
  unsigned number;    // of kMany: of this block's shard on its card

  __device__ __forceinline__ unsigned self() const { return kMany ? number : blockIdx.x; }

  __device__ __forceinline__ unsigned* at(unsigned cell, unsigned index) const {
    return learn.history + (((u64)self() * rows + cell) * learn.depth + (index & (learn.depth - 1))) * learn.width;
  }
  __device__ __forceinline__ unsigned step(unsigned cell, unsigned index, unsigned count) const {
    if (count - index <= learn.deep) return steps[(index & (learn.deep - 1)) * rows + cell];
    return *at(cell, index);
  }
  // The trace just before an entry's spike.
  __device__ __forceinline__ unsigned value(unsigned cell, unsigned index, unsigned count, unsigned k) const {
    if (count - index <= learn.shallow)
      return values[((index & (learn.shallow - 1)) * learn.trace_count + k) * rows + cell];
    return at(cell, index)[1 + k];
  }
  __device__ __forceinline__ const Trace& trace_of(unsigned k) const { return traces[k]; }

  __device__ __forceinline__ void hold(unsigned cell, unsigned index, const unsigned* entry) const {
    steps[(index & (learn.deep - 1)) * rows + cell] = entry[0];
    for (unsigned k = 0; k < learn.trace_count; ++k)
      values[((index & (learn.shallow - 1)) * learn.trace_count + k) * rows + cell] = entry[1 + k];
  }
  // What a launch begins with.
  __device__ __forceinline__ void load(unsigned cell, unsigned count) const {
    counts[cell] = count;
    for (unsigned i = count > learn.deep ? count - learn.deep : 0; i < count; ++i) hold(cell, i, at(cell, i));
  }
  // A cell of this block has fired. Returns whether it may have no room for what it leaves behind two spikes from now.
  __device__ __forceinline__ bool remember(unsigned cell, unsigned now, unsigned kept) const {
    const unsigned count = counts[cell], traces_here = learn.trace_count;
    const unsigned* last = at(cell, count - 1);
    unsigned* out = at(cell, count);
    const unsigned past = count > 0 ? now - last[0] : 0;
    out[0] = now;
    for (unsigned k = 0; k < traces_here; ++k) out[1 + k] = count > 0 ? later(traces[k], last[1 + k], past) : 0;
    for (unsigned k = 1 + traces_here, s = 0; s < learn.short_count; ++s, k += 2) {
      unsigned u = learn.shorts[s].u, x = kOne;
      if (count > 0) u = last[k], x = last[k + 1], next_short(learn.shorts[s], past, u, x);
      out[k] = u, out[k + 1] = x;
    }
    hold(cell, count, out);
    counts[cell] = count + 1;
    return count + 2 - kept >= learn.depth;
  }
};

// One warp takes the spike of `row` in step `now`: its synapses grow, pass on, and lose.
template <class Clocks>
struct Walk {
  const Net& net;
  const Past& past;
  Clocks& laps;  // of steps.cu
  int* ring;  // [steps, pitch]

  // A synapse, by a lane; what it leaves behind goes to `at`.
  __device__ __forceinline__ void pass(u64 word, u64* at, unsigned now) const {
    const Learn& learn = past.learn;
    const unsigned delay = ((unsigned)word & 0xFFFFu) >> net.slot_bits, slot = (unsigned)word & ((1u << net.slot_bits) - 1);
    const unsigned kind = rule_of(learn, word);
    unsigned strength = (unsigned)(word >> 32);
    int amount = (int)strength;
    if (kind > 0) {
      const Rule& rule = past.rules[kind - 1];
      unsigned until = 0, count = 0, cell = 0, effect = kOne;
      if (rule.kind & 1) {
        cell = past.cell_of[slot], count = past.counts[cell];
        if constexpr (kLate)
          while (count > 0 && past.step(cell, count - 1, count) >= now) --count;
        until = before(past, cell, count, now, delay);
        strength = caught_up(learn, past, rule, word, cell, count, delay, until, past.known[0], past.known[1 + rule.x]);
      }
      if (rule.short_rule != kNone) {
        const unsigned* own = past.known + 1 + learn.trace_count + 2 * rule.short_rule;
        effect = share(own[0], own[1]);
      }
      amount = (int)(((u64)strength * effect + (1ull << 46)) >> 47) * rule.sign;
      if (until > 0) {
        const unsigned steps = now - past.step(cell, until - 1, count) - delay;
        const Trace& trace = past.traces[rule.y];
        strength = shrunk(rule, strength, later(trace, past.value(cell, until - 1, count, rule.y), steps), trace.bits);
      }
      const u64 left = with(learn, word, until, strength);
      if (left != word) *at = left;
    }
    if (amount != 0) atomicAdd(ring + ((now + delay) & (net.steps - 1)) * net.pitch + slot, amount);
  }

  __device__ __forceinline__ void row(unsigned now, unsigned row) const {
    const Learn& learn = past.learn;
    const unsigned lane = threadIdx.x % 32, marker_here = (1u << net.slot_bits) - 1;
    const u64 rows = (u64)net.shards * net.rows;
    u64* const segment = (u64*)net.segments + segment_of(net, past.self(), row);
    u64 word = lane < net.segment ? __ldcs(segment + lane) : 0;
    const u64 more = lane + 32 < net.segment ? __ldcs(segment + lane + 32) : 0;
    if (lane < net.head) past.known[2 * lane] = (unsigned)word, past.known[2 * lane + 1] = (unsigned)(word >> 32), word = 0;
    laps.lap(kRow);
    unsigned i = 0, end = 0;
    if (__any_sync(~0u, word == marker_here || more == marker_here)) {
      const unsigned* first = net.first + past.self() * (rows + 1) + row;
      i = __ldg(first) + lane, end = __ldg(first + 1);
    }
    __syncwarp();
    // What the row is known by from now on, a number a lane. What short-term plasticity leaves is of this spike, traces are
    // of the last.
    const unsigned last = past.known[0], traces_end = 1 + learn.trace_count;
    unsigned value = now;
    if (lane >= traces_end && lane < learn.width) {
      const unsigned k = lane - (lane - traces_end) % 2;
      const Short& rule = learn.shorts[(lane - traces_end) / 2];
      unsigned u = rule.u, x = kOne;
      if (last != kNone) u = past.known[k], x = past.known[k + 1], next_short(rule, now - last, u, x);
      value = k == lane ? u : x;
    } else if (lane > 0 && lane < learn.width) {
      value = last == kNone ? 0 : later(past.traces[lane - 1], past.known[lane], now - last);
    }
    if (lane < learn.width) ((unsigned*)segment)[lane] = value;
    if (learn.short_count > 0) {
      __syncwarp();
      if (lane >= traces_end && lane < learn.width) past.known[lane] = value;
      __syncwarp();
    }
    u64* at = segment + lane;
    bool second = __any_sync(~0u, more != 0);
    for (;;) {
      pass(word, at, now);
      if (second) {
        second = false, word = more, at = segment + lane + 32;
        continue;
      }
      if (!__any_sync(~0u, i < end)) break;
      at = (u64*)net.rest + net.base[past.self()] + i;
      word = i < end ? __ldcs(at) : 0;
      i += 32;
    }
    laps.lap(kLearning);
    __syncwarp();
  }
};

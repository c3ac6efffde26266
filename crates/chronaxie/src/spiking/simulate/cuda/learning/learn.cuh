// What the streaming kernels of networks whose synapses change are given (steps.cu), and how a synapse catches up.
#pragma once
#include "draws.cuh"
#include "laps.cuh"
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
  unsigned replica;
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

struct Drawn;

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
  union {
    u64 seed;          // of all draws of steps
    const u64* seeds;  // [replicas] of kSeeds: of networks side by side, which draw by their own
  };
  unsigned cells, ports, task_count, row_count;
  unsigned trace_count, short_count, width;
  unsigned steps, depth;  // powers of two
  unsigned cell_bits, delay_bits;
  unsigned grown;  // synapses are grown up to before this step of theirs, at least
  const Drawn* drawn;  // [drawn_count] of kDrawn (drawn.cuh)
  unsigned drawn_count;
  unsigned slot_bits;  // of kLong: of words that do not change
};

struct Run {
  u64* log;           // [capacity] (step - from) << 32 | cell
  u64* logged;        // how many
  unsigned* arrived;  // blocks at meetings, ever
  unsigned* full;     // a cell's entries fill their room
  u64* result;        // [15] steps done, spikes logged; whether another card is lost; of kTimed clocks of the parts, and nanoseconds of a block
  u64 from, capacity; // capacity: at least twice the cells
  unsigned steps;
  unsigned begun;     // spikes in the log before the first of this launch
};

// Of kMany: cards of a network, which tell each other what fired.
constexpr unsigned kMostCards = 8;
struct Owned {
  const unsigned* order;  // the cells of a population by their places; null where those are their numbers
  unsigned high, unused;  // one after the last place of the cells that are here
};
struct Many {
  const Owned* owned;      // [populations]
  u64* mails[kMostCards];  // of all cards: headers [2, count] {spikes: 32, tag: 32}, boxes [2, count, cells] {cell: 32, tag: 32}
  unsigned* lost;          // whether some card said nothing for as long as there is patience
  u64 patience;            // ns
  unsigned count, own;     // how many cards there are, and which this is
};

// A word that another block, or another card's, may be writing.
__device__ __forceinline__ u64 peek(const u64* p) { return *(volatile u64*)p; }
__device__ __forceinline__ void poke(u64* p, u64 x) { *(volatile u64*)p = x; }
__device__ __forceinline__ unsigned peek(const unsigned* p) { return *(volatile unsigned*)p; }
__device__ __forceinline__ void poke(unsigned* p, unsigned x) { *(volatile unsigned*)p = x; }

// Entry `index` of a cell.
__device__ __forceinline__ unsigned* entry(const Net& net, unsigned cell, unsigned index) {
  return net.history + ((u64)cell * net.depth + (index & (net.depth - 1))) * net.width;
}

// What a synapse must know of the spikes of its source.
struct Passing {
  unsigned last;           // the step of the spike before; kNone where there is none
  const unsigned* before;  // its entry
};

// Of a cell's entries from .. past, which ascend, the first at `begin` or later; `past` where there is none.
__device__ __forceinline__ unsigned first_since(const Net& net, unsigned cell, unsigned from, unsigned past, long long begin) {
  while (from < past) {
    const unsigned half = from + (past - from) / 2;
    if ((long long)__ldcg(entry(net, cell, half)) >= begin)
      past = half;
    else
      from = half + 1;
  }
  return from;
}

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
  unsigned from = __ldcg(net.kept + target);
  from = until - from > net.depth ? until - net.depth : from;
  from = first_since(net, target, from, until, begin);
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

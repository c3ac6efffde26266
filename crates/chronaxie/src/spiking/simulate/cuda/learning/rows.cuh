// Rows of a network whose synapses change, cut by target: what network.cuh says, and this.
//
// A row of a shard begins with `head` words of eight bytes: the entry of the last spike that has passed (its step, or kNone;
// then traces and short-term numbers just before it, 32 bits each). A synapse is {slot and delay: 16, rule + 1: rule_bits,
// until: 16 - rule_bits, strength: 32}; with a rule of 0 it does not change, and the strength is its weight. All that is known
// of a row lies with it, in every shard that has it: nothing is shared between blocks but spikes.
//
// A synapse remembers how many of its target's entries were applied to it (`until`, of as many bits as there are), so that
// nothing is searched for: what it grows by lies between that and the last entry that has come to it.
#pragma once
#include "network.cuh"
#include "rules.cuh"

struct Learn {
  const Rule* rules;
  const Trace* traces;
  const Short* shorts;
  unsigned* history;               // [local, rows, depth, width] entries, a cell's by their number modulo depth
  unsigned* counts;                // [local, rows] entries ever left
  unsigned* kept;                  // [local, rows] the first entry that may still be asked for
  const unsigned short* cell_of;   // [local, pitch] of each slot, its cell's number in the shard
  unsigned* more;                  // [local, shards, rows] rows that shared memory has no room for
  unsigned rule_count, trace_count, short_count, width;
  unsigned depth, deep, shallow;   // powers of two: entries in memory, steps and traces of them in shared memory
  unsigned rule_bits;
  unsigned tables, unused;         // words of the traces' tables, where they lie in shared memory
};

__device__ __forceinline__ unsigned rule_of(const Learn& learn, u64 word) {
  return (unsigned)(word >> 16) & ((1u << learn.rule_bits) - 1);
}
__device__ __forceinline__ unsigned until_of(const Learn& learn, u64 word) {
  return ((unsigned)word >> 16) >> learn.rule_bits;
}
// How many numbers `until` has.
__device__ __forceinline__ unsigned turns(const Learn& learn) { return 1u << (16 - learn.rule_bits); }
__device__ __forceinline__ u64 with(const Learn& learn, u64 word, unsigned until, unsigned strength) {
  const unsigned low = (unsigned)word & ((1u << (16 + learn.rule_bits)) - 1);
  return (u64)strength << 32 | (u64)((until & (turns(learn) - 1)) << 16) << learn.rule_bits | low;
}

// How many of a cell's `count` entries lie before step `now - delay`. `past` has their steps.
template <class Past>
__device__ __forceinline__ unsigned before(const Past& past, unsigned cell, unsigned count, unsigned now, unsigned delay) {
  unsigned until = count;
#pragma unroll 1
  while (until > 0 && now - past.step(cell, until - 1, count) <= delay) --until;
  return until;
}

// The strength of a synapse once its target's entries up to `until` were applied. `x` is the trace just before `last`, the spike
// that passed before this one.
template <class Past>
__device__ __forceinline__ unsigned caught_up(const Learn& learn, const Past& past, const Rule& rule, u64 word, unsigned cell,
                                              unsigned count, unsigned delay, unsigned until, unsigned last, unsigned x) {
  unsigned strength = (unsigned)(word >> 32);
  unsigned left = (until - until_of(learn, word)) & (turns(learn) - 1);
  if (last == kNone || left == 0) return strength;
  const Trace& trace = past.trace_of(rule.x);
#pragma unroll 1
  for (; left > 0; --left) {
    const unsigned steps = past.step(cell, until - left, count) + delay - last;
    // Nothing is left of the trace.
    if (steps >= trace.length) break;
    // The spike of the same time counts nothing, but those before it do.
    strength = grown(rule, strength, steps == 0 ? x : later(trace, x, steps), trace.bits);
  }
  return strength;
}

// Entries in memory.
struct Entries {
  const Learn& learn;
  const unsigned* history;  // [rows, depth, width]

  __device__ __forceinline__ const unsigned* at(unsigned cell, unsigned index) const {
    return history + ((u64)cell * learn.depth + (index & (learn.depth - 1))) * learn.width;
  }
  __device__ __forceinline__ unsigned step(unsigned cell, unsigned index, unsigned) const { return *at(cell, index); }
  __device__ __forceinline__ const Trace& trace_of(unsigned k) const { return learn.traces[k]; }
};

// A network on a device: what mod.rs lays out as it is written here, and how synapses and the ring of future inputs are read.
//
// The cells of every population are cut alike into shards, one a block. An input is a slot: one cell's port. Shard k holds the
// synapses onto its own cells alone, those of source s side by side from base[k] + first[k][s] on, in any order: what they add
// are whole numbers, whose sum does not depend on it.
#pragma once
#include "draws.cuh"

// The cells low .. low + count of a population, in one shard.
struct Part {
  float* state;               // [variable, size], at the first cell
  const float* coefficients;  // [coefficient, stride], at the first cell; with stride 0 [coefficient], the same for all
  const unsigned* chances;    // [count] or, with chance_stride 0, one: 2^32 P(a source fires in a step)
  const u64* replay;          // [replays] rising step << 32 | cell of the population
  unsigned replays, model, count, low;
  unsigned cell;                         // the network's number of the first cell
  unsigned slot;                         // of the first cell's first port; a port's slots lie together, count apart
  unsigned size, stride, chance_stride;  // cells of the population
  unsigned owner;                        // the population: names a source's draws
  unsigned drive, drives;                // which drives
  float unit[2];                         // the value of a weight of 1, by port
};

struct Drive {
  const unsigned* thresholds;  // [count] 2^32 P(arrivals <= k)
  u64 start, stop;             // steps
  unsigned count, owner, port;
  int code;
};

struct Net {
  const Part* parts;           // [shards, populations]
  const Drive* drives;
  const uint2* tasks;          // part and first cell in it of what a warp advances
  const unsigned* first_task;  // [shards + 1]
  const u64* base;             // [shards]
  const unsigned* first;       // [shards, cells + 1]
  const void* synapses;
  int* ring;  // [shards, steps, pitch]
  u64 seed;
  unsigned cells, shards, populations;
  unsigned pitch, steps;      // slots of the largest shard; a power of two above every delay
  unsigned slot_bits, wide;   // how a synapse is packed
};

// Four bytes: slot, then delay in the lower 16 bits, weight in the upper. Eight: slot in 32 bits, delay and weight in 16 each.
struct Synapse {
  unsigned slot, delay;
  int weight;
};
__device__ __forceinline__ Synapse unpack(const Net& net, unsigned s) {
  return {s & ((1u << net.slot_bits) - 1), (s & 0xFFFFu) >> net.slot_bits, (int)s >> 16};
}
__device__ __forceinline__ Synapse unpack(const Net&, u64 s) {
  return {(unsigned)s, (unsigned)(s >> 32) & 0xFFFFu, (int)((long long)s >> 48)};
}

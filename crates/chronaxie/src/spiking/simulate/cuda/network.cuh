// A network on a device: what mod.rs lays out as it is written here, and how synapses are read.
//
// The cells of every population are cut alike into shards, one a block; a network on several cards has `local` of them on each, side
// by side, and what is by shard holds those alone, but for parts, which say where any cell is. There a layout says which cells are
// whose: all that is by cell stands in its order, and where that is not the order of their numbers, `low` is a place. An input is a slot: one cell's port. A cell that sends is
// a row: shard * rows + its number in its shard. Shard k holds the synapses onto its own cells alone, in any order: what they
// add are whole numbers, whose sum does not depend on it. The first of each row lie at a fixed place, its segment, so that they
// come in one trip to memory; where more follow, the segment's last word says so, and they lie from base[k] + first[k][row] on.
#pragma once
#include "draws.cuh"

// The cells low .. low + count of a population, in one shard; or those at these places of its order.
struct Part {
  float* state;               // [variable, size], at the first cell
  const float* coefficients;  // [coefficient, stride], at the first cell; with stride 0 [coefficient], the same for all
  const unsigned* chances;    // [count] or, with chance_stride 0, one: 2^32 P(a source fires in a step)
  const u64* replay;          // [replays] rising step << 32 | cell of the population, or its place
  unsigned* arrivals;         // [2, drives, count] of the drives, by the parity of step / 4: a byte a step
  unsigned replays, model, count, low;
  unsigned local;                        // the shard's number of the first cell
  unsigned slot;                         // of the first cell's first port; a port's slots lie together, count apart
  unsigned size, stride, chance_stride;  // cells of the population
  unsigned owner;                        // names a source's draws
  unsigned drive, drives;                // which drives
  float unit[2];                         // the value of a weight of 1, by port
  unsigned near, near_arrivals;          // of kNear: where states [variable, count] and arrivals lie in the block's shared memory
  unsigned variables, replica;
};

constexpr unsigned kUnguided = ~0u, kGuideBits = 10, kGuideMany = 0x80;
struct Drive {
  const unsigned* thresholds;  // [count] 2^32 P(arrivals <= k)
  u64 start, stop;             // steps
  unsigned count, owner, port;
  int code;
  unsigned before, guide;      // thresholds of the drives before this one; of guides, of kTables, bytes before its own, or kUnguided
};

// Of narrow synapses (narrow.rs): which delays there are and which weight a number is.
struct Narrow {
  unsigned delays, shortest;  // how many there are, or 0: synapses are not so packed
  unsigned inverse;           // 2^32 / delays, rounded up
  unsigned negative, beyond;  // the numbers of the first negative weight and of the first that goes beyond a window
  int low, high;              // what is added to the numbers before each of them
  unsigned middle;            // the number of nothing beyond
  int scale;                  // what those numbers count in
  unsigned turns;             // 2^32 / steps of the ring, rounded down
};

struct Net {
  const Part* parts;           // [shards, populations]
  const Drive* drives;
  const uint2* tasks;          // part and first cell in it of what a warp advances
  const unsigned* first_task;  // [shards + 1]
  const u64* base;             // [local]
  const unsigned* first;       // [local, shards * rows + 1]
  void* segments;              // [local, shards * rows, segment] or [shards * rows, local, segment]
  void* rest;
  int* ring;           // [local, steps, pitch]
  unsigned* calendar;  // [local, steps, room] of Due
  unsigned* noted;     // [local, steps] how many of them there are, or kSpilt
  const int* weights;  // [codes] ascending
  union {
    u64 seed;          // of all draws of steps
    const u64* seeds;  // [replicas] of kSeeds: of networks side by side, which draw by their own
  };
  u64 by_shard;              // words from a shard's segments to the next shard's
  unsigned cells, shards, populations;  // cells: those that a card may log in a step
  unsigned rows;             // cells of the largest shard
  unsigned pitch, steps;     // slots of the largest shard; a power of two above every delay, of narrow synapses the longest and one
  unsigned slot_bits, wide;  // how a synapse is packed
  unsigned segment, lane_bits;  // words of a segment, two a lane of 2^lane_bits, or one; or 0: all synapses are in the rest
  unsigned room;                // entries of a step of the calendar
  unsigned id_bits, ids;        // how a header is packed
  unsigned begin, local;        // which shards are here
  unsigned near;                // of kNear: words of the states of the largest shard
  unsigned head;                // words before a row's synapses in its segment, where they change (rows.cuh); or 0
  unsigned near_arrivals;       // of kNear: words of the arrivals of the largest shard
  unsigned guides;              // of kTables: words of the guides of drives
  unsigned drive_count;         // of all populations
  unsigned thresholds;          // of all drives
  unsigned codes, code_shift;   // how many weights there are that synapses of four bytes name, or 0; bits below a weight or its code
  unsigned weights_at;          // where the block's shared memory has them, words
  unsigned spread, spread_at;   // of kSpread: rows that fired which the block's shared memory has room for, and where, words
  unsigned by_row;              // words from a row's segment to the next row's
  Narrow narrow;
};

// Where a row's segment lies, in words. Short ones of kSpread lie side by side by shards, since all of them ask for a spike's at about
// the same time, and memory is read in pieces that have several; others by rows.
__device__ __forceinline__ u64 segment_of(const Net& net, u64 shard, u64 row) { return shard * net.by_shard + row * net.by_row; }

// A step's place in the ring holds something: what its place in the calendar had no room for.
constexpr unsigned kSpilt = 1u << 31;

// Four bytes: slot, then delay in the lower 16 bits, weight in the upper; or, where 16 are too few and weights are few, slot and delay
// in as many as they take, and a weight's number above. Eight: slot in 32 bits, delay and weight in 16 each; of kLong the weight in the
// upper 32, below it the delay, and the slot in as many as it takes. No slot has all bits set. Zeros add nothing.
struct Synapse {
  unsigned slot, delay;
  int weight;
};

// What a calendar has of a synapse: slot in the lower half, weight in the upper; four bytes, of kLong eight.
template <bool kEight>
struct DueOf {
  typedef unsigned Word;
};
template <>
struct DueOf<true> {
  typedef u64 Word;
};
typedef DueOf<kLong>::Word Due;
__device__ __forceinline__ Due due(const Synapse& s) {
  if constexpr (kLong)
    return (u64)(unsigned)s.weight << 32 | s.slot;
  else
    return (unsigned)s.weight << 16 | s.slot;
}
__device__ __forceinline__ unsigned slot_of(Due word) { return kLong ? (unsigned)word : (unsigned)word & 0xFFFFu; }
__device__ __forceinline__ int weight_of(unsigned word) { return (int)word >> 16; }
__device__ __forceinline__ int weight_of(u64 word) { return (int)(word >> 32); }
template <bool kCodes>
__device__ __forceinline__ Synapse unpack(const Net& net, unsigned s, const int* weights) {
  if (!kCodes || net.codes == 0) return {s & ((1u << net.slot_bits) - 1), (s & 0xFFFFu) >> net.slot_bits, (int)s >> 16};
  // Nothing is all zeros, the mark has no code, and number 0 is of no synapse.
  const unsigned code = s >> net.code_shift;
  return {s & ((1u << net.slot_bits) - 1), (s & ((1u << net.code_shift) - 1)) >> net.slot_bits, code == 0 ? 0 : weights[code - 1]};
}
template <bool kCodes>
__device__ __forceinline__ Synapse unpack(const Net& net, u64 s, const int*) {
  if constexpr (kLong) {
    const unsigned low = (unsigned)s;
    return {low & ((1u << net.slot_bits) - 1), low >> net.slot_bits, low == ~0u ? 0 : (int)(s >> 32)};
  } else {
    return {(unsigned)s, (unsigned)(s >> 32) & 0xFFFFu, (unsigned)s == ~0u ? 0 : (int)((long long)s >> 48)};
  }
}
__device__ __forceinline__ void pack(const Net& net, unsigned slot, unsigned delay, int weight, unsigned& s) {
  unsigned high = (unsigned)weight;
  if (net.codes > 0) {
    // 1 + how many weights are smaller; a synapse of weight 0 adds nothing and is all zeros but for its slot and delay.
    unsigned count = net.codes, low = 0;
    while (count > 0) {
      const unsigned half = count / 2;
      const bool right = net.weights[low + half] < weight;
      low = right ? low + half + 1 : low;
      count = right ? count - half - 1 : half;
    }
    high = weight == 0 ? 0 : low + 1;
  }
  s = high << net.code_shift | delay << net.slot_bits | slot;
}
__device__ __forceinline__ void pack(const Net& net, unsigned slot, unsigned delay, int weight, u64& s) {
  if constexpr (kLong)
    s = (u64)(unsigned)weight << 32 | (delay << net.slot_bits | slot);
  else
    s = (u64)(unsigned short)weight << 48 | (u64)delay << 32 | slot;
}
// Narrow ones, four bytes: slot, above it number * delays + delay - shortest; nothing is number 0. A weight beyond its window has
// two words.
__device__ __forceinline__ Synapse unpack_narrow(const Net& net, unsigned s) {
  const Narrow& n = net.narrow;
  // Exact, as narrow.rs sees to.
  const unsigned above = s >> net.slot_bits, number = __umulhi(above, n.inverse);
  int weight = (int)number + (number < n.negative ? n.low : n.high);
  if (number >= n.beyond) weight = (int)(number - n.middle) * n.scale;
  return {s & ((1u << net.slot_bits) - 1), above - number * n.delays + n.shortest, number == 0 ? 0 : weight};
}
// Whether a weight has two words.
__device__ __forceinline__ bool is_beyond(const Narrow& n, int weight) {
  const int number = weight - (weight > 0 ? n.low : n.high);
  return weight != 0 && (number < (weight > 0 ? 1 : (int)n.negative) || number >= (int)(weight > 0 ? n.negative : n.beyond));
}
// A weight's number, and that of what is left of it beyond its window, or 0.
__device__ __forceinline__ unsigned number_of(const Narrow& n, int weight, unsigned& left) {
  left = 0;
  if (weight == 0) return 0;
  const int from = weight > 0 ? 1 : (int)n.negative, to = weight > 0 ? (int)n.negative : (int)n.beyond;
  const int number = weight - (weight > 0 ? n.low : n.high);
  const int below = (from - number + n.scale - 1) / n.scale, above = (number - to + n.scale) / n.scale;
  if (number < from) {
    left = n.middle - (unsigned)below;
    return (unsigned)(number + below * n.scale);
  }
  if (number >= to) {
    left = n.middle + (unsigned)above;
    return (unsigned)(number - above * n.scale);
  }
  return (unsigned)number;
}
// The last word of a narrow segment that is not all of its row: a slot that there is not, and how many synapses follow, or, if that
// has too many bits, all ones, and their number lies before them. The word before it says where, from the shard's base on.
__device__ __forceinline__ unsigned most_following(const Net& net) { return (1u << (32 - net.slot_bits)) - 1; }
__device__ __forceinline__ bool is_narrow_marker(const Net& net, unsigned s) {
  return ((s + 1) & ((1u << net.slot_bits) - 1)) == 0;
}

// The last word of a segment that is not all of its row, whose rest is `count` synapses from `begin` on: a slot that there is not, and
// no weight, or, of eight bytes, where the rest lies, if that can be said; synapses that change have their own.
constexpr unsigned kRestBits = 8, kUnsaid = ~0u;
__device__ __forceinline__ void mark(const Net& net, unsigned, unsigned, unsigned& s) { s = (1u << net.slot_bits) - 1; }
__device__ __forceinline__ void mark(const Net& net, unsigned begin, unsigned count, u64& s) {
  const bool can = begin >> (32 - kRestBits) == 0 && count < (1u << kRestBits) - 1;
  s = net.head > 0 ? (1u << net.slot_bits) - 1 : (u64)(can ? begin << kRestBits | count : kUnsaid) << 32 | 0xFFFFFFFFu;
}
__device__ __forceinline__ bool is_marker(const Net& net, unsigned s) { return s == (1u << net.slot_bits) - 1; }
__device__ __forceinline__ bool is_marker(const Net&, u64 s) { return (unsigned)s == ~0u; }

// How many words a row has that are not in its segment.
__device__ __forceinline__ unsigned beyond(const Net& net, unsigned length) {
  const unsigned room = net.segment - net.head;
  if (net.narrow.delays > 0) {
    const unsigned more = length > room ? length - (room - 2) : 0;
    return more + (more >= most_following(net));
  }
  return room == 0 ? length : length > room ? length - (room - 1) : 0;
}

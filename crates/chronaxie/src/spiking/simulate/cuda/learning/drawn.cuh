// Synapses that are not kept: whenever a cell fires, its row is drawn again, by the draws that would have stored it.
//
//   k of a row   fixed_outdegree: draw source * degree + k of the pairs is {target, -, weight, delay}
//                all_to_all, one_to_one: target k, or the source's own number; the draw of that pair is {weight, delay}
//
// Who computes what: a warp takes 32 synapses of a row, one a lane, as of rows that are kept (steps.cu). Nothing is read but the
// tables of weights and delays, which the first cache holds; sums are whole numbers, so that neither order nor blocks show.
// On several cards each draws every row and keeps what goes to its own cells.
//
// A synapse, two numbers first:
//   bytes         0 of rows (4 or 8 where they are kept); a sector of 32 bytes of the ring read and written
//   instructions  10 rounds of Philox of 6 (60), two searches of 8 a halving: 13 halvings of a weight's 8000 numbers and 6 of a
//                 delay's 64 (152; none of a constant), 20 beside: 230 for a lane, 7.2 for a warp
// Ten million cells with a thousand synapses each at 5 Hz, dt 0.1 ms (5000 spikes, 5 M synapses a step), reckoned for an H100:
//   bytes         5 M x 64 = 320 MB of the ring, which no cache holds: 95 us at 3.35 TB/s (kept, in 8 bytes: 12 us more)
//   instructions  5 M x 230 / 32 = 36 M of warps over 132 x 4 a clock: 68,000 clocks, 38 us at 1.8 GHz
// Measured on an H100 80GB HBM3 (bench-results/2026-11-26-h100/network-procedural-*.json), us a step and synapses of a step:
//   a million cells with a thousand synapses, dt 0.1 ms: 102 and 562,000; dt 1 ms: 540 and 5.14 M; ten million with five thousand, dt 0.1 ms:
//   1369 and 13.8 M. That is 49 us and 95 ps a synapse: 400 ns of a multiprocessor for a warp's 32, some 790 clocks, where instructions
//   alone are 58, and the ring's bytes 19 ps of the 95. What remains, not profiled, is of the searches' size: up to 20 loads, one after the
//   other, each of 32 lines of the first cache, are 640 clocks. Not tried: the guide by upper bits that the CPU has (Codes), two or three
//   loads in place of 13; tables in shared memory.
#pragma once
#include "codes.cuh"

enum DrawnRule { kAllToAll, kOneToOne, kOutDegree };

struct Drawn {
  Codes weight, delay;
  u64 seed;
  const unsigned* own;         // a bit a cell of the network: whether it is this card's; null where all are
  unsigned rule, owner;
  unsigned degree;             // draws of a row
  unsigned source, n_source;   // the network's number of the first source, and how many there are
  unsigned target, n_target;
  unsigned no_self;
  unsigned port, unused;       // of negative weights
};

struct Synapse {
  unsigned slot, delay;
  int weight;
};

// How many draws the row of a cell of the network has.
__device__ __forceinline__ unsigned draws_of(const Drawn& d, unsigned cell) { return cell - d.source < d.n_source ? d.degree : 0; }

// Synapse `k` of the row of source number `source`, onto port * cells + cell; false where there is none, or it is another card's.
__device__ __forceinline__ bool drawn(const Drawn& d, unsigned source, unsigned k, unsigned cells, Synapse& s) {
  const bool by_source = d.rule == kOutDegree;
  unsigned target = d.rule == kAllToAll ? k : source;
  const u64 number = by_source ? (u64)source * d.degree + k : d.rule == kAllToAll ? (u64)target * d.n_source + source : source;
  const Words w = draw(d.seed, by_source ? kPair : kEfficacy, d.owner, number);
  if (by_source) {
    target = below(w.w[0], d.n_target - d.no_self);
    target += d.no_self && target >= source;
  } else if (d.rule == kAllToAll && d.no_self && target == source) {
    return false;
  }
  const unsigned cell = d.target + target;
  if (d.own != nullptr && !(__ldg(d.own + cell / 32) >> cell % 32 & 1)) return false;
  s.weight = pick_weight(d.weight, by_source ? w.w[2] : w.w[0]);
  s.delay = (unsigned)pick(d.delay, by_source ? w.w[3] : w.w[1]);
  s.slot = cell + (s.weight < 0 ? d.port : 0) * cells;
  return true;
}

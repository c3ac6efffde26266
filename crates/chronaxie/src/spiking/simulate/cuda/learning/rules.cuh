// What synapses that change do, in whole numbers: the twin of plasticity/fixed.rs, which says what the numbers mean.
#pragma once
#include "draws.cuh"

struct Trace {
  const unsigned* decay;
  unsigned length, bits, nearest;
  unsigned of;  // the trace of which a spike adds the value just before it, instead of 1; or kNone
};

struct Short {
  const unsigned* rec;
  const unsigned* fac;
  unsigned recs, facs, u, unused;
};

struct Rule {
  unsigned plus, minus, low, high;
  int sign;
  unsigned x, y, port;
  unsigned kind;        // 1: stdp, 2: growth goes with what is left, 4: loss likewise
  unsigned short_rule;  // its index, or kNone
};

constexpr unsigned kNone = 0xFFFFFFFFu, kOne = 1u << 31;

__device__ __forceinline__ unsigned decayed(const unsigned* table, unsigned length, unsigned value, unsigned steps) {
  const unsigned share = steps < length ? table[steps] : 0;
  return (unsigned)(((u64)value * share + (1ull << 31)) >> 32);
}
__device__ __forceinline__ unsigned share(unsigned a, unsigned b) { return (unsigned)(((u64)a * b + (1ull << 30)) >> 31); }

// The trace so many steps after a spike just before which it was `before`.
__device__ __forceinline__ unsigned later(const Trace& t, unsigned before, unsigned steps) {
  const unsigned one = 1u << t.bits, sum = before + one;
  return decayed(t.decay, t.length, t.nearest ? one : (sum < before ? 0xFFFFFFFFu : sum), steps);
}

// u and x at a spike, from those at the spike so many steps before.
__device__ __forceinline__ void next_short(const Short& s, unsigned past, unsigned& u, unsigned& x) {
  const unsigned left = kOne - share(x, kOne - u);
  u = s.u + share(kOne - s.u, decayed(s.fac, s.facs, u, past));
  x = kOne - decayed(s.rec, s.recs, left, past);
}

// The share of the range that a trace moves a weight by.
__device__ __forceinline__ u64 moved(unsigned amplitude, unsigned trace, unsigned bits) {
  const u64 x = ((u64)amplitude * trace + (1ull << (bits - 1))) >> bits;
  return x < kOne ? x : kOne;
}
__device__ __forceinline__ unsigned grown(const Rule& r, unsigned strength, unsigned x, unsigned bits) {
  const unsigned room = r.high - (r.kind & 2 ? strength : r.low);
  const unsigned to = strength + (unsigned)((moved(r.plus, x, bits) * room + (1ull << 30)) >> 31);
  return to < r.high ? to : r.high;
}
__device__ __forceinline__ unsigned shrunk(const Rule& r, unsigned strength, unsigned y, unsigned bits) {
  const unsigned room = (r.kind & 4 ? strength : r.high) - r.low, most = strength - r.low;
  const unsigned step = (unsigned)((moved(r.minus, y, bits) * room + (1ull << 30)) >> 31);
  return strength - (step < most ? step : most);
}

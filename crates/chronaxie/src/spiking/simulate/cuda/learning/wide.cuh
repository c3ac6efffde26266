// What rules beyond pairs of spikes do, in whole numbers: the twin of plasticity/rules.rs, which says what the numbers mean.
#pragma once
#include "rules.cuh"

enum What { kTiming, kHebb, kBcm, kModulated };

// What a rule is beside `Rule`.
struct Kind {
  unsigned what;
  unsigned pre, post;           // of kHebb: what each spike costs
  unsigned scaling, modulator;  // indices, or kNone
  unsigned z;                   // of kBcm: the trace of squares
  unsigned axonal;              // whether the delay lies before the synapse
  unsigned together;            // whether spikes of the same step count
  u64 rate, square;             // of kBcm
  u64 decay;                    // what a step takes from the strength, times 2^32
  unsigned plus, minus;         // of `together`: growth where both fire, loss where the one before the synapse does alone
};

struct Scaling {
  u64 spike;
  unsigned window, silent;
};

struct Modulator {
  const unsigned* decays[3];  // of the level, of an eligibility, of their product
  u64 baseline;
  unsigned lengths[3];
  unsigned population, delay, gain;
};

// What changes of a synapse.
struct Changed {
  unsigned strength;
  int eligible;
};

constexpr unsigned kLevelBits = 20, kEligibleBits = 24, kSquareBits = 16;
constexpr long long kMostEligible = (1 << 29) - 1;

__device__ __forceinline__ long long within(long long x, long long low, long long high) {
  return x < low ? low : (x > high ? high : x);
}

// The strength less a share of what `shrunk` would take by a trace of 1.
__device__ __forceinline__ unsigned less(const Rule& r, unsigned strength, unsigned part) {
  const unsigned room = (r.kind & 4 ? strength : r.high) - r.low, most = strength - r.low;
  const unsigned step = (unsigned)(((u64)part * room + (1ull << 30)) >> 31);
  return strength - (step < most ? step : most);
}

// The cell before the synapse has fired in a step, and the cell after it too or not.
__device__ __forceinline__ unsigned coincided(const Rule& r, const Kind& k, unsigned strength, bool both) {
  const unsigned step = (unsigned)(((u64)(both ? k.plus : k.minus) * (r.high - r.low) + (1ull << 30)) >> 31);
  const unsigned to = strength + step, most = strength - r.low;
  return both ? (to < r.high ? to : r.high) : strength - (step < most ? step : most);
}

// What decay has taken by a step, and the strength once that of the steps after `from`, up to `to`, is gone.
__device__ __forceinline__ u64 gone_by(const Kind& k, long long step) {
  return __umul64hi(k.decay, (u64)step) << 32 | (k.decay * (u64)step) >> 32;
}
__device__ __forceinline__ unsigned weakened(const Rule& r, const Kind& k, unsigned strength, long long from, long long to) {
  if (k.decay == 0 || to <= from) return strength;
  const u64 gone = gone_by(k, to) - gone_by(k, from), most = strength - r.low;
  return strength - (unsigned)(gone < most ? gone : most);
}

// The factor of a window with so many spikes, times 2^30.
__device__ __forceinline__ unsigned factor(const Scaling& s, unsigned spikes) {
  const u64 high = __umul64hi(spikes, s.spike), low = spikes * s.spike;
  const u64 whole = high << 48 | low >> 16;
  const unsigned taken = high >> 16 != 0 || whole > 0xFFFFFFFFu ? 0xFFFFFFFFu : (unsigned)whole;
  return s.silent > taken ? s.silent - taken : 0;
}
__device__ __forceinline__ unsigned scaled(const Rule& r, unsigned strength, unsigned by) {
  const u64 to = ((u64)strength * by + (1ull << 29)) >> 30;
  return to < r.low ? r.low : (to > r.high ? r.high : (unsigned)to);
}

// `a r (r - theta)` as a share of kOne, from the traces y, of `2^bits`, and z.
__device__ __forceinline__ long long bcm_share(const Kind& k, unsigned amplitude, unsigned y, unsigned bits, unsigned z) {
  const u64 rate = ((u64)y * k.rate + (1ull << (bits - 1))) >> bits;
  const u64 level = ((u64)z * k.square + (1ull << (kSquareBits + 7))) >> (kSquareBits + 8);
  const long long r = rate < (1 << 24) - 1 ? rate : (1 << 24) - 1, theta = level < 1 << 28 ? level : 1 << 28;
  const long long product = within((r * (r - theta)) >> 8, -(1ll << 31), 1ll << 31);
  return within(((long long)amplitude * product + (1 << 23)) >> 24, -(long long)kOne, kOne);
}

// The level of a modulator so many steps later, at least 1, and after `spikes` more.
__device__ __forceinline__ unsigned level_later(const Modulator& m, unsigned after, unsigned steps) {
  return decayed(m.decays[0], m.lengths[0], after, steps);
}
__device__ __forceinline__ unsigned level_after(unsigned before, unsigned spikes) {
  const u64 sum = before + ((u64)spikes << kLevelBits);
  return sum < 0xFFFFFFFFu ? (unsigned)sum : 0xFFFFFFFFu;
}

// An eligibility and a share of kOne.
__device__ __forceinline__ int eligible_after(int eligible, long long share) {
  constexpr unsigned kLess = 31 - kEligibleBits;
  return (int)within(eligible + ((share + (1 << (kLess - 1))) >> kLess), -kMostEligible, kMostEligible);
}

// Strength and eligibility from one event to the next, `level` the modulator's at the first of them.
__device__ __forceinline__ Changed moved_on(const Modulator& m, const Rule& r, Changed now, unsigned level, unsigned steps) {
  if (now.eligible == 0 || steps == 0) return now;
  const unsigned kept = steps < m.lengths[1] ? m.decays[1][steps] : 0;
  const u64 gone = (1ull << 32) - kept;
  const u64 gone_both = (1ull << 32) - (steps < m.lengths[2] ? m.decays[2][steps] : 0);
  const u64 up = ((((u64)level * m.gain) >> 31) * gone_both) >> 32, down = (m.baseline * gone) >> 32;
  const long long net = within((long long)up - (long long)down, -(1ll << 33), 1ll << 33);
  const long long share =
      within((now.eligible * net + (1 << (kLevelBits - 1))) >> kLevelBits, -(2ll << kEligibleBits), 2ll << kEligibleBits);
  const long long step = (share * (long long)(r.high - r.low) + (1 << (kEligibleBits - 1))) >> kEligibleBits;
  now.strength = (unsigned)within(now.strength + step, r.low, r.high);
  now.eligible = (int)(((long long)now.eligible * kept + (1ll << 31)) >> 32);
  return now;
}

// Trace `k` so many steps after the spike just before which all were `values`.
__device__ __forceinline__ unsigned trace_after(const Trace* traces, unsigned k, const unsigned* values, unsigned steps) {
  const Trace& t = traces[k];
  const unsigned before = __ldcg(values + k);
  if (t.of == kNone) return later(t, before, steps);
  // A spike adds another trace, just before it, instead of 1.
  const unsigned value = __ldcg(values + t.of), bits = traces[t.of].bits;
  const u64 same = bits > t.bits ? ((u64)value + (1ull << (bits - t.bits - 1))) >> (bits - t.bits) : (u64)value << (t.bits - bits);
  const u64 sum = before + same;
  return decayed(t.decay, t.length, sum < 0xFFFFFFFFu ? (unsigned)sum : 0xFFFFFFFFu, steps);
}

// A spike of the cell before the synapse was passed on; `values` are the traces just before the other's last spike, `steps` ago,
// or nothing.
__device__ __forceinline__ Changed after_pre(const Rule& r, const Kind& k, const Trace* traces, Changed now,
                                             const unsigned* values, unsigned steps) {
  const unsigned y = values != nullptr ? trace_after(traces, r.y, values, steps) : 0, bits = traces[r.y].bits;
  if (k.what == kTiming) {
    now.strength = shrunk(r, now.strength, y, bits);
  } else if (k.what == kHebb) {
    now.strength = less(r, grown(r, now.strength, y, bits), k.pre);
  } else if (k.what == kBcm) {
    const unsigned z = values != nullptr ? trace_after(traces, k.z, values, steps) : 0;
    const long long step = (bcm_share(k, r.plus, y, bits, z) * (long long)(r.high - r.low) + (1ll << 30)) >> 31;
    now.strength = (unsigned)within(now.strength + step, r.low, r.high);
  } else {
    now.eligible = eligible_after(now.eligible, -(long long)moved(r.minus, y, bits));
  }
  return now;
}

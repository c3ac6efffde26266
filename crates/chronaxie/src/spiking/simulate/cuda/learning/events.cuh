// What happens to a synapse between two spikes that pass it, where more happens than the timing of pairs: the twin of
// `Learner::walk` in ../../learner.rs.
//
// Lists by time, which a synapse goes through when a spike passes it: the entries of the cell behind it, the factors of windows
// of that cell ([scaling, windows, cells], a window's by its number modulo `windows`), and the jumps of its modulator
// ([modulator, depth] of {when, level after}). Each list has one writer: a cell's thread, and for jumps block 0, in the phase in
// which cells advance; they are read in the other. Spikes of a modulator in the step before are counted, whole numbers, by
// atomics, and become a jump in the next.
//
// A synapse takes 8 bytes of memory and, under a modulator, 4 more of eligibility. Nothing else of a synapse is kept: when
// something last happened to it follows from the lists.
//
// Instructions a synapse, by reading: 60 to find where its lists begin, 35 a spike behind it, 20 a window, 90 a jump; bytes 8 read
// and 4 written, and 4 and 4 of eligibility. What is not eligible skips jumps by halves.
// Spikes of the same step are met when the next one passes: the step of the last one is looked for among the target's entries, by
// halves. Decay takes 15 instructions an event, since what is gone by a step follows from its number.
#pragma once
#include "learn.cuh"
#include "wide.cuh"

// Of a modulator in `jumps`: its spikes in even and odd steps, jumps ever, the first that is kept.
enum Jumps { kFresh, kTotal = 2, kKept };

// Where the synapses of each delay begin in rows that change, of delays before them.
struct Axons {
  const u64* first;   // [cells + 1] a row's in `groups`
  const u64* groups;  // rising delay << 48 | number of the first synapse
};

struct Wide {
  const Kind* kinds;  // of each rule
  const Scaling* scalings;
  const Modulator* modulators;
  int* const* eligible;  // [row_count] of rows that change, where there is a modulator
  const Axons* axons;    // [row_count - changing]
  unsigned* spikes;      // [scalings, cells] in this window
  unsigned* factors;
  uint2* levels;
  unsigned* jumps;  // [modulators, 4]
  unsigned scaling_count, modulator_count;
  unsigned windows, depth;  // powers of two
  unsigned changing;        // the first rows that change
  unsigned dendritic;       // whether some delay lies behind a synapse that changes
  unsigned parts;           // warps for what an axon reaches in a step of some rows; 0 where no delay lies before a synapse
  unsigned farthest;        // the longest of these delays
};

// Something that happens to a synapse, or a look at it.
struct Event {
  const unsigned* before;   // the entry of the spike that passed before; or nothing
  long long ahead, back;    // how much later than their steps spikes before and after the synapse are there
  long long end, upto;      // spikes of the cell behind before this step of its own; windows and jumps up to this time
  bool passes;
};

// The index of the first jump from `from` on that is not before `when`.
__device__ __forceinline__ unsigned first_jump(const Wide& wide, unsigned k, unsigned from, unsigned total, long long when) {
  while (from < total) {
    const unsigned half = from + (total - from) / 2;
    if ((long long)__ldcg(&wide.levels[(u64)k * wide.depth + (half & (wide.depth - 1))].x) >= when)
      total = half;
    else
      from = half + 1;
  }
  return from;
}

// The jumps of a modulator as a synapse meets them.
struct Levels {
  const Wide& wide;
  const Modulator& m;
  unsigned k, total;
  uint2 coming;  // the jump after `total`, by spikes of the step before that are yet counted

  __device__ __forceinline__ uint2 at(unsigned i) const {
    if (i == total) return coming;
    const uint2* p = &wide.levels[(u64)k * wide.depth + (i & (wide.depth - 1))];
    return make_uint2(__ldcg(&p->x), __ldcg(&p->y));
  }
  __device__ __forceinline__ unsigned from(uint2 jump, long long now) const {
    const unsigned steps = (unsigned)(now - jump.x);
    return steps == 0 ? jump.y : level_later(m, jump.y, steps);
  }
};

// The trace of the cell before the synapse that a spike behind it meets, `steps` after the one that passed.
__device__ __forceinline__ unsigned met(const Trace& trace, unsigned before, long long steps) {
  // The spike of the same time counts nothing, but those before it do.
  return steps == 0 ? before : later(trace, before, steps < 0xFFFFFFFFll ? (unsigned)steps : 0xFFFFFFFFu);
}

// Under a modulator: strength and eligibility are rounded at events alone, so each has its turn.
__device__ __forceinline__ Changed under_modulator(const Net& net, const Wide& wide, const Rule& rule, unsigned k, Changed now,
                                                unsigned target, const Event& event, long long last, unsigned from, unsigned until) {
  const Modulator& m = wide.modulators[k];
  const unsigned* own = wide.jumps + 4 * k;
  const unsigned total = __ldcg(own + kTotal), kept = __ldcg(own + kKept);
  Levels levels = {wide, m, k, total, make_uint2(0, 0)};
  const long long grown = net.grown;
  unsigned j = first_jump(wide, k, kept, total, last + 1 > grown ? last + 1 : grown);
  long long time = last;
  unsigned level = 0;
  uint2 jump = make_uint2(0, 0);
  bool jumped = j > kept;
  if (jumped) {
    jump = levels.at(j - 1);
    if (jump.x > time) time = jump.x;
  }
  if (from > net.kept[target]) {
    const long long when = (long long)__ldcg(entry(net, target, from - 1)) + event.back;
    if (when < grown && when > time) time = when;
  }
  if (jumped) level = levels.from(jump, time);
  unsigned all = total;
  // An axon's spike may meet what spikes of the last step do.
  if (event.passes && event.ahead > 0 && m.delay == 1) {
    const unsigned fresh = __ldcg(own + kFresh + ((unsigned)(event.upto - 1) & 1));
    if (fresh > 0) {
      const uint2 past = total > kept ? levels.at(total - 1) : make_uint2(0, 0);
      const unsigned before = total > kept ? level_later(m, past.y, (unsigned)event.upto - past.x) : 0;
      levels.coming = make_uint2((unsigned)event.upto, level_after(before, fresh));
      ++all;
    }
  }
  const Trace& trace = net.traces[rule.x];
  const unsigned before = event.before != nullptr ? __ldcg(event.before + 1 + rule.x) : 0;
  long long next_jump = j < all ? levels.at(j).x : event.upto + 1;
  long long next_post = from < until ? (long long)__ldcg(entry(net, target, from)) + event.back : event.upto + 1;
#pragma unroll 1
  for (;;) {
    const bool is_jump = next_jump <= event.upto && next_jump <= next_post;
    // Nothing happens to what is not eligible until it is.
    if (now.eligible == 0 && is_jump) {
      if (from == until) break;
      const unsigned past = first_jump(wide, k, j, total, next_post + 1);
      // What is coming is later than any spike behind.
      j = past > j ? past : j + 1;
      jump = levels.at(j - 1), jumped = true, time = jump.x, level = jump.y;
      next_jump = j < all ? levels.at(j).x : event.upto + 1;
      continue;
    }
    if (is_jump) {
      now = moved_on(m, rule, now, level, (unsigned)(next_jump - time));
      jump = levels.at(j), jumped = true, time = jump.x, level = jump.y;
      ++j;
      next_jump = j < all ? levels.at(j).x : event.upto + 1;
      continue;
    }
    if (from == until) break;
    now = moved_on(m, rule, now, level, (unsigned)(next_post - time));
    if (event.before != nullptr) {
      const long long steps = next_post - last;
      if (now.eligible == 0 && steps >= trace.length) break;
      now.eligible = eligible_after(now.eligible, (long long)moved(rule.plus, met(trace, before, steps), trace.bits));
    } else if (now.eligible == 0) {
      break;
    }
    time = next_post;
    level = jumped ? levels.from(jump, time) : 0;
    ++from;
    next_post = from < until ? (long long)__ldcg(entry(net, target, from)) + event.back : event.upto + 1;
  }
  // A spike that passes is an event, a look is none.
  return event.passes ? moved_on(m, rule, now, level, (unsigned)(event.upto - time)) : now;
}

// What has happened to a synapse by an event; `until` becomes how many entries of the target lie before its end.
__device__ __forceinline__ Changed gone_through(const Net& net, const Wide& wide, const Rule& rule, const Kind& kind, Changed now,
                                                unsigned target, const Event& event, unsigned& until) {
  until = __ldcg(net.counts + target);
  while (until > 0 && (long long)__ldcg(entry(net, target, until - 1)) >= event.end) --until;
  const bool known = event.before != nullptr;
  const long long last = known ? (long long)__ldcg(event.before) + event.ahead : -1, grown_to = net.grown;
  const long long begin = (last > grown_to ? last : grown_to) - event.back;
  unsigned from = first_since(net, target, net.kept[target], until, begin);
  if (kind.what == kModulated) return under_modulator(net, wide, rule, kind.modulator, now, target, event, last, from, until);
  // Windows w .. w_end end in between.
  unsigned w = 1, w_end = 0, window = 1;
  const unsigned* factors = nullptr;
  if (kind.scaling != kNone) {
    window = wide.scalings[kind.scaling].window;
    const unsigned first = (unsigned)(last + 1 > grown_to ? last + 1 : grown_to);
    w = first / window + (first % window > 0 ? 1 : 0);
    w = w > 0 ? w : 1;
    w_end = event.upto > 0 ? (unsigned)event.upto / window : 0;
    factors = wide.factors + (u64)kind.scaling * wide.windows * net.cells + target;
  }
  // Spikes of the cell behind that do nothing.
  if (kind.what == kBcm || (kind.what == kTiming && (!known || rule.plus == 0))) from = until;
  if (kind.together != 0 && known && last >= grown_to) {
    // What fired in the step of the last spike has been known since then.
    const unsigned all = __ldcg(net.counts + target), at = first_since(net, target, net.kept[target], all, last);
    now.strength = coincided(rule, kind, now.strength, at < all && (long long)__ldcg(entry(net, target, at)) == last);
  }
  long long time = last > grown_to - 1 ? last : grown_to - 1;
  time = time > 0 ? time : 0;
  if (w > w_end && from == until) {
    now.strength = weakened(rule, kind, now.strength, time, event.upto);
    return now;
  }
  const Trace& trace = net.traces[rule.x];
  const unsigned before = known ? __ldcg(event.before + 1 + rule.x) : 0;
  long long next = from < until ? (long long)__ldcg(entry(net, target, from)) + event.back : 0;
#pragma unroll 1
  for (;;) {
    if (w <= w_end && (from == until || (long long)((u64)w * window) <= next)) {
      const long long ends = (long long)((u64)w * window);
      now.strength = weakened(rule, kind, now.strength, time, ends);
      time = ends > time ? ends : time;
      now.strength = scaled(rule, now.strength, __ldcg(factors + (u64)(w & (wide.windows - 1)) * net.cells));
      ++w;
      continue;
    }
    if (from == until) break;
    const long long steps = next - last;
    if (kind.what == kTiming && w > w_end && steps >= trace.length) break;
    now.strength = weakened(rule, kind, now.strength, time, next);
    time = next > time ? next : time;
    now.strength = grown(rule, now.strength, known ? met(trace, before, steps) : 0, trace.bits);
    if (kind.what == kHebb) now.strength = less(rule, now.strength, kind.post);
    ++from;
    next = from < until ? (long long)__ldcg(entry(net, target, from)) + event.back : 0;
  }
  now.strength = weakened(rule, kind, now.strength, time, event.upto);
  return now;
}

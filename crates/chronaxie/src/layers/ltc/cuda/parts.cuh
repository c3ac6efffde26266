// Which groups of batch rows a cluster walks, and when, if it has several slots for groups side by side.
//
// Where there are more groups of rows than the device holds side by side, their steps, one group after the other, are cut
// into as many equal parts as there are slots for groups; a group that is cut has its first steps at the beginning of the
// later slot and the others at the end of the earlier one, which takes the states from global memory (McNaughton's rule).
// Each slot then has the same work: 64 groups in 60 slots take 16/15 of one group's time, not twice that.
#pragma once
#include "ltc.cuh"

// What a slot does next: steps of a group of rows, and how many are left of this part and of the slot after it. Steps
// count in the order in which they are done.
struct alignas(16) Part {
  int group, step, left, rest;
};

// The first part of slot q of a cluster. Slots share all steps of all groups equally; with a slot for each group, they take
// turns in clusters. A slot waits for the next one only, which must not be in a block that starts later.
__device__ __forceinline__ Part first_part(int q, int groups, int cluster, int clusters, int all_groups, int steps) {
  const bool cut = all_groups > clusters * groups;
  const i64 work = (i64)all_groups * steps;
  const int share = cut ? (int)((work + clusters * groups - 1) / (clusters * groups)) : steps;
  const i64 at = (i64)(cut ? (clusters - 1 - cluster) * groups + q : q * clusters + cluster) * share;
  if (at >= work) return {0, 0, 0, 0};
  const i64 group = at / steps, begin = group * steps;
  const int offset = (int)(at - begin);
  // What an earlier slot has of the group are its last steps.
  const i64 earlier = offset ? offset : (begin / share + 1) * share - begin;
  Part p = {(int)group, 0, steps, (int)(work - at < share ? work - at : share)};
  if (offset)
    p.left = steps - offset;
  else if (earlier < steps)
    p.step = steps - (int)earlier, p.left = (int)earlier;
  p.rest -= p.left;
  return p;
}
// The part after p: the next group, or its last steps, if a later slot has the first ones.
__device__ __forceinline__ Part next_part(Part p, int steps) {
  p.group++;
  p.left = min(steps, p.rest), p.step = steps - p.left;
  p.rest -= p.left;
  return p;
}

// A state that another cluster makes is there once it is not this.
constexpr unsigned kAwaited = 0xffffffffu;

// The state at `from`, made by another cluster.
__device__ __forceinline__ float await_state(const unsigned* from) {
  const volatile unsigned* at = from;
  unsigned x = *at;
  while (x == kAwaited) {
#if __CUDA_ARCH__ >= 700
    __nanosleep(32);
#endif
    x = *at;
  }
  return __uint_as_float(x);
}

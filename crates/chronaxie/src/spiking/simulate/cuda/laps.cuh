// Clocks between the parts of a step, of kernels that are compiled with them: the others have none of this.
//
// Of the first warp of each block, which tells what fired and takes a row where only one fires, and of the fourth of every four; of these the
// last one has cells where the block has some, as tasks are shared out. Lanes come together at each lap, so that a part lasts as long as its
// slowest lane.
// Clocks are 32 bits, and what parts took goes to the launch's sums every 32 steps, so that a part may last 2^27 clocks of a step, 70 ms.
#pragma once
#include "draws.cuh"

// The parts of a step of steps.cu, as parts.rs names them: waiting for headers; delivery or, of kLearns, the list of rows that fired; waiting for
// the block; cells; waiting for the block; telling and logging; drawing; the calendar; and of kLearns the trip of a row, what its synapses do,
// and waiting for the block.
enum Lap { kHeaders, kDelivery, kDelivered, kUpdate, kUpdated, kTold, kDrives, kGathered, kRow, kLearning, kLearned, kLaps };
// Likewise of learning/steps.cu: cells; waiting for the block, and for the others; what other cards tell; the list of rows that fired; rows that do
// not change, that do, that are drawn; what comes out of axons; waiting for the block, and for the others.
enum GridLap {
  kAdvance, kAdvanced, kMet, kExchange, kList, kFixed, kChanging, kRedrawn, kAxons, kPassed, kMetAgain, kGridLaps
};

__device__ __forceinline__ u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Of a block of so many threads.
template <bool kOn, int kParts, int kOfBlock>
struct Laps {
  static constexpr int kEvery = 4, kTaken = 1 + kOfBlock / 32 / kEvery;
  static constexpr unsigned kKept = 32;
  unsigned sums[kTaken][kParts];
  unsigned last[kTaken];
  u64 since;

  // Asked for each time, since no register is left for what follows from it.
  static __device__ __forceinline__ unsigned thread() {
    unsigned x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
  }
  static __device__ __forceinline__ bool takes(unsigned x) { return x == 0 || x % (32 * kEvery) == 32 * (kEvery - 1); }
  static __device__ __forceinline__ unsigned place(unsigned x) { return (x / 32 + 1) / kEvery; }

  // All threads, at the beginning.
  __device__ __forceinline__ void clear() {
    const unsigned x = thread();
    if (x < kTaken * kParts) (&sums[0][0])[x] = 0;
    if (x == 0) since = nanoseconds();
    __syncthreads();
  }
  __device__ __forceinline__ void begin() {
    const unsigned x = thread();
    if (takes(x)) last[place(x)] = now();
  }
  // What passed since the last lap was this part. Whole warps.
  __device__ __forceinline__ void lap(int part) {
    __syncwarp();
    const unsigned x = thread();
    if (!takes(x)) return;
    const unsigned ends = now(), k = place(x);
    sums[k][part] += ends - last[k];
    last[k] = ends;
  }
  // A step ends; `out` has the launch's sums, and nanoseconds of a block behind them. Whole warps.
  __device__ __forceinline__ void turn(u64 step, u64* out) {
    if ((unsigned)step % kKept == 0) give(out);
  }
  // All threads.
  __device__ __forceinline__ void end(u64* out) {
    give(out);
    if (threadIdx.x == 0 && blockIdx.x == 0) out[kParts] = nanoseconds() - since;
  }

  __device__ __forceinline__ void give(u64* out) {
    const unsigned x = thread(), k = place(x);
    if (!takes(x)) return;
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
      atomicAdd(out + part, (u64)sums[k][part]);
      sums[k][part] = 0;
    }
  }
  static __device__ __forceinline__ unsigned now() { return (unsigned)clock64(); }
};
template <int kParts, int kOfBlock>
struct Laps<false, kParts, kOfBlock> {
  __device__ __forceinline__ void clear() {}
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void lap(int) {}
  __device__ __forceinline__ void turn(u64, u64*) {}
  __device__ __forceinline__ void end(u64*) {}
};

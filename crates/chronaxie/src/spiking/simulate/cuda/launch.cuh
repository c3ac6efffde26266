// What a launch of steps.cu is given, on one card or on several.
#pragma once
#include "laps.cuh"
#include "rows.cuh"

constexpr bool kShared = kPlace == 0, kCalendar = kPlace == 1;
// Whether rows that fired are listed in shared memory and spread over the block: of several cards, where cells are many.
constexpr bool kSpread = kMany && !kShared;
constexpr unsigned kMostCards = 8;
// Whether 1024 threads with 64 registers each have too few to look ahead or for more segments at once; of older ones, for what a warp
// remembers from step to step (Put).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define CHRONAXIE_FEW
constexpr bool kTight = kThreads == 1024 && !kShared, kLoose = false, kFew = kThreads == 1024 && (!kMany || kSpread) && !kHeld;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define CHRONAXIE_FEW
constexpr bool kTight = false, kLoose = false, kFew = kSpread && !kNear && !kHeavy;
#else
constexpr bool kTight = false, kLoose = kNear, kFew = false;
#endif
constexpr int kWarps = kThreads / 32;
typedef Laps<kTimed, kLaps, kThreads> Clocks;
// Whether warps have as many spikes each; whether they look ahead; segments that a lane has on their way at once.
constexpr bool kEven = !kShared && !kMany, kAhead = kEven && !kNarrow && (kLoose || kThreads < 1024);
constexpr int kBatch = kTight                                              ? 1
                       : kLong && kHeld                                  ? (kTimed ? 2 : 3)
                       : (kMany || kTimed) && kThreads == 1024 && (!kHeld || (kTimed && kSeeds)) ? 2
                       : kShared || kHeavy                               ? 4
                       : kLoose && kSeeds                                ? 2
                       : kLoose || kThreads < 1024                       ? 3
                                                                         : 2;
// Likewise of kSpread, two words each; and of how many the words are added side by side.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kSpreadBatch = kNear ? 2 : 1, kSideBySide = kNear ? 2 : 1;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kSpreadBatch = kNear ? 3 : 1, kSideBySide = kNear ? 2 : 1;
#else
constexpr int kSpreadBatch = 5, kSideBySide = 2;
#endif

// Likewise of narrow ones: with four NVRTC 12 spills, and with seeds of replicas NVRTC 13. Whether steps are counted anew, for want of
// registers for the last.
#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ < 13
constexpr int kNarrowBatch = 2;
constexpr bool kCounted = (kSeeds && !kLearns) || kFew || (kTimed && !kLearns);
#else
constexpr bool kCounted = kFew || (kSpread && !kNear) || (kTimed && !kLearns);
constexpr int kNarrowBatch = kTight || kTimed || kSeeds ? 2 : kLoose ? 4 : 3;
#endif

// One card's share of a network on several; what is by shard has its own alone.
struct Card {
  Net net;
  u64* logs[2];
  u64* result;
  const unsigned* numbers;  // [shards, rows] of each row, its cell's number in its population; null where places are numbers
  Learn learn;              // of kLearns
};

struct Run {
  u64* heads;   // [2, kReplicas, shards]; zeros when the launch begins, as boxes
  u64* boxes;   // [2, shards, rows]
  u64* log;     // [capacity] (step - from) << 32 | row
  // [16] steps done, spikes logged, flags: kFull, kLost, deliveries; of kTimed clocks of the parts, and nanoseconds of a block; zeros
  u64* result;
  u64 from;
  u64 capacity;  // at least three times the cells
  u64 steps;
};
// Of kMany: from which heads, boxes, log and result of a Run follow.
struct Many {
  const Card* cards;       // of this launch, each with as many blocks
  u64* mails[kMostCards];  // of all cards: heads, then boxes
  u64 patience;            // ns
  unsigned count, own;     // how many cards there are, the number of this launch's first
  unsigned turn, meeting;  // which log; blocks of all cards
};

// A cell's entries may have no room, of kLearns; nothing came from another block for as long as there is patience, of kMany.
constexpr u64 kFull = 1, kLost = 2;

// A word that another block may be writing.
__device__ __forceinline__ u64 peek(const u64* p) { return *(volatile u64*)p; }
__device__ __forceinline__ void poke(u64* p, u64 x) { *(volatile u64*)p = x; }

// What of a launch is this block's card's.
template <bool kOn>
struct Share {
  Card card;
  Run of;
  Many many_;
  __device__ __forceinline__ void take(const Run& given, const Many& many, unsigned which) {
    for (unsigned i = threadIdx.x; i < sizeof(Card) / 4; i += kThreads)
      ((unsigned*)&card)[i] = ((const unsigned*)(many.cards + which))[i];
    __syncthreads();
    if (threadIdx.x == 0) {
      of = given, many_ = many;
      many_.own += which;
      of.log = card.logs[many.turn];
      of.result = card.result;
    }
    __syncthreads();
  }
  __device__ __forceinline__ const Net& net(const Net&) const { return card.net; }
  __device__ __forceinline__ const Run& run(const Run&) const { return of; }
  __device__ __forceinline__ const Many& many(const Many&) const { return many_; }
  __device__ __forceinline__ const Learn& learn(const Learn&) const { return card.learn; }
  __device__ __forceinline__ const unsigned* numbers(unsigned shard) const {
    return card.numbers != nullptr ? card.numbers + (u64)shard * card.net.rows : nullptr;
  }
};
template <>
struct Share<false> {
  __device__ __forceinline__ void take(const Run&, const Many&, unsigned) {}
  __device__ __forceinline__ const Net& net(const Net& only) const { return only; }
  __device__ __forceinline__ const Run& run(const Run& given) const { return given; }
  __device__ __forceinline__ const Many& many(const Many& given) const { return given; }
  __device__ __forceinline__ const Learn& learn(const Learn& given) const { return given; }
  __device__ __forceinline__ const unsigned* numbers(unsigned) const { return nullptr; }
};

constexpr unsigned kTagBits = 12, kReplicas = 8, kMostIds = 4;
// Of kLearns: rules and traces in shared memory, and spikes of a step that are listed there.
constexpr unsigned kMostRules = kLearns ? 16 : 1, kMostTraces = kLearns ? 4 : 1, kListed = 256;
// What the models of kHeld have at most.
constexpr int kMostVariables = 4;
// What all lanes of a warp know alike from step to step: of kFew in shared memory, since no register is left for it.
template <bool kOn>
struct Put {
  volatile unsigned* at;
  __device__ __forceinline__ Put(unsigned* at, unsigned x) : at(at) { *at = x; }
  __device__ __forceinline__ operator unsigned() const { return *at; }
  __device__ __forceinline__ void operator=(unsigned x) { *at = x; }
};
template <>
struct Put<false> {
  unsigned kept;
  __device__ __forceinline__ Put(unsigned*, unsigned x) : kept(x) {}
  __device__ __forceinline__ operator unsigned() const { return kept; }
  __device__ __forceinline__ void operator=(unsigned x) { kept = x; }
};

// What a lane keeps of its only cell over all steps.
struct Own {
  float s[kHeld ? kMostVariables : 1];
  unsigned even, odd;  // arrivals, by the parity of step / 4
  int code;            // what an arrival weighs
  unsigned port;
};

// Rows that wait to be walked, of kLearns.
struct List {
  unsigned* count;
  unsigned* rows;  // [kListed]
  unsigned* more;  // [shards, rows] in global memory

  __device__ __forceinline__ void push(unsigned row) const {
    const unsigned at = atomicAdd(count, 1u);
    *(at < kListed ? rows + at : more + at) = row;
  }
};

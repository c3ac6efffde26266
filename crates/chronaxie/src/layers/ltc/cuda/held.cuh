// Synapses held in registers: how a schedule (schedule.rs) is read, folded, and summed over.
//
// A warp has `lanes` neighbouring lanes for each of its targets, and each lane up to kSlots synapses of its target; the
// schedule says which (fold.cu folds them in its order), and orders them so that the lanes of a warp read different
// banks. The values of kRows batch rows lie side by side, source after source, so that one load serves kRows gates.
#pragma once
#include "ltc.cuh"

struct Schedule {
  const unsigned* from;   // [blocks, kSlots / 2, threads]: two sources, 16 bits each
  const int* target;      // [blocks, threads], or -1; where targets are exchanged, 65536 times their places are added
  const int2* warps;      // [blocks, warps]: lanes a target, slots in use
  const float4* folded;   // [blocks, kSlots, threads]: a, b, p, q; zeros where there is no synapse
};

// A number that a lambda knows when it is compiled.
template <int kValue>
struct Number {
  static constexpr int value = kValue;
};

// The same value, of which the compiler cannot compute anything ahead of a loop.
__device__ __forceinline__ int opaque(int x) {
  int r;
  asm volatile("mov.b32 %0, %1;" : "=r"(r) : "r"(x));
  return r;
}

// Registers: 4.5 or 5 a slot, and about 40. NVRTC 12 needs a few more, and so does code for compute capability 12.
#if __CUDA_ARCH__ >= 1200
constexpr bool kLaterCompiled = true;
#else
constexpr bool kLaterCompiled = false;
#endif
constexpr bool kOldCompiler = __CUDACC_VER_MAJOR__ < 13;
constexpr bool kPacked =
    kThreads >= 1024 || kSlots > (kThreads >= 512 ? kPairs ? kFast && !kLaterCompiled ? 12 : 8 : 16 : kThreads > 256 ? 20 : 32) || (kOldCompiler && (kPairs || (kRows == 2 && kSlots == 10)) && kThreads >= 512);

// fast: r = (1 + tanh(a v + b)) / 2, p and q halved, and their own sums are added once a target (`hold` gives this
// lane's part); exact: r = 1 / (1 + 2^(a (v - b))).
//
// kShared (said by the kernel): a, b, p, q lie in shared memory, kPitch slots a thread, where a load serves so many rows that
// it costs little and the registers are worth more. The pitch is odd, so that neighbours read different banks.
constexpr int kPitch = kSlots | 1;

struct Held {
  float a[kShared ? 1 : kSlots], b[kShared ? 1 : kSlots], p[kShared ? 1 : kSlots], q[kShared ? 1 : kSlots];
  const float4* shared;        // this thread's, if kShared
  unsigned from[kPacked ? kSlots / 2 : kSlots];  // byte offsets of sources, two in one where registers are short
};

// What ltc_fold_held made for this thread, or for the `thread`-th of `threads`; p0 and q0 are this lane's parts.
__device__ __forceinline__ Held hold(const Schedule& s, unsigned block, float& p0, float& q0, float4* shared, unsigned threads,
                                     unsigned thread) {
  Held held;
  p0 = q0 = 0.0f;
  held.shared = shared + thread * kPitch;
#pragma unroll
  for (int i = 0; i < kSlots; i++) {
    float4 x = s.folded[(block * kSlots + i) * threads + thread];
    if constexpr (kShared)
      shared[thread * kPitch + i] = x;
    else
      held.a[i] = x.x, held.b[i] = x.y, held.p[i] = x.z, held.q[i] = x.w;
    if (kFast) p0 += x.z, q0 += x.w;
  }
#pragma unroll
  for (int i = 0; i < kSlots / 2; i++) {
    unsigned pair = s.from[(block * (kSlots / 2) + i) * threads + thread] * (unsigned)(kPairs ? 8 * (kRows < 2 ? 1 : 2) : 4 * kRows);
    if constexpr (kPacked) {
      held.from[i] = pair;
    } else {
      held.from[2 * i] = opaque(pair & 0xffffu);
      held.from[2 * i + 1] = opaque(pair >> 16);
    }
  }
  return held;
}

__device__ __forceinline__ Held hold(const Schedule& s, unsigned block, float& p0, float& q0, float4* shared = nullptr) {
  return hold(s, block, p0, q0, shared, blockDim.x, threadIdx.x);
}

// a, b, p, q of a slot.
__device__ __forceinline__ float4 synapse_of(const Held& held, int slot) {
  if constexpr (kShared) return held.shared[slot];
  return make_float4(held.a[slot], held.b[slot], held.p[slot], held.q[slot]);
}

// tanh or the sigmoid of one synapse, as Held says.
__device__ __forceinline__ float gate_of(float a, float b, float v) {
  if constexpr (kFast) {
    float t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(fmaf(a, v, b)));
    return t;
  } else {
    float e, r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(a * (v - b)));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
    return r;
  }
}

// The values of kRows batch rows at a byte offset of a tile in shared memory.
__device__ __forceinline__ void load_rows(const char* tile, unsigned offset, float (&x)[kRows]) {
  if constexpr (kRows == 4) {
    float4 y = *(const float4*)(tile + offset);
    x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
  } else if constexpr (kRows == 2) {
    float2 y = *(const float2*)(tile + offset);
    x[0] = y.x, x[1] = y.y;
  } else {
    x[0] = *(const float*)(tile + offset);
  }
}

// One of the two offsets. Opaque to the compiler, which would otherwise unpack all of them ahead of the loops, into as
// many registers as the packing saves.
__device__ __forceinline__ unsigned low_half(unsigned pair) {
  unsigned r;
  asm volatile("and.b32 %0, %1, 0xffff;" : "=r"(r) : "r"(pair));
  return r;
}
__device__ __forceinline__ unsigned high_half(unsigned pair) {
  unsigned r;
  asm volatile("shr.u32 %0, %1, 16;" : "=r"(r) : "r"(pair));
  return r;
}

// The byte offset of a slot's source.
__device__ __forceinline__ unsigned source_of(const Held& held, int slot) {
  if constexpr (!kPacked) return held.from[slot];
  const unsigned pair = held.from[slot / 2];
  return slot % 2 ? high_half(pair) : low_half(pair);
}

// The same value in all lanes of a warp, which the compiler then knows.
__device__ __forceinline__ int uniform(int x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(~0u, x);
#else
  return __shfl_sync(~0u, x, 0);
#endif
}

// Slots whose loads and gates are in flight together: enough to cover the latency of a load and a tanh.
constexpr int kChunk = kThreads <= 256 ? (kRows == 1 ? 16 : kRows == 2 ? 8 : 4) : (kRows == 1 && kSlots < 20 ? 8 : 4);

template <int kFirst, int kCount>
__device__ __forceinline__ void add_gates(const Held& held, const char* tile, float (&sum)[2 * kRows]) {
  float x[kCount][kRows];
  float4 w[kCount];
#pragma unroll
  for (int h = 0; h < kCount; h++) {
    w[h] = synapse_of(held, kFirst + h);
    load_rows(tile, source_of(held, kFirst + h), x[h]);
  }
#pragma unroll
  for (int h = 0; h < kCount; h++)
#pragma unroll
    for (int r = 0; r < kRows; r++) x[h][r] = gate_of(w[h].x, w[h].y, x[h][r]);
#pragma unroll
  for (int h = 0; h < kCount; h++)
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      sum[r] = fmaf(w[h].w, x[h][r], sum[r]);
      sum[kRows + r] = fmaf(w[h].z, x[h][r], sum[kRows + r]);
    }
}

// Slots by which a warp's number of them is rounded up: where few are in use, tests and branches cost more than gates.
constexpr int kStep = kRows == 1 && kSlots <= 16 ? 4 : 2;

// What is left of a chunk that is not full, in one go: kCount slots or fewer.
template <int kFirst, int kCount>
__device__ __forceinline__ void add_rest(const Held& held, int left, const char* tile, float (&sum)[2 * kRows]) {
  if constexpr (kCount > 0) {
    if (left > kCount - kStep)
      add_gates<kFirst, kCount>(held, tile, sum);
    else
      add_rest<kFirst, kCount - kStep>(held, left, tile, sum);
  }
}

template <int kFirst>
__device__ __forceinline__ void add_chunks(const Held& held, int used, const char* tile, float (&sum)[2 * kRows]) {
  if constexpr (kFirst < kSlots) {
    constexpr int kCount = kSlots - kFirst < kChunk ? kSlots - kFirst : kChunk;
    if (used > kFirst + kCount - kStep) {
      add_gates<kFirst, kCount>(held, tile, sum);
      add_chunks<kFirst + kCount>(held, used, tile, sum);
    } else {
      add_rest<kFirst, kCount - kStep>(held, used - kFirst, tile, sum);
    }
  }
}

// Slots that are computed whether they are in use or not (they hold zeros), with no branch between them, so that the loads
// of some overlap the gates of others. Lists are dealt to as few lanes as hold them: most slots are in use.
constexpr int kAlways = kRows == 4 ? 0 : kSlots > 32 ? 24 : kSlots >= 16 ? kSlots * 2 / 5 * 2 : (kSlots * 2 + 2) / 3 / 2 * 2;

template <int kFirst, int kEnd>
__device__ __forceinline__ void add_always(const Held& held, const char* tile, float (&sum)[2 * kRows]) {
  if constexpr (kFirst < kEnd) {
    constexpr int kCount = kEnd - kFirst < kChunk ? kEnd - kFirst : kChunk;
    add_gates<kFirst, kCount>(held, tile, sum);
    add_always<kFirst + kCount, kEnd>(held, tile, sum);
  }
}

// One block that has four rows side by side.
constexpr bool kInTurn = kRows == 4 && kSlots == 20 && kThreads == 512 && !kPairs && !kShared;

// The same of that, a slot at a time, whose load is a few slots ahead: loads and special operations go through one queue, and many of
// one kind hold up the other (H100, B512 T32 H128: 0.336 ms with 2 or 3 ahead, 0.339 with 1, 0.347 with 4 or with four slots at a time).
__device__ __forceinline__ void add_in_turn(const Held& held, int used, const char* tile, float (&sum)[2 * kRows]) {
  constexpr int kAhead = 3, kOn = kSlots * 2 / 5 * 2;
  float x[kSlots][kRows];
  auto load = [&](int i) { load_rows(tile, source_of(held, i), x[i]); };
  auto add = [&](int i) {
    const float4 w = synapse_of(held, i);
#pragma unroll
    for (int r = 0; r < kRows; r++) x[i][r] = gate_of(w.x, w.y, x[i][r]);
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      sum[r] = fmaf(w.w, x[i][r], sum[r]);
      sum[kRows + r] = fmaf(w.z, x[i][r], sum[kRows + r]);
    }
  };
#pragma unroll
  for (int i = 0; i < kAhead; i++) load(i);
#pragma unroll
  for (int i = 0; i < kOn; i++) {
    if (i + kAhead < kOn) load(i + kAhead);
    add(i);
  }
#pragma unroll
  for (int i = kOn; i < kSlots; i += 2) {
    if (i >= used) break;
    load(i), load(i + 1);
    add(i), add(i + 1);
  }
}

// This lane's part of the sums over its target's synapses: num of each row, then den of each row.
__device__ __forceinline__ void gate_sums(const Held& held, int used, const char* tile, float (&sum)[2 * kRows]) {
#pragma unroll
  for (int r = 0; r < 2 * kRows; r++) sum[r] = 0.0f;
  if constexpr (kInTurn) return add_in_turn(held, used, tile, sum);
  add_always<0, kAlways>(held, tile, sum);
  add_chunks<kAlways>(held, used, tile, sum);
}

// The sum over the lanes of a target.
__device__ __forceinline__ float lanes_sum(float x, int lanes) {
  for (int o = 1; o < lanes; o *= 2) x += __shfl_xor_sync(~0u, x, o);
  return x;
}

// The batch row, of kRows, for which a lane has the sums after `reduce`.
__device__ __forceinline__ int row_of(int lane) {
  if constexpr (kRows == 4) return (lane & 2) + ((lane >> 2) & 1);
  return kRows == 2 ? (lane >> 1) & 1 : 0;
}

// Adds the parts of the lanes of a target. Each lane gets both sums of row row_of(lane): the first kRows values are
// summed into `first`, the others into `second`. lanes >= 2 kRows. The order of additions is fixed.
__device__ __forceinline__ void reduce(float (&sum)[2 * kRows], int lane, int lanes, float& first, float& second) {
#pragma unroll
  for (int half = kRows, o = 1; half > 0; half /= 2, o *= 2) {
    bool upper = lane & o;
#pragma unroll
    for (int i = 0; i < half; i++) {
      float keep = upper ? sum[half + i] : sum[i], give = upper ? sum[i] : sum[half + i];
      sum[i] = keep + __shfl_xor_sync(~0u, give, o);
    }
  }
  float mine = sum[0];
#pragma unroll
  for (int o = 2 * kRows; o < 32; o *= 2)
    if (o < lanes) mine += __shfl_xor_sync(~0u, mine, o);
  float other = __shfl_xor_sync(~0u, mine, 1);
  first = lane & 1 ? other : mine;
  second = lane & 1 ? mine : other;
}

// Sums over the lanes of a target from the level on at which kRows rows are apart.
template <int kLanes>
__device__ __forceinline__ void both_sums(float& num, float& den) {
#pragma unroll
  for (int o = kRows; o < kLanes; o *= 2) {
    num += __shfl_xor_sync(~0u, num, o);
    den += __shfl_xor_sync(~0u, den, o);
  }
}

// The same in as few steps as possible: lane n of a target gets both sums of row n % kRows. lanes >= kRows. The order of
// additions is fixed.
__device__ __forceinline__ void totals(const float (&sum)[2 * kRows], int lane, int lanes, float& num, float& den) {
  float left[2 * kRows];
#pragma unroll
  for (int i = 0; i < 2 * kRows; i++) left[i] = sum[i];
#pragma unroll
  for (int half = kRows / 2; half > 0; half /= 2) {
    const bool upper = lane & half;
#pragma unroll
    for (int of = 0; of < 2 * kRows; of += kRows)
#pragma unroll
      for (int i = 0; i < half; i++) {
        const float low = left[of + i], high = left[of + half + i];
        left[of + i] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, half);
      }
  }
  num = left[0], den = left[kRows];
  // One branch for the lane counts that are most frequent, not one a level.
  if (lanes == 8) {
    both_sums<8>(num, den);
  } else if (lanes == 4) {
    both_sums<4>(num, den);
  } else if (lanes == 16) {
    both_sums<16>(num, den);
  } else if (lanes == 32) {
    both_sums<32>(num, den);
  } else if (lanes == 2) {
    both_sums<2>(num, den);
  }
}

// All kRows values of a target from the lanes that have one each.
__device__ __forceinline__ void all_rows(float mine, int lane, float (&x)[kRows]) {
  x[0] = mine;
#pragma unroll
  for (int half = 1; half < kRows; half *= 2) {
    const bool upper = lane & half;
#pragma unroll
    for (int i = 0; i < half; i++) {
      const float other = __shfl_xor_sync(~0u, x[i], half);
      x[half + i] = upper ? x[i] : other;
      x[i] = upper ? other : x[i];
    }
  }
}

__device__ __forceinline__ float reciprocal(float y) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
  return r;
}
// x / y of a positive y that is neither tiny nor huge, whose reciprocal is about r, rounded to within one unit in the last place.
__device__ __forceinline__ float quotient(float x, float y, float r) {
  const float q = x * r;
  return kFast ? q : fmaf(fmaf(-q, y, x), r, q);
}
__device__ __forceinline__ float quotient(float x, float y) { return quotient(x, y, reciprocal(y)); }

// The first of four, one by one: a vector would take four neighbouring registers, which are short.
template <typename... Floats>
__device__ __forceinline__ void put(float4* to, Floats... x) {
  int i = 0;
  ((((volatile float*)to)[i++] = x), ...);
}

// A float at an address of shared memory, which may be the sum of one that all lanes have and one of a lane's own.
__device__ __forceinline__ float at_shared(unsigned address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address));
  return x;
}

// Copies from global to shared memory that a thread waits for by itself; plain loads before sm_80.
template <int kBytes>
__device__ __forceinline__ void copy_ahead(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
               "n"(kBytes)
               : "memory");
#else
  for (int i = 0; i < kBytes / 4; i++) ((float*)to)[i] = ((const float*)from)[i];
#endif
}
__device__ __forceinline__ void copies_here() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// All copies but those of the last commit are there.
__device__ __forceinline__ void earlier_copies_here() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group 1;" ::: "memory");
#endif
}

// Short sequences, of which one block, or a cluster of kBlocks, does all of one batch row (whole.cu, whole_adjoint.cu). A block's
// last kOthers threads make the sums over its share of the inputs; the first kWalkers, if there are such (said by the kernel), walk.
// Parameters are folded in the kernel. Their slots lie anywhere in the dense matrices, so that a warp's load from global memory
// would touch as many lines as lanes (measured: 16,000 clocks for 4096 synapses); where the matrices fit they are copied to
// shared memory first.
#pragma once
constexpr int kOthers = 256;
#include "row.cuh"

// Steps whose sums are made side by side; those of them whose unfolds a block makes; slots that are read ahead.
constexpr int kSteps = 8, kMine = kSteps / kBlocks, kAhead = 4;
// Steps of which the blocks that do not walk back make what is summed at once; the most parts of so many.
constexpr int kPart = kBlocks > 1 ? 2 : kSteps, kMostParts = 32;

// Synapses of one side: where the slots' places in dense matrices are, and these.
struct RawSide {
  const unsigned* at;  // [slots, threads]: source H + target, or all ones
  const float *w, *mu, *sigma, *erev;
};

// The part of a side that begins at source `first`, of which the block of this rank has so many slots.
__device__ __forceinline__ RawSide part_of(const RawSide& s, unsigned rank, int slots, i64 first) {
  return {s.at + rank * slots * kOthers, s.w + first, s.mu + first, s.sigma + first, s.erev + first};
}
__device__ __forceinline__ Schedule part_of(const Schedule& s, unsigned rank, int slots) {
  return {s.from + rank * (slots / 2) * kOthers, s.target + rank * kOthers, s.warps + rank * (kOthers / 32), s.folded};
}

__device__ __forceinline__ void others_meet() { asm volatile("bar.sync 2, 256;" ::: "memory"); }

// A block has begun: others may store to its shared memory once they have waited for that.
__device__ __forceinline__ void blocks_begin() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kBlocks > 1) cluster_begin();
#endif
}

// All threads of a row's blocks meet: what was stored before one arrives is there for those that have waited.
__device__ __forceinline__ void blocks_arrive() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kBlocks > 1) cluster_arrive();
#endif
}
__device__ __forceinline__ void blocks_wait() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kBlocks > 1) return cluster_wait();
#endif
  asm volatile("bar.sync 3, %0;" ::"n"(kWalkers + kOthers) : "memory");
}
__device__ __forceinline__ unsigned rank_of_block() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kBlocks > 1) return cluster_rank();
#endif
  return 0;
}

// Waits for those that have begun.
__device__ __forceinline__ void blocks_begun() {
  if constexpr (kBlocks > 1) blocks_wait();
}

// Stores to where `to` lies in the block of this rank.
template <class T>
__device__ __forceinline__ void store_in(unsigned rank, T* to, T x) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kBlocks > 1) return store_at(in_block(shared_address(to), rank), x);
#endif
  *to = x;
}

// The same with a count: who waits for `barrier` of that block waits for their bytes.
__device__ __forceinline__ void store_counted(unsigned rank, float2* to, float2 x, unsigned long long* barrier) {
#if __CUDA_ARCH__ >= 900
  const float both[2] = {x.x, x.y};
  if constexpr (kBlocks > 1) return store_async(in_block(shared_address(to), rank), both, in_block(shared_address(barrier), rank));
#endif
  *to = x;
}

// Lines that are read later, on their way to L2: each of the first reads would wait for memory.
template <class T>
__device__ __forceinline__ void read_ahead(const T* p, int count, int thread, int threads) {
  constexpr int kLine = 128 / sizeof(T);
#pragma unroll 1
  for (int e = kLine * thread; e < count; e += kLine * threads) asm volatile("prefetch.global.L2 [%0];" ::"l"(p + e));
}

// One side as threads read it: from global memory, or from the copy in shared memory.
struct Side {
  const unsigned* at;
  const float *w, *mu, *sigma, *erev;
  unsigned per_row;  // 2^32 / H where chunks of four are swapped, else 0

  // Where an element is. The slots of a target are far apart, and without the swap all in one bank where H is a multiple of 32.
  __device__ __forceinline__ unsigned place(unsigned at) const { return at ^ (__umulhi(at, per_row) & 7) << 2; }
};

// A side of `n` floats a matrix, whose copy is in `room` if it is `staged`.
__device__ __forceinline__ Side staged_at(const RawSide& side, bool staged, int n, int hidden, char* room) {
  if (!staged) return {side.at, side.w, side.mu, side.sigma, side.erev, 0};
  const unsigned per_row = hidden % 32 == 0 ? 0xffffffffu / (unsigned)hidden + 1 : 0;
  const float* const first = (const float*)room;
  return {side.at, first, first + n, first + 2 * n, first + 3 * n, per_row};
}

// `threads` of the block make that copy; they wait for it by copies_here and a barrier of their own.
__device__ __forceinline__ Side stage(const RawSide& side, bool staged, int n, int hidden, char* room, int thread, int threads) {
  const Side to = staged_at(side, staged, n, hidden, room);
  const float* const from[4] = {side.w, side.mu, side.sigma, side.erev};
#pragma unroll
  for (int i = 0; i < 4; i++) {
#pragma unroll 4
    for (int e = 4 * thread; staged && e < n; e += 4 * threads) copy_ahead<16>((float*)room + i * n + to.place(e), from[i] + e);
  }
  return to;
}

// softplus to 3e-6 of its value: log(1 + e) by its series where e is small.
__device__ __forceinline__ float positive_fast(float x, int constrained) {
  if (!constrained) return x;
  float e, l;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(-1.4426950408889634f * fabsf(x)));
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(l) : "f"(1.0f + e));
  const float series = e * fmaf(e, fmaf(e, fmaf(e, -0.25f, 0.33333333f), -0.5f), 1.0f);
  return fmaxf(x, 0.0f) + (e < 0.06f ? series : 0.69314718f * l);
}

// a, b, p, q of the synapse at a place of the matrices; zeros if there is none.
__device__ __forceinline__ float4 fold_one(const Side& side, unsigned at, int constrained) {
  // Without a branch: lanes with and without a synapse would go through all that follows one after the other.
  const bool there = at != ~0u;
  at = side.place(there ? at : 0);
  const float p = there ? 0.5f * positive_fast(side.w[at], constrained) : 0.0f, a = there ? 0.5f * side.sigma[at] : 0.0f;
  return make_float4(a, -a * side.mu[at], p, p * side.erev[at]);
}

// Folds the slots of a thread, of `threads` in their schedule, and gives each to `take`. `here` waits for the matrices; half of the
// places are read before, and no more, since registers are short.
template <int kCount, class Here, class Take>
__device__ __forceinline__ void fold_slots(const Side& side, int threads, int thread, int constrained, Here here, Take take) {
  constexpr int kHalf = kCount / 2;
  unsigned at[kHalf];
#pragma unroll
  for (int i = 0; i < kHalf; i++) at[i] = side.at[i * threads + thread];
  here();
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    const float4 f = fold_one(side, at[i % kHalf], constrained);
    if (i + kHalf < kCount) at[i] = side.at[(i + kHalf) * threads + thread];
    take(i, f);
  }
}

// The inputs of a call, of which a block has `count` from `first` on.
struct Inputs {
  const float* x;
  i64 stride_b, stride_t, stride_d;
  const float *norm_weight, *norm_bias, *input_w, *input_b;  // each [D] or null
  int inputs, first, count;
  float norm_epsilon;
};

// The places and the other ends of kAhead slots of a thread.
struct Ahead {
  unsigned at[kAhead], from[kAhead / 2];
  __device__ __forceinline__ void read(const Side& side, const Schedule& schedule, int slot, int thread) {
#pragma unroll
    for (int i = 0; i < kAhead; i++) at[i] = side.at[(slot + i) * kOthers + thread];
#pragma unroll
    for (int i = 0; i < kAhead / 2; i++) from[i] = schedule.from[(slot / 2 + i) * kOthers + thread];
  }
  __device__ __forceinline__ unsigned other(int i) const { return i % 2 ? from[i / 2] >> 16 : from[i / 2] & 0xffffu; }
};

// Of kN steps each of a target's first kN / 2 lanes (two of two steps, at least) ends with both sums of kEach neighbouring steps,
// the first of which `first_of` says; of a target there are four lanes at least. The order is fixed.
template <int kN>
struct StepSums {
  static constexpr int kEach = kN == 8 ? 2 : 1, kLevels = kN == 2 ? 1 : 2, kGivers = kN / kEach;

  static __device__ __forceinline__ int first_of(int lane) {
    int mine = 0;
#pragma unroll
    for (int l = 0, half = kN / 2; l < kLevels; l++, half /= 2) mine += lane >> l & 1 ? half : 0;
    return mine;
  }

  static __device__ __forceinline__ void make(float (&num)[kN], float (&den)[kN], int lane, int lanes) {
#pragma unroll
    for (int l = 0, half = kN / 2; l < kLevels; l++, half /= 2) {
      const bool upper = lane >> l & 1;
#pragma unroll
      for (int r = 0; r < half; r++) {
        const float give_num = upper ? num[r] : num[half + r], give_den = upper ? den[r] : den[half + r];
        num[r] = (upper ? num[half + r] : num[r]) + __shfl_xor_sync(~0u, give_num, 1 << l);
        den[r] = (upper ? den[half + r] : den[r]) + __shfl_xor_sync(~0u, give_den, 1 << l);
      }
    }
    if (kLevels == 1) add(num, den, 2);
#pragma unroll 1
    for (int o = 4; o < lanes; o *= 2) add(num, den, o);
  }

  static __device__ __forceinline__ void add(float (&num)[kN], float (&den)[kN], int o) {
#pragma unroll
    for (int r = 0; r < kEach; r++) {
      num[r] += __shfl_xor_sync(~0u, num[r], o);
      den[r] += __shfl_xor_sync(~0u, den[r], o);
    }
  }
};

// The parts of both sums of kN steps, whose values lie side by side, or of eight in two planes of four; the second is `plane` bytes
// behind the first.
template <int kN>
__device__ __forceinline__ void add_steps(const float4& f, const char* at, unsigned plane, float (&num)[kN], float (&den)[kN]) {
  float v[kN];
  if constexpr (kN == 2) {
    *(float2*)v = *(const float2*)at;
  } else {
    *(float4*)v = *(const float4*)at;
    if constexpr (kN == 8) *(float4*)(v + 4) = *(const float4*)(at + plane);
  }
#pragma unroll
  for (int r = 0; r < kN; r++) {
    const float t = gate_of(f.x, f.y, v[r]);
    num[r] = fmaf(f.w, t, num[r]);
    den[r] = fmaf(f.z, t, den[r]);
  }
}

// This block's part of Ns and Ds of all steps of row b, by kOthers threads, each to `give(step, target, both)`; u to `u`, two planes
// [count, 4] for eight steps, of all steps one after the other if `keep`. Ends without a barrier.
template <class Give>
__device__ __forceinline__ void input_sums(const Schedule& schedule, const Side& side, const Inputs& in, i64 b, int steps,
                                           int constrained, float* u, bool keep, Give give) {
  using Sums = StepSums<kSteps>;
  const int thread = threadIdx.x - kWalkers, lane = thread % 32, warp = thread / 32, inputs = in.inputs, count = in.count;
  int2 shape = schedule.warps[warp];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int j = schedule.target[thread], sub = lane & (shape.x - 1), mine = Sums::first_of(lane);
#pragma unroll 1
  for (int first = 0; first < steps; first += kSteps) {
    Ahead next;
    next.read(side, schedule, 0, thread);
    if (first && !keep) others_meet();
    const float* row = in.x + b * in.stride_b;
    if (in.norm_weight) {
      // A warp makes a step.
      const int r = warp;
      const bool there = first + r < steps;
      const float* at = row + (first + r) * in.stride_t;
      float mean = 0.0f, var = 0.0f;
      for (int d = lane; there && d < inputs; d += 32) mean += at[d * in.stride_d];
      mean = warp_sum(mean) / (float)inputs;
      for (int d = lane; there && d < inputs; d += 32) {
        const float e = at[d * in.stride_d] - mean;
        var = fmaf(e, e, var);
      }
      const float rstd = 1.0f / sqrtf(warp_sum(var) / (float)inputs + in.norm_epsilon);
      for (int e = lane; e < count; e += 32) {
        const int d = in.first + e;
        float y = there ? fmaf((at[d * in.stride_d] - mean) * rstd, in.norm_weight[d], in.norm_bias[d]) : 0.0f;
        if (in.input_w) y *= in.input_w[d];
        if (in.input_b) y += in.input_b[d];
        u[((r >> 2) * count + e) * 4 + (r & 3)] = y;
      }
    } else {
      for (int n = thread; n < kSteps * count; n += kOthers) {
        const int r = n / count, e = n - r * count, d = in.first + e;
        float y = first + r < steps ? row[(first + r) * in.stride_t + d * in.stride_d] : 0.0f;
        if (in.input_w) y *= in.input_w[d];
        if (in.input_b) y += in.input_b[d];
        u[((r >> 2) * count + e) * 4 + (r & 3)] = y;
      }
    }
    if (!first) copies_here();
    others_meet();
    float num[kSteps], den[kSteps], p0 = 0.0f, q0 = 0.0f;
#pragma unroll
    for (int r = 0; r < kSteps; r++) num[r] = den[r] = 0.0f;
#pragma unroll 1
    for (int slot = 0; slot < shape.y; slot += kAhead) {
      const Ahead now = next;
      if (slot + kAhead < shape.y) next.read(side, schedule, slot + kAhead, thread);
#pragma unroll
      for (int i = 0; i < kAhead; i++) {
        const float4 f = fold_one(side, now.at[i], constrained);
        p0 += f.z, q0 += f.w;
        add_steps(f, (const char*)u + now.other(i) * 16u, 16 * count, num, den);
      }
    }
    p0 = lanes_sum(p0, shape.x), q0 = lanes_sum(q0, shape.x);
    Sums::make(num, den, lane, shape.x);
    // In the blocks to which sums go other blocks' threads may not have begun yet.
    if (!first) blocks_begun();
#pragma unroll
    for (int r = 0; r < Sums::kEach; r++)
      if (j >= 0 && sub < Sums::kGivers && first + mine + r < steps) give(first + mine + r, j, make_float2(num[r] + q0, den[r] + p0));
    if (keep) u += kSteps * count;
  }
  if (steps == 0) blocks_begun();
}

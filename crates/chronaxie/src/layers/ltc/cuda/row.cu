// LTC, forward, where one block holds every recurrent synapse and walks one batch row: the shortest chain of an unfold
// (the equations: forward.cu). For problems with no more rows than multiprocessors, whose time is T K such chains.
//
// An unfold is: barrier, the loads of all states that this lane's synapses read, in flight together; their gates; sums over
// the few lanes of a target; division; store. Tiles lie at fixed places, so that addresses are computed once for the
// sequence and not once an unfold.
//
// Floor (H200, 1.98 GHz, fast): S synapses take S / 16 clocks of the special-function unit (H 64 at density 0.5: 128; H 128:
// 512), and the chain beside them, by latencies, about 180. Measured: 675 and 1060 clocks an unfold, and 5 us to begin with:
// twice the floor, where recurrence.cu takes 755 in one block, and 1040 in a cluster of 3.
// Bytes: as recurrence.cu.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "held.cuh"

// Most neurons; states lie in two tiles of so many.
constexpr int kTile = 512;

// The state that a slot reads, of tile kHalf: an immediate offset beside the address of the first tile. Volatile: a load
// stays ahead of the branch that it was put ahead of.
template <int kHalf>
__device__ __forceinline__ float state_of(const char* tiles, const Held& held, int slot) {
  return *(const volatile float*)(tiles + source_of(held, slot) + kHalf * kTile * 4);
}

template <int kValue>
struct Number {
  static constexpr int value = kValue;
};

constexpr int kGroup = 4;
// Slots that every warp computes; the others are tested in groups.
constexpr int kSure = kSlots / 2 / kGroup * kGroup;
// Loads in flight together.
constexpr int kFlight = kSlots <= 24 ? kSlots : 16;

template <int kHalf, int kFirst, int kCount>
__device__ __forceinline__ void load_slots(const char* tiles, const Held& held, float* x) {
#pragma unroll
  for (int i = 0; i < kCount; i++) x[i] = state_of<kHalf>(tiles, held, kFirst + i);
}
template <int kFirst, int kCount>
__device__ __forceinline__ void add_slots(const Held& held, const float* x, float& num, float& den) {
  float r[kCount];
#pragma unroll
  for (int i = 0; i < kCount; i++) r[i] = gate_of(held.a[kFirst + i], held.b[kFirst + i], x[i]);
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    num = fmaf(held.q[kFirst + i], r[i], num);
    den = fmaf(held.p[kFirst + i], r[i], den);
  }
}

// Groups from kFirst on, while there are some in use: the next group's loads go ahead of this one's gates.
template <int kHalf, int kFirst>
__device__ __forceinline__ void add_groups(const char* tiles, const Held& held, int used, const float* x, float& num,
                                           float& den) {
  if constexpr (kFirst < kSlots) {
    constexpr int kCount = kSlots - kFirst < kGroup ? kSlots - kFirst : kGroup;
    if (used > kFirst) {
      constexpr int kAfter = kFirst + kCount;
      constexpr int kNext = kSlots - kAfter < kGroup ? kSlots - kAfter : kGroup;
      float ahead[kNext > 0 ? kNext : 1];
      if constexpr (kNext > 0) load_slots<kHalf, kAfter, kNext>(tiles, held, ahead);
      add_slots<kFirst, kCount>(held, x, num, den);
      add_groups<kHalf, kAfter>(tiles, held, used, ahead, num, den);
    }
  }
}

// This lane's part of both sums.
template <int kHalf, int kFirst>
__device__ __forceinline__ void add_sure(const char* tiles, const Held& held, int used, const float* x, float& num, float& den) {
  if constexpr (kFirst >= kSure) {
    add_groups<kHalf, kFirst>(tiles, held, used, x, num, den);
  } else {
    constexpr int kCount = kSure - kFirst < kFlight ? kSure - kFirst : kFlight;
    constexpr int kAfter = kFirst + kCount;
    constexpr int kNext = kAfter < kSure ? (kSure - kAfter < kFlight ? kSure - kAfter : kFlight) : kSlots - kAfter < kGroup ? kSlots - kAfter : kGroup;
    float ahead[kNext > 0 ? kNext : 1];
    if constexpr (kNext > 0) load_slots<kHalf, kAfter, kNext>(tiles, held, ahead);
    add_slots<kFirst, kCount>(held, x, num, den);
    add_sure<kHalf, kAfter>(tiles, held, used, ahead, num, den);
  }
}

template <int kHalf>
__device__ __forceinline__ void all_slots(const char* tiles, const Held& held, int used, float& num, float& den) {
  constexpr int kCount = kSure < kFlight ? kSure : kFlight;
  float x[kCount];
  load_slots<kHalf, 0, kCount>(tiles, held, x);
  num = den = 0.0f;
  add_sure<kHalf, 0>(tiles, held, used, x, num, den);
}

// Both sums over the lanes of a target; the order is fixed.
__device__ __forceinline__ void lanes_sums(int lanes, float& num, float& den) {
  if (lanes == 1) return;
  num += __shfl_xor_sync(~0u, num, 1);
  den += __shfl_xor_sync(~0u, den, 1);
  if (lanes == 2) return;
  num += __shfl_xor_sync(~0u, num, 2);
  den += __shfl_xor_sync(~0u, den, 2);
#pragma unroll 1
  for (int o = 4; o < lanes; o *= 2) {
    num += __shfl_xor_sync(~0u, num, o);
    den += __shfl_xor_sync(~0u, den, o);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_row(Schedule schedule,
        const float* __restrict__ gleak, const float* __restrict__ vleak, const float* __restrict__ cm,
        const float2* __restrict__ sensory,                               // [B, steps, H]
        const float* start, i64 start_b, i64 start_h,                     // [B, H], any strides, or null: zeros
        const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
        const float* __restrict__ output_w, const float* __restrict__ output_b,     // [M] or null
        float* __restrict__ out,                                          // [B, T, M]
        float* __restrict__ states,                                       // [B, T, H] or null
        float* final_state,                                               // [B, H]
        float* __restrict__ unfold_states, float* __restrict__ unfold_dens,  // [B, T, K, H] or null
        int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int constrained, float epsilon) {
  __shared__ __align__(16) float tiles[2 * kTile];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int2 shape = schedule.warps[warp];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int owner = schedule.target[threadIdx.x];
  const bool there = owner >= 0;
  const int j = there ? owner & 0xffff : 0;
  // Lanes of a target all know its sums; the first one writes.
  const bool writer = there && (lane & (shape.x - 1)) == 0;
  float* const mine = tiles + (there ? owner >> 16 : 0);
  float rate_c = 0.0f, base_num = 0.0f, base_den = 1.0f;
  if (there) {
    const float g = positive(gleak[j], constrained);
    rate_c = positive(cm[j], constrained) * (float)unfolds / (elapsed ? 1.0f : dt);
    base_num = g * vleak[j];
    base_den = g + epsilon;
  }
  float p0, q0;
  const Held held = hold(schedule, 0, p0, q0);
  base_den += lanes_sum(p0, shape.x), base_num += lanes_sum(q0, shape.x);
  const int used = shape.y;

  for (int b = blockIdx.x; b < batch; b += gridDim.x) {
    float v = start && there ? start[b * start_b + j * start_h] : 0.0f;
    // Of the last row nothing is read any more.
    __syncthreads();
    if (writer) *mine = v;
    int half = 0;
    i64 at = ((i64)b * steps) * hidden + j;
    float2 next = steps > 0 && there ? sensory[at] : make_float2(0.0f, 0.0f);
    float time = elapsed && steps > 0 ? elapsed[b * elapsed_b + t0 * elapsed_t] : 1.0f;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
      const float c = elapsed ? __fdiv_rn(rate_c, time) : rate_c;
      const float num0 = base_num + next.x, den0 = base_den + c + next.y;
      at += hidden;
      if (step + 1 < steps) {
        if (there) next = sensory[at];
        if (elapsed) time = elapsed[b * elapsed_b + (t0 + step + 1) * elapsed_t];
      }
      const i64 row = (i64)b * total_steps + (t0 + step);
      i64 trace = row * unfolds * hidden + j;
      const bool keeps = unfold_states && writer;
      // One unfold, from the tile kHalf into the other.
      auto unfold = [&](auto which) {
        constexpr int kHalf = decltype(which)::value;
        __syncthreads();
        float num, den;
        all_slots<kHalf>((const char*)tiles, held, used, num, den);
        lanes_sums(shape.x, num, den);
        den += den0;
        const float old = v;
        v = quotient(num + fmaf(c, v, num0), den);
        if (writer) mine[(1 - kHalf) * kTile] = v;
        if (keeps) {
          unfold_states[trace] = old;
          unfold_dens[trace] = den;
          trace += hidden;
        }
      };
#pragma unroll 1
      for (int k = 0; k < unfolds; k++, half ^= 1) {
        if (half)
          unfold(Number<1>());
        else
          unfold(Number<0>());
      }
      if (writer) {
        if (states) states[row * hidden + j] = v;
        if (j < outputs) {
          float y = v;
          if (output_w) y *= output_w[j];
          if (output_b) y += output_b[j];
          out[row * outputs + j] = y;
        }
      }
    }
    if (writer) final_state[(i64)b * hidden + j] = v;
  }
}

// LTC, backward through the sensory gates, with every sensory synapse and its four sums held in registers:
//   dz_dj = (SA_j q_dj + SB_j p_dj) s_dj (1 - s_dj);  du_d = sum_j dz_dj sigma_dj
// with SA, SB the sums of alpha and beta over the unfolds of a step (adjoint.cu), and for each synapse the sums over all
// rows (b, t) of SA s, SB s, dz, dz (u - mu). Rows are independent: a block holds the synapses of some inputs, in groups of
// threads that hold the same and walk tiles of rows of their own, each at its own pace; at last it adds the sums of its groups in
// order, and close.cu those of blocks. Groups make of one block's sums the work of as many as its multiprocessor has room for.
// A tile's inputs come to shared memory with its alpha and beta, to the lanes of their source, which map them, and make of du dL/dx and
// the sums of the input parameters.
// Floor (H200): 11.5 / 4 clocks of a multiprocessor for 32 gates; bytes: x once, SA and SB once for each part of the
// inputs, dL/dx once.
// Measured (H100, B32 T64 D128 H128 at density 0.5), when it still read u and left dL/du: 23 us, of which issue slots of the gates are 7 and
// all of them 11; what it does since takes the place of four launches (backward 0.324 to 0.310 ms). 37 us where lists had
// 16 lanes of 8 slots, inputs were read from global memory a pair of rows ahead, and sums of groups met slot by slot. Two, three or five
// slots in flight take the same.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "gate_sums.cuh"

constexpr int kTile = 8;  // rows of a tile
// kPerSample: each worker has the steps of one batch row, so that its sums are that row's.
static_assert(kRows == 2, "one plane of pairs");

// The sum over the lanes of a source of one row: row lane % 2. The order of additions is fixed.
__device__ __forceinline__ float source_sum(const float (&total)[2], int lane, int lanes) {
  const bool odd = lane & 1;
  float sum = (odd ? total[1] : total[0]) + __shfl_xor_sync(~0u, odd ? total[0] : total[1], 1);
  auto add = [&](int o) { sum += __shfl_xor_sync(~0u, sum, o); };
  // One branch for the lane counts that are most frequent, not one a level.
  if (lanes == 8) {
    add(2), add(4);
  } else if (lanes == 16) {
    add(2), add(4), add(8);
  } else if (lanes == 4) {
    add(2);
  } else if (lanes == 32) {
    add(2), add(4), add(8), add(16);
  }
  // Held.a is sigma / 2 and dz twice itself, or -sigma log2(e).
  return kFast ? sum : sum * -0.69314718055994531f;
}

// Dynamic shared memory: for each group one or two tiles of alpha and beta, [kTile / 2, H, 4], and twice [sources, kTile], of inputs and
// of du; at last the sums of all groups but the first, [kSlots, groups - 1, threads].
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_sensory_adjoint(Schedule schedule,
                    const float* __restrict__ x, i64 stride_b, i64 stride_t, i64 stride_d,      // [B, steps, D], any strides
                    const float* __restrict__ input_w, const float* __restrict__ input_b,       // u = x input_w + input_b; [D] or null
                    const float2* __restrict__ step_sums,      // [rows, H]
                    float* __restrict__ grad_x,                // steps of [B, T, D], or null
                    float4* __restrict__ gate_sums,            // [workers, parts, kSlots, threads], added to unless first
                    float4* __restrict__ input_sums,           // [workers, D]: du x, du; or null; likewise
                    const float4* __restrict__ cluster_sums,   // [clusters, H] or null: of the neurons, added up to
                    float4* __restrict__ neuron_sums,          // [H]
                    int clusters, int rows, int steps, i64 total_steps, int inputs, int hidden, int parts, int threads,
                    int tiles,  // of a group: of two one is on its way while the other is in use
                    int first_chunk) {
  extern __shared__ __align__(16) char shared[];
  // Of the thread's input: its map, and its sums of du x and du.
  __shared__ float2 maps[kThreads], dus[kThreads];
  const unsigned part = blockIdx.x % parts, worker = blockIdx.x / parts, workers = gridDim.x / parts;
  const int group = uniform(threadIdx.x / threads), groups = blockDim.x / threads, thread = threadIdx.x - group * threads;
  auto meet = [&] { asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory"); };
  int2 shape = schedule.warps[part * (threads / 32) + thread / 32];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int lane = threadIdx.x % 32, sub = lane & (shape.x - 1);
  // Read when it is needed: registers are short.
  auto source = [&] { return schedule.target[part * threads + opaque(thread)]; };
  {
    const int d = max(source(), 0);
    maps[threadIdx.x] = make_float2(input_w ? input_w[d] : 1.0f, input_b ? input_b[d] : 0.0f);
    dus[threadIdx.x] = make_float2(0.0f, 0.0f);
  }
  // Bytes of alpha and beta of a tile, and of all of it. Each lane's source has kTile inputs behind them, and as many du.
  const int pairs = kTile * hidden * 8, plane = threads / kRows * (kTile * 4), size = pairs + 2 * plane;
  char* const mine = shared + group * tiles * size;
  const int inputs_at = pairs + (thread / 32 * (32 / kRows) + lane / shape.x) * (kTile * 4);
  const int stride = (kPerSample ? 1 : (int)workers) * groups * kTile;
  // Where the rows of this worker end.
  const int end = kPerSample ? ((int)worker + 1) * steps : rows;
  // A tile is on its way; zeros where there is no row. A lane without an input reads the first; of a row that is not there the last.
  auto copy_tile = [&](char* to, int first) {
    const int there = min(end - first, kTile), d = max(source(), 0);
    for (int r = sub; r < kTile; r += shape.x) {
      const int row = first + min(r, there - 1), b = row / steps;
      copy_ahead<4>(to + inputs_at + r * 4, x + (b * stride_b + (row - b * steps) * stride_t + d * stride_d));
    }
    for (int j = thread; j < hidden; j += threads) {
      const float2* from = step_sums + ((i64)first * hidden + j);
      float2* const at = (float2*)to + j * 2;
#pragma unroll
      for (int r = 0; r < kTile; r++, from += hidden) {
        if (r < there)
          copy_ahead<8>(at + (r / 2 * hidden * 2 + (r & 1)), from);
        else
          at[r / 2 * hidden * 2 + (r & 1)] = make_float2(0.0f, 0.0f);
      }
    }
  };
  int first = kPerSample ? (int)worker * steps + group * kTile : ((int)worker * groups + group) * kTile;
  if (first < end) copy_tile(mine, first);
  float p0, q0;
  const Held held = hold(schedule, part, p0, q0, nullptr, threads, thread);
  Sums sums;
  auto saved = [&] { return gate_sums + ((i64)opaque(blockIdx.x) * kSlots * threads + thread); };
#pragma unroll
  for (int i = 0; i < kSlots; i++)
    sums.of[i] = first_chunk || group > 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : saved()[(i64)i * threads];
  int tile = 0;
#pragma unroll 1
  for (; first < end; first += stride) {
    copies_here();
    meet();
    char* const now = mine + tile;
    if (tiles == 2) {
      tile = size - tile;
      if (end - first > stride) copy_tile(mine + tile, first + stride);
    }
    const float* const of_source = (const float*)(now + inputs_at);
    float* const du = (float*)(now + inputs_at + plane);
#pragma unroll 1
    for (int r = 0; r < kTile; r += 2) {
      const float2 y = *(const float2*)(of_source + r), map = maps[threadIdx.x];
      const float v[2] = {fmaf(y.x, map.x, map.y), fmaf(y.y, map.x, map.y)};
      float total[2] = {0.0f, 0.0f};
      adjoint_gates<0>(held, sums, shape.y, now + r * hidden * 8, 0, v, total);
      const float sum = source_sum(total, lane, shape.x);
      if (sub < kRows) du[r + sub] = sum;
    }
    __syncwarp();
    const int d = source();
    const float scale = maps[threadIdx.x].x;
    float2 own = dus[threadIdx.x];
#pragma unroll 1
    for (int r = sub; r < kTile && first + r < end; r += shape.x) {
      const float y = du[r];
      own.x = fmaf(y, of_source[r], own.x), own.y += y;
      if (d < 0 || !grad_x) continue;
      const int b = (first + r) / steps;
      grad_x[(b * total_steps + (first + r - b * steps)) * inputs + d] = y * scale;
    }
    dus[threadIdx.x] = own;
    if (tiles == 1 && end - first > stride) {
      meet();
      copy_tile(mine, first + stride);
    }
  }
  // The groups' sums, in order.
  const float2 own = dus[threadIdx.x];
  dus[threadIdx.x] = make_float2(lanes_sum(own.x, shape.x), lanes_sum(own.y, shape.x));
  float4* const all = (float4*)shared + thread;
  __syncthreads();
  if (group > 0) {
#pragma unroll
    for (int i = 0; i < kSlots; i++) all[(i * (groups - 1) + group - 1) * threads] = sums.of[i];
  }
  __syncthreads();
  if (group == 0) {
#pragma unroll
    for (int i = 0; i < kSlots; i++) {
      float4 sum = sums.of[i];
      for (int k = 0; k < groups - 1; k++) {
        const float4 y = all[(i * (groups - 1) + k) * threads];
        sum.x += y.x, sum.y += y.y, sum.z += y.z, sum.w += y.w;
      }
      saved()[(i64)i * threads] = sum;
    }
    const int d = source();
    if (input_sums && d >= 0 && sub == 0) {
      float4* const to = input_sums + ((i64)worker * inputs + d);
      float4 sum = first_chunk ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *to;
      for (int k = 0; k < groups; k++) sum.x += dus[k * threads + thread].x, sum.y += dus[k * threads + thread].y;
      *to = sum;
    }
  }
  // The last warp, which has nothing to do where there are several groups: the sums of the neurons over clusters.
  if (!cluster_sums || threadIdx.x / 32 + 1 < blockDim.x / 32) return;
  for (int j = blockIdx.x; j < hidden; j += gridDim.x) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int c = lane; c < clusters; c += 32) {
      const float4 y = cluster_sums[(i64)c * hidden + j];
      sum.x += y.x, sum.y += y.y, sum.z += y.z;
    }
    sum.x = warp_sum(sum.x), sum.y = warp_sum(sum.y), sum.z = warp_sum(sum.z);
    if (lane == 0) neuron_sums[j] = sum;
  }
}

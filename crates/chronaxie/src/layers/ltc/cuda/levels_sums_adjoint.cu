// LTC, backward through gates over columns of U (levels.cuh), of all rows (b, t, k) at once, with every synapse and its four sums held
// in registers (the equations: adjoint.cu): dL/dU and, of each synapse, the sums of alpha r, beta r, dz, dz (v - mu) over rows.
//
// A lane holds synapses of one source; a source has as many lanes of a warp, side by side, as its list needs, no power of two. Tiles of
// 16 rows of alpha and beta of all targets, and of the sources' states, come to shared memory while the tile before is in use. A block has
// sums of its own, which close.cu adds in order.
//
// Floor (1.98 GHz, 132 multiprocessors): 11.5 issue slots a gate, 11.5 / 4 clocks of a multiprocessor for 32: AutoNCP with 256 neurons, 6,029
// synapses, 49,152 rows (B128 T64 K6) 0.10 ms; 1024 neurons, 96,660 synapses, 1,536 rows (B32 T8 K6) 0.05. sensory_adjoint.cu takes 0.53 of the
// first, in four chunks, and 0.28 of the second (H100): half its lanes' slots are empty, as many instructions are beside gates, and 11
// warps issue in half of all clocks. This one: 0.35 and 0.17; ten slots of 16 warps instead of twelve of 12: 0.37 and 0.24.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "gate_sums.cuh"

constexpr int kTileRows = 16;
// Floats of a lane's states of a tile, even, so that two come at once, and no multiple of 32, so that sources read different banks.
constexpr int kStates = kTileRows + 2;
static_assert(kRows == 2, "one plane of pairs");

// Dynamic shared memory: twice alpha and beta of a tile, [kTileRows / 2, count, 4], and states, [threads, kStates].
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_state_adjoint(Schedule schedule, const float* __restrict__ u, int pitch,  // [rows, pitch], from the first column on
                  const float2* __restrict__ pairs, int count,                // [rows, count]: alpha and beta
                  float* __restrict__ grad, int inputs,                       // [rows, inputs]: dL/dU
                  float4* __restrict__ gate_sums,                             // [workers, parts, kSlots, threads], added to unless first
                  i64 rows, int parts, int first_chunk) {
  extern __shared__ __align__(16) char shared[];
  const int part = blockIdx.x % parts, worker = blockIdx.x / parts, workers = gridDim.x / parts;
  const int thread = threadIdx.x, threads = blockDim.x, lane = thread % 32, warp = uniform(thread / 32), warps = threads / 32;
  int2 shape = schedule.warps[part * warps + warp];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int source = schedule.target[part * threads + thread];
  const unsigned same = __match_any_sync(~0u, source);
  const int leader = __ffs(same) - 1, sub = lane - leader, lanes = __popc(same);
  const int size = kTileRows * count * 8;
  char* const tiles = shared;
  float* const states = (float*)(shared + 2 * size);
  const int mine = (thread - sub) * kStates;
  auto copy = [&](i64 first, int half) {
    const int there = (int)(rows - first < kTileRows ? rows - first : kTileRows);
    for (int r = warp; r < kTileRows; r += warps) {
      char* const to = tiles + half * size + (r / 2 * count * 2 + (r & 1)) * 8;
      const float2* const from = pairs + (first + r) * count;
      for (int j = lane; j < count; j += 32) {
        if (r < there)
          copy_ahead<8>(to + j * 16, from + j);
        else
          *(float2*)(to + j * 16) = make_float2(0.0f, 0.0f);
      }
    }
    // A row that is not there is the last.
    if (source >= 0)
      for (int r = sub; r < kTileRows; r += lanes)
        copy_ahead<4>(states + (half * threads * kStates + mine + r), u + ((first + min(r, there - 1)) * pitch + source));
  };
  i64 first = (i64)worker * kTileRows;
  const i64 stride = (i64)workers * kTileRows;
  for (int e = thread; e < 2 * threads * kStates; e += threads) states[e] = 0.0f;
  __syncthreads();
  if (first < rows) copy(first, 0);
  float p0, q0;
  const Held held = hold(schedule, part, p0, q0, nullptr, threads, thread);
  Sums sums;
  auto saved = [&] { return gate_sums + ((i64)opaque(blockIdx.x) * kSlots * threads + thread); };
#pragma unroll
  for (int i = 0; i < kSlots; i++)
    sums.of[i] = first_chunk ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : saved()[(i64)i * threads];
  int half = 0;
#pragma unroll 1
  for (; first < rows; first += stride) {
    copies_here();
    __syncthreads();
    if (first + stride < rows) copy(first + stride, 1 - half);
    const char* tile = tiles + half * size;
    const float* const state = states + (half * threads * kStates + mine);
    float* to = grad + (first * inputs + source);
#pragma unroll 1
    for (int r = 0; r < kTileRows; r += 2, tile += count * 16, to += 2 * inputs) {
      const float2 y = *(const float2*)(state + r);
      const float v[2] = {y.x, y.y};
      float total[2] = {0.0f, 0.0f};
      adjoint_gates<0>(held, sums, shape.y, tile, 0, v, total);
#pragma unroll
      for (int o = 1; o < 32; o *= 2) {
        if (o >= shape.x) break;
        const float a = __shfl_down_sync(~0u, total[0], o), b = __shfl_down_sync(~0u, total[1], o);
        if (sub + o < lanes) total[0] += a, total[1] += b;
      }
      // Held.a is sigma / 2 and dz twice itself, or -sigma log2(e).
      const float scale = kFast ? 1.0f : -0.69314718055994531f;
      if (sub == 0 && source >= 0) {
        if (first + r < rows) to[0] = total[0] * scale;
        if (first + r + 1 < rows) to[inputs] = total[1] * scale;
      }
    }
    half ^= 1;
  }
#pragma unroll
  for (int i = 0; i < kSlots; i++) saved()[(i64)i * threads] = sums.of[i];
}

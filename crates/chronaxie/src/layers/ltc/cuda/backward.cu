// LTC, backward. With a_j = dL/dv'_j and v, v' the state before and after an unfold:
//   alpha_j = a_j / den_j      beta_j = -alpha_j v'_j      dz_ij = (alpha_j q_ij + beta_j p_ij) r_ij (1 - r_ij)
//   a_i <- alpha_i c_i + sum_j dz_ij sigma_ij
// and four sums a synapse over all (b, t, k): alpha r, beta r, dz, dz (v - mu), from which its gradients follow.
//
// Time is walked backward in chunks whose length depends on the problem alone. In a chunk:
//   ltc_adjoint      one block a batch row: rebuilds the unfolds of step t from the state before it (or reads them where
//                    they were stored), then walks the adjoint; writes v, alpha, beta of every unfold to a trace
//   ltc_gate_sums    one thread a synapse, over slices of the trace: the four sums; slices are added in order
// so every sum has one fixed order and no atomics: the same bits every run.
// Floor (H200): three gates for each of B T K S (rebuild, adjoint, sums), two for each of B T SS; trace traffic 12 bytes
// for each of B T K H written once and read S / H times from L1 and L2.
//
// With mixed memory (kMixed) the unfolds of a step begin at the state that the LSTM left, and below them a goes through its cell
// (kernels/walk.cuh) to the step before: dz is kept for what is made of it for all steps at once (lstm.cu), and a = R^T dz is
// made in the walk: 16 H H bytes from L2 a step and row, as forward, neighbouring threads at neighbouring columns.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
#include "ltc.cuh"
#include "walk.cuh"

// The LSTM below each step, with mixed memory: what its forward pass kept, and its gradients.
struct alignas(8) Lstm {
  const float* recurrent;               // [4 H, H]
  const float *gates, *cells, *states;  // [B, T, 4, H] and [B, T, H] twice
  const float* c0;                      // [B, H], any strides, or null: zeros
  i64 c0_b, c0_h;
  const float* grad_end;                // [B, H]: dL/d(cell after the chunk), any strides
  i64 end_b, end_h;
  float* grad_start;                    // [B, H]: dL/d(cell before the chunk)
  float* dz;                            // [B, steps, 4, H]
};

// From the gradients of the LSTM's state, a, and cell, gc, both [H], at step t of row b to those before it, in their places; dz goes
// to `kept`, and is [4, H] of shared memory, too. `partial` is a float a thread, or none where a thread has a whole sum.
__device__ __forceinline__ void lstm_below(const Lstm& lstm, float* a, float* gc, float* dz, float* partial, float* kept, i64 b,
                                           i64 t, i64 total_steps, int hidden) {
  const i64 at = (b * total_steps + t) * hidden;
  for (int j = threadIdx.x; j < hidden; j += blockDim.x) {
    float gate[4], d[4], cell = gc[j], before = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; k++) gate[k] = lstm.gates[at * 4 + k * hidden + j];
    if (t > 0)
      before = lstm.cells[at - hidden + j];
    else if (lstm.c0)
      before = lstm.c0[b * lstm.c0_b + j * lstm.c0_h];
    lstm_adjoint(gate, tanhf(lstm.cells[at + j]), before, a[j], cell, d);
    gc[j] = cell;
#pragma unroll
    for (int k = 0; k < 4; k++) dz[k * hidden + j] = kept[k * hidden + j] = d[k];
  }
  __syncthreads();
  // Columns side by side, and the parts into which the threads that are left split the sums.
  const int threads = blockDim.x, lanes = hidden >= threads ? threads : (hidden + 31) / 32 * 32, parts = threads / lanes;
  const int part = threadIdx.x / lanes;
  float* to = parts > 1 ? partial : a;
  if (part < parts)
    for (int o = threadIdx.x % lanes; o < hidden; o += lanes) {
      float sum[1] = {0.0f};
      add_products(sum, dz, 0, 4 * hidden * part / parts, 4 * hidden * (part + 1) / parts, lstm.recurrent, hidden, o);
      to[part * hidden + o] = sum[0];
    }
  __syncthreads();
  if (parts > 1)
    for (int j = threadIdx.x; j < hidden; j += blockDim.x) {
      float sum = 0.0f;
      for (int p = 0; p < parts; p++) sum += partial[p * hidden + j];
      a[j] = sum;
    }
}

// Dynamic shared memory, [H] floats three times: (v, v_next) or (alpha, beta), and a. With mixed memory six times: dz takes the
// place of the first two and of two more, and behind a lies the cell's gradient; then a float a thread where those are more than H.
extern "C" __global__ void __launch_bounds__(1024)
ltc_adjoint(const Synapse* __restrict__ by_target, const int* __restrict__ source_of,
            const int* __restrict__ target_offsets, const Synapse* __restrict__ by_source,
            const int* __restrict__ target_of, const int* __restrict__ source_offsets,
            const Neuron* __restrict__ neurons,
            const float2* __restrict__ sensory,            // [B, steps, H]
            const float* __restrict__ states,              // [B, T, H]
            const float* __restrict__ h0, i64 h0_b, i64 h0_h,  // [B, H], any strides, or null: zeros
            const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,
            const float* __restrict__ grad_out, i64 grad_b, i64 grad_t, i64 grad_m,  // [B, T, M], any strides
            const float* __restrict__ output_w,                                      // [M] or null
            const float* grad_end, i64 end_b, i64 end_h,   // [B, H]: dL/d(state after the chunk), any strides
            float* grad_start,                             // [B, H]: dL/d(state before the chunk)
            float* trace_v, i64 trace_v_b,                 // [steps, K, H] a row, trace_v_b apart
            const float* stored_dens,                      // as trace_v, or null: rebuild
            float* trace_alpha, float* trace_beta,         // [B, steps, K, H]
            float2* __restrict__ sums,                     // [B, steps, H]: sums of alpha and of beta over k
            int hidden, int outputs, int unfolds, i64 total_steps, i64 t0, i64 steps, float epsilon,
            Lstm lstm) {  // kMixed alone reads it
  extern __shared__ float shared[];
  float* a = shared + (kMixed ? 4 : 2) * (i64)hidden;
  i64 b = blockIdx.x;
  int groups = blockDim.x / kLanes, group = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  for (int j = threadIdx.x; j < hidden; j += blockDim.x) a[j] = grad_end[b * end_b + j * end_h];
  float* const gc = a + hidden;
  if constexpr (kMixed)
    for (int j = threadIdx.x; j < hidden; j += blockDim.x) gc[j] = lstm.grad_end[b * lstm.end_b + j * lstm.end_h];
  for (i64 r = steps - 1; r >= 0; r--) {
    i64 t = t0 + r;
    float rate = 1.0f / (elapsed ? elapsed[b * elapsed_b + t * elapsed_t] : dt);
    i64 trace = (b * steps + r) * unfolds * hidden;
    float* step_v = trace_v + b * trace_v_b + r * unfolds * hidden;
    const float* after = states + (b * total_steps + t) * hidden;
    if (!stored_dens) {
      float *v = shared, *v_next = shared + hidden;
      for (int j = threadIdx.x; j < hidden; j += blockDim.x) {
        float start;
        if constexpr (kMixed)
          start = lstm.states[(b * total_steps + t) * hidden + j];
        else
          start = t > 0 ? after[j - (i64)hidden] : (h0 ? h0[b * h0_b + j * h0_h] : 0.0f);
        v[j] = start;
        step_v[j] = start;
      }
      __syncthreads();
      for (int k = 0; k < unfolds; k++) {
        for (int base = 0; base < hidden; base += groups) {
          int j = base + group;
          float num = 0.0f, den = 0.0f;
          if (j < hidden) {
            int end = target_offsets[j + 1];
#if __CUDA_ARCH__ >= 1200  // where four at once with mixed memory are more than 64 registers hold
#pragma unroll kMixed ? 2 : 4
#endif
            for (int s = target_offsets[j] + lane; s < end; s += kLanes) {
              Synapse syn = by_target[s];
              float gated = gate(syn, v[source_of[s]]);
              num = fmaf(syn.q, gated, num);
              den = fmaf(syn.p, gated, den);
            }
          }
          __syncwarp();
          num = group_sum<kLanes>(num);
          den = group_sum<kLanes>(den);
          if (j < hidden && lane == 0) {
            Neuron n = neurons[j];
            float2 s = sensory[(b * steps + r) * hidden + j];
            float c = n.c_dt * rate;
            den = c + n.g + den + s.y + epsilon;
            float next = (fmaf(c, v[j], n.g_vleak) + num + s.x) / den;
            v_next[j] = next;
            trace_alpha[trace + (i64)k * hidden + j] = den;
            if (k + 1 < unfolds) step_v[(i64)(k + 1) * hidden + j] = next;
          }
        }
        __syncthreads();
        float* swap = v;
        v = v_next;
        v_next = swap;
      }
    }
    const float* dens = stored_dens ? stored_dens + b * trace_v_b + r * unfolds * hidden : trace_alpha + trace;
    float2* alpha_beta = (float2*)shared;
    for (int j = threadIdx.x; j < outputs; j += blockDim.x) {
      float g = grad_out[b * grad_b + t * grad_t + j * grad_m];
      a[j] += output_w ? g * output_w[j] : g;
    }
    __syncthreads();
    for (int k = unfolds - 1; k >= 0; k--) {
      for (int j = threadIdx.x; j < hidden; j += blockDim.x) {
        i64 at = (i64)k * hidden + j;
        float alpha = a[j] / dens[at];
        float beta = -alpha * (k + 1 == unfolds ? after[j] : step_v[at + hidden]);
        alpha_beta[j] = make_float2(alpha, beta);
        trace_alpha[trace + at] = alpha;
        trace_beta[trace + at] = beta;
        float2 sum = k + 1 == unfolds ? make_float2(0.0f, 0.0f) : sums[(b * steps + r) * hidden + j];
        sums[(b * steps + r) * hidden + j] = make_float2(sum.x + alpha, sum.y + beta);
      }
      __syncthreads();
      for (int base = 0; base < hidden; base += groups) {
        int i = base + group;
        float sum = 0.0f;
        if (i < hidden) {
          float v = step_v[(i64)k * hidden + i];
          int end = source_offsets[i + 1];
          for (int s = source_offsets[i] + lane; s < end; s += kLanes) {
            Synapse syn = by_source[s];
            float2 ab = alpha_beta[target_of[s]];
            float gated = gate(syn, v);
            float dz = fmaf(ab.x, syn.q, ab.y * syn.p) * (gated * (1.0f - gated));
            sum = fmaf(dz, syn.sigma, sum);
          }
        }
        __syncwarp();
        sum = group_sum<kLanes>(sum);
        if (i < hidden && lane == 0) a[i] = fmaf(alpha_beta[i].x, neurons[i].c_dt * rate, sum);
      }
      __syncthreads();
    }
    if constexpr (kMixed)
      lstm_below(lstm, a, gc, shared, gc + hidden, lstm.dz + (b * steps + r) * 4 * hidden, b, t, total_steps, hidden);
  }
  __syncthreads();
  for (int j = threadIdx.x; j < hidden; j += blockDim.x) grad_start[b * hidden + j] = a[j];
  if constexpr (kMixed)
    for (int j = threadIdx.x; j < hidden; j += blockDim.x) lstm.grad_start[b * hidden + j] = gc[j];
}

// Sums over slices of `slice` rows n: alpha r, beta r, dz, dz (v - mu). Grid: synapses / 256, slices. Row n of v lies at
// (n / rows_per_batch) v_b + (n % rows_per_batch) sources.
extern "C" __global__ void __launch_bounds__(256)
ltc_gate_sums(const Synapse* __restrict__ by_target, const int* __restrict__ source_of,
              const int* __restrict__ target_index, const float* __restrict__ v, i64 v_b, i64 rows_per_batch,
              const float* __restrict__ alpha, const float* __restrict__ beta, int pitch,  // [rows, H], pitch apart
              float4* __restrict__ partial,                                                // [slices, S]
              i64 synapses, i64 rows, i64 slice, int sources, int hidden) {
  i64 s = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (s >= synapses) return;
  Synapse syn = by_target[s];
  int i = source_of[s], j = target_index[s];
  i64 n = blockIdx.y * slice, end = n + slice < rows ? n + slice : rows;
  i64 b = n / rows_per_batch, r = n % rows_per_batch;
  float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  while (n < end) {
    // Two levels, so that the rounding of a long sum grows with the root of both lengths only.
    float4 part = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    i64 stop = n + 64 < end ? n + 64 : end;
    for (; n < stop; n++) {
      float x = v[b * v_b + r * sources + i];
      i64 at = (n * hidden + j) * pitch;
      float al = alpha[at], be = beta[at];
      float gated = gate(syn, x);
      float dz = fmaf(al, syn.q, be * syn.p) * (gated * (1.0f - gated));
      part.x = fmaf(al, gated, part.x);
      part.y = fmaf(be, gated, part.y);
      part.z += dz;
      part.w = fmaf(dz, x - syn.mu, part.w);
      if (++r == rows_per_batch) r = 0, b++;
    }
    total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
  }
  partial[blockIdx.y * synapses + s] = total;
}

// sums[e] += the partial sums of its slices, in order.
extern "C" __global__ void __launch_bounds__(256)
ltc_add_slices(const float4* __restrict__ partial, float4* __restrict__ sums, i64 elements, i64 slices) {
  i64 e = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (e >= elements) return;
  float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (i64 k = 0; k < slices; k++) {
    float4 p = partial[k * elements + e];
    total.x += p.x, total.y += p.y, total.z += p.z, total.w += p.w;
  }
  float4 s = sums[e];
  sums[e] = make_float4(s.x + total.x, s.y + total.y, s.z + total.z, s.w + total.w);
}

// Column sums of a function of (row, column) over slices of rows: a block has 32 columns and 8 rows at a time.
template <class F>
__device__ __forceinline__ void column_sums(F f, float4* partial, i64 rows, i64 slice, int columns) {
  __shared__ float4 part[8][33];
  int c = blockIdx.x * 32 + threadIdx.x;
  i64 n = blockIdx.y * slice, end = n + slice < rows ? n + slice : rows;
  float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (c < columns) {
    for (n += threadIdx.y; n < end; n += 8) {
      float4 x = f(n, c);
      total.x += x.x, total.y += x.y, total.z += x.z, total.w += x.w;
    }
  }
  part[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y == 0 && c < columns) {
    for (int y = 1; y < 8; y++) {
      float4 x = part[y][threadIdx.x];
      total.x += x.x, total.y += x.y, total.z += x.z, total.w += x.w;
    }
    partial[blockIdx.y * (i64)columns + c] = total;
  }
}

// Sums of alpha, of beta and of alpha (v - v') K / dt over the trace's rows n = ((b, r), k).
extern "C" __global__ void __launch_bounds__(256)
ltc_neuron_sums(const float* __restrict__ v, i64 v_b, i64 rows_per_batch, const float* __restrict__ alpha,
                const float* __restrict__ beta, const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,
                float4* __restrict__ partial, i64 rows, i64 slice, int hidden, int unfolds, i64 t0) {
  column_sums(
      [&](i64 n, int j) {
        i64 b = n / rows_per_batch, r = n % rows_per_batch;
        float al = alpha[n * hidden + j], be = beta[n * hidden + j];
        float time = elapsed ? elapsed[b * elapsed_b + (t0 + r / unfolds) * elapsed_t] : dt;
        return make_float4(al, be, fmaf(al, v[b * v_b + r * hidden + j], be) * ((float)unfolds / time), 0.0f);
      },
      partial, rows, slice, hidden);
}

// dL/d elapsed[b, t] = -sum over k and j of alpha (v - v') c / elapsed. One block of 256 for each (b, r).
extern "C" __global__ void __launch_bounds__(256)
ltc_elapsed_gradient(const float* __restrict__ v, i64 v_b, const float* __restrict__ alpha,
                     const float* __restrict__ beta, const Neuron* __restrict__ neurons,
                     const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t,
                     float* __restrict__ grad_elapsed,  // [B, T]
                     int hidden, int unfolds, i64 total_steps, i64 t0, i64 steps) {
  __shared__ float part[8];
  i64 b = blockIdx.x / steps, r = blockIdx.x % steps;
  const float* from = v + b * v_b + r * unfolds * hidden;
  i64 trace = (i64)blockIdx.x * unfolds * hidden;
  float sum = 0.0f;
  for (int k = 0; k < unfolds; k++)
    for (int j = threadIdx.x; j < hidden; j += 256) {
      i64 at = (i64)k * hidden + j;
      sum = fmaf(fmaf(alpha[trace + at], from[at], beta[trace + at]), neurons[j].c_dt, sum);
    }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < 8; w++) sum += part[w];
    float time = elapsed[b * elapsed_b + (t0 + r) * elapsed_t];
    grad_elapsed[b * total_steps + t0 + r] = -sum / (time * time);
  }
}

// du[row, d] = sum over its targets of dz sigma. kLanes lanes share an input's list and serve four rows.
extern "C" __global__ void __launch_bounds__(256, 4)
ltc_input_gradient(const Synapse* __restrict__ by_source, const int* __restrict__ target_of,
                   const int* __restrict__ source_offsets, const float* __restrict__ u, const float2* __restrict__ sums,
                   float* __restrict__ grad_u, i64 rows, int inputs, int hidden) {
  constexpr int kGroups = 256 / kLanes;
  int d = blockIdx.y * kGroups + threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  bool active = d < inputs;
  int end = active ? source_offsets[d + 1] : 0, begin = active ? source_offsets[d] : 0;
  for (i64 first = blockIdx.x * 4ll; first < rows; first += gridDim.x * 4ll) {
    float sum[4] = {}, x[4] = {};
    int count = (int)(rows - first < 4 ? rows - first : 4);
#pragma unroll
    for (int r = 0; r < 4; r++)
      if (active && r < count) x[r] = u[(first + r) * inputs + d];
    for (int s = begin + lane; s < end; s += kLanes) {
      Synapse syn = by_source[s];
      const float2* from = sums + first * hidden + target_of[s];
#pragma unroll
      for (int r = 0; r < 4; r++) {
        if (r < count) {
          float2 ab = from[(i64)r * hidden];
          float gated = gate(syn, x[r]);
          float dz = fmaf(ab.x, syn.q, ab.y * syn.p) * (gated * (1.0f - gated));
          sum[r] = fmaf(dz, syn.sigma, sum[r]);
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 4; r++) {
      float total = group_sum<kLanes>(sum[r]);
      if (active && lane == 0 && r < count) grad_u[(first + r) * inputs + d] = total;
    }
  }
}

// Back through the input mapping and LayerNorm: dL/dx, contiguous. One warp a row.
//
// LayerNorm's part is in double, from x and not from the rounded `stats`: what is left of a gradient along the normalised
// inputs is 1 - their mean square, 1e-5 of it where D = 2. Some 20 double operations an element, beside 2 K of f32 for each
// of its synapses.
extern "C" __global__ void __launch_bounds__(256)
ltc_inputs_backward(const float* __restrict__ x, i64 stride_b, i64 stride_t, i64 stride_d,
                    const float* __restrict__ norm_weight, const float* __restrict__ input_w,
                    const float* __restrict__ grad_u, float* __restrict__ grad_x, i64 rows, i64 rows_per_batch, i64 t0,
                    i64 total_steps, int inputs, float norm_epsilon) {
  i64 row = (blockIdx.x * (i64)blockDim.x + threadIdx.x) >> 5;
  int lane = threadIdx.x & 31;
  if (row >= rows) return;
  i64 b = row / rows_per_batch, t = t0 + row % rows_per_batch;
  const float* from = x + b * stride_b + t * stride_t;
  const float* du = grad_u + row * inputs;
  float* to = grad_x + (b * total_steps + t) * inputs;
  if (!norm_weight) {
    for (int d = lane; d < inputs; d += 32) to[d] = du[d] * (input_w ? input_w[d] : 1.0f);
    return;
  }
  double mean = 0.0, square = 0.0, mean_h = 0.0, mean_hx = 0.0;
  for (int d = lane; d < inputs; d += 32) mean += from[d * stride_d];
  mean = warp_sum(mean) / inputs;
  for (int d = lane; d < inputs; d += 32) {
    double centred = from[d * stride_d] - mean;
    float h = du[d] * (input_w ? input_w[d] : 1.0f) * norm_weight[d];
    square += centred * centred, mean_h += h, mean_hx += h * centred;
  }
  double scale = 1.0 / sqrt(warp_sum(square) / inputs + norm_epsilon);
  mean_h = warp_sum(mean_h) / inputs;
  mean_hx = warp_sum(mean_hx) / inputs * (scale * scale);
  for (int d = lane; d < inputs; d += 32) {
    float h = du[d] * (input_w ? input_w[d] : 1.0f) * norm_weight[d];
    to[d] = (float)(scale * (h - mean_h - (from[d * stride_d] - mean) * mean_hx));
  }
}

// Sums over rows for the input parameters: du y, du, dy xhat, dy, with y what the mapping reads.
extern "C" __global__ void __launch_bounds__(256)
ltc_input_sums(const float* __restrict__ x, i64 stride_b, i64 stride_t, i64 stride_d,
               const float* __restrict__ norm_weight, const float* __restrict__ norm_bias,
               const float* __restrict__ input_w, const float2* __restrict__ stats, const float* __restrict__ grad_u,
               float4* __restrict__ partial, i64 rows, i64 slice, i64 rows_per_batch, i64 t0, int inputs) {
  column_sums(
      [&](i64 n, int d) {
        float du = grad_u[n * inputs + d];
        float y = x[(n / rows_per_batch) * stride_b + (t0 + n % rows_per_batch) * stride_t + d * stride_d];
        float normed = 0.0f;
        if (norm_weight) {
          float2 stat = stats[n];
          normed = (y - stat.x) * stat.y;
          y = fmaf(normed, norm_weight[d], norm_bias[d]);
        }
        float dy = du * (input_w ? input_w[d] : 1.0f);
        return make_float4(du * y, du, dy * normed, dy);
      },
      partial, rows, slice, inputs);
}

// Sums over the rows (b, t) for the output mapping: g state, g.
extern "C" __global__ void __launch_bounds__(256)
ltc_output_sums(const float* __restrict__ states, const float* __restrict__ grad_out, i64 grad_b, i64 grad_t, i64 grad_m,
                float4* __restrict__ partial, i64 rows, i64 slice, i64 total_steps, int hidden, int outputs) {
  column_sums(
      [&](i64 n, int m) {
        float g = grad_out[(n / total_steps) * grad_b + (n % total_steps) * grad_t + m * grad_m];
        return make_float4(g * states[n * hidden + m], g, 0.0f, 0.0f);
      },
      partial, rows, slice, outputs);
}

// From the sums of a synapse to its gradients, scattered into the dense matrices [I, H], which are zero elsewhere.
extern "C" __global__ void __launch_bounds__(256)
ltc_close_synapses(const Synapse* __restrict__ by_target, const int* __restrict__ source_of,
                   const int* __restrict__ target_index, const float4* __restrict__ sums, const float* __restrict__ w,
                   const float* __restrict__ erev, float* __restrict__ grad_w, float* __restrict__ grad_mu,
                   float* __restrict__ grad_sigma, float* __restrict__ grad_erev, i64 synapses, int hidden,
                   int constrained) {
  i64 s = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (s >= synapses) return;
  i64 at = (i64)source_of[s] * hidden + target_index[s];
  float4 sum = sums[s];
  Synapse syn = by_target[s];
  grad_w[at] = positive_slope(w[at], constrained) * fmaf(erev[at], sum.x, sum.y);
  grad_mu[at] = -syn.sigma * sum.z;
  grad_sigma[at] = sum.w;
  grad_erev[at] = syn.p * sum.x;
}

// CfC: the adjoint of the recurrence, against time (the equations: layers/cfc/reference.rs).
//
//   block   kRows batch rows, through all steps of a chunk; the gradients of their states stay in shared memory
//   thread  as in forward.cu
//
// It writes the gradient of what every map gives, for all steps, as rows of `grads`: those of the parameters and of x are
// sums and products of these and of what the maps read, made afterwards for all (b, t) at once. Every special value was
// kept by the forward pass, so a step is products, barriers and a few multiplications.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
#include "cfc.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, 1)
cfc_adjoint(Net net, const float* __restrict__ weights,                 // transposed: [outputs, inputs] of each map
            const float* __restrict__ bias,                             // w_tau and A stand behind a cell's last bias
            const float* __restrict__ c0, i64 c0_b, i64 c0_h,           // [B, H] or null
            const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t,  // [B, T] or null
            const float* __restrict__ slopes,                           // [B, T, L, U]
            const float* __restrict__ heads,                            // [B, T, kept, H]
            const float* __restrict__ lstm_gates,                       // [B, T, 4, H] or null
            const float* __restrict__ lstm_cells,                       // [B, T, H] or null
            const float* __restrict__ grad_out, i64 grad_b, i64 grad_t, i64 grad_m,      // [B, T, M]
            const float* __restrict__ grad_final, i64 final_b, i64 final_h,              // [B, H]
            const float* __restrict__ grad_cell, i64 cell_b, i64 cell_h,                 // [B, H] or null
            float* carried,                                             // [B, 2, H]: where an earlier chunk goes on
            float* __restrict__ grads,                                  // [B, len, row_grads]
            float* __restrict__ grad_h0, float* __restrict__ grad_c0,   // [B, H] or null
            float* __restrict__ grad_elapsed,                           // [B, T] or null
            i64 batch, i64 steps, i64 t0, i64 len, int widest, float dt) {
  extern __shared__ __align__(16) float shared[];
  const int hidden = net.hidden, units = net.units;
  float* g = shared;                          // [kRows, H]
  float* before = g + kRows * hidden;         // [kRows, H]
  float* gc = before + kRows * hidden;        // [kRows, H]
  float* share = gc + kRows * hidden;         // [kRows, H]: each neuron's share in the gradient of the time
  float* dz = share + kRows * hidden;         // [kRows, widest]
  float* partial = dz + kRows * widest;       // parts of sums
  const i64 row = (i64)blockIdx.x * kRows;
  const int rows = (int)min((i64)kRows, batch - row);
  for (int i = threadIdx.x; i < kRows * hidden; i += kThreads) {
    const int r = i / hidden, j = i % hidden;
    const i64 b = row + r;
    float h = 0.0f, c = 0.0f;
    if (r < rows && t0 + len < steps) {
      h = carried[b * 2 * hidden + j];
      c = carried[(b * 2 + 1) * hidden + j];
    } else if (r < rows) {
      h = grad_final[b * final_b + j * final_h];
      if (grad_cell) c = grad_cell[b * cell_b + j * cell_h];
    }
    g[i] = h, gc[i] = c, before[i] = 0.0f, share[i] = 0.0f;
  }
  // Rows that are not there are multiplied, too.
  for (int i = threadIdx.x; i < kRows * widest; i += kThreads) dz[i] = 0.0f;
  for (i64 s = len - 1; s >= 0; s--) {
    const i64 t = t0 + s;
    __syncthreads();
    for (int l = net.cells - 1; l >= 0; l--) {
      const int n = net.neurons[l], first = net.first[l], outputs = net.heads * n;
      const int feeds = l ? net.neurons[l - 1] : net.inputs;
      const int first_outputs = net.layers ? units : outputs;
      const i64 first_map = (i64)(feeds + n) * first_outputs;
      const float* own = bias + net.bias[l] + (i64)net.layers * units + outputs;  // w_tau, A
      for (int e = threadIdx.x; e < rows * n; e += kThreads) {
        const int r = e / n, j = e % n;
        const i64 at = (row + r) * steps + t;
        const float time = elapsed ? elapsed[(row + r) * elapsed_b + t * elapsed_t] : dt;
        const float* kept = heads + at * net.kept * hidden + first + j;
        float* to = grads + ((row + r) * len + s) * net.row_grads + net.grads[l] + (i64)net.layers * units + j;
        float* z = dz + r * outputs + j;
        float gh = g[r * hidden + first + j];
        if (l == net.cells - 1) gh += grad_out[(row + r) * grad_b + t * grad_t + j * grad_m];
        if (net.mode == kPure) {
          const float f = kept[0], decay = kept[hidden], w = own[j], a = own[n + j];
          const float through = gh * a * f * decay;
          const float df = through * time * sign(f) - gh * a * decay;
          z[0] = df;
          to[0] = df;
          to[n] = through * time * sign(w);
          to[2 * n] = gh * (1.0f - decay * f);
          share[r * hidden + first + j] = through * (fabsf(w) + fabsf(f));
        } else {
          const float f1 = kept[0], f2 = kept[hidden], gate = kept[2 * hidden];
          const bool gated = net.mode != kNoGate;
          const float ds = gh * (gated ? f2 - f1 : f2) * gate * (1.0f - gate);
          const float d[4] = {(gated ? gh * (1.0f - gate) : gh) * (1.0f - f1) * (1.0f + f1),
                              gh * gate * (1.0f - f2) * (1.0f + f2), ds * time, ds};
#pragma unroll
          for (int k = 0; k < 4; k++) {
            z[k * n] = d[k];
            to[k * n] = d[k];
          }
          share[r * hidden + first + j] = ds * kept[3 * hidden];
        }
      }
      __syncthreads();
      for (int i = net.layers; i > 0; i--) {
        const int given = i < net.layers ? units : outputs;
        const float* w = weights + net.weights[l] + first_map + (i64)(i - 1) * units * units;
        product(partial, dz, given, given, dz, given, 0, w, units, units);
        __syncthreads();
        for (int e = threadIdx.x; e < rows * units; e += kThreads) {
          const int r = e / units, u = e % units;
          const i64 layer = ((row + r) * steps + t) * net.cells * net.layers + l * net.layers + i - 1;
          const float d = slopes[layer * units + u] * result(partial, units, r, u);
          dz[e] = d;
          grads[((row + r) * len + s) * net.row_grads + net.grads[l] + (i64)(i - 1) * units + u] = d;
        }
        __syncthreads();
      }
      // The inputs' part of the first cell waits until all steps are there.
      const int skipped = l ? 0 : feeds, wanted = feeds + n - skipped;
      product(partial, dz, first_outputs, first_outputs, dz, first_outputs, 0, weights + net.weights[l] + skipped,
              feeds + n, wanted);
      __syncthreads();
      for (int e = threadIdx.x; e < rows * wanted; e += kThreads) {
        const int r = e / wanted, o = e % wanted, j = o + skipped - feeds;
        const float d = result(partial, wanted, r, o);
        if (j >= 0)
          before[r * hidden + first + j] = d;
        else
          g[r * hidden + first + j] += d;
      }
      __syncthreads();
    }
    if (grad_elapsed) {
      // A warp a row, in one order.
      for (int r = threadIdx.x / 32; r < rows; r += kThreads / 32) {
        float sum = 0.0f;
        for (int j = threadIdx.x % 32; j < hidden; j += 32) sum += share[r * hidden + j];
#pragma unroll
        for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
        if (threadIdx.x % 32 == 0) grad_elapsed[(row + r) * steps + t] = sum;
      }
    }
    if (net.mixed) {
      const int n = 4 * hidden;
      for (int e = threadIdx.x; e < rows * hidden; e += kThreads) {
        const int r = e / hidden, j = e % hidden;
        const i64 at = (row + r) * steps + t;
        const float* gate = lstm_gates + at * n + j;
        const float gates[4] = {gate[0], gate[hidden], gate[2 * hidden], gate[3 * hidden]};
        const float y = tanhf(lstm_cells[at * hidden + j]), gh = before[e];
        float c = 0.0f;
        if (t > 0)
          c = lstm_cells[(at - 1) * hidden + j];
        else if (c0)
          c = c0[(row + r) * c0_b + j * c0_h];
        float d[4], dc = gc[e];
        lstm_adjoint(gates, y, c, gh, dc, d);
        float* to = grads + ((row + r) * len + s) * net.row_grads + j;
#pragma unroll
        for (int k = 0; k < 4; k++) {
          dz[r * n + k * hidden + j] = d[k];
          to[k * hidden] = d[k];
        }
        gc[e] = dc;
      }
      __syncthreads();
      product(partial, dz, n, n, dz, n, 0, weights + net.inputs, net.inputs + hidden, hidden);
      __syncthreads();
      for (int e = threadIdx.x; e < rows * hidden; e += kThreads)
        g[e] = result(partial, hidden, e / hidden, e % hidden);
    } else {
      float* old = g;
      g = before, before = old;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < rows * hidden; i += kThreads) {
    const i64 b = row + i / hidden, j = i % hidden;
    if (t0 > 0) {
      carried[b * 2 * hidden + j] = g[i];
      carried[(b * 2 + 1) * hidden + j] = gc[i];
    } else {
      if (grad_h0) grad_h0[row * hidden + i] = g[i];
      if (grad_c0) grad_c0[row * hidden + i] = gc[i];
    }
  }
}

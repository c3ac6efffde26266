// CfC: the recurrence. The equations: layers/cfc/reference.rs.
//
//   block   kRows batch rows, through all steps of a chunk; their states stay in shared memory
//   thread  a column of a product, or a part of its sum, for all rows; then an element of what comes behind the product
//
// What the first map of the first cell (and the LSTM's) make of x does not depend on the state: it is there already, for all
// steps, as `side` (and `lstm_side`), bias included. Per step and map: a product, a barrier, its activation, a barrier.
// Bytes a step and block: the weights of the recurrent side once from L2 (327 KB for D = H = 128, U = 128), 8 in flight a
// thread; flops 2 kRows a weight. Both are far from their limits while the rows are few: latency binds.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
#include "cfc.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, 1)
cfc_forward(Net net, const float* __restrict__ weights, const float* __restrict__ bias,
            const float* __restrict__ side,                       // [B, len, outputs of the first cell's first map]
            const float* __restrict__ lstm_side,                  // [B, len, 4 H] or null
            const float* __restrict__ h0, i64 h0_b, i64 h0_h,     // [B, H] or null
            const float* __restrict__ c0, i64 c0_b, i64 c0_h,     // [B, H] or null
            const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t,  // [B, T] or null
            float* __restrict__ out,                              // [B, T, M]
            float* final_state, float* final_cell,                // [B, H]: also where a later chunk begins
            float* __restrict__ states,                           // [B, T, H] or null, as all below
            float* __restrict__ backbone, float* __restrict__ slopes,  // [B, T, L, U]
            float* __restrict__ heads,                            // [B, T, kept, H]
            float* __restrict__ lstm_gates,                       // [B, T, 4, H]
            float* __restrict__ lstm_cells, float* __restrict__ lstm_states,  // [B, T, H]
            i64 batch, i64 steps, i64 t0, i64 len, float dt) {
  extern __shared__ __align__(16) float shared[];
  const int hidden = net.hidden, units = net.units;
  float* state = shared;                    // [kRows, H]
  float* next = state + kRows * hidden;     // [kRows, H]
  float* cell = next + kRows * hidden;      // [kRows, H]
  float* act = cell + kRows * hidden;       // [kRows, U]
  float* partial = act + kRows * units;     // parts of sums
  const i64 row = (i64)blockIdx.x * kRows;
  const int rows = (int)min((i64)kRows, batch - row);
  for (int i = threadIdx.x; i < kRows * hidden; i += kThreads) {
    const int r = i / hidden, j = i % hidden;
    const i64 b = row + r;
    float h = 0.0f, c = 0.0f;
    if (r < rows && t0 > 0) {
      h = final_state[b * hidden + j];
      if (net.mixed) c = final_cell[b * hidden + j];
    } else if (r < rows) {
      if (h0) h = h0[b * h0_b + j * h0_h];
      if (c0) c = c0[b * c0_b + j * c0_h];
    }
    state[i] = h;
    next[i] = 0.0f;
    cell[i] = c;
  }
  // Rows that are not there are multiplied, too.
  for (int i = threadIdx.x; i < kRows * units; i += kThreads) act[i] = 0.0f;
  for (i64 s = 0; s < len; s++) {
    const i64 t = t0 + s;
    __syncthreads();
    if (net.mixed) {
      const int n = 4 * hidden;
      product(partial, state, hidden, 0, state, hidden, hidden, weights + (i64)net.inputs * n, n, n);
      __syncthreads();
      for (int i = threadIdx.x; i < rows * hidden; i += kThreads) {
        const int r = i / hidden, j = i % hidden;
        const i64 at = (row + r) * steps + t;
        const float* start = lstm_side + ((row + r) * len + s) * n;
        float z[4];
#pragma unroll
        for (int k = 0; k < 4; k++) z[k] = start[k * hidden + j] + result(partial, n, r, k * hidden + j);
        float c = cell[i];
        const float h = lstm_step(z, c, [](float x) { return tanh_of(x); }, [](float x) { return sigmoid(x); });
        cell[i] = c;
        state[i] = h;
        if (lstm_gates) {
#pragma unroll
          for (int k = 0; k < 4; k++) lstm_gates[(at * 4 + k) * hidden + j] = z[k];
          lstm_cells[at * hidden + j] = c;
          lstm_states[at * hidden + j] = h;
        }
      }
      __syncthreads();
    }
    for (int l = 0; l < net.cells; l++) {
      const int n = net.neurons[l], first = net.first[l];
      const int feeds = l ? net.neurons[l - 1] : net.inputs;
      const float* w = weights + net.weights[l];
      const float* b = bias + net.bias[l];
      for (int i = 0; i <= net.layers; i++) {
        const int outputs = i < net.layers ? units : net.heads * n;
        if (i > 0) {
          product(partial, act, units, units, act, units, 0, w, outputs, outputs);
          w += (i64)units * outputs;
        } else {
          if (l > 0)
            product(partial, next + first - feeds, hidden, feeds, state + first, hidden, n, w, outputs, outputs);
          else
            product(partial, state, hidden, 0, state + first, hidden, n, w + (i64)feeds * outputs, outputs, outputs);
          w += (i64)(feeds + n) * outputs;
        }
        __syncthreads();
        const bool ready = l == 0 && i == 0;
        if (i < net.layers) {
          for (int e = threadIdx.x; e < rows * units; e += kThreads) {
            const int r = e / units, u = e % units;
            const float start = ready ? side[((row + r) * len + s) * units + u] : b[u];
            float slope;
            const float y = activate(net.activation, start + result(partial, units, r, u), slope);
            act[e] = y;
            if (backbone) {
              const i64 to = (((row + r) * steps + t) * net.cells * net.layers + l * net.layers + i) * units + u;
              backbone[to] = y;
              slopes[to] = slope;
            }
          }
          b += units;
        } else {
          for (int e = threadIdx.x; e < rows * n; e += kThreads) {
            const int r = e / n, j = e % n;
            const i64 at = (row + r) * steps + t;
            const float time = elapsed ? elapsed[(row + r) * elapsed_b + t * elapsed_t] : dt;
            const float* start = ready ? side + ((row + r) * len + s) * outputs : b;
            float kept[4], h;
            if (net.mode == kPure) {
              const float f = start[j] + result(partial, outputs, r, j), a = b[2 * n + j];
              const float decay = expf(-time * (fabsf(b[n + j]) + fabsf(f)));
              h = a - a * decay * f;
              kept[0] = f, kept[1] = decay, kept[2] = kept[3] = 0.0f;
            } else {
              float z[4];
#pragma unroll
              for (int k = 0; k < 4; k++) z[k] = start[k * n + j] + result(partial, outputs, r, k * n + j);
              const float f1 = tanh_of(z[0]), f2 = tanh_of(z[1]), gate = sigmoid(fmaf(z[2], time, z[3]));
              h = fmaf(gate, f2, net.mode == kNoGate ? f1 : f1 * (1.0f - gate));
              kept[0] = f1, kept[1] = f2, kept[2] = gate, kept[3] = z[2];
            }
            next[r * hidden + first + j] = h;
            if (l == net.cells - 1) out[at * n + j] = h;
            if (states) states[at * hidden + first + j] = h;
            if (heads) {
#pragma unroll
              for (int k = 0; k < 4; k++)
                if (k < net.kept) heads[(at * net.kept + k) * hidden + first + j] = kept[k];
            }
          }
        }
        __syncthreads();
      }
    }
    float* old = state;
    state = next, next = old;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < rows * hidden; i += kThreads) {
    final_state[row * hidden + i] = state[i];
    if (net.mixed) final_cell[row * hidden + i] = cell[i];
  }
}

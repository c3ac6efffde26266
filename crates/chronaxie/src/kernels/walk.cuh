// What kernels share in which a block walks batch rows through time: rows times a matrix that comes from L2, and the LSTM cell of
// mixed memory,
//   c' = sigmoid(fg + 1) c + sigmoid(ig) tanh(i)    h' = sigmoid(og) tanh(c')    [i, ig, fg, og] = W x + b + R h
#pragma once

// Adds a [rows, from..to) times w [k, n], column o, to the sums of a thread.
template <int rows>
__device__ __forceinline__ void add_products(float (&sum)[rows], const float* a, int stride, int from, int to,
                                             const float* __restrict__ w, long long ldw, int o) {
  constexpr int kAtOnce = 8;  // reads in flight
  int i = from;
  for (; i + kAtOnce <= to; i += kAtOnce) {
    float weight[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; u++) weight[u] = w[(i + u) * ldw + o];
#pragma unroll
    for (int u = 0; u < kAtOnce; u++)
#pragma unroll
      for (int r = 0; r < rows; r++) sum[r] = fmaf(a[r * stride + i + u], weight[u], sum[r]);
  }
  for (; i < to; i++) {
    const float weight = w[i * ldw + o];
#pragma unroll
    for (int r = 0; r < rows; r++) sum[r] = fmaf(a[r * stride + i], weight, sum[r]);
  }
}

// Adds a lane's share of w [4, n, n] row j times x [n], every `lanes`-th term, to its four sums.
template <int lanes>
__device__ __forceinline__ void add_rows(float (&sum)[4], const float* x, const float* __restrict__ w, int j, int lane, int n) {
  constexpr int kAtOnce = 2;  // of each of the four rows: reads in flight
  const long long apart = (long long)n * n;
  const float* __restrict__ row = w + (long long)j * n + lane;
  int i = lane;
  for (; i + (kAtOnce - 1) * lanes < n; i += kAtOnce * lanes, row += kAtOnce * lanes) {
    float weight[kAtOnce][4];
#pragma unroll
    for (int u = 0; u < kAtOnce; u++)
#pragma unroll
      for (int k = 0; k < 4; k++) weight[u][k] = row[k * apart + u * lanes];
#pragma unroll
    for (int u = 0; u < kAtOnce; u++)
#pragma unroll
      for (int k = 0; k < 4; k++) sum[k] = fmaf(weight[u][k], x[i + u * lanes], sum[k]);
  }
#pragma unroll 1
  for (; i < n; i += lanes, row += lanes)
#pragma unroll
    for (int k = 0; k < 4; k++) sum[k] = fmaf(row[k * apart], x[i], sum[k]);
}

// A step: z are the sums i, ig, fg, og and become the gates, c is the cell; returns the new state.
template <class Tanh, class Sigmoid>
__device__ __forceinline__ float lstm_step(float (&z)[4], float& c, Tanh tanh, Sigmoid sigmoid) {
  z[0] = tanh(z[0]), z[1] = sigmoid(z[1]), z[2] = sigmoid(z[2] + 1.0f), z[3] = sigmoid(z[3]);
  c = fmaf(c, z[2], z[0] * z[1]);
  return z[3] * tanh(c);
}

// Its adjoint: `gate` as the step left them, y the tanh of the cell behind it, `before` the cell ahead of it; gh is the gradient
// of the new state, gc that of the cell, in place; d are those of the sums.
__device__ __forceinline__ void lstm_adjoint(const float (&gate)[4], float y, float before, float gh, float& gc,
                                             float (&d)[4]) {
  const float i = gate[0], ig = gate[1], fg = gate[2], og = gate[3];
  const float dc = gc + gh * og * (1.0f - y) * (1.0f + y);
  d[0] = dc * ig * (1.0f - i) * (1.0f + i);
  d[1] = dc * i * ig * (1.0f - ig);
  d[2] = dc * before * fg * (1.0f - fg);
  d[3] = gh * y * og * (1.0f - og);
  gc = dc * fg;
}

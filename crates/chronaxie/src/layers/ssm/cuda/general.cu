// linear_scan and linear_scan_complex of any storage type, with forgetting and sequences end to end:
//   h_t = a_t h_{t-1} + x_t                       lambda_t = grad_h_t + conj(a_{t+1}) lambda_{t+1}
//   grad_a_t = lambda_t conj(h_{t-1}),  grad_x_t = lambda_t,  grad_h0 = conj(a_1) lambda_1
//
//   a, x, h and their gradients [B, D, T] f32, bf16, f16 or c64; h0, h_last and theirs [S, D] f32 or c64; any strides
//
// A thread takes one channel of one sequence through time; neighbouring threads are neighbours in D. That is right for any
// strides and fast for none but channels that lie next to each other: a load waits for the step before. Memory would bind
// at 3 (forward) and 5 (backward) elements a step. What runs fast in f32 is forward.cu and backward.cu.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "number.cuh"

// A number of a sequence.
__device__ __forceinline__ Real load_element(const Array& a, i64 at, Real) { return {load_stored(a, at)}; }
__device__ __forceinline__ Complex load_element(const Array& a, i64 at, Complex) {
  return reinterpret_cast<const Complex*>(a.base)[at];
}
__device__ __forceinline__ void store_element(const Array& a, i64 at, Real x) { store_stored(a, at, x.re); }
__device__ __forceinline__ void store_element(const Array& a, i64 at, Complex x) {
  reinterpret_cast<Complex*>(a.base)[at] = x;
}

extern "C" __global__ void __launch_bounds__(kThreads)
    scan_general_forward(Array a, Array x, Array h0, Array h, Array h_last, Marks marks, i64 channels) {
  const i64 rows = marks.units * channels;
  for (i64 row = blockIdx.x * static_cast<i64>(kThreads) + threadIdx.x; row < rows;
       row += gridDim.x * static_cast<i64>(kThreads)) {
    const i64 u = row / channels, d = row % channels;
    const Unit unit = unit_at(marks, u);
    Number state = {};
    if (h0.base) state = load_number(h0, offset(h0, u, d));
    for (i64 s = 0; s < unit.end - unit.begin; ++s) {
      const i64 t = kDescending ? unit.end - 1 - s : unit.begin + s;
      const Number input = load_element(x, offset(x, unit.row, d, t), Number{});
      if (is_fresh(marks, unit.row, t)) state = input;
      else state = fma(load_element(a, offset(a, unit.row, d, t), Number{}), state, input);
      store_element(h, offset(h, unit.row, d, t), state);
    }
    store_number(h_last, offset(h_last, u, d), state);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    scan_general_backward(Array a, Array h0, Array h, Array grad_h, Array grad_h_last, Array grad_a, Array grad_x,
                          Array grad_h0, Marks marks, i64 channels) {
  const i64 rows = marks.units * channels;
  for (i64 row = blockIdx.x * static_cast<i64>(kThreads) + threadIdx.x; row < rows;
       row += gridDim.x * static_cast<i64>(kThreads)) {
    const i64 u = row / channels, d = row % channels;
    const Unit unit = unit_at(marks, u);
    Number mu = load_number(grad_h_last, offset(grad_h_last, u, d));
    for (i64 s = unit.end - unit.begin - 1; s >= 0; --s) {
      const i64 t = kDescending ? unit.end - 1 - s : unit.begin + s, before_t = kDescending ? t + 1 : t - 1;
      const Number lambda = add(load_element(grad_h, offset(grad_h, unit.row, d, t), Number{}), mu);
      Number of_gate = {}, next = {};
      if (!is_fresh(marks, unit.row, t)) {
        Number before = {};
        if (s > 0) before = load_element(h, offset(h, unit.row, d, before_t), Number{});
        else if (h0.base) before = load_number(h0, offset(h0, u, d));
        of_gate = mul(lambda, conj(before));
        next = mul(conj(load_element(a, offset(a, unit.row, d, t), Number{})), lambda);
      }
      store_element(grad_a, offset(grad_a, unit.row, d, t), of_gate);
      store_element(grad_x, offset(grad_x, unit.row, d, t), lambda);
      mu = next;
    }
    if (grad_h0.base) store_number(grad_h0, offset(grad_h0, u, d), mu);
  }
}

// adaptive_unitary: what is added up over stretches of time, beside the kernels of dense and adaptive_theta.
//
//   unitary_put    to[r, i] = from[r, i], or to[r, i] += from[r, i]; a thread an element; rows with a stride each
//
// 8 or 12 bytes an element, once a stretch: for u and its gradient [B, D, T], and for the gradients of parameters.
typedef long long i64;

constexpr int kPutThreads = 256;

extern "C" __global__ void __launch_bounds__(kPutThreads)
    unitary_put(const float* from, float* to, i64 rows, i64 length, i64 from_stride, i64 to_stride, int add) {
  const i64 e = blockIdx.x * static_cast<i64>(kPutThreads) + threadIdx.x;
  if (e >= rows * length) return;
  const i64 row = e / length, i = e % length;
  const float x = from[row * from_stride + i];
  float* at = to + row * to_stride + i;
  *at = add ? *at + x : x;
}

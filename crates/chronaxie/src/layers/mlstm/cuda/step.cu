// mLSTM, one token: C = kept C + into k v^T, n = kept n + into k, h = s C^T q / (max(|s n.q|, e^-m) + eps), then a norm of
// the head and sigmoid(o), all in place.
//
//   mlstm_step   block: one head of one sequence; thread: columns of v, row after row
//
// c is read and written once, neighbouring threads neighbours in v: memory binds (8 K V bytes a head in f32). Too few blocks
// for a batch of one. Not timed.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "mlstm.cuh"

constexpr int kHeadMost = 512;

struct StepCall {
  Tokens q, k, v, i, f, o, h;  // [B, NH, .], T is 1
  const float* weight;         // [NH, V]
  const int* slot;             // [B]
  char* c;                     // [S, NH, K, V]
  float *n, *m;                // [S, NH, K], [S, NH]
  i64 heads, states, dk, dv, sigmoid, norm;  // norm: 0 none, 1 root mean square, 2 layer
  double scale, eps, norm_eps;
};

extern "C" __global__ void __launch_bounds__(kThreads, 1) mlstm_step(const StepCall x) {
  __shared__ float q[kHeadMost], k[kHeadMost], out[kHeadMost];
  __shared__ double slots[kThreads];
  const i64 b = blockIdx.x / x.heads, head = blockIdx.x % x.heads;
  const i64 slot = x.slot ? x.slot[b] : b;
  const Chain chain = {slot * x.heads + head, b, head, 0, 1, 1};
  // A sequence without a state has no output; one whose state is not there cannot be refused here.
  if (slot < 0 || slot >= x.states) {
    const float none = slot < 0 ? 0.f : __uint_as_float(0x7fc00000u);
    for (i64 v = threadIdx.x; v < x.dv; v += kThreads) store(x.h, chain, 0, v, none);
    return;
  }
  const double i = load_gate(x.i, chain, 0);
  const double li = (float)(x.sigmoid ? log_sigmoid(i) : i), lf = at_least(log_sigmoid(load_gate(x.f, chain, 0)), kLogForgetLeast);
  const double start = x.m ? x.m[chain.nth] : 0.f, moved = lf + start;
  const double gauge = x.m ? (double)(float)at_least(moved > li ? moved : li, kGaugeLeast) : 0.0;
  const float left = (float)exp(moved - gauge), into = (float)exp(li - gauge);
  for (i64 e = threadIdx.x; e < x.dk; e += kThreads) {
    q[e] = (float)x.scale * load(x.q, chain, 0, e);
    k[e] = into * load(x.k, chain, 0, e);
  }
  __syncthreads();
  double l = 0;
  for (i64 e = threadIdx.x; x.n && e < x.dk; e += kThreads) {
    float& n = x.n[chain.nth * x.dk + e];
    n = fmaf(left, n, k[e]);
    l += (double)n * q[e];
  }
  l = block_sum(l, slots);
  float factor = 1.f;
  if (x.n) {
    const float floor = (float)exp(-gauge), size = fabsf((float)l);
    factor = 1.f / ((size < floor ? floor : size) + (float)x.eps);
  }
  if (threadIdx.x == 0 && x.m) x.m[chain.nth] = (float)gauge;
  double sum = 0, squares = 0;
  for (i64 v = threadIdx.x; v < x.dv; v += kThreads) {
    const float value = load(x.v, chain, 0, v);
    float h = 0.f;
    for (i64 e = 0; e < x.dk; ++e) {
      const i64 at = (chain.nth * x.dk + e) * x.dv + v;
      const float c = fmaf(k[e], value, left * load_as<kState>(x.c, at));
      store_as<kState>(x.c, at, c);
      h = fmaf(q[e], c, h);
    }
    out[v] = h *= factor;
    sum += h;
  }
  const double mean = x.norm == 2 ? block_sum(sum, slots) / x.dv : 0;
  for (i64 v = threadIdx.x; v < x.dv; v += kThreads) squares += (out[v] - mean) * (out[v] - mean);
  const double size = x.norm ? 1 / sqrt(block_sum(squares, slots) / x.dv + x.norm_eps) : 1;
  for (i64 v = threadIdx.x; v < x.dv; v += kThreads) {
    float h = out[v];
    if (x.norm) h = (float)((h - mean) * size) * x.weight[head * x.dv + v];
    if (x.o.data) h *= slope(-load(x.o, chain, 0, v));
    store(x.h, chain, 0, v, h);
  }
}

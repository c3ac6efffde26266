// LTC: folds synapses in the order in which the kernels hold them (held.cuh). One thread a slot; two sides in one launch.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
#include "ltc.cuh"

struct FoldSide {
  const unsigned* at;  // [slots]: source H + target, or all ones
  const float *w, *mu, *sigma, *erev;  // [I, H]
  float4* folded;      // [slots]
  i64 slots;
};

// fast: r = (1 + tanh(a v + b)) / 2, p and q halved; exact: r = 1 / (1 + 2^(a (v - b))).
extern "C" __global__ void __launch_bounds__(256)
ltc_fold_held(FoldSide recurrent, FoldSide sensory, unsigned* __restrict__ carried, i64 words,  // made kAwaited
              int constrained) {
  i64 s = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  // Field by field: a reference to one of two parameters would move both to local memory.
  bool first = s < recurrent.slots;
  FoldSide side;
  side.at = first ? recurrent.at : sensory.at;
  side.w = first ? recurrent.w : sensory.w;
  side.mu = first ? recurrent.mu : sensory.mu;
  side.sigma = first ? recurrent.sigma : sensory.sigma;
  side.erev = first ? recurrent.erev : sensory.erev;
  side.folded = first ? recurrent.folded : sensory.folded;
  side.slots = first ? recurrent.slots : sensory.slots;
  if (!first) s -= recurrent.slots;
  if (s >= side.slots) {
    s -= side.slots;
    if (!first && s < words) carried[s] = 0xffffffffu;
    return;
  }
  unsigned at = side.at[s];
  float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (at != ~0u) {
    float p = positive(side.w[at], constrained), q = p * side.erev[at], m = side.mu[at], z = side.sigma[at];
    if (kFast)
      x = make_float4(0.5f * z, -0.5f * z * m, 0.5f * p, 0.5f * q);
    else
      x = make_float4(-1.4426950408889634f * z, m, p, q);
  }
  side.folded[s] = x;
}

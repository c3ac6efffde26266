// LTC: folds synapses in the order in which the kernels hold them (held.cuh), and the neurons for the backward pass. One
// thread a slot; all of a pass in one launch, with what it has to clear.
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

struct FoldNeurons {
  const float *gleak, *vleak, *cm;
  Neuron* folded;
  i64 neurons;  // 0: not asked for
};

__device__ __forceinline__ void fold_synapse(const FoldSide& side, i64 s, int constrained) {
  const unsigned at = side.at[s];
  float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (at != ~0u) {
    const float p = positive(side.w[at], constrained), q = p * side.erev[at], m = side.mu[at], z = side.sigma[at];
    if (kFast)
      x = make_float4(0.5f * z, -0.5f * z * m, 0.5f * p, 0.5f * q);
    else
      x = make_float4(-1.4426950408889634f * z, m, p, q);
  }
  side.folded[s] = x;
}

// Tensors of four-byte elements that become zero, each by as many blocks, behind those that fold.
struct Cleared {
  struct {
    unsigned* at;
    i64 elements;
  } of[28];
  i64 first, blocks;
};

// fast: r = (1 + tanh(a v + b)) / 2, p and q halved; exact: r = 1 / (1 + 2^(a (v - b))). The sides are parameters of their
// own: an index into an array of them would move all to local memory.
extern "C" __global__ void __launch_bounds__(256)
ltc_fold_held(FoldSide first, FoldSide second, FoldSide third, FoldSide fourth, FoldSide fifth,
              unsigned* __restrict__ carried, i64 words,  // made kAwaited
              FoldNeurons n, float unfolds, int constrained, Cleared cleared) {
  if (blockIdx.x >= cleared.first) {
    const int block = blockIdx.x - (int)cleared.first, which = block / (int)cleared.blocks;
    unsigned* const at = cleared.of[which].at;
    const i64 elements = cleared.of[which].elements;
    for (i64 e = (block - which * (int)cleared.blocks) * 256ll + threadIdx.x; e < elements; e += cleared.blocks * 256) at[e] = 0u;
    return;
  }
  i64 s = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (s < first.slots) return fold_synapse(first, s, constrained);
  s -= first.slots;
  if (s < second.slots) return fold_synapse(second, s, constrained);
  s -= second.slots;
  if (s < third.slots) return fold_synapse(third, s, constrained);
  s -= third.slots;
  if (s < fourth.slots) return fold_synapse(fourth, s, constrained);
  s -= fourth.slots;
  if (s < fifth.slots) return fold_synapse(fifth, s, constrained);
  s -= fifth.slots;
  if (s < words) {
    carried[s] = 0xffffffffu;
    return;
  }
  s -= words;
  if (s < n.neurons) {
    const float g = positive(n.gleak[s], constrained);
    n.folded[s] = {positive(n.cm[s], constrained) * unfolds, g, g * n.vleak[s], positive_slope(n.cm[s], constrained)};
  }
}

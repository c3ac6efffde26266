// What synapses that are drawn again (drawn.cuh) can bring to each slot at once, so that a network whose inputs can add up beyond 32
// bits is refused before it runs. It is one pass over all of them, when the network is made.
//
// Who computes what: a lane a synapse, grid by grid. Ten thousand million of them on an H100: 230 instructions each as there, 72,000
// million of warps over 132 x 4 a clock, 0.08 s; an addition of 8 bytes each to 80 MB, of which the second cache holds half: 0.2 s.
#include "drawn.cuh"

extern "C" __global__ void __launch_bounds__(256) spiking_weigh(const Drawn d, unsigned cells, u64* load) {
  const u64 all = (u64)d.n_source * d.degree;
  for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < all; i += (u64)gridDim.x * 256) {
    const unsigned source = (unsigned)(i / d.degree);
    Synapse s;
    if (drawn(d, source, (unsigned)(i - (u64)source * d.degree), cells, s))
      atomicAdd(load + s.slot, (u64)(s.weight < 0 ? -s.weight : s.weight));
  }
}

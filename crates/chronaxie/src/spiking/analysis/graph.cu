// Degrees and clustering of a network, from the draws that made it: what analysis.rs counts on the host.
//
// Two passes over the synapses. The first counts those of each cell, and marks for each cell which samples are its neighbours. In the
// second a synapse between two cells that have samples in common closes a triangle with each of these, if no other synapse joins the
// same two: so the pair is put into a table, and counts when it is new there.
//
// Full microcircuit (2.99e8 synapses, 1000 samples) on an H200: two times 2.99e8 draws of 100 instructions, 12 ms; marks of two cells, 256
// bytes a synapse out of the second cache, 77 GB at some 8 TB/s, 10 ms; of these pairs nearly all are put into a table of 8.6 GB: a
// sector of 32 bytes read and one written, 19 GB, 5 ms. Floor: 27 ms.
#include "draws.cuh"
#include "table.cuh"

enum Rule { kList, kTotal, kInDegree, kOutDegree };

// What a projection's synapses are made from; cells are the network's from first_source and first_target on.
struct Source {
  const uint2* list;  // [count] source, target of kList
  u64 seed, count;
  unsigned rule, degree, owner, n_source, n_target, no_self, first_source, first_target;
};

struct Graph {
  unsigned *ins, *outs;
  const unsigned* sample;  // [cells] its number among the samples, or ~0
  unsigned* marks;         // [cells, words] of samples
  u64* pairs;              // [mask + 1]
  u64 mask;
  unsigned* closed;        // [32 words]
  unsigned* full;          // whether the table is
  unsigned words, second;  // second: the second pass
};

__device__ __forceinline__ unsigned other(const Source& s, unsigned bits, unsigned count, unsigned own) {
  if (!s.no_self) return below(bits, count);
  const unsigned x = below(bits, count - 1);
  return x + (x >= own);
}

extern "C" __global__ void __launch_bounds__(256) spiking_graph(const Source s, const Graph g) {
  for (u64 k = (u64)blockIdx.x * 256 + threadIdx.x; k < s.count; k += (u64)gridDim.x * 256) {
    unsigned a, b;
    if (s.rule == kList) {
      a = s.list[k].x, b = s.list[k].y;
    } else {
      const Words d = draw(s.seed, kPair, s.owner, k);
      if (s.rule == kTotal) {
        a = below(d.w[0], s.n_source), b = other(s, d.w[1], s.n_target, a);
      } else if (s.rule == kInDegree) {
        b = (unsigned)(k / s.degree), a = other(s, d.w[0], s.n_source, b);
      } else {
        a = (unsigned)(k / s.degree), b = other(s, d.w[0], s.n_target, a);
      }
    }
    a += s.first_source, b += s.first_target;
    unsigned *of_a = g.marks + (u64)a * g.words, *of_b = g.marks + (u64)b * g.words;
    if (!g.second) {
      atomicAdd(g.outs + a, 1u);
      atomicAdd(g.ins + b, 1u);
      if (g.words == 0 || a == b) continue;
      const unsigned sample_a = g.sample[a], sample_b = g.sample[b];
      if (sample_a != ~0u) atomicOr(of_b + sample_a / 32, 1u << sample_a % 32);
      if (sample_b != ~0u) atomicOr(of_a + sample_b / 32, 1u << sample_b % 32);
      continue;
    }
    if (a == b) continue;
    bool counts = false;
    for (unsigned w = 0; w < g.words; ++w) {
      unsigned common = of_a[w] & of_b[w];
      if (common == 0) continue;
      if (!counts) {
        const u64 at = place_of(g.pairs, g.mask, a < b ? (u64)a << 32 | b : (u64)b << 32 | a, counts);
        if (at == kFull) *g.full = 1;
        if (!counts) break;
      }
      for (; common != 0; common &= common - 1) atomicAdd(g.closed + 32 * w + __ffs((int)common) - 1, 1u);
    }
  }
}

// How many neighbours each sample has.
extern "C" __global__ void __launch_bounds__(256) spiking_graph_sizes(const unsigned* marks, u64 count, unsigned words, unsigned* sizes) {
  for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < count * words; i += (u64)gridDim.x * 256) {
    const unsigned at = (unsigned)(i % words) * 32;
    for (unsigned left = marks[i]; left != 0; left &= left - 1) atomicAdd(sizes + at + __ffs((int)left) - 1, 1u);
  }
}

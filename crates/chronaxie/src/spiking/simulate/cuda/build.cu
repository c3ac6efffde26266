// Networks made on the device, from the draws that the host would make, and spikes under way put back into the ring.
//
// Two passes over the synapses: the first counts those of each row of each shard, a scan makes the counts places, the second puts
// each synapse where it belongs. Which of a row's places a synapse gets depends on the order of threads, and nothing else does.
//
// Full microcircuit (2.99e8 synapses) on an H200: each pass is 2.99e8 draws of 100 instructions (0.02 ms a million: 6 ms in
// all) and as many additions to 41 MB of counts, which the second cache holds; the second writes 2.99e8 words of 4 bytes, each
// to a sector of its own (32 bytes read and written: 19 GB, 4.5 ms at 4.3 TB/s). Floor of both: 20 ms.
#include "draws.cuh"
#include "network.cuh"

// Codes of a distribution, drawn by 32 bits.
struct Codes {
  const unsigned* thresholds;
  int count, first;
};
__device__ __forceinline__ int pick(const Codes& codes, unsigned bits) {
  return codes.first + reached(bits, codes.thresholds, codes.count);
}

enum Rule { kList, kTotal, kInDegree, kOutDegree };

// What a projection's synapses are made from.
struct Source {
  const uint4* list;  // [count] source, target, weight, delay of kList
  Codes weight, delay;
  u64 count;
  unsigned rule, degree, owner;
  unsigned n_source, n_target, no_self;
  unsigned source;      // the network's number of the first source
  unsigned population;  // of the targets
  unsigned ports;
};

struct Build {
  unsigned* counts;  // [shards, cells + 1]
  u64* load;         // [shards, pitch] the largest sum that can arrive at a slot at once
  void* synapses;    // null in the first pass
};

// Another cell than `own` where a cell is not joined to itself.
__device__ __forceinline__ unsigned other(const Source& s, unsigned bits, unsigned count, unsigned own) {
  if (!s.no_self) return below(bits, count);
  const unsigned x = below(bits, count - 1);
  return x + (x >= own);
}

extern "C" __global__ void __launch_bounds__(256) spiking_build(const Net net, const Source s, const Build build) {
  for (u64 k = (u64)blockIdx.x * 256 + threadIdx.x; k < s.count; k += (u64)gridDim.x * 256) {
    unsigned source, target, delay;
    int weight;
    if (s.rule == kList) {
      const uint4 x = s.list[k];
      source = x.x, target = x.y, weight = (int)x.z, delay = x.w;
    } else {
      const Words d = draw(net.seed, kPair, s.owner, k);
      if (s.rule == kTotal) {
        source = below(d.w[0], s.n_source);
        target = other(s, d.w[1], s.n_target, source);
      } else if (s.rule == kInDegree) {
        target = (unsigned)(k / s.degree);
        source = other(s, d.w[0], s.n_source, target);
      } else {
        source = (unsigned)(k / s.degree);
        target = other(s, d.w[0], s.n_target, source);
      }
      weight = pick(s.weight, d.w[2]);
      delay = (unsigned)pick(s.delay, d.w[3]);
    }
    source += s.source;
    // The shard whose part of the population has the target: floor(size k / shards) <= target.
    const u64 shard = (((u64)target + 1) * net.shards - 1) / s.n_target;
    const Part& part = net.parts[shard * net.populations + s.population];
    const unsigned port = weight < 0 ? s.ports - 1 : 0;
    const unsigned slot = part.slot + port * part.count + (target - part.low);
    unsigned* count = build.counts + shard * (net.cells + 1) + source;
    if (build.synapses == nullptr) {
      atomicAdd(count, 1u);
      atomicAdd(build.load + shard * net.pitch + slot, (u64)(weight < 0 ? -weight : weight));
      continue;
    }
    const u64 at = net.base[shard] + net.first[shard * (net.cells + 1) + source] + (atomicSub(count, 1u) - 1);
    if (net.wide)
      ((u64*)build.synapses)[at] = (u64)(unsigned short)weight << 48 | (u64)delay << 32 | slot;
    else
      ((unsigned*)build.synapses)[at] = (unsigned)weight << 16 | delay << net.slot_bits | slot;
  }
}

// One block a shard: first[k] = counts[0] + .. + counts[k - 1] for k up to cells, and the whole in totals. Each thread
// sums a run of its own.
extern "C" __global__ void __launch_bounds__(1024)
    spiking_scan(const unsigned* counts, unsigned* first, u64* totals, unsigned cells) {
  __shared__ u64 sums[1024];
  counts += (u64)blockIdx.x * (cells + 1), first += (u64)blockIdx.x * (cells + 1);
  // Tiles of 1024, so that neighbours read neighbours.
  u64 before = 0;
  for (u64 tile = 0; tile <= cells; tile += 1024) {
    const u64 i = tile + threadIdx.x;
    const u64 own = i < cells ? counts[i] : 0;
    sums[threadIdx.x] = own;
    __syncthreads();
    for (unsigned reach = 1; reach < 1024; reach *= 2) {
      const u64 x = threadIdx.x >= reach ? sums[threadIdx.x - reach] : 0;
      __syncthreads();
      sums[threadIdx.x] += x;
      __syncthreads();
    }
    if (i <= cells) first[i] = (unsigned)(before + sums[threadIdx.x] - own);
    before += sums[1023];
    __syncthreads();
  }
  if (threadIdx.x == 0) totals[blockIdx.x] = before;
}

// How many synapses each cell has in all shards.
extern "C" __global__ void __launch_bounds__(256) spiking_degrees(const Net net, unsigned* degrees) {
  for (u64 cell = (u64)blockIdx.x * 256 + threadIdx.x; cell < net.cells; cell += (u64)gridDim.x * 256) {
    unsigned sum = 0;
    for (unsigned k = 0; k < net.shards; ++k) {
      const unsigned* first = net.first + (u64)k * (net.cells + 1) + cell;
      sum += first[1] - first[0];
    }
    degrees[cell] = sum;
  }
}

// Puts what recent spikes send to step `now` and later into the ring. One block a shard, a warp a spike (step << 32 | cell).
extern "C" __global__ void __launch_bounds__(256)
    spiking_restore(const Net net, const u64* recent, u64 count, u64 now) {
  const unsigned* first = net.first + (u64)blockIdx.x * (net.cells + 1);
  int* ring = net.ring + (u64)blockIdx.x * net.steps * net.pitch;
  const u64 base = net.base[blockIdx.x];
  for (u64 i = threadIdx.x / 32; i < count; i += 8) {
    const u64 step = recent[i] >> 32;
    const unsigned cell = (unsigned)recent[i];
    for (unsigned k = first[cell] + threadIdx.x % 32; k < first[cell + 1]; k += 32) {
      const Synapse s = net.wide ? unpack(net, ((const u64*)net.synapses)[base + k])
                                 : unpack(net, ((const unsigned*)net.synapses)[base + k]);
      const u64 when = step + s.delay;
      if (when >= now) atomicAdd(ring + ((unsigned)when & (net.steps - 1)) * (u64)net.pitch + s.slot, s.weight);
    }
  }
}

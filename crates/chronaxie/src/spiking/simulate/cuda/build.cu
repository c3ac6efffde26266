// Networks made on the device, from the draws that the host would make, and spikes under way put back into the ring.
//
// Two passes over the synapses: the first counts those of each row of each shard, a scan makes what segments do not hold places,
// the second puts each synapse where it belongs. Which of a row's places a synapse gets depends on the order of threads, and
// nothing else does.
//
// On several cards (kMany) a layout says where cells are: each is looked up. Only a card's own synapses are kept; those that follow
// their targets are drawn for its own targets alone.
//
// Full microcircuit (2.99e8 synapses) on an H200: each pass is 2.99e8 draws of 100 instructions (0.02 ms a million: 6 ms in
// all) and as many additions to 41 MB of counts, which the second cache holds; the second writes 2.99e8 words of 4 bytes, each
// to a sector of its own (32 bytes read and written: 19 GB, 4.5 ms at 4.3 TB/s). Floor of both: 20 ms.
#include "codes.cuh"
#include "network.cuh"

enum Rule { kList, kTotal, kInDegree, kOutDegree };

// What a projection's synapses are made from.
struct Source {
  const uint4* list;  // [count] source, target, weight, delay of kList
  Codes weight, delay;
  u64 begin, count;  // the first that may lie here, and one after the last
  u64 seed;
  const float4 *from, *to;        // places of the sources and targets, where delays follow from distances, or null
  double offset, velocity, step;  // ms; a distance a ms; ms
  unsigned rule, degree, owner;
  unsigned n_source, n_target, no_self;
  unsigned home, population;  // of the sources, of the targets
  unsigned ports;
  // Of synapses that change: 1 + their rule's number, bounds, what one can pass on at most; or 0. Of kLong the upper half of the first is by
  // how many bits what they pass on is shifted.
  unsigned changes, low, high, most;
};

// Where cells are, of kMany.
struct Places {
  const unsigned* row_of;  // [cells of the network]
  const unsigned* order;   // [n_target] the targets by their places, or null where those are their numbers
  unsigned source, target; // the network's numbers of the first of the sources and of the targets
};

struct Build {
  unsigned* counts;  // [local, shards * rows + 1]
  u64* load;         // [local, pitch] the largest sum that can arrive at a slot at once
  unsigned* doubles; // [shards * rows] synapses of each row that have two words; later how many it has
  u64 fills;         // whether this is the second pass
};

// Steps from one cell to another, as the host has them (rows.rs): in f64, with no product and sum in one.
__device__ __forceinline__ unsigned delay_between(const Source& s, unsigned source, unsigned target) {
  const float4 a = s.from[source], b = s.to[target];
  const double x = (double)a.x - b.x, y = (double)a.y - b.y, z = (double)a.z - b.z, w = (double)a.w - b.w;
  const double ms = s.offset + sqrt(x * x + y * y + (z * z + w * w)) / s.velocity;
  return (unsigned)fmax(round(ms / s.step), 1.0);
}

// Another cell than `own` where a cell is not joined to itself.
__device__ __forceinline__ unsigned other(const Source& s, unsigned bits, unsigned count, unsigned own) {
  if (!s.no_self) return below(bits, count);
  const unsigned x = below(bits, count - 1);
  return x + (x >= own);
}

__device__ __forceinline__ u64 shard_of(const Net& net, unsigned cell, unsigned size) {
  return (((u64)cell + 1) * net.shards - 1) / size;
}

// The narrow synapse that is number k of a row. Where the row goes on, whoever is the first there says so.
__device__ __forceinline__ void put_narrow(const Net& net, u64 shard, u64 row, unsigned k, unsigned word) {
  const u64 rows = (u64)net.shards * net.rows;
  unsigned* segment = (unsigned*)net.segments + segment_of(net, shard, row);
  const unsigned* first = net.first + shard * (rows + 1) + row;
  const unsigned begin = first[0], count = first[1] - begin, most = most_following(net);
  const unsigned held = count == 0 ? net.segment : net.segment - 2;
  if (k < held) {
    segment[k] = word;
    return;
  }
  const bool said = count < most;
  unsigned* rest = (unsigned*)net.rest + net.base[shard] + begin;
  if (k == held) {
    segment[held] = begin;
    segment[held + 1] = (said ? count : most) << net.slot_bits | ((1u << net.slot_bits) - 1);
    if (!said) rest[0] = count - 1;
  }
  rest[k - held + !said] = word;
}

// The synapse that is number k of a row.
template <class Word>
__device__ __forceinline__ void put(const Net& net, u64 shard, u64 row, unsigned k, Word word) {
  const u64 rows = (u64)net.shards * net.rows;
  Word* segment = (Word*)net.segments + segment_of(net, shard, row) + net.head;
  const unsigned* first = net.first + shard * (rows + 1) + row;
  const unsigned room = net.segment - net.head, held = first[1] == first[0] ? room : room == 0 ? 0 : room - 1;
  if (k < held) {
    segment[k] = word;
    return;
  }
  if (k == held && held > 0) mark(net, first[0], first[1] - first[0], segment[k]);
  ((Word*)net.rest)[net.base[shard] + first[0] + (k - held)] = word;
}

extern "C" __global__ void __launch_bounds__(256)
    spiking_build(const Net net, const Source s, const Build build, const Places places) {
  for (u64 k = s.begin + (u64)blockIdx.x * 256 + threadIdx.x; k < s.count; k += (u64)gridDim.x * 256) {
    unsigned source, target, delay;
    int weight;
    if (s.rule == kList) {
      const uint4 x = s.list[k];
      source = x.x, target = x.y, weight = (int)x.z, delay = x.w;
    } else {
      u64 number = k;
      if constexpr (kMany)
        if (s.rule == kInDegree && places.order != nullptr) number = (u64)places.order[k / s.degree] * s.degree + k % s.degree;
      const Words d = draw(s.seed, kPair, s.owner, number);
      if (s.rule == kTotal) {
        source = below(d.w[0], s.n_source);
        target = other(s, d.w[1], s.n_target, source);
      } else if (s.rule == kInDegree) {
        target = (unsigned)(number / s.degree);
        source = other(s, d.w[0], s.n_source, target);
      } else {
        source = (unsigned)(k / s.degree);
        target = other(s, d.w[0], s.n_target, source);
      }
      weight = pick_weight(s.weight, d.w[2]);
      delay = s.from == nullptr ? (unsigned)pick(s.delay, d.w[3]) : build.fills ? delay_between(s, source, target) : 1;
    }
    // The shard whose part of the population has the target: floor(size k / shards) <= target.
    const unsigned at = kMany ? places.row_of[places.target + target] : 0;
    const u64 there = kMany ? at / net.rows : shard_of(net, target, s.n_target);
    const u64 rows = (u64)net.shards * net.rows, shard = there - net.begin;
    if (shard >= net.local) continue;  // another card's
    const Part& part = net.parts[there * net.populations + s.population];
    const unsigned port = weight < 0 ? s.ports - 1 : 0;
    const unsigned slot = part.slot + port * part.count + (kMany ? at % net.rows - part.local : target - part.low);
    u64 row;
    if constexpr (kMany) {
      row = places.row_of[places.source + source];
    } else {
      const u64 home = shard_of(net, source, s.n_source);
      const Part& own = net.parts[home * net.populations + s.home];
      row = home * net.rows + own.local + (source - own.low);
    }
    unsigned* count = build.counts + shard * (rows + 1) + row;
    if (!build.fills) {
      const bool twice = net.narrow.delays > 0 && is_beyond(net.narrow, weight);
      atomicAdd(count, twice ? 2u : 1u);
      if (twice) atomicAdd(build.doubles + row, 1u);
      const unsigned size = (unsigned)(weight < 0 ? -weight : weight);
      const u64 most = s.most > 0 ? s.most : kLong ? (u64)size << (s.changes >> 16) : size;
      atomicAdd(build.load + shard * net.pitch + slot, most);
      continue;
    }
    const unsigned place = atomicSub(count, 1u) - 1;
    if (net.head > 0) {
      const unsigned size = (unsigned)(weight < 0 ? -weight : weight) << 16;
      const unsigned strength = size < s.low ? s.low : size > s.high ? s.high : size;
      const unsigned changes = kLong ? s.changes & 0xFFFFu : s.changes;
      const unsigned low = changes << 16 | delay << net.slot_bits | slot;
      put<u64>(net, shard, row, place, (u64)(changes > 0 ? strength : (unsigned)weight) << 32 | low);
    } else if (net.narrow.delays > 0) {
      unsigned left, number = number_of(net.narrow, weight, left);
      const unsigned low = (delay - net.narrow.shortest) << net.slot_bits | slot;
#pragma unroll 1
      for (unsigned at = place;; at = atomicSub(count, 1u) - 1) {
        put_narrow(net, shard, row, at, ((number * net.narrow.delays) << net.slot_bits) + low);
        if (left == 0) break;
        number = left, left = 0;
      }
    } else if (net.wide) {
      u64 word;
      pack(net, slot, delay, weight, word);
      put(net, shard, row, place, word);
    } else {
      unsigned word;
      pack(net, slot, delay, weight, word);
      put(net, shard, row, place, word);
    }
  }
}

// One block a shard: first[k] = b(counts[0]) + .. + b(counts[k - 1]) for k up to the number of rows, where b(n) are beyond the
// segment; the whole in totals. Tiles of 1024, so that neighbours read neighbours.
extern "C" __global__ void __launch_bounds__(1024)
    spiking_scan(const Net net, const unsigned* counts, unsigned* first, u64* totals) {
  __shared__ u64 sums[1024];
  const u64 rows = (u64)net.shards * net.rows;
  counts += blockIdx.x * (rows + 1), first += blockIdx.x * (rows + 1);
  u64 before = 0;
  for (u64 tile = 0; tile <= rows; tile += 1024) {
    const u64 i = tile + threadIdx.x;
    const u64 own = i < rows ? beyond(net, counts[i]) : 0;
    sums[threadIdx.x] = own;
    __syncthreads();
    for (unsigned reach = 1; reach < 1024; reach *= 2) {
      const u64 x = threadIdx.x >= reach ? sums[threadIdx.x - reach] : 0;
      __syncthreads();
      sums[threadIdx.x] += x;
      __syncthreads();
    }
    if (i <= rows) first[i] = (unsigned)(before + sums[threadIdx.x] - own);
    before += sums[1023];
    __syncthreads();
  }
  if (threadIdx.x == 0) totals[blockIdx.x] = before;
}

// How many synapses each row has in all shards that are here, where `degrees` has how many of them have two words.
extern "C" __global__ void __launch_bounds__(256) spiking_degrees(const Net net, const unsigned* counts, unsigned* degrees) {
  const u64 rows = (u64)net.shards * net.rows;
  for (u64 row = (u64)blockIdx.x * 256 + threadIdx.x; row < rows; row += (u64)gridDim.x * 256) {
    unsigned sum = 0;
    for (unsigned k = 0; k < net.local; ++k) sum += counts[k * (rows + 1) + row];
    degrees[row] = sum - degrees[row];
  }
}

__device__ __forceinline__ Synapse unpack_any(const Net& net, unsigned word) {
  return net.narrow.delays > 0 ? unpack_narrow(net, word) : unpack<true>(net, word, net.weights);
}
__device__ __forceinline__ Synapse unpack_any(const Net& net, u64 word) { return unpack<true>(net, word, net.weights); }

// Adds the synapses from..to of a list that recent spikes reach at step `now` and later.
template <class Word>
__device__ __forceinline__ void put_back(const Net& net, int* ring, const Word* words, u64 count, u64 step, u64 now) {
#pragma unroll 1
  for (u64 k = threadIdx.x % 32; k < count; k += 32) {
    const Synapse s = unpack_any(net, words[k]);
    const u64 when = step + s.delay;
    if (s.weight != 0 && when >= now) atomicAdd(ring + when % net.steps * net.pitch + s.slot, s.weight);
  }
}

// Likewise all of a narrow row.
__device__ __forceinline__ void put_back_narrow(const Net& net, int* ring, u64 shard, u64 row, u64 step, u64 now) {
  const unsigned* segment = (const unsigned*)net.segments + segment_of(net, shard, row);
  const unsigned mark = segment[net.segment - 1];
  const bool more = is_narrow_marker(net, mark);
  put_back(net, ring, segment, more ? net.segment - 2 : net.segment, step, now);
  if (!more) return;
  const unsigned* rest = (const unsigned*)net.rest + net.base[shard] + segment[net.segment - 2];
  const bool said = mark >> net.slot_bits < most_following(net);
  put_back(net, ring, rest + !said, said ? mark >> net.slot_bits : rest[0], step, now);
}

// Puts what recent spikes (step << 32 | row) send to step `now` and later into the ring. One block a shard, a warp a spike.
extern "C" __global__ void __launch_bounds__(256)
    spiking_restore(const Net net, const u64* recent, u64 count, u64 now) {
  const u64 rows = (u64)net.shards * net.rows, shard = blockIdx.x;
  const unsigned* first = net.first + shard * (rows + 1);
  int* ring = net.ring + shard * net.steps * net.pitch;
  for (unsigned k = threadIdx.x; k < (net.room > 0 ? net.steps : 0); k += 256) net.noted[shard * net.steps + k] = kSpilt;
  for (u64 i = threadIdx.x / 32; i < count; i += 8) {
    const u64 step = recent[i] >> 32, row = (unsigned)recent[i];
    if (net.narrow.delays > 0) {
      put_back_narrow(net, ring, shard, row, step, now);
      continue;
    }
    const u64 segment = segment_of(net, shard, row), from = net.base[shard] + first[row];
    const unsigned beyond = first[row + 1] - first[row];
    if (net.wide) {
      put_back(net, ring, (const u64*)net.segments + segment, net.segment, step, now);
      put_back(net, ring, (const u64*)net.rest + from, beyond, step, now);
    } else {
      put_back(net, ring, (const unsigned*)net.segments + segment, net.segment, step, now);
      put_back(net, ring, (const unsigned*)net.rest + from, beyond, step, now);
    }
  }
}

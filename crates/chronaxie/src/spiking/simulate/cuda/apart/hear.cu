// What fired on cards elsewhere, in the steps since they were last heard of, reaches the cells of this one.
//
// Parts of a network meet once every shortest delay from one to another, so nothing of this arrives before the present step: it is
// added to what is under way, in the ring or the calendar of global memory that a launch of steps.cu begins with. One block a
// shard, as there. Spikes come as lists of the network's cells, by step: {counts [steps], cells}; a warp takes one spike in
// kWarps, up to 32 of them at a time, so that their rows are on their way together.
//
// Synapses that change (kLearns) are walked step after step, since a row may fire twice; the block's own cells have fired later
// than that by now, which walk.cuh leaves out of account (CHRONAXIE_LATE).
//
// A million cells with a thousand synapses each on two cards, meeting every 15 steps (dt 0.1 ms): 4,050 foreign spikes, 4 million
// events a meeting: 68 MB of segments and as many bytes of calendar, 35 us, or 2.3 a step; not overlapped with steps.
#define CHRONAXIE_LATE
#include "draws.cuh"
#include "network.cuh"
#include "walk.cuh"

constexpr unsigned kThreads = 512, kWarps = kThreads / 32, kAtOnce = 4;

struct Heard {
  const unsigned* lists;    // [count, pitch] of each: `head` words, spikes of each step, then their cells
  const unsigned* row_of;   // [cells]
  const unsigned* degrees;  // [shards, rows] synapses here
  u64* events;              // what they deliver is added to it; or null
  u64 pitch, from;          // words of a list; the first step
  // own: the list that is not heard, since it is of cells here; head: with some words before, the first of which says whether a list is
  // whole
  unsigned steps, count, own, head;
};

// A list is all that fired; it is not.
constexpr unsigned kWhole = 1, kCut = 2;

struct Ear {
  const Net& net;
  unsigned* noted;  // [steps] of a calendar, in shared memory
  unsigned self;

  __device__ __forceinline__ void put(u64 step, const Synapse& s) const {
    if (s.weight == 0) return;
    const unsigned place = (unsigned)(step + s.delay) & (net.steps - 1);
    if (net.room > 0) {
      const unsigned at = atomicAdd(noted + place, 1u) & ~kSpilt;
      if (at < net.room) {
        ((Due*)net.calendar)[((u64)self * net.steps + place) * net.room + at] = due(s);
        return;
      }
    }
    atomicAdd(net.ring + ((u64)self * net.steps + place) * net.pitch + s.slot, s.weight);
  }

  // The rows of the first n lanes, which fired in `step`.
  template <class Word>
  __device__ __forceinline__ void deliver(u64 step, unsigned n, unsigned row) const {
    const unsigned lane = threadIdx.x % 32, per = net.segment < 32 ? net.segment : 32, groups = per > 0 ? 32 / per : 0;
    const u64 rows = (u64)net.shards * net.rows;
    const unsigned* first = net.first + self * (rows + 1) + row;
    const unsigned begin = lane < n ? first[0] : 0, end = lane < n ? first[1] : 0;
    if (per > 0)
      for (unsigned j = lane / per; __any_sync(~0u, j < n); j += groups * kAtOnce) {
        Word words[kAtOnce][2];
#pragma unroll
        for (unsigned u = 0; u < kAtOnce; ++u) {
          const unsigned k = j + u * groups, here = __shfl_sync(~0u, row, k % 32);
          const Word* at = (const Word*)net.segments + segment_of(net, self, here) + lane % per;
          words[u][0] = k < n ? __ldcs(at) : 0;
          words[u][1] = k < n && net.segment > 32 ? __ldcs(at + 32) : 0;
        }
#pragma unroll
        for (unsigned u = 0; u < kAtOnce; ++u) {
          put(step, unpack<true>(net, words[u][0], net.weights));
          put(step, unpack<true>(net, words[u][1], net.weights));
        }
      }
    const Word* rest = (const Word*)net.rest + net.base[self];
    for (unsigned over = __ballot_sync(~0u, begin < end); over != 0; over &= over - 1) {
      const int from = __ffs((int)over) - 1;
      const unsigned last = __shfl_sync(~0u, end, from);
      for (unsigned i = __shfl_sync(~0u, begin, from) + lane; i < last; i += 32)
        put(step, unpack<true>(net, __ldcs(rest + i), net.weights));
    }
  }
};

// Grid: the card's shards.
extern "C" __global__ void __launch_bounds__(kThreads, 1) spiking_hear(const Net net, const Learn learn, const Heard heard) {
  extern __shared__ unsigned held[];
  __shared__ unsigned known[kWarps][16];
  __shared__ Learn far;
  const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread / 32, self = blockIdx.x;
  unsigned* const begins = held;  // [count] of each list, where the cells of the step begin
  unsigned* const noted = held + heard.count;
  bool cut = false;
  for (unsigned l = thread; l < heard.count; l += kThreads) {
    begins[l] = heard.head + heard.steps;
    cut |= heard.head > 0 && heard.lists[l * heard.pitch] == kCut;
  }
  // Then all of them come once more.
  if (__syncthreads_or(cut)) return;
  for (unsigned i = thread; i < (net.room > 0 ? net.steps : 0); i += kThreads) noted[i] = net.noted[(u64)self * net.steps + i];
  if constexpr (kLearns)
    // All entries are looked up in global memory.
    if (thread == 0) far = learn, far.deep = far.shallow = 0;
  __syncthreads();
  const Ear ear = {net, noted, self};
  const Past past = {far,   learn.rules, learn.traces, learn.counts + (u64)self * net.rows, nullptr, nullptr, known[warp],
                     learn.cell_of + (u64)self * net.pitch, net.rows, self};
  Laps<false, kLaps, kThreads> none;
  const Walk<Laps<false, kLaps, kThreads>> walk = {net, past, none, net.ring + (u64)self * net.steps * net.pitch};
  u64 events = 0;
  unsigned before = 0;  // spikes that were shared out
  for (unsigned t = 0; t < heard.steps; ++t) {
    const u64 step = heard.from + t;
    for (unsigned l = 0; l < heard.count; ++l) {
      if (l == heard.own) continue;
      const unsigned* list = heard.lists + l * heard.pitch;
      const unsigned count = list[heard.head + t], first = (warp - before) % kWarps;
      before += count;
      for (unsigned i = first; i < count; i += 32 * kWarps) {
        const unsigned n = min((count - i + kWarps - 1) / kWarps, 32u);
        const unsigned row = lane < n ? heard.row_of[list[begins[l] + i + lane * kWarps]] : 0;
        if (heard.events != nullptr && self == 0 && lane < n) events += heard.degrees[row];
        if constexpr (kLearns) {
          for (unsigned k = 0; k < n; ++k) walk.row((unsigned)step, __shfl_sync(~0u, row, k));
        } else if (kLong || net.wide) {
          ear.deliver<u64>(step, n, row);
        } else {
          ear.deliver<unsigned>(step, n, row);
        }
      }
    }
    __syncthreads();
    for (unsigned l = thread; l < heard.count; l += kThreads) begins[l] += heard.lists[l * heard.pitch + heard.head + t];
    __syncthreads();
  }
  for (unsigned i = thread; i < (net.room > 0 ? net.steps : 0); i += kThreads) net.noted[(u64)self * net.steps + i] = noted[i];
  for (int reach = 16; reach > 0; reach /= 2) events += __shfl_down_sync(~0u, events, reach);
  if (lane == 0 && events > 0) atomicAdd(heard.events, events);
}

// What a launch logged, in order, as a list to be gathered: whether it is whole, how many spikes, those of each step, their cells.
struct Packed {
  const u64* result;       // steps done, spikes
  const unsigned* counts;  // [steps]
  const unsigned* cells;   // [spikes]
  unsigned* to;            // [2 + steps + room]
  unsigned steps, room;
};

// Any grid.
extern "C" __global__ void __launch_bounds__(256) spiking_pack(const Packed packed) {
  const u64 count = packed.result[1];
  const bool whole = packed.result[0] == packed.steps && count <= packed.room;
  const unsigned first = blockIdx.x * 256 + threadIdx.x, all = gridDim.x * 256;
  if (first == 0) packed.to[0] = whole ? kWhole : kCut, packed.to[1] = (unsigned)count;
  if (!whole) return;
  for (unsigned i = first; i < packed.steps; i += all) packed.to[2 + i] = packed.counts[i];
  for (unsigned i = first; i < count; i += all) packed.to[2 + packed.steps + i] = packed.cells[i];
}

// The shortest delay from a row of `first` or later, which are of cells elsewhere, to a cell here, where it is less than *least. Any
// grid; a warp a row.
extern "C" __global__ void __launch_bounds__(256) spiking_shortest(const Net net, const Learn learn, unsigned first, unsigned* least) {
  const unsigned lane = threadIdx.x % 32;
  const u64 rows = (u64)net.shards * net.rows, threads = gridDim.x * 256ull;
  unsigned shortest = ~0u;
  const auto note = [&](unsigned delay, bool is) {
    if (is && delay < shortest) shortest = delay;
  };
  for (u64 i = (blockIdx.x * 256ull + threadIdx.x) / 32; i < net.local * (rows - first); i += threads / 32) {
    const u64 k = i / (rows - first), row = first + i % (rows - first);
    const unsigned* more = net.first + k * (rows + 1) + row;
    const u64 segment = segment_of(net, k, row), rest = net.base[k] + more[0];
    const unsigned in_segment = net.segment - net.head, all = in_segment + (more[1] - more[0]);
    for (unsigned j = lane; j < all; j += 32) {
      const u64 at = j < in_segment ? segment + net.head + j : rest + (j - in_segment);
      if constexpr (kLearns) {
        const u64 word = (j < in_segment ? (const u64*)net.segments : (const u64*)net.rest)[at];
        // What changes may grow.
        note(((unsigned)word & 0xFFFFu) >> net.slot_bits, rule_of(learn, word) > 0 || word >> 32 != 0);
      } else if (kLong || net.wide) {
        const Synapse s = unpack<true>(net, (j < in_segment ? (const u64*)net.segments : (const u64*)net.rest)[at], net.weights);
        note(s.delay, s.weight != 0);
      } else {
        const Synapse s =
            unpack<true>(net, (j < in_segment ? (const unsigned*)net.segments : (const unsigned*)net.rest)[at], net.weights);
        note(s.delay, s.weight != 0);
      }
    }
  }
  for (int reach = 16; reach > 0; reach /= 2) {
    const unsigned other = __shfl_down_sync(~0u, shortest, reach);
    shortest = other < shortest ? other : shortest;
  }
  if (lane == 0 && shortest != ~0u) atomicMin(least, shortest);
}

// Whether some cell has no room for the entries of `steps` spikes, of kLearns. Any grid.
extern "C" __global__ void __launch_bounds__(256) spiking_room(const Net net, const Learn learn, unsigned steps, unsigned* full) {
  bool none = false;
  for (u64 i = blockIdx.x * 256ull + threadIdx.x; i < (u64)net.local * net.rows; i += gridDim.x * 256ull)
    none |= learn.counts[i] + steps + 3 - learn.kept[i] >= learn.depth;
  if (__any_sync(~0u, none) && threadIdx.x % 32 == 0) *full = 1;
}

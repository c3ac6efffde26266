// Steps of a spiking network, all of a chunk in one launch: one block a shard, all of them resident at once.
//
//   step n:  1. every block learns what fired in step n - 1 and adds the synapses onto its own cells to its ring of future inputs
//            2. its cells advance under slot n of the ring and fire or not
//            3. it tells the others, logs what fired, and draws the drives' arrivals of step n + 1 while that travels
//
// Who computes what: a lane advances a cell; a warp delivers a spike's synapses, 64 at a time of four spikes at once. The ring
// is [steps, pitch] of i32, in shared memory where it fits (kShared), else in global memory. State stays in global memory, and
// thereby in the first cache: nobody else touches it.
//
// Blocks meet once a step, and the meeting carries the spikes: a block's header is one 64-bit word {id of its first spike: 32,
// count: 20, tag: 12}, its further spikes are words {id: 32, tag: 32}. A word is whole whenever its tag is right, so nothing is fenced and nothing
// is counted; there is no memory but these words that two blocks share. They lie in two sets by the step's parity: a block that
// writes those of step n + 2 has seen all headers of step n + 1, and whoever wrote one had read those of step n.
// kReplicas copies of the headers keep the blocks that poll from queueing at one slice of the second cache.
//
// Full microcircuit (77,169 cells, 2.99e8 synapses, 25 spikes and 97,000 events a step) on an H200:
//   bytes   25 rows of 15.5 KB = 0.39 MB a step out of memory: 0.09 us at 4.3 TB/s; offsets 132 x 25 sectors, 0.02 us
//   work    735 additions in shared memory a block, 0.1 us; 585 cells a block, one a thread: 80 instructions of the cell and,
//           off the path, 150 of its Poisson draw; 0.15 us
//   path    exchange 0.7 (two trips to the second cache), offsets 0.4, rows 0.7, addition 0.1, cells 0.3: 2.2 us a step, a
//           real-time factor of 0.022. Latency is the bound, not bandwidth. Measured: 5.4 us, a real-time factor of 0.054.
#include "draws.cuh"
#include "network.cuh"
#include "models.cuh"

struct Run {
  u64* heads;   // [2, kReplicas, shards]; zeros when the launch begins, as boxes
  u64* boxes;   // [2, shards, box]
  u64* log;     // [capacity] (step - from) << 32 | cell
  u64* result;  // [2] steps done, spikes logged
  u64 from;
  u64 capacity;  // at least three times the cells
  unsigned steps, box;
};

// Spikes that a warp has on their way at once: fewer where a synapse may take two registers of 64.
constexpr int kWarps = kThreads / 32, kBatch = kShared || kHeavy ? 4 : 3;
constexpr unsigned kTagBits = 12, kReplicas = 8;

// A word that another block may be writing.
__device__ __forceinline__ u64 peek(const u64* p) { return *(volatile u64*)p; }
__device__ __forceinline__ void poke(u64* p, u64 x) { *(volatile u64*)p = x; }

struct Block {
  const Net& net;
  const Run& run;
  int* ring;
  const unsigned* first;

  __device__ __forceinline__ int* slots(u64 step) const {
    return ring + (u64)((unsigned)step & (net.steps - 1)) * net.pitch;
  }

  template <class Word>
  __device__ __forceinline__ void add(u64 step, Word word) const {
    const Synapse s = unpack(net, word);
    atomicAdd(slots(step + s.delay) + s.slot, s.weight);
  }

  // The synapses of the rows that the lanes in `mask` name. They are read once, and are not to push the offsets out of the
  // second cache.
  template <class Word>
  __device__ __forceinline__ void rows(const Word* synapses, u64 step, unsigned mask, unsigned begin, unsigned length) const {
    const unsigned lane = threadIdx.x % 32;
    while (mask) {
      unsigned at[kBatch], count[kBatch];
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int from = mask ? __ffs(mask) - 1 : 0;
        const unsigned whole = __shfl_sync(~0u, length, from);
        at[u] = __shfl_sync(~0u, begin, from);
        count[u] = mask ? whole : 0;
        mask &= mask - 1;
      }
      Word held[kBatch][2];
#pragma unroll
      for (int u = 0; u < 2 * kBatch; ++u) {
        const unsigned i = lane + u % 2 * 32;
        held[u / 2][u % 2] = i < count[u / 2] ? __ldcs(synapses + at[u / 2] + i) : 0;
      }
#pragma unroll
      for (int u = 0; u < 2 * kBatch; ++u)
        if (lane + u % 2 * 32 < count[u / 2]) add(step, held[u / 2][u % 2]);
#pragma unroll
      for (int u = 0; u < kBatch; ++u)
#pragma unroll 2
        for (unsigned i = lane + 64; i < count[u]; i += 32) add(step, __ldcs(synapses + at[u] + i));
    }
  }

  // Waits for what fired in `step` and delivers it here; adds to `total` and `before` how much fired, and how much in the shards
  // before this one. `heads` is room in shared memory for all headers.
  __device__ __forceinline__ void deliver(u64 step, u64* heads, unsigned* total, unsigned* before) const {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, shards = net.shards;
    const unsigned tag = (unsigned)(step - run.from) + 1, parity = tag % 2;
    // Neighbours wait for neighbours: a warp polls 32 headers, two lines of memory.
    if (threadIdx.x < shards) {
      const u64* at = run.heads + (parity * kReplicas + blockIdx.x % kReplicas) * shards + threadIdx.x;
      u64 head;
      do head = peek(at);
      while (((unsigned)head & ((1u << kTagBits) - 1)) != tag);
      heads[threadIdx.x] = head;
      const unsigned count = (unsigned)head >> kTagBits;
      if (count > 0) {
        atomicAdd(total, count);
        if (threadIdx.x < blockIdx.x) atomicAdd(before, count);
      }
    }
    __syncthreads();
    // Many shards: a header a lane. Few: warps share a header. A warp's spikes, of all its headers, go round its lanes.
    const bool many = shards >= kWarps;
    const unsigned share = many ? 1 : kWarps / shards;
    const unsigned shard = many ? warp + lane * kWarps : warp % shards;
    const bool reads = many ? shard < shards : lane == 0 && warp < share * shards;
    const u64 head = reads ? heads[shard] : 0;
    const unsigned count = (unsigned)head >> kTagBits;
    const unsigned fired = __ballot_sync(~0u, count > 0);
    if (fired == 0) return;
    unsigned end = count;  // of this header's spikes among the warp's
    if (fired & (fired - 1))
      for (unsigned reach = 1; reach < 32; reach *= 2) {
        const unsigned x = __shfl_up_sync(~0u, end, reach);
        if (lane >= reach) end += x;
      }
    const unsigned all = __shfl_sync(~0u, end, 31 - __clz((int)fired));
    const u64* boxes = run.boxes + (u64)parity * shards * run.box;
    for (unsigned i = many ? lane : warp / shards + lane * share; __any_sync(~0u, i < all); i += 32 * share) {
      u64 word = 0;
      const u64* at = nullptr;
      for (unsigned left = fired; left != 0; left &= left - 1) {
        const int from = __ffs((int)left) - 1;
        const unsigned many_there = __shfl_sync(~0u, count, from), k = __shfl_sync(~0u, shard, from);
        const unsigned there = i - (__shfl_sync(~0u, end, from) - many_there);
        const u64 first_there = __shfl_sync(~0u, head, from);
        if (there < many_there) {
          word = first_there;
          at = there > 0 ? boxes + (u64)k * run.box + there : nullptr;
        }
      }
      unsigned begin = 0, length = 0;
      if (i < all) {
        if (at != nullptr) {
          do word = peek(at);
          while ((unsigned)word != tag);
        }
        const unsigned id = (unsigned)(word >> 32);
        begin = __ldg(first + id);
        length = __ldg(first + id + 1) - begin;
      }
      const unsigned mask = __ballot_sync(~0u, length > 0);
      if (!kShared && net.wide)
        rows((const u64*)net.synapses + net.base[blockIdx.x], step, mask, begin, length);
      else
        rows((const unsigned*)net.synapses + net.base[blockIdx.x], step, mask, begin, length);
    }
  }

  __device__ __forceinline__ uint2 task(unsigned i) const { return __ldg(net.tasks + i); }

  // Adds the arrivals of the drives in `step`.
  __device__ __forceinline__ void draw_arrivals(u64 step) const {
    const unsigned last = net.first_task[blockIdx.x + 1];
    for (unsigned t = net.first_task[blockIdx.x] + threadIdx.x / 32; t < last; t += kWarps) {
      const uint2 task = this->task(t);
      const Part& part = net.parts[task.x];
      const unsigned i = task.y + threadIdx.x % 32;
      if (i >= part.count) continue;
      for (unsigned d = part.drive; d < part.drive + part.drives; ++d) {
        const Drive& drive = net.drives[d];
        if (step < drive.start || step >= drive.stop) continue;
        const unsigned bits = draw_word(kDrive, drive.owner, step, part.low + i);
        const int arrivals = reached(bits, drive.thresholds, drive.count);
        if (arrivals > 0)
          atomicAdd(slots(step) + part.slot + drive.port * part.count + i, (int)((unsigned)arrivals * (unsigned)drive.code));
      }
    }
  }

  // The word of `step` for a cell: a draw has those of four steps.
  __device__ __forceinline__ unsigned draw_word(unsigned purpose, unsigned owner, u64 step, unsigned cell) const {
    const Words words = draw(net.seed, purpose, owner, (step / 4) << 32 | cell);
    const unsigned k = (unsigned)step % 4;
    return k < 2 ? (k == 0 ? words.w[0] : words.w[1]) : (k == 2 ? words.w[2] : words.w[3]);
  }

  // What arrives at a cell's port; the slot becomes 0. The first cache knows nothing of additions in global memory.
  __device__ __forceinline__ float arrived(int* now, const Part& part, int port, unsigned i) const {
    int* at = now + part.slot + port * part.count + i;
    int sum;
    if constexpr (kShared) {
      sum = *at;
      if (sum != 0) *at = 0;
    } else {
      sum = __ldcg(at);
      if (sum != 0) __stcg(at, 0);
    }
    return (float)sum * part.unit[port];
  }

  template <class M>
  __device__ __forceinline__ bool dynamics(int* now, const Part& part, unsigned i) const {
    float input[M::kPorts], c[M::kCoefficients], s[M::kVariables];
#pragma unroll
    for (int k = 0; k < M::kVariables; ++k) s[k] = part.state[(u64)k * part.size + i];
    const unsigned each = part.stride > 0;
#pragma unroll
    for (int k = 0; k < M::kCoefficients; ++k) c[k] = part.coefficients[each ? (u64)k * part.stride + i : k];
#pragma unroll
    for (int k = 0; k < M::kPorts; ++k) input[k] = arrived(now, part, k, i);
    const bool fires = M::step(c, s, input);
#pragma unroll
    for (int k = 0; k < M::kVariables; ++k) part.state[(u64)k * part.size + i] = s[k];
    return fires;
  }

  __device__ __forceinline__ bool replayed(const Part& part, u64 key) const {
    unsigned low = 0, count = part.replays;
    while (count > 0) {
      const unsigned half = count / 2;
      const bool right = __ldg(part.replay + low + half) < key;
      low = right ? low + half + 1 : low;
      count = right ? count - half - 1 : half;
    }
    return low < part.replays && __ldg(part.replay + low) == key;
  }

  __device__ __forceinline__ bool fires(int* now, const Part& part, u64 step, unsigned i) const {
    switch (part.model) {
      case kLifExpOne: return dynamics<LifExpOne>(now, part, i);
      case kLifExp: return dynamics<LifExp>(now, part, i);
      case kLifDelta: return dynamics<LifDelta>(now, part, i);
      case kIzhikevich: return dynamics<Izhikevich>(now, part, i);
      case kPoisson:
        return draw_word(kSource, part.owner, step, part.low + i) < __ldg(part.chances + i * part.chance_stride);
      case kReplay: return replayed(part, step << 32 | (part.low + i));
    }
    if constexpr (kHeavy) {
      if (part.model == kLifAlpha) return dynamics<LifAlpha>(now, part, i);
      if (part.model == kLifCond) return dynamics<LifCond>(now, part, i);
      if (part.model == kAdEx) return dynamics<AdEx>(now, part, i);
      if (part.model == kHodgkinHuxley) return dynamics<HodgkinHuxley>(now, part, i);
    }
    return false;
  }

  // Advances the cells; spikes beyond the first go to this block's box, the first to `head`.
  __device__ __forceinline__ void advance(u64 step, unsigned* spikes, unsigned* head) const {
    const unsigned tag = (unsigned)(step - run.from) + 1, last = net.first_task[blockIdx.x + 1];
    u64* box = run.boxes + ((u64)(tag % 2) * net.shards + blockIdx.x) * run.box;
    int* now = slots(step);
    for (unsigned t = net.first_task[blockIdx.x] + threadIdx.x / 32; t < last; t += kWarps) {
      const uint2 task = this->task(t);
      const Part& part = net.parts[task.x];
      const unsigned i = task.y + threadIdx.x % 32;
      const bool fired = i < part.count && fires(now, part, step, i);
      if (fired) {
        const unsigned at = atomicAdd(spikes, 1u), id = part.cell + i;
        if (at == 0)
          *head = id;
        else
          poke(box + at, (u64)id << 32 | tag);
      }
    }
  }

  // This block's spikes of `step`, which are behind `at` others.
  __device__ __forceinline__ void log(u64 step, u64 at, unsigned count, unsigned head) const {
    const unsigned since = (unsigned)(step - run.from);
    const u64* box = run.boxes + ((u64)((since + 1) % 2) * net.shards + blockIdx.x) * run.box;
    for (unsigned i = threadIdx.x; i < count; i += kThreads)
      run.log[at + i] = (u64)since << 32 | (i == 0 ? head : (unsigned)(peek(box + i) >> 32));
  }
};

extern "C" __global__ void __launch_bounds__(kThreads, 1) spiking_steps(const Net net, const Run run) {
  extern __shared__ int held[];
  __shared__ u64 heads[kThreads];
  // By the step's parity: spikes here, the first of them, spikes everywhere and in the shards before this.
  __shared__ unsigned spikes[2], head[2], total[2], before[2], published[2];
  const u64 size = (u64)net.steps * net.pitch;
  int* const kept = net.ring + blockIdx.x * size;
  const Block block = {net, run, kShared ? held : kept, net.first + (u64)blockIdx.x * (net.cells + 1)};
  if (threadIdx.x < 2) spikes[threadIdx.x] = total[threadIdx.x] = before[threadIdx.x] = 0;
  if constexpr (kShared)
    for (u64 i = threadIdx.x; i < size; i += kThreads) held[i] = kept[i];
  __syncthreads();
  block.draw_arrivals(run.from);
  u64 logged = 0, to = run.from + run.steps, at = 0;
  for (u64 step = run.from;; ++step) {
    const unsigned own = (unsigned)(step - run.from) % 2, last = 1 - own;
    if (step > run.from) block.deliver(step - 1, heads, total + last, before + last);
    __syncthreads();
    if (step > run.from) {
      at = logged + before[last];
      logged += total[last];
      // Room for one step more than this, where every cell may fire; all blocks decide alike.
      if (step < to && logged + 2 * (u64)net.cells > run.capacity) to = step + 1;
    }
    if (step < to) block.advance(step, spikes + own, head + own);
    __syncthreads();
    if (step < to && threadIdx.x < 32) {
      const unsigned count = spikes[own], tag = (unsigned)(step - run.from) + 1;
      const u64 word = (u64)(count > 0 ? head[own] : 0) << 32 | count << kTagBits | tag;
      if (threadIdx.x < kReplicas)
        poke(run.heads + ((tag % 2) * kReplicas + threadIdx.x) * net.shards + blockIdx.x, word);
      __syncwarp();
      if (threadIdx.x == 0) published[own] = count, spikes[own] = total[last] = before[last] = 0;
    }
    // From here on nobody waits for this block.
    if (step > run.from) block.log(step - 1, at, published[last], head[last]);
    if (step >= to) break;
    if (step + 1 < to) block.draw_arrivals(step + 1);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    run.result[0] = to - run.from;
    run.result[1] = logged;
  }
  if constexpr (kShared)
    for (u64 i = threadIdx.x; i < size; i += kThreads) kept[i] = held[i];
}

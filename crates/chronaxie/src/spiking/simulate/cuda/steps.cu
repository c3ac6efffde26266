// Steps of a spiking network, all of a chunk in one launch: one block a shard, all of them resident at once.
//
//   step n:  1. every warp learns what some other shards fired in step n - 1 and adds those synapses onto its own block's cells
//            2. its cells advance under what arrives at step n and fire or not
//            3. one warp tells the others and logs what fired; the rest draws arrivals to come while that travels
//
// A lane advances a cell; where a warp has 32 at most (kHeld), their state stays in registers. A warp polls the headers of some
// shards and delivers their spikes; 2^lane_bits lanes take a segment, two words each: one trip to memory brings it.
// What is to arrive lies, by kPlace, in a ring [steps, pitch] of i32 in shared memory; or, for larger shards, in a calendar in
// global memory: a list of {slot: 16, weight: 16} (of kLong 32 each) for each step to come, which is added up in shared memory while blocks wait for
// each other (appending is 4 bytes, where a ring far larger than the second cache has two sectors for each addition), and in
// a ring in global memory what a list has no room for, with states and arrivals in shared memory if they fit (kNear); or, for what has
// more slots than that, in the ring in global memory alone.
//
// Blocks meet once a step, and the meeting carries the spikes: a block's header is one 64-bit word {tag: 12, ends: 1, count:
// id_bits, id: id_bits, ..} with as many of its spikes as it holds, further ones are words {id: 32, tag: 32} in its box. A word
// is whole whenever its tag is right, so nothing is fenced and nothing is counted; there is no memory but these words that two
// blocks share. They lie in two sets by the step's parity: a block that writes those of step n + 2 has seen all headers of step
// n + 1, and whoever wrote one had read those of step n. kReplicas copies of the headers keep the blocks that poll from queueing
// at one slice of the second cache.
//
// A network on several cards (kMany) has a kernel on each, and every block tells all of them: the same words, to a mailbox of each
// card, which its own blocks poll. A word of 64 bits is whole over NVLink too. Every wait ends after `patience`, since the other
// kernel may be gone.
//
// There, unless sums lie in shared memory (kSpread), what fired is listed in shared memory first, and rows are spread over all threads: block.cuh.
//
// Synapses that change (kLearns; sums in shared memory), walk.cuh: a row is listed with its spike, walked when all are known. All
// that is known of a row lies with it in each shard, so cards tell each other nothing but spikes here, too.
//
// Full microcircuit (77,169 cells, 2.99e8 synapses, 25 spikes and 97,000 events a step) on an H200:
//   bytes   25 x 132 segments of 256 bytes = 0.84 MB a step out of memory: 0.2 us at 4.3 TB/s
//   work    735 additions in shared memory a block, 0.1 us; 585 cells a block, one a thread: 60 instructions of the cell and,
//           off the path, 60 of its Poisson draw (four steps at a time); 0.1 us
//   path    exchange 0.7 (two trips to the second cache), segments 0.5, additions 0.1, cells 0.2: 1.5 us a step, a real-time
//           factor of 0.015. Latency is the bound, not bandwidth.
//   Tried: segments of 128 words, since 7 rows a step are longer than 64 and take two trips more (0.050 for 0.042: a warp with three
//   spikes has two rounds of loads); where rows go on looked up beside the segments (0.0425); headers for all warps but the first,
//   which logs (no difference).
// A million cells with a thousand synapses each (dt 0.1 ms, 540 spikes and 540,000 events a step):
//   bytes   540 x 132 segments of 128 bytes = 9.1 MB, calendar written and read 4.3 MB: 3.1 us
//   work    7,576 cells a block: 60 instructions of the cell, 60 of its draw, a warp's for 32: 7,100 cycles of four schedulers
//           in turn = 3.7 us; 4,100 additions and as many appended, 0.5 us. 7 us a step, a real-time factor of 0.07.
//   Measured 14.8: delivery 5.9 and 1.7 of waiting for the slowest warp, drives 2.7, update 2.1, calendar 0.8, waiting for other
//   blocks 0.7. Rows' ends looked up beside all segments: 16.1, as each random trip to memory counts, whatever its bytes.
//   Tried: drives, or half of them, behind the prefetch of segments (21.7, 19.3 for 16.1); both words of a lane in one load (no
//   difference); entries that wait in shared memory until they are a line, for whole lines to global memory (18.5); or by delay,
//   until each warp has delivered 32 spikes, with a meeting of the block and then runs of each delay (18.8); a list for every
//   lane, since places in one list are given one at a time (26.6: so many lines that are not whole leave the second cache).
// At dt 1 ms (4,955 spikes and 4.96 M events a step, 660,000 segments), synapses of eight bytes:
//   bytes   84 MB of segments, calendar 40 MB: 29 us; drives and update as above, 6 us: 35 us, a real-time factor of 0.035.
//   Measured 60: delivery 38 and 5 of waiting, calendar 4.6, drives 3.5, update 2.2. A kernel of nothing else takes 21 us for the loads of
//   the segments, 41 with the calendar's entries, and 55 with a meeting of the blocks and the calendar read.
//   Narrow (kNarrow, narrow.rs), segments of 12 words: two sectors for four, 10 us less; 8 instructions more an event, 1.3 us: 51
//   reckoned. Measured 73.8 (8 and 10 words 77, 14 72, 16 68): bytes do not bind, but rounds of a warp and rows that go on.
#include "draws.cuh"
#include "network.cuh"
#include "models.cuh"
#include "cells.cuh"
#include "block.cuh"

static_assert(!kLearns || kPlace == 0, "rows of synapses that change add to shared memory");
static_assert(!kNear || (kPlace == 1 && !kHeavy), "beside the sums of a calendar");
static_assert(!kMany || !kHeld, "on one card");
static_assert(!kNarrow || (kNear && !kMany), "beside a calendar, on one card");
static_assert(!kLong || (!kNarrow && !kLearns), "eight bytes a synapse; what changes has as many anyway");

extern "C" __global__ void __launch_bounds__(kThreads, 1) 
    spiking_steps(const Net only, const Run given, const Learn known, const Many cards) {
  extern __shared__ int held[];
  __shared__ Part parts[kWarps];
  __shared__ const unsigned* numbers;  // registers are few
  __shared__ unsigned spikes[2], ids[2][kMostIds], ends;  // by the step's parity: how many fired, and the first of them
  __shared__ Rule rules[kMostRules];
  __shared__ Trace traces[kMostTraces];
  __shared__ unsigned listed[2];
  __shared__ Share<kMany> share;
  __shared__ Clocks laps;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, self = kMany ? blockIdx.x % only.local : blockIdx.x;
  if constexpr (kMany) share.take(given, cards, blockIdx.x / only.local);
  const Net& net = share.net(only);
  const Run& run = share.run(given);
  const Many& many = share.many(cards);
  const Learn& learn = kMany ? share.learn(known) : known;
  const u64 size = (u64)net.steps * net.pitch;
  int* const kept = net.ring + self * size;
  unsigned* const noted = (unsigned*)held + net.pitch;
  // Of kNear, behind what is noted: states, arrivals, drives, their thresholds, tasks.
  float* const near = (float*)held + (net.pitch + net.steps);
  unsigned* const near_arrivals = (unsigned*)near + net.near;
  Drive* const near_drives = (Drive*)(held + (net.pitch + net.steps + net.near + net.near_arrivals + 1) / 2 * 2);
  unsigned* const near_thresholds = (unsigned*)(near_drives + net.drive_count);
  unsigned char* const near_guides = (unsigned char*)(near_thresholds + (net.thresholds + 1) / 2 * 2);
  uint2* const near_tasks = (uint2*)near_guides + net.guides / 2;
  const Block block = {net, run, many, laps, self, kShared ? held : kept, held, noted, (Due*)net.calendar + (u64)self * net.steps * net.room,
                       net.first + self * ((u64)net.shards * net.rows + 1)};
  // Of kLearns, behind the ring: the list, what warps' rows are known by, counts, steps, traces, tables, and of each slot its cell.
  unsigned* const list = (unsigned*)held + size;
  unsigned* const entries = list + kListed + 16 * kWarps;
  unsigned* const tables = entries + (u64)net.rows * (1 + learn.deep + learn.shallow * learn.trace_count);
  unsigned short* const cell_of = (unsigned short*)(tables + learn.tables);
  const u64 row = (u64)self * net.rows;
  const Past past = {learn, rules, traces, entries, entries + net.rows, entries + net.rows * (1 + learn.deep),
                     list + kListed + 16 * warp, cell_of, net.rows, self};
  const Walk<Clocks> walk = {net, past, laps, held};
  if (threadIdx.x < 2) listed[threadIdx.x] = 0;
  if constexpr (kLearns) {
    if (threadIdx.x < learn.rule_count) rules[threadIdx.x] = learn.rules[threadIdx.x];
    unsigned begin = 0;
    for (unsigned k = 0; k < learn.trace_count; ++k) {
      const Trace trace = learn.traces[k];
      for (unsigned i = threadIdx.x; i < (learn.tables > 0 ? trace.length : 0); i += kThreads)
        tables[begin + i] = trace.decay[i];
      if (threadIdx.x == 0) {
        traces[k] = trace;
        if (learn.tables > 0) traces[k].decay = tables + begin;
      }
      begin += trace.length;
    }
    for (unsigned i = threadIdx.x; i < net.pitch; i += kThreads) cell_of[i] = learn.cell_of[self * net.pitch + i];
    for (unsigned i = threadIdx.x; i < net.rows; i += kThreads) past.load(i, learn.counts[row + i]);
  }
  if (threadIdx.x < 2) spikes[threadIdx.x] = 0;
  if (threadIdx.x == 2) ends = 0;
  laps.clear();
  if constexpr (kShared)
    for (u64 i = threadIdx.x; i < size; i += kThreads) held[i] = kept[i];
  if constexpr (!kShared)
    for (unsigned i = threadIdx.x; i < net.codes; i += kThreads) held[net.weights_at + i] = net.weights[i];
  if constexpr (kCalendar) {
    for (unsigned i = threadIdx.x; i < net.pitch; i += kThreads) held[i] = 0;
    for (unsigned i = threadIdx.x; i < net.steps; i += kThreads) noted[i] = net.noted[self * net.steps + i];
  }
  // Each warp has as many tasks that lie side by side, and the part of the present one in shared memory.
  const unsigned shard = (kMany ? net.begin : 0) + self;
  const unsigned begin = net.first_task[shard], tasks = net.first_task[shard + 1] - begin;
#ifdef CHRONAXIE_FEW
  __shared__ unsigned put_from[kWarps], put_full;
  const unsigned to = begin + tasks * (warp + 1) / kWarps;
  const Put<kFew && kLearns> from(put_from + warp, begin + tasks * warp / kWarps);
  Put<kFew> full(&put_full, false);
#else
  const unsigned from = begin + tasks * warp / kWarps, to = begin + tasks * (warp + 1) / kWarps;
  bool full = false;
#endif
  const Cells cells = {net, near, near_arrivals, kTables ? near_drives : net.drives, near_thresholds, near_guides, &numbers};
  if constexpr (kMany) {
    if (threadIdx.x == 0) numbers = share.numbers(shard);
    __syncthreads();
  }
  if constexpr (kTables) {
    for (unsigned i = threadIdx.x; i < tasks; i += kThreads) near_tasks[i] = net.tasks[begin + i];
    for (unsigned d = 0; d < net.drive_count; ++d) {
      const Drive drive = net.drives[d];
      if (threadIdx.x == 0) near_drives[d] = drive;
      for (unsigned i = threadIdx.x; i < drive.count; i += kThreads) near_thresholds[drive.before + i] = drive.thresholds[i];
      if (kGuided && drive.guide != kUnguided)
        for (unsigned i = threadIdx.x; i < 1u << kGuideBits; i += kThreads) near_guides[drive.guide + i] = guide_of(drive, i);
    }
    __syncthreads();
  }
  Part& part = parts[warp];
  unsigned present = ~0u;
  const auto turn_to = [&](unsigned t) {
    const uint2 task = kTables ? near_tasks[t - begin] : __ldg(net.tasks + t);
    if (task.x != present) {
      __syncwarp();
      for (unsigned i = lane; i < sizeof(Part) / 4; i += 32)
        ((unsigned*)&part)[i] = __ldg((const unsigned*)(net.parts + task.x) + i);
      __syncwarp();
      present = task.x;
    }
    return task.y + lane;
  };
  Own own;
  unsigned cell = 0;  // of kHeld
  if constexpr (kHeld)
    if (from < to) cell = turn_to(from), cells.begin(part, cell, own);
  for (unsigned t = from; t < to; ++t) {
    const unsigned i = turn_to(t);
    if constexpr (kNear) cells.fetch(part, i, false);
    cells.refill(part, i, run.from / 4, own);
    cells.refill(part, i, run.from / 4 + 1, own);
  }
  __syncthreads();
  if constexpr (kCalendar) block.gather(run.from);
  laps.begin();
  u64 step = run.from;
  const u64 last = run.from + run.steps;
  // Of kMany read again each time, for want of registers.
  const auto steps_here = [&] { return kMany ? *(const volatile u64*)&run.steps : run.steps; };
  for (;; ++step) {
    const unsigned parity = (unsigned)step % 2;
    const unsigned before = (unsigned)(step - 1) % 2;
    if (step > run.from) block.meet(step - 1, &ends, {kSpread ? listed : listed + before, list, learn.more + self * ((u64)net.shards * net.rows)});
    laps.lap(kDelivery);
    __syncthreads();
    laps.lap(kDelivered);
    if constexpr (kSpread)
      if (threadIdx.x < 2) listed[threadIdx.x] = 0;
    if constexpr (kLearns) {
      const unsigned* more = learn.more + self * ((u64)net.shards * net.rows);
      for (unsigned i = warp, count = listed[before]; i < count; i += kWarps)
        walk.row((unsigned)step - 1, i < kListed ? list[i] : more[i]);
      __syncthreads();
      laps.lap(kLearned);
      if (threadIdx.x == 0) listed[before] = 0;
    }
    if constexpr (kCounted)
      if (step - run.from >= steps_here() || ends != 0) break;
    if constexpr (!kCounted)
      if (step >= last || ends != 0) break;
    if constexpr (kCalendar)
      if (threadIdx.x == 0) noted[block.place(step)] = 0;
    if constexpr (kHeld) {
      if (from < to && cell < part.count && cells.fires(block.slots(step), part, step, cell, own))
        block.spike(part, cell, step, spikes + parity, ids[parity]);
    } else {
      // As many at a time as lie in one part.
      for (unsigned t = from, count; t < to; t += count) {
        const unsigned i = turn_to(t);
        count = min(to - t, (part.count - (i - lane) + 31) / 32);
        const auto spike = [&](unsigned i) { block.spike(part, i, step, spikes + parity, ids[parity]); };
        cells.sweep(block.slots(step), part, step, i, count, spike);
      }
    }
    laps.lap(kUpdate);
    __syncthreads();
    laps.lap(kUpdated);
    if (warp == 0) {  // which has no cells of its own where some warp has none
      const unsigned count = spikes[parity];
      __syncwarp();
      if (lane == 0) spikes[parity] = 0;
      full = block.tell(step, count, ids[parity], full, past);
    }
    laps.lap(kTold);
    if constexpr (kCounted)
      if (step + 1 - run.from >= steps_here()) continue;
    if constexpr (!kCounted)
      if (step + 1 == last) continue;
    // A quarter of the tasks a step, alike on all four schedulers.
    for (unsigned t = from; t < to; ++t)
      if ((kHeld ? warp / 4 : t) % 4 == (unsigned)step % 4) cells.refill(part, kHeld ? cell : turn_to(t), step / 4 + 1, own);
    laps.lap(kDrives);
    if constexpr (kCalendar) block.gather(step + 1);
    laps.lap(kGathered);
    laps.turn(step, run.result + 4);
  }
  laps.end(run.result + 4);
  if constexpr (kHeld)
    if (from < to) cells.end(part, cell, own);
  if constexpr (kNear)
    for (unsigned t = from; t < to; ++t) cells.fetch(part, turn_to(t), true);
  if (self == 0 && threadIdx.x == 0) run.result[0] = step - run.from;
  if constexpr (kMany)
    if (threadIdx.x == 0 && (ends & 2)) atomicOr(run.result + 2, kLost);
  if constexpr (kShared)
    for (u64 i = threadIdx.x; i < size; i += kThreads) kept[i] = held[i];
  if constexpr (kLearns)
    for (unsigned i = threadIdx.x; i < net.rows; i += kThreads) learn.counts[row + i] = past.counts[i];
  if constexpr (kCalendar) {
    // A chunk that ended early has gathered what is for its next step.
    const unsigned at = block.place(step);
    if (threadIdx.x == 0 && (kCounted ? step - run.from < steps_here() : step < last)) noted[at] = 0;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < net.pitch; i += kThreads)
      if (held[i] != 0) {
        atomicAdd(kept + (u64)at * net.pitch + i, held[i]);
        atomicOr(noted + at, kSpilt);
      }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < net.steps; i += kThreads) net.noted[self * net.steps + i] = noted[i];
  }
}

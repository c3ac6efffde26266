// Steps of a spiking network, all of a chunk in one launch: one block a shard, all of them resident at once.
//
//   step n:  1. every warp learns what some other shards fired in step n - 1 and adds those synapses onto its own block's cells
//            2. its cells advance under what arrives at step n and fire or not
//            3. one warp tells the others and logs what fired; the rest draws arrivals to come while that travels
//
// A lane advances a cell; where a warp has 32 at most (kHeld), their state stays in registers. A warp polls the headers of some
// shards and delivers their spikes; 2^lane_bits lanes take a segment, two words each: one trip to memory brings it.
// What is to arrive lies, by kPlace, in a ring [steps, pitch] of i32 in shared memory; or, for larger shards, in a calendar in
// global memory: a list of {slot: 16, weight: 16} for each step to come, which is added up in shared memory while blocks wait for
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
#include "walk.cuh"
#include "launch.cuh"
#include "cells.cuh"

static_assert(!kLearns || kPlace == 0, "rows of synapses that change add to shared memory");
static_assert(!kNear || (kPlace == 1 && !kHeavy), "beside the sums of a calendar");
static_assert(!kMany || !kHeld, "on one card");
static_assert(!kNarrow || (kNear && !kMany), "beside a calendar, on one card");

struct Block {
  const Net& net;
  const Run& run;
  const Many& many;
  Laps<kTimed>& laps;
  unsigned number;  // of this block's shard on its card, of kMany
  int* ring;
  int* sums;             // [pitch] of kCalendar: what arrives in the step to come; from net.weights_at on, of !kShared, weights
  unsigned* noted;       // [steps] of kCalendar
  unsigned* calendar;    // [steps, room]
  const unsigned* first;

  __device__ __forceinline__ unsigned self() const { return kMany ? number : blockIdx.x; }
  __device__ __forceinline__ unsigned place(u64 step) const {
    if constexpr (kNarrow) {  // the rest of a step, of which there are less than 2^32, by the length of the ring
      const unsigned rest = (unsigned)step - __umulhi((unsigned)step, net.narrow.turns) * net.steps;
      return rest < net.steps ? rest : rest - net.steps;
    }
    return (unsigned)step & (net.steps - 1);
  }
  __device__ __forceinline__ int* slots(u64 step) const { return kCalendar ? sums : ring + (u64)place(step) * net.pitch; }

  // A synapse of a spike of a step, of kNarrow of its place.
  template <class Word>
  __device__ __forceinline__ void add(u64 step, Word word) const {
    Synapse s;
    if constexpr (kNarrow)
      s = unpack_narrow(net, word);
    else
      s = unpack<!kShared>(net, word, sums + net.weights_at);
    if (s.weight == 0) return;
    const unsigned late = (unsigned)step + s.delay, when = kNarrow ? late - (late < net.steps ? 0 : net.steps) : place(step + s.delay);
    if constexpr (kCalendar) {
      if (s.delay == 1) {
        atomicAdd(sums + s.slot, s.weight);
        return;
      }
      const unsigned at = atomicAdd(noted + when, 1u) & ~kSpilt;
      if (at < net.room) {
        __stcg(calendar + (u64)when * net.room + at, (unsigned)s.weight << 16 | s.slot);
        return;
      }
    }
    if constexpr (kShared)
      atomicAdd(ring + when * net.pitch + s.slot, s.weight);
    else
      atomicAdd(ring + (u64)when * net.pitch + s.slot, s.weight);
  }

  // Adds the first n lanes' rows. Segments are read once, and are not to push anything out of the second cache.
  template <class Word>
  __device__ __forceinline__ void deliver(u64 step, unsigned n, unsigned row) const {
    const unsigned lane = threadIdx.x % 32, bits = net.lane_bits, per = 1u << bits, groups = 32u >> bits;
    const u64 rows = (u64)net.shards * net.rows;
    const u64 now = kNarrow ? place(step) : step;
    unsigned over = n == 32 ? ~0u : (1u << n) - 1;  // rows that are not all in their segments
    // Where a row goes on, if it does. Where marks cannot say so, of kNear, on its way beside the segments, since some row of many
    // does, and all wait for it; but not where there are so many that the bytes count.
    constexpr bool kSaid = sizeof(Word) == 8 && !(kMany && kThreads == 1024);  // which has no registers for it
    const bool early = sizeof(Word) == 4 && kNear && !kMany && !kNarrow && n < 32;
    bool unsaid = !early;  // whether `first` is asked
    unsigned begin = 0, end = 0;
    const auto look = [&] {
      const bool own = over >> lane & 1;
      if constexpr (kNarrow) {  // which has none, either, but its last two words again
        const u64 past = (self() * rows + row + 1) * net.segment;
        const uint2 mark = own ? *(const uint2*)((const unsigned*)net.segments + past - 2) : uint2{0, 0};
        begin = mark.x, end = begin + (mark.y >> net.slot_bits);
        if (end - begin == most_following(net)) end = begin + 1 + ((const unsigned*)net.rest + net.base[self()])[begin], ++begin;
        return;
      }
      begin = own ? __ldg(first + row) : 0, end = own ? __ldg(first + row + 1) : 0;
    };
    if (early) look();
    if (kNarrow || net.segment > 0) {
      over = 0, unsaid = !kSaid && !early;
      // As many bytes on their way with either word.
      constexpr bool kTwice = (kThreads < 1024 || (kLoose && !kMany)) && !kShared && sizeof(Word) == 4;
      constexpr int kAtOnce = kNarrow ? kNarrowBatch : kTwice ? 2 * kBatch : kBatch;
      const u64 before = kNarrow ? self() * rows * net.segment : self() * rows << (bits + 1);
      const Word* segments = (const Word*)net.segments + before + (lane & (per - 1));
      // Of kNarrow some lanes have one word, and one the last.
      const unsigned second = (lane & (per - 1)) + per;
      for (unsigned j = lane >> bits; __any_sync(~0u, j < n); j += groups * kAtOnce) {
        Word held[kAtOnce][2];
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          const unsigned k = j + u * groups, here = __shfl_sync(~0u, row, k % 32);
          const Word* at = segments + (kNarrow ? here * net.segment : (u64)here << (bits + 1));
          held[u][0] = k < n ? __ldcs(at) : 0;
          held[u][1] = k < n && (!kNarrow || second < net.segment) ? __ldcs(at + per) : 0;
        }
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          unsigned marks = 0;
          if constexpr (kNarrow) marks = __ballot_sync(~0u, second + 1 == net.segment && is_narrow_marker(net, held[u][1]));
          add(now, held[u][0]);
          add(now, kNarrow && (marks | marks >> 1) >> lane & 1 ? 0 : held[u][1]);  // neither a mark nor what is before it
          if constexpr (!kNarrow) marks = __ballot_sync(~0u, is_marker(net, held[u][1]));
          for (; marks != 0; marks &= marks - 1) {
            const int from = __ffs((int)marks) - 1;
            const unsigned k = __shfl_sync(~0u, j, from) + u * groups;
            over |= 1u << k;
            if constexpr (kSaid) {
              const unsigned said = __shfl_sync(~0u, (unsigned)(held[u][1] >> 32), from);
              if (said == kUnsaid) unsaid = true;
              if (lane == k) begin = said >> kRestBits, end = begin + (said & ((1u << kRestBits) - 1));
            }
          }
        }
      }
    }
    if (over == 0) return;
    if (unsaid) look();
    const Word* rest = (const Word*)net.rest + net.base[self()];
    if constexpr (kNarrow) {
      // One row in some twenty goes on, by few synapses: eight lanes take a row, so that four of them take one trip.
      while (over != 0) {
        unsigned own = over;
#pragma unroll
        for (unsigned k = 0; k < 4; ++k) own &= k < lane / 8 ? own - 1 : ~0u, over &= over - 1;
        const int from = __ffs((int)own) - 1;
        unsigned i = __shfl_sync(~0u, begin, from) + lane % 8;
        const unsigned last = __shfl_sync(~0u, end, from);
        for (; own != 0 && i < last; i += 8) add(now, __ldcs(rest + i));
        __syncwarp();
      }
      return;
    }
    for (; over != 0; over &= over - 1) {
      const int from = __ffs((int)over) - 1;
      const unsigned last = __shfl_sync(~0u, end, from);
#pragma unroll 2
      for (unsigned i = __shfl_sync(~0u, begin, from) + lane; i < last; i += 32) add(now, __ldcs(rest + i));
    }
  }

  // Blocks that tell each other in each step: those of all cards, or, where some cards are elsewhere, of those here, whose shards are the
  // first ones.
  __device__ __forceinline__ unsigned meeting() const { return kMany ? many.meeting : net.shards; }
  // Where a card's blocks find what fired; the boxes lie behind the headers.
  __device__ __forceinline__ u64* heads(unsigned card) const { return kMany ? many.mails[card] : run.heads; }
  __device__ __forceinline__ u64* boxes(unsigned card) const { return kMany ? heads(card) + 2 * kReplicas * meeting() : run.boxes; }

  // A word that another block may be writing, once the bits of `mask` are its tag's; 0 where it is lost.
  __device__ __forceinline__ u64 await(const u64* at, unsigned mask, unsigned tag, unsigned* ends) const {
    u64 word, since = 0;
    unsigned looks = 0;
    do {
      word = peek(at);
      if constexpr (kMany)
        if (++looks % 1024 == 0) {
          const u64 now = nanoseconds();
          if (since == 0) since = now;
          if (now - since > many.patience) {
            atomicOr(ends, 2u);
            return 0;
          }
        }
    } while (((unsigned)word & mask) != tag);
    return word;
  }

  // Waits for what fired in `step` and delivers it here; `ends` where some block says that the chunk does.
  __device__ __forceinline__ void meet(u64 step, unsigned* ends, const List& list) const {
    const unsigned each = kEven ? meeting() / kWarps + 2 : (meeting() + kWarps - 1) / kWarps;
    if constexpr (kMany || (kEven && kWarps < 32))
      for (unsigned done = 0; done < each; done += 32) meet_some(step, ends, list, each, done);
    else
      meet_some(step, ends, list, each, 0);
  }

  // Of each warp's headers those from `done` on, one a lane.
  __device__ __forceinline__ void meet_some(u64 step, unsigned* ends, const List& list, unsigned each, unsigned done) const {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, shards = meeting();
    const unsigned tag = (unsigned)(step - run.from) + 1, parity = tag % 2;
    // Many shards: some headers a warp, one a lane. Few: warps share a header.
    const bool plenty = shards >= kWarps;
    const unsigned share = plenty ? 1 : kWarps / shards, own = done + lane;
    // A warp's first and last header may be another's too, and their spikes are divided: warps have as many, where there are many.
    const unsigned low = kEven ? shards * warp : 0, high = kEven ? low + shards : 0;
    const unsigned shard = !plenty ? warp % shards : kEven ? low / kWarps + own : warp * each + own;
    const bool reads = plenty ? own < each && (kEven ? shard * kWarps < high : shard < shards) : lane == 0 && warp < share * shards;
    const unsigned card = kMany ? many.own : 0;
    u64 head = 0;
    if (reads) {
      const u64* at = heads(card) + (parity * kReplicas + self() % kReplicas) * shards + shard;
      head = await(at, (1u << kTagBits) - 1, tag, ends);
      if ((unsigned)head >> kTagBits & 1) atomicOr(ends, 1u);
    }
    __syncwarp();
    laps.lap(0);
    unsigned count = (unsigned)(head >> (kTagBits + 1)) & ((1u << net.id_bits) - 1), others = 0;
    if (kEven && plenty && count > 0) {
      const unsigned before = shard * kWarps;
      others = before < low ? count * (low - before) / kWarps : 0;
      count = (high - before < kWarps ? count * (high - before) / kWarps : count) - others;
    }
    const unsigned fired = __ballot_sync(~0u, count > 0);
    if (fired == 0) return;
    unsigned end = count;  // of this header's spikes among the warp's
    if (fired & (fired - 1))
      for (unsigned reach = 1; reach < 32; reach *= 2) {
        const unsigned x = __shfl_up_sync(~0u, end, reach);
        if (lane >= reach) end += x;
      }
    const unsigned all = __shfl_sync(~0u, end, 31 - __clz((int)fired));
    const u64* box = boxes(card) + (u64)parity * shards * net.rows;
    const auto find = [&](unsigned i) {
      unsigned row = 0;
      const u64* at = nullptr;
      for (unsigned left = fired; left != 0; left &= left - 1) {
        const int from = __ffs((int)left) - 1;
        const unsigned many_there = __shfl_sync(~0u, count, from), k = __shfl_sync(~0u, shard, from) * net.rows;
        const unsigned there = i - (__shfl_sync(~0u, end, from) - many_there);
        const unsigned spike = there + (kEven ? __shfl_sync(~0u, others, from) : 0);
        const u64 head_there = __shfl_sync(~0u, head, from);
        if (there < many_there) {
          row = k;
          if (spike < net.ids)
            row += (unsigned)(head_there >> (kTagBits + 1 + (spike + 1) * net.id_bits)) & ((1u << net.id_bits) - 1);
          else
            at = box + k + spike;
        }
      }
      if (at != nullptr) row += (unsigned)(await(at, ~0u, tag, ends) >> 32);
      return row;
    };
    unsigned i = plenty ? lane : warp / shards + lane * share, next = kAhead ? find(i) : 0;
    for (; __any_sync(~0u, i < all); i += 32 * share) {
      const unsigned row = kAhead ? next : find(i);
      // Segments come to the second cache, of kAhead while it is found out what comes behind them.
      if constexpr (kEven)
        if (i < all) prefetch(row);
      if constexpr (kAhead) {
        if (__any_sync(~0u, i + 32 * share < all)) next = find(i + 32 * share);
      }
      if constexpr (kLearns) {
        if (i < all) list.push(row);
        continue;
      }
      const unsigned n = __popc(__ballot_sync(~0u, i < all));
      if constexpr (!kNarrow) {
        if (!kShared && net.wide) {
          deliver<u64>(step, n, row);
          continue;
        }
      }
      deliver<unsigned>(step, n, row);
    }
  }

  // A row's segment to the second cache.
  __device__ __forceinline__ void prefetch(unsigned row) const {
    const unsigned bytes = net.segment * (net.wide ? 8 : 4);
    const char* at = (const char*)net.segments + (self() * ((u64)net.shards * net.rows) + row) * bytes;
    for (unsigned k = 0; k < bytes; k += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(at + k));
    if constexpr (kNarrow) asm volatile("prefetch.global.L2 [%0];" ::"l"(at + bytes - 4));  // which begins anywhere
  }

  // Adds what the calendar has for `step`, which nobody adds to any more.
  __device__ __forceinline__ void gather(u64 step) const {
    const unsigned here = noted[place(step)], count = min(here & ~kSpilt, net.room);
    const unsigned* from = calendar + (u64)place(step) * net.room;
    const auto take = [&](unsigned entry) { atomicAdd(sums + (entry & 0xFFFFu), (int)entry >> 16); };
    if constexpr (kMany) {  // which has no registers for whole pieces of 16 bytes
#pragma unroll 4
      for (unsigned i = threadIdx.x; i < count; i += kThreads) take(__ldcg(from + i));
    } else {
#pragma unroll 2
      for (unsigned i = 4 * threadIdx.x; i < count; i += 4 * kThreads) {
        const uint4 some = __ldcg((const uint4*)(from + i));
        const unsigned entries[4] = {some.x, some.y, some.z, some.w};
#pragma unroll
        for (unsigned k = 0; k < 4; ++k)
          if (i + k < count) take(entries[k]);
      }
    }
    if (here > net.room) {
      int* spilt = ring + (u64)place(step) * net.pitch;
      for (unsigned i = threadIdx.x; i < net.pitch; i += kThreads) {
        const int sum = __ldcg(spilt + i);
        if (sum == 0) continue;
        atomicAdd(sums + i, sum);
        __stcg(spilt + i, 0);
      }
    }
  }

  // A cell fired: the first spikes go to `ids`, others to this block's box.
  __device__ __forceinline__ void spike(const Part& part, unsigned i, u64 step, unsigned* spikes, unsigned* ids) const {
    const unsigned at = atomicAdd(spikes, 1u), id = part.local + i, tag = (unsigned)(step - run.from) + 1;
    if (at < net.ids)
      ids[at] = id;
    else
      for (unsigned card = 0; card < (kMany ? many.count : 1); ++card)
        poke(boxes(card) + ((u64)(tag % 2) * meeting() + (kMany ? net.begin : 0) + self()) * net.rows + at, (u64)id << 32 | tag);
  }

  // One warp tells the others what fired here, and logs it; `past` remembers it. Returns whether there may be no room for what
  // comes.
  __device__ __forceinline__ bool tell(
      u64 step, unsigned count, const unsigned* ids, bool ends, const Past& past) const {
    const unsigned lane = threadIdx.x % 32, since = (unsigned)(step - run.from), tag = since + 1;
    u64 head = (u64)count << (kTagBits + 1) | (unsigned)ends << kTagBits | tag;
#pragma unroll
    for (unsigned k = 0; k < kMostIds; ++k)
      if (k < net.ids && k < count) head |= (u64)ids[k] << (kTagBits + 1 + (k + 1) * net.id_bits);
    const unsigned shard = (kMany ? net.begin : 0) + self();
    for (unsigned copy = lane; copy < (kMany ? many.count * kReplicas : kReplicas); copy += 32)
      poke(heads(copy / kReplicas) + (tag % 2 * kReplicas + copy % kReplicas) * meeting() + shard, head);
    // From here on nobody waits for this warp but its own block.
    if (count == 0) return ends;
    const u64* box = boxes(kMany ? many.own : 0) + ((u64)(tag % 2) * meeting() + shard) * net.rows;
    u64 at = lane == 0 ? atomicAdd(run.result + 1, (u64)count) : 0;
    at = __shfl_sync(~0u, at, 0);
    bool full = false;
    for (unsigned i = lane; i < count; i += 32) {
      const unsigned id = i < net.ids ? ids[i] : (unsigned)(peek(box + i) >> 32), row = shard * net.rows + id;
      run.log[at + i] = (u64)since << 32 | row;
      if constexpr (kLearns) full |= past.remember(id, (unsigned)step, past.learn.kept[kMany ? self() * net.rows + id : row]);
    }
    if constexpr (kLearns) {
      full = __any_sync(~0u, full);
      if constexpr (kMany) {
        if (full && lane == 0) atomicOr(run.result + 2, kFull);
      } else {
        if (full && lane == 0) run.result[2] = kFull;
      }
    }
    // The others of this step, and two more steps, may still be logged.
    return ends || full || at + count + 3 * (u64)net.cells > run.capacity;
  }
};

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
  __shared__ Laps<kTimed> laps;
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
  uint2* const near_tasks = (uint2*)(near_thresholds + (net.thresholds + 1) / 2 * 2);
  const Block block = {net, run, many, laps, self, kShared ? held : kept, held, noted, net.calendar + (u64)self * net.steps * net.room,
                       net.first + self * ((u64)net.shards * net.rows + 1)};
  // Of kLearns, behind the ring: the list, what warps' rows are known by, counts, steps, traces, tables, and of each slot its cell.
  unsigned* const list = (unsigned*)held + size;
  unsigned* const entries = list + kListed + 16 * kWarps;
  unsigned* const tables = entries + (u64)net.rows * (1 + learn.deep + learn.shallow * learn.trace_count);
  unsigned short* const cell_of = (unsigned short*)(tables + learn.tables);
  const u64 row = (u64)self * net.rows;
  const Past past = {learn, rules, traces, entries, entries + net.rows, entries + net.rows * (1 + learn.deep),
                     list + kListed + 16 * warp, cell_of, net.rows, self};
  const Walk walk = {net, past, held};
  if constexpr (kLearns) {
    if (threadIdx.x < 2) listed[threadIdx.x] = 0;
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
  const Cells cells = {net, near, near_arrivals, kTables ? near_drives : net.drives, near_thresholds, &numbers};
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
  for (;; ++step) {
    const unsigned parity = (unsigned)step % 2;
    const unsigned before = (unsigned)(step - 1) % 2;
    if (step > run.from) block.meet(step - 1, &ends, {listed + before, list, learn.more + self * ((u64)net.shards * net.rows)});
    laps.lap(1);
    __syncthreads();
    laps.lap(2);
    if constexpr (kLearns) {
      const unsigned* more = learn.more + self * ((u64)net.shards * net.rows);
      for (unsigned i = warp, count = listed[before]; i < count; i += kWarps)
        walk.row((unsigned)step - 1, i < kListed ? list[i] : more[i]);
      __syncthreads();
      if (threadIdx.x == 0) listed[before] = 0;
    }
    if constexpr (kCounted)
      if (step - run.from >= run.steps || ends != 0) break;
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
    laps.lap(3);
    __syncthreads();
    laps.lap(4);
    if (warp == 0) {  // which has no cells of its own where some warp has none
      const unsigned count = spikes[parity];
      __syncwarp();
      if (lane == 0) spikes[parity] = 0;
      full = block.tell(step, count, ids[parity], full, past);
    }
    laps.lap(5);
    if constexpr (kCounted)
      if (step + 1 - run.from >= run.steps) continue;
    if constexpr (!kCounted)
      if (step + 1 == last) continue;
    // A quarter of the tasks a step, alike on all four schedulers.
    for (unsigned t = from; t < to; ++t)
      if ((kHeld ? warp / 4 : t) % 4 == (unsigned)step % 4) cells.refill(part, kHeld ? cell : turn_to(t), step / 4 + 1, own);
    laps.lap(6);
    if constexpr (kCalendar) block.gather(step + 1);
    laps.lap(7);
  }
  laps.end(run.result);
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
    if (threadIdx.x == 0 && step < last) noted[at] = 0;
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

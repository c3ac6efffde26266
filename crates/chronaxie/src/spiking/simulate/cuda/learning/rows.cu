// What the host asks of rows of synapses that change, between launches: their strengths, in an order that it knows; other
// strengths; and that all of them catch up, so that entries can be dropped. A warp a cell's row, shard after shard; of a network on
// several cards those that are here, in which `local` of the shards are.
//
// Full microcircuit (217 million synapses that change in 5.2 GB of segments) on an H200: 1.2 ms to read them, 1.2 ms to write them
// back, and a look at each target's entries: 217 million x 2 sectors of 32 bytes, 14 GB out of the second cache, 2 ms.
#include "rows.cuh"

enum What { kCount, kList, kSet, kSettle };

struct Ask {
  const unsigned* row_of;   // [cells]
  const unsigned* cells_of; // [shards, rows] the network's cell of each row
  const u64* begin;         // [cells + 1] of kList and kSet: where a cell's synapses begin
  u64* keys;                // delay << 41 | rule << 32 | target, from begin[from] on
  unsigned* strengths;      // likewise
  unsigned* counts;         // [cells] of kCount
  unsigned what, from, to, now;
  unsigned oldest, unused;  // of kSettle: entries of this step and later are all asked for
};

extern "C" __global__ void __launch_bounds__(256, 2) spiking_visit(const Net net, const Learn learn, const Ask ask) {
  const unsigned lane = threadIdx.x % 32, below_me = (1u << lane) - 1;
  const u64 rows = (u64)net.shards * net.rows, threads = gridDim.x * 256ull;
  for (u64 cell = ask.from + (blockIdx.x * 256ull + threadIdx.x) / 32; cell < ask.to; cell += threads / 32) {
    const u64 row = ask.row_of[cell];
    u64 at = ask.begin != nullptr ? ask.begin[cell] - ask.begin[ask.from] : 0;
    for (unsigned k = 0; k < net.local; ++k) {
      u64* segment = (u64*)net.segments + segment_of(net, k, row);
      const unsigned* first = net.first + k * (rows + 1) + row;
      u64* rest = (u64*)net.rest + net.base[k] + first[0];
      const unsigned* known = (const unsigned*)segment;
      const unsigned in_segment = net.segment - net.head, all = in_segment + (first[1] - first[0]);
      const Entries past = {learn, learn.history + (u64)k * net.rows * learn.depth * learn.width};
      for (unsigned i = lane; __any_sync(~0u, i < all); i += 32) {
        u64* place = i < in_segment ? segment + net.head + i : rest + (i - in_segment);
        const u64 word = i < all ? *place : 0;
        const unsigned kind = rule_of(learn, word);
        const unsigned here = __ballot_sync(~0u, kind > 0);
        const u64 out = at + __popc(here & below_me);
        at += __popc(here);
        if (kind == 0 || ask.what == kCount) continue;
        const Rule& rule = learn.rules[kind - 1];
        const unsigned low = (unsigned)word & 0xFFFFu, delay = low >> net.slot_bits;
        const unsigned target = learn.cell_of[k * net.pitch + (low & ((1u << net.slot_bits) - 1))];
        unsigned strength = (unsigned)(word >> 32), until = 0;
        if (rule.kind & 1) {
          const unsigned count = learn.counts[k * net.rows + target];
          until = before(past, target, count, ask.now, delay);
          if (ask.what != kSet)
            strength = caught_up(learn, past, rule, word, target, count, delay, until, known[0], known[1 + rule.x]);
        }
        if (ask.what == kList) {
          ask.keys[out] = (u64)delay << 41 | (u64)(kind - 1) << 32 | ask.cells_of[(net.begin + k) * net.rows + target];
          ask.strengths[out] = strength;
        } else {
          *place = with(learn, word, until, ask.what == kSet ? ask.strengths[out] : strength);
        }
      }
    }
    if (ask.what == kCount && lane == 0) ask.counts[cell] = (unsigned)at;
    const u64 own = row - (u64)net.begin * net.rows;
    if (ask.what == kSettle && lane == 0 && own < (u64)net.local * net.rows) {
      // The last before `oldest`, and what follows.
      const unsigned kept = learn.kept[own];
      unsigned from = learn.counts[own];
      const u64 base = own * learn.depth;
      while (from > kept && learn.history[(base + ((from - 1) & (learn.depth - 1))) * learn.width] >= ask.oldest) --from;
      if (from > kept) learn.kept[own] = from - 1;
    }
  }
}

// What every row is known by in the shards that are here: the last entry of its cell ([shards, rows, width]), or nothing.
extern "C" __global__ void __launch_bounds__(256) spiking_heads(const Net net, const Learn learn, const unsigned* entries) {
  const u64 rows = (u64)net.shards * net.rows;
  for (u64 i = blockIdx.x * 256ull + threadIdx.x; i < net.local * rows; i += gridDim.x * 256ull) {
    unsigned* head = (unsigned*)((u64*)net.segments + segment_of(net, i / rows, i % rows));
    const unsigned* entry = entries + i % rows * learn.width;
    for (unsigned k = 0; k < learn.width; ++k) head[k] = entries != nullptr ? entry[k] : k == 0 ? kNone : 0;
  }
}

// Adds what recent spikes (step << 32 | row) send to step `now` and later by synapses that do not change, times `sign`. One
// block a shard, a warp a spike.
extern "C" __global__ void __launch_bounds__(256)
    spiking_early(const Net net, const Learn learn, int* ring, const u64* recent, u64 count, u64 now, int sign) {
  const u64 rows = (u64)net.shards * net.rows, shard = blockIdx.x;
  const unsigned* first = net.first + shard * (rows + 1);
  ring += shard * net.steps * net.pitch;
  for (u64 i = threadIdx.x / 32; i < count; i += 8) {
    const u64 step = recent[i] >> 32, row = (unsigned)recent[i];
    const u64* segment = (const u64*)net.segments + segment_of(net, shard, row) + net.head;
    const u64* rest = (const u64*)net.rest + net.base[shard] + first[row];
    const unsigned in_segment = net.segment - net.head, all = in_segment + (first[row + 1] - first[row]);
    for (unsigned j = threadIdx.x % 32; j < all; j += 32) {
      const u64 word = j < in_segment ? segment[j] : rest[j - in_segment];
      const unsigned low = (unsigned)word & 0xFFFFu, slot = low & ((1u << net.slot_bits) - 1);
      const u64 when = step + (low >> net.slot_bits);
      if (rule_of(learn, word) == 0 && word >> 32 != 0 && when >= now)
        atomicAdd(ring + ((unsigned)when & (net.steps - 1)) * (u64)net.pitch + slot, sign * (int)(word >> 32));
    }
  }
}

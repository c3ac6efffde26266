// What a snapshot takes of rows of synapses that change, so that the next launch of steps may follow at once: strengths as they are,
// grown by what came before the last spike that passed, or before all were last brought up to date (`settled`), and what is needed to
// catch up. In an order that follows from the network and from which cells each shard has: by shard, in it by source, delay, rule, target.
//
//   spiking_arrange   once: each row's synapses in this order, those that do not change behind them; how many of them change
//   spiking_take      strengths to a list, and their sum (`mixed` of snapshot.rs); begin [local, cells + 1] says where a row's begin
//   spiking_put       the inverse; before it spiking_check, how many strengths are beyond their bounds
//   spiking_total     the sum of a list
//   spiking_last      each cell's last entry before a step; the steps of all that are kept
//
// Full microcircuit on an H200 (217 million synapses that change, of 299, on 132 shards): 1.74 GB of words of eight bytes to read, of
// rows of 27 in segments of 64 (217 bytes in 7.8 sectors of 32: 2.5 GB), 0.87 GB to write, 0.08 of begins and rows: 3.4 GB, 0.86 ms at 4
// TB/s. Measured 1.39 ms (2026-11-28: memory at 44 %, the second cache at 61 %), and 0.015 for the entries. A first form brought each
// synapse up to date: 4.4, 5.7 and 6.2 ms after 0.5, 1 and 1.5 s of a run, 2.9 to 3.9 G instructions of a warp, since a warp walks through
// as many entries as the lane that has most. Of the 228 instructions a row before there were entries to walk, 67 were addresses.
#include "rows.cuh"

struct Take {
  const unsigned* row_of;    // [cells] of the network
  const unsigned* cells_of;  // [shards, rows] the network's cell of each row
  const unsigned* begin;     // [local, cells + 1] where a cell's synapses begin in a shard's list
  const u64* base;           // [local] where a shard's list begins
  unsigned* strengths;       // [base of the last shard + its synapses]
  unsigned* counts;          // [local, cells] of spiking_arrange; of spiking_last [local, rows, width]
  unsigned* steps;           // [local, rows, 1 + depth] of spiking_last: entries ever left, and of those kept the steps
  u64* sum;                  // what is added to: hashes; of spiking_check a one for each
  u64 first;                 // the number of the first strength, of those of all cards
  unsigned cells, settled, oldest, sorts;  // sorts: of spiking_arrange, whether rows are put in order, or counted alone
};

__device__ __forceinline__ u64 mixed(u64 index, unsigned number) {
  const unsigned place = (unsigned)index + 1;
  return (u64)(number ^ place * 0x9E3779B1u) * (number * 0x85EBCA6Bu + place * 0xC2B2AE35u);
}

// A row of a shard: the words of its segment, but for its head and a mark that it goes on, and those beyond.
struct Row {
  u64 *segment, *rest;
  unsigned here, all;

  __device__ __forceinline__ u64* at(unsigned i) const { return i < here ? segment + i : rest + (i - here); }
};
__device__ __forceinline__ Row row_at(const Net& net, unsigned k, u64 row) {
  const unsigned* first = net.first + k * ((u64)net.shards * net.rows + 1) + row;
  const unsigned begin = first[0], beyond = first[1] - begin, room = net.segment - net.head;
  // Where there are segments at all; a row that goes on says so in its segment's last word.
  const unsigned here = room > 0 && beyond > 0 ? room - 1 : room;
  return {(u64*)net.segments + segment_of(net, k, row) + net.head, (u64*)net.rest + net.base[k] + begin, here, here + beyond};
}

struct Key {
  u64 high, low;
};
__device__ __forceinline__ bool operator<(const Key& a, const Key& b) {
  return a.high != b.high ? a.high < b.high : a.low < b.low;
}
__device__ __forceinline__ Key key_of(const Net& net, const Learn& learn, const Take& ask, unsigned k, u64 word) {
  if (word == 0) return {~0ull, 0};
  const unsigned kind = rule_of(learn, word), low = (unsigned)word & 0xFFFFu;
  if (kind == 0) return {1ull << 63, word};
  const unsigned cell = learn.cell_of[k * net.pitch + (low & ((1u << net.slot_bits) - 1))];
  const u64 target = ask.cells_of[(net.begin + k) * net.rows + cell];
  return {(u64)(low >> net.slot_bits) << 41 | (u64)(kind - 1) << 32 | target, word >> 32};
}

// A warp a row. Pairs are put in order until all are: every comparison leaves the smaller one before the other, so that what lies
// beyond the end would be greater than all and never moves, however many words there are.
extern "C" __global__ void __launch_bounds__(256) spiking_arrange(const Net net, const Learn learn, const Take ask) {
  const unsigned lane = threadIdx.x % 32;
  const u64 tasks = (u64)net.local * ask.cells;
  for (u64 task = (blockIdx.x * 256ull + threadIdx.x) / 32; task < tasks; task += gridDim.x * 8ull) {
    const unsigned k = (unsigned)(task / ask.cells), cell = (unsigned)(task % ask.cells);
    const Row row = row_at(net, k, ask.row_of[cell]);
    const unsigned n = row.all;
    for (unsigned size = 2; ask.sorts && size / 2 < n; size *= 2) {
      for (unsigned by = size - 1; by > 0; by = by == size - 1 ? size / 4 : by / 2) {
        for (unsigned i = lane; i < n; i += 32) {
          const unsigned other = i ^ by;
          if (other <= i || other >= n) continue;
          u64 *const a = row.at(i), *const b = row.at(other);
          const u64 x = *a, y = *b;
          if (x != y && key_of(net, learn, ask, k, y) < key_of(net, learn, ask, k, x)) *a = y, *b = x;
        }
        __syncwarp();
      }
    }
    unsigned changing = 0;
    for (unsigned i = lane; i < n; i += 32) changing += rule_of(learn, *row.at(i)) > 0;
    for (int by = 16; by > 0; by /= 2) changing += __shfl_xor_sync(~0u, changing, by);
    if (lane == 0) ask.counts[task] = changing;
  }
}

constexpr int kTakers = 512;
// Blocks a multiprocessor; of more registers elsewhere.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
constexpr int kTakersAtOnce = 3;
#else
constexpr int kTakersAtOnce = 2;
#endif
enum What { kTake, kPut, kCheck };

// Blocks: [slice of the sources, shard].
template <int kWhat>
__device__ __forceinline__ void go(const Net& net, const Learn& learn, const Take& ask) {
  const unsigned k = blockIdx.x % net.local, slice = blockIdx.x / net.local, slices = gridDim.x / net.local;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Entries past = {learn, learn.history + (u64)k * net.rows * learn.depth * learn.width};
  const unsigned* begins = ask.begin + k * (ask.cells + 1ull);
  unsigned* list = ask.strengths + ask.base[k];
  const u64 number = ask.first + ask.base[k];
  const unsigned room = net.segment - net.head;
  u64 sum = 0;
  const unsigned end = (unsigned)((u64)ask.cells * (slice + 1) / slices), pitch = 8 * net.by_row;
  unsigned cell = (unsigned)((u64)ask.cells * slice / slices) + warp;
  char* const segments = (char*)((u64*)net.segments + k * net.by_shard);
  // Of a source: where its synapses begin in the list and end, and its row, loaded two sources ahead; its words, and the last spike
  // that has passed, one ahead: a warp would wait for each trip to memory. Nothing is reckoned with what is under way.
  struct Source {
    unsigned begin, end, row;
  };
  auto source = [&](unsigned which) -> Source {
    if (which >= end) return {0, 0, 0};
    return {__ldg(begins + which), __ldg(begins + which + 1), __ldg(ask.row_of + which)};
  };
  auto word_of = [&](const u64* segment, unsigned count) { return lane < count && lane < room ? segment[net.head + lane] : 0; };
  auto head_of = [&](const u64* segment) { return kWhat == kPut ? *(const unsigned*)segment : 0; };
  Source next = source(cell);
  unsigned begin = next.begin, count = next.end - next.begin, row = next.row;
  u64* segment = (u64*)(segments + (u64)row * pitch);
  u64 word = word_of(segment, count);
  unsigned head = head_of(segment);
  next = source(cell + kTakers / 32);
  for (; cell < end; cell += kTakers / 32) {
    const unsigned next_count = next.end - next.begin, next_begin = next.begin, next_row = next.row;
    u64* const next_segment = (u64*)(segments + (u64)next_row * pitch);
    const u64 next_word = word_of(next_segment, next_count);
    const unsigned next_head = head_of(next_segment);
    next = source(cell + 2 * (kTakers / 32));
    // Where it goes on is not looked for unless it may.
    Row own = {segment + net.head, nullptr, room, count};
    if (count >= room) own = row_at(net, k, row);
    const unsigned last = head;
    for (unsigned first = 0; first < count; first += 32) {
      const unsigned i = first + lane;
      const bool here = i < count;
      if (here && (first > 0 || i >= own.here)) word = *own.at(i);
      if (!here) continue;
      unsigned* const at = list + begin + i;
      if (kWhat == kTake) {
        const unsigned strength = (unsigned)(word >> 32);
        __stcs(at, strength);
        sum += mixed(number + begin + i, strength);
        continue;
      }
      const Rule& rule = learn.rules[rule_of(learn, word) - 1];
      if (kWhat == kCheck) {
        sum += *at < rule.low || *at > rule.high;
        continue;
      }
      unsigned until = 0;
      if (rule.kind & 1) {
        const unsigned low = (unsigned)word & 0xFFFFu, delay = low >> net.slot_bits;
        const unsigned target = learn.cell_of[k * net.pitch + (low & ((1u << net.slot_bits) - 1))];
        const unsigned since = last == kNone || last < ask.settled ? ask.settled : last;
        // Entries of this step and later are yet to be heard of.
        until = learn.counts[k * net.rows + target];
        while (until > 0 && past.step(target, until - 1, 0) + delay >= since) --until;
      }
      *own.at(i) = with(learn, word, until, *at);
    }
    begin = next_begin, count = next_count, row = next_row, segment = next_segment, word = next_word, head = next_head;
  }
  if (kWhat == kPut) return;
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (lane == 0) atomicAdd(ask.sum, sum);
}

extern "C" __global__ void __launch_bounds__(kTakers, kTakersAtOnce) spiking_take(const Net net, const Learn learn, const Take ask) {
  go<kTake>(net, learn, ask);
}
extern "C" __global__ void __launch_bounds__(kTakers, 2) spiking_put(const Net net, const Learn learn, const Take ask) {
  go<kPut>(net, learn, ask);
}
extern "C" __global__ void __launch_bounds__(kTakers, 2) spiking_check(const Net net, const Learn learn, const Take ask) {
  go<kCheck>(net, learn, ask);
}

// Of `count` numbers, the first of which is number `first`.
extern "C" __global__ void __launch_bounds__(256) spiking_total(const unsigned* numbers, u64 count, u64 first, u64* out) {
  u64 sum = 0;
  for (u64 i = blockIdx.x * 256ull + threadIdx.x; i < count; i += gridDim.x * 256ull) sum += mixed(first + i, numbers[i]);
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (threadIdx.x % 32 == 0) atomicAdd(out, sum);
}

// A warp a row of the card's own cells.
extern "C" __global__ void __launch_bounds__(256) spiking_last(const Net net, const Learn learn, const Take ask) {
  const unsigned rows = net.local * net.rows, lane = threadIdx.x % 32;
  for (unsigned i = (blockIdx.x * 256 + threadIdx.x) / 32; i < rows; i += gridDim.x * 8) {
    const unsigned count = learn.counts[i], depth = learn.depth, kept = count < depth ? count : depth;
    const unsigned *history = learn.history + (u64)i * depth * learn.width, least = count - kept;
    unsigned *steps = ask.steps + i * (depth + 1ull), before = 0;  // how many of those kept lie before `oldest`: they ascend
    if (lane == 0) steps[0] = count;
    for (unsigned j = lane; __any_sync(~0u, j < kept); j += 32) {
      const unsigned step = j < kept ? history[((least + j) & (depth - 1)) * learn.width] : kNone;
      if (j < kept) steps[1 + j] = step;
      before += __popc(__ballot_sync(~0u, step < ask.oldest));
    }
    const unsigned* last = history + ((least + before - 1) & (depth - 1)) * learn.width;
    for (unsigned j = lane; j < learn.width; j += 32)
      ask.counts[(u64)i * learn.width + j] = before > 0 ? last[j] : j == 0 ? kNone : 0;
  }
}

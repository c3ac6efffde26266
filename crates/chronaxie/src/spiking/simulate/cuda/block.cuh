// What a resident block does of a step beside its own cells: it learns what fired, delivers it, and tells what fired here.
//
// Of several cards with many cells (kSpread) a block hears of more rows, each with fewer synapses here: of four million cells with a thousand
// synapses on four cards 2167 a step, with 1.9. Rows are listed, their segments of 4 words (8 bytes each) sent for, then read by two lanes
// each, five at once. Bytes: 2167 x 132 x 32 = 9.2 MB a step, 2.7 us at 3.35 TB/s; entries of the calendar, 541,000 writes of 4 bytes each to a sector
// of its own, 3.4 us if each of 96 slices of the second cache takes one a clock. Measured on four H100s 28.1 us a step: 6.1 until the list is made,
// 13.1 delivery with the waits in it, 5.4 the cells (bench-results/2026-11-27-h100-gpus, which says what else was tried). A row's segments
// of all shards side by side take 3.3 us less than apart; on one card, with segments of 128 bytes, 0.3 to 0.7 more.
#pragma once
#include "launch.cuh"
#include "walk.cuh"

// Of kSpread: a row that is not known yet, since a box has it; lanes that take a place together where a row goes on. A quarter as many
// such places are listed as rows.
constexpr unsigned kBoxed = 1u << 31, kTogether = 4;
template <class Word>
struct Pair {
  typedef uint2 Of;
};
template <>
struct Pair<u64> {
  typedef ulonglong2 Of;
};

struct Block {
  const Net& net;
  const Run& run;
  const Many& many;
  Clocks& laps;
  unsigned number;  // of this block's shard on its card, of kMany
  int* ring;
  int* sums;             // [pitch] of kCalendar: what arrives in the step to come; from net.weights_at on, of !kShared, weights
  unsigned* noted;       // [steps] of kCalendar
  Due* calendar;         // [steps, room]
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
    add(step, unpack_word(word));
  }
  template <class Word>
  __device__ __forceinline__ Synapse unpack_word(Word word) const {
    if constexpr (kNarrow) return unpack_narrow(net, (unsigned)word);
    return unpack<!kShared>(net, word, sums + net.weights_at);
  }
  __device__ __forceinline__ void add(u64 step, Synapse s) const {
    if (s.weight == 0) return;
    const unsigned late = (unsigned)step + s.delay, when = kNarrow ? late - (late < net.steps ? 0 : net.steps) : place(step + s.delay);
    if constexpr (kCalendar) {
      if (s.delay == 1) {
        atomicAdd(sums + s.slot, s.weight);
        return;
      }
      const unsigned at = atomicAdd(noted + when, 1u) & ~kSpilt;
      if (at < net.room) {
        __stcg(calendar + (u64)when * net.room + at, due(s));
        return;
      }
    }
    if constexpr (kShared)
      atomicAdd(ring + when * net.pitch + s.slot, s.weight);
    else
      atomicAdd(ring + (u64)when * net.pitch + s.slot, s.weight);
  }

  // Likewise words side by side, so that places in lists are waited for once.
  template <class Word, int kN>
  __device__ __forceinline__ void add_all(u64 step, const Word (&words)[kN]) const {
    if constexpr (!kCalendar || kSideBySide == 1) {
#pragma unroll
      for (int k = 0; k < kN; ++k) add(step, words[k]);
      return;
    }
    unsigned at[kN], when[kN];
    Due entry[kN];
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      const Synapse s = unpack_word(words[k]);
      const unsigned late = (unsigned)step + s.delay;
      when[k] = kNarrow ? late - (late < net.steps ? 0 : net.steps) : place(step + s.delay);
      entry[k] = due(s), at[k] = kSpilt;
      if (s.weight != 0 && s.delay == 1) atomicAdd(sums + s.slot, s.weight);
      if (s.weight != 0 && s.delay != 1) at[k] = atomicAdd(noted + when[k], 1u) & ~kSpilt;
    }
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      if (at[k] < net.room)
        __stcg(calendar + (u64)when[k] * net.room + at[k], entry[k]);
      else if (at[k] != kSpilt)
        atomicAdd(ring + (u64)when[k] * net.pitch + slot_of(entry[k]), weight_of(entry[k]));
    }
  }

  // Adds the first n lanes' rows. Segments are read once, and are not to push anything out of the second cache.
  template <class Word>
  __device__ __forceinline__ void deliver(u64 step, unsigned n, unsigned row) const {
    const unsigned lane = threadIdx.x % 32, bits = net.lane_bits, per = 1u << bits, groups = 32u >> bits;
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
        const u64 past = segment_of(net, self(), row) + net.segment;
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
      const Word* segments = (const Word*)net.segments + self() * net.by_shard + (lane & (per - 1));
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
          if constexpr (kNarrow) {  // which has no registers for both at once
            add(now, held[u][0]);
            add(now, (marks | marks >> 1) >> lane & 1 ? 0 : held[u][1]);  // neither a mark nor what is before it
          } else {
            add_all(now, held[u]);
          }
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

  // Waits for what fired in `step` and delivers it here; `ends` where some block says that the chunk does. All threads take part.
  __device__ __forceinline__ void meet(u64 step, unsigned* ends, const List& list) const {
    if constexpr (kSpread) return meet_and_spread(step, ends, list.count);
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
    laps.lap(kHeaders);
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
      if constexpr (kLong) {
        deliver<u64>(step, n, row);
        continue;
      }
      if constexpr (!kNarrow) {
        if (!kShared && net.wide) {
          deliver<u64>(step, n, row);
          continue;
        }
      }
      if constexpr (!kLong) deliver<unsigned>(step, n, row);
    }
  }

  // Likewise of kSpread, in three turns of the whole block. What fired is listed, a header a lane; the words of boxes are waited for
  // by as many lanes as there are, and segments sent for. Then the list's segments are read, each by two words a lane, and where a row
  // goes on is listed, too; then what follows those.
  __device__ __forceinline__ void meet_and_spread(u64 step, unsigned* ends, unsigned* listed) const {
    unsigned* const list = (unsigned*)sums + net.spread_at;
    gather_rows(step, ends, listed, list);
    laps.lap(kHeaders);
    __syncthreads();
    const unsigned count = min(listed[0], net.spread);
    uint2* const over = (uint2*)(list + net.spread);
    if constexpr (kLong) return spread_out<u64>(step, count, list, listed + 1, over);
    if (net.wide)
      spread_out<u64>(step, count, list, listed + 1, over);
    else
      spread_out<unsigned>(step, count, list, listed + 1, over);
  }

  // A row of what fired, of a header and its number there.
  __device__ __forceinline__ unsigned id_of(u64 head, unsigned k) const {
    return (unsigned)(head >> (kTagBits + 1 + (k + 1) * net.id_bits)) & ((1u << net.id_bits) - 1);
  }
  __device__ __forceinline__ unsigned boxed(const u64* box, unsigned shard, unsigned k, unsigned tag, unsigned* ends) const {
    return shard * net.rows + (unsigned)(await(box + (u64)shard * net.rows + k, ~0u, tag, ends) >> 32);
  }

  __device__ __forceinline__ void gather_rows(u64 step, unsigned* ends, unsigned* listed, unsigned* list) const {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, shards = meeting();
    const unsigned tag = (unsigned)(step - run.from) + 1, parity = tag % 2, each = (shards + kWarps - 1) / kWarps;
    const unsigned card = kMany ? many.own : 0;
    const u64* const box = boxes(card) + (u64)parity * shards * net.rows;
    for (unsigned done = 0; done < each; done += 32) {
      const unsigned own = done + lane, shard = warp * each + own;
      u64 head = 0;
      if (own < each && shard < shards) {
        head = await(heads(card) + (parity * kReplicas + self() % kReplicas) * shards + shard, (1u << kTagBits) - 1, tag, ends);
        if ((unsigned)head >> kTagBits & 1) atomicOr(ends, 1u);
      }
      __syncwarp();
      const unsigned count = (unsigned)(head >> (kTagBits + 1)) & ((1u << net.id_bits) - 1);
      if (!__any_sync(~0u, count > 0)) continue;
      unsigned end = count;
#pragma unroll
      for (unsigned reach = 1; reach < 32; reach *= 2) {
        const unsigned x = __shfl_up_sync(~0u, end, reach);
        if (lane >= reach) end += x;
      }
      const unsigned all = __shfl_sync(~0u, end, 31);
      const unsigned base = __shfl_sync(~0u, lane == 0 ? atomicAdd(listed, all) : 0, 0), at = base + end - count;
      const unsigned held = at < net.spread ? min(count, net.spread - at) : 0;
      for (unsigned k = 0; k < held; ++k) list[at + k] = k < net.ids ? shard * net.rows + id_of(head, k) : kBoxed | k << 12 | shard;
      __syncwarp();
      for (unsigned i = base + lane; i < min(base + all, net.spread); i += 32) {
        unsigned row = list[i];
        if (row & kBoxed) list[i] = row = boxed(box, row & 0xFFFu, (row & ~kBoxed) >> 12, tag, ends);
        if (net.segment > 0) prefetch(row);
      }
      // What there is no room for, by its header's lane.
#pragma unroll 1
      for (unsigned k = held; k < count; ++k) {
        const unsigned row = k < net.ids ? shard * net.rows + id_of(head, k) : boxed(box, shard, k, tag, ends);
        deliver_alone(step, row);
      }
      __syncwarp();
    }
  }

  // Where a row goes on, of kSpread: what its segment's last word says, or, if it says nothing, `{row, kUnsaid}`.
  __device__ __forceinline__ uint2 goes_on(unsigned row, u64 marker) const {
    const unsigned said = (unsigned)(marker >> 32), begin = said >> kRestBits;
    return said == kUnsaid ? uint2{row, kUnsaid} : uint2{begin, begin + (said & ((1u << kRestBits) - 1))};
  }
  __device__ __forceinline__ uint2 goes_on(unsigned row, unsigned) const { return {row, kUnsaid}; }

  // The synapses of a place in `rest`, from `sub` on every `stride`-th.
  template <class Word>
  __device__ __forceinline__ void deliver_rest(u64 step, uint2 where, unsigned sub, unsigned stride) const {
    const Word* rest = (const Word*)net.rest + net.base[self()];
    if (where.y == kUnsaid) where = {__ldg(first + where.x), __ldg(first + where.x + 1)};
#pragma unroll 1
    for (unsigned i = where.x + sub; i < where.y; i += stride) add(step, __ldcs(rest + i));
  }

  // A row, by one lane, of any words.
  __device__ __forceinline__ void deliver_alone(u64 step, unsigned row) const {
    const u64 at = segment_of(net, self(), row), rest = net.base[self()];
    const unsigned held = net.segment, more = __ldg(first + row), all = held + (__ldg(first + row + 1) - more);
#pragma unroll 1
    for (unsigned k = 0; k < all; ++k) {
      const void* words = k < held ? net.segments : net.rest;
      const u64 i = k < held ? at + k : rest + more + (k - held);
      if (kLong || net.wide)
        add(step, unpack<!kShared>(net, ((const u64*)words)[i], sums + net.weights_at));
      else
        add(step, unpack_word(((const unsigned*)words)[i]));
    }
  }

  template <class Word>
  __device__ __forceinline__ void spread_out(u64 step, unsigned count, const unsigned* list, unsigned* overs, uint2* over) const {
    typedef typename Pair<Word>::Of Two;
    if (net.segment == 0) {
      for (unsigned j = threadIdx.x / kTogether; j < count; j += kThreads / kTogether)
        deliver_rest<Word>(step, {list[j], kUnsaid}, threadIdx.x % kTogether, kTogether);
      return;
    }
    const unsigned groups = kThreads >> net.lane_bits, sub = threadIdx.x & ((1u << net.lane_bits) - 1);
    const Two* const segments = (const Two*)((const Word*)net.segments + self() * net.by_shard) + sub;
    const unsigned pitch = net.by_row / 2;
    for (unsigned j = threadIdx.x >> net.lane_bits; j < count; j += groups * kSpreadBatch) {
      Two held[kSpreadBatch];
#pragma unroll
      for (int u = 0; u < kSpreadBatch; ++u) {
        const unsigned k = j + u * groups;
        held[u] = k < count ? __ldcs(segments + (u64)list[k] * pitch) : Two{0, 0};
      }
#pragma unroll
      for (int u = 0; u < kSpreadBatch; u += kSideBySide) {
        constexpr int kWords = 2 * kSideBySide;
        Word words[kWords];
#pragma unroll
        for (int v = 0; v < kSideBySide; ++v) {
          words[2 * v] = words[2 * v + 1] = 0;
          if (u + v >= kSpreadBatch) continue;
          const Word word = (Word)held[u + v].x, last = (Word)held[u + v].y;
          words[2 * v] = word;
          if (!is_marker(net, last)) {
            words[2 * v + 1] = last;
            continue;
          }
          const uint2 where = goes_on(list[j + (u + v) * groups], last);
          const unsigned at = atomicAdd(overs, 1u);
          if (at < net.spread / 4)
            over[at] = where;
          else
            deliver_rest<Word>(step, where, 0, 1);
        }
        add_all(step, words);
      }
    }
    __syncthreads();
    const unsigned rows = min(*overs, net.spread / 4);
    for (unsigned j = threadIdx.x / kTogether; j < rows; j += kThreads / kTogether)
      deliver_rest<Word>(step, over[j], threadIdx.x % kTogether, kTogether);
  }

  // A row's segment to the second cache.
  __device__ __forceinline__ void prefetch(unsigned row) const {
    const unsigned size = kLong || net.wide ? 8 : 4, bytes = net.segment * size;
    const char* at = (const char*)net.segments + segment_of(net, self(), row) * size;
    for (unsigned k = 0; k < bytes; k += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(at + k));
    if constexpr (kNarrow) asm volatile("prefetch.global.L2 [%0];" ::"l"(at + bytes - 4));  // which begins anywhere
  }

  // Adds what the calendar has for `step`, which nobody adds to any more.
  __device__ __forceinline__ void gather(u64 step) const {
    const unsigned here = noted[place(step)], count = min(here & ~kSpilt, net.room);
    const Due* from = calendar + (u64)place(step) * net.room;
    const auto take = [&](Due entry) { atomicAdd(sums + slot_of(entry), weight_of(entry)); };
    if constexpr (kMany) {  // which has no registers for whole pieces of 16 bytes
#pragma unroll 4
      for (unsigned i = threadIdx.x; i < count; i += kThreads) take(__ldcg(from + i));
    } else if constexpr (kLong) {
#pragma unroll 2
      for (unsigned i = 2 * threadIdx.x; i < count; i += 2 * kThreads) {
        const ulonglong2 two = __ldcg((const ulonglong2*)(from + i));
        take(two.x);
        if (i + 1 < count) take(two.y);
      }
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

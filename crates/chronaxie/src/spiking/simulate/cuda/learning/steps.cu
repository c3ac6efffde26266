// Steps of a network whose synapses change, or are drawn again at each spike (drawn.cuh), all of a chunk in one launch: a grid whose
// blocks are all resident at once.
//
//   step n:  1. cells advance under what arrives at step n; those that fire are listed, and leave an entry behind
//            2. the grid meets
//            3. the rows of those that fired are walked: what a synapse passes on is added to the ring of future inputs, and
//               synapses that change catch up with what the cells behind them did, then lose
//            4. the grid meets
//
// Who computes what: a lane advances a cell; a warp takes 32 synapses of a row, one a lane. Every synapse has one writer a
// step, sums are whole numbers, and what a synapse catches up with follows from entries alone, so that blocks do not show.
// What another block has written is read past the first cache. See spiking/plasticity/README.md for the rule.
//
//   ring [steps, ports, cells] of i32; history [cells, depth, width] entries; counts [cells] entries ever left
//   rows that do not change: words {slot: 32, delay: 16, weight: 16}, of kLong {slot and delay: 32, weight: 32}; that do: {cell, delay, rule} in 32 bits, and strengths
//
// Full microcircuit with every excitatory synapse changing, on an H200, a step (25 spikes, 71,000 + 26,000 events):
//   bytes   71,000 x (8 read, 4 written) + 26,000 x 8 read = 1.06 MB: 0.25 us at 4.3 TB/s
//   second cache  71,000 entries of 32 bytes and counts of 32, 97,000 additions: 7.6 MB of sectors at 7 TB/s, 1.1 us
//   path    two meetings 2.4, cells 0.4, list, degrees and a scan 1.2, row 0.7, count and entries 0.8, addition 0.3: 5.8 us a step,
//           a real-time factor of 0.058. Latency is the bound, not bandwidth.
//
// kWide is for delays before synapses and rules beyond the timing of pairs (events.cuh): in phase 3 of step n, what comes out of
// axons in step n + 1 is passed too, by a list for each row of where its delays begin. Nobody fires between that and step n + 1,
// and a synapse has its delay on one side, so it still has one writer. Arrivals of a launch's first step are passed before it: between
// launches a state is the CPU's.
//
// The same network with all delays axonal, estimated for an H200, a step (25 spikes, 1600 under way, in 8 lists of rows):
//   bytes         as above, 1.06 MB: 0.25 us at 4.28 TB/s; lists of delays in the second cache: 12,800 x 0.6 KB, 1.1 us at 7 TB/s
//   instructions  12,800 warps x (80 to find a delay + 250 for five or six synapses) over 132 x 4 a clock: 4.6 us
// Dendritic, each excitatory synapse under a modulator that jumps every 50 steps, with 3 spikes of a synapse's source a second:
//   bytes         71,000 x (12 read, 8 written) + 26,000 x 8 = 1.6 MB: 0.38 us at 4.28 TB/s
//   instructions  71,000 / 32 x (150 + 67 jumps x 90 and 1.2 spikes behind x 130): 14 million over 132 x 4 a clock, 15 us
//
// A network on several cards (kMany): each has the synapses onto its own cells, and entries of all cells, since both sides of a
// synapse leave some. Between phases 2 and 3 cards tell each other what fired, as words {cell: 32, tag: 32} behind a header with their
// number, in two sets by the step's parity: who writes those of step n + 2 has seen all headers of n + 1, and whoever wrote one had
// read those of n. A word is whole whenever its tag is right. All cards log all spikes, count alike, and so end a launch alike. A
// step takes a meeting and a trip to the other cards more, 1.2 + 2 us, and 12 bytes of a peer's memory a spike and other card.
#include "drawn.cuh"
#include "events.cuh"

static_assert(kChanges || !kWide, "rules are of synapses that change");

constexpr unsigned kWarps = kThreads / 32;
typedef Laps<kTimed, kGridLaps, kThreads> Clocks;

struct Grid {
  const Net& net;
  const Run& run;
  const Wide& wide;
  const Many& many;
  Clocks& laps;

  // All blocks are here before one goes on, and what they wrote before is seen after. Waiting for the block is the part of a step that is
  // given, for the others the one after it.
  __device__ __forceinline__ void meet(unsigned& target, int lap) const {
    __syncthreads();
    laps.lap(lap);
    target += gridDim.x;
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(run.arrived, 1u);
      while ((int)(peek(run.arrived) - target) < 0) {
      }
      __threadfence();
    }
    __syncthreads();
    laps.lap(lap + 1);
  }

  __device__ __forceinline__ int* slots(u64 step) const {
    return net.ring + (u64)((unsigned)step & (net.steps - 1)) * net.ports * net.cells;
  }

  __device__ __forceinline__ u64 seed(const Part& part) const {
    if constexpr (kSeeds) return __ldg(net.seeds + part.replica);
    return net.seed;
  }

  __device__ __forceinline__ unsigned draw_word(const Part& part, unsigned purpose, unsigned owner, u64 step, unsigned cell) const {
    const Words words = draw(seed(part), purpose, owner, (step / 4) << 32 | cell);
    const unsigned k = (unsigned)step % 4;
    return k < 2 ? (k == 0 ? words.w[0] : words.w[1]) : (k == 2 ? words.w[2] : words.w[3]);
  }

  // What arrives at a cell's port; the slot becomes 0.
  __device__ __forceinline__ float arrived(const Part& part, u64 step, unsigned port, unsigned i) const {
    int* at = slots(step) + (u64)port * net.cells + part.cell + i;
    unsigned sum = (unsigned)__ldcg(at);
    if (sum != 0) __stcg(at, 0);
    for (unsigned d = part.drive; d < part.drive + part.drives; ++d) {
      const Drive& drive = net.drives[d];
      if (drive.port != port || step < drive.start || step >= drive.stop) continue;
      const unsigned bits = draw_word(part, kDrive, drive.owner, step, i);
      sum += (unsigned)reached(bits, drive.thresholds, drive.count) * (unsigned)drive.code;
    }
    return (float)(int)sum * part.unit[port];
  }

  template <class M>
  __device__ __forceinline__ bool dynamics(const Part& part, u64 step, unsigned i) const {
    float input[M::kPorts], c[M::kCoefficients], s[M::kVariables];
#pragma unroll
    for (int k = 0; k < M::kVariables; ++k) s[k] = part.state[(u64)k * part.count + i];
#pragma unroll
    for (int k = 0; k < M::kCoefficients; ++k)
      c[k] = part.coefficients[part.stride > 0 ? (u64)k * part.stride + i : k];
#pragma unroll
    for (int k = 0; k < M::kPorts; ++k) input[k] = arrived(part, step, k, i);
    const bool fires = M::step(c, s, input);
#pragma unroll
    for (int k = 0; k < M::kVariables; ++k) part.state[(u64)k * part.count + i] = s[k];
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

  __device__ __forceinline__ bool fires(const Part& part, u64 step, unsigned i) const {
    switch (part.model) {
      case kLifExpOne: return dynamics<LifExpOne>(part, step, i);
      case kLifExp: return dynamics<LifExp>(part, step, i);
      case kLifDelta: return dynamics<LifDelta>(part, step, i);
      case kIzhikevich: return dynamics<Izhikevich>(part, step, i);
      case kPoisson: return draw_word(part, kSource, part.owner, step, i) < __ldg(part.chances + i * part.chance_stride);
      case kReplay: return replayed(part, step << 32 | i);
    }
    if constexpr (kHeavy) {
      if (part.model == kLifAlpha) return dynamics<LifAlpha>(part, step, i);
      if (part.model == kLifCond) return dynamics<LifCond>(part, step, i);
      if (part.model == kAdEx) return dynamics<AdEx>(part, step, i);
      if (part.model == kHodgkinHuxley) return dynamics<HodgkinHuxley>(part, step, i);
    }
    return false;
  }

  // The entry of a spike, where synapses ask for such.
  __device__ __forceinline__ void remember(unsigned cell, unsigned step) const {
    if constexpr (!kChanges) return;
    const unsigned count = __ldcg(net.counts + cell), traces = net.trace_count;
    const unsigned* last = count > 0 ? entry(net, cell, count - 1) : nullptr;
    unsigned* out = entry(net, cell, count);
    const unsigned past = last != nullptr ? step - __ldcg(last) : 0;
    for (unsigned k = 0; k < traces; ++k) {
      unsigned value = 0;
      if (last != nullptr) {
        if constexpr (kWide)
          value = trace_after(net.traces, k, last + 1, past);
        else
          value = later(net.traces[k], __ldcg(last + 1 + k), past);
      }
      __stcg(out + 1 + k, value);
    }
    for (unsigned k = 0; k < net.short_count; ++k) {
      const Short s = net.shorts[k];
      unsigned u = s.u, x = kOne;
      if (last != nullptr) {
        u = __ldcg(last + 1 + traces + 2 * k), x = __ldcg(last + 2 + traces + 2 * k);
        next_short(s, past, u, x);
      }
      __stcg(out + 1 + traces + 2 * k, u);
      __stcg(out + 2 + traces + 2 * k, x);
    }
    __stcg(out, step);
    __stcg(net.counts + cell, count + 1);
    // The next one might have no room.
    if (count + 1 - net.kept[cell] >= net.depth) poke(run.full, 1);
  }

  // Of kWide: what a cell's spike, or that there was none, is for windows of scaling and for modulators.
  __device__ __forceinline__ void note(unsigned population, unsigned cell, unsigned step, bool fired) const {
    for (unsigned k = 0; k < wide.scaling_count; ++k) {
      const Scaling s = wide.scalings[k];
      unsigned* at = wide.spikes + (u64)k * net.cells + cell;
      // A count stays until the next window begins, so that a state between the two has it.
      const bool begins = step > 0 && step % s.window == 0, ends = (step + 1) % s.window == 0;
      if (!begins && !ends && !fired) continue;
      const unsigned count = (begins ? 0 : *at) + (fired ? 1 : 0);
      *at = count;
      const unsigned window = (step + 1) / s.window & (wide.windows - 1);
      if (ends) __stcg(wide.factors + ((u64)k * wide.windows + window) * net.cells + cell, factor(s, count));
    }
    for (unsigned k = 0; fired && k < wide.modulator_count; ++k)
      if (wide.modulators[k].population == population) atomicAdd(wide.jumps + 4 * k + kFresh + (step & 1), 1u);
  }

  // Of kMany: a word of another card, once it has this tag; 0 where that card is lost.
  __device__ __forceinline__ u64 await(const u64* at, unsigned tag) const {
    u64 word, since = 0;
    unsigned looks = 0;
    while ((unsigned)(word = peek(at)) != tag)
      if (++looks % 1024 == 0) {
        const u64 now = nanoseconds();
        if (since == 0) since = now;
        if (now - since > many.patience) {
          poke(many.lost, 1);
          return 0;
        }
      }
    return word;
  }

  // Of kMany: tells the other cards what fired here in `step`, begin .. end of the log, and takes up what fired there behind it.
  // Returns where that ends.
  __device__ __forceinline__ u64 exchange(u64 step, u64 begin, u64 end, u64 (&heads)[kMany ? kMostCards : 1]) const {
    const unsigned tag = (unsigned)step + 1, parity = tag % 2;
    const u64 thread = blockIdx.x * (u64)kThreads + threadIdx.x, threads = (u64)gridDim.x * kThreads;
    const u64 count = end - begin;
    for (unsigned card = 0; card < many.count; ++card) {
      if (card == many.own) continue;
      u64* box = many.mails[card] + 2 * many.count + (u64)(parity * many.count + many.own) * net.cells;
      for (u64 i = thread; i < count; i += threads) poke(box + i, __ldcg(run.log + begin + i) << 32 | tag);
      if (thread == 0) poke(many.mails[card] + parity * many.count + many.own, count << 32 | tag);
    }
    const u64* mail = many.mails[many.own];
    if (threadIdx.x < many.count && threadIdx.x != many.own) heads[threadIdx.x] = await(mail + parity * many.count + threadIdx.x, tag);
    __syncthreads();
    for (unsigned card = 0; card < many.count; ++card) {
      if (card == many.own) continue;
      const u64 there = heads[card] >> 32;
      const u64* box = mail + 2 * many.count + (u64)(parity * many.count + card) * net.cells;
      for (u64 i = thread; i < there; i += threads) {
        const u64 word = await(box + i, tag);
        if (word == 0) break;
        const unsigned cell = (unsigned)(word >> 32);
        __stcg(run.log + end + i, (step - run.from) << 32 | cell);
        remember(cell, (unsigned)step);
        for (unsigned k = 0; kWide && k < wide.modulator_count; ++k) {
          const Part& carriers = net.parts[wide.modulators[k].population];
          if (cell - carriers.cell < carriers.count) atomicAdd(wide.jumps + 4 * k + kFresh + ((unsigned)step & 1), 1u);
        }
      }
      end += there;
    }
    return end;
  }

  // Of kWide, by block 0: spikes of modulators in the last step become jumps, and lists that fill their room end the launch.
  __device__ __forceinline__ void settle(unsigned step) const {
    for (unsigned k = threadIdx.x; k < wide.modulator_count; k += kThreads) {
      const Modulator& m = wide.modulators[k];
      unsigned* own = wide.jumps + 4 * k;
      const unsigned fresh = __ldcg(own + kFresh + ((step - 1) & 1)), total = own[kTotal], kept = own[kKept];
      if (fresh == 0) continue;
      uint2* list = wide.levels + (u64)k * wide.depth;
      const unsigned when = step - 1 + m.delay, mask = wide.depth - 1;
      const uint2 last = list[(total - 1) & mask];
      const unsigned level = level_after(total > kept ? level_later(m, last.y, when - last.x) : 0, fresh);
      __stcg(&list[total & mask].x, when);
      __stcg(&list[total & mask].y, level);
      __stcg(own + kTotal, total + 1);
      __stcg(own + kFresh + ((step - 1) & 1), 0u);
      if (total + 2 - kept >= wide.depth) poke(run.full, 1);
    }
    for (unsigned k = threadIdx.x; k < wide.scaling_count; k += kThreads) {
      const unsigned window = wide.scalings[k].window, first = net.grown / window + (net.grown % window > 0 ? 1 : 0);
      if ((step + 1) % window == 0 && (step + 1) / window + 1 - first >= wide.windows) poke(run.full, 1);
    }
  }

  __device__ __forceinline__ void advance(u64 step) const {
    if constexpr (kWide)
      if (blockIdx.x == 0) settle((unsigned)step);
    for (unsigned t = blockIdx.x * kWarps + threadIdx.x / 32; t < net.task_count; t += gridDim.x * kWarps) {
      const uint2 task = __ldg(net.tasks + t);
      const Part& part = net.parts[task.x];
      unsigned i = task.y + threadIdx.x % 32;
      if constexpr (kMany) {
        const Owned& owned = many.owned[task.x];
        if (i >= owned.high) continue;
        if (owned.order != nullptr) i = __ldg(owned.order + i);
      } else {
        if (i >= part.count) continue;
      }
      const bool fired = fires(part, step, i);
      if constexpr (kWide) note(task.x, part.cell + i, (unsigned)step, fired);
      if (!fired) continue;
      const u64 at = atomicAdd(run.logged, 1ull);
      __stcg(run.log + at, (step - run.from) << 32 | (part.cell + i));
      remember(part.cell + i, (unsigned)step);
    }
  }

  __device__ __forceinline__ void add(u64 step, unsigned slot, unsigned delay, int amount) const {
    if (amount != 0) atomicAdd(slots(step + delay) + slot, amount);
  }

  // Synapse `i` of rows that change is passed by the spike of `source` in `step`.
  __device__ __forceinline__ void pass(const Rows& rows, u64 i, u64 step, unsigned source) const {
    const unsigned word = __ldcs((const unsigned*)rows.words + i), strength = __ldcg(rows.strengths + i);
    const unsigned spikes = __ldcg(net.counts + source);
    const unsigned target = word & ((1u << net.cell_bits) - 1);
    const unsigned delay = word >> net.cell_bits & ((1u << net.delay_bits) - 1);
    // A shift by 32 bits is none.
    const unsigned bits = net.cell_bits + net.delay_bits;
    const Rule& rule = net.rules[bits < 32 ? word >> bits : 0];
    const unsigned slot = target + rule.port * net.cells;
    unsigned effect = kOne;
    if (rule.short_rule != kNone) {
      const unsigned* own = entry(net, source, spikes - 1) + 1 + net.trace_count + 2 * rule.short_rule;
      effect = share(__ldcg(own), __ldcg(own + 1));
    }
    unsigned until = 0, now = strength;
    if (rule.kind & 1) {
      Passing passing = {kNone, nullptr};
      if (spikes > 1) passing.before = entry(net, source, spikes - 2), passing.last = __ldcg(passing.before);
      now = caught_up(net, rule, strength, passing, target, delay, (long long)step - delay, until);
    }
    add(step, slot, delay, (int)(((u64)now * effect + (1ull << 46)) >> 47) * rule.sign);
    if (until > 0) {
      const unsigned* last = entry(net, target, until - 1);
      const Trace trace = net.traces[rule.y];
      const unsigned steps = (unsigned)((long long)step - delay - __ldcg(last));
      now = shrunk(rule, now, later(trace, __ldcg(last + 1 + rule.y), steps), trace.bits);
    }
    if (now != strength) __stcg(rows.strengths + i, now);
  }

  // Of kWide: synapse `i` of rows `index` is passed by the spike of `source` that is its entry `spike`, of `step`; what the delay
  // lies before only where it has gone by.
  __device__ __forceinline__ void pass_wide(const Rows& rows, unsigned index, u64 i, unsigned word, u64 step, unsigned source,
                                            unsigned spike, bool arrives) const {
    const unsigned bits = net.cell_bits + net.delay_bits;
    const unsigned which = bits < 32 ? word >> bits : 0;
    const Rule& rule = net.rules[which];
    const Kind& kind = wide.kinds[which];
    if ((kind.axonal != 0) != arrives) return;
    const unsigned target = word & ((1u << net.cell_bits) - 1);
    const unsigned delay = word >> net.cell_bits & ((1u << net.delay_bits) - 1);
    int* eligible = kind.what == kModulated ? wide.eligible[index] + i : nullptr;
    const Changed was = {__ldcg(rows.strengths + i), eligible != nullptr ? __ldcg(eligible) : 0};
    unsigned effect = kOne;
    if (rule.short_rule != kNone) {
      const unsigned* own = entry(net, source, spike) + 1 + net.trace_count + 2 * rule.short_rule;
      effect = share(__ldcg(own), __ldcg(own + 1));
    }
    Changed now = was;
    unsigned until = 0;
    const long long ahead = arrives ? delay : 0, back = arrives ? 0 : delay, time = (long long)step + ahead;
    if (rule.kind & 1) {
      const Event event = {spike > 0 ? entry(net, source, spike - 1) : nullptr, ahead, back, time - back, time, true};
      now = gone_through(net, wide, rule, kind, now, target, event, until);
    }
    add(step, target + rule.port * net.cells, delay, (int)(((u64)now.strength * effect + (1ull << 46)) >> 47) * rule.sign);
    if (rule.kind & 1) {
      const unsigned* last = until > 0 ? entry(net, target, until - 1) : nullptr;
      const unsigned steps = last != nullptr ? (unsigned)(time - back - __ldcg(last)) : 0;
      now = after_pre(rule, kind, net.traces, now, last != nullptr ? last + 1 : nullptr, steps);
    }
    if (now.strength != was.strength) __stcg(rows.strengths + i, now.strength);
    if (now.eligible != was.eligible) __stcg(eligible, now.eligible);
  }

  // Of kWide: what comes out of axons at `time`, of spikes `low .. end` of the log, all those under way. A warp finds the synapses
  // of one delay in a row's list of delays, by 33 parts at a time; `parts` warps take a row.
  __device__ __forceinline__ void arrive(u64 time, u64& low, u64 end) const {
    const unsigned lane = threadIdx.x % 32;
    const long long oldest = (long long)time - wide.farthest - (long long)run.from;
    while (low < end && (int)(unsigned)(__ldcg(run.log + low) >> 32) < oldest) ++low;
    const unsigned here = net.row_count - wide.changing;
    const u64 items = (end - low) * here * wide.parts;
    for (u64 item = threadIdx.x / 32 * gridDim.x + blockIdx.x; item < items; item += gridDim.x * kWarps) {
      const u64 which = item / wide.parts;
      const u64 word = __ldcg(run.log + low + which / here);
      const Axons axons = wide.axons[which % here];
      const unsigned cell = (unsigned)word;
      const u64 step = run.from + (u64)(long long)(int)(unsigned)(word >> 32), delay = time - step;
      u64 from = __ldg(axons.first + cell), to = __ldg(axons.first + cell + 1);
      while (to - from > 32) {
        const u64 length = to - from;
        const unsigned before = __popc(__ballot_sync(~0u, __ldg(axons.groups + from + length * (lane + 1) / 33) >> 48 < delay));
        to = before < 32 ? from + length * (before + 1) / 33 : to;
        from = before > 0 ? from + length * before / 33 + 1 : from;
      }
      const u64 group = from + lane < to ? __ldg(axons.groups + from + lane) : 0;
      const unsigned found = __ballot_sync(~0u, group >> 48 == delay);
      u64 first = found != 0 ? __shfl_sync(~0u, group, __ffs(found) - 1) : 0;
      // A part's end may be the one that is looked for.
      if (found == 0 && to < __ldg(axons.first + cell + 1)) first = __ldg(axons.groups + to);
      if (first >> 48 != delay) continue;
      const unsigned index = wide.changing + (unsigned)(which % here);
      const Rows rows = net.rows[index];
      const u64 all = __ldg(rows.first + cell + 1);
      // It may have fired again since.
      unsigned spike = __ldcg(net.counts + cell) - 1;
      while (__ldcg(entry(net, cell, spike)) > (unsigned)step) --spike;
      for (u64 i = (first & ((1ull << 48) - 1)) + item % wide.parts * 32 + lane; i < all; i += 32 * wide.parts) {
        const unsigned synapse = __ldcs((const unsigned*)rows.words + i);
        if ((synapse >> net.cell_bits & ((1u << net.delay_bits) - 1)) != delay) break;
        pass_wide(rows, index, i, synapse, step, cell, spike, true);
      }
    }
  }

  // Walks the rows of spikes `begin .. end` of the log, all of `step`; a row is cut into pieces of 32.
  __device__ __forceinline__ void deliver(u64 step, u64 begin, u64 end, unsigned (&ends)[kThreads], unsigned (&sums)[kWarps]) const {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Rows that are kept, then those that are drawn.
    const unsigned kinds = net.row_count + (kDrawn ? net.drawn_count : 0);
    const u64 items = (end - begin) * kinds;
    for (u64 base = 0; base < items; base += kThreads) {
      // Pieces of one row a thread, then where they end among all.
      const u64 item = base + threadIdx.x;
      unsigned pieces = 0;
      if (item < items) {
        const unsigned cell = (unsigned)__ldcg(run.log + begin + item / kinds), which = (unsigned)(item % kinds);
        if (kDrawn && which >= net.row_count) {
          pieces = (draws_of(net.drawn[which - net.row_count], cell) + 31) / 32;
        } else {
          const u64* first = net.rows[which].first + cell;
          pieces = (unsigned)((__ldg(first + 1) - __ldg(first) + 31) / 32);
          if constexpr (kWide)
            if (which >= wide.changing && !wide.dendritic) pieces = 0;
        }
      }
      for (unsigned reach = 1; reach < 32; reach *= 2) {
        const unsigned x = __shfl_up_sync(~0u, pieces, reach);
        if (lane >= reach) pieces += x;
      }
      if (lane == 31) sums[warp] = pieces;
      __syncthreads();
      unsigned before = 0;
      for (unsigned w = 0; w < warp; ++w) before += sums[w];
      ends[threadIdx.x] = before + pieces;
      __syncthreads();
      const unsigned all = ends[kThreads - 1];
      laps.lap(kList);
      int part = kFixed;
      // Neighbouring pieces go to other multiprocessors, so that few spikes keep all of them busy.
      for (unsigned p = warp * gridDim.x + blockIdx.x; p < all; p += gridDim.x * kWarps, laps.lap(part)) {
        unsigned low = 0;
        for (unsigned half = kThreads / 2; half > 0; half /= 2)
          if (ends[low + half - 1] <= p) low += half;
        const unsigned before_row = low > 0 ? ends[low - 1] : 0;
        const u64 here = base + low;
        const unsigned cell = (unsigned)__ldcg(run.log + begin + here / kinds), which = (unsigned)(here % kinds);
        if constexpr (kDrawn)
          if (which >= net.row_count) {
            part = kRedrawn;
            const Drawn& d = net.drawn[which - net.row_count];
            const unsigned k = (p - before_row) * 32 + lane;
            Synapse s;
            if (k < d.degree && drawn(d, cell - d.source, k, net.cells, s)) add(step, s.slot, s.delay, s.weight);
            continue;
          }
        const Rows rows = net.rows[which];
        part = rows.strengths != nullptr ? kChanging : kFixed;
        const u64 i = __ldg(rows.first + cell) + (u64)(p - before_row) * 32 + lane;
        if (i >= __ldg(rows.first + cell + 1)) continue;
        if (rows.strengths != nullptr) {
          if constexpr (kWide)
            pass_wide(rows, which, i, __ldcs((const unsigned*)rows.words + i), step, cell,
                      __ldcg(net.counts + cell) - 1, false);
          else
            pass(rows, i, step, cell);
        } else {
          const u64 word = __ldcs((const u64*)rows.words + i);
          if constexpr (kLong) {
            const unsigned low = (unsigned)word;
            add(step, low & ((1u << net.slot_bits) - 1), low >> net.slot_bits, (int)(word >> 32));
            continue;
          }
          add(step, (unsigned)word, (unsigned)(word >> 32) & 0xFFFFu, (int)((long long)word >> 48));
        }
      }
      __syncthreads();
      laps.lap(kPassed);
    }
  }
};

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    spiking_learn(const Net net, const Run run, const Wide wide, const Many many) {
  __shared__ unsigned ends[kThreads], sums[kWarps];
  __shared__ u64 heads[kMany ? kMostCards : 1];
  __shared__ Clocks laps;
  const Grid grid = {net, run, wide, many, laps};
  unsigned target = 0;
  // A kernel is loaded and has run before it waits for another card's.
  if (kMany && run.steps == 0) return;
  laps.clear();
  laps.begin();
  // Spikes under way in axons come first in the log.
  u64 begin = kWide ? run.begun : 0, step = run.from, low = 0;
  if (kWide && wide.parts > 0 && begin > 0) {
    grid.arrive(step, low, begin);
    laps.lap(kAxons);
    grid.meet(target, kPassed);
  }
  for (;;) {
    grid.advance(step);
    laps.lap(kAdvance);
    grid.meet(target, kAdvanced);
    u64 end = __ldcg(run.logged);
    if constexpr (kMany) {
      end = grid.exchange(step, begin, end, heads);
      laps.lap(kExchange);
      grid.meet(target, kAdvanced);
      if (peek(many.lost) != 0) break;
      // Nobody looks at it before the next meeting.
      if (blockIdx.x == 0 && threadIdx.x == 0) __stcg(run.logged, end);
    }
    // All blocks decide alike: nobody fires between meetings 1 and 2.
    const bool full = peek(run.full) != 0;
    grid.deliver(step, begin, end, ends, sums);
    begin = end;
    ++step;
    if (step - run.from >= run.steps || full || begin + net.cells > run.capacity) break;
    if (kWide && wide.parts > 0) {
      grid.arrive(step, low, end);
      laps.lap(kAxons);
    }
    grid.meet(target, kPassed);
    laps.turn(step, run.result + 3);
  }
  laps.end(run.result + 3);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    run.result[0] = step - run.from;
    run.result[1] = begin;
  }
}

// The strengths of synapses that change, of rows `index`, once everything before `now` was applied, and their eligibilities. A
// warp a row.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    spiking_catch_up(const Net net, const Wide wide, unsigned index, unsigned now, unsigned* out, int* out_eligible) {
  const Rows rows = net.rows[index];
  for (u64 cell = blockIdx.x * kWarps + threadIdx.x / 32; cell < net.cells; cell += gridDim.x * kWarps) {
    const unsigned spikes = net.counts[cell];
    Passing passing = {kNone, nullptr};
    if (spikes > 0) passing.before = entry(net, (unsigned)cell, spikes - 1), passing.last = passing.before[0];
    for (u64 i = rows.first[cell] + threadIdx.x % 32; i < rows.first[cell + 1]; i += 32) {
      const unsigned word = __ldcs((const unsigned*)rows.words + i), bits = net.cell_bits + net.delay_bits;
      const unsigned delay = word >> net.cell_bits & ((1u << net.delay_bits) - 1);
      const Rule& rule = net.rules[bits < 32 ? word >> bits : 0];
      unsigned strength = rows.strengths[i], until;
      if constexpr (kWide) {
        const Kind& kind = wide.kinds[bits < 32 ? word >> bits : 0];
        const unsigned target = word & ((1u << net.cell_bits) - 1);
        Changed changed = {strength, kind.what == kModulated ? wide.eligible[index][i] : 0};
        if (rule.kind & 1) {
          const long long ahead = kind.axonal ? delay : 0, back = kind.axonal ? 0 : delay;
          // The last spike that has passed.
          unsigned last = spikes;
          while (last > 0 && (long long)entry(net, (unsigned)cell, last - 1)[0] >= (long long)now - ahead) --last;
          const unsigned* before = last > 0 ? entry(net, (unsigned)cell, last - 1) : nullptr;
          const Event event = {before, ahead, back, (long long)now - back, (long long)now - 1, false};
          changed = gone_through(net, wide, rule, kind, changed, target, event, until);
        }
        strength = changed.strength;
        if (out_eligible != nullptr) out_eligible[i] = changed.eligible;
      } else if (rule.kind & 1) {
        strength = caught_up(net, rule, strength, passing, word & ((1u << net.cell_bits) - 1), delay, (long long)now - delay, until);
      }
      out[i] = strength;
    }
  }
}

// Where each cell's entries begin that are asked for after `now`: the last before `oldest`, and what follows; likewise of jumps of
// modulators, by the steps of their spikes.
extern "C" __global__ void __launch_bounds__(kThreads, 1) spiking_keep(const Net net, const Wide wide, long long oldest) {
  for (u64 cell = blockIdx.x * (u64)kThreads + threadIdx.x; cell < net.cells; cell += gridDim.x * (u64)kThreads) {
    unsigned from = net.counts[cell];
    while (from > net.kept[cell] && (long long)entry(net, (unsigned)cell, from - 1)[0] >= oldest) --from;
    if (from > net.kept[cell]) net.kept[cell] = from - 1;
  }  if constexpr (kWide) {
    for (unsigned k = threadIdx.x; blockIdx.x == 0 && k < wide.modulator_count; k += kThreads) {
      unsigned* own = wide.jumps + 4 * k;
      const unsigned from = first_jump(wide, k, own[kKept], own[kTotal], oldest + wide.modulators[k].delay);
      if (from > own[kKept]) own[kKept] = from - 1;
    }
  }
}

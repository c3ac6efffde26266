// What a lane does with a cell: it draws arrivals, gathers what comes in, advances the state, and says whether it fires.
#pragma once
#include "launch.cuh"
#include "models.cuh"

// Of kNear, where there are the registers: drives, their thresholds and tasks lie in shared memory too.
constexpr bool kTables = kNear && (!kMany || kSpread), kGuided = kTables && (!kSeeds || kSpread);
// Counts of arrivals that fit in a byte, and those that are compared with one after the other.
constexpr unsigned kMostArrivals = 255, kFewArrivals = 32;

// How many thresholds a draw reaches whose first bits are these and all others 0, and kGuideMany where more than one, or none, lies above
// it that a draw with these first bits may reach.
__device__ __forceinline__ unsigned char guide_of(const Drive& drive, unsigned bits) {
  const unsigned low = bits << (32 - kGuideBits), high = low | ((1u << (32 - kGuideBits)) - 1);
  const unsigned from = (unsigned)reached(low, drive.thresholds, drive.count), to = (unsigned)reached(high, drive.thresholds, drive.count);
  return (unsigned char)(from == drive.count || to > from + 1 ? kGuideMany : from);
}

struct Cells {
  const Net& net;
  float* near;              // states of kNear
  unsigned* near_arrivals;  // [2, drives, count] of each part
  const Drive* drives;      // of kTables in shared memory, as their thresholds: rows of synapses push them out of the first cache
  const unsigned* thresholds;
  const unsigned char* guides;
  const unsigned* const* numbers;  // of kMany: in shared memory, where those of the cells of the shard are, or null

  // By which number a cell is drawn.
  __device__ __forceinline__ unsigned number(const Part& part, unsigned i) const {
    if constexpr (kMany) {
      const unsigned* const of = *numbers;
      if (of != nullptr) return __ldg(of + part.local + i);
    }
    return part.low + i;
  }

  __device__ __forceinline__ unsigned threshold(const Drive& drive, unsigned k) const {
    return kTables ? thresholds[drive.before + k] : __ldg(drive.thresholds + k);
  }

  __device__ __forceinline__ unsigned* arrivals_of(const Part& part) const {
    return kNear ? near_arrivals + part.near_arrivals : part.arrivals;
  }

  __device__ __forceinline__ u64 seed(const Part& part) const {
    // Where there are no registers left (NVRTC 12) it is read for each draw.
    if constexpr (kSeeds && kLearns) return *(const volatile u64*)(net.seeds + part.replica);
    if constexpr (kSeeds) return __ldg(net.seeds + part.replica);
    return net.seed;
  }

  // The word of `step` for a cell: a draw has those of four steps.
  __device__ __forceinline__ unsigned draw_word(const Part& part, unsigned purpose, unsigned owner, u64 step, unsigned cell) const {
    const Words words = draw(seed(part), purpose, owner, (step / 4) << 32 | cell);
    const unsigned k = (unsigned)step % 4;
    return k < 2 ? (k == 0 ? words.w[0] : words.w[1]) : (k == 2 ? words.w[2] : words.w[3]);
  }

  // Arrivals at a cell of a part in the four steps from 4 quad on, a byte each.
  __device__ __forceinline__ unsigned arrivals(const Part& part, const Drive& drive, unsigned cell, u64 quad) const {
    const Words words = draw(seed(part), kDrive, drive.owner, quad << 32 | cell);
    unsigned all = 0;
    if constexpr (kGuided)
      if (drive.guide != kUnguided && guided(drive, words, all)) return within(drive, quad, all);
    if (drive.count <= kFewArrivals) {
      // Most draws reach few thresholds: four of them at a time, as long as a draw reaches them.
      const unsigned a = max(words.w[0], words.w[1]), b = max(words.w[2], words.w[3]), most = max(a, b);
      for (unsigned first = 0; first < drive.count; first += 4) {
        unsigned threshold = 0;
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) {
          const bool is = first + j < drive.count;
          threshold = is ? this->threshold(drive, first + j) : 0;
#pragma unroll
          for (int k = 0; k < 4; ++k)
            if (is && words.w[k] >= threshold) all += 1u << (8 * k);
        }
        if (most < threshold) break;
      }
    } else {
      if constexpr (kTables) {
        // Four searches side by side.
        unsigned at[4] = {};
        for (unsigned half = 1u << (31 - __clz((int)drive.count)); half > 0; half /= 2)
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const unsigned next = at[k] + half;
            if (next <= drive.count && threshold(drive, next - 1) <= words.w[k]) at[k] = next;
          }
#pragma unroll
        for (int k = 0; k < 4; ++k) all |= at[k] << (8 * k);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) all |= (unsigned)reached(words.w[k], drive.thresholds, drive.count) << (8 * k);
      }
    }
    return within(drive, quad, all);
  }

  // Of arrivals in the four steps from 4 quad on those while the drive lasts.
  __device__ __forceinline__ unsigned within(const Drive& drive, u64 quad, unsigned all) const {
    if (4 * quad < drive.start || 4 * quad + 4 > drive.stop)
      for (int k = 0; k < 4; ++k)
        if (4 * quad + k < drive.start || 4 * quad + k >= drive.stop) all &= ~(0xFFu << (8 * k));
    return all;
  }

  // Arrivals by the first bits of a draw, after which at most one threshold is left to compare with; but not where there are several.
  __device__ __forceinline__ bool guided(const Drive& drive, const Words& words, unsigned& all) const {
    unsigned found = 0, sum = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const unsigned from = guides[drive.guide + (words.w[k] >> (32 - kGuideBits))];
      found |= from;
      const unsigned at = from & (kGuideMany - 1);
      sum += (at + (words.w[k] >= thresholds[drive.before + at])) << (8 * k);
    }
    if (found & kGuideMany) return false;
    all = sum;
    return true;
  }

  // Draws the arrivals of four steps, at the cells of a part from `i` on.
  __device__ __forceinline__ void refill(const Part& part, unsigned i, u64 quad, Own& own) const {
    if (i >= part.count) return;
    if constexpr (kHeld) {
      if (part.drives == 0) return;
      const unsigned four = arrivals(part, drives[part.drive], number(part, i), quad);
      (quad % 2 == 0 ? own.even : own.odd) = four;
    } else {
      for (unsigned d = 0; d < part.drives; ++d) {
        const Drive& drive = drives[part.drive + d];
        if (drive.count <= kMostArrivals)
          arrivals_of(part)[((unsigned)quad % 2 * part.drives + d) * part.count + i] = arrivals(part, drive, number(part, i), quad);
      }
    }
  }

  // What arrives at a cell's port; the slot becomes 0. The first cache knows nothing of additions in global memory.
  __device__ __forceinline__ float arrived(int* now, const Part& part, u64 step, int port, unsigned i, const Own& own) const {
    int* at = now + part.slot + port * part.count + i;
    int sum;
    if constexpr (kShared || kCalendar) {
      sum = *at;
      if (sum != 0) *at = 0;
    } else {
      sum = __ldcg(at);
      if (sum != 0) __stcg(at, 0);
    }
    const unsigned shift = (unsigned)step % 4 * 8, quad = (unsigned)step / 4;
    unsigned more = 0;
    if constexpr (kHeld) {
      const unsigned four = quad % 2 == 0 ? own.even : own.odd;
      if constexpr (kLearns) {  // which has no registers left
        const Drive& drive = drives[part.drive];
        if (part.drives > 0 && drive.port == (unsigned)port) more = (four >> shift & 0xFFu) * (unsigned)drive.code;
      } else if (own.port == (unsigned)port) {
        more = (four >> shift & 0xFFu) * (unsigned)own.code;
      }
    } else {
      for (unsigned d = 0; d < part.drives; ++d) {
        const Drive& drive = drives[part.drive + d];
        if (drive.port != (unsigned)port) continue;
        unsigned count = 0;
        if (drive.count <= kMostArrivals)
          count = arrivals_of(part)[(quad % 2 * part.drives + d) * part.count + i] >> shift & 0xFFu;
        else if (step >= drive.start && step < drive.stop)
          count = (unsigned)reached(draw_word(part, kDrive, drive.owner, step, number(part, i)), drive.thresholds, drive.count);
        more += count * (unsigned)drive.code;
      }
    }
    return (float)(int)((unsigned)sum + more) * part.unit[port];
  }

  template <class M, int kVariables>
  __device__ __forceinline__ void load(const Part& part, unsigned i, float (&s)[kVariables]) const {
    const float* at = kNear ? near + part.near + i : part.state + i;
    const unsigned pitch = kNear ? part.count : part.size;
#pragma unroll
    for (int k = 0; k < M::kVariables; ++k, at += pitch) s[k] = *at;
  }
  template <class M, int kVariables>
  __device__ __forceinline__ void store(const Part& part, unsigned i, const float (&s)[kVariables]) const {
    float* at = kNear ? near + part.near + i : part.state + i;
    const unsigned pitch = kNear ? part.count : part.size;
#pragma unroll
    for (int k = 0; k < M::kVariables; ++k, at += pitch) *at = s[k];
  }

  template <class M>
  __device__ __forceinline__ bool dynamics(int* now, const Part& part, u64 step, unsigned i, Own& own) const {
    float input[M::kPorts], c[M::kCoefficients], s[M::kVariables];
    const float* of = part.coefficients;
    if (part.stride == 0) {
#pragma unroll
      for (int k = 0; k < M::kCoefficients; ++k) c[k] = __ldg(of + k);
    } else {
      of += i;
#pragma unroll
      for (int k = 0; k < M::kCoefficients; ++k, of += part.stride) c[k] = __ldg(of);
    }
    if constexpr (kHeld) {
#pragma unroll
      for (int k = 0; k < M::kVariables; ++k) s[k] = own.s[k];
    } else {
      load<M>(part, i, s);
    }
#pragma unroll
    for (int k = 0; k < M::kPorts; ++k) input[k] = arrived(now, part, step, k, i, own);
    const bool fires = M::step(c, s, input);
    if constexpr (kHeld) {
#pragma unroll
      for (int k = 0; k < M::kVariables; ++k) own.s[k] = s[k];
    } else {
      store<M>(part, i, s);
    }
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

  __device__ __forceinline__ bool fires(int* now, const Part& part, u64 step, unsigned i, Own& own) const {
    switch (part.model) {
      case kLifExpOne: return dynamics<LifExpOne>(now, part, step, i, own);
      case kLifExp: return dynamics<LifExp>(now, part, step, i, own);
      case kLifDelta: return dynamics<LifDelta>(now, part, step, i, own);
      case kIzhikevich: return dynamics<Izhikevich>(now, part, step, i, own);
      case kPoisson:
        return draw_word(part, kSource, part.owner, step, number(part, i)) < __ldg(part.chances + i * part.chance_stride);
      case kReplay: return replayed(part, step << 32 | (part.low + i));
    }
    if constexpr (kHeavy) {
      if (part.model == kLifAlpha) return dynamics<LifAlpha>(now, part, step, i, own);
      if (part.model == kLifCond) return dynamics<LifCond>(now, part, step, i, own);
      if (part.model == kAdEx) return dynamics<AdEx>(now, part, step, i, own);
      if (part.model == kHodgkinHuxley) return dynamics<HodgkinHuxley>(now, part, step, i, own);
    }
    return false;
  }

  // What the only cell of a lane begins and ends with.
  __device__ __forceinline__ void begin(const Part& part, unsigned i, Own& own) const {
    own.even = own.odd = 0, own.code = 0, own.port = 0;
    if (part.drives > 0) own.code = drives[part.drive].code, own.port = drives[part.drive].port;
    if (i >= part.count) return;
    if (part.model == kLifExpOne) load<LifExpOne>(part, i, own.s);
    if (part.model == kLifExp) load<LifExp>(part, i, own.s);
    if (part.model == kLifDelta) load<LifDelta>(part, i, own.s);
    if (part.model == kIzhikevich) load<Izhikevich>(part, i, own.s);
  }
  __device__ __forceinline__ void end(const Part& part, unsigned i, const Own& own) const {
    if (i >= part.count) return;
    if (part.model == kLifExpOne) store<LifExpOne>(part, i, own.s);
    if (part.model == kLifExp) store<LifExp>(part, i, own.s);
    if (part.model == kLifDelta) store<LifDelta>(part, i, own.s);
    if (part.model == kIzhikevich) store<Izhikevich>(part, i, own.s);
  }

  // Advances `count` times 32 cells of a part, this lane's first one `i`; `spike(i)` where one fires. What all of them share is read
  // once, for the light models with one drive at most and the same constants for all cells.
  template <class Spike>
  __device__ __forceinline__ void sweep(int* now, const Part& part, u64 step, unsigned i, unsigned count, const Spike& spike) const {
    const bool plain = part.stride == 0 && (part.drives == 0 || (part.drives == 1 && drives[part.drive].count <= kMostArrivals));
    if (plain) switch (part.model) {
        case kLifExpOne: return swept<LifExpOne>(now, part, step, i, count, spike);
        case kLifExp: return swept<LifExp>(now, part, step, i, count, spike);
        case kLifDelta: return swept<LifDelta>(now, part, step, i, count, spike);
        case kIzhikevich: return swept<Izhikevich>(now, part, step, i, count, spike);
      }
    Own none;
    for (; count > 0; --count, i += 32)
      if (i < part.count && fires(now, part, step, i, none)) spike(i);
  }

  template <class M, class Spike>
  __device__ __forceinline__ void swept(int* now, const Part& part, u64 step, unsigned i, unsigned count, const Spike& spike) const {
    float c[M::kCoefficients];
#pragma unroll
    for (int k = 0; k < M::kCoefficients; ++k) c[k] = __ldg(part.coefficients + k);
    const unsigned size = part.count, pitch = kNear ? size : part.size, shift = (unsigned)step % 4 * 8;
    unsigned code = 0, driven = ~0u;
    const unsigned* arrivals = nullptr;
    if (part.drives > 0) {
      const Drive& drive = drives[part.drive];
      code = (unsigned)drive.code, driven = drive.port;
      arrivals = arrivals_of(part) + (unsigned)(step / 4) % 2 * size;
    }
    float* const states = kNear ? near + part.near : part.state;
    int* const sums = now + part.slot;
    const float unit[2] = {part.unit[0], part.unit[1]};
    for (; count > 0; --count, i += 32) {
      if (i >= size) break;
      float s[M::kVariables], input[M::kPorts];
#pragma unroll
      for (int k = 0; k < M::kVariables; ++k) s[k] = states[i + k * pitch];
      const unsigned more = arrivals != nullptr ? (arrivals[i] >> shift & 0xFFu) * code : 0;
#pragma unroll
      for (int k = 0; k < M::kPorts; ++k) {
        int* const at = sums + k * size + i;
        unsigned sum;
        if constexpr (kShared || kCalendar) {
          sum = (unsigned)*at;
          *at = 0;
        } else {
          sum = (unsigned)__ldcg(at);
          if (sum != 0) __stcg(at, 0);
        }
        if (driven == (unsigned)k) sum += more;
        input[k] = (float)(int)sum * unit[k];
      }
      const bool fires = M::step(c, s, input);
#pragma unroll
      for (int k = 0; k < M::kVariables; ++k) states[i + k * pitch] = s[k];
      if (fires) spike(i);
    }
  }

  // States of kNear, from global memory and back.
  __device__ __forceinline__ void fetch(const Part& part, unsigned i, bool back) const {
    if (i >= part.count) return;
    for (unsigned k = 0; k < part.variables; ++k) {
      float& here = near[part.near + k * part.count + i];
      float& there = part.state[k * part.size + i];
      if (back)
        there = here;
      else
        here = there;
    }
  }
};

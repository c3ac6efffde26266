// Puts the spikes of a launch in order, by step and cell, and counts what they deliver.
//
// Blocks log spikes as they come. A block logs those of step n + 1 when it has seen all headers of step n, and logs in turn: so
// what was logged of step n lies behind all of step n - 2 and before all of step n + 2. A block of spiking_order takes a step: it
// finds its entries among those of three steps, and sorts them in shared memory, or, where there are more, marks them in a map of
// so many cells at a time and reads off the marks.
//
// A million cells, 543 spikes a step, 512 steps: each entry is read some four times and written once: 10 MB out of the second cache,
// 3 us; 55 passes of 512 exchanges a step, a microsecond of one multiprocessor: 512 of them 5 us. 10 us of 10 ms. With 4,961 spikes a
// step (dt 1), 128 steps: 4 maps a step, for each of which 15,000 entries are read: 61 MB and 2.5 M lookups of cells, 30 us of 8 ms.
// The host took 100 us for such a step, longer than the step.
#include "draws.cuh"

// Spikes of a step that are sorted; words of a map of marks, with one to spare behind each 32, so that lanes read different banks.
constexpr unsigned kMostSorted = 4096, kWords = 8192, kMarks = 32 * kWords;

struct Order {
  const u64* log;           // (step - from) << 32 | row
  u64* result;              // [4] ., spikes logged, ., what they deliver
  const unsigned* cell_of;  // [rows]
  const unsigned* degrees;  // [rows]
  unsigned* counts;         // [steps] spikes; zeros
  unsigned* cells;          // [spikes]
  unsigned steps, all;      // all: how many cells there are
};

// Any grid.
extern "C" __global__ void __launch_bounds__(256) spiking_count(const Order order) {
  const u64 count = order.result[1];
  u64 events = 0;
  for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < count; i += (u64)gridDim.x * 256) {
    const u64 entry = order.log[i];
    atomicAdd(order.counts + (entry >> 32), 1u);
    events += order.degrees[(unsigned)entry];
  }
  for (int reach = 16; reach > 0; reach /= 2) events += __shfl_down_sync(~0u, events, reach);
  if (threadIdx.x % 32 == 0 && events > 0) atomicAdd(order.result + 3, events);
}

// The cells of a step that fired, from the entries from .. to of the log, in order to `cells`, by marks; whole blocks of 256.
__device__ __forceinline__ void by_marks(const Order& order, unsigned step, u64 from, u64 to, unsigned* cells, unsigned* marks,
                                         unsigned* sums) {
  const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  constexpr unsigned kOwn = kWords / 256;
  for (unsigned low = 0; low < order.all; low += kMarks) {
    __syncthreads();
    for (unsigned i = thread; i < kWords + kWords / 32; i += 256) marks[i] = 0;
    __syncthreads();
    for (u64 i = from + thread; i < to; i += 256) {
      const u64 entry = order.log[i];
      if (entry >> 32 != step) continue;
      const unsigned at = order.cell_of[(unsigned)entry] - low;
      if (at < kMarks) atomicOr(marks + at / 32 + at / 1024, 1u << at % 32);
    }
    __syncthreads();
    static_assert(kOwn == 32, "a thread's words lie between two that are spare");
    const unsigned* own = marks + thread * (kOwn + 1);
    unsigned count = 0;
    for (unsigned i = 0; i < kOwn; ++i) count += __popc(own[i]);
    unsigned before = count;
    for (unsigned reach = 1; reach < 32; reach *= 2) {
      const unsigned x = __shfl_up_sync(~0u, before, reach);
      if (lane >= reach) before += x;
    }
    if (lane == 31) sums[warp] = before;
    __syncthreads();
    unsigned all = 0;
    for (unsigned w = 0; w < 8; ++w) {
      if (w == warp) before += all;
      all += sums[w];
    }
    unsigned* to_cells = cells + (before - count);
    for (unsigned i = 0; i < kOwn; ++i)
      for (unsigned word = own[i]; word != 0; word &= word - 1)
        *to_cells++ = low + (thread * kOwn + i) * 32 + (__ffs((int)word) - 1);
    cells += all;
  }
}

// One block a step.
extern "C" __global__ void __launch_bounds__(256) spiking_order(const Order order) {
  __shared__ unsigned held[kWords + kWords / 32], taken, sums[8];
  const unsigned step = blockIdx.x, count = order.counts[step], thread = threadIdx.x;
  if (count == 0) return;
  unsigned before = 0;
  for (unsigned t = thread; t < step; t += 256) before += order.counts[t];
  for (int reach = 16; reach > 0; reach /= 2) before += __shfl_down_sync(~0u, before, reach);
  if (thread % 32 == 0) sums[thread / 32] = before;
  if (thread == 0) taken = 0;
  unsigned padded = 1;
  while (padded < count) padded *= 2;
  if (padded <= kMostSorted)
    for (unsigned i = thread; i < padded; i += 256) held[i] = ~0u;
  __syncthreads();
  u64 begin = 0;
  for (unsigned w = 0; w < 8; ++w) begin += sums[w];
  const u64 from = begin - (step > 0 ? order.counts[step - 1] : 0);
  const u64 to = begin + count + (step + 1 < order.steps ? order.counts[step + 1] : 0);
  if (padded > kMostSorted) {
    by_marks(order, step, from, to, order.cells + begin, held, sums);
    return;
  }
  for (u64 i = from + thread; i < to; i += 256) {
    const u64 entry = order.log[i];
    if (entry >> 32 != step) continue;
    held[atomicAdd(&taken, 1u)] = order.cell_of[(unsigned)entry];
  }
  for (unsigned size = 2; size <= padded; size *= 2)
    for (unsigned reach = size / 2; reach > 0; reach /= 2) {
      __syncthreads();
      for (unsigned k = thread; k < padded / 2; k += 256) {
        const unsigned i = 2 * k - (k & (reach - 1)), j = i + reach;
        const unsigned a = held[i], b = held[j];
        if ((a > b) == ((i & size) == 0)) held[i] = b, held[j] = a;
      }
    }
  __syncthreads();
  for (unsigned i = thread; i < count; i += 256) order.cells[begin + i] = held[i];
}

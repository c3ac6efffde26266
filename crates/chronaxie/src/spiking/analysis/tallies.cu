// What spike trains are like, counted: tallies.rs on a device, with the same numbers.
//
// Spikes come sorted by step. They are put to their cells in any order, and a warp sorts those of a cell, looks for bursts, and tells of
// each bin in which the cell fires; of the first cells of a population the bins are marks in rows, of which a warp takes two and counts
// what both have. How often two populations have each pair of counts is told by a table of such pairs.
//
// The full microcircuit over 10 s (2.5 M spikes, 77,169 cells, 5,000 bins, 8 populations): each spike is written and read some twenty
// times, in the second cache; 249,000 pairs of rows of 157 words are 313 MB out of the first; 36 pairs of populations of 5,000 bins
// each. 0.2 ms of work in some hundred launches.
#include "draws.cuh"
#include "table.cuh"

// Steps of spikes, put to the cells: `at` has where each one's next goes.
extern "C" __global__ void __launch_bounds__(256)
    spiking_tally_place(const uint2* spikes, u64 count, u64* at, unsigned* steps) {
  for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < count; i += (u64)gridDim.x * 256) {
    const uint2 spike = spikes[i];  // step, cell
    steps[atomicAdd(at + spike.y, 1ull)] = spike.x;
  }
}

// Sorts n numbers, by a warp: bitonic, of any length, since every exchange puts the greater one behind and so what is not there stays
// where it is not.
__device__ __forceinline__ void sort(unsigned* x, unsigned n) {
  const unsigned lane = threadIdx.x % 32;
  const auto exchange = [&](unsigned i, unsigned other) {
    if (other <= i || other >= n) return;
    const unsigned a = x[i], b = x[other];
    if (a > b) x[i] = b, x[other] = a;
  };
  for (unsigned width = 2; width / 2 < n; width *= 2) {
    for (unsigned i = lane; i < n; i += 32) exchange(i, i ^ (width - 1));
    __syncwarp();
    for (unsigned reach = width / 4; reach > 0; reach /= 2) {
      for (unsigned i = lane; i < n; i += 32) exchange(i, i ^ reach);
      __syncwarp();
    }
  }
}

// The cells of a population.
struct Cells {
  unsigned* steps;
  const u64* begin;  // [count + 1]
  unsigned* cells;   // [count, 3] bursts, spikes in bursts, bins in which it fires
  unsigned* counts;  // [bins] of cells; zeros
  unsigned* marks;   // [paired, words]; zeros
  unsigned count, paired, words, bins, bin, burst_interval, burst_spikes;
};

// A warp a cell, one after the other.
extern "C" __global__ void __launch_bounds__(256) spiking_tally_cells(const Cells p) {
  const unsigned lane = threadIdx.x % 32;
  for (unsigned c = blockIdx.x * 8 + threadIdx.x / 32; c < p.count; c += gridDim.x * 8) {
    unsigned* train = p.steps + p.begin[c];
    const unsigned n = (unsigned)(p.begin[c + 1] - p.begin[c]);
    sort(train, n);
    unsigned bursts = 0, inside = 0, fired = 0, run = 0;  // run: spikes of the run that goes on
    const auto close = [&] {
      if (run >= p.burst_spikes) ++bursts, inside += run;
      run = 0;
    };
    for (unsigned base = 0; base < n; base += 32) {
      const unsigned i = base + lane, here = n - base < 32 ? n - base : 32;
      const bool own = i < n;
      const unsigned step = own ? train[i] : 0, before = own && i > 0 ? train[i - 1] : 0;
      unsigned at = 0;
      for (unsigned starts = __ballot_sync(~0u, own && (i == 0 || step - before > p.burst_interval)); starts != 0; starts &= starts - 1) {
        const unsigned next = __ffs((int)starts) - 1;
        run += next - at, at = next;
        close();
      }
      run += here - at;
      const unsigned bin = step / p.bin;
      const bool first = own && bin < p.bins && (i == 0 || before / p.bin != bin);
      if (first) {
        atomicAdd(p.counts + bin, 1u);
        if (c < p.paired) atomicOr(p.marks + (u64)c * p.words + bin / 32, 1u << bin % 32);
      }
      fired += __popc(__ballot_sync(~0u, first));
    }
    close();
    if (lane < 3) p.cells[3 * (u64)c + lane] = lane == 0 ? bursts : lane == 1 ? inside : fired;
  }
}

// In how many bins two cells both fire: together [paired, paired], of a < b. A warp a pair.
extern "C" __global__ void __launch_bounds__(256)
    spiking_tally_pairs(const unsigned* marks, unsigned paired, unsigned words, unsigned* together) {
  const unsigned lane = threadIdx.x % 32, all = paired * paired;
  for (unsigned pair = blockIdx.x * 8 + threadIdx.x / 32; pair < all; pair += gridDim.x * 8) {
    const unsigned a = pair / paired, b = pair % paired;
    if (a >= b) continue;
    unsigned both = 0;
    for (unsigned k = lane; k < words; k += 32) both += __popc(marks[(u64)a * words + k] & marks[(u64)b * words + k]);
    for (int reach = 16; reach > 0; reach /= 2) both += __shfl_down_sync(~0u, both, reach);
    if (lane == 0) together[pair] = both;
  }
}

// How often there is each pair of counts of two populations: a table of `x << 32 | y`, and how many bins have it.
extern "C" __global__ void __launch_bounds__(256)
    spiking_tally_joint(const unsigned* x, const unsigned* y, unsigned bins, u64* keys, unsigned* often, u64 mask) {
  for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < bins; i += (u64)gridDim.x * 256) {
    bool is_new;
    const u64 at = place_of(keys, mask, (u64)x[i] << 32 | y[i], is_new);
    atomicAdd(often + at, 1u);  // there is room for all that there can be
  }
}

// The entries of a table side by side, in any order; `count` says how many there are.
extern "C" __global__ void __launch_bounds__(256)
    spiking_tally_entries(const u64* keys, const unsigned* often, u64 size, u64* entries, unsigned* count) {
  for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < size; i += (u64)gridDim.x * 256) {
    if (keys[i] == kEmpty) continue;
    const unsigned at = atomicAdd(count, 1u);
    entries[2 * at] = keys[i], entries[2 * at + 1] = often[i];
  }
}

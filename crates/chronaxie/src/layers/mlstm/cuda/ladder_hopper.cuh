// What the ladder's kernels by wgmma (sm_90a) share beside hopper.cuh.
#pragma once
#include "ladder_tensor.cuh"
#include "hopper.cuh"

// Places that are filled stages - 2 steps before they are read, so that the products of one may still be made while those of the
// next begin: who pulls has waited for all products but those begun last.
template <int kBytes, typename Issue>
struct Trailing {
  char* memory;
  int stages, out;
  Issue issue;

  __device__ __forceinline__ Trailing(char* memory, int stages, Issue issue)
      : memory(memory), stages(stages), out(0), issue(issue) {
    for (int i = 0; i + 2 < stages; ++i) push(i);
  }
  __device__ __forceinline__ void push(int place) {
    issue(memory + place * kBytes);
    copy_commit();
  }
  __device__ __forceinline__ unsigned pull() {
    copy_wait(stages - 3);
    products_see();
    __syncthreads();
    const int next = out + stages - 2;
    push(next >= stages ? next - stages : next);
    const unsigned at = shared_at(memory + out * kBytes);
    out = out + 1 == stages ? 0 : out + 1;
    return at;
  }
};

template <int NT>
__device__ __forceinline__ void store_tile(float (&acc)[NT][4], const Work& w, const Spot& at) {
  const Chunk chunk = {at.row, 0, (int)min(w.rows - at.row, (i64)kEdge)};
  store_rows(acc, w.to, (w.plain & kTo) != 0, at.chain, chunk, at.column, w.columns);
}

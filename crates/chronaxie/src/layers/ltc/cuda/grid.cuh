// Synapses divided over teams of blocks that fill the device: how a block reads its share, sums over it, and meets its team.
//
// A block of rank n in its team has some owners (targets, or sources in the adjoint) with all their synapses, in one list that is
// cut into as many parts as a group of rows has warps (grid.rs). A lane serves kRows batch rows of one synapse: kRowLanes
// neighbouring lanes have the rows of a group, and the kStreams of them in a warp have a synapse each, of the same owner. So
// 16 bytes of a synapse, and its 2 of where its source lies, serve kRows gates a lane, and no slot belongs to a mask.
// What a part holds of an owner is a piece. Its sums over the streams are made by exchanging halves, so that each lane adds one
// or two of them in the end; the pieces of an owner are added in order after that.
//
// The first `held` steps of each part lie in shared memory for the whole launch; what does not fit is read from L2 (or memory)
// for every unfold, four steps ahead.
//
// Values travel through L2: each team and group has two tiles [kPlanes, H, kRows kRowLanes / kPlanes], written and read in turn,
// and a counter to which each block adds one when its part of a tile is there. Every block of the launch is resident
// (cooperative launch), so a spin ends. A block that writes a tile has seen that all have read it: they arrived after that.
#pragma once
#include "held.cuh"

constexpr int kStreams = 32 / kRowLanes;
constexpr int kGroupRows = kRows * kRowLanes;
// A load brings four rows: the others lie in another plane, so that the lanes of a quarter of a warp read all banks.
constexpr int kPlanes = (kRows + 3) / 4;
constexpr int kPlaneRows = kGroupRows / kPlanes;
// Steps of a list that are loaded together: registers are short, for some compilers and architectures more than for others, and
// for the adjoint (kAdjoint, said by the kernel).
constexpr int kAhead = kOldCompiler && kAdjoint ? 1 : kOldCompiler || kAdjoint || __CUDA_ARCH__ >= 1200 ? 2 : 3;

// What grid.rs made for a kernel.
struct Shares {
  const float4* folded;        // [steps of all, kStreams]: a, b, p, q as in held.cuh; zeros where there is no synapse
  const unsigned short* from;  // [steps of all, kStreams]: the other end
  const int4* blocks;          // [blocks + 1]: first step, first piece, first owner
  const int2* parts;           // [blocks, warps of a group + 1]: first step, first piece
  const int2* pieces;          // [pieces of all]: steps, the owner's place in its block
  const int2* owners;          // [owners of all + 1]: neuron, first piece
};

// Where the rows of a lane, or a row, lie among the kGroupRows of an owner.
__device__ __forceinline__ int row_place(int lane_row, int i) { return i / 4 * kPlaneRows + lane_row * 4 + i % 4; }
// Where in a tile the value of a node and row lies.
__device__ __forceinline__ i64 tile_place(int node, int row, int hidden) {
  return ((i64)(row / kPlaneRows) * hidden + node) * kPlaneRows + row % kPlaneRows;
}

// kAhead steps of a list at a time, loaded while those before are summed. `add(synapse, source)` makes the gates of one.
template <class Add>
__device__ __forceinline__ void walk_list(const float4* folded, const unsigned short* from, int steps, Add add) {
  float4 s[kAhead];
  unsigned f[kAhead];
  const int whole = steps / kAhead;
  if (whole > 0)
#pragma unroll
    for (int i = 0; i < kAhead; i++) s[i] = folded[i * kStreams], f[i] = from[i * kStreams];
#pragma unroll 1
  for (int n = 1; n <= whole; n++) {
    float4 next[kAhead];
    unsigned then[kAhead];
    folded += kAhead * kStreams, from += kAhead * kStreams;
    if (n < whole)
#pragma unroll
      for (int i = 0; i < kAhead; i++) next[i] = folded[i * kStreams], then[i] = from[i * kStreams];
#pragma unroll
    for (int i = 0; i < kAhead; i++) add(s[i], f[i]);
#pragma unroll
    for (int i = 0; i < kAhead; i++) s[i] = next[i], f[i] = then[i];
  }
  int rest = steps - whole * kAhead;
  if (kAhead > 2 && rest > 1) {
#pragma unroll
    for (int i = 0; i < 2; i++) s[i] = folded[i * kStreams], f[i] = from[i * kStreams];
#pragma unroll
    for (int i = 0; i < 2; i++) add(s[i], f[i]);
    folded += 2 * kStreams, from += 2 * kStreams, rest -= 2;
  }
  if (rest > 0) add(*folded, *from);
}

// The sums over the streams of a warp: each lane is left with max(1, kCount / kStreams) of the kCount, from `first` on; true where
// no lower lane has the same.
template <int kCount, int kMask = 16, int kAll = kCount>
__device__ __forceinline__ bool stream_sums(float (&x)[kAll], int lane, int& first) {
  if constexpr (kMask < kRowLanes) {
    return true;
  } else {
    const bool upper = lane & kMask;
    if constexpr (kCount > 1) {
#pragma unroll
      for (int i = 0; i < kCount / 2; i++) {
        const float low = x[i], high = x[kCount / 2 + i];
        x[i] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, kMask);
      }
      first += upper ? kCount / 2 : 0;
      return stream_sums<kCount / 2, kMask / 2>(x, lane, first);
    } else {
      x[0] += __shfl_xor_sync(~0u, x[0], kMask);
      return stream_sums<1, kMask / 2>(x, lane, first) && !upper;
    }
  }
}
template <int kCount>
constexpr int kLeft = kCount > kStreams ? kCount / kStreams : 1;

// Threads that walk a group of rows.
struct Walkers {
  int group, warp, warps, thread, threads;  // warps of the group; which of its threads, and how many
  __device__ explicit Walkers(int groups)
      : group((int)threadIdx.x / (kThreads / groups)), warps(kThreads / 32 / groups), threads(kThreads / groups) {
    thread = (int)threadIdx.x - group * threads;
    warp = thread / 32;
  }
  __device__ void meet() const { asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory"); }
};

// The tiles of a group of rows, and the team that fills them.
struct Team {
  float* tiles;              // of all teams and groups, twice [values, kPlanes, H, kPlaneRows] each
  unsigned* arrivals;        // how many blocks have given, of all tiles together: a line each
  int mine, blocks, floats;  // which it is, blocks of a team, floats of a tile

  // What this block has written is there for all.
  __device__ void give(const Walkers& walkers) const {
    walkers.meet();
    if (walkers.thread == 0) asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(arrivals + mine * 32), "r"(1u) : "memory");
  }
  __device__ float* tile(unsigned n) const { return tiles + (opaque(mine) * 2 + (n & 1)) * (i64)floats; }
  // Waits for tile n and copies it.
  __device__ void take(const Walkers& walkers, unsigned n, float* to) const {
    if (walkers.thread == 0) {
      const unsigned all = (n + 1) * (unsigned)blocks;
      unsigned seen;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrivals + mine * 32) : "memory");
      } while ((int)(seen - all) < 0);
    }
    walkers.meet();
    const float* from = tile(n);
    for (int i = walkers.thread * 4; i < floats; i += walkers.threads * 4)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to + i)), "l"(from + i)
                   : "memory");
    copies_here();
    walkers.meet();
  }
};

// What a block holds of its share in shared memory, and how its parts are walked.
struct Share {
  const float4* held;           // [warps of a group, most held, kStreams]
  const unsigned short* from;   // alike
  int most;                     // steps of a part that are held
  int pieces, owners;           // of this block
  int begin, first, last;       // of this warp's part: its first step, and its pieces by their places in the block

  // Copies what is held. Follow it by __syncthreads.
  __device__ Share(const Shares& shares, const Walkers& walkers, int groups, int rank, int most, float4* room, unsigned short* from_room)
      : held(room), from(from_room), most(most) {
    const int4 block = shares.blocks[rank], end = shares.blocks[rank + 1];
    pieces = end.y - block.y, owners = end.z - block.z;
    const int2* part = shares.parts + rank * (walkers.warps + 1) + walkers.warp;
    begin = part[0].x, first = uniform(part[0].y - block.y), last = uniform(part[1].y - block.y);
    const int length = part[1].x - begin, count = (length < most ? length : most) * kStreams;
    const i64 start = (i64)begin * kStreams;
    for (int i = (int)threadIdx.x % 32 + 32 * walkers.group; i < count; i += 32 * groups) {
      room[walkers.warp * most * kStreams + i] = shares.folded[start + i];
      from_room[walkers.warp * most * kStreams + i] = shares.from[start + i];
    }
  }

  // The pieces of this warp's part: opens(owner's place), add(synapse, source) for each step of this lane's stream, and
  // ends(piece's place in the block).
  template <class Begin, class Add, class End>
  __device__ __forceinline__ void walk(const Shares& shares, const Walkers& walkers, const int2* piece_list, Begin opens, Add add,
                                       End ends) const {
    const int stream = (int)threadIdx.x % 32 / kRowLanes;
    int done = 0;
#pragma unroll 1
    for (int n = first; n < last; n++) {
      const int2 piece = piece_list[n];
      const int steps = uniform(piece.x), left = most - done < 0 ? 0 : most - done, here = steps < left ? steps : left;
      opens(piece.y);
      if (here > 0) {
        const int at = (walkers.warp * most + done) * kStreams + stream;
        walk_list(held + at, from + at, here, add);
      }
      if (steps > here) {
        const i64 at = ((i64)begin + done + here) * kStreams + stream;
        walk_list(shares.folded + at, shares.from + at, steps - here, add);
      }
      done += steps;
      ends(n);
    }
  }
};

// What a kernel compiled for the host and the emulated machine know of each other. No header is included here: kernels
// see this file, and NVRTC gives them none.
#pragma once

namespace emu {

struct Dim {
  unsigned x, y, z;
};

// What a thread knows of itself.
struct Thread {
  Dim thread_index, block_index, block_dim, grid_dim;
  Dim cluster_dim;
  unsigned lane, warp;
  unsigned cluster_rank, cluster_blocks;
};

// How a warp's lanes do something together: every lane brings an operand, and when all of `mask` have come with the same
// `what`, `finish` runs once over the operands by lane (null where a lane is not of the mask).
using Finish = void (*)(void** operands, unsigned mask);

// What a thread asks of the machine that runs it. Addresses of 32 bits are of the shared memory of a block (bits 24 and
// up: 1 + its rank, or 0 for the asking one), as st.async, mapa and mbarrier take them.
struct Machine {
  // Lets others run: called where a thread spins.
  void (*yield)(const char* what);
  // Ends the launch with a sentence.
  void (*fail)(const char* sentence);
  void (*warp)(unsigned mask, const char* what, void* operand, Finish finish);
  unsigned (*active_mask)();
  // `threads` 0 is the whole block. Gives the sum of `value`.
  unsigned (*block_barrier)(unsigned id, unsigned threads, unsigned value, int wait);
  void (*cluster_arrive)();
  void (*cluster_wait)();
  void* (*shared_static)(int* slot, unsigned long bytes, unsigned long alignment);
  void* (*shared_dynamic)(unsigned long alignment);
  unsigned (*shared_address)(const void* pointer);
  void* (*shared_pointer)(unsigned address, unsigned bytes, const char* what);
  void (*barrier_init)(unsigned address, unsigned arrivals);
  void (*barrier_arrive)(unsigned address, unsigned arrivals, unsigned expect_bytes);
  void (*barrier_complete)(unsigned address, unsigned bytes);
  int (*barrier_test)(unsigned address, unsigned parity, int wait);
  unsigned long long (*barrier_state)(unsigned address);
  // Copies that the machine makes at a time of its choice: into shared memory, then counted by a barrier there; and out
  // of it, in groups that a thread waits for.
  void (*copy_to_shared)(unsigned to, const void* from, unsigned bytes, unsigned barrier);
  void (*store_async)(unsigned to, const void* value, unsigned bytes, unsigned barrier);
  void (*copy_to_global)(void* to, unsigned from, unsigned bytes);
  void (*bulk_commit)();
  void (*bulk_wait)(unsigned groups);
  // cp.async: a thread's own copies; what lies beyond `from_bytes` becomes zero.
  void (*copy_ahead)(unsigned to, const void* from, unsigned bytes, unsigned from_bytes);
  void (*ahead_commit)();
  void (*ahead_wait)(unsigned groups);
  void (*ahead_all)();
  unsigned (*random)();
};

// One kernel of a module.
struct Kernel {
  const char* name;
  int is_extern_c;
  void (*call)(void** arguments);
  int parameters;
  const unsigned* sizes;
  const unsigned* alignments;
  unsigned max_threads, min_blocks;
};

// What a module exports as `emu_module`.
struct Module {
  unsigned version;
  Kernel **begin, **end;
  const Machine** machine;
  const Thread** self;
};
constexpr unsigned kVersion = 1;

}  // namespace emu

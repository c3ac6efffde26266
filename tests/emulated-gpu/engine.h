// The scheduler of a launch and what it keeps of its threads. Inside of the machine alone: machine.cpp, waits.cpp, copies.cpp.
#pragma once
#include <setjmp.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "fiber.h"
#include "machine.h"

namespace emu {

constexpr unsigned kIllegalAddress = 700, kLaunchTimeout = 702, kAssert = 710, kMisaligned = 716, kLaunchFailed = 719;
// Of a block: its variables, then the dynamic part, which ends at a page that cannot be touched.
constexpr size_t kStaticBytes = 1 << 20, kDynamicBytes = 1 << 20, kPage = 4096, kGap = 64;
constexpr unsigned char kCanary = 0xc7;

struct Cluster;
struct Block;
struct Warp;

struct Ahead {
  unsigned to, bytes, from_bytes;
  const void* from;
};

// What each switch asks for comes first, in one line of the cache.
struct alignas(64) Fiber {
  void* sp = nullptr;
  Block* block = nullptr;
  Warp* warp = nullptr;
  // What it waits for, for the report of a deadlock.
  const char* waits = nullptr;
  // In a warp's operation.
  void* operand = nullptr;
  unsigned mask = 0;
  unsigned detail = 0;
  // At a barrier of the block.
  unsigned barrier_result = 0;
  bool done = false;
  bool copies = false;  // it has made copies of its own
  Thread self;
  unsigned char* stack = nullptr;
  size_t colour = 0;
  // At a barrier in shared memory.
  uint64_t* barrier = nullptr;
  unsigned parity = 0;
  unsigned cluster_phase = 0;
  bool cluster_arrived = false;
  // Copies of its own: those not yet in a group, and groups.
  std::vector<Ahead> ahead;
  std::vector<std::vector<Ahead>> ahead_groups;
  struct Out {
    void* to;
    unsigned from, bytes;
  };
  std::vector<Out> out;
  std::vector<std::vector<Out>> out_groups;
  // As new, on the same stack.
  void again() {
    waits = nullptr;
    operand = nullptr;
    mask = detail = barrier_result = parity = cluster_phase = 0;
    done = cluster_arrived = false;
    barrier = nullptr;
    if (!copies) return;
    copies = false;
    ahead.clear();
    ahead_groups.clear();
    out.clear();
    out_groups.clear();
  }
};

struct alignas(64) Warp {
  Block* block = nullptr;
  // Its place among those that have a thread which can run, and these threads' lanes.
  unsigned at = 0;
  unsigned ready = 0;
  unsigned char order[32];
  unsigned waiting = 0, ended = 0;  // masks: lanes in an operation of the warp, lanes that have ended
  unsigned size = 0;
  Fiber* lanes[32];
};

struct Barrier {
  unsigned arrived = 0, sum = 0;
  std::vector<Fiber*> waiting;
  unsigned threads = 0;
};

constexpr unsigned kBarriers = 16;

struct Block {
  Cluster* cluster;
  unsigned rank;
  Dim index;
  std::vector<Fiber*> fibers;
  std::vector<Warp> warps;
  Barrier barriers[kBarriers];
  unsigned arrived = 0;  // mask: barriers at which somebody is
  unsigned live = 0;
  std::set<const uint64_t*> initialised;  // mbarriers
  unsigned char *arena = nullptr, *dynamic = nullptr;
  size_t dynamic_bytes = 0;
};

struct Cluster {
  std::vector<Block*> blocks;
  unsigned live = 0;  // threads
  unsigned arrived = 0, phase = 0;
  std::vector<Fiber*> waiting;
};

// mbarrier in its 64 bits: arrivals of a phase (20), those still missing (20), bytes still missing (23, biased), phase (1).
struct MBarrier {
  static constexpr uint64_t kBias = 1 << 22, kMask20 = (1 << 20) - 1, kMask23 = (1 << 23) - 1;
  unsigned expected, pending, phase;
  int64_t bytes;
  static MBarrier of(uint64_t w) {
    return {unsigned(w & kMask20), unsigned(w >> 20 & kMask20), unsigned(w >> 63),
            int64_t(w >> 40 & kMask23) - int64_t(kBias)};
  }
  uint64_t word() const {
    return uint64_t(expected) | uint64_t(pending) << 20 | (uint64_t(bytes + int64_t(kBias)) & kMask23) << 40 |
           uint64_t(phase) << 63;
  }
};

struct Async {
  unsigned char* to;
  const void* from;  // null: the value is in `value`
  unsigned bytes;
  unsigned char value[16];
  unsigned barrier;
  Block* block;  // whose shared memory it goes to
};

// A variable in shared memory: where it lies in each block.
struct Slot {
  size_t offset, bytes;
};

class Engine {
 public:
  Engine(const Launch& l, uint64_t s, std::string& w) : launch(l), why(w), state(s * 0x9e3779b97f4a7c15ull + 0x1234567) {}
  unsigned go();

  const Launch& launch;
  std::string& why;
  uint64_t state;
  bool ordered = false;  // seed 0: threads in their order, copies at once
  unsigned failure = 0;
  Fiber* current = nullptr;
  void* scheduler = nullptr;
  sigjmp_buf fault;
  // Warps that have a thread which can run, and the one that runs as far as it can where the launch is drawn so.
  std::vector<Warp*> ready;
  Warp* favourite = nullptr;
  bool far_ahead = false;
  // One in so many turns a copy is made; 0 where copies come when nothing else can.
  unsigned copy_turns = 6;
  std::vector<Async> async;
  std::vector<Fiber*> barrier_waiters;
  // Looks at memory since something happened, those before the last turn of other launches, and what has happened.
  uint64_t idle_yields = 0, idle_before = 0, made = 0;
  // The place of the launch itself, and of who runs it.
  void *own = nullptr, *runner = nullptr;
  bool over = false;
  unsigned code = 0;
  std::vector<bool> used;  // variables in shared memory
  size_t used_bytes = 0;
  std::vector<void*> argument_pointers;

  uint32_t random() {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return uint32_t(state >> 16);
  }
  // Less than n, without a division.
  uint32_t below(size_t n) { return uint32_t(uint64_t(random()) * n >> 32); }
  bool chance(unsigned one_in) { return !ordered && below(one_in) == 0; }

  void suspend();
  void wake(Fiber* f) {
    f->waits = nullptr;
    make_ready(f);
  }
  void make_ready(Fiber* f) {
    Warp* w = f->warp;
    if (w->ready == 0) {
      w->at = unsigned(ready.size());
      ready.push_back(w);
    }
    w->order[w->ready++] = (unsigned char)f->self.lane;
  }
  Fiber* pick();
  void progress() { idle_yields = idle_before = 0, ++made; }
  [[noreturn]] void fail(unsigned code, const std::string& sentence);
  std::string where(const Fiber* f) const;
  std::string place() const { return current ? where(current) : copying ? "a copy beside the threads" : "all threads"; }
  bool copying = false;

  unsigned char* resolve(Block* asking, unsigned address, unsigned bytes, const char* what, Block** owner = nullptr);
  void complete(unsigned char* at, Block* block, unsigned arrivals, int64_t bytes);
  void perform(size_t index);
  void perform_ahead(Fiber* f, const Ahead& a);
  void perform_out(Fiber* f, const Fiber::Out& o);
  void check_barrier(Block* b, unsigned id);
  void check_warp(Fiber* f);
  void check_cluster(Cluster* c);
  void finished(Fiber* f);

  Cluster* start(uint64_t index);
  void end(Cluster* c);
  void loop();
  std::string deadlock() const;

  std::vector<Cluster*> live;
  uint64_t next = 0, total = 0;
  std::vector<uint64_t> order;
};

// It is asked for at every step; the library is there from the start, or small enough for what the loader keeps for late ones.
extern thread_local Engine* engine __attribute__((tls_model("initial-exec")));
// Variables in shared memory of each module.
extern std::map<const Module*, std::vector<Slot>> slots;

inline std::string number(uint64_t n) { return std::to_string(n); }
inline std::string triple(const Dim& d) { return "(" + number(d.x) + ", " + number(d.y) + ", " + number(d.z) + ")"; }

// The functions of the table that kernels see (abi.h).
unsigned shared_address(const void* pointer);
void* shared_pointer(unsigned address, unsigned bytes, const char* what);
void* shared_static(int* slot, unsigned long bytes, unsigned long alignment);
void* shared_dynamic(unsigned long alignment);
void yield(const char* what);
void fail_by_kernel(const char* sentence);
unsigned active_mask();
void warp(unsigned mask, const char* what, void* operand, Finish finish);
unsigned block_barrier(unsigned id, unsigned threads, unsigned value, int wait);
void cluster_arrive();
void cluster_wait();
void barrier_init(unsigned address, unsigned arrivals);
void barrier_arrive(unsigned address, unsigned arrivals, unsigned expect_bytes);
void barrier_complete(unsigned address, unsigned bytes);
unsigned long long barrier_state(unsigned address);
int barrier_test(unsigned address, unsigned parity, int wait);
void copy_to_shared(unsigned to, const void* from, unsigned bytes, unsigned barrier);
void store_async(unsigned to, const void* value, unsigned bytes, unsigned barrier);
void copy_to_global(void* to, unsigned from, unsigned bytes);
void bulk_commit();
void bulk_wait(unsigned groups);
void copy_ahead(unsigned to, const void* from, unsigned bytes, unsigned from_bytes);
void ahead_commit();
void ahead_wait(unsigned groups);
void ahead_all();

}  // namespace emu

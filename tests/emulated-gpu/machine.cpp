// The scheduler of a launch. Threads run one at a time, until they wait; who runs next is drawn from the seed. Copies that a
// GPU makes beside its threads (bulk copies, st.async, cp.async) are made at a time drawn from the seed too, the last moment
// included, so that a wait that is missing shows as wrong bits.
#include "machine.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>

#include "fiber.h"

namespace emu {
namespace {

constexpr unsigned kIllegalAddress = 700, kLaunchTimeout = 702, kAssert = 710, kLaunchFailed = 719;
// Of a block: its variables, then the dynamic part, which ends at a page that cannot be touched.
constexpr size_t kStaticBytes = 1 << 20, kDynamicBytes = 1 << 20, kPage = 4096, kGap = 64;
constexpr unsigned char kCanary = 0xc7;

struct Cluster;
struct Block;

struct Ahead {
  unsigned to, bytes, from_bytes;
  const void* from;
};

struct Fiber {
  Thread self;
  void* sp = nullptr;
  unsigned char* stack = nullptr;
  Block* block = nullptr;
  bool done = false;
  // What it waits for, for the report of a deadlock.
  const char* waits = nullptr;
  unsigned detail = 0;
  // In a warp's operation.
  unsigned mask = 0;
  void* operand = nullptr;
  // At a barrier of the block.
  unsigned barrier_result = 0;
  // At a barrier in shared memory.
  uint64_t* barrier = nullptr;
  unsigned parity = 0;
  unsigned cluster_phase = 0;
  bool cluster_arrived = false;
  // Copies of its own: those not yet in a group, and groups.
  std::vector<Ahead> ahead;
  std::deque<std::vector<Ahead>> ahead_groups;
  struct Out {
    void* to;
    unsigned from, bytes;
  };
  std::vector<Out> out;
  std::deque<std::vector<Out>> out_groups;
};

struct Warp {
  std::vector<Fiber*> lanes;
};

struct Barrier {
  unsigned arrived = 0, sum = 0;
  std::vector<Fiber*> waiting;
  unsigned threads = 0;
};

struct Block {
  Cluster* cluster;
  unsigned rank;
  Dim index;
  std::vector<Fiber*> fibers;
  std::vector<Warp> warps;
  std::map<unsigned, Barrier> barriers;
  unsigned live = 0;
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
  std::vector<Fiber*> ready;
  std::vector<Async> async;
  std::vector<Fiber*> barrier_waiters;
  uint64_t idle_yields = 0;
  std::vector<bool> used;  // variables in shared memory
  size_t used_bytes = 0;
  std::vector<void*> argument_pointers;

  uint32_t random() {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return uint32_t(state >> 16);
  }
  bool chance(unsigned one_in) { return !ordered && random() % one_in == 0; }

  void suspend() { emu_switch(&current->sp, scheduler); }
  void wake(Fiber* f) {
    f->waits = nullptr;
    ready.push_back(f);
  }
  void progress() { idle_yields = 0; }
  [[noreturn]] void fail(unsigned code, const std::string& sentence);
  std::string where(const Fiber* f) const;
  std::string place() const { return current ? where(current) : std::string("a copy beside the threads"); }

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

thread_local Engine* engine = nullptr;

// Kept between launches; launches of a process run one at a time.
std::vector<unsigned char*> free_stacks;
std::vector<Fiber*> free_fibers;
std::vector<unsigned char*> free_arenas;
std::map<const Module*, std::vector<Slot>> slots;

unsigned char* reserve(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    std::fprintf(stderr, "emulated GPU: the host has no %zu bytes for stacks and shared memory\n", bytes);
    std::abort();
  }
  return static_cast<unsigned char*>(p);
}

unsigned char* stack_of() {
  if (free_stacks.empty()) {
    constexpr int kAtOnce = 64;
    unsigned char* all = reserve(kAtOnce * kStackBytes);
    for (int i = 0; i < kAtOnce; i++) free_stacks.push_back(all + i * kStackBytes);
  }
  unsigned char* s = free_stacks.back();
  free_stacks.pop_back();
  std::memset(s, kCanary, kGap);
  return s;
}

unsigned char* arena_of() {
  if (free_arenas.empty()) {
    unsigned char* a = reserve(kStaticBytes + kDynamicBytes + 2 * kPage);
    mprotect(a + kStaticBytes, kPage, PROT_NONE);
    mprotect(a + kStaticBytes + kPage + kDynamicBytes, kPage, PROT_NONE);
    free_arenas.push_back(a);
  }
  unsigned char* a = free_arenas.back();
  free_arenas.pop_back();
  return a;
}

std::string number(uint64_t n) { return std::to_string(n); }
std::string triple(const Dim& d) { return "(" + number(d.x) + ", " + number(d.y) + ", " + number(d.z) + ")"; }

void entry() {
  engine->launch.kernel->call(engine->argument_pointers.data());
  Engine* e = engine;
  e->finished(e->current);
  e->suspend();
  std::abort();
}

std::string Engine::where(const Fiber* f) const {
  return "block " + triple(f->self.block_index) + " thread " + triple(f->self.thread_index);
}

void Engine::fail(unsigned code, const std::string& sentence) {
  if (!failure) {
    failure = code;
    why = std::string(launch.label) + ", " + place() + ": " + sentence;
  }
  if (current) {
    // Never resumed.
    emu_switch(&current->sp, scheduler);
  }
  siglongjmp(fault, 1);
}

// --- shared memory

unsigned char* Engine::resolve(Block* asking, unsigned address, unsigned bytes, const char* what, Block** owner) {
  unsigned rank = address >> 24, offset = address & 0xffffffu;
  Block* b = asking;
  if (rank) {
    if (rank > asking->cluster->blocks.size())
      fail(kIllegalAddress, std::string(what) + " to shared memory of block " + number(rank - 1) + " of a cluster of " +
                                number(asking->cluster->blocks.size()));
    b = asking->cluster->blocks[rank - 1];
    if (b->live == 0)
      fail(kIllegalAddress, std::string(what) + " to shared memory of block " + number(rank - 1) +
                                " of the cluster, which has ended");
  }
  if (owner) *owner = b;
  const size_t first = size_t(b->dynamic - b->arena);
  const bool is_static = offset + size_t(bytes) <= kStaticBytes;
  const bool is_dynamic = offset >= first && offset + size_t(bytes) <= first + b->dynamic_bytes;
  if (!is_static && !is_dynamic)
    fail(kIllegalAddress, std::string(what) + " of " + number(bytes) + " bytes at " +
                              number(offset >= first ? offset - first : 0) + " of " + number(b->dynamic_bytes) +
                              " bytes of dynamic shared memory");
  return b->arena + offset;
}

unsigned shared_address(const void* pointer) {
  Block* b = engine->current->block;
  auto* p = static_cast<const unsigned char*>(pointer);
  const size_t all = kStaticBytes + 2 * kPage + kDynamicBytes;
  if (p >= b->arena && p <= b->arena + all) return unsigned(p - b->arena);
  engine->fail(kIllegalAddress, "an address that is not in this block's shared memory was taken for one");
}

void* shared_pointer(unsigned address, unsigned bytes, const char* what) {
  return engine->resolve(engine->current->block, address, bytes, what);
}

void* shared_static(int* slot, unsigned long bytes, unsigned long alignment) {
  auto& list = slots[engine->launch.module];
  if (*slot < 0) {
    size_t at = list.empty() ? kGap : list.back().offset + list.back().bytes + kGap;
    at = (at + alignment - 1) / alignment * alignment;
    if (at + bytes + kGap > kStaticBytes) engine->fail(kLaunchFailed, "more variables in shared memory than the emulation holds");
    *slot = int(list.size());
    list.push_back({at, bytes});
    // Blocks that run already.
    for (Cluster* c : engine->live)
      for (Block* b : c->blocks) {
        poison(b->arena + at, bytes);
        std::memset(b->arena + at + bytes, kCanary, kGap);
      }
  }
  const Slot& s = list[size_t(*slot)];
  engine->used.resize(list.size());
  if (!engine->used[size_t(*slot)]) {
    engine->used[size_t(*slot)] = true;
    engine->used_bytes += s.bytes;
    if (engine->used_bytes > engine->launch.static_limit)
      engine->fail(kLaunchFailed, "variables of " + number(engine->used_bytes) + " bytes in shared memory and " +
                                      number(engine->launch.dynamic_shared) + " dynamic ones are more than a block may have");
    if (engine->used_bytes > *engine->launch.static_used) *engine->launch.static_used = unsigned(engine->used_bytes);
  }
  return engine->current->block->arena + s.offset;
}

void* shared_dynamic(unsigned long alignment) {
  Block* b = engine->current->block;
  if (reinterpret_cast<uintptr_t>(b->dynamic) % alignment)
    engine->fail(kLaunchFailed, "dynamic shared memory aligned to " + number(alignment) + " bytes is more than is promised");
  return b->dynamic;
}

// --- waiting

void yield(const char* what) {
  Engine* e = engine;
  // Alone in having nothing to wait for: the others must come, or nobody ever will.
  // Atomics are work, too, but a lock that nobody opens is none.
  const bool reads = std::strcmp(what, "an atomic") != 0;
  if (!reads && !e->chance(4)) return;
  if (++e->idle_yields > (reads ? 4000000u : 200000000u) && e->async.empty())
    e->fail(kLaunchTimeout, std::string("waits for ever at ") + what + "\n" + e->deadlock());
  e->wake(e->current);
  e->suspend();
}

void fail_by_kernel(const char* sentence) { engine->fail(kAssert, sentence); }

unsigned active_mask() {
  unsigned mask = 0;
  Fiber* f = engine->current;
  auto& lanes = f->block->warps[f->self.warp].lanes;
  for (size_t i = 0; i < lanes.size(); i++)
    if (!lanes[i]->done) mask |= 1u << i;
  return mask;
}

// Completes the operation that `f` waits in, if all lanes of its mask have come.
void Engine::check_warp(Fiber* f) {
  auto& lanes = f->block->warps[f->self.warp].lanes;
  void* operands[32] = {};
  for (unsigned i = 0; i < 32; i++) {
    if (!(f->mask >> i & 1)) continue;
    if (i >= lanes.size()) continue;  // a block of no whole number of warps
    Fiber* l = lanes[i];
    if (l->done) continue;
    if (!l->operand || l->mask != f->mask || l->detail != f->detail || std::strcmp(l->waits, f->waits) != 0) return;
    operands[i] = l->operand;
  }
  reinterpret_cast<Finish>(f->barrier)(operands, f->mask);
  progress();
  for (unsigned i = 0; i < 32; i++) {
    if (!operands[i]) continue;
    lanes[i]->operand = nullptr;
    lanes[i]->barrier = nullptr;
    wake(lanes[i]);
  }
}

void warp(unsigned mask, const char* what, void* operand, Finish finish) {
  Fiber* f = engine->current;
  if (!(mask >> f->self.lane & 1))
    engine->fail(kLaunchFailed, std::string(what) + " with a mask that leaves out the lane that calls it");
  f->mask = mask;
  f->waits = what;
  f->operand = operand;
  f->barrier = reinterpret_cast<uint64_t*>(finish);
  engine->check_warp(f);
  engine->suspend();
}

void Engine::check_barrier(Block* b, unsigned id) {
  Barrier& bar = b->barriers[id];
  if (bar.waiting.empty() && bar.arrived == 0) return;
  // Threads that have ended count as there; a part of the block is counted by the barrier itself.
  unsigned wanted = bar.threads ? bar.threads : b->live;
  if (bar.arrived < wanted) return;
  std::vector<Fiber*> list;
  list.swap(bar.waiting);
  const unsigned sum = bar.sum;
  bar = Barrier();
  progress();
  for (Fiber* f : list) {
    f->barrier_result = sum;
    wake(f);
  }
}

unsigned block_barrier(unsigned id, unsigned threads, unsigned value, int wait) {
  Fiber* f = engine->current;
  Block* b = f->block;
  Barrier& bar = b->barriers[id];
  if (id >= 16) engine->fail(kLaunchFailed, "barrier " + number(id) + " of a block; there are 16");
  if (threads % 32) engine->fail(kLaunchFailed, "a barrier of " + number(threads) + " threads, which are no whole warps");
  if (bar.arrived && bar.threads != threads)
    engine->fail(kLaunchFailed, "barrier " + number(id) + " of " + number(threads) + " threads while others wait at it as one of " +
                                    number(bar.threads));
  bar.threads = threads;
  bar.arrived++;
  bar.sum += value;
  if (wait) {
    f->waits = "a barrier of the block";
    f->detail = id;
    bar.waiting.push_back(f);
  }
  engine->check_barrier(b, id);
  if (!wait) return 0;
  engine->suspend();
  f->detail = 0;
  return f->barrier_result;
}

void Engine::check_cluster(Cluster* c) {
  if (c->live == 0 || c->arrived < c->live) return;
  c->arrived = 0;
  c->phase++;
  progress();
  for (Fiber* f : c->waiting) wake(f);
  c->waiting.clear();
}

void cluster_arrive() {
  Fiber* f = engine->current;
  if (f->cluster_arrived) engine->fail(kLaunchFailed, "barrier.cluster.arrive twice without a wait");
  f->cluster_arrived = true;
  f->cluster_phase = f->block->cluster->phase;
  f->block->cluster->arrived++;
  engine->check_cluster(f->block->cluster);
}

void cluster_wait() {
  Fiber* f = engine->current;
  if (!f->cluster_arrived) engine->fail(kLaunchFailed, "barrier.cluster.wait without an arrive");
  f->cluster_arrived = false;
  if (f->block->cluster->phase != f->cluster_phase) return;
  f->waits = "the cluster's barrier";
  f->block->cluster->waiting.push_back(f);
  engine->suspend();
}

// --- barriers in shared memory

uint64_t* barrier_at(unsigned address, Block** owner = nullptr) {
  unsigned char* p = engine->resolve(engine->current->block, address, 8, "an mbarrier", owner);
  if (reinterpret_cast<uintptr_t>(p) % 8) engine->fail(kLaunchFailed, "an mbarrier that is not aligned to 8 bytes");
  return reinterpret_cast<uint64_t*>(p);
}

void barrier_init(unsigned address, unsigned arrivals) {
  if (arrivals == 0 || arrivals > MBarrier::kMask20) engine->fail(kLaunchFailed, "an mbarrier of " + number(arrivals) + " arrivals");
  *barrier_at(address) = MBarrier{arrivals, arrivals, 0, 0}.word();
}

// `bytes` is negative where bytes have come.
void Engine::complete(unsigned char* at, Block* block, unsigned arrivals, int64_t bytes) {
  (void)block;
  auto* word = reinterpret_cast<uint64_t*>(at);
  MBarrier m = MBarrier::of(*word);
  if (m.expected == 0 || m.pending > m.expected) fail(kLaunchFailed, "an mbarrier that was not initialised");
  if (arrivals > m.pending) fail(kLaunchFailed, "more arrivals at an mbarrier than it was initialised for");
  m.pending -= arrivals;
  m.bytes += bytes;
  if (m.bytes >= int64_t(MBarrier::kBias) / 4 || m.bytes <= -int64_t(MBarrier::kBias) / 4)
    fail(kLaunchFailed, "the bytes of an mbarrier's phase are beyond 2^20");
  progress();
  if (m.pending == 0 && m.bytes == 0) {
    m.pending = m.expected;
    m.phase ^= 1;
  }
  *word = m.word();
  for (size_t i = 0; i < barrier_waiters.size();) {
    Fiber* f = barrier_waiters[i];
    if (f->barrier == word && m.phase != f->parity) {
      f->barrier = nullptr;
      barrier_waiters[i] = barrier_waiters.back();
      barrier_waiters.pop_back();
      wake(f);
    } else {
      i++;
    }
  }
}

void barrier_arrive(unsigned address, unsigned arrivals, unsigned expect_bytes) {
  Block* owner;
  uint64_t* at = barrier_at(address, &owner);
  engine->complete(reinterpret_cast<unsigned char*>(at), owner, 0, expect_bytes);
  if (arrivals) engine->complete(reinterpret_cast<unsigned char*>(at), owner, arrivals, 0);
}

void barrier_complete(unsigned address, unsigned bytes) {
  Block* owner;
  uint64_t* at = barrier_at(address, &owner);
  engine->complete(reinterpret_cast<unsigned char*>(at), owner, 0, -int64_t(bytes));
}

unsigned long long barrier_state(unsigned address) { return *barrier_at(address); }

int barrier_test(unsigned address, unsigned parity, int wait) {
  uint64_t* at = barrier_at(address);
  MBarrier m = MBarrier::of(*at);
  if (m.expected == 0) engine->fail(kLaunchFailed, "a wait at an mbarrier that was not initialised");
  if (m.phase != (parity & 1)) return 1;
  if (!wait || engine->chance(8)) {
    // A try may give up before the phase ends.
    yield("an mbarrier");
    return MBarrier::of(*at).phase != (parity & 1);
  }
  Fiber* f = engine->current;
  f->waits = "an mbarrier";
  f->detail = address;
  f->barrier = at;
  f->parity = parity & 1;
  engine->barrier_waiters.push_back(f);
  engine->suspend();
  f->detail = 0;
  return 1;
}

// --- copies beside the threads

void Engine::perform(size_t index) {
  Async a = async[index];
  async[index] = async.back();
  async.pop_back();
  if (a.block->live == 0) fail(kIllegalAddress, "a copy arrives in the shared memory of a block that has ended");
  std::memcpy(a.to, a.from ? a.from : a.value, a.bytes);
  Block* owner;
  unsigned char* at = resolve(a.block, a.barrier & 0xffffffu, 8, "an mbarrier", &owner);
  complete(at, owner, 0, -int64_t(a.bytes));
}

void check_copy(unsigned to, const void* from, unsigned bytes) {
  if (bytes % 16 || to % 16 || reinterpret_cast<uintptr_t>(from) % 16)
    engine->fail(kLaunchFailed, "a bulk copy of " + number(bytes) + " bytes; sizes and both addresses must be multiples of 16");
}

void enqueue(Async a) {
  engine->progress();
  engine->async.push_back(a);
  if (engine->ordered) engine->perform(engine->async.size() - 1);
}

void copy_to_shared(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  check_copy(to, from, bytes);
  Async a = {};
  a.to = engine->resolve(engine->current->block, to, bytes, "a bulk copy", &a.block);
  a.from = from;
  a.bytes = bytes;
  a.barrier = barrier;
  if (bytes) enqueue(a);
}

void store_async(unsigned to, const void* value, unsigned bytes, unsigned barrier) {
  Async a = {};
  a.to = engine->resolve(engine->current->block, to, bytes, "st.async", &a.block);
  if (to % bytes) engine->fail(kLaunchFailed, "st.async of " + number(bytes) + " bytes to an address that is no multiple of it");
  Block* of_barrier;
  engine->resolve(engine->current->block, barrier, 8, "the mbarrier of st.async", &of_barrier);
  if (of_barrier != a.block) engine->fail(kLaunchFailed, "st.async with a barrier in another block than its address");
  std::memcpy(a.value, value, bytes);
  a.bytes = bytes;
  a.barrier = barrier;
  enqueue(a);
}

void Engine::perform_out(Fiber* f, const Fiber::Out& o) {
  std::memcpy(o.to, resolve(f->block, o.from, o.bytes, "a bulk copy"), o.bytes);
}

void copy_to_global(void* to, unsigned from, unsigned bytes) {
  check_copy(from, to, bytes);
  engine->resolve(engine->current->block, from, bytes, "a bulk copy");
  engine->current->out.push_back({to, from, bytes});
}

void bulk_commit() {
  Fiber* f = engine->current;
  f->out_groups.push_back(std::move(f->out));
  f->out.clear();
}

void bulk_wait(unsigned groups) {
  Fiber* f = engine->current;
  while (f->out_groups.size() > groups) {
    auto list = std::move(f->out_groups.front());
    f->out_groups.pop_front();
    for (auto& o : list) engine->perform_out(f, o);
  }
}

void Engine::perform_ahead(Fiber* f, const Ahead& a) {
  unsigned char* to = resolve(f->block, a.to, a.bytes, "cp.async");
  std::memcpy(to, a.from, a.from_bytes);
  std::memset(to + a.from_bytes, 0, a.bytes - a.from_bytes);
}

void copy_ahead(unsigned to, const void* from, unsigned bytes, unsigned from_bytes) {
  if (to % bytes || reinterpret_cast<uintptr_t>(from) % bytes)
    engine->fail(kLaunchFailed, "cp.async of " + number(bytes) + " bytes to or from an address that is no multiple of it");
  Ahead a = {to, bytes, std::min(from_bytes, bytes), from};
  engine->resolve(engine->current->block, to, bytes, "cp.async");
  // At once, or as late as may be.
  if (engine->ordered || engine->chance(4)) engine->perform_ahead(engine->current, a);
  else engine->current->ahead.push_back(a);
}

void ahead_commit() {
  Fiber* f = engine->current;
  f->ahead_groups.push_back(std::move(f->ahead));
  f->ahead.clear();
}

void ahead_wait(unsigned groups) {
  Fiber* f = engine->current;
  while (f->ahead_groups.size() > groups) {
    auto list = std::move(f->ahead_groups.front());
    f->ahead_groups.pop_front();
    for (auto& a : list) engine->perform_ahead(f, a);
  }
}

void ahead_all() {
  ahead_commit();
  ahead_wait(0);
}

unsigned random_number() { return engine->random(); }

const Machine kMachine = {yield,          fail_by_kernel, warp,           active_mask,      block_barrier, cluster_arrive,
                          cluster_wait,   shared_static,  shared_dynamic, shared_address,   shared_pointer, barrier_init,
                          barrier_arrive, barrier_complete, barrier_test, barrier_state,    copy_to_shared, store_async,
                          copy_to_global, bulk_commit,    bulk_wait,      copy_ahead,       ahead_commit,  ahead_wait,
                          ahead_all,      random_number};

// --- the life of threads

void Engine::finished(Fiber* f) {
  if (f->cluster_arrived) {
    // Its arrival counts, and it is not waited for any more.
    f->block->cluster->arrived--;
  }
  f->done = true;
  // What it still has on the way arrives.
  ahead_all();
  bulk_commit();
  bulk_wait(0);
  progress();
  Block* b = f->block;
  b->live--;
  b->cluster->live--;
  for (auto& entry : b->barriers) check_barrier(b, entry.first);
  check_cluster(b->cluster);
  for (Fiber* l : b->warps[f->self.warp].lanes) {
    if (!l->done && l->operand) {
      check_warp(l);
    }
  }
}

Cluster* Engine::start(uint64_t index) {
  const Dim& g = launch.grid;
  const Dim& k = launch.cluster;
  const uint64_t cx = g.x / k.x, cy = g.y / k.y;
  const Dim first = {unsigned(index % cx) * k.x, unsigned(index / cx % cy) * k.y, unsigned(index / cx / cy) * k.z};
  auto* c = new Cluster;
  const unsigned blocks = k.x * k.y * k.z, threads = launch.block.x * launch.block.y * launch.block.z;
  for (unsigned r = 0; r < blocks; r++) {
    auto* b = new Block;
    b->cluster = c;
    b->rank = r;
    b->index = {first.x + r % k.x, first.y + r / k.x % k.y, first.z + r / k.x / k.y};
    b->live = threads;
    b->arena = arena_of();
    b->dynamic_bytes = launch.dynamic_shared;
    // Its end touches the page that cannot be touched.
    unsigned char* end = b->arena + kStaticBytes + kPage + kDynamicBytes;
    const size_t room = (b->dynamic_bytes + 127) / 128 * 128;
    b->dynamic = end - room;
    std::memset(b->dynamic - kGap, kCanary, kGap);
    poison(b->dynamic, b->dynamic_bytes);
    std::memset(b->dynamic + b->dynamic_bytes, kCanary, room - b->dynamic_bytes);
    std::memset(b->arena, kCanary, kGap);
    for (const Slot& s : slots[launch.module]) {
      poison(b->arena + s.offset, s.bytes);
      std::memset(b->arena + s.offset + s.bytes, kCanary, kGap);
    }
    b->warps.resize((threads + 31) / 32);
    for (unsigned t = 0; t < threads; t++) {
      Fiber* f;
      if (free_fibers.empty()) {
        f = new Fiber;
        f->stack = stack_of();
      } else {
        f = free_fibers.back();
        free_fibers.pop_back();
        unsigned char* stack = f->stack;
        *f = Fiber();
        f->stack = stack;
      }
      f->self.thread_index = {t % launch.block.x, t / launch.block.x % launch.block.y, t / launch.block.x / launch.block.y};
      f->self.block_index = b->index;
      f->self.block_dim = launch.block;
      f->self.grid_dim = launch.grid;
      f->self.cluster_dim = k;
      f->self.lane = t % 32;
      f->self.warp = t / 32;
      f->self.cluster_rank = r;
      f->self.cluster_blocks = blocks;
      f->block = b;
      f->sp = prepare(f->stack, kStackBytes, entry);
      b->fibers.push_back(f);
      b->warps[t / 32].lanes.push_back(f);
      ready.push_back(f);
    }
    c->live += threads;
    c->blocks.push_back(b);
  }
  live.push_back(c);
  return c;
}

bool intact(const unsigned char* at, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if (at[i] != kCanary) return false;
  return true;
}

void Engine::end(Cluster* c) {
  for (Block* b : c->blocks) {
    if (!failure) {
      std::string broken;
      for (const Slot& s : slots[launch.module])
        if (!intact(b->arena + s.offset + s.bytes, kGap)) broken = "a variable in shared memory of " + number(s.bytes) + " bytes";
      const size_t room = (b->dynamic_bytes + 127) / 128 * 128;
      if (!intact(b->dynamic - kGap, kGap)) broken = "the beginning of dynamic shared memory";
      if (!intact(b->dynamic + b->dynamic_bytes, room - b->dynamic_bytes)) broken = "the end of dynamic shared memory";
      for (Fiber* f : b->fibers)
        if (!intact(f->stack, kGap)) broken = "a thread's stack";
      if (!broken.empty()) {
        failure = kIllegalAddress;
        why = std::string(launch.label) + ", block " + triple(b->index) + ": something was written beyond " + broken;
      }
    }
    for (Fiber* f : b->fibers) free_fibers.push_back(f);
    free_arenas.push_back(b->arena);
    delete b;
  }
  live.erase(std::find(live.begin(), live.end(), c));
  delete c;
}

std::string Engine::deadlock() const {
  // Who waits for what, alike ones counted together.
  std::map<std::string, std::pair<unsigned, std::string>> list;
  for (Cluster* c : live)
    for (Block* b : c->blocks)
      for (Fiber* f : b->fibers) {
        if (f->done) continue;
        std::string what = f->waits ? f->waits : "nothing (ready)";
        if (f->waits && std::strcmp(f->waits, "a barrier of the block") == 0) {
          what += " " + number(f->detail) + " (" + number(b->barriers[f->detail].arrived) + " of " +
                  number(b->barriers[f->detail].threads ? b->barriers[f->detail].threads : b->live) + " threads there)";
        } else if (f->barrier && !f->operand) {
          MBarrier m = MBarrier::of(*f->barrier);
          what += " at " + number(f->detail) + ", parity " + number(f->parity) + " (" + number(m.pending) + " of " +
                  number(m.expected) + " arrivals and " + std::to_string(m.bytes) + " bytes missing)";
        } else if (f->operand) {
          char mask[16];
          std::snprintf(mask, sizeof mask, "0x%08x", f->mask);
          what += std::string(" with mask ") + mask;
        }
        auto& entry = list["block " + triple(b->index) + ": " + what];
        if (entry.first++ < 4) entry.second += " " + triple(f->self.thread_index);
      }
  std::string text;
  unsigned lines = 0;
  for (auto& [what, who] : list) {
    if (++lines > 12) {
      text += "  ...\n";
      break;
    }
    text += "  " + what + ": " + number(who.first) + " threads, such as" + who.second + "\n";
  }
  return text;
}

void Engine::loop() {
  const uint64_t window = launch.cooperative ? total : ordered ? 1 : 1 + random() % 3;
  while (true) {
    while (live.size() < window && next < total) start(order.empty() ? next++ : order[next++]);
    if (live.empty()) return;
    // A copy, now and then, or where nobody can run.
    if (!async.empty() && (ready.empty() || chance(6))) perform(random() % async.size());
    if (ready.empty()) {
      if (!async.empty()) continue;
      fail(kLaunchTimeout, "no thread can go on:\n" + deadlock());
    }
    const size_t pick = ordered ? 0 : random() % ready.size();
    Fiber* f = ready[pick];
    if (ordered) {
      ready.erase(ready.begin());
    } else {
      ready[pick] = ready.back();
      ready.pop_back();
    }
    current = f;
    *launch.module->self = &f->self;
    emu_switch(&scheduler, f->sp);
    current = nullptr;
    if (failure) return;
    if (f->done && f->block->cluster->live == 0) {
      // Its copies must have arrived: shared memory ends with the block.
      Cluster* c = f->block->cluster;
      for (const Async& a : async)
        if (a.block->cluster == c) {
          failure = kIllegalAddress;
          why = std::string(launch.label) + ", block " + triple(a.block->index) +
                ": it ended while a copy into its shared memory was on the way";
          return;
        }
      end(c);
    }
  }
}

// --- faults

struct sigaction previous_segv, previous_bus;

void on_fault(int signal, siginfo_t* info, void* context) {
  if (engine) {
    if (!engine->failure) {
      engine->failure = kIllegalAddress;
      engine->why = std::string(engine->launch.label) + ", " + engine->place() + ": an access to " +
                    describe_address(info->si_addr);
    }
    siglongjmp(engine->fault, 1);
  }
  const struct sigaction& before = signal == SIGSEGV ? previous_segv : previous_bus;
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    sigaction(signal, &before, nullptr);
  }
}

void watch_faults() {
  static bool done = false;
  if (done) return;
  done = true;
  struct sigaction a = {};
  a.sa_sigaction = on_fault;
  a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &a, &previous_segv);
  sigaction(SIGBUS, &a, &previous_bus);
}

unsigned Engine::go() {
  const Dim& g = launch.grid;
  const Dim& k = launch.cluster;
  total = uint64_t(g.x / k.x) * (g.y / k.y) * (g.z / k.z);
  // A grid of many blocks needs no list of its own to be in disorder.
  if (!ordered && total <= (1u << 20)) {
    order.resize(total);
    for (uint64_t i = 0; i < total; i++) order[i] = i;
    for (uint64_t i = total; i > 1; i--) std::swap(order[i - 1], order[random() % i]);
  }
  for (size_t o : launch.offsets) argument_pointers.push_back(const_cast<unsigned char*>(launch.arguments.data()) + o);
  *launch.module->machine = &kMachine;
  watch_faults();
  if (sigsetjmp(fault, 1) == 0) loop();
  while (!live.empty()) end(live.back());
  return failure;
}

}  // namespace

unsigned run(const Launch& launch, uint64_t s, std::string& why) {
  Engine e(launch, s, why);
  e.ordered = s == 0;
  // A stack for the handler where the host's thread has none.
  stack_t now = {};
  sigaltstack(nullptr, &now);
  static thread_local std::vector<char> handler_stack;
  if (now.ss_flags & SS_DISABLE) {
    handler_stack.resize(256 << 10);
    stack_t mine = {};
    mine.ss_sp = handler_stack.data();
    mine.ss_size = handler_stack.size();
    sigaltstack(&mine, nullptr);
  }
  engine = &e;
  const unsigned code = e.go();
  engine = nullptr;
  return code;
}

uint64_t seed() {
  static const uint64_t s = [] {
    const char* text = std::getenv("CHRONAXIE_EMULATED_SEED");
    return text && *text ? std::strtoull(text, nullptr, 10) : 1ull;
  }();
  return s;
}

void poison(void* at, size_t bytes) {
  const uint32_t word = 0x7fa00000u | (uint32_t(seed()) * 2654435761u >> 12 & 0xfffffu) | 1u;
  auto* p = static_cast<unsigned char*>(at);
  size_t i = 0;
  for (; i + 4 <= bytes; i += 4) std::memcpy(p + i, &word, 4);
  for (; i < bytes; i++) p[i] = 0x7f;
}

}  // namespace emu

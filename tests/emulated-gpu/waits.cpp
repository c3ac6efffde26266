// Where threads wait for each other: shared memory and its barriers, barriers of a block and of a cluster, operations of a warp.
#include <cstring>

#include "engine.h"

namespace emu {

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
  if (++e->idle_yields > (reads ? 4000000u : 200000000u) && e->async.empty() && !waits_for_ever)
    e->fail(kLaunchTimeout, std::string("waits for ever at ") + what + "\n" + e->deadlock());
  e->wake(e->current);
  e->suspend();
}

void fail_by_kernel(const char* sentence) { engine->fail(kAssert, sentence); }

unsigned active_mask() {
  unsigned mask = 0;
  Fiber* f = engine->current;
  const Warp& w = *f->warp;
  for (unsigned i = 0; i < w.size; i++)
    if (!w.lanes[i]->done) mask |= 1u << i;
  return mask;
}

// Completes the operation that `f` waits in, if all lanes of its mask have come.
void Engine::check_warp(Fiber* f) {
  Warp& w = *f->warp;
  auto& lanes = w.lanes;
  // Most come before the last one. A block may be of no whole number of warps.
  const unsigned there = w.size < 32 ? (1u << w.size) - 1 : ~0u;
  if (f->mask & there & ~(w.waiting | w.ended)) return;
  void* operands[32] = {};
  for (unsigned i = 0; i < 32; i++) {
    if (!((f->mask & there) >> i & 1)) continue;
    Fiber* l = lanes[i];
    if (l->done) continue;
    if (!l->operand || l->mask != f->mask || l->detail != f->detail) return;
    if (l->waits != f->waits && std::strcmp(l->waits, f->waits) != 0) return;
    operands[i] = l->operand;
  }
  reinterpret_cast<Finish>(f->barrier)(operands, f->mask);
  progress();
  for (unsigned i = 0; i < 32; i++) {
    if (!operands[i]) continue;
    lanes[i]->operand = nullptr;
    w.waiting &= ~(1u << i);
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
  f->warp->waiting |= 1u << f->self.lane;
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
  progress();
  for (Fiber* f : bar.waiting) {
    f->barrier_result = bar.sum;
    wake(f);
  }
  bar.waiting.clear();
  bar.arrived = bar.sum = bar.threads = 0;
  b->arrived &= ~(1u << id);
}

unsigned block_barrier(unsigned id, unsigned threads, unsigned value, int wait) {
  Fiber* f = engine->current;
  Block* b = f->block;
  if (id >= kBarriers) engine->fail(kLaunchFailed, "barrier " + number(id) + " of a block; there are 16");
  if (threads % 32) engine->fail(kLaunchFailed, "a barrier of " + number(threads) + " threads, which are no whole warps");
  Barrier& bar = b->barriers[id];
  if (bar.arrived && bar.threads != threads)
    engine->fail(kLaunchFailed, "barrier " + number(id) + " of " + number(threads) + " threads while others wait at it as one of " +
                                    number(bar.threads));
  bar.threads = threads;
  bar.arrived++;
  b->arrived |= 1u << id;
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
  Block* owner;
  uint64_t* at = barrier_at(address, &owner);
  owner->initialised.insert(at);
  *at = MBarrier{arrivals, arrivals, 0, 0}.word();
}

// `bytes` is negative where bytes have come.
void Engine::complete(unsigned char* at, Block* block, unsigned arrivals, int64_t bytes) {
  auto* word = reinterpret_cast<uint64_t*>(at);
  MBarrier m = MBarrier::of(*word);
  if (!block->initialised.count(word) || m.expected == 0 || m.pending > m.expected)
    fail(kLaunchFailed, "an mbarrier that was not initialised");
  if (arrivals > m.pending) fail(kLaunchFailed, "more arrivals at an mbarrier than it was initialised for");
  m.pending -= arrivals;
  m.bytes += bytes;
  if (m.bytes >= int64_t(MBarrier::kBias) / 4 || m.bytes <= -int64_t(MBarrier::kBias) / 4)
    fail(kLaunchFailed, "the bytes of an mbarrier's phase are beyond 2^20");
  progress();
  const bool over = m.pending == 0 && m.bytes == 0;
  if (over) {
    m.pending = m.expected;
    m.phase ^= 1;
  }
  *word = m.word();
  if (!over) return;
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
  if (!engine->current->block->initialised.count(at)) engine->fail(kLaunchFailed, "a wait at an mbarrier that was not initialised");
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

}  // namespace emu

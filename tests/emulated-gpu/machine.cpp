// The scheduler of a launch. Threads run one at a time, until they wait; who runs next is drawn from the seed. Copies that a
// GPU makes beside its threads (bulk copies, st.async, cp.async) are made at a time drawn from the seed too, the last moment
// included, so that a wait that is missing shows as wrong bits.
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine.h"

namespace emu {

thread_local Engine* engine __attribute__((tls_model("initial-exec"))) = nullptr;
std::map<const Module*, std::vector<Slot>> slots;

namespace {

// Kept between launches, which run one at a time, and where one of another device must come, in turns.
std::vector<unsigned char*> free_stacks, launch_stacks;
std::vector<Engine*> begun;
constexpr size_t kLaunchStackBytes = 1 << 20;
// Looks at memory, by all threads of a launch, until others have a turn.
constexpr uint64_t kPatience = 20000;
std::vector<Fiber*> free_fibers;
std::vector<unsigned char*> free_arenas;

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
  return s;
}

// Stacks lie a power of two apart; their ends in use must not all fall to the same lines of the cache.
Fiber* new_fiber() {
  static size_t count = 0;
  auto* f = new Fiber();
  f->stack = stack_of();
  f->colour = count++ % 61 * 64;
  std::memset(f->stack + f->colour, kCanary, 16);
  return f;
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

void entry() {
  engine->launch.kernel->call(engine->argument_pointers.data());
  Engine* e = engine;
  e->finished(e->current);
  e->suspend();
  std::abort();
}

}  // namespace

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

namespace {

unsigned random_number() { return engine->random(); }

const Machine kMachine = {yield,          fail_by_kernel, warp,           active_mask,      block_barrier, cluster_arrive,
                          cluster_wait,   shared_static,  shared_dynamic, shared_address,   shared_pointer, barrier_init,
                          barrier_arrive, barrier_complete, barrier_test, barrier_state,    copy_to_shared, store_async,
                          copy_to_global, bulk_commit,    bulk_wait,      copy_ahead,       ahead_commit,  ahead_wait,
                          ahead_all,      random_number};

}  // namespace

// --- the life of threads

void Engine::finished(Fiber* f) {
  if (f->cluster_arrived) {
    // Its arrival counts, and it is not waited for any more.
    f->block->cluster->arrived--;
  }
  f->done = true;
  if (f->copies) {
    // What it still has on the way arrives.
    ahead_all();
    bulk_commit();
    bulk_wait(0);
  }
  progress();
  Block* b = f->block;
  b->live--;
  b->cluster->live--;
  for (unsigned some = b->arrived; some; some &= some - 1) check_barrier(b, unsigned(__builtin_ctz(some)));
  check_cluster(b->cluster);
  Warp& w = *f->warp;
  w.ended |= 1u << f->self.lane;
  for (unsigned i = 0; i < w.size && w.waiting; i++)
    if (!w.lanes[i]->done && w.lanes[i]->operand) check_warp(w.lanes[i]);
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
        f = new_fiber();
      } else {
        f = free_fibers.back();
        free_fibers.pop_back();
        f->again();
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
      f->sp = prepare(f->stack, kStackBytes - 2 * f->colour, entry);
      b->fibers.push_back(f);
      f->warp = &b->warps[t / 32];
      f->warp->block = b;
      f->warp->lanes[f->warp->size++] = f;
      make_ready(f);
    }
    c->live += threads;
    c->blocks.push_back(b);
  }
  live.push_back(c);
  return c;
}

static bool intact(const unsigned char* at, size_t bytes) {
  return bytes == 0 || (at[0] == kCanary && std::memcmp(at, at + 1, bytes - 1) == 0);
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
        if (!intact(f->stack + f->colour, 16)) broken = "a thread's stack";
      if (!broken.empty()) {
        failure = kIllegalAddress;
        why = std::string(launch.label) + ", block " + triple(b->index) + ": something was written beyond " + broken;
      }
    }
    for (Fiber* f : b->fibers) free_fibers.push_back(f);
    free_arenas.push_back(b->arena);
    if (favourite && favourite->block == b) favourite = nullptr;
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

// Who runs next. Where all are alike, any; in a launch that lets one run far ahead, the threads of one warp as long as they can,
// then those of another, more often one of the same block: what the others still read must not be overwritten by then.
Fiber* Engine::pick() {
  size_t at = 0;
  if (!ordered) {
    at = below(ready.size());
    if (far_ahead && !chance(32)) {
      if (favourite && favourite->ready) {
        at = favourite->at;
      } else if (favourite && random() % 4) {
        for (int i = 0; i < 4 && ready[at]->block != favourite->block; i++) at = below(ready.size());
      }
    }
  }
  Warp* w = ready[at];
  favourite = w;
  if (ordered) {
    Fiber* f = w->lanes[w->order[0]];
    std::memmove(w->order, w->order + 1, --w->ready);
    // Each warp has a turn.
    ready.erase(ready.begin());
    if (w->ready) ready.push_back(w);
    return f;
  }
  const unsigned lane = below(w->ready);
  Fiber* f = w->lanes[w->order[lane]];
  w->order[lane] = w->order[--w->ready];
  if (w->ready == 0) {
    ready[at] = ready.back();
    ready[at]->at = unsigned(at);
    ready.pop_back();
  }
  return f;
}

// Gives way to whoever is drawn, without the loop below where it would have nothing else to do.
void Engine::suspend() {
  Fiber* f = current;
  if (!async.empty() || ready.empty() || f->block->cluster->live == 0 || idle_yields >= idle_before + kPatience) {
    emu_switch(&f->sp, scheduler);
    return;
  }
  current = pick();
  *launch.module->self = &current->self;
  if (current == f) return;
  for (int line = 1; line < 4; line++) __builtin_prefetch(static_cast<char*>(current->sp) + 64 * line);
  emu_switch(&f->sp, current->sp);
}

void Engine::loop() {
  far_ahead = random() % 2;
  constexpr unsigned kTurns[] = {2, 16, 256, 0};
  copy_turns = kTurns[random() % 4];
  const uint64_t window = launch.cooperative ? total : ordered ? 1 : 1 + random() % 3;
  while (true) {
    while (live.size() < window && next < total) start(order.empty() ? next++ : order[next++]);
    if (live.empty()) return;
    // A copy, now and then, or where nobody can run.
    if (!async.empty() && (ready.empty() || (copy_turns && chance(copy_turns)))) perform(below(async.size()));
    if (ready.empty()) {
      if (!async.empty()) continue;
      fail(kLaunchTimeout, "no thread can go on:\n" + deadlock());
    }
    Fiber* f = pick();
    current = f;
    *launch.module->self = &f->self;
    emu_switch(&scheduler, f->sp);
    // Others have run since.
    f = current;
    current = nullptr;
    if (failure) return;
    if (idle_yields >= idle_before + kPatience) {
      idle_before = idle_yields;
      // Whoever spins may wait for what a copy lets another thread do.
      if (async.empty())
        emu_switch(&own, runner);
      else
        perform(below(async.size()));
    }
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

namespace {

struct sigaction previous_segv, previous_bus, previous_ill;

void on_fault(int signal, siginfo_t* info, void* context) {
  if (engine) {
    if (!engine->failure) {
      const std::string what = signal == SIGILL ? "a misaligned access, or an index beyond an array's bounds"
                                                : "an access to " + describe_address(info->si_addr);
      engine->failure = signal == SIGILL ? kMisaligned : kIllegalAddress;
      engine->why = std::string(engine->launch.label) + ", " + engine->place() + ": " + what;
    }
    siglongjmp(engine->fault, 1);
  }
  const struct sigaction& before = signal == SIGSEGV ? previous_segv : signal == SIGBUS ? previous_bus : previous_ill;
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
  sigaction(SIGILL, &a, &previous_ill);
}

}  // namespace

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
  for (size_t o : launch.offsets) argument_pointers.push_back(const_cast<ArgumentLine*>(launch.arguments.data()) + o);
  *launch.module->machine = &kMachine;
  watch_faults();
  if (sigsetjmp(fault, 1) == 0) loop();
  while (!live.empty()) end(live.back());
  return failure;
}

namespace {

void launch_entry() {
  Engine* e = engine;
  e->code = e->go();
  e->over = true;
  emu_switch(&e->own, e->runner);
  std::abort();
}

// Until it is over, or waits for others.
void go_on(Engine* e) {
  Engine* before = engine;
  engine = e;
  emu_switch(&e->runner, e->own);
  engine = before;
}

}  // namespace

bool (*start_elsewhere)() = nullptr;
bool waits_for_ever = false;

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
  unsigned char* stack;
  if (launch_stacks.empty()) {
    stack = reserve(kLaunchStackBytes);
  } else {
    stack = launch_stacks.back();
    launch_stacks.pop_back();
  }
  e.own = prepare(stack, kLaunchStackBytes, launch_entry);
  begun.push_back(&e);
  // Another may have brought it to its end.
  while (!e.over) {
    go_on(&e);
    if (e.over) break;
    // It waits for what another launch may do: those that were begun, and those that can begin now.
    uint64_t made = 0, after = 0;
    for (Engine* other : begun) made += other == &e ? 0 : other->made;
    for (size_t i = 0; i < begun.size(); i++)
      if (begun[i] != &e && !begun[i]->over) go_on(begun[i]);
    const bool started = start_elsewhere && start_elsewhere();
    for (Engine* other : begun) after += other == &e ? 0 : other->made;
    if (started || after != made) e.idle_yields = e.idle_before = 0;
  }
  begun.erase(std::find(begun.begin(), begun.end(), &e));
  launch_stacks.push_back(stack);
  return e.code;
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
  uint32_t many[64];
  for (uint32_t& w : many) w = word;
  size_t i = 0;
  for (; i + sizeof many <= bytes; i += sizeof many) std::memcpy(p + i, many, sizeof many);
  for (; i + 4 <= bytes; i += 4) std::memcpy(p + i, &word, 4);
  for (; i < bytes; i++) p[i] = 0x7f;
}

}  // namespace emu

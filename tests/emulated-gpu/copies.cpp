// Copies that a GPU makes beside its threads. When they are made is drawn from the seed.
#include <algorithm>
#include <cstring>

#include "engine.h"

namespace emu {

void Engine::perform(size_t index) {
  copying = true;
  Async a = async[index];
  async[index] = async.back();
  async.pop_back();
  if (a.block->live == 0) fail(kIllegalAddress, "a copy arrives in the shared memory of a block that has ended");
  std::memcpy(a.to, a.from ? a.from : a.value, a.bytes);
  Block* owner;
  unsigned char* at = resolve(a.block, a.barrier & 0xffffffu, 8, "an mbarrier", &owner);
  complete(at, owner, 0, -int64_t(a.bytes));
  copying = false;
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
  engine->current->copies = true;
  engine->current->out.push_back({to, from, bytes});
}

void bulk_commit() {
  Fiber* f = engine->current;
  if (f->out.empty() && f->out_groups.empty()) return;
  f->out_groups.push_back(std::move(f->out));
  f->out.clear();
}

void bulk_wait(unsigned groups) {
  Fiber* f = engine->current;
  while (f->out_groups.size() > groups) {
    auto list = std::move(f->out_groups.front());
    f->out_groups.erase(f->out_groups.begin());
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
  else engine->current->copies = true, engine->current->ahead.push_back(a);
}

void ahead_commit() {
  Fiber* f = engine->current;
  if (f->ahead.empty() && f->ahead_groups.empty()) return;
  f->ahead_groups.push_back(std::move(f->ahead));
  f->ahead.clear();
}

void ahead_wait(unsigned groups) {
  Fiber* f = engine->current;
  while (f->ahead_groups.size() > groups) {
    auto list = std::move(f->ahead_groups.front());
    f->ahead_groups.erase(f->ahead_groups.begin());
    for (auto& a : list) engine->perform_ahead(f, a);
  }
}

void ahead_all() {
  ahead_commit();
  ahead_wait(0);
}

}  // namespace emu

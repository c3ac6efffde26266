#include "memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>

#include "machine.h"

namespace emu {
namespace {

constexpr size_t kPage = 4096, kAlignment = 256;
constexpr unsigned char kCanary = 0xc7;
// Freed memory that stays unreadable, so that a late use is a fault.
constexpr size_t kQuarantine = size_t(1) << 30;
// Of a large buffer only the beginning and the end are poisoned.
constexpr size_t kPoison = size_t(64) << 20;

// The data end at a page that cannot be touched, but for rounding to 256 bytes; before them lies such a page, too.
struct Region {
  unsigned char* map;
  size_t mapped;
  size_t bytes;
  int device;
  unsigned char* front() const { return map + kPage; }
};

std::map<uint64_t, Region> live, freed;
std::deque<uint64_t> freed_order;
std::map<uint64_t, size_t> pinned;
size_t used = 0, quarantined = 0;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

bool intact(const unsigned char* at, size_t bytes) {
  return bytes == 0 || (at[0] == kCanary && std::memcmp(at, at + 1, bytes - 1) == 0);
}

std::string broken(uint64_t address, const Region& r) {
  auto* data = reinterpret_cast<unsigned char*>(address);
  unsigned char* end = r.map + r.mapped - kPage;
  // The page's part before the data, and the rounding behind them.
  if (intact(r.front(), size_t(data - r.front())) && intact(data + r.bytes, size_t(end - data) - r.bytes)) return "";
  for (unsigned char* p = r.front(); p < data; p++)
    if (*p != kCanary) return "something was written " + std::to_string(data - p) + " bytes before an allocation of " + std::to_string(r.bytes);
  for (unsigned char* p = data + r.bytes; p < end; p++)
    if (*p != kCanary) return "something was written " + std::to_string(p - data - r.bytes) + " bytes behind an allocation of " + std::to_string(r.bytes);
  return "";
}

std::map<uint64_t, Region>::const_iterator nearest(const std::map<uint64_t, Region>& list, uint64_t address) {
  for (auto it = list.begin(); it != list.end(); ++it) {
    auto map = reinterpret_cast<uint64_t>(it->second.map);
    if (address >= map && address < map + it->second.mapped) return it;
  }
  return list.end();
}

}  // namespace

size_t total_memory() {
  static const size_t bytes = [] {
    const char* text = std::getenv("CHRONAXIE_EMULATED_MEMORY_MIB");
    return (text && *text ? std::strtoull(text, nullptr, 10) : 8192ull) << 20;
  }();
  return bytes;
}

size_t free_memory() { return total_memory() - used; }

uint64_t allocate(size_t bytes, int device) {
  if (bytes == 0 || bytes > free_memory()) return 0;
  const size_t room = round_up(bytes, kAlignment), pages = round_up(room, kPage);
  void* map = mmap(nullptr, pages + 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return 0;
  Region r = {static_cast<unsigned char*>(map), pages + 2 * kPage, bytes, device};
  mprotect(r.map, kPage, PROT_NONE);
  mprotect(r.map + r.mapped - kPage, kPage, PROT_NONE);
  unsigned char* data = r.front() + (pages - room);
  std::memset(r.front(), kCanary, size_t(data - r.front()));
  if (bytes <= 2 * kPoison) {
    poison(data, bytes);
  } else {
    poison(data, kPoison);
    poison(data + (bytes - kPoison) / 4 * 4, kPoison);
  }
  std::memset(data + bytes, kCanary, room - bytes);
  used += bytes;
  const auto address = reinterpret_cast<uint64_t>(data);
  live[address] = r;
  return address;
}

bool release(uint64_t address, std::string& trouble) {
  auto it = live.find(address);
  if (it == live.end()) return false;
  const Region r = it->second;
  trouble = broken(address, r);
  used -= r.bytes;
  live.erase(it);
  madvise(r.map, r.mapped, MADV_DONTNEED);
  mprotect(r.map, r.mapped, PROT_NONE);
  freed[address] = r;
  freed_order.push_back(address);
  quarantined += r.mapped;
  while (quarantined > kQuarantine || freed_order.size() > 4096) {
    auto old = freed.find(freed_order.front());
    freed_order.pop_front();
    quarantined -= old->second.mapped;
    munmap(old->second.map, old->second.mapped);
    freed.erase(old);
  }
  return true;
}

bool is_allocated(uint64_t address, size_t bytes) {
  auto it = live.upper_bound(address);
  if (it == live.begin()) return false;
  --it;
  return address - it->first <= it->second.bytes && bytes <= it->second.bytes - (address - it->first);
}

std::string check_red_zones() {
  for (auto& [address, region] : live) {
    std::string trouble = broken(address, region);
    if (!trouble.empty()) return trouble;
  }
  return "";
}

std::string describe_address(const void* at) {
  const auto address = reinterpret_cast<uint64_t>(at);
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  auto tell = [&](const std::map<uint64_t, Region>& list, const char* state) -> std::string {
    auto it = nearest(list, address);
    if (it == list.end()) return "";
    const auto offset = static_cast<long long>(address - it->first);
    return std::string(text) + ", byte " + std::to_string(offset) + " of " + state + " of " +
           std::to_string(it->second.bytes) + " bytes";
  };
  std::string found = tell(live, "an allocation");
  if (found.empty()) found = tell(freed, "an allocation, now freed,");
  return found.empty() ? std::string(text) + ", which is of no allocation" : found;
}

void* allocate_pinned(size_t bytes) {
  if (bytes == 0 || bytes > (size_t(1) << 36)) return nullptr;
  void* p = mmap(nullptr, round_up(bytes, kPage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  pinned[reinterpret_cast<uint64_t>(p)] = bytes;
  return p;
}

bool release_pinned(void* at) {
  auto it = pinned.find(reinterpret_cast<uint64_t>(at));
  if (it == pinned.end()) return false;
  munmap(at, round_up(it->second, kPage));
  pinned.erase(it);
  return true;
}

bool is_pinned(const void* at) {
  auto it = pinned.upper_bound(reinterpret_cast<uint64_t>(at));
  if (it == pinned.begin()) return false;
  --it;
  return reinterpret_cast<uint64_t>(at) - it->first < it->second;
}

}  // namespace emu

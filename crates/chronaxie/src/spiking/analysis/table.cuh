// A table of keys in global memory, filled by many threads at once: which place a key gets depends on their order, what is in the
// table does not.
#pragma once

#include "draws.cuh"

// No key.
constexpr u64 kEmpty = ~0ull;
constexpr u64 kFull = ~0ull;

// The place of `key` among mask + 1, a power of two of them, and whether it was not there before; kFull where there is no room.
__device__ __forceinline__ u64 place_of(u64* keys, u64 mask, u64 key, bool& is_new) {
  u64 at = (key ^ key >> 29) * 0x9E3779B97F4A7C15ull;
  at = (at ^ at >> 32) & mask;
  for (u64 tries = 0; tries <= mask; ++tries, at = (at + 1) & mask) {
    u64 there = keys[at];
    if (there == kEmpty) there = atomicCAS(keys + at, kEmpty, key);
    is_new = there == kEmpty;
    if (is_new || there == key) return at;
  }
  return kFull;
}

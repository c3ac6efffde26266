// Device memory: host memory of which every access beyond its ends, or after its end, is a fault or is found later.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace emu {

// Address 0 where there is not so much.
uint64_t allocate(size_t bytes, int device);
// False if the address is of no allocation; `trouble` says if something was written beside it.
bool release(uint64_t address, std::string& trouble);
// Whether `bytes` from `address` on are of one allocation that was not freed.
bool is_allocated(uint64_t address, size_t bytes);
// What was written beside allocations that live; empty if nothing.
std::string check_red_zones();
size_t total_memory();
size_t free_memory();

void* allocate_pinned(size_t bytes);
bool release_pinned(void* at);
bool is_pinned(const void* at);

}  // namespace emu

// The machine that runs kernels: threads as fibers of one host thread, switched where they wait for each other.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "abi.h"

namespace emu {

// What the device says of itself, and what a launch is held to.
struct Limits {
  unsigned major, minor;
  unsigned multiprocessors;
  unsigned shared_per_block, shared_per_block_optin, shared_per_multiprocessor;
  unsigned registers_per_multiprocessor;
  unsigned threads_per_multiprocessor, blocks_per_multiprocessor;
  unsigned l2_bytes, cluster_blocks;
};

// As aligned as any argument may be.
struct alignas(128) ArgumentLine {
  unsigned char bytes[128];
};

struct Launch {
  const Module* module;
  const Kernel* kernel;
  const char* label;
  Dim grid, block, cluster;  // a cluster of 1 where there is none
  unsigned dynamic_shared;
  unsigned static_limit;  // of variables in shared memory
  bool cooperative;
  std::vector<ArgumentLine> arguments;
  std::vector<size_t> offsets;  // lines
  unsigned* static_used;  // the most bytes of variables in shared memory that were seen
};

// Runs it to its end. Returns 0, or the driver's code of the failure, of which `why` says what happened.
unsigned run(const Launch& launch, uint64_t seed, std::string& why);
// Starts a piece of work of another stream, if one can start: asked where a launch only looks at what another may write.
extern bool (*start_elsewhere)();
// Whether a device is lost, so that a kernel that waits for what it would write is no deadlock: it ends by a clock of its own.
extern bool waits_for_ever;

// The seed of the order in which threads run, and of what uninitialised memory holds.
uint64_t seed();
// What fresh memory holds: a NaN as a float, and no legal index.
void poison(void* at, size_t bytes);

// Where an address lies, for messages; told by memory.cpp.
std::string describe_address(const void* at);

}  // namespace emu

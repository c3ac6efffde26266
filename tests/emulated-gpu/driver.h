// What the parts of libcuda share: codes, the lock, streams and their work.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "machine.h"
#include "memory.h"

#define API extern "C" __attribute__((visibility("default")))

using Result = unsigned;
using emu::Dim;

constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kInvalidDevice = 101,
                 kInvalidImage = 200, kLost = 719, kInvalidContext = 201, kNotFound = 500, kNotReady = 600, kIllegalAddress = 700,
                 kLaunchOutOfResources = 701, kCooperativeTooLarge = 720, kInvalidHandle = 400, kUnsupportedCapture = 900,
                 kCaptureInvalidated = 901, kInvalidClusterSize = 912;

const emu::Limits& limits();
unsigned device_count();

// One lock for all: the emulation does one thing at a time.
extern std::recursive_mutex big_lock;
using Lock = std::lock_guard<std::recursive_mutex>;

// A launch that failed spoils the process, as on a GPU; `fail` says why on standard error.
extern Result sticky;
extern std::string last_failure;
Result fail(Result code, const std::string& why);

struct Context {
  int device;
};
extern thread_local std::vector<Context*> current;
int current_device();

struct Stream;
struct Event {
  bool timing;
  uint64_t recorded = 0, done = 0;
  Stream* stream = nullptr;
  double ms = 0;
  struct Capture* capture = nullptr;
};

using Work = std::function<Result()>;

// Work of a stream, and the event that it waits for, if it does.
struct Queued {
  Work work;
  Event* event;
  uint64_t recorded;
};

struct Stream {
  int device = 0;
  bool blocking = false;
  std::deque<Queued> queue;
  struct Capture* capture = nullptr;
  bool running = false;
};

// A kernel that was put into a graph by itself, which becomes work when the graph is made executable.
struct KernelNode;
struct Graph {
  std::vector<Work> nodes;
  std::vector<std::pair<size_t, std::shared_ptr<KernelNode>>> kernels;
};
// The work of such a kernel as it is now.
Result work_of(const KernelNode& node, Work& work);

struct Capture {
  Stream* origin;
  unsigned long thread;
  bool valid = true;
  unsigned mode = 0;
  std::unique_ptr<Graph> graph{new Graph};
  std::vector<Stream*> streams;
};

// The stream of a handle: one's own, or the default one of the device or of the thread.
Stream* stream_of(void* handle);
// Puts work on a stream, or into the graph that is captured there.
Result put(void* handle, Work work, Event* event = nullptr, uint64_t recorded = 0);
// Does all work of a stream, or of all.
Result drain(Stream* s);
Result drain_all();
// A kernel is to be launched on the current device: whether that one stops, by CHRONAXIE_EMULATED_LOST, at this launch or has before.
void about_to_launch(const char* kernel);
// Whether this thread captures, so that what would wait is refused.
Result refused_by_capture();

// libcuda.so.1 of the emulated GPU: the functions that crates/chronaxie-runtime/src/cuda/sys.rs asks for.
//
// Work is put into its stream's queue and done as late as the driver may: when somebody waits for the stream, an event
// or the context, or asks an event (one piece of work a question). So a wait that is missing shows. With
// CHRONAXIE_EMULATED_STREAMS=early it is done when it is put there, which shows waits that are missing the other way.
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "machine.h"
#include "memory.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {

using Result = unsigned;
using emu::Dim;

constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kInvalidDevice = 101,
                 kInvalidImage = 200, kInvalidContext = 201, kNotFound = 500, kNotReady = 600, kIllegalAddress = 700,
                 kLaunchOutOfResources = 701, kCooperativeTooLarge = 720, kInvalidHandle = 400, kUnsupportedCapture = 900,
                 kCaptureInvalidated = 901, kInvalidClusterSize = 912;

unsigned from_environment(const char* name, unsigned otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? unsigned(std::strtoul(text, nullptr, 10)) : otherwise;
}

const emu::Limits& limits() {
  static const emu::Limits l = [] {
    const unsigned arch = from_environment("CHRONAXIE_EMULATED_ARCH", 90);
    const unsigned sms = from_environment("CHRONAXIE_EMULATED_SMS", 132);
    constexpr unsigned K = 1024;
    switch (arch) {
      case 75: return emu::Limits{7, 5, sms, 48 * K, 64 * K, 64 * K, 65536, 1024, 16, 4 * K * K, 1};
      case 80: return emu::Limits{8, 0, sms, 48 * K, 163 * K, 164 * K, 65536, 2048, 32, 40 * K * K, 1};
      case 89: return emu::Limits{8, 9, sms, 48 * K, 99 * K, 100 * K, 65536, 1536, 24, 72 * K * K, 1};
      case 90: return emu::Limits{9, 0, sms, 48 * K, 227 * K, 228 * K, 65536, 2048, 32, 50 * K * K, 16};
      default:
        std::fprintf(stderr, "emulated GPU: CHRONAXIE_EMULATED_ARCH is %u; there are 75, 80, 89 and 90\n", arch);
        std::abort();
    }
  }();
  return l;
}

unsigned device_count() {
  static const unsigned n = from_environment("CHRONAXIE_EMULATED_DEVICES", 2);
  return n;
}

double now_ms() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

// One lock for all: the emulation does one thing at a time.
std::recursive_mutex big_lock;
using Lock = std::lock_guard<std::recursive_mutex>;

// A launch that failed spoils the process, as on a GPU.
Result sticky = 0;
std::string last_failure;

struct Context {
  int device;
};
Context contexts[16];
thread_local std::vector<Context*> current;

struct Stream;
struct Event {
  bool timing;
  uint64_t recorded = 0, done = 0;
  Stream* stream = nullptr;
  double ms = 0;
  struct Capture* capture = nullptr;
};

using Work = std::function<Result()>;

struct Stream {
  bool blocking = false;
  std::deque<Work> queue;
  struct Capture* capture = nullptr;
  bool running = false;
};

struct Graph {
  std::vector<Work> nodes;
};

struct Capture {
  Stream* origin;
  unsigned long thread;
  bool valid = true;
  std::unique_ptr<Graph> graph{new Graph};
  std::vector<Stream*> streams;
};

std::vector<std::unique_ptr<Stream>> streams;
// The default stream of each device, and of each thread.
std::map<std::pair<int, uint64_t>, Stream*> defaults;
std::vector<Capture*> captures;

bool early() {
  static const bool e = [] {
    const char* text = std::getenv("CHRONAXIE_EMULATED_STREAMS");
    return text && std::strcmp(text, "early") == 0;
  }();
  return e;
}

Stream* new_stream(bool blocking) {
  streams.emplace_back(new Stream);
  streams.back()->blocking = blocking;
  return streams.back().get();
}

uint64_t thread_id() {
  static std::mutex m;
  static uint64_t next = 1;
  static thread_local uint64_t mine = 0;
  if (!mine) {
    std::lock_guard<std::mutex> l(m);
    mine = next++;
  }
  return mine;
}

int current_device() { return current.empty() || !current.back() ? 0 : current.back()->device; }

Stream* stream_of(void* handle) {
  const auto raw = reinterpret_cast<uint64_t>(handle);
  if (raw > 2) return static_cast<Stream*>(handle);
  const bool per_thread = raw == 2;
  Stream*& s = defaults[{current_device(), per_thread ? thread_id() : 0}];
  if (!s) s = new_stream(true);
  return s;
}
bool is_legacy(Stream* s) { return defaults.count({current_device(), 0}) && defaults[{current_device(), 0}] == s; }

Result fail(Result code, const std::string& why) {
  if (!sticky) {
    sticky = code;
    last_failure = why;
    std::fprintf(stderr, "emulated GPU: %s\n", why.c_str());
  }
  return code;
}

// Does the oldest piece of work of a stream.
Result step(Stream* s) {
  Work work = std::move(s->queue.front());
  s->queue.pop_front();
  return sticky ? sticky : work();
}

Result drain(Stream* s) {
  Result r = sticky;
  while (!s->queue.empty()) {
    Result one = step(s);
    if (one && !r) r = one;
  }
  return r;
}

Result drain_all() {
  Result r = sticky;
  // Index by index: work may make streams.
  for (size_t i = 0; i < streams.size(); i++) {
    Result one = drain(streams[i].get());
    if (one && !r) r = one;
  }
  if (!r) {
    std::string trouble = emu::check_red_zones();
    if (!trouble.empty()) r = fail(kIllegalAddress, trouble);
  }
  return r;
}

// The legacy stream and the blocking ones wait for each other.
void order_defaults(Stream* s) {
  if (!s->blocking) return;
  const bool legacy = is_legacy(s);
  for (size_t i = 0; i < streams.size(); i++) {
    Stream* other = streams[i].get();
    if (other != s && other->blocking && (legacy || is_legacy(other))) drain(other);
  }
}

Result put(void* handle, Work work) {
  if (sticky) return sticky;
  Stream* s = stream_of(handle);
  if (s->capture) {
    s->capture->graph->nodes.push_back(std::move(work));
    return kSuccess;
  }
  order_defaults(s);
  s->queue.push_back(std::move(work));
  if (early()) return drain(s);
  return kSuccess;
}

// Whether this thread captures, so that what would wait is refused.
Result refused_by_capture() {
  for (Capture* c : captures)
    if (c->thread == thread_id()) {
      c->valid = false;
      return kUnsupportedCapture;
    }
  return kSuccess;
}

// --- modules

struct Function;
struct Module {
  void* library;
  emu::Module table;
  std::map<std::string, std::unique_ptr<Function>> functions;
};
struct Function {
  Module* module;
  emu::Kernel* kernel;
  std::string label;
  unsigned max_dynamic;
  bool large_clusters = false;
  unsigned static_used = 0;
  unsigned registers() const {
    // What the bounds of the launch leave; without bounds what a kernel commonly takes.
    unsigned r = 65536 / std::max(1u, kernel->max_threads * std::max(1u, kernel->min_blocks)) / 8 * 8;
    return std::min(kernel->min_blocks ? 255u : 64u, std::max(16u, r));
  }
  unsigned blocks_per_multiprocessor(unsigned threads, size_t dynamic) const {
    const auto& l = limits();
    if (threads == 0 || threads > kernel->max_threads) return 0;
    const unsigned warps = (threads + 31) / 32 * 32;
    size_t n = std::min(l.blocks_per_multiprocessor, l.threads_per_multiprocessor / warps);
    n = std::min<size_t>(n, l.registers_per_multiprocessor / (registers() * warps));
    n = std::min<size_t>(n, l.shared_per_multiprocessor / (dynamic + static_used + 1024));
    return unsigned(n);
  }
};

struct RawAttribute {
  unsigned id, pad, value[16];
};
struct RawConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  RawAttribute* attributes;
  unsigned num_attributes;
};

uint64_t launches = 0;

}  // namespace

// --- the driver itself

API Result cuInit(unsigned) { return kSuccess; }
API Result cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

API Result cuGetErrorName(Result code, const char** name) {
  switch (code) {
    case kInvalidValue: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case kOutOfMemory: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case kNotInitialized: *name = "CUDA_ERROR_NOT_INITIALIZED"; break;
    case kInvalidDevice: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
    case kInvalidImage: *name = "CUDA_ERROR_INVALID_IMAGE"; break;
    case kInvalidContext: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case kInvalidHandle: *name = "CUDA_ERROR_INVALID_HANDLE"; break;
    case kNotFound: *name = "CUDA_ERROR_NOT_FOUND"; break;
    case kNotReady: *name = "CUDA_ERROR_NOT_READY"; break;
    case kIllegalAddress: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case kLaunchOutOfResources: *name = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"; break;
    case 702: *name = "CUDA_ERROR_LAUNCH_TIMEOUT"; break;
    case 710: *name = "CUDA_ERROR_ASSERT"; break;
    case 719: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
    case kCooperativeTooLarge: *name = "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"; break;
    case kUnsupportedCapture: *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; break;
    case kCaptureInvalidated: *name = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"; break;
    case kInvalidClusterSize: *name = "CUDA_ERROR_INVALID_CLUSTER_SIZE"; break;
    default: *name = nullptr; return kInvalidValue;
  }
  return kSuccess;
}

API Result cuGetErrorString(Result code, const char** text) {
  Lock lock(big_lock);
  static std::string told;
  if (code == sticky && sticky) {
    told = "on the emulated GPU: " + last_failure;
    *text = told.c_str();
  } else {
    *text = "said by the emulated GPU of the tests";
  }
  return kSuccess;
}

API Result cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || unsigned(ordinal) >= device_count()) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}
API Result cuDeviceGetCount(int* count) {
  *count = int(device_count());
  return kSuccess;
}
API Result cuDeviceGetName(char* name, int bytes, int) {
  std::snprintf(name, size_t(bytes), "emulated sm_%u%u%s device of the tests (runs on the CPU)", limits().major,
                limits().minor, limits().major == 9 ? "a" : "");
  return kSuccess;
}
API Result cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = emu::total_memory();
  return kSuccess;
}
API Result cuDeviceGetPCIBusId(char* id, int bytes, int device) {
  std::snprintf(id, size_t(bytes), "ffff:%02x:00.0", unsigned(device));
  return kSuccess;
}

API Result cuDeviceGetAttribute(int* value, int attribute, int) {
  const auto& l = limits();
  switch (attribute) {
    case 1: *value = 1024; break;  // threads a block
    case 2: case 3: *value = 1024; break;
    case 4: *value = 64; break;
    case 5: *value = 2147483647; break;
    case 6: case 7: *value = 65535; break;
    case 8: *value = int(l.shared_per_block); break;
    case 9: *value = 65536; break;
    case 10: *value = 32; break;
    case 12: case 82: *value = int(l.registers_per_multiprocessor); break;
    case 13: *value = 1980000; break;  // kHz: those of an H200, for the choice of configurations
    case 16: *value = int(l.multiprocessors); break;
    case 17: case 18: case 20: *value = 0; break;
    case 32: *value = 1; break;
    case 36: *value = 3201000; break;
    case 37: *value = 6016; break;
    case 38: *value = int(l.l2_bytes); break;
    case 39: *value = int(l.threads_per_multiprocessor); break;
    case 40: *value = 3; break;
    case 41: case 83: case 90: case 95: case 115: *value = 1; break;
    case 75: *value = int(l.major); break;
    case 76: *value = int(l.minor); break;
    case 81: *value = int(l.shared_per_multiprocessor); break;
    case 97: *value = int(l.shared_per_block_optin); break;
    case 106: *value = int(l.blocks_per_multiprocessor); break;
    case 120: *value = l.major >= 9; break;
    default: return kInvalidValue;
  }
  return kSuccess;
}

// --- contexts

API Result cuDevicePrimaryCtxRetain(Context** context, int device) {
  if (device < 0 || unsigned(device) >= device_count() || device >= 16) return kInvalidDevice;
  contexts[device].device = device;
  *context = &contexts[device];
  return kSuccess;
}
API Result cuCtxPushCurrent_v2(Context* context) {
  current.push_back(context);
  return kSuccess;
}
API Result cuCtxPopCurrent_v2(Context** context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kSuccess;
}
API Result cuCtxGetCurrent(Context** context) {
  *context = current.empty() ? nullptr : current.back();
  return kSuccess;
}
API Result cuCtxSynchronize() {
  Lock lock(big_lock);
  if (Result r = refused_by_capture()) return r;
  return drain_all();
}

// --- memory

API Result cuMemGetInfo_v2(size_t* free, size_t* total) {
  Lock lock(big_lock);
  *free = emu::free_memory();
  *total = emu::total_memory();
  return kSuccess;
}

static Result allocate(uint64_t* address, size_t bytes) {
  if (sticky) return sticky;
  if (bytes == 0) return kInvalidValue;
  *address = emu::allocate(bytes, current_device());
  if (!*address) {
    // What was freed late on some stream.
    if (Result r = drain_all()) return r;
    *address = emu::allocate(bytes, current_device());
  }
  return *address ? kSuccess : kOutOfMemory;
}
static Result release(uint64_t address) {
  std::string trouble;
  if (!emu::release(address, trouble)) return kInvalidValue;
  return trouble.empty() ? kSuccess : fail(kIllegalAddress, trouble);
}

API Result cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  Lock lock(big_lock);
  return allocate(address, bytes);
}
API Result cuMemFree_v2(uint64_t address) {
  Lock lock(big_lock);
  drain_all();
  return release(address);
}
API Result cuMemPoolCreate(void** pool, const void*) {
  static int one;
  *pool = &one;
  return kSuccess;
}
API Result cuMemPoolSetAttribute(void*, int, void*) { return kSuccess; }
API Result cuMemPoolTrimTo(void*, size_t) { return kSuccess; }
API Result cuMemAllocFromPoolAsync(uint64_t* address, size_t bytes, void*, void* stream) {
  Lock lock(big_lock);
  if (stream_of(stream)->capture) return kUnsupportedCapture;
  return allocate(address, bytes);
}
API Result cuMemFreeAsync(uint64_t address, void* stream) {
  Lock lock(big_lock);
  if (sticky) {
    release(address);
    return sticky;
  }
  return put(stream, [=] { return release(address); });
}
API Result cuMemHostAlloc(void** at, size_t bytes, unsigned) {
  Lock lock(big_lock);
  *at = emu::allocate_pinned(bytes);
  return *at ? kSuccess : kOutOfMemory;
}
API Result cuMemFreeHost(void* at) {
  Lock lock(big_lock);
  return emu::release_pinned(at) ? kSuccess : kInvalidValue;
}

static Result outside(const char* what, uint64_t address, size_t bytes) {
  return fail(kIllegalAddress, std::string(what) + " of " + std::to_string(bytes) + " bytes at " +
                                   emu::describe_address(reinterpret_cast<void*>(address)));
}

API Result cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
  Lock lock(big_lock);
  if (!emu::is_allocated(to, bytes)) return kInvalidValue;
  std::shared_ptr<std::vector<char>> taken;
  // Ordinary memory is read before the call returns; pinned memory when the stream comes to it.
  if (!emu::is_pinned(from) && !stream_of(stream)->capture) {
    auto* p = static_cast<const char*>(from);
    taken = std::make_shared<std::vector<char>>(p, p + bytes);
  }
  return put(stream, [=]() -> Result {
    if (!emu::is_allocated(to, bytes)) return outside("a copy", to, bytes);
    std::memcpy(reinterpret_cast<void*>(to), taken ? taken->data() : from, bytes);
    return kSuccess;
  });
}
API Result cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
  Lock lock(big_lock);
  if (!emu::is_allocated(from, bytes)) return kInvalidValue;
  Result r = put(stream, [=]() -> Result {
    if (!emu::is_allocated(from, bytes)) return outside("a copy", from, bytes);
    std::memcpy(to, reinterpret_cast<void*>(from), bytes);
    return kSuccess;
  });
  // To ordinary memory the driver copies before it returns.
  Stream* s = stream_of(stream);
  return r || emu::is_pinned(to) || s->capture ? r : drain(s);
}
API Result cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  Lock lock(big_lock);
  if (!emu::is_allocated(from, bytes) || !emu::is_allocated(to, bytes)) return kInvalidValue;
  return put(stream, [=]() -> Result {
    if (!emu::is_allocated(from, bytes)) return outside("a copy", from, bytes);
    if (!emu::is_allocated(to, bytes)) return outside("a copy", to, bytes);
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
    return kSuccess;
  });
}
API Result cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, void* stream) {
  Lock lock(big_lock);
  if (!emu::is_allocated(to, bytes)) return kInvalidValue;
  return put(stream, [=]() -> Result {
    if (!emu::is_allocated(to, bytes)) return outside("a fill", to, bytes);
    std::memset(reinterpret_cast<void*>(to), byte, bytes);
    return kSuccess;
  });
}

// --- streams and events

API Result cuStreamCreate(void** stream, unsigned flags) {
  Lock lock(big_lock);
  *stream = new_stream(!(flags & 1));
  return kSuccess;
}
API Result cuStreamSynchronize(void* stream) {
  Lock lock(big_lock);
  Stream* s = stream_of(stream);
  if (s->capture) {
    s->capture->valid = false;
    return kUnsupportedCapture;
  }
  order_defaults(s);
  Result r = drain(s);
  return r ? r : sticky;
}
API Result cuStreamIsCapturing(void* stream, unsigned* status) {
  Lock lock(big_lock);
  Stream* s = stream_of(stream);
  *status = !s->capture ? 0 : s->capture->valid ? 1 : 2;
  return kSuccess;
}

static void leave(Capture* c) {
  for (Stream* s : c->streams) s->capture = nullptr;
  for (size_t i = 0; i < captures.size(); i++)
    if (captures[i] == c) captures.erase(captures.begin() + long(i));
}

API Result cuStreamBeginCapture_v2(void* stream, unsigned) {
  Lock lock(big_lock);
  Stream* s = stream_of(stream);
  if (s->capture || reinterpret_cast<uint64_t>(stream) == 0) return kUnsupportedCapture;
  auto* c = new Capture;
  c->origin = s;
  c->thread = thread_id();
  c->streams.push_back(s);
  s->capture = c;
  captures.push_back(c);
  return sticky;
}
API Result cuStreamEndCapture(void* stream, Graph** graph) {
  Lock lock(big_lock);
  Stream* s = stream_of(stream);
  Capture* c = s->capture;
  *graph = nullptr;
  if (!c) return kInvalidValue;
  leave(c);
  const bool valid = c->valid;
  if (valid) *graph = c->graph.release();
  // Events may name the capture still; there are few.
  return valid ? kSuccess : kCaptureInvalidated;
}

API Result cuEventCreate(Event** event, unsigned flags) {
  Lock lock(big_lock);
  *event = new Event{!(flags & 2)};
  return kSuccess;
}
API Result cuEventDestroy_v2(Event*) {
  // Work that is queued may name it; there are few.
  return kSuccess;
}
API Result cuEventRecord(Event* e, void* stream) {
  Lock lock(big_lock);
  Stream* s = stream_of(stream);
  if (s->capture) {
    e->capture = s->capture;
    return kSuccess;
  }
  e->capture = nullptr;
  const uint64_t n = ++e->recorded;
  e->stream = s;
  return put(stream, [=]() -> Result {
    if (n > e->done) e->done = n;
    e->ms = now_ms();
    return kSuccess;
  });
}

// Does the work of the event's stream until the event has come.
static Result reach(Event* e, uint64_t n) {
  Result r = sticky;
  while (e->done < n && e->stream && !e->stream->queue.empty()) {
    Result one = step(e->stream);
    if (one && !r) r = one;
  }
  return r;
}

API Result cuStreamWaitEvent(void* stream, Event* e, unsigned) {
  Lock lock(big_lock);
  Stream* s = stream_of(stream);
  if (e->capture) {
    // The stream joins the capture, whose nodes run in the order in which they were put there.
    if (s->capture && s->capture != e->capture) return kInvalidValue;
    if (!s->capture) {
      s->capture = e->capture;
      e->capture->streams.push_back(s);
    }
    return kSuccess;
  }
  if (s->capture || e->recorded == e->done) return kSuccess;
  const uint64_t n = e->recorded;
  return put(stream, [=] { return reach(e, n); });
}
API Result cuEventSynchronize(Event* e) {
  Lock lock(big_lock);
  if (Result r = e->capture ? kInvalidValue : kSuccess) return r;
  return reach(e, e->recorded);
}
API Result cuEventQuery(Event* e) {
  Lock lock(big_lock);
  if (e->done < e->recorded && e->stream && !e->stream->queue.empty())
    if (Result r = step(e->stream)) return r;
  return sticky ? sticky : e->done < e->recorded ? kNotReady : kSuccess;
}
API Result cuEventElapsedTime(float* ms, Event* a, Event* b) {
  Lock lock(big_lock);
  if (!a->timing || !b->timing || !a->recorded || !b->recorded) return kInvalidHandle;
  if (a->done < a->recorded || b->done < b->recorded) return kNotReady;
  *ms = float(b->ms - a->ms);
  return kSuccess;
}

// --- graphs

API Result cuGraphGetNodes(Graph* graph, void**, size_t* count) {
  *count = graph->nodes.size();
  return kSuccess;
}
API Result cuGraphInstantiateWithFlags(Graph** exec, Graph* graph, uint64_t) {
  *exec = new Graph(*graph);
  return kSuccess;
}
API Result cuGraphDestroy(Graph* graph) {
  delete graph;
  return kSuccess;
}
API Result cuGraphExecDestroy(Graph*) {
  // A replay may wait in a queue.
  return kSuccess;
}
API Result cuGraphLaunch(Graph* exec, void* stream) {
  Lock lock(big_lock);
  return put(stream, [=]() -> Result {
    for (Work& w : exec->nodes)
      if (Result r = w()) return r;
    return kSuccess;
  });
}

// --- modules and launches

API Result cuModuleLoadData(Module** module, const void* image) {
  Lock lock(big_lock);
  // The length of an ELF file: its section headers come last.
  auto* e = static_cast<const unsigned char*>(image);
  if (std::memcmp(e, "\177ELF", 4) != 0) return kInvalidImage;
  uint64_t headers;
  uint16_t entry_bytes, entries, machine;
  std::memcpy(&headers, e + 0x28, 8);
  std::memcpy(&entry_bytes, e + 0x3a, 2);
  std::memcpy(&entries, e + 0x3c, 2);
  std::memcpy(&machine, e + 0x12, 2);
  if (machine == 190) return 209;  // a real cubin: there is no code for this device in it
  const size_t bytes = headers + size_t(entry_bytes) * entries;
  // A name of its own: the loader takes a path that it knows for the library that it had there.
  const char* base = std::getenv("TMPDIR");
  std::string path = std::string(base && *base ? base : P_tmpdir) + "/emulated-kernel-XXXXXX";
  const int file = mkstemp(path.data());
  if (file < 0) return kOutOfMemory;
  bool whole = true;
  for (size_t at = 0; at < bytes && whole;) {
    const ssize_t n = write(file, e + at, bytes - at);
    whole = n > 0;
    at += size_t(n);
  }
  close(file);
  void* library = whole ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!library) std::fprintf(stderr, "emulated GPU: %s\n", whole ? dlerror() : "no room for a module");
  unlink(path.c_str());
  if (!library) return kInvalidImage;
  auto describe = reinterpret_cast<void (*)(emu::Module*)>(dlsym(library, "emu_module"));
  if (!describe) return kInvalidImage;
  auto* m = new Module;
  m->library = library;
  describe(&m->table);
  if (m->table.version != emu::kVersion) {
    std::fprintf(stderr, "emulated GPU: a kernel was compiled by another version of the emulation\n");
    return kInvalidImage;
  }
  *module = m;
  return kSuccess;
}

API Result cuModuleGetFunction(Function** function, Module* module, const char* name) {
  Lock lock(big_lock);
  auto& known = module->functions[name];
  if (!known) {
    for (emu::Kernel** e = module->table.begin; e != module->table.end; e++) {
      emu::Kernel* k = *e;
      if (std::strcmp(k->name, name) != 0 || !k->is_extern_c) continue;
      known.reset(new Function{module, k, name, limits().shared_per_block});
    }
  }
  if (!known) {
    module->functions.erase(name);
    return kNotFound;
  }
  *function = known.get();
  return kSuccess;
}

API Result cuFuncGetAttribute(int* value, int attribute, Function* f) {
  switch (attribute) {
    case 0: *value = int(f->kernel->max_threads); break;
    case 1: *value = int(f->static_used); break;
    case 2: case 3: *value = 0; break;
    case 4: *value = int(f->registers()); break;
    case 8: *value = int(f->max_dynamic); break;
    case 14: *value = f->large_clusters; break;
    default: return kInvalidValue;
  }
  return kSuccess;
}
API Result cuFuncSetAttribute(Function* f, int attribute, int value) {
  if (attribute == 8) {
    if (value < 0 || unsigned(value) + f->static_used > limits().shared_per_block_optin) return kInvalidValue;
    f->max_dynamic = unsigned(value);
    return kSuccess;
  }
  if (attribute == 14 && limits().major >= 9) {
    f->large_clusters = value != 0;
    return kSuccess;
  }
  return kInvalidValue;
}
API Result cuFuncGetParamInfo(Function* f, size_t index, size_t* offset, size_t* size) {
  if (index >= size_t(f->kernel->parameters)) return kInvalidValue;
  size_t at = 0;
  for (size_t i = 0;; i++) {
    at = (at + f->kernel->alignments[i] - 1) / f->kernel->alignments[i] * f->kernel->alignments[i];
    if (i == index) break;
    at += f->kernel->sizes[i];
  }
  *offset = at;
  *size = f->kernel->sizes[index];
  return kSuccess;
}

API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function* f, int threads, size_t shared) {
  *blocks = int(f->blocks_per_multiprocessor(unsigned(threads), shared));
  return kSuccess;
}

static Result read(const RawConfig* c, Dim& cluster, bool& cooperative) {
  cluster = {1, 1, 1};
  cooperative = false;
  for (unsigned i = 0; i < c->num_attributes; i++) {
    const RawAttribute& a = c->attributes[i];
    if (a.id == 2) cooperative = a.value[0] != 0;
    if (a.id == 4) cluster = {a.value[0], a.value[1], a.value[2]};
  }
  return cluster.x && cluster.y && cluster.z ? kSuccess : kInvalidClusterSize;
}
static Result check_cluster(const Function* f, const Dim& k) {
  const unsigned blocks = k.x * k.y * k.z;
  if (blocks > 1 && limits().major < 9) return kInvalidValue;
  return blocks > limits().cluster_blocks || (blocks > 8 && !f->large_clusters) ? kInvalidClusterSize : kSuccess;
}

API Result cuOccupancyMaxActiveClusters(int* clusters, Function* f, const RawConfig* c) {
  Dim k;
  bool cooperative;
  if (Result r = read(c, k, cooperative)) return r;
  if (Result r = check_cluster(f, k)) return r;
  const unsigned each = f->blocks_per_multiprocessor(c->block[0] * c->block[1] * c->block[2], c->shared_bytes);
  // A cluster lies in a group of multiprocessors; an H200 has groups of 16 and 18.
  const unsigned group = std::min(16u, limits().multiprocessors), blocks = k.x * k.y * k.z;
  *clusters = int(limits().multiprocessors / group * (group * each / blocks) +
                  limits().multiprocessors % group * each / blocks);
  return kSuccess;
}

API Result cuLaunchKernelEx(const RawConfig* c, Function* f, void** arguments, void** extra) {
  Lock lock(big_lock);
  if (sticky) return sticky;
  const auto& l = limits();
  const uint64_t threads = uint64_t(c->block[0]) * c->block[1] * c->block[2];
  if (extra || !c->grid[0] || !c->grid[1] || !c->grid[2] || c->grid[0] > 2147483647u || c->grid[1] > 65535 ||
      c->grid[2] > 65535 || threads == 0 || c->block[0] > 1024 || c->block[1] > 1024 || c->block[2] > 64)
    return kInvalidValue;
  if (threads > f->kernel->max_threads) return kInvalidValue;
  if (c->shared_bytes > f->max_dynamic) return kInvalidValue;
  auto launch = std::make_shared<emu::Launch>();
  if (Result r = read(c, launch->cluster, launch->cooperative)) return r;
  const Dim& k = launch->cluster;
  if (Result r = check_cluster(f, k)) return r;
  if (c->grid[0] % k.x || c->grid[1] % k.y || c->grid[2] % k.z) return kInvalidClusterSize;
  const uint64_t blocks = uint64_t(c->grid[0]) * c->grid[1] * c->grid[2];
  const unsigned each = f->blocks_per_multiprocessor(unsigned(threads), c->shared_bytes);
  if (each == 0) return kLaunchOutOfResources;
  if (launch->cooperative && blocks > uint64_t(each) * l.multiprocessors) return kCooperativeTooLarge;
  launch->module = &f->module->table;
  launch->kernel = f->kernel;
  launch->label = f->label.c_str();
  launch->grid = {c->grid[0], c->grid[1], c->grid[2]};
  launch->block = {c->block[0], c->block[1], c->block[2]};
  launch->dynamic_shared = c->shared_bytes;
  launch->static_limit = std::min(l.shared_per_block, l.shared_per_block_optin - c->shared_bytes);
  launch->static_used = &f->static_used;
  for (int i = 0; i < f->kernel->parameters; i++) {
    const size_t at = (launch->arguments.size() + 15) / 16 * 16, size = f->kernel->sizes[i];
    launch->arguments.resize(at + size);
    std::memcpy(launch->arguments.data() + at, arguments[i], size);
    launch->offsets.push_back(at);
  }
  return put(c->stream, [launch]() -> Result {
    std::string why;
    // Each launch in another order, the same in each run of the process.
    const uint64_t s = emu::seed() ? emu::seed() * 1000003 + ++launches : 0;
    if (Result r = emu::run(*launch, s, why)) return fail(r, why);
    why = emu::check_red_zones();
    return why.empty() ? kSuccess : fail(kIllegalAddress, std::string(launch->label) + ": " + why);
  });
}

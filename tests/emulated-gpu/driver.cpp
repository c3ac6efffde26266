// libcuda.so.1 of the emulated GPU: the functions that crates/chronaxie-runtime/src/cuda/sys.rs asks for. Here the device, its
// contexts and its memory; work.cpp and modules.cpp have the rest.
#include "driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

std::recursive_mutex big_lock;
Result sticky = 0;
std::string last_failure;
static Context contexts[16];
thread_local std::vector<Context*> current;

static unsigned from_environment(const char* name, unsigned otherwise) {
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

int current_device() { return current.empty() || !current.back() ? 0 : current.back()->device; }

Result fail(Result code, const std::string& why) {
  if (!sticky) {
    sticky = code;
    last_failure = why;
    std::fprintf(stderr, "emulated GPU: %s\n", why.c_str());
  }
  return code;
}

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
    case 716: *name = "CUDA_ERROR_MISALIGNED_ADDRESS"; break;
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

// A map as ptx.h reads it: its address, then sizes and strides, the box and the swizzle.
API Result cuTensorMapEncodeTiled(uint64_t* map, int type, unsigned axes, void* address, const uint64_t* sizes, const uint64_t* strides,
                                  const unsigned* box, const unsigned* steps, int interleave, int swizzle, int, int outside) {
  if (type != 1 || axes != 4 || interleave || swizzle != 3 || outside) return kInvalidValue;
  if (reinterpret_cast<uintptr_t>(map) % 64 || reinterpret_cast<uintptr_t>(address) % 16) return kInvalidValue;
  std::memset(map, 0, 128);
  map[0] = reinterpret_cast<uintptr_t>(address);
  for (int i = 0; i < 4; i++) {
    if (sizes[i] == 0 || sizes[i] > 1ull << 32 || box[i] == 0 || box[i] > 256 || steps[i] != 1) return kInvalidValue;
    map[1 + i] = sizes[i];
    map[8 + i] = box[i];
    if (i == 3) break;
    if (strides[i] % 16 || strides[i] >= 1ull << 40) return kInvalidValue;
    map[5 + i] = strides[i];
  }
  if (box[0] != 64 || box[2] != 1 || box[3] != 1) return kInvalidValue;
  map[12] = 0x7465736e6f72;
  return kSuccess;
}

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
API Result cuMemPoolSetAccess(void*, const void*, size_t) { return kSuccess; }
API Result cuMemPoolTrimTo(void*, size_t) { return kSuccess; }
// All memory is the host's.
API Result cuDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return kSuccess;
}
API Result cuCtxEnablePeerAccess(void*, unsigned) { return kSuccess; }
API Result cuMemAllocFromPoolAsync(uint64_t* address, size_t bytes, void*, void* stream) {
  Lock lock(big_lock);
  if (stream_of(stream)->capture) return kUnsupportedCapture;
  if (Result r = refused_by_capture()) return r;
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
API Result cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  Lock lock(big_lock);
  return put(stream, [=]() -> Result {
    function(data);
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

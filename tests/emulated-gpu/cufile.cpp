// libcufile for the emulated GPU: the four functions that a carrier uses, which read a file and copy to the emulated memory.
//
// CHRONAXIE_EMULATED_CUFILE lists, with commas, what it refuses: `open` (the driver), `register` (a file), `read=N` (the N-th read and
// those behind it, as not supported), `error=N` (likewise with errno), and `short` (a read gives a part of what was asked for).
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

// Of libcuda.so.1, beside which it is loaded.
extern "C" unsigned cuCtxGetCurrent(void** context);
extern "C" unsigned cuStreamCreate(void** stream, unsigned flags);
extern "C" unsigned cuStreamSynchronize(void* stream);
extern "C" unsigned cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream);

namespace {

constexpr unsigned kNotInitialized = 5001, kNotSupported = 5008, kPointer = 5012, kContext = 5015, kFileType = 5018, kValue = 5022;

// What a test asks for, by emulated_cufile_counts.
std::atomic<uint64_t> opened{0}, registered{0}, ended{0}, reads{0};

bool refuses(const std::string& what) {
  const char* text = std::getenv("CHRONAXIE_EMULATED_CUFILE");
  return text && ("," + std::string(text) + ",").find("," + what + ",") != std::string::npos;
}
// The number behind `what`=; none where it is not listed.
uint64_t from_which(const std::string& what) {
  const char* text = std::getenv("CHRONAXIE_EMULATED_CUFILE");
  const std::string all = text ? "," + std::string(text) : "";
  const size_t at = all.find("," + what + "=");
  return at == std::string::npos ? UINT64_MAX : std::strtoull(all.c_str() + at + what.size() + 2, nullptr, 10);
}

struct Error {
  unsigned code, of_cuda;
};
struct Description {
  unsigned type;
  union {
    int fd;
    void* handle;
  } file;
  const void* operations;
};
struct Handle {
  int fd;
};

}  // namespace

API Error cuFileDriverOpen() {
  void* context = nullptr;
  if (cuCtxGetCurrent(&context) || !context) return {kContext, 0};
  if (refuses("open")) return {kNotInitialized, 0};
  opened++;
  return {0, 0};
}

API Error cuFileHandleRegister(void** handle, Description* description) {
  if (!opened) return {kNotInitialized, 0};
  if (!handle || !description || description->type != 1 || description->operations) return {kValue, 0};
  const int flags = fcntl(description->file.fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_WRONLY) return {kFileType, 0};
  if (refuses("register")) return {kNotSupported, 0};
  // Host memory of any alignment is read into, for which direct access is no use.
  if (flags & O_DIRECT) fcntl(description->file.fd, F_SETFL, flags & ~O_DIRECT);
  registered++;
  *handle = new Handle{description->file.fd};
  return {0, 0};
}

API void cuFileHandleDeregister(void* handle) {
  ended++;
  delete static_cast<Handle*>(handle);
}

API ssize_t cuFileRead(void* handle, void* base, size_t size, off_t in_file, off_t in_buffer) {
  void* context = nullptr;
  if (cuCtxGetCurrent(&context) || !context) return -ssize_t(kContext);
  const uint64_t n = ++reads;
  if (n >= from_which("read")) return -ssize_t(kNotSupported);
  if (n >= from_which("error")) {
    errno = EIO;
    return -1;
  }
  if (refuses("short")) size = std::min(size, size / 3 + 1);
  std::vector<char> bytes(size);
  const ssize_t count = pread(static_cast<Handle*>(handle)->fd, bytes.data(), size, in_file);
  if (count <= 0) return count;
  void* stream = nullptr;
  if (cuStreamCreate(&stream, 1)) return -ssize_t(kContext);
  const uint64_t to = reinterpret_cast<uint64_t>(base) + uint64_t(in_buffer);
  if (cuMemcpyHtoDAsync_v2(to, bytes.data(), size_t(count), stream) || cuStreamSynchronize(stream)) return -ssize_t(kPointer);
  return count;
}

// Drivers opened, files registered and ended, reads.
API void emulated_cufile_counts(uint64_t counts[4]) {
  counts[0] = opened;
  counts[1] = registered;
  counts[2] = ended;
  counts[3] = reads;
}

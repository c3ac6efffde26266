// libcusolver for the emulated GPU: the batched eigensolver of f64, by cyclic Jacobi rotations, put on its stream like a kernel; of at most 32 matrices
// a call, of which it fails for the one that CHRONAXIE_EMULATED_CUSOLVER names, from 1 on.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

// Of libcuda.so.1, beside which it is loaded.
extern "C" unsigned cuLaunchHostFunc(void* stream, void (*function)(void*), void* data);

namespace {

constexpr int kInvalid = 3, kExecution = 6;
constexpr int kF64 = 1, kVectors = 1;
// What a call must hand over beside its matrices, so that somebody notices where there is less.
constexpr size_t kEach = 64;
// Matrices that it takes at once.
constexpr int64_t kMost = 32;

struct Handle {
  void* stream;
};
struct Job {
  int64_t n, count, fails;
  double *a, *values;
  char* work;
  int* info;
};

// Columns of a [n, n] become eigenvectors, by rising eigenvalues.
void solve(double* a, double* values, int64_t n) {
  std::vector<double> v(n * n, 0.0);
  for (int64_t i = 0; i < n; ++i) v[i * n + i] = 1;
  double all = 0;
  for (int64_t e = 0; e < n * n; ++e) all += a[e] * a[e];
  for (int sweep = 0; sweep < 40; ++sweep) {
    double off = 0;
    for (int64_t p = 0; p < n; ++p)
      for (int64_t q = p + 1; q < n; ++q) {
        const double x = a[p * n + q];
        off += x * x;
        if (x == 0) continue;
        const double theta = (a[q * n + q] - a[p * n + p]) / (2 * x);
        const double t = std::copysign(1 / (std::fabs(theta) + std::sqrt(theta * theta + 1)), theta), c = 1 / std::sqrt(t * t + 1), s = c * t;
        const auto turn = [&](double& y, double& z) {
          const double of_y = y;
          y = c * of_y - s * z, z = s * of_y + c * z;
        };
        for (int64_t k = 0; k < n; ++k) turn(a[p * n + k], a[q * n + k]);
        for (int64_t k = 0; k < n; ++k) turn(a[k * n + p], a[k * n + q]);
        for (int64_t k = 0; k < n; ++k) turn(v[p * n + k], v[q * n + k]);
      }
    if (off <= 1e-30 * all) break;
  }
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t i, int64_t j) { return a[i * n + i] < a[j * n + j]; });
  for (int64_t k = 0; k < n; ++k) values[k] = a[order[k] * n + order[k]];
  for (int64_t k = 0; k < n; ++k) std::memcpy(a + k * n, v.data() + order[k] * n, n * sizeof(double));
}

void run(void* data) {
  const Job& job = *static_cast<Job*>(data);
  std::memset(job.work, 0x5a, kEach * job.count);
  for (int64_t k = 0; k < job.count; ++k) {
    solve(job.a + k * job.n * job.n, job.values + k * job.n, job.n);
    job.info[k] = k == job.fails;
    if (job.info[k]) std::fill_n(job.a + k * job.n * job.n, job.n * job.n, std::nan(""));
  }
}

}  // namespace

API int cusolverGetVersion(int* version) {
  *version = 12004;
  return 0;
}
API int cusolverDnCreate(Handle** handle) {
  *handle = new Handle{nullptr};
  return 0;
}
API int cusolverDnCreateParams(void** params) {
  *params = new int(0);
  return 0;
}
API int cusolverDnSetStream(Handle* handle, void* stream) {
  handle->stream = stream;
  return 0;
}
API int cusolverDnXsyevBatched_bufferSize(Handle*, void*, int mode, int, int64_t n, int type, const void*, int64_t pitch, int, const void*, int,
                                          size_t* on_device, size_t* on_host, int64_t count) {
  if (mode != kVectors || type != kF64 || pitch != n || n < 1 || count < 1 || count > kMost) return kInvalid;
  *on_device = kEach * count, *on_host = 0;
  return 0;
}
API int cusolverDnXsyevBatched(Handle* handle, void*, int mode, int, int64_t n, int type, void* a, int64_t pitch, int, void* values, int, void* work,
                               size_t bytes, void*, size_t, int* info, int64_t count) {
  if (mode != kVectors || type != kF64 || pitch != n || n < 1 || count < 1 || bytes < kEach * size_t(count)) return kInvalid;
  const char* fails = std::getenv("CHRONAXIE_EMULATED_CUSOLVER");
  // A graph may hold it for ever.
  Job* job = new Job{n, count, fails ? std::atoll(fails) - 1 : -1, static_cast<double*>(a), static_cast<double*>(values), static_cast<char*>(work), info};
  return cuLaunchHostFunc(handle->stream, run, job) ? kExecution : 0;
}

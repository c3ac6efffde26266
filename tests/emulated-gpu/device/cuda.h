// CUDA C++ for a host compiler: what NVRTC declares by itself, and what translate.cpp refers to. No header of the system is
// included, so that a kernel sees no name that NVRTC would not give it.
#pragma once
#include "../abi.h"

#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#define EMU_KERNEL(name, is_extern_c, ...)                                                      \
  static emu::Kernel emu_kernel_of_##name = emu::kernel<&name>(#name, is_extern_c, ##__VA_ARGS__); \
  __attribute__((section("emu_kernels"), used)) static emu::Kernel* emu_entry_of_##name = &emu_kernel_of_##name;

typedef decltype(sizeof(0)) size_t;

namespace emu {

// Set by the machine: itself, and the thread that runs.
static const Machine* machine = nullptr;
static const Thread* self = nullptr;

template <auto F>
struct Call;
template <class... P, void (*F)(P...)>
struct Call<F> {
  static constexpr unsigned sizes[sizeof...(P) + 1] = {sizeof(P)..., 0};
  static constexpr unsigned alignments[sizeof...(P) + 1] = {alignof(P)..., 0};
  static constexpr int count = sizeof...(P);
  template <int... I>
  struct List {};
  template <int N, int... I>
  struct Count : Count<N - 1, N - 1, I...> {};
  template <int... I>
  struct Count<0, I...> {
    typedef List<I...> type;
  };
  template <int... I>
  static void at(void** a, List<I...>) {
    F(*(P*)a[I]...);
  }
  static void run(void** a) { at(a, typename Count<count>::type()); }
};

template <auto F>
constexpr Kernel kernel(const char* name, int is_extern_c, unsigned max_threads = 1024, unsigned min_blocks = 0) {
  typedef Call<F> C;
  return {name, is_extern_c, C::run, C::count, C::sizes, C::alignments, max_threads, min_blocks};
}

template <class T>
constexpr unsigned long aligned(unsigned long wanted) {
  return alignof(T) > wanted ? alignof(T) : wanted;
}
inline void* shared_static(int* slot, unsigned long bytes, unsigned long alignment) {
  return machine->shared_static(slot, bytes, alignment);
}
inline void* shared_dynamic(unsigned long alignment) { return machine->shared_dynamic(alignment); }

// A pointer that somebody waits through: each read gives the other threads a turn.
template <class T>
struct VolatilePointer {
  volatile T* p;
  template <class U>
  explicit VolatilePointer(U* from) : p((volatile T*)from) {}
  volatile T& operator*() const {
    machine->yield("a volatile access");
    return *p;
  }
  volatile T& operator[](long i) const {
    machine->yield("a volatile access");
    return p[i];
  }
};

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "values of different sizes");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
inline float from_bits(unsigned b) { return bits<float>(b); }
inline unsigned random() { return machine->random(); }

// Operands of inline PTX: registers have a size, C++ has types.
template <class To, class From>
inline To load(From from) {
  if constexpr (__is_same(To, float) || __is_same(To, double))
    return (To)from;
  else if constexpr (sizeof(From) == 2 && sizeof(To) == 2)
    return bits<To>(from);
  else
    return (To)from;
}
template <class To, class From>
inline void store(To& to, From from) {
  if constexpr (sizeof(To) == sizeof(From))
    __builtin_memcpy(&to, &from, sizeof to);
  else
    to = (To)from;
}

}  // namespace emu

// --- vectors
#define EMU_VECTOR(T, name, a2, a4)                                                     \
  struct name##1 { T x; };                                                              \
  struct alignas(a2) name##2 { T x, y; };                                               \
  struct name##3 { T x, y, z; };                                                        \
  struct alignas(a4) name##4 { T x, y, z, w; };                                         \
  inline name##1 make_##name##1(T x) { return {x}; }                                    \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                            \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                    \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTOR(signed char, char, 2, 4)
EMU_VECTOR(unsigned char, uchar, 2, 4)
EMU_VECTOR(short, short, 4, 8)
EMU_VECTOR(unsigned short, ushort, 4, 8)
EMU_VECTOR(int, int, 8, 16)
EMU_VECTOR(unsigned, uint, 8, 16)
EMU_VECTOR(long long, longlong, 16, 16)
EMU_VECTOR(unsigned long long, ulonglong, 16, 16)
EMU_VECTOR(float, float, 8, 16)
EMU_VECTOR(double, double, 16, 16)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

// --- indices
#define threadIdx (::emu::self->thread_index)
#define blockIdx (::emu::self->block_index)
#define blockDim (::emu::self->block_dim)
#define gridDim (::emu::self->grid_dim)
constexpr int warpSize = 32;

// --- arithmetic
extern "C" {
float expf(float) noexcept; float exp2f(float) noexcept; float exp10f(float) noexcept; float expm1f(float) noexcept;
float logf(float) noexcept; float log2f(float) noexcept; float log10f(float) noexcept; float log1pf(float) noexcept;
float sinf(float) noexcept; float cosf(float) noexcept; float tanf(float) noexcept; float asinf(float) noexcept;
float acosf(float) noexcept; float atanf(float) noexcept; float atan2f(float, float) noexcept; float sinhf(float) noexcept;
float coshf(float) noexcept; float tanhf(float) noexcept; float sqrtf(float) noexcept; float cbrtf(float) noexcept;
float powf(float, float) noexcept; float fmaf(float, float, float) noexcept; float fmodf(float, float) noexcept;
float fabsf(float) noexcept; float floorf(float) noexcept; float ceilf(float) noexcept; float truncf(float) noexcept;
float rintf(float) noexcept; float roundf(float) noexcept; float nearbyintf(float) noexcept;
float copysignf(float, float) noexcept; float fmaxf(float, float) noexcept; float fminf(float, float) noexcept;
float ldexpf(float, int) noexcept; float scalbnf(float, int) noexcept; float erff(float) noexcept; float erfcf(float) noexcept;
float hypotf(float, float) noexcept; float remainderf(float, float) noexcept; float lgammaf(float) noexcept;
double exp(double) noexcept; double exp2(double) noexcept; double expm1(double) noexcept; double log(double) noexcept;
double log2(double) noexcept; double log10(double) noexcept; double log1p(double) noexcept; double sin(double) noexcept;
double cos(double) noexcept; double tan(double) noexcept; double tanh(double) noexcept; double sqrt(double) noexcept;
double pow(double, double) noexcept; double fma(double, double, double) noexcept; double fabs(double) noexcept;
double floor(double) noexcept; double ceil(double) noexcept; double trunc(double) noexcept; double rint(double) noexcept;
double round(double) noexcept; double fmax(double, double) noexcept; double fmin(double, double) noexcept;
double copysign(double, double) noexcept; double fmod(double, double) noexcept; double ldexp(double, int) noexcept;
double atan2(double, double) noexcept; double erf(double) noexcept;
int abs(int) noexcept; long long llabs(long long) noexcept; int printf(const char*, ...);
void* memcpy(void*, const void*, size_t) noexcept; void* memset(void*, int, size_t) noexcept;
}
#define EMU_OVERLOAD1(name) inline float name(float x) { return name##f(x); }
EMU_OVERLOAD1(exp) EMU_OVERLOAD1(exp2) EMU_OVERLOAD1(expm1) EMU_OVERLOAD1(log) EMU_OVERLOAD1(log2) EMU_OVERLOAD1(log1p)
EMU_OVERLOAD1(log10) EMU_OVERLOAD1(sin) EMU_OVERLOAD1(cos) EMU_OVERLOAD1(tan) EMU_OVERLOAD1(tanh) EMU_OVERLOAD1(sqrt)
EMU_OVERLOAD1(fabs) EMU_OVERLOAD1(floor) EMU_OVERLOAD1(ceil) EMU_OVERLOAD1(trunc) EMU_OVERLOAD1(rint) EMU_OVERLOAD1(round)
EMU_OVERLOAD1(erf)
inline float pow(float x, float y) { return powf(x, y); }
inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
inline float fmax(float x, float y) { return fmaxf(x, y); }
inline float fmin(float x, float y) { return fminf(x, y); }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }
inline long long abs(long long x) { return x < 0 ? -x : x; }
inline long abs(long x) { return x < 0 ? -x : x; }
inline float rsqrtf(float x) { return (float)(1.0 / sqrt((double)x)); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
#define signbit(x) __builtin_signbit(x)
inline void sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }

#define EMU_MIN_MAX(A, B, R)                                           \
  inline R min(A a, B b) { return (R)b < (R)a ? (R)b : (R)a; }         \
  inline R max(A a, B b) { return (R)a < (R)b ? (R)b : (R)a; }
EMU_MIN_MAX(int, int, int)
EMU_MIN_MAX(unsigned, unsigned, unsigned) EMU_MIN_MAX(int, unsigned, unsigned) EMU_MIN_MAX(unsigned, int, unsigned)
EMU_MIN_MAX(long, long, long) EMU_MIN_MAX(unsigned long, unsigned long, unsigned long)
EMU_MIN_MAX(long long, long long, long long)
EMU_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin((double)a, b); }
inline double max(float a, double b) { return fmax((double)a, b); }
inline double min(double a, float b) { return fmin(a, (double)b); }
inline double max(double a, float b) { return fmax(a, (double)b); }

// What is approximate on a GPU is as exact as the host here.
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x != x ? 0.0f : fminf(fmaxf(x, 0.0f), 1.0f); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
// Never fused: the results pass through memory.
inline float __fadd_rn(float a, float b) { volatile float r = a + b; return r; }
inline float __fsub_rn(float a, float b) { volatile float r = a - b; return r; }
inline float __fmul_rn(float a, float b) { volatile float r = a * b; return r; }
inline double __dadd_rn(double a, double b) { volatile double r = a + b; return r; }
inline double __dmul_rn(double a, double b) { volatile double r = a * b; return r; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __drcp_rn(double a) { return 1.0 / a; }

inline int __float_as_int(float x) { return emu::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return emu::bits<unsigned>(x); }
inline float __int_as_float(int x) { return emu::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emu::bits<float>(x); }
inline long long __double_as_longlong(double x) { return emu::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emu::bits<double>(x); }
inline int __float2int_rn(float x) { return (int)rintf(x); }
inline long long __float2ll_rn(float x) { return (long long)rintf(x); }
inline int __float2int_rz(float x) { return (int)x; }
inline int __float2int_rd(float x) { return (int)floorf(x); }
inline unsigned __float2uint_rn(float x) { return (unsigned)rintf(x); }
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }
inline float __ull2float_rn(unsigned long long x) { return (float)x; }
inline float __double2float_rn(double x) { return (float)x; }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (x >> i & 1u) << (31 - i);
  return r;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  unsigned long long all = (unsigned long long)b << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) {
    unsigned pick = s >> (4 * i) & 15u, byte = (unsigned)(all >> (8 * (pick & 7))) & 255u;
    if (pick & 8) byte = byte & 128 ? 255u : 0u;
    r |= byte << (8 * i);
  }
  return r;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s) {
  return (unsigned)((((unsigned long long)hi << 32 | lo) << (s & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) {
  return (unsigned)(((unsigned long long)hi << 32 | lo) >> (s & 31));
}

// --- memory
#define EMU_LOAD(name) template <class T> inline T name(const T* p) { return *p; }
EMU_LOAD(__ldg) EMU_LOAD(__ldcg) EMU_LOAD(__ldca) EMU_LOAD(__ldcs) EMU_LOAD(__ldlu) EMU_LOAD(__ldcv)
#define EMU_STORE(name) template <class T> inline void name(T* p, T x) { *p = x; }
EMU_STORE(__stcs) EMU_STORE(__stcg) EMU_STORE(__stwb) EMU_STORE(__stwt)
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline size_t __cvta_generic_to_shared(const void* p) { return emu::machine->shared_address(p); }
inline size_t __cvta_generic_to_global(const void* p) { return (size_t)p; }

// Atomic because one thread runs at a time; each gives the others a turn now and then, since loops wait with them.
#define EMU_ATOMIC(name, expression)                   \
  template <class T, class U>                          \
  inline T name(T* p, U u) {                           \
    emu::machine->yield("an atomic");                  \
    T old = *p, x = (T)u;                              \
    *p = expression;                                   \
    return old;                                        \
  }                                                    \
  template <class T, class U>                          \
  inline T name##_block(T* p, U u) { return name(p, u); } \
  template <class T, class U>                          \
  inline T name##_system(T* p, U u) { return name(p, u); }
EMU_ATOMIC(atomicAdd, (T)(old + x))
EMU_ATOMIC(atomicSub, (T)(old - x))
EMU_ATOMIC(atomicExch, x)
EMU_ATOMIC(atomicMin, (x < old ? x : old))
EMU_ATOMIC(atomicMax, (old < x ? x : old))
EMU_ATOMIC(atomicAnd, (T)(old & x))
EMU_ATOMIC(atomicOr, (T)(old | x))
EMU_ATOMIC(atomicXor, (T)(old ^ x))
EMU_ATOMIC(atomicInc, (old >= x ? (T)0 : (T)(old + 1)))
EMU_ATOMIC(atomicDec, (old == 0 || old > x ? x : (T)(old - 1)))
template <class T, class U, class V>
inline T atomicCAS(T* p, U compare, V u) {
  emu::machine->yield("an atomic");
  T old = *p;
  if (old == (T)compare) *p = (T)u;
  return old;
}

// --- threads together
inline void __syncthreads() { emu::machine->block_barrier(0, 0, 0, 1); }
inline int __syncthreads_count(int p) { return (int)emu::machine->block_barrier(0, 0, p != 0, 1); }
inline int __syncthreads_or(int p) { return __syncthreads_count(p) != 0; }
inline int __syncthreads_and(int p) {
  return __syncthreads_count(p) == (int)(blockDim.x * blockDim.y * blockDim.z);
}
inline unsigned __activemask() { return emu::machine->active_mask(); }
inline void __nanosleep(unsigned) { emu::machine->yield("__nanosleep"); }
inline void __trap() { emu::machine->fail("the kernel executed a trap"); }
inline long long clock64() {
#if defined(__x86_64__)
  return (long long)__builtin_ia32_rdtsc();
#else
  long long t;
  asm volatile("mrs %0, cntvct_el0" : "=r"(t));
  return t;
#endif
}
inline unsigned clock() { return (unsigned)clock64(); }

namespace emu {

template <class T>
struct Shuffle {
  T value, result;
  int from;  // a lane
};
template <class T>
inline T shuffle(unsigned mask, T value, int from, const char* what) {
  Shuffle<T> mine = {value, value, from};
  machine->warp(mask, what, &mine, [](void** lanes, unsigned) {
    for (int i = 0; i < 32; i++) {
      if (!lanes[i]) continue;
      auto* to = (Shuffle<T>*)lanes[i];
      auto* source = (Shuffle<T>*)lanes[to->from];
      // The value of a lane that does not take part is undefined.
      if (source) to->result = source->value;
      else __builtin_memset(&to->result, 0x7f, sizeof(T));
    }
  });
  return mine.result;
}
inline int segment(int lane, int width) { return lane & ~(width - 1); }

// A value that every lane gets, computed from all of them.
template <class T, class R>
struct Vote {
  T value;
  R result;
};
template <class T, class R, class F>
inline R vote(unsigned mask, T value, const char* what, F) {
  Vote<T, R> mine = {value, R()};
  machine->warp(mask, what, &mine, [](void** lanes, unsigned) {
    for (int i = 0; i < 32; i++) {
      if (!lanes[i]) continue;
      F::run(lanes, i, ((Vote<T, R>*)lanes[i])->result);
    }
  });
  return mine.result;
}
#define EMU_VOTE(name, T, R, start, body)                       \
  struct name {                                                 \
    static void run(void** lanes, int mine, R& r) {             \
      (void)mine;                                               \
      r = start;                                                \
      bool first = true;                                        \
      (void)first;                                              \
      for (int i = 0; i < 32; i++) {                            \
        if (!lanes[i]) continue;                                \
        T x = ((Vote<T, R>*)lanes[i])->value;                   \
        body;                                                   \
        first = false;                                          \
      }                                                         \
    }                                                           \
  };
EMU_VOTE(Ballot, int, unsigned, 0u, r |= (x ? 1u : 0u) << i)
EMU_VOTE(All, int, int, 1, r &= x != 0)
EMU_VOTE(Any, int, int, 0, r |= x != 0)
template <class T>
EMU_VOTE(AddAll, T, T, T(), r = first ? x : (T)(r + x))
template <class T>
EMU_VOTE(MinAll, T, T, T(), r = first || x < r ? x : r)
template <class T>
EMU_VOTE(MaxAll, T, T, T(), r = first || r < x ? x : r)
EMU_VOTE(AndAll, unsigned, unsigned, ~0u, r &= x)
EMU_VOTE(OrAll, unsigned, unsigned, 0u, r |= x)
EMU_VOTE(XorAll, unsigned, unsigned, 0u, r ^= x)
template <class T>
struct Match {
  static void run(void** lanes, int mine, unsigned& r) {
    r = 0;
    T x = ((Vote<T, unsigned>*)lanes[mine])->value;
    for (int i = 0; i < 32; i++)
      if (lanes[i] && ((Vote<T, unsigned>*)lanes[i])->value == x) r |= 1u << i;
  }
};

}  // namespace emu

inline void __syncwarp(unsigned mask = ~0u) {
  int nothing = 0;
  emu::machine->warp(mask, "__syncwarp", &nothing, [](void**, unsigned) {});
}
template <class T>
inline T __shfl_sync(unsigned mask, T x, int lane, int width = 32) {
  return emu::shuffle(mask, x, emu::segment((int)emu::self->lane, width) + (lane & (width - 1)), "__shfl_sync");
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32) {
  int me = (int)emu::self->lane, from = me - (int)by;
  return emu::shuffle(mask, x, from < emu::segment(me, width) ? me : from, "__shfl_up_sync");
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32) {
  int me = (int)emu::self->lane, from = me + (int)by;
  return emu::shuffle(mask, x, from >= emu::segment(me, width) + width ? me : from, "__shfl_down_sync");
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T x, int by, int width = 32) {
  int me = (int)emu::self->lane, from = me ^ by;
  return emu::shuffle(mask, x, from >= emu::segment(me, width) + width ? me : from, "__shfl_xor_sync");
}
inline unsigned __ballot_sync(unsigned mask, int p) {
  return emu::vote<int, unsigned>(mask, p, "__ballot_sync", emu::Ballot());
}
inline int __all_sync(unsigned mask, int p) { return emu::vote<int, int>(mask, p, "__all_sync", emu::All()); }
inline int __any_sync(unsigned mask, int p) { return emu::vote<int, int>(mask, p, "__any_sync", emu::Any()); }
inline unsigned __reduce_add_sync(unsigned m, unsigned x) { return emu::vote<unsigned, unsigned>(m, x, "__reduce_add_sync", emu::AddAll<unsigned>()); }
inline int __reduce_add_sync(unsigned m, int x) { return emu::vote<int, int>(m, x, "__reduce_add_sync", emu::AddAll<int>()); }
inline unsigned __reduce_min_sync(unsigned m, unsigned x) { return emu::vote<unsigned, unsigned>(m, x, "__reduce_min_sync", emu::MinAll<unsigned>()); }
inline int __reduce_min_sync(unsigned m, int x) { return emu::vote<int, int>(m, x, "__reduce_min_sync", emu::MinAll<int>()); }
inline unsigned __reduce_max_sync(unsigned m, unsigned x) { return emu::vote<unsigned, unsigned>(m, x, "__reduce_max_sync", emu::MaxAll<unsigned>()); }
inline int __reduce_max_sync(unsigned m, int x) { return emu::vote<int, int>(m, x, "__reduce_max_sync", emu::MaxAll<int>()); }
inline unsigned __reduce_and_sync(unsigned m, unsigned x) { return emu::vote<unsigned, unsigned>(m, x, "__reduce_and_sync", emu::AndAll()); }
inline unsigned __reduce_or_sync(unsigned m, unsigned x) { return emu::vote<unsigned, unsigned>(m, x, "__reduce_or_sync", emu::OrAll()); }
inline unsigned __reduce_xor_sync(unsigned m, unsigned x) { return emu::vote<unsigned, unsigned>(m, x, "__reduce_xor_sync", emu::XorAll()); }
template <class T>
inline unsigned __match_any_sync(unsigned m, T x) {
  return emu::vote<T, unsigned>(m, x, "__match_any_sync", emu::Match<T>());
}

#define assert(condition) \
  ((condition) ? (void)0 : ::emu::machine->fail("an assertion failed: " #condition))

#include "ptx.h"

// What the machine finds in a module.
extern "C" {
extern __attribute__((weak, visibility("hidden"))) emu::Kernel *__start_emu_kernels[], *__stop_emu_kernels[];
__attribute__((visibility("default"), used)) void emu_module(emu::Module* m) {
  *m = {emu::kVersion, __start_emu_kernels, __stop_emu_kernels, &emu::machine, &emu::self};
}
}

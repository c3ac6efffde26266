// The instructions of inline PTX that our kernels use, each a function: `tanh.approx.f32 d, a` is tanh_approx_f32(d, a), a
// dot or :: being _, vectors and brackets being their operands in order. One that is missing is an error of the compiler
// that names it; `emulated-ptx` (ptx_names.cpp) asks for all of them without running anything.
#pragma once

namespace emu_ptx {

using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;

// Where a result is not wanted.
struct Sink {
  template <class T>
  const Sink& operator=(const T&) const { return *this; }
};
inline constexpr Sink sink{};
using emu::bits;
using emu::machine;

inline float flush(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }

// --- arithmetic; approximate on a GPU
inline void tanh_approx_f32(float& d, float a) { d = tanhf(a); }
inline void ex2_approx_ftz_f32(float& d, float a) { d = flush(exp2f(flush(a))); }
inline void ex2_approx_f32(float& d, float a) { d = exp2f(a); }
inline void lg2_approx_ftz_f32(float& d, float a) { d = flush(log2f(flush(a))); }
inline void lg2_approx_f32(float& d, float a) { d = log2f(a); }
inline void rcp_approx_ftz_f32(float& d, float a) { d = flush(1.0f / flush(a)); }
inline void rcp_approx_f32(float& d, float a) { d = 1.0f / a; }
inline void rcp_rn_f32(float& d, float a) { d = 1.0f / a; }
inline void rsqrt_approx_ftz_f32(float& d, float a) { d = flush(rsqrtf(flush(a))); }
inline void rsqrt_approx_f32(float& d, float a) { d = rsqrtf(a); }
inline void sqrt_approx_ftz_f32(float& d, float a) { d = flush(sqrtf(flush(a))); }
inline void sqrt_approx_f32(float& d, float a) { d = sqrtf(a); }
inline void fma_rn_f32(float& d, float a, float b, float c) { d = fmaf(a, b, c); }
inline void add_f32(float& d, float a, float b) { d = a + b; }
inline void mul_f32(float& d, float a, float b) { d = a * b; }

// --- moves and integers
template <class D, class S>
inline void mov_b32(D& d, S a) { emu::store(d, a); }
template <class D, class S>
inline void mov_u32(D& d, S a) { emu::store(d, a); }
template <class D, class S>
inline void mov_s32(D& d, S a) { emu::store(d, a); }
template <class D, class S>
inline void mov_b64(D& d, S a) { emu::store(d, a); }
template <class D, class S>
inline void mov_u64(D& d, S a) { emu::store(d, a); }
inline void mov_b32(u32& d, u16 lo, u16 hi) { d = (u32)hi << 16 | lo; }
inline void mov_b32(u16& lo, u16& hi, u32 a) { lo = (u16)a, hi = (u16)(a >> 16); }
inline void mov_b64(u64& d, u32 lo, u32 hi) { d = (u64)hi << 32 | lo; }
inline void mov_b64(u32& lo, u32& hi, u64 a) { lo = (u32)a, hi = (u32)(a >> 32); }
template <class D>
inline void and_b32(D& d, u32 a, u32 b) { d = a & b; }
inline void or_b32(u32& d, u32 a, u32 b) { d = a | b; }
inline void xor_b32(u32& d, u32 a, u32 b) { d = a ^ b; }
inline void shr_u32(u32& d, u32 a, u32 n) { d = n > 31 ? 0 : a >> n; }
inline void shr_b32(u32& d, u32 a, u32 n) { d = n > 31 ? 0 : a >> n; }
inline void shl_b32(u32& d, u32 a, u32 n) { d = n > 31 ? 0 : a << n; }
inline void add_u32(u32& d, u32 a, u32 b) { d = a + b; }
inline void add_s32(u32& d, u32 a, u32 b) { d = a + b; }
inline void cvt_u32_u64(u32& d, u64 a) { d = (u32)a; }
inline void cvt_u64_u32(u64& d, u32 a) { d = a; }
inline void selp_u32(u32& d, u32 a, u32 b, bool p) { d = p ? a : b; }
inline void selp_b32(u32& d, u32 a, u32 b, bool p) { d = p ? a : b; }
inline void selp_s32(u32& d, u32 a, u32 b, bool p) { d = p ? a : b; }
inline void setp_ne_b32(bool& p, u32 a, u32 b) { p = a != b; }
inline void setp_ne_u32(bool& p, u32 a, u32 b) { p = a != b; }
inline void setp_eq_u32(bool& p, u32 a, u32 b) { p = a == b; }
inline void setp_eq_b32(bool& p, u32 a, u32 b) { p = a == b; }
inline void cvta_to_shared_u64(u64& d, u64 a) { d = machine->shared_address((const void*)a); }
inline void cvta_to_global_u64(u64& d, u64 a) { d = a; }

// --- special registers
inline u32 special_cluster_ctarank() { return emu::self->cluster_rank; }
inline u32 special_cluster_nctarank() { return emu::self->cluster_blocks; }
inline u32 special_tid_x() { return emu::self->thread_index.x; }
inline u32 special_laneid() { return emu::self->lane; }
inline u32 special_warpid() { return emu::self->warp; }
inline u64 special_globaltimer() { return (u64)clock64(); }
inline u32 special_clock() { return clock(); }
inline u64 special_clock64() { return (u64)clock64(); }

// --- bf16 and half, as their bits
inline u16 to_bf16(float x) {
  u32 b = bits<u32>(x);
  if ((b & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (u16)((b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}
inline float of_bf16(u16 x) { return bits<float>((u32)x << 16); }
inline u16 to_half(float x) { return bits<u16>((_Float16)x); }
inline float of_half(u16 x) { return (float)bits<_Float16>(x); }
inline void cvt_rn_bf16_f32(u16& d, float a) { d = to_bf16(a); }
inline void cvt_rn_f16_f32(u16& d, float a) { d = to_half(a); }
inline void cvt_f32_bf16(float& d, u16 a) { d = of_bf16(a); }
inline void cvt_f32_f16(float& d, u16 a) { d = of_half(a); }
inline void cvt_rn_bf16x2_f32(u32& d, float hi, float lo) { d = (u32)to_bf16(hi) << 16 | to_bf16(lo); }
inline void cvt_rn_f16x2_f32(u32& d, float hi, float lo) { d = (u32)to_half(hi) << 16 | to_half(lo); }
// To 10 bits of fraction, nearest, ties away.
inline void cvt_rna_tf32_f32(u32& d, float a) {
  u32 b = bits<u32>(a);
  d = (b & 0x7f800000u) == 0x7f800000u ? b : (b + 0x1000u) & ~0x1fffu;
}

// Two at a time: each product is exact in f32 before it is rounded, and so is a sum with zero.
inline void fma_rn_bf16x2(u32& d, u32 a, u32 b, u32 c) {
  float low = fmaf(of_bf16((u16)a), of_bf16((u16)b), of_bf16((u16)c));
  d = (u32)to_bf16(fmaf(of_bf16((u16)(a >> 16)), of_bf16((u16)(b >> 16)), of_bf16((u16)(c >> 16)))) << 16 | to_bf16(low);
}
inline void fma_rn_f16x2(u32& d, u32 a, u32 b, u32 c) {
  float low = fmaf(of_half((u16)a), of_half((u16)b), of_half((u16)c));
  d = (u32)to_half(fmaf(of_half((u16)(a >> 16)), of_half((u16)(b >> 16)), of_half((u16)(c >> 16)))) << 16 | to_half(low);
}

// --- tensor cores: the lanes of a warp bring their parts, and the last one to come does the work of all
// d (16 x 8) = a (16 x 16) b (16 x 8) + c. Lane 4 g + p has of d and c rows g and g + 8, columns 2p and 2p + 1; of a the same
// rows, columns 2p, 2p + 1, 2p + 8, 2p + 9; of b these as rows, column g. Products are exact, sums are made in one order in f32.
template <float (*value)(u16)>
inline void mma_m16n8k16(const char* what, float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1, u32 a2, u32 a3,
                         u32 b0, u32 b1, float c0, float c1, float c2, float c3) {
  struct Part {
    u32 a[4], b[2];
    float d[4];
  } mine = {{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}};
  machine->warp(~0u, what, &mine, [](void** lanes, unsigned) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
      const Part& part = *(Part*)lanes[lane];
      const int g = lane / 4, p = lane % 4 * 2;
      for (int e = 0; e < 8; e++)
        a[g + e / 2 % 2 * 8][p + e / 4 * 8 + e % 2] = value((u16)(part.a[e / 2] >> e % 2 * 16));
      for (int e = 0; e < 4; e++) b[p + e / 2 * 8 + e % 2][g] = value((u16)(part.b[e / 2] >> e % 2 * 16));
    }
    for (int lane = 0; lane < 32; lane++) {
      Part& part = *(Part*)lanes[lane];
      for (int e = 0; e < 4; e++) {
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        for (int k = 0; k < 16; k++) part.d[e] += a[row][k] * b[k][column];
      }
    }
  });
  d0 = mine.d[0], d1 = mine.d[1], d2 = mine.d[2], d3 = mine.d[3];
}
#define EMU_MMA(type, value)                                                                                          \
  inline void mma_sync_aligned_m16n8k16_row_col_f32_##type##_##type##_f32(                                            \
      float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, float c0, float c1, \
      float c2, float c3) {                                                                                           \
    mma_m16n8k16<value>("mma.sync.m16n8k16 of " #type, d0, d1, d2, d3, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3);       \
  }
EMU_MMA(bf16, of_bf16) EMU_MMA(f16, of_half)
// d (16 x 8) = a (16 x 8) b (8 x 8) + c. Lane 4 g + p has of a rows g and g + 8 of column p and then of p + 4; of b rows p and p + 4
// of column g. Of a number the upper 19 bits are read.
inline void mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1,
                                                               u32 a2, u32 a3, u32 b0, u32 b1, float c0, float c1, float c2,
                                                               float c3) {
  struct Part {
    u32 a[4], b[2];
    float d[4];
  } mine = {{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}};
  machine->warp(~0u, "mma.sync.m16n8k8 of tf32", &mine, [](void** lanes, unsigned) {
    float a[16][8], b[8][8];
    for (int lane = 0; lane < 32; lane++) {
      const Part& part = *(Part*)lanes[lane];
      const int g = lane / 4, p = lane % 4;
      for (int e = 0; e < 4; e++) a[g + e % 2 * 8][p + e / 2 * 4] = bits<float>(part.a[e] & 0xffffe000u);
      for (int e = 0; e < 2; e++) b[p + e * 4][g] = bits<float>(part.b[e] & 0xffffe000u);
    }
    for (int lane = 0; lane < 32; lane++) {
      Part& part = *(Part*)lanes[lane];
      for (int e = 0; e < 4; e++)
        for (int k = 0; k < 8; k++) part.d[e] += a[lane / 4 + e / 2 * 8][k] * b[k][lane % 4 * 2 + e % 2];
    }
  });
  d0 = mine.d[0], d1 = mine.d[1], d2 = mine.d[2], d3 = mine.d[3];
}
// d (8 x 8) = a (8 x 4) b (4 x 8) + c of f64. Lane 4 g + p has of a row g, column p, of b row p, column g, and of c and d row g, columns 2p
// and 2p + 1.
inline void mma_sync_aligned_m8n8k4_row_col_f64_f64_f64_f64(double& d0, double& d1, double a, double b, double c0, double c1) {
  struct Part {
    double a, b, d[2];
  } mine = {a, b, {c0, c1}};
  machine->warp(~0u, "mma.sync.m8n8k4 of f64", &mine, [](void** lanes, unsigned) {
    for (int lane = 0; lane < 32; lane++) {
      Part& part = *(Part*)lanes[lane];
      for (int e = 0; e < 2; e++)
        for (int k = 0; k < 4; k++)
          part.d[e] = fma(((Part*)lanes[lane / 4 * 4 + k])->a, ((Part*)lanes[(lane % 4 * 2 + e) * 4 + k])->b, part.d[e]);
    }
  });
  d0 = mine.d[0], d1 = mine.d[1];
}
// Lane i says where row i % 8 of matrix i / 8 is, and gets of each matrix elements 2p and 2p + 1 of row g, or of column g.
template <bool transposed>
inline void load_matrices(const char* what, u32& r0, u32& r1, u32& r2, u32& r3, u32 from) {
  struct Part {
    u32 from, r[4];
  } mine = {from, {}};
  machine->warp(~0u, what, &mine, [](void** lanes, unsigned) {
    for (int m = 0; m < 4; m++) {
      u16 x[8][8];
      for (int row = 0; row < 8; row++) {
        const u32 at = ((Part*)lanes[8 * m + row])->from;
        if (at % 16) machine->fail("ldmatrix of a row that is not aligned to 16 bytes");
        __builtin_memcpy(x[row], machine->shared_pointer(at, 16, "ldmatrix"), 16);
      }
      for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, p = lane % 4 * 2;
        ((Part*)lanes[lane])->r[m] = transposed ? (u32)x[p + 1][g] << 16 | x[p][g] : (u32)x[g][p + 1] << 16 | x[g][p];
      }
    }
  });
  r0 = mine.r[0], r1 = mine.r[1], r2 = mine.r[2], r3 = mine.r[3];
}
inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(u32& r0, u32& r1, u32& r2, u32& r3, u32 from) {
  load_matrices<false>("ldmatrix.x4", r0, r1, r2, r3, from);
}
inline void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(u32& r0, u32& r1, u32& r2, u32& r3, u32 from) {
  load_matrices<true>("ldmatrix.x4.trans", r0, r1, r2, r3, from);
}

// To rows whose addresses lanes have.
template <bool transposed>
inline void store_matrices(const char* what, u32 to, u32 r0, u32 r1, u32 r2, u32 r3) {
  struct Part {
    u32 to, r[4];
  } mine = {to, {r0, r1, r2, r3}};
  machine->warp(~0u, what, &mine, [](void** lanes, unsigned) {
    for (int m = 0; m < 4; m++) {
      u16 x[8][8];
      for (int lane = 0; lane < 32; lane++)
        for (int e = 0; e < 2; e++) {
          const int own = lane / 4, across = lane % 4 * 2 + e;
          (transposed ? x[across][own] : x[own][across]) = (u16)(((Part*)lanes[lane])->r[m] >> 16 * e);
        }
      for (int row = 0; row < 8; row++) {
        const u32 at = ((Part*)lanes[8 * m + row])->to;
        if (at % 16) machine->fail("stmatrix of a row that is not aligned to 16 bytes");
        __builtin_memcpy(machine->shared_pointer(at, 16, "stmatrix"), x[row], 16);
      }
    }
  });
}
inline void stmatrix_sync_aligned_m8n8_x4_shared_b16(u32 to, u32 r0, u32 r1, u32 r2, u32 r3) {
  store_matrices<false>("stmatrix.x4", to, r0, r1, r2, r3);
}
inline void stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(u32 to, u32 r0, u32 r1, u32 r2, u32 r3) {
  store_matrices<true>("stmatrix.x4.trans", to, r0, r1, r2, r3);
}

// A matrix of 8 x 8 whose row i is in lanes 4 i to 4 i + 3, two numbers each, turned.
inline void movmatrix_sync_aligned_m8n8_trans_b16(u32& d, u32 a) {
  struct Part {
    u32 a, d;
  } mine = {a, 0};
  machine->warp(~0u, "movmatrix", &mine, [](void** lanes, unsigned) {
    u16 x[8][8];
    for (int lane = 0; lane < 32; lane++)
      for (int e = 0; e < 2; e++) x[lane / 4][lane % 4 * 2 + e] = (u16)(((Part*)lanes[lane])->a >> 16 * e);
    for (int lane = 0; lane < 32; lane++) {
      const int g = lane / 4, p = lane % 4 * 2;
      ((Part*)lanes[lane])->d = (u32)x[p + 1][g] << 16 | x[p][g];
    }
  });
  d = mine.d;
}

// --- loads and stores; those that order memory are where threads wait for each other
// Read, so that an address that there is not is found.
inline void prefetch_global_L2(u64 a) { (void)*reinterpret_cast<const volatile char*>(a); }
#define EMU_LOADS(name, T)                                   \
  template <class D>                                         \
  inline void name(D& d, u64 from) {                         \
    machine->yield(#name);                                   \
    T x;                                                     \
    __builtin_memcpy(&x, (const void*)from, sizeof x);       \
    emu::store(d, x);                                        \
  }
EMU_LOADS(ld_acquire_gpu_u32, u32) EMU_LOADS(ld_acquire_gpu_b32, u32) EMU_LOADS(ld_acquire_gpu_global_u32, u32)
EMU_LOADS(ld_acquire_gpu_global_s32, u32) EMU_LOADS(ld_acquire_gpu_global_b32, u32) EMU_LOADS(ld_acquire_sys_global_u32, u32)
EMU_LOADS(ld_relaxed_gpu_u32, u32) EMU_LOADS(ld_relaxed_gpu_global_u32, u32) EMU_LOADS(ld_volatile_global_u32, u32)
EMU_LOADS(ld_acquire_gpu_u64, u64) EMU_LOADS(ld_acquire_gpu_global_u64, u64) EMU_LOADS(ld_relaxed_gpu_global_f32, float)
#define EMU_STORES(name, T)                                  \
  template <class S>                                         \
  inline void name(u64 to, S a) {                            \
    T x;                                                     \
    emu::store(x, a);                                        \
    __builtin_memcpy((void*)to, &x, sizeof x);               \
  }
EMU_STORES(st_release_gpu_u32, u32) EMU_STORES(st_release_gpu_b32, u32) EMU_STORES(st_release_gpu_global_u32, u32)
EMU_STORES(st_relaxed_gpu_u32, u32) EMU_STORES(st_relaxed_gpu_global_u32, u32) EMU_STORES(st_release_gpu_global_s32, u32)
EMU_STORES(st_release_gpu_u64, u64)
#define EMU_REDUCES(name)                                    \
  inline void name(u64 to, u32 a) { atomicAdd((u32*)to, a); }
EMU_REDUCES(red_release_gpu_add_u32) EMU_REDUCES(red_release_gpu_global_add_u32) EMU_REDUCES(red_relaxed_gpu_global_add_u32)
EMU_REDUCES(red_release_gpu_global_add_s32) EMU_REDUCES(red_release_gpu_add_s32)
#define EMU_ATOMS(name)                                      \
  inline void name(u32& d, u64 to, u32 a) { d = atomicAdd((u32*)to, a); }
EMU_ATOMS(atom_add_release_gpu_u32) EMU_ATOMS(atom_add_acq_rel_gpu_u32) EMU_ATOMS(atom_add_acq_rel_gpu_global_u32)
EMU_ATOMS(atom_add_release_gpu_global_u32) EMU_ATOMS(atom_acq_rel_gpu_global_add_u32) EMU_ATOMS(atom_release_gpu_global_add_u32)
EMU_ATOMS(atom_acq_rel_gpu_add_u32) EMU_ATOMS(atom_release_gpu_add_u32)

template <class T>
inline T shared_load(u32 address, const char* what, int i = 0) {
  T x;
  __builtin_memcpy(&x, machine->shared_pointer(address + i * sizeof(T), sizeof(T), what), sizeof x);
  return x;
}
template <class T>
inline void shared_store(u32 address, T x, const char* what, int i = 0) {
  __builtin_memcpy(machine->shared_pointer(address + i * sizeof(T), sizeof(T), what), &x, sizeof x);
}
#define EMU_SHARED(space)                                                                                             \
  inline void ld_##space##_f32(float& d, u32 a) { d = shared_load<float>(a, "ld." #space); }                          \
  inline void ld_##space##_u32(u32& d, u32 a) { d = shared_load<u32>(a, "ld." #space); }                              \
  inline void ld_##space##_b32(u32& d, u32 a) { d = shared_load<u32>(a, "ld." #space); }                              \
  inline void ld_##space##_v2_f32(float& d, float& e, u32 a) {                                                        \
    d = shared_load<float>(a, "ld." #space), e = shared_load<float>(a, "ld." #space, 1);                              \
  }                                                                                                                   \
  inline void ld_##space##_v4_f32(float& d, float& e, float& f, float& g, u32 a) {                                    \
    d = shared_load<float>(a, "ld." #space), e = shared_load<float>(a, "ld." #space, 1);                              \
    f = shared_load<float>(a, "ld." #space, 2), g = shared_load<float>(a, "ld." #space, 3);                           \
  }                                                                                                                   \
  inline void ld_##space##_v4_u32(u32& d, u32& e, u32& f, u32& g, u32 a) {                                            \
    d = shared_load<u32>(a, "ld." #space), e = shared_load<u32>(a, "ld." #space, 1);                                  \
    f = shared_load<u32>(a, "ld." #space, 2), g = shared_load<u32>(a, "ld." #space, 3);                               \
  }                                                                                                                   \
  inline void st_##space##_f32(u32 a, float x) { shared_store(a, x, "st." #space); }                                  \
  inline void st_##space##_u32(u32 a, u32 x) { shared_store(a, x, "st." #space); }                                    \
  inline void st_##space##_b32(u32 a, u32 x) { shared_store(a, x, "st." #space); }                                    \
  inline void st_##space##_u16(u32 a, u16 x) { shared_store(a, x, "st." #space); }                                    \
  inline void st_##space##_v2_f32(u32 a, float x, float y) {                                                          \
    shared_store(a, x, "st." #space), shared_store(a, y, "st." #space, 1);                                            \
  }                                                                                                                   \
  inline void st_##space##_v4_f32(u32 a, float x, float y, float z, float w) {                                        \
    shared_store(a, x, "st." #space), shared_store(a, y, "st." #space, 1);                                            \
    shared_store(a, z, "st." #space, 2), shared_store(a, w, "st." #space, 3);                                         \
  }                                                                                                                   \
  inline void st_##space##_v4_b32(u32 a, u32 x, u32 y, u32 z, u32 w) {                                                \
    shared_store(a, x, "st." #space), shared_store(a, y, "st." #space, 1);                                            \
    shared_store(a, z, "st." #space, 2), shared_store(a, w, "st." #space, 3);                                         \
  }
EMU_SHARED(shared) EMU_SHARED(shared_cta) EMU_SHARED(shared_cluster)

// --- wgmma: a warp makes its rows at once, though a GPU makes those of four later. Warp w of the four has of d rows 16 w + g and
// 16 w + g + 8, columns 8 n + 2p and 8 n + 2p + 1, and of a in registers what mma has.
inline void wgmma_fence_sync_aligned() {}
inline void wgmma_commit_group_sync_aligned() {}
inline void wgmma_wait_group_sync_aligned(u32) {}
struct WgmmaOperands {
  float* d[128];
  u32 a[4] = {};
  u64 tiles[2];
  int numbers[5];
  int sums = 0, registers = 0, descriptors = 0, count = 0;
  void take(float& x) { d[sums++] = &x; }
  void take(u32 x) { a[registers++] = x; }
  void take(u64 x) { tiles[descriptors++] = x; }
  void take(int x) { numbers[count++] = x; }
};
// Eight elements of a tile that lie together, whose rows of 128 bytes are swizzled: along its own rows, or along rows of terms, 64
// of its own a block. Or rows of 64 bytes, along its own alone. A tile names the lowest 18 bits of its place, and all tiles are in dynamic shared memory, which begins at `base`.
struct alignas(16) WgmmaEight {
  u16 of[8];
};
inline WgmmaEight wgmma_eight(u32 base, u64 tile, bool by_terms, int own, int term) {
  const bool halves = tile >> 62 == 2;
  if (tile >> 62 != 1 && !(halves && !by_terms))
    machine->fail("wgmma of a tile that is swizzled otherwise than by 128 bytes, or by 64 along its rows, which is not emulated");
  const u32 start = (u32)(tile & 0x3fff) << 4, leading = (u32)(tile >> 16 & 0x3fff) << 4, stride = (u32)(tile >> 32 & 0x3fff) << 4;
  u32 at = by_terms ? start + own / 64 * leading + term / 8 * stride + term % 8 * 128 + own % 64 * 2
                    : start + own / 8 * stride + own % 8 * (halves ? 64 : 128) + term * 2;
  at ^= (at >> 7 & (halves ? 3 : 7)) << 4;
  return shared_load<WgmmaEight>(base + ((at - base) & 0x3ffff), "wgmma");
}
// Eight columns at once, as the host's processor has them: each sum is made in its order, so the bits are those of one by one.
typedef float WgmmaSums __attribute__((vector_size(32)));
template <int columns, float (*value)(u16)>
inline void wgmma(WgmmaOperands& mine) {
  const bool of_registers = mine.registers == 4;
  if (mine.sums != columns / 2 || mine.descriptors != (of_registers ? 1 : 2) || mine.count != (of_registers ? 4 : 5))
    machine->fail("wgmma with operands that are not emulated");
  if (mine.numbers[1] != 1 || mine.numbers[2] != 1) machine->fail("wgmma with a sign is not emulated");
  machine->warp(~0u, "wgmma", &mine, [](void** lanes, unsigned) {
    const WgmmaOperands& o = *(WgmmaOperands*)lanes[0];
    const u32 base = machine->shared_address(machine->shared_dynamic(16)), first = emu::self->warp % 4 * 16;
    static float a[16][16];
    static WgmmaSums right[16][columns / 8], sums[16][columns / 8];
    float (*const b)[columns] = (float (*)[columns])right;
    float (*const d)[columns] = (float (*)[columns])sums;
    const bool a_by_terms = o.numbers[3], b_by_terms = o.numbers[o.count - 1];
    for (int n = 0; n < columns; n += b_by_terms ? 8 : 1)
      for (int k = 0; k < 16; k += b_by_terms ? 1 : 8) {
        const WgmmaEight e = wgmma_eight(base, o.tiles[o.descriptors - 1], b_by_terms, n, k);
        for (int i = 0; i < 8; i++) (b_by_terms ? b[k][n + i] : b[k + i][n]) = value(e.of[i]);
      }
    for (int m = 0; m < 16 && !o.registers; m += a_by_terms ? 8 : 1)
      for (int k = 0; k < 16; k += a_by_terms ? 1 : 8) {
        const WgmmaEight e = wgmma_eight(base, o.tiles[0], a_by_terms, first + m, k);
        for (int i = 0; i < 8; i++) (a_by_terms ? a[m + i][k] : a[m][k + i]) = value(e.of[i]);
      }
    for (int lane = 0; lane < 32 && o.registers; lane++)
      for (int e = 0; e < 8; e++)
        a[lane / 4 + e / 2 % 2 * 8][lane % 4 * 2 + e / 4 * 8 + e % 2] =
            value((u16)(((WgmmaOperands*)lanes[lane])->a[e / 2] >> e % 2 * 16));
    for (int lane = 0; lane < 32; lane++)
      for (int e = 0; e < columns / 2; e++)
        d[lane / 4 + e / 2 % 2 * 8][e / 4 * 8 + lane % 4 * 2 + e % 2] = o.numbers[0] ? *((WgmmaOperands*)lanes[lane])->d[e] : 0;
    for (int m = 0; m < 16; m++)
      for (int n = 0; n < columns / 8; n++) {
        WgmmaSums sum = sums[m][n];
        for (int k = 0; k < 16; k++) sum += a[m][k] * right[k][n];
        sums[m][n] = sum;
      }
    for (int lane = 0; lane < 32; lane++)
      for (int e = 0; e < columns / 2; e++)
        *((WgmmaOperands*)lanes[lane])->d[e] = d[lane / 4 + e / 2 % 2 * 8][e / 4 * 8 + lane % 4 * 2 + e % 2];
  });
}
#define EMU_WGMMA(columns, type, value)                                                             \
  template <class... X>                                                                             \
  inline void wgmma_mma_async_sync_aligned_m64n##columns##k16_f32_##type##_##type(X&&... x) {       \
    WgmmaOperands o;                                                                                \
    (o.take(x), ...);                                                                               \
    wgmma<columns, value>(o);                                                                       \
  }
EMU_WGMMA(8, bf16, of_bf16) EMU_WGMMA(8, f16, of_half) EMU_WGMMA(32, bf16, of_bf16) EMU_WGMMA(32, f16, of_half) EMU_WGMMA(64, bf16, of_bf16) EMU_WGMMA(64, f16, of_half)
EMU_WGMMA(128, bf16, of_bf16) EMU_WGMMA(256, bf16, of_bf16) EMU_WGMMA(128, f16, of_half) EMU_WGMMA(256, f16, of_half)

// --- fences order what is in order here already
inline void fence_mbarrier_init_release_cluster() {}
inline void fence_proxy_async() {}
inline void fence_proxy_async_shared_cta() {}
inline void fence_proxy_async_shared_cluster() {}
inline void fence_proxy_async_global() {}
inline void fence_acq_rel_gpu() {}
inline void fence_acq_rel_cluster() {}
inline void fence_acq_rel_cta() {}
inline void fence_sc_cluster() {}
inline void membar_gl() {}
inline void griddepcontrol_wait() {}
inline void griddepcontrol_launch_dependents() {}
inline void createpolicy_fractional_L2_evict_last_b64(u64& d, float) { d = 0; }
inline void createpolicy_fractional_L2_evict_first_b64(u64& d, float) { d = 0; }
inline void nanosleep_u32(u32) { machine->yield("nanosleep"); }
inline void trap() { machine->fail("the kernel executed a trap"); }
inline void setmaxnreg_inc_sync_aligned_u32(u32) {}
inline void setmaxnreg_dec_sync_aligned_u32(u32) {}

// --- barriers of a block, and of warps
inline void bar_sync(u32 id) { machine->block_barrier(id, 0, 0, 1); }
inline void bar_sync(u32 id, u32 threads) { machine->block_barrier(id, threads, 0, 1); }
inline void barrier_sync(u32 id, u32 threads) { machine->block_barrier(id, threads, 0, 1); }
inline void barrier_cta_sync_aligned(u32 id, u32 threads) { machine->block_barrier(id, threads, 0, 1); }
inline void bar_arrive(u32 id, u32 threads) { machine->block_barrier(id, threads, 0, 0); }
inline void bar_warp_sync(u32 mask) { __syncwarp(mask); }
template <class D>
inline void elect_sync(D& lane, bool& p, u32 mask) {
  u32 first = (u32)__builtin_ctz(__ballot_sync(mask, 1));
  emu::store(lane, first);
  p = emu::self->lane == first;
}
inline void elect_sync(const Sink&, bool& p, u32 mask) {
  p = emu::self->lane == (u32)__builtin_ctz(__ballot_sync(mask, 1));
}
inline void redux_sync_max_s32(u32& d, u32 a, u32 mask) { d = (u32)__reduce_max_sync(mask, (int)a); }
inline void redux_sync_max_u32(u32& d, u32 a, u32 mask) { d = __reduce_max_sync(mask, a); }

// --- clusters
inline void barrier_cluster_arrive_release_aligned() { machine->cluster_arrive(); }
inline void barrier_cluster_arrive_relaxed_aligned() { machine->cluster_arrive(); }
inline void barrier_cluster_arrive_aligned() { machine->cluster_arrive(); }
inline void barrier_cluster_arrive() { machine->cluster_arrive(); }
inline void barrier_cluster_arrive_release() { machine->cluster_arrive(); }
inline void barrier_cluster_wait_acquire_aligned() { machine->cluster_wait(); }
inline void barrier_cluster_wait_aligned() { machine->cluster_wait(); }
inline void barrier_cluster_wait() { machine->cluster_wait(); }
inline void barrier_cluster_wait_acquire() { machine->cluster_wait(); }
// The same place of another block's shared memory.
inline void mapa_shared_cluster_u32(u32& d, u32 address, u32 rank) {
  if (rank >= emu::self->cluster_blocks) machine->fail("mapa asks for a block that the cluster does not have");
  d = (address & 0xffffffu) | (rank + 1) << 24;
}

// --- barriers in shared memory
inline void mbarrier_init_shared_cta_b64(u32 at, u32 arrivals) { machine->barrier_init(at, arrivals); }
inline void mbarrier_init_shared_b64(u32 at, u32 arrivals) { machine->barrier_init(at, arrivals); }
inline void mbarrier_inval_shared_cta_b64(u32) {}
#define EMU_ARRIVE(space)                                                                                          \
  template <class D>                                                                                               \
  inline void mbarrier_arrive_##space##_b64(D& d, u32 at) { d = machine->barrier_state(at), machine->barrier_arrive(at, 1, 0); } \
  template <class D>                                                                                               \
  inline void mbarrier_arrive_expect_tx_##space##_b64(D& d, u32 at, u32 bytes) {                                   \
    d = machine->barrier_state(at), machine->barrier_arrive(at, 1, bytes);                                         \
  }                                                                                                                \
  inline void mbarrier_expect_tx_relaxed_##space##_b64(u32 at, u32 bytes) { machine->barrier_arrive(at, 0, bytes); } \
  template <class D>                                                                                               \
  inline void mbarrier_arrive_release_##space##_b64(D& d, u32 at) { mbarrier_arrive_##space##_b64(d, at); }
EMU_ARRIVE(shared) EMU_ARRIVE(shared_cta) EMU_ARRIVE(shared_cluster) EMU_ARRIVE(cta_shared_cta) EMU_ARRIVE(cta_shared_cluster)
EMU_ARRIVE(cluster_shared_cluster) EMU_ARRIVE(cluster_shared_cta)
#define EMU_WAIT(space)                                                                                            \
  inline void mbarrier_try_wait_parity_##space##_b64(bool& p, u32 at, u32 parity) { p = machine->barrier_test(at, parity, 1); } \
  inline void mbarrier_try_wait_parity_##space##_b64(bool& p, u32 at, u32 parity, u32) { p = machine->barrier_test(at, parity, 1); } \
  inline void mbarrier_test_wait_parity_##space##_b64(bool& p, u32 at, u32 parity) { p = machine->barrier_test(at, parity, 0); }
EMU_WAIT(shared) EMU_WAIT(shared_cta) EMU_WAIT(acquire_cta_shared_cta) EMU_WAIT(acquire_cluster_shared_cta)

// --- copies that end later
// From global memory; the barrier counts their bytes.
inline void bulk(u32 to, u64 from, u32 bytes, u32 barrier) {
  machine->copy_to_shared(to, (const void*)from, bytes, barrier);
}
inline void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(u32 to, u64 from, u32 bytes, u32 barrier) {
  bulk(to, from, bytes, barrier);
}
inline void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes_L2_cache_hint(u32 to, u64 from, u32 bytes,
                                                                                         u32 barrier, u64) {
  bulk(to, from, bytes, barrier);
}
inline void cp_async_bulk_shared_cta_global_mbarrier_complete_tx_bytes(u32 to, u64 from, u32 bytes, u32 barrier) {
  bulk(to, from, bytes, barrier);
}
// A box of a tensor, by a map as the driver made it: 64 columns and some rows, pieces of 16 bytes swizzled.
inline void cp_async_bulk_tensor_4d_shared_cluster_global_tile_mbarrier_complete_tx_bytes(u32 to, u64 map, int x, int y, int z, int w,
                                                                                         u32 barrier) {
  const u64* m = (const u64*)map;
  if (m[12] != 0x7465736e6f72) machine->fail("a tensor map that the driver did not make");
  if (to % 1024) machine->fail("a box that does not begin at a multiple of 1024 bytes of shared memory");
  alignas(16) static const char zeros[16] = {};
  const long long at[4] = {x, y, z, w}, rows = (long long)m[9];
  for (long long r = 0; r < rows; r++)
    for (int p = 0; p < 8; p++) {
      const long long place[4] = {at[0] + 8 * p, at[1] + r, at[2], at[3]};
      bool inside = true;
      for (int i = 0; i < 4; i++) inside = inside && place[i] >= 0 && place[i] < (long long)m[1 + i];
      if (inside && place[0] + 8 > (long long)m[1]) machine->fail("a tensor of which a piece of 16 bytes is half outside is not emulated");
      const char* from = (const char*)m[0] + 2 * place[0];
      for (int i = 1; i < 4; i++) from += place[i] * (long long)m[4 + i];
      bulk(to + (u32)r * 128 + (u32)((p ^ r % 8) * 16), inside ? (u64)from : (u64)zeros, 16, barrier);
    }
}
// The same to each block of the cluster that the mask has, at the same place and barrier.
template <class F>
inline void each_block(u32 mask, F f) {
  for (u32 rank = 0; rank < 16; rank++) {
    if (!(mask >> rank & 1)) continue;
    if (rank >= emu::self->cluster_blocks) machine->fail("a copy to a block that the cluster does not have");
    f((rank + 1) << 24);
  }
}
inline void cp_async_bulk_prefetch_tensor_4d_L2_global_tile(u64 map, int, int, int, int) {
  if (((const u64*)map)[12] != 0x7465736e6f72) machine->fail("a tensor map that the driver did not make");
}
inline void cp_async_bulk_prefetch_L2_global(u64 from, u32 bytes) {
  if (from % 16 || bytes % 16) machine->fail("a prefetch that is not of whole pieces of 16 bytes");
}
inline void cp_async_bulk_tensor_4d_shared_cluster_global_tile_mbarrier_complete_tx_bytes_multicast_cluster(
    u32 to, u64 map, int x, int y, int z, int w, u32 barrier, u32 mask) {
  each_block(mask, [&](u32 block) {
    cp_async_bulk_tensor_4d_shared_cluster_global_tile_mbarrier_complete_tx_bytes((to & 0xffffffu) | block, map, x, y, z, w,
                                                                                  (barrier & 0xffffffu) | block);
  });
}
inline void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(u32 to, u64 from, u32 bytes,
                                                                                             u32 barrier, u32 mask) {
  each_block(mask, [&](u32 block) { bulk((to & 0xffffffu) | block, from, bytes, (barrier & 0xffffffu) | block); });
}
inline void cp_async_bulk_global_shared_cta_bulk_group(u64 to, u32 from, u32 bytes) {
  machine->copy_to_global((void*)to, from, bytes);
}
inline void cp_async_bulk_commit_group() { machine->bulk_commit(); }
inline void cp_async_bulk_wait_group(u32 groups) { machine->bulk_wait(groups); }
inline void cp_async_bulk_wait_group_read(u32 groups) { machine->bulk_wait(groups); }
// To shared memory of another block; the value is taken now and arrives later.
template <int n>
inline void store_async(u32 to, const float (&x)[n], u32 barrier) {
  machine->store_async(to, x, sizeof x, barrier);
}
#define EMU_STORE_ASYNC(prefix)                                                                                   \
  inline void prefix##_f32(u32 to, float a, u32 b) { float x[] = {a}; store_async(to, x, b); }                    \
  inline void prefix##_b32(u32 to, u32 a, u32 b) { float x[] = {bits<float>(a)}; store_async(to, x, b); }         \
  inline void prefix##_v2_f32(u32 to, float a, float c, u32 b) { float x[] = {a, c}; store_async(to, x, b); }     \
  inline void prefix##_v4_f32(u32 to, float a, float c, float d, float e, u32 b) {                                \
    float x[] = {a, c, d, e};                                                                                     \
    store_async(to, x, b);                                                                                        \
  }
EMU_STORE_ASYNC(st_async_weak_shared_cluster_mbarrier_complete_tx_bytes)
EMU_STORE_ASYNC(st_async_shared_cluster_mbarrier_complete_tx_bytes)
// A thread's own copies.
template <class N>
inline void cp_async_ca_shared_global(u32 to, u64 from, N n) { machine->copy_ahead(to, (const void*)from, n, n); }
template <class N>
inline void cp_async_ca_shared_global(u32 to, u64 from, N n, u32 k) { machine->copy_ahead(to, (const void*)from, n, k); }
template <class N>
inline void cp_async_cg_shared_global(u32 to, u64 from, N n) { machine->copy_ahead(to, (const void*)from, n, n); }
template <class N>
inline void cp_async_cg_shared_global(u32 to, u64 from, N n, u32 k) { machine->copy_ahead(to, (const void*)from, n, k); }
template <class N>
inline void cp_async_cg_shared_global_L2_256B(u32 to, u64 from, N n, u32 k) { machine->copy_ahead(to, (const void*)from, n, k); }
inline void cp_async_commit_group() { machine->ahead_commit(); }
inline void cp_async_wait_group(u32 n) { machine->ahead_wait(n); }
inline void cp_async_wait_all() { machine->ahead_all(); }

}  // namespace emu_ptx

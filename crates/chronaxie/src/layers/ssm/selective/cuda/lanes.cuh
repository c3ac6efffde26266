// What lanes.cu and lanes_backward.cu share: the functions of a step, and tiles of weights.
#pragma once

#include "runs.cuh"
#include "tensors.cuh"

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log(1 + t) for t within 0 and 1: t times a polynomial, to 2e-7 of the value. No cancellation near 0, as 1 + t would have.
__device__ __forceinline__ float log_one_plus(float t) {
  float r = fmaf(0.005232676398009062f, t, -0.029505180194973946f);
  r = fmaf(r, t, 0.07822588086128235f);
  r = fmaf(r, t, -0.13663242757320404f);
  r = fmaf(r, t, 0.19106006622314453f);
  r = fmaf(r, t, -0.24842983484268188f);
  r = fmaf(r, t, 0.3331909775733948f);
  r = fmaf(r, t, -0.4999949336051941f);
  r = fmaf(r, t, 0.9999999403953552f);
  return r * t;
}
__device__ __forceinline__ float softplus_of(float x) {
  return fmaxf(x, 0.0f) + log_one_plus(ex2(-fabsf(x) * kLog2e));
}
__device__ __forceinline__ float sigmoid_of(float x) { return rcp(1.0f + ex2(-x * kLog2e)); }

__device__ __forceinline__ unsigned bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ unsigned bits_of(unsigned short x) { return x; }

// A run as it is stored: made wide where it is used, so that nobody waits for it before.
template <int kRun>
struct Raw {
  unsigned words[kRun * sizeof(Stored) / 4];
};
template <int kRun>
__device__ __forceinline__ Raw<kRun> fetch_run(const Stored* row, i64 t, i64 steps, bool aligned) {
  constexpr int kWords = kRun * sizeof(Stored) / 4;
  Raw<kRun> raw;
  if (aligned && t + kRun <= steps) {
    constexpr int kWide = kWords < 4 ? kWords : 4;
    struct alignas(4 * kWide) Wide {
      unsigned words[kWide];
    };
#pragma unroll
    for (int i = 0; i < kWords; i += kWide) {
      const Wide v = *reinterpret_cast<const Wide*>(row + t + i * (4 / sizeof(Stored)));
#pragma unroll
      for (int k = 0; k < kWide; ++k) raw.words[i + k] = v.words[k];
    }
  } else {
    constexpr int kOfWord = 4 / sizeof(Stored);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      raw.words[i] = 0;
#pragma unroll
      for (int k = 0; k < kOfWord; ++k) {
        const i64 at = t + i * kOfWord + k;
        if (at < steps) raw.words[i] |= bits_of(row[at]) << 16 * k;
      }
    }
  }
  return raw;
}
// The same where the row has `left` steps more; `whole`, alike for all lanes, says that these hold the run.
template <int kRun>
__device__ __forceinline__ Raw<kRun> fetch_part(const Stored* at, int left, bool whole) {
  constexpr int kWords = kRun * sizeof(Stored) / 4, kWide = kWords < 4 ? kWords : 4, kOfWord = 4 / sizeof(Stored);
  struct alignas(4 * kWide) Wide {
    unsigned words[kWide];
  };
  Raw<kRun> raw;
  if (whole) {
#pragma unroll
    for (int i = 0; i < kWords; i += kWide) {
      const Wide v = *reinterpret_cast<const Wide*>(at + i * kOfWord);
#pragma unroll
      for (int k = 0; k < kWide; ++k) raw.words[i + k] = v.words[k];
    }
    return raw;
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    raw.words[i] = 0;
#pragma unroll
    for (int k = 0; k < kOfWord; ++k) {
      if (i * kOfWord + k < left) raw.words[i] |= bits_of(at[i * kOfWord + k]) << 16 * k;
    }
  }
  return raw;
}
template <int kRun>
__device__ __forceinline__ void widen_run(float (&to)[kRun], const Raw<kRun>& raw) {
  constexpr int kWords = kRun * sizeof(Stored) / 4;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    unsigned word = raw.words[i];
    // Opaque: compilers like to take words apart where they load them, and wait there.
    asm volatile("" : "+r"(word));
    if (kStored == 0) {
      to[i % kRun] = __uint_as_float(word);
    } else {
      to[2 * i % kRun] = widen(static_cast<unsigned short>(word));
      const unsigned short high = static_cast<unsigned short>(word >> 16);
      to[(2 * i + 1) % kRun] = kStored == 1 ? __uint_as_float(word & 0xffff0000u) : widen(high);
    }
  }
}

// Where the row has `left` steps more, as fetch_part.
template <int kRun>
__device__ __forceinline__ void store_part(Stored* at, int left, bool whole, const float (&from)[kRun]) {
  constexpr int kWords = kRun * sizeof(Stored) / 4, kWide = kWords < 4 ? kWords : 4, kOfWord = 4 / sizeof(Stored);
  struct alignas(4 * kWide) Wide {
    unsigned words[kWide];
  };
  if (whole) {
#pragma unroll
    for (int i = 0; i < kWords; i += kWide) {
      Wide v;
#pragma unroll
      for (int k = 0; k < kWide; ++k) {
        const int at_step = (i + k) * kOfWord;
        v.words[k] = kOfWord == 1 ? __float_as_uint(from[at_step]) : narrow_pair(from[at_step], from[(at_step + 1) % kRun]);
      }
      *reinterpret_cast<Wide*>(at + i * kOfWord) = v;
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < kRun; ++k) {
    if (k < left) narrow(at[k], from[k]);
  }
}

// Fills tiles of B and C, [kStates][kRuns][kRun] with kPitch words from run to run, from `t` on: every thread of the block
// takes part, with the same four steps of some states. What lies outside is 0.
template <int kRuns, int kRun, int kPitch>
__device__ __forceinline__ void fill_weights(float* to_b, float* to_c, int states, int known, const Array& b, const Array& c,
                                             i64 row, i64 group, i64 t, i64 steps, bool aligned) {
  constexpr int kQuads = kRuns * kRun / 4, kAtOnce = kThreads / kQuads;
  static_assert(kThreads % kQuads == 0, "a thread keeps to its steps");
  const int q = threadIdx.x % kQuads * 4;
  const i64 left = steps - t - q, of_b = kAtOnce * b.s[2], of_c = kAtOnce * c.s[2];
  int n = threadIdx.x / kQuads;
  const Stored* from_b = reinterpret_cast<const Stored*>(b.base) + row * b.s[0] + group * b.s[1] + n * b.s[2] + t + q;
  const Stored* from_c = reinterpret_cast<const Stored*>(c.base) + row * c.s[0] + group * c.s[1] + n * c.s[2] + t + q;
  int to = (n * kRuns + q / kRun) * kPitch + q % kRun;
  if (aligned && left >= 4 && states == known) {
#pragma unroll 4
    for (; n < states; n += kAtOnce, from_b += of_b, from_c += of_c, to += kAtOnce * kRuns * kPitch) {
      float x[4], y[4];
      load_run(x, from_b, 0, 4, true);
      load_run(y, from_c, 0, 4, true);
      store_words(to_b + to, x);
      store_words(to_c + to, y);
    }
  } else {
    for (; n < states; n += kAtOnce, from_b += of_b, from_c += of_c, to += kAtOnce * kRuns * kPitch) {
      float x[4], y[4];
      load_run(x, from_b, 0, n < known ? left : 0, false);
      load_run(y, from_c, 0, n < known ? left : 0, false);
      store_words(to_b + to, x);
      store_words(to_c + to, y);
    }
  }
}

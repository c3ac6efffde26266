// What the mLSTM kernels on tensor cores share: tiles of tokens and states, a ring of them, and the scan over chunks.
#pragma once
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "mlstm.cuh"
#include "mma.cuh"

constexpr bool kBf16 = kDtype == 2;
constexpr int kStep = 32;      // terms of a product that one place of the ring holds
constexpr int kHeadMost = 512;
constexpr int kLongest = 128;  // tokens of a chunk at most; kEdge of them where pairs are made
constexpr int kWarpsM = 2, kWarpsN = kEdge / 32;
constexpr int kBlock = 32 * kWarpsM * kWarpsN;
constexpr int kMT = kEdge / kWarpsM / 16;            // tiles of 16 rows of a warp
constexpr int kNT = kColumns / kWarpsN / 8;          // tiles of 8 columns of a warp
constexpr int kPairNT = kEdge / kWarpsN / 8;         // likewise of a square of kEdge
constexpr int kDeepPitch = pitch_of(kStep);          // of a tile by its own rows
constexpr int kPairPitch = pitch_of(kEdge);          // of a tile of pairs, and of kEdge columns by rows of terms
constexpr int kWidePitch = pitch_of(kColumns);       // of a tile of kColumns by rows of terms
#if defined(__CUDA_ARCH__)
constexpr int kArch = __CUDA_ARCH__;
#else
constexpr int kArch = 900;
#endif
// Blocks that make outputs on a multiprocessor: two with squares of 128 fit its shared memory on sm_90 and sm_100 only.
constexpr int kTogether = kColumns > kEdge || (kEdge == 128 && (kArch < 900 || kArch >= 1200)) ? 1 : 256 / kEdge;
// Blocks that scan states: of 128 registers for a square of 128 the compiler spills.
constexpr int kScans = kEdge == 128 ? 1 : 256 / kEdge;
// A weight as f16 has it: infinity times zero would be no number, and what is none stays so.
__device__ __forceinline__ float within_f16(float w) { return w > 65504.f ? 65504.f : w; }
// Where the tile of b begins in a place of the ring, and the bytes of a place.
constexpr int kPlaceB = kEdge * kDeepPitch;
constexpr int kPlace = kPlaceB + (kColumns * kDeepPitch > kStep * kWidePitch ? kColumns * kDeepPitch : kStep * kWidePitch);
constexpr int kPairs = kEdge * kPairPitch;
static_assert(kEdge == 64 || kEdge == 128, "warps of 32 x 32 or 64 x 32");
static_assert(kPairNT == 4, "rows are stored in pieces of 32 columns");

// The bits of Call.plain.
enum { kQ = 1, kK = 2, kV = 4, kH = 8, kGradH = 16, kGradQ = 32, kGradK = 64, kGradV = 128 };

// A tile in global memory: `rows` and `columns` of it are there, the others are zeros. Strides are in bytes.
struct Source {
  const char* data;
  i64 stride, step;
  i64 rows, columns;
  bool plain;
};

__device__ __forceinline__ Source tokens_at(const Call& x, const Tokens& y, int bit, const Chain& chain, i64 t, i64 d,
                                            i64 rows, i64 width) {
  return {y.data + 2 * place(y, chain, t, d), 2 * y.t, 2 * y.d, rows, width - d, (x.plain & bit) != 0};
}
// Of a state [K, V] of 16-bit numbers.
__device__ __forceinline__ Source state_at(const Call& x, const char* c, i64 k, i64 v) {
  return {c + 2 * (k * x.dv + v), 2 * x.dv, 2, x.dk - k, x.dv - v, true};
}

template <int kRows, int kWidth>
__device__ __forceinline__ void fetch(char* to, const Source& s) {
  constexpr int kPieces = kWidth / 8, kPitch = pitch_of(kWidth);
  static_assert(kRows * kPieces % kBlock == 0, "every thread copies as many pieces");
  if (s.plain) {
    const unsigned base = shared_at(to);
#pragma unroll
    for (int i = 0; i < kRows * kPieces / kBlock; ++i) {
      const int at = i * kBlock + threadIdx.x, r = at / kPieces, c = at % kPieces * 8;
      const bool there = r < s.rows && c < s.columns;
      copy_ahead(base + r * kPitch + c * 2, there ? s.data + r * s.stride + c * 2 : s.data, there);
    }
    return;
  }
#pragma unroll 1
  for (int at = threadIdx.x; at < kRows * kWidth; at += kBlock) {
    const int r = at / kWidth, c = at % kWidth;
    const bool there = r < s.rows && c < s.columns;
    *reinterpret_cast<unsigned short*>(to + r * kPitch + c * 2) =
        there ? *reinterpret_cast<const unsigned short*>(s.data + r * s.stride + c * s.step) : (unsigned short)0;
  }
}

// Places of kBytes that are filled stages - 1 steps before they are read: issue(place) fills the next one, or none where
// there are no more.
template <int kBytes, typename Issue>
struct Ring {
  char* memory;
  int stages, out;
  Issue issue;

  __device__ __forceinline__ Ring(char* memory, int stages, Issue issue)
      : memory(memory), stages(stages), out(0), issue(issue) {
    for (int i = 0; i + 1 < stages; ++i) push(i);
  }
  __device__ __forceinline__ void push(int place) {
    issue(memory + place * kBytes);
    copy_commit();
  }
  // The next place. The whole block takes part, which ends its use of the one before, and that is filled again.
  __device__ __forceinline__ char* pull() {
    copy_wait(stages - 2);
    __syncthreads();
    push(out == 0 ? stages - 1 : out - 1);
    char* at = memory + out * kBytes;
    out = out + 1 == stages ? 0 : out + 1;
    return at;
  }
};

// f(row, column, x, y) for each pair of neighbours of a row that this thread holds.
template <int NT, typename F>
__device__ __forceinline__ void each_pair(float (&acc)[kMT][NT][4], F f) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp / kWarpsN * (kEdge / kWarpsM) + lane / 4, column = warp % kWarpsN * (8 * NT) + lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < kMT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < NT; ++n) f(row + 16 * m + 8 * half, column + 8 * n, acc[m][n][2 * half], acc[m][n][2 * half + 1]);
}
// The same with the row's number among the thread's.
template <int NT, typename F>
__device__ __forceinline__ void each_pair_of_row(float (&acc)[kMT][NT][4], F f) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp / kWarpsN * (kEdge / kWarpsM) + lane / 4, column = warp % kWarpsN * (8 * NT) + lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < kMT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < NT; ++n)
        f(2 * m + half, row + 16 * m + 8 * half, column + 8 * n, acc[m][n][2 * half], acc[m][n][2 * half + 1]);
}
// f(row, column, piece) for pieces of eight columns of a row, rounded.
template <int NT, typename F>
__device__ __forceinline__ void each_piece(float (&acc)[kMT][NT][4], F f) {
  static_assert(NT % 4 == 0, "rows are stored in pieces of 32 columns");
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int row = warp / kWarpsN * (kEdge / kWarpsM) + lane / 4, column = warp % kWarpsN * (8 * NT) + lane % 4 * 8;
  // Addresses are made here each time, and not kept in registers through the loop around this.
  asm volatile("" : "+r"(row), "+r"(column));
#pragma unroll
  for (int m = 0; m < kMT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < NT; n += 4) {
        unsigned y[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) y[e] = pack<kBf16>(acc[m][n + e][2 * half], acc[m][n + e][2 * half + 1]);
        f(row + 16 * m + 8 * half, column + 8 * n, gather_columns(y[0], y[1], y[2], y[3]));
      }
}
template <int NT>
__device__ __forceinline__ void clear(float (&acc)[kMT][NT][4]) {
#pragma unroll
  for (int m = 0; m < kMT; ++m)
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[m][n][e] = 0.f;
}

// Eight elements of a row; two of them.
__device__ __forceinline__ void store_piece(const Tokens& y, bool plain, const Chain& chain, i64 t, i64 d, uint4 piece) {
  const i64 at = place(y, chain, t, d);
  if (plain) {
    *reinterpret_cast<uint4*>(y.data + 2 * at) = piece;
    return;
  }
  const unsigned words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int e = 0; e < 8; ++e)
    reinterpret_cast<unsigned short*>(y.data)[at + e * y.d] = (unsigned short)(words[e / 2] >> e % 2 * 16);
}
__device__ __forceinline__ float2 load_pair(const Tokens& y, bool plain, const Chain& chain, i64 t, i64 d) {
  const i64 at = place(y, chain, t, d);
  if (plain) return unpack<kBf16>(*reinterpret_cast<const unsigned*>(y.data + 2 * at));
  return {load_as<kDtype>(y.data, at), load_as<kDtype>(y.data, at + y.d)};
}

// 2^x, 0 where that is subnormal.
__device__ __forceinline__ float power(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The gauge before a chunk; 0 where there is none. Gauges within it are sums + max(before, until).
__device__ __forceinline__ float before_of(const Call& x, const Chain& chain, i64 chunk) {
  return x.sigmoid ? 0.f : x.before[chain.nth * (x.chunks + 1) + chunk];
}

// What a token weighs in the scan, before exponentials are taken of it.
struct Raw {
  float a, b, c;
};

// How a block of the scan multiplies by mma.sync: tiles of kEdge columns, 32 tokens at a time.
struct ByMma {
  static constexpr int kWide = kEdge, kSteps = kStep, kPart = kStep * kPairPitch;
  template <typename Issue>
  using Queue = Ring<2 * kPart, Issue>;
  float acc[kMT][kPairNT][4];

  __device__ __forceinline__ void clear() { ::clear(acc); }
  template <typename F>
  __device__ __forceinline__ void pairs(F f) { each_pair(acc, f); }
  template <typename F>
  __device__ __forceinline__ void pieces(F f) { each_piece(acc, f); }
  __device__ __forceinline__ static void bring(char* to, const Source& k, const Source& v) {
    fetch<kStep, kEdge>(to, k);
    fetch<kStep, kEdge>(to + kPart, v);
  }
  // Where k of a token is in a place.
  __device__ __forceinline__ static int at(int t, int k) { return t * kPairPitch + 2 * k; }
  __device__ __forceinline__ void begin(char* place, const unsigned* weights) {
    const int warp = threadIdx.x / 32;
    multiply<kBf16, kStep, true, kPairPitch, true, kPairPitch, true>(
        acc, shared_at(place) + warp / kWarpsN * (kEdge / kWarpsM) * 2,
        shared_at(place) + kPart + warp % kWarpsN * (8 * kPairNT) * 2, weights);
  }
  __device__ __forceinline__ void end() {}
};

// The state of one chain through the chunks of a window, a tile [kEdge of K, Form::kWide of V] a block, in registers: that
// behind each chunk is written, rounded; or its gradient against time, that behind each chunk too. `Form` has the product.
//   mode 1: begin where an earlier scan kept the window's start       mode 2: write no state
template <bool kBack, typename Form>
__device__ __forceinline__ void scan(const Call& x, i64 window, int mode, int stages, char* memory) {
  __shared__ unsigned weigh[2][kLongest / 2];
  __shared__ float weigh_n[2][kLongest], left[2], parts[4][kEdge];
  constexpr int kSteps = Form::kSteps;
  const Chain chain = chain_of(x, blockIdx.y);
  const i64 first = window * x.window, last = min(chain.chunks, first + x.window), count = last - first;
  if (chain.chunks < first || (chain.chunks == first && window > 0)) return;
  const i64 across = (x.dv + Form::kWide - 1) / Form::kWide, size = x.dk * x.dv;
  const i64 k0 = blockIdx.x / across * kEdge, v0 = blockIdx.x % across * Form::kWide;
  const int thread = threadIdx.x;
  int group = thread / (kEdge / 2), pair = thread % (kEdge / 2);
  const i64 own = k0 + thread;
  // n belongs to the blocks of the first columns of c; four groups of threads have every fourth token each.
  const bool has_n = v0 == 0 && x.normalize, owns = thread < kEdge && own < x.dk;
  const bool ends = last == chain.chunks;
  const float *from, *from_n;
  i64 at = chain.nth;
  if (kBack) {
    from = ends ? x.grad_c_last : x.carry_c;
    from_n = ends ? x.grad_n_last : x.carry_n;
  } else {
    from = window == 0 ? x.c_initial : mode & 1 ? x.start_c : x.ahead_c;
    from_n = window == 0 ? x.n_initial : mode & 1 ? x.start_n : x.ahead_n;
    if (window > 0 && mode & 1) at = chain.nth * x.windows + window;
  }
  Form form;
  form.clear();
  if (from)
    form.pairs([&](int k, int v, float& y, float& z) {
      if (k0 + k >= x.dk || v0 + v >= x.dv) return;
      const float* c = from + at * size + (k0 + k) * x.dv + v0 + v;
      y = c[0];
      z = c[1];
    });
  float2 n = {0.f, 0.f};
  if (has_n && from_n && group == 0 && k0 + 2 * pair < x.dk) {
    n.x = from_n[at * x.dk + k0 + 2 * pair];
    n.y = from_n[at * x.dk + k0 + 2 * pair + 1];
  }
  // The groups' n together, in parts[0], and the first group goes on from it: a window may end behind any chunk.
  auto settle = [&]() {
    if (!has_n) return;
    parts[group][2 * pair] = n.x;
    parts[group][2 * pair + 1] = n.y;
    __syncthreads();
    if (thread < kEdge) parts[0][thread] += parts[1][thread] + parts[2][thread] + parts[3][thread];
    __syncthreads();
    n.x = group == 0 ? parts[0][2 * pair] : 0.f;
    n.y = group == 0 ? parts[0][2 * pair + 1] : 0.f;
  };
  auto write_n = [&](float* to_n, i64 to) {
    if (has_n && owns && to_n) to_n[to * x.dk + own] = parts[0][thread];
  };
  auto write = [&](float* c, i64 to) {
    char* data = reinterpret_cast<char*>(c) + 2 * to * size;
    form.pieces([&](int k, int v, uint4 piece) {
      if (k0 + k < x.dk && v0 + v < x.dv) *reinterpret_cast<uint4*>(data + 2 * ((k0 + k) * x.dv + v0 + v)) = piece;
    });
  };
  auto write_exactly = [&](float* c, float* to_n, i64 to) {
    if (c)
      form.pairs([&](int k, int v, float& y, float& z) {
        if (k0 + k >= x.dk || v0 + v >= x.dv) return;
        float* data = c + to * size + (k0 + k) * x.dv + v0 + v;
        data[0] = y;
        data[1] = z;
      });
    write_n(to_n, to);
  };
  settle();
  const i64 slot = chain.nth * (x.window + 1);
  if (!kBack && !(mode & 2)) {
    write(x.c, slot);
    write_n(x.n, slot);
  }
  if (!kBack && !(mode & 1)) write_exactly(x.start_c, x.start_n, chain.nth * x.windows + window);

  // From here on a chunk is its number in the window and a token its number there, so that they take few registers.
  const i64 begin = chain.from + first * x.length, flat = (chain.batch * x.heads + chain.head) * x.steps + begin;
  const int length = (int)x.length, chunks = (int)count, tokens = (int)min(count * length, chain.len - first * length);
  const float* befores = x.sigmoid ? nullptr : x.before + chain.nth * (x.chunks + 1) + first;
  auto load_raw = [&](int c) {
    Raw r = {};
    const bool on = thread < length && c * length + thread < tokens;
    const i64 at = flat + c * length + thread;
    r.a = !on ? (kBack ? 0.f : __int_as_float(0xff800000)) : kBack ? x.until[at] : x.column[at];
    if (kBack) {
      r.b = !on ? 0.f : x.inverse ? x.inverse[at] : 1.f;
      r.c = on && x.grad_l ? x.grad_l[at] : 0.f;
    }
    return r;
  };
  auto put = [&](const Raw& r, int c, int to) {
    if (thread >= kLongest) return;
    const float before = befores ? befores[c] : 0.f;
    const float top = max(before, x.until[flat + min((c + 1) * length, tokens) - 1]);
    const float past = (float)x.scale * expf(before - max(before, r.a));
    float w = kBack ? past * r.b : expf(r.a - top);
    weigh_n[to][thread] = kBack ? past * r.c : w;
    if (!kBf16) w = within_f16(w);
    reinterpret_cast<unsigned short*>(weigh[to])[thread] = (unsigned short)pack<kBf16>(w, w);
    if (thread == 0) left[to] = expf(before - top);
  };

  // Steps of tokens: those of a window lie side by side, since chunks are whole steps but for a chain's last one.
  const Tokens &of_k = kBack ? x.q : x.k, &of_v = kBack ? x.grad_h : x.v;
  const Source start_k = tokens_at(x, of_k, kBack ? kQ : kK, chain, begin, k0, tokens, x.dk);
  const Source start_v = tokens_at(x, of_v, kBack ? kGradH : kV, chain, begin, v0, tokens, x.dv);
  auto moved = [](const Source& s, int t) -> Source {
    return {s.data + t * s.stride, s.stride, s.step, s.rows - t, s.columns, s.plain};
  };
  // The first token of the step that is fetched next.
  int done = kBack ? (tokens + kSteps - 1) / kSteps * kSteps : -kSteps;
  auto issue = [&](char* to) {
    done += kBack ? -kSteps : kSteps;
    if (kBack ? done < 0 : done >= tokens) return;
    Form::bring(to, moved(start_k, done), moved(start_v, done));
  };
  if (chunks > 0) put(load_raw(kBack ? chunks - 1 : 0), kBack ? chunks - 1 : 0, 0);
  typename Form::template Queue<decltype(issue)> ring(memory, stages, issue);
  for (int i = 0; i < chunks; ++i) {
    const int now = i & 1, c = kBack ? chunks - 1 - i : i, next = kBack ? c - 1 : c + 1;
    Raw raw = {};
    if (i + 1 < chunks) raw = load_raw(next);
    if (kBack) {
      write(x.grad_c, chain.nth * x.window + c);
      write_n(x.grad_n, chain.nth * x.window + c);
    }
    const int steps = (min(length, tokens - c * length) + kSteps - 1) / kSteps;
    for (int step = 0; step < steps; ++step) {
      const int j = kBack ? steps - 1 - step : step;
      char* tile = ring.pull();
      if (step == 0) {
        const float rest = left[now];
        form.pairs([&](int, int, float& y, float& z) {
          y *= rest;
          z *= rest;
        });
        n.x *= rest;
        n.y *= rest;
      }
      form.begin(tile, weigh[now] + j * (kSteps / 2));
      if (has_n) {
        // Addresses are made here, and not kept.
        asm volatile("" : "+r"(group), "+r"(pair));
#pragma unroll
        for (int t = 0; t < kSteps; t += 4) {
          const float w = weigh_n[now][j * kSteps + t + group];
          const float2 y = unpack<kBf16>(*reinterpret_cast<const unsigned*>(tile + Form::at(t + group, 2 * pair)));
          n.x = fmaf(w, y.x, n.x);
          n.y = fmaf(w, y.y, n.y);
        }
      }
      form.end();
    }
    settle();
    if (!kBack && !(mode & 2)) {
      write(x.c, slot + c + 1);
      write_n(x.n, slot + c + 1);
    }
    if (i + 1 < chunks) put(raw, next, now ^ 1);
  }
  if (kBack) {
    write_exactly(x.carry_c, x.carry_n, chain.nth);
    if (window == 0) write_exactly(x.grad_c_initial, x.grad_n_initial, chain.nth);
  } else if (last < chain.chunks) {
    write_exactly(x.ahead_c, x.ahead_n, chain.nth);
  } else {
    write_exactly(x.c_last, x.n_last, chain.nth);
  }
}

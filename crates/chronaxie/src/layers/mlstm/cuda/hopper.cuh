// What the mLSTM kernels by wgmma (sm_90a) share: tiles of 64 terms, a ring of them, and what a thread holds of a product.
#pragma once
#include "tensor.cuh"
#include "wgmma.cuh"

constexpr int kTerms = 64;           // terms of a product that one place of the ring holds
constexpr int kLine = 2 * kTerms;    // bytes of a row of a block
constexpr int kTileA = kEdge * kLine, kTileB = kColumns * kLine;
constexpr int kHold = kTileA + kTileB;  // a place of the ring: a, then b
constexpr int kSquare = kEdge * kEdge * 2;  // pairs: two blocks of 64 columns
constexpr int kGroupRows = 64 * kLine;      // bytes of the rows of a warpgroup in a block
static_assert(kEdge == 128 && kBlock == 256, "two warpgroups of 64 rows");
static_assert(kHeadMost % kColumns == 0, "vectors of a head are read by tiles");

// The first place of the ring: tiles begin at multiples of 1024 bytes.
__device__ __forceinline__ char* tiles_begin(char* memory) { return memory + (1024 - shared_at(memory) % 1024) % 1024; }

// Blocks of 64 columns, kTile bytes in all: `rows` of one after the other, or 64 rows of each where the tile is `wide`; what is
// not there becomes zeros. Thread: a piece of every 32nd row. One code serves either, since instructions come from a small cache.
template <int kTile>
__device__ __forceinline__ void fetch_blocks(char* to, const Source& s, bool wide) {
  const int row = threadIdx.x / 8, piece = threadIdx.x % 8;
  static_assert(kBlock == 8 * 32 && kTile % (64 * kLine) == 0, "every thread copies as many pieces");
  // The next 64 rows of the tile are the next rows of memory, or the next columns of the same ones.
  const int rows = (int)min(s.rows, 1024LL) - row, columns = (int)min(s.columns, 1024LL) - 8 * piece;
  if (s.plain) {
    const unsigned base = shared_at(to) + swizzled(row, piece);
    const char* from = s.data + row * s.stride + 16 * piece;
    const i64 down = 32 * s.stride, next = wide ? (i64)kLine : 2 * down;
    const int fewer_rows = wide ? 0 : 64, fewer_columns = wide ? 64 : 0;
#pragma unroll
    for (int b = 0; b < kTile / (64 * kLine); ++b) {
      const bool inside = b * fewer_columns < columns;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool there = inside && b * fewer_rows + 32 * i < rows;
        copy_ahead(base + (64 * b + 32 * i) * kLine, there ? from + i * down : s.data, there);
      }
      from += next;
    }
    return;
  }
#pragma unroll 1
  for (int at = threadIdx.x; at < kTile / 2; at += kBlock) {
    const int line = at / 64, r = wide ? line % 64 : line, c = at % 64 + (wide ? line / 64 * 64 : 0);
    const bool there = r < s.rows && c < s.columns;
    *reinterpret_cast<unsigned short*>(to + swizzled_at(line, at % 64)) =
        there ? *reinterpret_cast<const unsigned short*>(s.data + r * s.stride + c * s.step) : (unsigned short)0;
  }
}

// Places that are filled stages - 1 steps before they are read, as Ring, for products by wgmma.
template <typename Issue, int kBytes = kHold>
struct Places {
  char* memory;
  int stages, out;
  Issue issue;

  __device__ __forceinline__ Places(char* memory, int stages, Issue issue)
      : memory(memory), stages(stages), out(0), issue(issue) {
    for (int i = 0; i + 1 < stages; ++i) push(i);
  }
  __device__ __forceinline__ void push(int place) {
    issue(memory + place * kBytes);
    copy_commit();
  }
  // The next place. The whole block takes part, whose products of the one before are made, and that is filled again.
  __device__ __forceinline__ char* pull() {
    copy_wait(stages - 2);
    products_see();
    __syncthreads();
    push(out == 0 ? stages - 1 : out - 1);
    char* at = memory + out * kBytes;
    out = out + 1 == stages ? 0 : out + 1;
    return at;
  }
};

// acc += a b over the 64 terms of a place; `across` as by_terms has it. They are made when products_wait says so.
template <bool kAByTerms, bool kBByTerms, int NT>
__device__ __forceinline__ void begin_products(float (&acc)[NT][4], unsigned a, unsigned b, unsigned across) {
  const u64 of_a = kAByTerms ? by_terms(a, 0) : by_rows(a), of_b = kBByTerms ? by_terms(b, across) : by_rows(b);
  products_begin();
#pragma unroll
  for (int k = 0; k < kTerms / 16; ++k)
    wgmma<kBf16, kAByTerms, kBByTerms>(acc, further(of_a, (kAByTerms ? 16 * kLine : 32) * k),
                                       further(of_b, (kBByTerms ? 16 * kLine : 32) * k));
  products_end();
}

// This thread's warpgroup, which the compiler sees is a warp's.
__device__ __forceinline__ int own_group() { return __shfl_sync(~0u, threadIdx.x / 128, 0); }
// This thread's first row, of two that are 8 apart.
__device__ __forceinline__ int own_row() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }
// f(half, column, x, y) for each pair of neighbours that this thread holds, of the first row and of the second.
template <int NT, typename F>
__device__ __forceinline__ void each_couple(float (&acc)[NT][4], F f) {
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      f(half, 8 * n + (int)(threadIdx.x % 4) * 2, acc[n][2 * half], acc[n][2 * half + 1]);
}
template <int NT>
__device__ __forceinline__ void clear_sums(float (&acc)[NT][4]) {
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) acc[n][e] = 0.f;
}
// A number of both columns in a square of pairs.
__device__ __forceinline__ void put_pair(char* square, int t, int s, float x, float y) {
  *reinterpret_cast<unsigned*>(square + s / 64 * (kEdge * kLine) + swizzled_at(t, s % 64)) = pack<kBf16>(x, y);
}

// The sums of this thread's products of its sums with the elements of `y` at the same places, of either row. Rows that are not
// there are zeros.
template <int NT>
__device__ __forceinline__ void dot_rows(float (&acc)[NT][4], const Tokens& y, const Chain& chain, const Chunk& chunk, i64 d0,
                                         i64 width, float (&sums)[2]) {
  const i64 step = 2 * y.d;
  const int columns = (int)min(width - d0, (i64)8 * NT);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = min(own_row() + 8 * half, chunk.n - 1);
    const char* from = y.data + 2 * place(y, chain, chunk.first + t, d0 + threadIdx.x % 4 * 2);
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
      if (8 * n >= columns) break;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        // One by one, whatever the stride.
        const float z0 = load_as<kDtype>(from, 0), z1 = load_as<kDtype>(from + step, 0);
        sums[half] = fmaf(z0, acc[n + e][2 * half], fmaf(z1, acc[n + e][2 * half + 1], sums[half]));
        from += 8 * step;
      }
    }
  }
}
// sum += x y of eight numbers each.
__device__ __forceinline__ float dot_pieces(uint4 x, uint4 y, float sum) {
  const unsigned p[4] = {x.x, x.y, x.z, x.w}, q[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const float2 f = unpack<kBf16>(p[w]), g = unpack<kBf16>(q[w]);
    sum = fmaf(f.x, g.x, fmaf(f.y, g.y, sum));
  }
  return sum;
}
// Sums of a row over its four threads, for all of them.
__device__ __forceinline__ void sum_rows(float (&sums)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sums[half] += __shfl_xor_sync(~0u, sums[half], 1);
    sums[half] += __shfl_xor_sync(~0u, sums[half], 2);
  }
}
// Eight elements of a row: store_piece in less code.
__device__ __forceinline__ void put_piece(const Tokens& y, bool plain, const Chain& chain, i64 t, i64 d, uint4 piece) {
  char* to = y.data + 2 * place(y, chain, t, d);
  if (plain) {
    *reinterpret_cast<uint4*>(to) = piece;
    return;
  }
#pragma unroll 1
  for (int e = 0; e < 8; ++e, to += 2 * y.d) {
    *reinterpret_cast<unsigned short*>(to) = (unsigned short)piece.x;
    piece = {piece.x >> 16 | piece.y << 16, piece.y >> 16 | piece.z << 16, piece.z >> 16 | piece.w << 16, piece.w >> 16};
  }
}
template <int NT>
__device__ __forceinline__ void store_rows(float (&acc)[NT][4], const Tokens& y, bool plain, const Chain& chain,
                                           const Chunk& chunk, i64 d0, i64 width) {
  int row = own_row(), column = threadIdx.x % 4 * 8;
  asm volatile("" : "+r"(row), "+r"(column));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = row + 8 * half;
#pragma unroll
    for (int n = 0; n < NT; n += 4) {
      unsigned w[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) w[e] = pack<kBf16>(acc[n + e][2 * half], acc[n + e][2 * half + 1]);
      const uint4 piece = gather_columns(w[0], w[1], w[2], w[3]);
      if (t < chunk.n && d0 + 8 * n + column < width) put_piece(y, plain, chain, chunk.first + t, d0 + 8 * n + column, piece);
    }
  }
}

// How a block of the scan multiplies by wgmma: tiles of kColumns columns, 64 tokens at a time; k comes from registers, weighed.
struct ByWgmma {
  static constexpr int kWide = kColumns, kSteps = kTerms;
  template <typename Issue>
  struct Queue : Places<Issue, kTileA + kTileB> {
    __device__ __forceinline__ Queue(char* memory, int stages, Issue issue)
        : Places<Issue, kTileA + kTileB>(tiles_begin(memory), stages, issue) {}
  };
  float acc[kColumns / 8][4];

  __device__ __forceinline__ void clear() { clear_sums(acc); }
  template <typename F>
  __device__ __forceinline__ void pairs(F f) {
    const int row = own_row();
    each_couple(acc, [&](int half, int v, float& y, float& z) { f(row + 8 * half, v, y, z); });
  }
  template <typename F>
  __device__ __forceinline__ void pieces(F f) {
    int row = own_row(), column = threadIdx.x % 4 * 8;
    // Addresses are made here each time, and not kept in registers through the loop around this.
    asm volatile("" : "+r"(row), "+r"(column));
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < kColumns / 8; n += 4) {
        unsigned w[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) w[e] = pack<kBf16>(acc[n + e][2 * half], acc[n + e][2 * half + 1]);
        f(row + 8 * half, column + 8 * n, gather_columns(w[0], w[1], w[2], w[3]));
      }
  }
  __device__ __forceinline__ static void bring(char* to, const Source& k, const Source& v) {
    fetch_blocks<kTileA>(to, k, true);
    fetch_blocks<kTileB>(to + kTileA, v, true);
  }
  __device__ __forceinline__ static int at(int t, int k) {
    return k / 64 * kGroupRows + (int)swizzled_at(t, k % 64);
  }
  __device__ __forceinline__ void begin(char* place, const unsigned* weights) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned a = shared_at(place) + warp / 4 * kGroupRows, b = shared_at(place) + kTileA;
    unsigned of_k[kTerms / 16][4];
#pragma unroll
    for (int k = 0; k < kTerms / 16; ++k) {
      load_matrices<true>(of_k[k], a + swizzled(16 * k + lane % 8 + lane / 16 * 8, warp % 4 * 2 + lane / 8 % 2));
      const unsigned low = weights[8 * k + lane % 4], high = weights[8 * k + 4 + lane % 4];
#pragma unroll
      for (int e = 0; e < 4; ++e) of_k[k][e] = times<kBf16>(of_k[k][e], e < 2 ? low : high);
    }
    const u64 of_b = by_terms(b, kGroupRows);
    products_begin();
#pragma unroll
    for (int k = 0; k < kTerms / 16; ++k) wgmma_of<kBf16, true>(acc, of_k[k], further(of_b, 16 * k * kLine));
    products_end();
  }
  __device__ __forceinline__ void end() { products_wait(acc); }
};

// Inverse p-th roots of matrices of at most 128 rows, p >= 2, by the iteration of newton.cuh, its halves and its products: a block takes
// a matrix and keeps all of it on its multiprocessor (192 KB of shared memory: compute capabilities 9.0 and 10.0; up to 64 rows 48 KB:
// 12.0 too). Blocks stride over the batch, and none waits for another.
//
// Shared memory holds three matrices as halves: E and then F in `e`; E E, then Y, then M in `one`; c2 I + c3 E + c4 E E, then T^k - I in
// `two`. Y and M are kept in registers, in f32, and are split where they are multiplied. An iteration is six products and nine
// barriers of the block. Products, what becomes of them and what is split are one loop with one copy of each, since all of it has to be
// fetched: 112 KB of instructions, 160 with a copy where each is used.
//
// Matrices are blocks of 16 x 16, of which a product makes the 36 on and below the diagonal, or their mirror images: 4 of one warp and
// 5 of another one on each of a multiprocessor's four parts. Warps 0 to 3 have 2 x 2, of rows of odd numbers and columns of even ones.
// What is left are, for odd numbers and for even ones, the ten pairs of four: a path p x y q through the four has three of them, and
// with (x, x) and (y, y) five, and another path has the other five: warps 4 to 7. Of up to 64 rows there are 10 blocks, one or two a warp,
// and two matrices at a time on a multiprocessor.
//
// A product of 16 terms is 36 x 6 mma.sync of 2048 multiply-adds, at 317 a clock and part (of 512 for wgmma) 350 clocks. It reads 40 KB
// of shared memory, 32 if it is a square: 312 and 250 clocks. So a product of 128 terms takes 2800 clocks, and what becomes of it,
// some 90 instructions for 8 elements of a thread, another 900. 19 products (a condition number of 34, p = 4) at 1.7 GHz: 42 us, and 5 for
// the matrix, the start and the root, for as many matrices as there are multiprocessors. Of 64 rows 19 x 900 clocks: 10 us, and 4.
// Measured (H100, with an empty launch behind it): 64 of 128 rows 79 us, 92 when what it reads, its code too, was
// evicted; newton.cu 250 and 261. 64 of 64 rows 39 (151), 600 of 64 rows 120 (657). What is beyond the reckoned 47 is not looked into.
//
// What was reckoned and left: wgmma has tiles of 64 x 64, 48 blocks instead of 36, which with what shared memory gives are 2300 to
// 2600 clocks instead of 2800, of sm_90a alone. Two blocks of a cluster for a matrix halve the products, but half of each of eight results
// of an iteration goes to the other block, 18 KB, which was not built or timed.
#include "newton.cuh"

namespace resident {
using namespace newton;

constexpr unsigned kNowhere = ~0u;

// What a product is for; what is split after its result.
enum Step { kSquare, kNextE2, kNextF, kPower, kTimes, kNextY, kNextM };
enum Also { kNothing, kFirstE2, kRest, kOfY, kOfM };

// Numbers of a warp's rows and columns of blocks: x, y, and p, q.
struct Part {
  unsigned bits;
  __device__ __forceinline__ bool path() const { return bits >> 12; }
  __device__ __forceinline__ int x() const { return bits & 7; }
  __device__ __forceinline__ int y() const { return bits >> 3 & 7; }
  __device__ __forceinline__ int p() const { return bits >> 6 & 7; }
  __device__ __forceinline__ int q() const { return bits >> 9 & 7; }
};

// Matrices of at most kSide rows.
template <int kSide>
struct Matrix {
  static constexpr int kRow = 2 * kSide, kBlockRow = 16 * kRow;  // bytes of a row of halves, and of 16
  static constexpr int kLower = kSide * kRow;                    // bytes from the upper halves to the lower ones
  static constexpr int kBytes = 2 * kLower;
  static constexpr int kBlocks = kSide == 128 ? 5 : 2;           // a warp's

  static __device__ __forceinline__ Part part_of(int warp) {
    auto of = [](int path, int x, int y, int p, int q) { return Part{unsigned(x | y << 3 | p << 6 | q << 9 | path << 12)}; };
    const int odd = warp & 1;
    if (kSide == 64) {
      if (warp < 4) return of(0, warp, 0, warp, 0);
      return warp < 6 ? of(1, 2 + odd, 0, 0, 1) : of(0, odd ? 1 : 3, 0, odd ? 0 : 2, 0);
    }
    if (warp < 4) return of(0, warp / 2 * 2 + 1, warp / 2 * 2 + 5, odd * 2, odd * 2 + 4);
    return warp < 6 ? of(1, 4 + odd, 2 + odd, odd, 6 + odd) : of(1, odd, 6 + odd, 2 + odd, 4 + odd);
  }
  // Row and column of a warp's nth block: (x, p), (x, q), (y, p), (y, q), or (p, x), (x, x), (x, y), (y, y), (y, q); of 64 rows (x, p),
  // and (x, q) of two warps.
  static __device__ __forceinline__ int2 block_of(const Part& w, int nth) {
    if (kSide == 64 || !w.path()) return make_int2(nth < 2 ? w.x() : w.y(), nth % 2 ? w.q() : w.p());
    return make_int2(nth < 3 ? w.x() : w.y(), nth == 0 ? w.p() : nth == 1 ? w.x() : nth == 4 ? w.q() : w.y());
  }
  static __device__ __forceinline__ bool has(const Part& w, int nth) { return nth + 1 < kBlocks || w.path(); }
  static __device__ __forceinline__ bool is_diagonal(const Part& w, int nth) {
    if (kSide == 64) return nth == 0 && w.x() == w.p();
    return w.path() && (nth == 1 || nth == 3);
  }

  // Of each row the 16-byte pieces are exchanged so that eight rows of a matrix of 8 x 8 lie in all banks. Where a lane's row of a
  // block's four matrices is, and its row of the four of the mirror image.
  static __device__ __forceinline__ unsigned place_in(int row, int column) {
    const int lane = threadIdx.x % 32;
    return row * kBlockRow + (lane % 16 * kRow + ((lane / 16 ^ lane % 8) << 4) ^ column << 5);
  }
  static __device__ __forceinline__ unsigned mirrored_in(int row, int column) {
    const int lane = threadIdx.x % 32;
    return column * kBlockRow + ((lane % 8 + lane / 16 * 8) * kRow + ((lane / 8 % 2 ^ lane % 8) << 4) ^ row << 5);
  }
  // Where an element of a matrix of f32 lies, as in newton.cuh.
  static __device__ __forceinline__ int at(int row, int column) { return row * kSide + (column ^ (row & 31) ^ (row & 3) << 3); }
};

template <bool kTransposed>
__device__ __forceinline__ void store_matrices(unsigned to, const unsigned (&r)[4]) {
  if (kTransposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]), "r"(r[1]), "r"(r[2]),
                 "r"(r[3])
                 : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
__device__ __forceinline__ unsigned turned(unsigned x) {
  unsigned d;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(x));
  return d;
}
// A block on the diagonal, symmetric by what is below.
__device__ __forceinline__ void mirror(unsigned (&r)[4]) {
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4 * 2;
  const unsigned above = (c > g ? 0xffffu : 0u) | (c + 1 > g ? 0xffff0000u : 0u);
  r[0] = (r[0] & ~above) | (turned(r[0]) & above);
  r[3] = (r[3] & ~above) | (turned(r[3]) & above);
  r[2] = turned(r[1]);
}

// Halves of a block: upper, lower.
struct Halves {
  unsigned of[2][4];
};
template <class Matrix>
__device__ __forceinline__ Halves load_block(unsigned from) {
  Halves x;
  load_matrices<false>(x.of[0], from);
  load_matrices<false>(x.of[1], from + Matrix::kLower);
  return x;
}
// Element e of a thread's eight of a block, in the order of sums: 8 x 8 matrix e / 2, row lane / 4, column 2 (lane % 4) + e % 2.
template <class Matrix>
__device__ __forceinline__ void values_of(float (&x)[8], const Part& w, int nth, unsigned from) {
  const int2 at = Matrix::block_of(w, nth);
  const Halves h = load_block<Matrix>(from + Matrix::place_in(at.x, at.y));
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const float2 high = unpack<false>(h.of[0][m]), low = unpack<false>(h.of[1][m]);
    x[2 * m] = high.x + low.x, x[2 * m + 1] = high.y + low.y;
  }
}
template <class Matrix>
__device__ __forceinline__ void store_block(unsigned to, const Part& w, int nth, float scale, const float (&v)[8]) {
  const int2 at = Matrix::block_of(w, nth);
  Halves h;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const float x = v[2 * m] * scale, y = v[2 * m + 1] * scale;
    h.of[0][m] = pack<false>(x, y);
    const float2 high = unpack<false>(h.of[0][m]);
    h.of[1][m] = pack<false>(x - high.x, y - high.y);
  }
  if (Matrix::is_diagonal(w, nth)) {
    mirror(h.of[0]);
    mirror(h.of[1]);
  } else {
    const unsigned there = to + Matrix::mirrored_in(at.x, at.y);
    store_matrices<true>(there, h.of[0]);
    store_matrices<true>(there + Matrix::kLower, h.of[1]);
  }
  const unsigned here = to + Matrix::place_in(at.x, at.y);
  store_matrices<false>(here, h.of[0]);
  store_matrices<false>(here + Matrix::kLower, h.of[1]);
}

// A block as the right operand has it: the two of its four matrices that a product takes beside each other.
__device__ __forceinline__ Halves as_right(const Halves& x) {
  Halves r;
#pragma unroll
  for (int e = 0; e < 8; ++e) r.of[e / 4][e % 4] = x.of[e / 4][e % 2 * 2 + e / 2 % 2];
  return r;
}
// d = or += a b of one block, a term of three: lo hi, hi lo, hi hi, the large one last.
template <bool kFirst>
__device__ __forceinline__ void product(float (&d)[8], const Halves& a, const Halves& b, int term) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float(&sum)[4] = *(float(*)[4]) & d[4 * j];
    const unsigned(&right)[4] = b.of[term == 1];
    if (kFirst && term == 0)
      product16<false>(sum, a.of[1], right[2 * j], right[2 * j + 1]);
    else
      product16<true>(sum, a.of[term == 0], right[2 * j], right[2 * j + 1]);
  }
}
template <class Matrix, bool kPath, bool kSame, bool kFirst>
__device__ __forceinline__ void product_of_terms(float (&d)[Matrix::kBlocks][8], unsigned a, unsigned b, const Part& w, int terms) {
  const unsigned left = a + Matrix::place_in(0, terms), right = b + Matrix::mirrored_in(terms, 0);
  auto load = [&](int column) { return load_block<Matrix>(right + column * Matrix::kBlockRow); };
  const Halves x = load_block<Matrix>(left + w.x() * Matrix::kBlockRow);
  if (Matrix::kBlocks == 2) {
    const Halves p = load(w.p());
#pragma unroll
    for (int term = 0; term < 3; ++term) product<kFirst>(d[0], x, p, term);
    if (!kPath) return;
    const Halves q = load(w.q());
#pragma unroll
    for (int term = 0; term < 3; ++term) product<kFirst>(d[1], x, q, term);
  } else if (kPath) {
    {
      const Halves of_x = kSame ? as_right(x) : load(w.x()), p = load(w.p());
#pragma unroll
      for (int term = 0; term < 3; ++term) product<kFirst>(d[0], x, p, term), product<kFirst>(d[1], x, of_x, term);
    }
    const Halves y = load_block<Matrix>(left + w.y() * Matrix::kBlockRow), of_y = kSame ? as_right(y) : load(w.y()), q = load(w.q());
#pragma unroll
    for (int term = 0; term < 3; ++term) {
      product<kFirst>(d[2], x, of_y, term), product<kFirst>(d[3], y, of_y, term);
      product<kFirst>(d[4], y, q, term);
    }
  } else {
    const Halves y = load_block<Matrix>(left + w.y() * Matrix::kBlockRow), p = load(w.p()), q = load(w.q());
#pragma unroll
    for (int term = 0; term < 3; ++term) {
      product<kFirst>(d[0], x, p, term), product<kFirst>(d[1], x, q, term);
      product<kFirst>(d[2], y, p, term), product<kFirst>(d[3], y, q, term);
    }
  }
}
// sum = a b of a warp's blocks, over `chunks` times 32 terms, which f32 units add up.
template <class Matrix, bool kPath, bool kSame>
__device__ __forceinline__ void multiply(float (&sum)[Matrix::kBlocks][8], unsigned a, unsigned b, const Part& w, int chunks) {
#pragma unroll
  for (int e = 0; e < 8 * Matrix::kBlocks; ++e) sum[e / 8][e % 8] = 0.f;
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    float part[Matrix::kBlocks][8];
    product_of_terms<Matrix, kPath, kSame, true>(part, a, b, w, 2 * c);
    product_of_terms<Matrix, kPath, kSame, false>(part, a, b, w, 2 * c + 1);
#pragma unroll
    for (int e = 0; e < 8 * (Matrix::kBlocks - !kPath); ++e) sum[e / 8][e % 8] += part[e / 8][e % 8];
  }
}

// Two sums over the block.
__device__ __forceinline__ double2 block_sums(double x, double y, double2* slots) {
#pragma unroll 1
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(~0u, x, o), y += __shfl_xor_sync(~0u, y, o);
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = make_double2(x, y);
  __syncthreads();
  double2 all = slots[0];
#pragma unroll 1
  for (int k = 1; k < kWarps; ++k) all.x += slots[k].x, all.y += slots[k].y;
  return all;
}

// A double as the product of a power of 2 and a float, so that f32 multiplies by it with one rounding.
struct Factor {
  float power, rest;
  double value;
  __device__ __forceinline__ explicit Factor(double x) {
    const int exponent = (int)(__double_as_longlong(x) >> 52 & 0x7ff) - 1023;
    power = __int_as_float((min(max(exponent / 2, -120), 120) + 127) << 23);
    rest = (float)(x / power), value = (double)power * rest;
  }
  __device__ __forceinline__ float times(float x) const { return x * power * rest; }
};

template <int kSide>
__device__ __forceinline__ void roots_of(const float* __restrict__ a,  // [N, n, n]
                                         float* root,                  // [N, n, n]
                                         float* record,                // [N, 4]
                                         int count, int n, int p, double absolute, double relative) {
  typedef Matrix<kSide> Of;
  constexpr int kBlocks = Of::kBlocks;
  extern __shared__ __align__(128) char matrices[];
  __shared__ double2 slots[kWarps];
  __shared__ Control k;
  if (threadIdx.x == 0) begin(k, p);
  const unsigned e = shared_at(matrices), one = e + Of::kBytes, two = one + Of::kBytes;
  float* flat = (float*)(matrices + 2 * Of::kBytes);
  const int chunks = (n + kTerms - 1) / kTerms;
  Part w = Of::part_of(threadIdx.x / 32);
  int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4 * 2;
  // Row and column of a thread's element of its blocks; whether it is on the diagonal of the matrix.
  auto row_of = [&](int nth, int i) { return 16 * Of::block_of(w, nth).x + i / 2 % 2 * 8 + g; };
  auto column_of = [&](int nth, int i) { return 16 * Of::block_of(w, nth).y + i / 4 * 8 + c + i % 2; };
  auto is_one = [&](int nth, int i) { return Of::is_diagonal(w, nth) && row_of(nth, i) == column_of(nth, i) && row_of(nth, i) < n; };
  // f of each of the warp's blocks.
  auto each = [&](auto&& f) {
#pragma unroll
    for (int nth = 0; nth < kBlocks; ++nth)
      if (Of::has(w, nth)) f(nth);
  };
  // Sum of squares of the matrix that x has a part of.
  auto squares_of = [&](const float (&x)[kBlocks][8]) {
    float all = 0.f;
    each([&](int nth) {
      float some = 0.f;
#pragma unroll
      for (int i = 0; i < 8; ++i) some += x[nth][i] * x[nth][i];
      all += Of::is_diagonal(w, nth) ? some : 2 * some;
    });
    return all;
  };
  constexpr float unit = 1.f / (kScale * kScale);

  for (int matrix = blockIdx.x; matrix < count; matrix += gridDim.x) {
    // The places of all elements, which the compiler would keep for all matrices and until the end, would take all registers.
    asm volatile("" : "+r"(w.bits), "+r"(g), "+r"(c));
    float m[kBlocks][8], y[kBlocks][8], sum[kBlocks][8];
    {
      int thread = threadIdx.x;
      asm volatile("" : "+r"(thread));
      const float* from = a + (i64)matrix * n * n;
      float x[kSide / kWarps][kSide / 32];
#pragma unroll
      for (int i = 0; i < kSide / kWarps; ++i)
#pragma unroll
        for (int j = 0; j < kSide / 32; ++j) {
          const int row = thread / 32 + i * kWarps, column = thread % 32 + 32 * j;
          x[i][j] = row < n && column < n ? from[row * n + column] : 0.f;
        }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kSide / kWarps; ++i)
#pragma unroll
        for (int j = 0; j < kSide / 32; ++j) flat[Of::at(thread / 32 + i * kWarps, thread % 32 + 32 * j)] = x[i][j];
      __syncthreads();
    }
    double squares = 0;
    each([&](int nth) {
      double some = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = row_of(nth, i), column = column_of(nth, i);
        m[nth][i] = 0.5f * (flat[Of::at(row, column)] + flat[Of::at(column, row)]);
        some = fma((double)m[nth][i], (double)m[nth][i], some);
      }
      squares += Of::is_diagonal(w, nth) ? some : 2 * some;
    });
    const double norm = sqrt(block_sums(squares, 0, slots).x), eps = max(absolute, relative * norm), size = norm + eps;
    int iterations = 0;
    if (threadIdx.x == 0) k.status = kFailed, k.residual = __int_as_float(0x7fffffff);
    // Beyond, squares of f32 are no numbers.
    if (norm < 1e300 && size > 0) {
      // x = by (A + eps I).
      auto damped = [&](float (&x)[kBlocks][8], const Factor& by) {
        each([&](int nth) {
#pragma unroll
          for (int i = 0; i < 8; ++i) x[nth][i] = is_one(nth, i) ? (float)(by.value * (m[nth][i] + eps)) : by.times(m[nth][i]);
        });
      };
      const Factor first(1 / size);
      damped(sum, first);
      if (threadIdx.x == 0) k.size = 1 / first.value;
      // What `sum` holds is split to `out`; then a product is made, left right.
      Step step = kSquare, next = kPower;
      Also also = kNothing;
      unsigned out = e, left = e, right = e;
      auto go = [&](Step to, unsigned x, unsigned y) { step = to, left = x, right = y; };
      float scale = kFirstScale, norm_e = __int_as_float(0x7f800000), y_scale = kScale, squares_y = 0.f;
      int terms = 4, bit = 0;
      bool begins = true;
      iterations = 1;
      for (;;) {
#pragma unroll 1
        for (bool more = out != kNowhere; more;) {
          each([&](int nth) { store_block<Of>(out, w, nth, scale, sum[nth]); });
          more = also != kNothing;
          if (also == kFirstE2) {
            each([&](int nth) {
#pragma unroll
              for (int i = 0; i < 8; ++i) sum[nth][i] = y[nth][i];
            });
            out = one, also = kRest;
          } else if (also == kRest) {
            // c2 I + c3 E + c4 E E.
            __syncwarp();
            each([&](int nth) {
              float x[8];
              values_of<Of>(x, w, nth, e);
#pragma unroll
              for (int i = 0; i < 8; ++i)
                sum[nth][i] = fmaf(k.c[4], sum[nth][i], fmaf(k.c[3] / kScale, x[i], is_one(nth, i) ? k.c[2] : 0.f));
            });
            out = two, also = kNothing;
          } else if (also != kNothing) {
            // Others may still read what was there.
            if (also == kOfY) __syncthreads();
            scale = also == kOfY ? y_scale : kScale;
            each([&](int nth) {
#pragma unroll
              for (int i = 0; i < 8; ++i) sum[nth][i] = also == kOfY ? y[nth][i] : m[nth][i];
            });
            out = one, also = kNothing;
          }
        }
        if (out != kNowhere) __syncthreads();
        scale = kScale, out = kNowhere;
        if (!w.path())
          multiply<Of, false, false>(sum, left, right, w, chunks);
        else if (kSide == 128 && left == right)
          multiply<Of, true, true>(sum, left, right, w, chunks);
        else
          multiply<Of, true, false>(sum, left, right, w, chunks);
        if (step == kSquare) {
          // M, E and, where Y will be, E E, from A and A A, whose norm and trace bound the largest eigenvalue.
          float trace = 0.f;
          each([&](int nth) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
              y[nth][i] = sum[nth][i] * (1.f / (kFirstScale * kFirstScale));
              if (is_one(nth, i)) trace += y[nth][i];
            }
          });
          const double2 all = block_sums(trace, squares_of(y), slots);
          const Factor z(1.75 / (1.0001 * sqrt(greatest(all.x, all.y, n))) / k.size);
          const double zeta = z.value * k.size;
          if (threadIdx.x == 0) k.zeta = zeta;
          const float by = (float)(zeta * zeta);
          damped(sum, z);
          each([&](int nth) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
              const float x = sum[nth][i], delta = is_one(nth, i) ? 1.f : 0.f;
              m[nth][i] = x, sum[nth][i] = delta - x, y[nth][i] = fmaf(by, y[nth][i], delta - 2.f * x);
            }
          });
          out = e, also = kFirstE2;
          go(kNextF, one, two);
        } else if (step == kNextM) {
          each([&](int nth) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
              const float change = unit * sum[nth][i];
              sum[nth][i] = (is_one(nth, i) ? 1.f : 0.f) - m[nth][i] - change;
              m[nth][i] += change;
            }
          });
          const double2 all = block_sums(squares_of(sum), squares_y, slots);
          const float now = (float)sqrt(all.x);
          // Only an eigenvalue below 0, or roundings of one that is as good as 0, takes E further from 0; NaN ends it too.
          if (!(now <= min(1.001f * norm_e, 1e4f)) || iterations == kMostIterations) break;
          norm_e = now, begins = false, ++iterations;
          terms = now <= k.within[0] ? 1 : now <= k.within[1] ? 2 : 4;
          y_scale = kScale;
          for (const float most = (float)sqrt(all.y); y_scale * most > kLargest;) y_scale *= 0.5f;
          out = e;
          if (terms == 1) {
            also = kOfY;
            go(kNextY, e, one);
          } else {
            go(kNextE2, e, e);
          }
        } else if (step == kNextY) {
          const float beta = (terms == 1 ? k.c[1] : 1.f) / (kScale * y_scale);
          each([&](int nth) {
#pragma unroll
            for (int i = 0; i < 8; ++i) y[nth][i] = fmaf(beta, sum[nth][i], y[nth][i]);
          });
          if (norm_e <= k.within[2]) {
            if (threadIdx.x == 0) {
              const float d = norm_e, d2 = d * d;
              k.residual = p * (terms == 1 ? k.c[2] * d2 : terms == 2 ? k.c[3] * d2 * d : k.c[5] * d2 * d2 * d);
              k.status = kNewton;
            }
            break;
          }
          squares_y = squares_of(y);
          if (next == kNextM) {
            __syncthreads();
            each([&](int nth) {
#pragma unroll
              for (int i = 0; i < 8; ++i) sum[nth][i] = m[nth][i];
            });
            out = one;
          }
          go(next, two, next == kTimes ? e : next == kPower ? two : one);
        } else {
          // E E, F, or T^k - I = r: 2 r + r r, and r + f + r f. Where a result takes an operand's place, products are made first;
          // F takes that of E, of which only its own warp reads a block here.
          const bool first_power = step == kPower && left == e;
          if ((step == kNextE2 && terms == 2) || (step >= kPower && !first_power)) __syncthreads();
          const float beta = step == kNextE2 && terms == 2 ? k.c[2] * unit : unit;
          float weight = (step >= kPower ? step == kPower ? 2.f : 1.f : k.c[1]) / kScale;
          each([&](int nth) {
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[nth][i] *= beta;
          });
#pragma unroll 1
          for (unsigned from = step >= kPower ? left : e, again = step == kTimes; step != kNextE2 || terms == 2;) {
            each([&](int nth) {
              float x[8];
              values_of<Of>(x, w, nth, from);
#pragma unroll
              for (int i = 0; i < 8; ++i) sum[nth][i] = fmaf(weight, x[i], sum[nth][i]);
            });
            if (!again) break;
            from = e, again = 0;
          }
          if (step == kNextE2 && terms == 4) {
            out = one, also = kRest;
            go(kNextF, one, two);
          } else if (step < kPower) {
            out = e, also = begins ? kNothing : kOfY;
            if (begins) {
              each([&](int nth) {
#pragma unroll
                for (int i = 0; i < 8; ++i) y[nth][i] = sum[nth][i] + (is_one(nth, i) ? 1.f : 0.f);
              });
              squares_y = squares_of(y);
            }
            bit = 30 - __clz(p);
            if (norm_e <= k.within[2])
              go(kNextY, e, one);
            else
              go(kPower, e, e);
          } else {
            next = step == kPower && p >> bit & 1 ? kTimes : --bit >= 0 ? kPower : kNextM;
            const bool waits = first_power && !begins;
            out = two, also = next == kNextM && !waits ? kOfM : kNothing;
            if (waits)
              go(kNextY, e, one);
            else
              go(next, two, next == kTimes ? e : next == kPower ? two : one);
          }
        }
      }
    }
    __syncthreads();
    if (k.status == kNewton) {
      int power = p;
      asm volatile("" : "+r"(w.bits), "+r"(g), "+r"(c), "+r"(power));
      const float gamma = (float)pow(k.zeta / k.size, 1. / power);
      each([&](int nth) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int row = row_of(nth, i), column = column_of(nth, i);
          if (Of::is_diagonal(w, nth) && column > row) continue;
          flat[Of::at(row, column)] = flat[Of::at(column, row)] = gamma * y[nth][i];
        }
      });
      __syncthreads();
      int thread = threadIdx.x;
      asm volatile("" : "+r"(thread));
      float* to = root + (i64)matrix * n * n;
#pragma unroll 4
      for (int row = thread / 32; row < n; row += kWarps)
#pragma unroll
        for (int column = thread % 32; column < kSide; column += 32)
          if (column < n) to[row * n + column] = flat[Of::at(row, column)];
    }
    if (threadIdx.x == 0) {
      float* to = record + (i64)matrix * 4;
      to[0] = (float)k.status, to[1] = (float)iterations, to[2] = k.residual, to[3] = (float)eps;
    }
  }
}
}  // namespace resident

// `idle` counters of what comes behind are set to 0, too.
extern "C" __global__ void __launch_bounds__(newton::kThreads, 1)
    resident_roots(const float* __restrict__ a, float* root, float* record, unsigned* counters, int idle, int count, int n, int p,
                   double absolute, double relative) {
  clear_counters(counters, idle);
  resident::roots_of<128>(a, root, record, count, n, p, absolute, relative);
}
// Of at most 64 rows: two blocks and more fit a multiprocessor.
extern "C" __global__ void __launch_bounds__(newton::kThreads, 2)
    resident_roots64(const float* __restrict__ a, float* root, float* record, unsigned* counters, int idle, int count, int n, int p,
                     double absolute, double relative) {
  clear_counters(counters, idle);
  resident::roots_of<64>(a, root, record, count, n, p, absolute, relative);
}

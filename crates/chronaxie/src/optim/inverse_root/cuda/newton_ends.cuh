// What becomes of the tiles that newton.cuh multiplies.
#pragma once
#include "newton_products.cuh"

namespace newton {

// Four elements of a buffer.
struct Four {
  uint2 hi, lo;
};
__device__ __forceinline__ void load4(Four& x, const u16* from, i64 place) {
  x.hi = __ldcg((const uint2*)(from + place)), x.lo = __ldcg((const uint2*)(from + kPlane + place));
}
__device__ __forceinline__ float4 value4(const Four& x) {
  const float2 h0 = unpack<false>(x.hi.x), h1 = unpack<false>(x.hi.y), l0 = unpack<false>(x.lo.x), l1 = unpack<false>(x.lo.y);
  return make_float4(h0.x + l0.x, h0.y + l0.y, h1.x + l1.x, h1.y + l1.y);
}
__device__ __forceinline__ void store4(u16* to, i64 place, float scale, const float (&v)[4]) {
  uint2 hi, lo;
  split(hi.x, lo.x, v[0] * scale, v[1] * scale);
  split(hi.y, lo.y, v[2] * scale, v[3] * scale);
  *(uint2*)(to + place) = hi;
  *(uint2*)(to + kPlane + place) = lo;
}

// What becomes of a tile of a product, eight times four elements a thread at a time so that their loads are under way together, and then of
// its mirror image, for which the first leaves `out` where the product was; gives the sum of the squares that are asked for.
template <bool kMirror>
__device__ __noinline__ float emit(const Shape& shape, const Task& task, int2 tile, float* c) {
  constexpr int kBatch = 8;
  // Copies: what is stored below could lie in shared memory for all that the compiler knows.
  const Shape s = shape;
  const Task t = task;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool diagonal = tile.x == tile.y;
  const int row0 = (kMirror ? tile.y : tile.x) * kTile, column0 = (kMirror ? tile.x : tile.y) * kTile;
  float squares = 0.f;
#pragma unroll 1
  for (int batch = 0; batch < kTile / kWarps; batch += kBatch) {
    Four xs[kBatch], ys[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int q = batch + u, row = row0 + q / 4 * 4 * kWarps + warp * 4 + lane / 8, column = column0 + q % 4 * 32 + lane % 8 * 4;
      const bool there = row < s.n && column < s.pitch;
      const i64 place = place_of(s, row, column);
      xs[u].hi = xs[u].lo = ys[u].hi = ys[u].lo = make_uint2(0, 0);
      if (t.x && there && (!kMirror || (t.also && t.first2 != 0.f))) load4(xs[u], t.x, place);
      if (t.y && there && !kMirror) load4(ys[u], t.y, place);
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int q = batch + u, r = q / 4 * 4 * kWarps + warp * 4 + lane / 8, k = q % 4 * 32 + lane % 8 * 4;
      const int row = row0 + r, column = column0 + k;
      if (row >= s.n || column >= s.pitch) continue;
      const i64 place = place_of(s, row, column);
      const float4 x4 = value4(xs[u]), y4 = value4(ys[u]);
      const float x[4] = {x4.x, x4.y, x4.z, x4.w}, y[4] = {y4.x, y4.y, y4.z, y4.w};
      float v[4], w[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool there = column + e < s.n, other = kMirror || (diagonal && k + e > r);
        float& sum = c[other ? at(k + e, r) : at(r, k + e)];
        v[e] = !there ? 0.f : kMirror ? sum : fmaf(t.beta, sum, fmaf(t.first, x[e], t.second * y[e]));
        if (!kMirror && !diagonal) sum = v[e];
        w[e] = there ? fmaf(t.also_of, v[e], fmaf(t.first2, x[e], row == column + e ? t.delta : 0.f)) : 0.f;
        squares += t.also ? w[e] * w[e] : v[e] * v[e];
      }
      if (t.flat) {
        float* to = t.flat + (i64)row * t.flat_pitch + column;
        if (column + 4 <= s.n && (unsigned long long)to % 16 == 0) {
          *(float4*)to = make_float4(t.gamma * v[0], t.gamma * v[1], t.gamma * v[2], t.gamma * v[3]);
        } else {
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (column + e < s.n) to[e] = t.gamma * v[e];
        }
      } else {
        store4(t.out, place, t.out_scale, v);
      }
      if (t.also) store4(t.also, place, t.also_scale, w);
    }
  }
  return squares;
}

// The sum of a tile's squares.
__device__ __forceinline__ void give_sum(const Task& t, int2 tile, float squares, double* slots) {
  if (!t.sums) return;
  const double all = block_sum(squares, slots);
  if (threadIdx.x == 0) t.sums[tile.x * (tile.x + 1) / 2 + tile.y] = tile.x == tile.y ? all : 2 * all;
}

// A tile of a product, whose sums lie in shared memory, and its mirror image.
__device__ __forceinline__ void finish(const Shape& s, const Task& t, int2 tile, float* tile_f32, double* slots) {
  const bool diagonal = tile.x == tile.y;
  const float squares = emit<false>(s, t, tile, tile_f32);
  if (!diagonal) {
    block_sync();
    emit<true>(s, t, tile, tile_f32);
  }
  give_sum(t, tile, squares, slots);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// What was made of these numbers is made anew: there are not registers enough for both.
__device__ __forceinline__ void anew(Sums& v) {
#pragma unroll
  for (int e = 0; e < 64; ++e) asm volatile("" : "+f"(v[e / 4][e % 4]));
}
__device__ __forceinline__ void store_half(unsigned at, unsigned x) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"((u16)x) : "memory");
}

// The numbers of a tile as blocks of a buffer in shared memory, from where the copy engine takes them; and those of its mirror image.
// Of a tile of the diagonal those below it alone are put, twice.
__device__ __forceinline__ void put_blocks(const Shape& s, int2 tile, Sums& v, u16* to, unsigned blocks) {
  const int thread = thread_now(), warp = thread / 32, g = thread % 32 / 4, c = thread % 4;
  auto give = [&](int row, int column) {
    products_see();
    block_sync();
    // Of the four blocks those that the buffer has.
    if (threadIdx.x == 0) bulk_store(to + block_of(s, row, column), blocks, min(4, s.chunks - 4 * column) * (4 * kPlane));
  };
  auto ready = [&] {
    if (threadIdx.x == 0) bulk_stores_read();
    block_sync();
  };
  // A pair's halves, hi and lo.
  auto halves = [&](int n, int h) {
    uint2 x;
    split(x.x, x.y, v[n][2 * h], v[n][2 * h + 1]);
    return x;
  };
  auto store = [](unsigned at, uint2 x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x.x) : "memory");
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at + 2 * kPlane), "r"(x.y) : "memory");
  };
  ready();
  const unsigned own = blocks + (16 * warp + g) * 64 + 4 * c;
#pragma unroll
  for (int n = 0; n < 16; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      store(own + n / 4 * (4 * kPlane) + h * 512 + ((n % 4 ^ g / 2) << 4), halves(n, h));
  const unsigned column = blocks + warp / 2 * (4 * kPlane);
  if (tile.x == tile.y) {
    block_sync();
    anew(v);
    const unsigned turned = column + c * 128 + g * 2;
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int below = 16 * warp + 8 * h + g - 8 * n - 2 * c;
        const unsigned at = turned + n * 512 + ((warp % 2 * 2 + h ^ c) << 4);
        const uint2 x = halves(n, h);
        if (below > 0) store_half(at, x.x), store_half(at + 2 * kPlane, x.y);
        if (below > 1) store_half(at + 64, x.x >> 16), store_half(at + 64 + 2 * kPlane, x.y >> 16);
      }
    give(tile.x, tile.y);
    return;
  }
  give(tile.x, tile.y);
  ready();
  anew(v);
  // Of two lanes, whose rows are neighbours, each takes one of two columns.
  const unsigned other = column + (2 * c + g % 2) * 64 + g / 2 * 4;
  auto turned = [&](unsigned mine) {
    const unsigned theirs = __shfl_xor_sync(~0u, mine, 4);
    return g % 2 ? theirs >> 16 | (mine & 0xffff0000u) : (mine & 0xffffu) | theirs << 16;
  };
#pragma unroll
  for (int n = 0; n < 16; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint2 x = halves(n, h);
      store(other + n * 512 + ((warp % 2 * 2 + h ^ c) << 4), make_uint2(turned(x.x), turned(x.y)));
    }
  give(tile.y, tile.x);
}

// v = of v + by x + delta I, and if there is a y, by_y y, from the ring, and that times `scale`, a power of 2; gives the sum of the
// squares before, of a diagonal's tile those below it twice, if asked. What is beyond n becomes 0.
__device__ __forceinline__ float take_in(const Shape& s, int2 tile, const Ring& ring, Sums& v, float of, bool has_x, float by, float delta,
                                         bool has_y, float by_y, bool sums, float scale) {
  const int thread = thread_now(), warp = thread / 32, g = thread % 32 / 4, c = thread % 4;
  const int below = (tile.x - tile.y) * kTile + 16 * warp + g - 2 * c;
  // Of a pair in the ring, columns of which two places have 64 each.
  auto pair = [&](unsigned from, int n, int h) {
    const unsigned at = from + n / 4 % 2 * (4 * kPlane) + h * 512 + ((n % 4 ^ g / 2) << 4);
    unsigned hi, lo;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(hi) : "r"(at) : "memory");
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(lo) : "r"(at + 2 * kPlane) : "memory");
    const float2 a = unpack<false>(hi), b = unpack<false>(lo);
    return make_float2(a.x + b.x, a.y + b.y);
  };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (has_x) ring.wait(i);
    const unsigned from = ring.at(i) + (16 * warp + g) * 64 + 4 * c;
#pragma unroll
    for (int n = 8 * i; n < 8 * i + 8; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 x = has_x ? pair(from, n, h) : make_float2(0.f, 0.f);
        const int right = 8 * (n - h);
        v[n][2 * h] = fmaf(of, v[n][2 * h], fmaf(by, x.x, below == right ? delta : 0.f));
        v[n][2 * h + 1] = fmaf(of, v[n][2 * h + 1], fmaf(by, x.y, below == right + 1 ? delta : 0.f));
      }
  }
  if (has_y) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned ahead = (has_x ? 2 : 0) + i;
      ring.wait(ahead);
      const unsigned from = ring.at(ahead) + (16 * warp + g) * 64 + 4 * c;
#pragma unroll
      for (int n = 8 * i; n < 8 * i + 8; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float2 y = pair(from, n, h);
          v[n][2 * h] = fmaf(by_y, y.x, v[n][2 * h]), v[n][2 * h + 1] = fmaf(by_y, y.y, v[n][2 * h + 1]);
        }
    }
  }
  const int rows = s.n - tile.x * kTile - 16 * warp - g, columns = s.n - tile.y * kTile - 2 * c;
  if ((tile.x + 1) * kTile > s.n) {
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (e / 2 * 8 >= rows || 8 * n + e % 2 >= columns) v[n][e] = 0.f;
  }
  float squares = 0.f;
  if (sums && tile.x == tile.y) {
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int right = 8 * n + e % 2 - e / 2 * 8;
        squares += (right < below ? 2.f : right == below ? 1.f : 0.f) * (v[n][e] * v[n][e]);
      }
  } else if (sums) {
#pragma unroll
    for (int e = 0; e < 64; ++e) squares += v[e / 4][e % 4] * v[e / 4][e % 4];
  }
  // In place: together with what was scaled there would not be registers enough.
#pragma unroll
  for (int e = 0; e < 64; ++e) v[e / 4][e % 4] *= scale;
  anew(v);
  return squares;
}

// What becomes of a tile that stays in halves: `out` and `also`, and their mirror images.
__device__ __forceinline__ void put_out(const Shape& s, const Task& t, int2 tile, Ring& ring, Sums& v, float* tile_f32, double* slots) {
  const unsigned blocks = shared_at(tile_f32);
  const bool also = t.also;
  float squares = take_in(s, tile, ring, v, t.beta, t.x, t.first, 0.f, t.y, t.second, t.sums && !also, t.out_scale);
  put_blocks(s, tile, v, t.out, blocks);
  if (also) {
    const float of = t.also_of / t.out_scale;
    squares = take_in(s, tile, ring, v, of, t.first2 != 0.f, t.first2, t.delta, false, 0.f, t.sums, t.also_scale);
    put_blocks(s, tile, v, t.also, blocks);
  }
  for (unsigned i = (t.x ? 2 : 0) + (t.y ? 2 : 0); i > 0; --i) ring.done();
  give_sum(t, tile, squares, slots);
}
#endif
}  // namespace newton

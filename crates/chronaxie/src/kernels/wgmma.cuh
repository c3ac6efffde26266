// Products of tiles of 16-bit numbers in shared memory on Hopper's tensor cores, by wgmma (sm_90a): a warpgroup, which is four
// warps that begin at a multiple of four, multiplies 64 rows at a time, and its sums are in its registers.
//
// A tile lies in blocks of 64 columns, 128 bytes, row after row, each block at a multiple of 1024 bytes; piece p of the eight
// 16-byte pieces of row r is at piece p ^ r % 8, so that eight rows lie in all banks. In a product a b over k either tile may
// lie by its own rows (a by m, b by n; 64 terms a block) or by rows of k (64 columns of its own a block).
#pragma once

typedef unsigned long long u64;

// Where a piece of 16 bytes is in a block, and a number's byte.
__device__ __forceinline__ unsigned swizzled(unsigned row, unsigned piece) { return row * 128 + ((piece ^ row % 8) << 4); }
__device__ __forceinline__ unsigned swizzled_at(unsigned row, unsigned column) {
  return swizzled(row, column / 8) + column % 8 * 2;
}

// A tile for wgmma. By its own rows 16 terms further is 32 bytes further; by rows of k 16 of them are 2048, and `across` are
// the bytes from 64 columns to the next 64.
__device__ __forceinline__ u64 by_rows(unsigned at) {
  return (u64)((at & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
__device__ __forceinline__ u64 by_terms(unsigned at, unsigned across) {
  return (u64)((at & 0x3ffff) >> 4) | (u64)(across >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// One by its own rows whose blocks have 32 columns, 64 bytes a row and at a multiple of 512: piece p of the four of row r is at piece
// p ^ r / 2 % 4.
__device__ __forceinline__ u64 by_short_rows(unsigned at) {
  return (u64)((at & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(512 >> 4) << 32 | (u64)2 << 62;
}

// The tile that begins `bytes` behind that one, a multiple of 16: shared memory ends before its address leaves its bits, and one sum
// of 32 bits takes a quarter of the clocks of making it anew from an address, each instruction of which waits for the one before.
__device__ __forceinline__ u64 further(u64 tile, unsigned bytes) {
  return (tile & 0xffffffff00000000ull) | (unsigned)((unsigned)tile + (bytes >> 4));
}

// Before the first product of a group: sums and what this thread wrote to shared memory are ready for it.
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until the products of all groups are made; the sums can be read then. They go through here so that no use moves before it.
template <int NT>
__device__ __forceinline__ void products_wait(float (&d)[NT][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(d[n][e]));
}
// The same but for the group begun last.
template <int NT>
__device__ __forceinline__ void products_wait_but_one(float (&d)[NT][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(d[n][e]));
}
// Until those of all groups but the one begun last are made, of sums that it adds to and nobody reads yet.
__device__ __forceinline__ void products_wait_but_one() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
// What this thread wrote to shared memory, by copies that it has waited for too, is seen by products behind the next barrier.
__device__ __forceinline__ void products_see() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The operands of d, 32, 64, 128 or 256 columns: their numbers in the instruction, and what they are.
#define SUMS_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SUMS_64 \
  SUMS_32 ", " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SUMS_128 \
  SUMS_64 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_256 \
  SUMS_128 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define D_32 \
  "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), \
  "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
#define D_64 \
  D_32, \
  "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), \
  "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
#define D_128 \
  D_64, \
  "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), \
  "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]), \
  "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]), \
  "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])
#define D_256 \
  D_128, \
  "+f"(d[16][0]), "+f"(d[16][1]), "+f"(d[16][2]), "+f"(d[16][3]), "+f"(d[17][0]), "+f"(d[17][1]), "+f"(d[17][2]), "+f"(d[17][3]), \
  "+f"(d[18][0]), "+f"(d[18][1]), "+f"(d[18][2]), "+f"(d[18][3]), "+f"(d[19][0]), "+f"(d[19][1]), "+f"(d[19][2]), "+f"(d[19][3]), \
  "+f"(d[20][0]), "+f"(d[20][1]), "+f"(d[20][2]), "+f"(d[20][3]), "+f"(d[21][0]), "+f"(d[21][1]), "+f"(d[21][2]), "+f"(d[21][3]), \
  "+f"(d[22][0]), "+f"(d[22][1]), "+f"(d[22][2]), "+f"(d[22][3]), "+f"(d[23][0]), "+f"(d[23][1]), "+f"(d[23][2]), "+f"(d[23][3]), \
  "+f"(d[24][0]), "+f"(d[24][1]), "+f"(d[24][2]), "+f"(d[24][3]), "+f"(d[25][0]), "+f"(d[25][1]), "+f"(d[25][2]), "+f"(d[25][3]), \
  "+f"(d[26][0]), "+f"(d[26][1]), "+f"(d[26][2]), "+f"(d[26][3]), "+f"(d[27][0]), "+f"(d[27][1]), "+f"(d[27][2]), "+f"(d[27][3]), \
  "+f"(d[28][0]), "+f"(d[28][1]), "+f"(d[28][2]), "+f"(d[28][3]), "+f"(d[29][0]), "+f"(d[29][1]), "+f"(d[29][2]), "+f"(d[29][3]), \
  "+f"(d[30][0]), "+f"(d[30][1]), "+f"(d[30][2]), "+f"(d[30][3]), "+f"(d[31][0]), "+f"(d[31][1]), "+f"(d[31][2]), "+f"(d[31][3])

// d (64 x 8 NT) += a (64 x 16) b (16 x 8 NT), NT of 1, 4, 8, 16 or 32. Warp w, g = lane / 4 and c = lane % 4 have rows 16 w + g and 16 w + g + 8 and
// columns 8 n + 2 c and the next in d[n]: d[n][0], d[n][1] of the first row, d[n][2], d[n][3] of the second.
template <bool kBf16, bool kAByTerms, bool kBByTerms>
__device__ __forceinline__ void wgmma(float (&d)[1][4], u64 a, u64 b) {
  if (kBf16)
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, %6, %7;"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])
                 : "l"(a), "l"(b), "n"(kAByTerms ? 1 : 0), "n"(kBByTerms ? 1 : 0));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, %6, %7;"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])
                 : "l"(a), "l"(b), "n"(kAByTerms ? 1 : 0), "n"(kBByTerms ? 1 : 0));
}
template <bool kBf16, bool kAByTerms, bool kBByTerms>
__device__ __forceinline__ void wgmma(float (&d)[4][4], u64 a, u64 b) {
  if (kBf16)
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" SUMS_32 "}, %16, %17, 1, 1, 1, %18, %19;"
                 : D_32
                 : "l"(a), "l"(b), "n"(kAByTerms ? 1 : 0), "n"(kBByTerms ? 1 : 0));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {" SUMS_32 "}, %16, %17, 1, 1, 1, %18, %19;"
                 : D_32
                 : "l"(a), "l"(b), "n"(kAByTerms ? 1 : 0), "n"(kBByTerms ? 1 : 0));
}
template <bool kBf16, bool kAByTerms, bool kBByTerms>
__device__ __forceinline__ void wgmma(float (&d)[8][4], u64 a, u64 b) {
  if (kBf16)
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SUMS_64 "}, %32, %33, 1, 1, 1, %34, %35;"
                 : D_64
                 : "l"(a), "l"(b), "n"(kAByTerms ? 1 : 0), "n"(kBByTerms ? 1 : 0));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" SUMS_64 "}, %32, %33, 1, 1, 1, %34, %35;"
                 : D_64
                 : "l"(a), "l"(b), "n"(kAByTerms ? 1 : 0), "n"(kBByTerms ? 1 : 0));
}
template <bool kBf16, bool kAByTerms, bool kBByTerms>
__device__ __forceinline__ void wgmma(float (&d)[16][4], u64 a, u64 b) {
  if (kBf16)
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SUMS_128 "}, %64, %65, 1, 1, 1, %66, %67;"
                 : D_128
                 : "l"(a), "l"(b), "n"(kAByTerms ? 1 : 0), "n"(kBByTerms ? 1 : 0));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" SUMS_128 "}, %64, %65, 1, 1, 1, %66, %67;"
                 : D_128
                 : "l"(a), "l"(b), "n"(kAByTerms ? 1 : 0), "n"(kBByTerms ? 1 : 0));
}
template <bool kBf16, bool kAByTerms, bool kBByTerms>
__device__ __forceinline__ void wgmma(float (&d)[32][4], u64 a, u64 b) {
  if (kBf16)
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" SUMS_256 "}, %128, %129, 1, 1, 1, %130, %131;"
                 : D_256
                 : "l"(a), "l"(b), "n"(kAByTerms ? 1 : 0), "n"(kBByTerms ? 1 : 0));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" SUMS_256 "}, %128, %129, 1, 1, 1, %130, %131;"
                 : D_256
                 : "l"(a), "l"(b), "n"(kAByTerms ? 1 : 0), "n"(kBByTerms ? 1 : 0));
}
// The same, but for d = a b.
template <bool kBf16, bool kAByTerms, bool kBByTerms>
__device__ __forceinline__ void wgmma_first(float (&d)[8][4], u64 a, u64 b) {
  if (kBf16)
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SUMS_64 "}, %32, %33, 0, 1, 1, %34, %35;"
                 : D_64
                 : "l"(a), "l"(b), "n"(kAByTerms ? 1 : 0), "n"(kBByTerms ? 1 : 0));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" SUMS_64 "}, %32, %33, 0, 1, 1, %34, %35;"
                 : D_64
                 : "l"(a), "l"(b), "n"(kAByTerms ? 1 : 0), "n"(kBByTerms ? 1 : 0));
}
template <bool kBf16, bool kAByTerms, bool kBByTerms>
__device__ __forceinline__ void wgmma_first(float (&d)[16][4], u64 a, u64 b) {
  if (kBf16)
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SUMS_128 "}, %64, %65, 0, 1, 1, %66, %67;"
                 : D_128
                 : "l"(a), "l"(b), "n"(kAByTerms ? 1 : 0), "n"(kBByTerms ? 1 : 0));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" SUMS_128 "}, %64, %65, 0, 1, 1, %66, %67;"
                 : D_128
                 : "l"(a), "l"(b), "n"(kAByTerms ? 1 : 0), "n"(kBByTerms ? 1 : 0));
}
// The same with a in registers, as mma has it of the 16 rows of a warp. They may change when the products are made.
template <bool kBf16, bool kBByTerms>
__device__ __forceinline__ void wgmma_of(float (&d)[8][4], const unsigned (&a)[4], u64 b) {
  if (kBf16)
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SUMS_64 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
                 : D_64
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kBByTerms ? 1 : 0));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" SUMS_64 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
                 : D_64
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kBByTerms ? 1 : 0));
}
template <bool kBf16, bool kBByTerms>
__device__ __forceinline__ void wgmma_of(float (&d)[16][4], const unsigned (&a)[4], u64 b) {
  if (kBf16)
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SUMS_128 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, %69;"
                 : D_128
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kBByTerms ? 1 : 0));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" SUMS_128 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, %69;"
                 : D_128
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kBByTerms ? 1 : 0));
}
template <bool kBf16, bool kBByTerms>
__device__ __forceinline__ void wgmma_of_first(float (&d)[8][4], const unsigned (&a)[4], u64 b) {
  if (kBf16)
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SUMS_64 "}, {%32, %33, %34, %35}, %36, 0, 1, 1, %37;"
                 : D_64
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kBByTerms ? 1 : 0));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" SUMS_64 "}, {%32, %33, %34, %35}, %36, 0, 1, 1, %37;"
                 : D_64
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kBByTerms ? 1 : 0));
}
template <bool kBf16, bool kBByTerms>
__device__ __forceinline__ void wgmma_of_first(float (&d)[16][4], const unsigned (&a)[4], u64 b) {
  if (kBf16)
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SUMS_128 "}, {%64, %65, %66, %67}, %68, 0, 1, 1, %69;"
                 : D_128
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kBByTerms ? 1 : 0));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" SUMS_128 "}, {%64, %65, %66, %67}, %68, 0, 1, 1, %69;"
                 : D_128
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kBByTerms ? 1 : 0));
}
template <bool kBf16, bool kBByTerms>
__device__ __forceinline__ void wgmma_of(float (&d)[32][4], const unsigned (&a)[4], u64 b) {
  if (kBf16)
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" SUMS_256 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, %133;"
                 : D_256
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kBByTerms ? 1 : 0));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" SUMS_256 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, %133;"
                 : D_256
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kBByTerms ? 1 : 0));
}

#undef SUMS_64
#undef SUMS_128
#undef SUMS_256
#undef D_64
#undef D_128
#undef D_256

// Products of f32 on tensor cores: each number is the sum of two of TensorFloat-32 (11 bits each), and a product is
// high high + high low + low high, in f32 (compute capability 8.0 and later).
//
// What is left out is 2^-22 of a product at the most, and 4e-8 of it in the mean, beside 3e-8 of a product in f32. Tensor
// cores cut their sums off instead of rounding them: long sums belong into f32 additions, every few products.
#pragma once

// x = high + low: high is rounded to the nearest (ties away), and low, at most 12 bits, is what is left; tensor cores read the
// upper 19 bits of a number, so they cut its last bit off. An infinite or NaN x, and one that rounds to infinity, make NaN.
__device__ __forceinline__ void split_tf32(unsigned& high, unsigned& low, float x) {
  high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high));
}

// d (16 x 8) += a (16 x 8) b (8 x 8). With g = lane / 4 and c = lane % 4 a thread has of a rows g, g + 8, g, g + 8 of columns
// c, c, c + 4, c + 4; of b rows c and c + 4 of column g; of d rows g, g, g + 8, g + 8 of columns 2c, 2c + 1, 2c, 2c + 1.
__device__ __forceinline__ void mma_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

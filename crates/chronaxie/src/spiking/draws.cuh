// The twin of draws.rs: random numbers as functions of what they are for. Philox 4x32-10 (Salmon et al., SC 2011).
#pragma once

typedef unsigned long long u64;

enum Purpose { kPair = 1, kEfficacy = 2, kDrive = 3, kSource = 5 };

struct Words {
  unsigned w[4];
};

// 128 uniform bits for number `index` of `owner`.
__device__ __forceinline__ Words draw(u64 seed, unsigned purpose, unsigned owner, u64 index) {
  unsigned c0 = (unsigned)index, c1 = (unsigned)(index >> 32), c2 = owner, c3 = purpose;
  unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned a = 0xD2511F53u * c0, a_high = __umulhi(0xD2511F53u, c0);
    const unsigned b = 0xCD9E8D57u * c2, b_high = __umulhi(0xCD9E8D57u, c2);
    c0 = b_high ^ c1 ^ k0, c1 = b, c2 = a_high ^ c3 ^ k1, c3 = a;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// `bits` mapped to 0..count.
__device__ __forceinline__ unsigned below(unsigned bits, unsigned count) { return __umulhi(bits, count); }

// How many of `count` rising thresholds `bits` reaches.
__device__ __forceinline__ int reached(unsigned bits, const unsigned* thresholds, int count) {
  int low = 0;
  while (count > 0) {
    const int half = count / 2;
    const bool right = __ldg(thresholds + low + half) <= bits;
    low = right ? low + half + 1 : low;
    count = right ? count - half - 1 : half;
  }
  return low;
}

// The twin of the body of lif_alpha.rs: coefficients P22, P20 I_e, threshold, reset, refractory steps, then for each port P11,
// h P11, e / tau, P32, P31.
#pragma once
#include "math.cuh"

struct LifAlpha {
  static constexpr int kCoefficients = 15, kVariables = 6, kPorts = 2;
  static __device__ __forceinline__ bool step(const float (&c)[15], float (&s)[6], const float (&input)[2]) {
    const float inhibited = fmaf(c[13], s[4], fmaf(c[14], s[3], c[1]));
    const float moved = fmaf(c[0], s[0], fmaf(c[8], s[2], fmaf(c[9], s[1], inhibited)));
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float j = s[1 + 2 * k], i = s[2 + 2 * k];
      s[2 + 2 * k] = fmaf(c[5 + 5 * k], i, c[6 + 5 * k] * j);
      s[1 + 2 * k] = fmaf(c[5 + 5 * k], j, c[7 + 5 * k] * input[k]);
    }
    return fire(c[2], c[3], c[4], moved, s[0], s[5]);
  }
};

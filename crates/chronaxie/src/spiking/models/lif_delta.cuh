// The twin of the body of lif_delta.rs: coefficients P22, P20 I_e, threshold, reset, refractory steps.
#pragma once
#include "math.cuh"

struct LifDelta {
  static constexpr int kCoefficients = 5, kVariables = 2, kPorts = 1;
  static __device__ __forceinline__ bool step(const float (&c)[5], float (&s)[2], const float (&input)[1]) {
    const float moved = fmaf(c[0], s[0], c[1]) + input[0];
    return fire(c[2], c[3], c[4], moved, s[0], s[1]);
  }
};

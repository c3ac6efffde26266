// The twin of the bodies of lif_exp.rs: coefficients P22, P20 I_e, threshold, reset, refractory steps, P11 and P21 of each current.
#pragma once
#include "math.cuh"

struct LifExpOne {
  static constexpr int kCoefficients = 7, kVariables = 3, kPorts = 1;
  static __device__ __forceinline__ bool step(const float (&c)[7], float (&s)[3], const float (&input)[1]) {
    const float moved = fmaf(c[0], s[0], fmaf(c[6], s[1], c[1]));
    s[1] = fmaf(c[5], s[1], input[0]);
    return fire(c[2], c[3], c[4], moved, s[0], s[2]);
  }
};

struct LifExp {
  static constexpr int kCoefficients = 9, kVariables = 4, kPorts = 2;
  static __device__ __forceinline__ bool step(const float (&c)[9], float (&s)[4], const float (&input)[2]) {
    const float moved = fmaf(c[0], s[0], fmaf(c[6], s[1], fmaf(c[8], s[2], c[1])));
    s[1] = fmaf(c[5], s[1], input[0]);
    s[2] = fmaf(c[7], s[2], input[1]);
    return fire(c[2], c[3], c[4], moved, s[0], s[3]);
  }
};

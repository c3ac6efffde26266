// The twin of the body of lif_cond.rs: coefficients -h/C, g_L, g_L E_L + I_e, threshold, reset, refractory steps, decays in a
// step and in half of one (ex, in), E_ex, E_in.
#pragma once
#include "math.cuh"

struct LifCond {
  static constexpr int kCoefficients = 12, kVariables = 4, kPorts = 2;
  static __device__ __forceinline__ bool step(const float (&c)[12], float (&s)[4], const float (&input)[2]) {
    const float ex = c[8] * s[1], in = c[9] * s[2];
    const float total = c[1] + ex + in;
    const float rest = fmaf(ex, c[10], fmaf(in, c[11], c[2])) / total;
    const float moved = fmaf(s[0] - rest, exp_twin(c[0] * total), rest);
    s[1] = fmaf(c[6], s[1], input[0]);
    s[2] = fmaf(c[7], s[2], 0.f - input[1]);
    return fire(c[3], c[4], c[5], moved, s[0], s[3]);
  }
};

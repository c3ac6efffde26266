// The twin of the body of adex.rs, with the coefficients that its `coefficients` lists.
#pragma once
#include "math.cuh"

struct AdEx {
  static constexpr int kCoefficients = 20, kVariables = 5, kPorts = 2;
  static __device__ __forceinline__ bool step(const float (&c)[20], float (&s)[5], const float (&input)[2]) {
    const float i_ex = s[2], i_in = s[3], left = s[4];
    const float end_ex = c[15] * i_ex, end_in = c[16] * i_in;
    const float middle = fmaf(c[17], i_ex, fmaf(c[18], i_in, c[19]));
    const float start = i_ex + i_in + c[19], end = end_ex + end_in + c[19];
    float x[2] = {s[0], s[1]};
    rk4(x, c[0], c[1], c[2], [&](int stage, const float (&y)[2], float (&k)[2]) {
      const float v = at_least(y[0], c[9], c[9], y[0]), w = y[1];
      const float off = v - c[5];
      const float spike = c[6] * exp_twin((v - c[8]) * c[7]);
      const float current = stage == 0 ? start : stage == 3 ? end : middle;
      const float rise = (fmaf(c[4], off, spike) - w + current) * c[3];
      k[0] = at_least(left, 1.f, 0.f, rise);
      k[1] = fmaf(c[12], off, 0.f - w) * c[14];
    });
    const float v = x[0], w = x[1];
    s[2] = end_ex + input[0];
    s[3] = end_in + input[1];
    const float waited = at_least(left, 1.f, left - 1.f, 0.f);
    const bool fires = v >= c[9];
    s[0] = fires ? c[10] : v;
    s[1] = fires ? w + c[13] : w;
    s[4] = fires ? c[11] : waited;
    return fires;
  }
};

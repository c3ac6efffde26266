// The twin of the body of izhikevich.rs: coefficients h, h/2, h/6, a, b, c, d, threshold, 140 + I_e.
#pragma once
#include "math.cuh"

struct Izhikevich {
  static constexpr int kCoefficients = 9, kVariables = 2, kPorts = 1;
  static __device__ __forceinline__ bool step(const float (&c)[9], float (&s)[2], const float (&input)[1]) {
    rk4(s, c[0], c[1], c[2], [&](int, const float (&y)[2], float (&k)[2]) {
      const float v = y[0], u = y[1];
      k[0] = fmaf(fmaf(0.04f, v, 5.f), v, c[8] - u);
      k[1] = c[3] * (c[4] * v - u);
    });
    const float v = s[0] + input[0];
    const bool fires = v >= c[7];
    s[0] = fires ? c[5] : v;
    s[1] = fires ? s[1] + c[6] : s[1];
    return fires;
  }
};

// The twin of the body of hodgkin_huxley.rs, with the coefficients that its `coefficients` lists.
#pragma once
#include "math.cuh"

struct HodgkinHuxley {
  static constexpr int kCoefficients = 14, kVariables = 5, kPorts = 1;

  // x / (1 - e^-x), by its series near 0.
  static __device__ __forceinline__ float quotient(float x) {
    const float size = fabsf(x);
    const float away = at_least(size, 0.01f, x, 1.f);
    const float near = fmaf(x, fmaf(x, 1.f / 12.f, 0.5f), 1.f);
    return at_least(size, 0.01f, away / (1.f - exp_twin(0.f - away)), near);
  }
  static __device__ __forceinline__ float gate(float x, float a, float b) { return fmaf(a, 1.f - x, 0.f - b * x); }

  static __device__ __forceinline__ bool step(const float (&c)[14], float (&s)[5], const float (&input)[1]) {
    const float middle = fmaf(c[12], s[4], c[13]), last = c[11] * s[4];
    const float start = s[4] + c[13], end = last + c[13], before = s[0];
    float x[4] = {s[0], s[1], s[2], s[3]};
    rk4(x, c[0], c[1], c[2], [&](int stage, const float (&y)[4], float (&d)[4]) {
      const float v = y[0], m = y[1], h = y[2], n = y[3];
      const float na = c[4] * (m * m * m * h) * (v - c[7]);
      const float square = n * n;
      const float k = c[5] * (square * square) * (v - c[8]);
      const float leak = c[6] * (v - c[9]);
      const float rest = v + 65.f;
      const float current = stage == 0 ? start : stage == 3 ? end : middle;
      d[0] = (current - na - k - leak) * c[3];
      d[1] = gate(m, quotient((v + 40.f) * 0.1f), 4.f * exp_twin(rest * (-1.f / 18.f)));
      d[2] = gate(h, 0.07f * exp_twin(rest * (-1.f / 20.f)), 1.f / (1.f + exp_twin((v + 35.f) * -0.1f)));
      d[3] = gate(n, 0.1f * quotient((v + 55.f) * 0.1f), 0.125f * exp_twin(rest * (-1.f / 80.f)));
    });
    s[0] = x[0], s[1] = x[1], s[2] = x[2], s[3] = x[3], s[4] = last + input[0];
    return x[0] >= c[10] && !(before >= c[10]);
  }
};

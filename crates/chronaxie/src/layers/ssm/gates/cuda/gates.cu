// What providers make of the numbers that a layer computes: maps elementwise in [B, D, T], with parameters [D], and their gradients.
//
//   s0 .. s2   sequences [B, D, T], f32 or (complex maps) pairs of f32      p0 .. p2   parameters [D]
//   y0, y1     outputs [B, D, T]; g0, g1 their gradients
//
//   ssm_gates_forward    threads over B D T
//   ssm_gates_backward   block: one channel, its threads over B T; sums over them for the parameters, in one order
//
// Forward reads and writes each number once: 12 to 24 bytes an element, with two or three exponentials (a channel's own ones are
// made again for each element), so memory binds. Neighbouring threads have neighbouring steps. Backward has a block a channel,
// which is enough where D is; a layer has hundreds of channels.
//
// The maps are numbered as kKinds lists them; a switch, because a compilation a kind would be eleven.
typedef long long i64;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

constexpr int kMinGru = 0, kRgLru = 1, kDecay = 2, kLru = 3, kS5 = 4, kHold = 5, kSoftplus = 6, kDecline = 7, kRate = 8,
              kComplexRate = 9, kPolar = 10;

struct Complex {
  float re, im;
};
__device__ __forceinline__ Complex times(Complex a, Complex b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// a times the conjugate of b.
__device__ __forceinline__ Complex times_conj(Complex a, Complex b) {
  return {a.re * b.re + a.im * b.im, a.im * b.re - a.re * b.im};
}

__device__ __forceinline__ float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return x < 0.0f ? e / (1.0f + e) : 1.0f / (1.0f + e);
}
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// The gate and the factor that a channel has at all times.
struct Channel {
  Complex gate, factor;
};

__device__ Channel channel_of(int kind, float p0, float p1, float p2) {
  if (kind == kHold) return {{expf(p0), 0.0f}, {0.0f, 0.0f}};
  if (kind == kS5) {
    const float delta = expf(p2), x = p0 * delta, y = p1 * delta;
    // e^w - 1 without cancellation, then over lambda.
    float s, c;
    sincosf(y, &s, &c);
    const float half = sinf(0.5f * y), e = expf(x);
    const Complex gate = {e * c, e * s}, less_one = {expm1f(x) * c - 2.0f * half * half, e * s};
    const float size = p0 * p0 + p1 * p1;
    const Complex quotient = times_conj(less_one, {p0, p1});
    const bool zero = size == 0.0f;
    return {gate, {zero ? delta : quotient.re / size, zero ? 0.0f : quotient.im / size}};
  }
  const float rate = expf(p0), a = expf(-rate), gain = sqrtf(-expm1f(-2.0f * rate));
  if (kind == kDecay) return {{a, 0.0f}, {gain, 0.0f}};
  float s, c;
  sincosf(expf(p1), &s, &c);
  return {{a * c, a * s}, {gain, 0.0f}};
}

// The derivative of phi1(w) = (e^w - 1) / w: by its series near 0.
__device__ Complex phi1_slope(Complex w) {
  const float size = w.re * w.re + w.im * w.im;
  if (size < 1.0f) {
    // k / (k + 1)! for k = 10 down to 1; the next term is below 2.3e-8.
    const float series[10] = {2.505210839e-7f, 2.480158730e-6f, 2.204585538e-5f, 1.736111111e-4f, 1.190476190e-3f,
                              6.944444444e-3f, 3.333333333e-2f, 0.125f,          0.3333333333f,   0.5f};
    Complex sum = {0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < 10; ++k) {
      sum = times(sum, w);
      sum.re += series[k];
    }
    return sum;
  }
  float s, c;
  sincosf(w.im, &s, &c);
  const float e = expf(w.re);
  const Complex grown = {e * c, e * s};
  const Complex phi1 = times_conj({grown.re - 1.0f, grown.im}, w);
  const Complex rest = {grown.re - phi1.re / size, grown.im - phi1.im / size};
  const Complex slope = times_conj(rest, w);
  return {slope.re / size, slope.im / size};
}

// RG-LRU: sigmoid(r), e^-rate and sqrt(1 - e^-2rate).
struct Gate {
  float r, a, gain, rate;
};
__device__ __forceinline__ Gate rglru_gate(float r, float lambda) {
  Gate g;
  g.r = sigmoid(r);
  g.rate = 8.0f * softplus(-lambda) * g.r;
  g.a = expf(-g.rate);
  g.gain = sqrtf(-expm1f(-2.0f * g.rate));
  return g;
}

__device__ __forceinline__ float own(const float* p, i64 d) { return p ? p[d] : 0.0f; }

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    ssm_gates_forward(const float* s0, const float* s1, const float* s2, const float* p0, const float* p1, const float* p2,
                      float* y0, float* y1, i64 elements, i64 channels, i64 steps, int kind) {
  for (i64 i = blockIdx.x * (i64)kThreads + threadIdx.x; i < elements; i += (i64)gridDim.x * kThreads) {
    const i64 d = i / steps % channels;
    switch (kind) {
      case kMinGru:
        y0[i] = sigmoid(-s0[i]);
        y1[i] = sigmoid(s0[i]) * s1[i];
        break;
      case kRgLru: {
        const Gate g = rglru_gate(s0[i], p0[d]);
        y0[i] = g.a;
        y1[i] = g.gain * sigmoid(s1[i]) * s2[i];
        break;
      }
      case kSoftplus:
        y0[i] = softplus(s0[i]);
        break;
      case kDecline:
        y0[i] = -softplus(s0[i]);
        break;
      case kRate:
        y0[i] = -expf(s0[i]);
        break;
      case kComplexRate:
        y0[2 * i] = -expf(s0[2 * i]);
        y0[2 * i + 1] = s0[2 * i + 1];
        break;
      case kPolar: {
        const float radius = softplus(s0[2 * i]);
        float s, c;
        sincosf(s0[2 * i + 1], &s, &c);
        y0[2 * i] = radius * c;
        y0[2 * i + 1] = radius * s;
        break;
      }
      default: {
        const Channel k = channel_of(kind, own(p0, d), own(p1, d), own(p2, d));
        if (kind == kHold) {
          y0[i] = k.gate.re;
        } else if (kind == kDecay) {
          y0[i] = k.gate.re;
          y1[i] = k.factor.re * s0[i];
        } else {
          const Complex x = times(k.factor, {s0[2 * i], s0[2 * i + 1]});
          y0[2 * i] = k.gate.re;
          y0[2 * i + 1] = k.gate.im;
          y1[2 * i] = x.re;
          y1[2 * i + 1] = x.im;
        }
      }
    }
  }
}

// The sum over the block, known to thread 0; lanes pair in one order, and the warps' sums are added in theirs.
__device__ float block_sum(float x, float* slots) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = x;
  __syncthreads();
  x = slots[0];
  for (int w = 1; w < kWarps; ++w) x += slots[w];
  return x;
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    ssm_gates_backward(const float* s0, const float* s1, const float* s2, const float* p0, const float* p1,
                       const float* p2, const float* g0, const float* g1, float* grad_s0, float* grad_s1, float* grad_s2,
                       float* grad_p0, float* grad_p1, float* grad_p2, i64 batch, i64 channels, i64 steps, int kind) {
  __shared__ float slots[kWarps];
  for (i64 d = blockIdx.x; d < channels; d += gridDim.x) {
    const bool scanned = kind == kDecay || kind == kLru || kind == kS5 || kind == kHold;
    const float q0 = own(p0, d), q1 = own(p1, d), q2 = own(p2, d);
    const Channel k = scanned ? channel_of(kind, q0, q1, q2) : Channel{{0.0f, 0.0f}, {0.0f, 0.0f}};
    Complex of_gate = {0.0f, 0.0f}, of_factor = {0.0f, 0.0f};
    for (i64 n = threadIdx.x; n < batch * steps; n += kThreads) {
      const i64 i = (n / steps * channels + d) * steps + n % steps;
      switch (kind) {
        case kMinGru: {
          const float z = sigmoid(s0[i]), a = sigmoid(-s0[i]);
          grad_s0[i] = (g1[i] * s1[i] - g0[i]) * z * a;
          grad_s1[i] = g1[i] * z;
          break;
        }
        case kRgLru: {
          const Gate g = rglru_gate(s0[i], q0);
          const float open = sigmoid(s1[i]), v = s2[i];
          const float of_rate = g1[i] * open * v * g.a * g.a / g.gain - g0[i] * g.a;
          grad_s0[i] = of_rate * g.rate * sigmoid(-s0[i]);
          grad_s1[i] = g1[i] * g.gain * v * open * sigmoid(-s1[i]);
          grad_s2[i] = g1[i] * g.gain * open;
          of_gate.re = fmaf(of_rate, g.r, of_gate.re);
          break;
        }
        case kSoftplus:
          grad_s0[i] = g0[i] * sigmoid(s0[i]);
          break;
        case kDecline:
          grad_s0[i] = -g0[i] * sigmoid(s0[i]);
          break;
        case kRate:
          grad_s0[i] = -g0[i] * expf(s0[i]);
          break;
        case kComplexRate:
          grad_s0[2 * i] = -g0[2 * i] * expf(s0[2 * i]);
          grad_s0[2 * i + 1] = g0[2 * i + 1];
          break;
        case kPolar: {
          float s, c;
          sincosf(s0[2 * i + 1], &s, &c);
          const float re = g0[2 * i], im = g0[2 * i + 1];
          grad_s0[2 * i] = sigmoid(s0[2 * i]) * (re * c + im * s);
          grad_s0[2 * i + 1] = softplus(s0[2 * i]) * (im * c - re * s);
          break;
        }
        case kHold:
          of_gate.re += g0[i];
          break;
        case kDecay:
          grad_s0[i] = k.factor.re * g1[i];
          of_gate.re += g0[i];
          of_factor.re = fmaf(g1[i], s0[i], of_factor.re);
          break;
        default: {
          const Complex g = {g1[2 * i], g1[2 * i + 1]};
          const Complex of_v = times_conj(g, k.factor), of_f = times_conj(g, {s0[2 * i], s0[2 * i + 1]});
          grad_s0[2 * i] = of_v.re;
          grad_s0[2 * i + 1] = of_v.im;
          of_gate.re += g0[2 * i];
          of_gate.im += g0[2 * i + 1];
          of_factor.re += of_f.re;
          of_factor.im += of_f.im;
        }
      }
    }
    if (!grad_p0) continue;
    of_gate.re = block_sum(of_gate.re, slots);
    of_gate.im = block_sum(of_gate.im, slots);
    of_factor.re = block_sum(of_factor.re, slots);
    of_factor.im = block_sum(of_factor.im, slots);
    if (threadIdx.x != 0) continue;
    if (kind == kRgLru) {
      grad_p0[d] = -8.0f * sigmoid(-q0) * of_gate.re;
    } else if (kind == kHold) {
      grad_p0[d] = of_gate.re * k.gate.re;
    } else if (kind == kS5) {
      const float delta = expf(q2);
      const Complex slope = phi1_slope({q0 * delta, q1 * delta});
      const Complex of_w = times_conj(of_gate, k.gate), through = times_conj(of_factor, slope);
      grad_p0[d] = delta * (of_w.re + delta * through.re);
      grad_p1[d] = delta * (of_w.im + delta * through.im);
      const float of_delta = times_conj(of_w, {q0, q1}).re + times_conj(of_factor, k.gate).re;
      grad_p2[d] = delta * of_delta;
    } else {
      const float square = k.gate.re * k.gate.re + k.gate.im * k.gate.im;
      const float radial = of_gate.re * k.gate.re + of_gate.im * k.gate.im;
      grad_p0[d] = expf(q0) * (of_factor.re * square / k.factor.re - radial);
      if (kind == kLru) grad_p1[d] = expf(q1) * (of_gate.im * k.gate.re - of_gate.re * k.gate.im);
    }
  }
}

// What the kernels of KFAC's step know of a map and of whose turn it is.
#pragma once
#include "stepper.cuh"

// A map, as mod.rs packs it: where it lies in the parameters (bias: -1 for none), H, D and A, where its matrices lie in the state,
// and its [H, A] in the scratch.
struct Map {
  i64 weight, bias, rows, columns, inputs;
  i64 a, g, basis_a, basis_g, values_a, values_g, squares, start;
};

// A side of a map.
struct Side {
  i64 n, factor, basis, values;
};
__device__ __forceinline__ Side side_of(const Map* maps, i64 which) {
  const Map& m = maps[which / 2];
  if (which % 2 == 0) return {m.inputs, m.a, m.basis_a, m.values_a};
  return {m.rows, m.g, m.basis_g, m.values_g};
}

__device__ __forceinline__ i64 triangle(i64 n) { return n * (n + 1) / 2; }

// Whether the matrices of map `l` are solved in this step, which has been counted.
__device__ __forceinline__ bool due(int step, i64 l, int every) { return (step - 1 + l) % every == 0; }

// Where element e of [H, A] lies among the parameters.
__device__ __forceinline__ i64 element(const Map& m, i64 e) {
  const i64 r = e / m.inputs, c = e - r * m.inputs;
  return c < m.columns ? m.weight + r * m.columns + c : m.bias + r;
}

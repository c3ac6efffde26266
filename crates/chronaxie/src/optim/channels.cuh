// How the two sides of a linear map are read on a GPU.
#pragma once
#include "stepper.cuh"

// Channels of a row's steps: [groups, steps, width]; `columns` is one more than `count` where the last one is of ones.
struct Side {
  const float* of;
  i64 steps;
  int count, width, columns;
};
constexpr i64 kBeyond = -1, kOne = -2;

__device__ __forceinline__ i64 place_of(const Side& s, i64 c) {
  if (c >= s.columns) return kBeyond;
  if (c >= s.count) return kOne;
  return s.width == s.count ? c : s.width == 1 ? c * s.steps : c / s.width * s.steps * s.width + c % s.width;
}
// Where sample `at` (-1: none) has what lies at `place`.
__device__ __forceinline__ float value(const Side& s, i64 at, i64 place) {
  if (at < 0 || place == kBeyond) return 0.f;
  return place == kOne ? 1.f : s.of[at + place];
}

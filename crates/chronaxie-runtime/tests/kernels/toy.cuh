// A header that the test kernels share.
#pragma once
__device__ __forceinline__ float twice(float x) { return 2.0f * x; }

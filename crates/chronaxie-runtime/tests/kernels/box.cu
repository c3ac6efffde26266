// A box of a tensor, 64 numbers by 64 rows, as the copy engine leaves it in shared memory (sm_90).
struct alignas(64) Map {
  unsigned long long words[16];
};

extern "C" __global__ void toy_box(const __grid_constant__ Map map, unsigned short* to, int column, int row, int z) {
#if __CUDA_ARCH__ >= 900
  __shared__ __align__(1024) unsigned short box[64 * 64];
  __shared__ __align__(8) unsigned long long arrived;
  const unsigned at = (unsigned)__cvta_generic_to_shared(box), barrier = (unsigned)__cvta_generic_to_shared(&arrived);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(1) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"((int)sizeof box) : "memory");
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];"
                 ::"r"(at), "l"(&map), "r"(column), "r"(row), "r"(z), "r"(0), "r"(barrier)
                 : "memory");
  }
  __syncthreads();
  unsigned done = 0;
  while (!done)
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(done) : "r"(barrier), "r"(0) : "memory");
  for (int i = threadIdx.x; i < 64 * 64; i += blockDim.x) to[i] = box[i];
#endif
}

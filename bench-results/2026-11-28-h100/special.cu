template<int OP> __device__ __forceinline__ float op(float x){
  float y;
  if (OP==0) asm volatile("tanh.approx.f32 %0, %1;":"=f"(y):"f"(x));
  else if (OP==1) asm volatile("ex2.approx.ftz.f32 %0, %1;":"=f"(y):"f"(x));
  else if (OP==2) asm volatile("rcp.approx.ftz.f32 %0, %1;":"=f"(y):"f"(x));
  else asm volatile("fma.rn.f32 %0, %1, %1, %1;":"=f"(y):"f"(x));
  return y;
}
template<int OP> __device__ void run(float* out, long long* t, int n){
  float x[8];
  for(int i=0;i<8;i++) x[i]=threadIdx.x*0.001f+i*0.1f;
  __syncthreads();
  long long a=clock64();
  for(int k=0;k<n;k++){
    #pragma unroll
    for(int j=0;j<4;j++)
    #pragma unroll
    for(int i=0;i<8;i++) x[i]=op<OP>(x[i]);
  }
  __syncthreads();
  long long b=clock64();
  float s=0; for(int i=0;i<8;i++) s+=x[i];
  out[blockIdx.x*blockDim.x+threadIdx.x]=s;
  if(threadIdx.x==0) t[blockIdx.x]=b-a;
}
extern "C" __global__ void k0(float*o,long long*t,int n){run<0>(o,t,n);}
extern "C" __global__ void k1(float*o,long long*t,int n){run<1>(o,t,n);}

extern "C" __global__ void k3(float*o,long long*t,int n){run<3>(o,t,n);}
// tanh and F multiply-adds of three registers beside each
template<int F> __device__ void mix(float* out, long long* t, int n){
  float x[8], y[8], z[8];
  for(int i=0;i<8;i++) x[i]=threadIdx.x*0.001f+i*0.1f, y[i]=i*0.2f+threadIdx.x, z[i]=0.3f*i;
  __syncthreads();
  long long a=clock64();
  for(int k=0;k<n;k++){
    #pragma unroll
    for(int j=0;j<4;j++)
    #pragma unroll
    for(int i=0;i<8;i++){ x[i]=op<0>(x[i]);
      #pragma unroll
      for(int f=0;f<F;f++) asm volatile("fma.rn.f32 %0, %1, %2, %0;":"+f"(z[(i+f)&7]):"f"(y[(i+3*f)&7]),"f"(y[(i+f+1)&7]));
    }
  }
  __syncthreads();
  long long b=clock64();
  float s=0; for(int i=0;i<8;i++) s+=x[i]+z[i];
  out[blockIdx.x*blockDim.x+threadIdx.x]=s;
  if(threadIdx.x==0) t[blockIdx.x]=b-a;
}
extern "C" __global__ void m2(float*o,long long*t,int n){mix<2>(o,t,n);}
extern "C" __global__ void m4(float*o,long long*t,int n){mix<4>(o,t,n);}
extern "C" __global__ void m6(float*o,long long*t,int n){mix<6>(o,t,n);}
extern "C" __global__ void m8(float*o,long long*t,int n){mix<8>(o,t,n);}

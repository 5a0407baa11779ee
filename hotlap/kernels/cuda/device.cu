// What kernels need of the device: barriers, the memory of a cluster, tensor cores, functions. Compiled before them.

typedef unsigned int u32;
#define SHARED extern __shared__ __align__(16) float shared_memory[];  // read four floats at once
__device__ __forceinline__ int thread_index() { return threadIdx.x; }
__device__ __forceinline__ int block_index() { return blockIdx.x; }
__device__ __forceinline__ void block_barrier() { __syncthreads(); }
__device__ __forceinline__ int cluster_rank() {
#if CLUSTER > 1
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}
// What is written to global memory between the two is not waited for: only the memory of the cluster is shared.
__device__ __forceinline__ void cluster_arrive() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
  __syncthreads();
#endif
}
__device__ __forceinline__ void cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}
__device__ __forceinline__ void put_everywhere(float* address, float value) {
#if CLUSTER > 1
  u32 here = (u32)__cvta_generic_to_shared(address);
#pragma unroll
  for (int rank = 0; rank < CLUSTER; ++rank) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
  }
#else
  *address = value;
#endif
}
__device__ __forceinline__ void put_four_everywhere(float* address, float4 value) {
#if CLUSTER > 1
  u32 here = (u32)__cvta_generic_to_shared(address);
#pragma unroll
  for (int rank = 0; rank < CLUSTER; ++rank) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(there), "f"(value.x), "f"(value.y),
                 "f"(value.z), "f"(value.w) : "memory");
  }
#else
  *(float4*)address = value;
#endif
}
__device__ __forceinline__ float from_lane_across(float value, int mask) { return __shfl_xor_sync(~0u, value, mask); }
__device__ __forceinline__ u32 bits_of(float value) { return __float_as_uint(value); }
__device__ __forceinline__ float of_bits(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ float of_float16(u32 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)bits));
  return value;
}
__device__ __forceinline__ u32 two_float16(float low, float high) {
  u32 bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ __forceinline__ u32 two_bfloat16(float low, float high) {
  u32 bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ __forceinline__ float to_tf32(float value) {
  u32 bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return __uint_as_float(bits);
}
__device__ __forceinline__ void multiply(float (&sum)[4], const float (&a)[4], float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
        "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}
// From 0 to `last` and then from 0 again, one number a call, in any order of the blocks: who gets the last one may write
// what all blocks have read before a barrier before their call.
__device__ __forceinline__ u32 take_ticket(u32* counter, u32 last) {
  __threadfence();
  return atomicInc(counter, last);
}
__device__ __forceinline__ void fetch(const float* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}
// One special-function instruction each, with errors of some 1e-7; infinities and NaN go through.
__device__ __forceinline__ float power_of_two(float x) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}
__device__ __forceinline__ float inverse(float x) {
  float value;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}
__device__ __forceinline__ float sigmoid(float x) {
#if EXACT
  return 1.0f / (1.0f + expf(-x));
#else
  return inverse(1.0f + power_of_two(-1.44269504f * x));
#endif
}
__device__ __forceinline__ float tangent(float x) {
#if EXACT
  return tanhf(x);
#else
  return 1.0f - 2.0f * inverse(1.0f + power_of_two(2.88539008f * x));
#endif
}
#if CLUSTER > 1
#define IN_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#else
#define IN_CLUSTERS
#endif
#define KERNEL extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, BLOCKS)

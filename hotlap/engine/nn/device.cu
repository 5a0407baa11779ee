// What kernels.cu needs of the device: barriers, the memory of a cluster, tensor cores, functions. Compiled before it.

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
__device__ __forceinline__ void fetch(const float* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}
__device__ __forceinline__ float sigmoid(float x) {
#if EXACT
  return 1.0f / (1.0f + expf(-x));
#else
  return __fdividef(1.0f, 1.0f + __expf(-x));
#endif
}
__device__ __forceinline__ float tangent(float x) {
#if EXACT
  return tanhf(x);
#else
  float e = __expf(2.0f * fminf(x, 40.0f));  // keeps NaN: fminf alone would not
  float value = 1.0f - __fdividef(2.0f, 1.0f + e);
  return x != x ? x : value;
#endif
}
#if CLUSTER > 1
#define IN_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#else
#define IN_CLUSTERS
#endif
#define KERNEL extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, BLOCKS)

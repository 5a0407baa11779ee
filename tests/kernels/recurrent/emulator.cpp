// Runs kernels.cu on a CPU: every thread of a cluster is a fiber that yields at barriers. What a GPU leaves undefined
// (shared memory at the start) is NaN here, and a barrier that not all threads reach is an endless wait that is reported.

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __device__
#define __forceinline__ inline
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};

namespace emulated {
constexpr int kThreads = CLUSTER * THREADS, kWarps = (kThreads + 31) / 32;
struct Fiber {
  ucontext_t context;
  bool done;
  long block_waits, cluster_waits, warp_waits;
};
Fiber fibers[kThreads];
char* stacks = nullptr;
float* shared = nullptr;
ucontext_t scheduler;
int rounding = 0, current = 0, cluster = 0, shared_floats = 0;
long block_arrivals[CLUSTER], cluster_arrivals, warp_arrivals[kWarps];
float a_of[kThreads][4], b_of[kThreads][2];

void yield() { swapcontext(&fibers[current].context, &scheduler); }
void wait(long& arrivals, long& waits, long size, int arriving = 1) {
  arrivals += arriving;
  ++waits;
  for (long spins = 0; arrivals < waits * size; ++spins) {
    if (spins > 100000) {
      fprintf(stderr, "a barrier that not all threads reach\n");
      abort();
    }
    yield();
  }
}
void warp_barrier() { wait(warp_arrivals[current / 32], fibers[current].warp_waits, 32); }
float* block_memory(int rank) { return shared + (size_t)rank * shared_floats; }
}  // namespace emulated

#define SHARED float* shared_memory = emulated::block_memory(emulated::current / THREADS);
inline int thread_index() { return emulated::current % THREADS; }
inline int cluster_rank() { return emulated::current / THREADS; }
inline int block_index() { return emulated::cluster * CLUSTER + cluster_rank(); }
inline void block_barrier() {
  emulated::wait(emulated::block_arrivals[cluster_rank()], emulated::fibers[emulated::current].block_waits, THREADS);
}
inline void cluster_arrive() { ++emulated::cluster_arrivals; }
inline void cluster_wait() {
  emulated::wait(emulated::cluster_arrivals, emulated::fibers[emulated::current].cluster_waits, emulated::kThreads, 0);
}
inline void cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}
inline void put_everywhere(float* address, float value) {
  long offset = address - emulated::block_memory(cluster_rank());
  if (offset < 0 || offset >= emulated::shared_floats) abort();
  for (int rank = 0; rank < CLUSTER; ++rank) emulated::block_memory(rank)[offset] = value;
}
inline void put_four_everywhere(float* address, float4 value) {
  if ((uintptr_t)address % 16) abort();
  put_everywhere(address, value.x);
  put_everywhere(address + 1, value.y);
  put_everywhere(address + 2, value.z);
  put_everywhere(address + 3, value.w);
}
inline float from_lane_across(float value, int mask) {
  using namespace emulated;
  a_of[current][0] = value;
  warp_barrier();
  float found = a_of[current ^ mask][0];
  warp_barrier();
  return found;
}
inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}
inline float of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t bfloat16_bits(float value) {
  uint32_t bits = bits_of(value);
  return (value != value ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
inline uint32_t two_bfloat16(float low, float high) { return bfloat16_bits(high) << 16 | bfloat16_bits(low); }
inline float of_float16(uint32_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float size = exponent == 0 ? ldexpf(fraction, -24) : ldexpf(1024 + fraction, exponent - 25);
  if (exponent == 31) size = fraction ? NAN : INFINITY;
  return bits >> 15 & 1 ? -size : size;
}
inline uint32_t float16_bits(float value) {
  const uint32_t sign = bits_of(value) >> 31 << 15;
  const float size = fabsf(value);
  if (value != value) return sign | 0x7e00;
  if (size >= 65520.0f) return sign | 0x7c00;
  if (size < 0x1p-14f) return sign | (uint32_t)nearbyintf(ldexpf(size, 24));
  const int exponent = ilogbf(size);
  return sign | (((exponent + 15) << 10) + (uint32_t)nearbyintf(ldexpf(size, 10 - exponent)) - 1024);
}
inline uint32_t two_float16(float low, float high) { return float16_bits(high) << 16 | float16_bits(low); }
inline float to_tf32(float value) {
  if (emulated::rounding) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits = (bits + 0x1000u) & 0xffffe000u;
    memcpy(&value, &bits, 4);
  }
  return value;
}
inline void multiply(float (&sum)[4], const float (&a)[4], float b0, float b1) {
  using namespace emulated;
  int base = current / 32 * 32, lane = current % 32;
  memcpy(a_of[current], a, sizeof a);
  b_of[current][0] = b0;
  b_of[current][1] = b1;
  warp_barrier();
  for (int i = 0; i < 4; ++i) {
    int m = lane / 4 + i / 2 * 8, n = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 8; ++k)
      sum[i] += a_of[base + m % 8 * 4 + k % 4][m / 8 + k / 4 * 2] * b_of[base + n * 4 + k % 4][k / 4];
  }
  warp_barrier();
}
inline unsigned take_ticket(unsigned* counter, unsigned last) {
  unsigned taken = *counter;
  *counter = taken >= last ? 0 : taken + 1;
  return taken;
}
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline void fetch(const float* address) { (void)*(const volatile float*)address; }  // announced is what will be read
inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
inline float tangent(float x) { return tanhf(x); }
#define KERNEL static void

// One walk over all T steps of an LSTM or GRU layer, forward or backward, for ROWS batch rows and CLUSTER thread blocks.
//
// The recurrent weights stay in registers for the whole walk. A step is a product (state × weights, into `part`), a
// barrier, the pointwise part (gates, new state), and a barrier across the cluster, whose blocks each own UNITS hidden
// units and write what they make into the shared memory of all the others.
//
// Compiled behind device.cu and recurrence.cu, once per shape; all of these are defined outside:
//   LSTM (1: LSTM, 0: GRU)  BACKWARD (0, 1)  MMA (1: TF32 tensor cores, 0: FMA)  EXACT (accurate tanh and exp)
//   HIDDEN  PADDED  CLUSTER  ROWS  SPLIT (parts of the reduction)  TILES (tiles of 16 columns a warp)  THREADS
//   BLOCKS (thread blocks that share a multiprocessor)  AHEAD (steps that reads are announced to the L2 cache ahead)
//   FEATURES (so many inputs the walk multiplies itself, in float32; 0: large products outside do)
//   SUMMED (1: backward sums the gradient of the recurrent weights itself; FMA, no cluster)
// forward.cu and backward.cu follow; sums.cu adds up what backward left in parts.

#define COLUMNS (BACKWARD ? UNITS : GATES * UNITS)
#define DEPTH (BACKWARD ? GATES * PADDED : PADDED)
#define BUFFERS (CLUSTER > 1 ? 2 : 1)
#define IN_STRIDE (DEPTH + 4)       // banks: rows 4 apart, so that neither a broadcast nor a fragment conflicts
#define PART_STRIDE (COLUMNS + 4)
#define ELEMENTS (UNITS * ROWS)
#define EACH ((ELEMENTS + THREADS - 1) / THREADS)
#define BIASES (THREADS % UNITS == 0 ? 1 : EACH)  // 1: all elements of a thread are of one unit and share its biases
#define LOCAL_DEPTH (DEPTH / SPLIT)
#define LATE (CLUSTER > 1 && EACH <= 2)  // global memory is touched after arriving at the barrier, if registers suffice

// The weight that column `column` of this block multiplies input `depth` with.
__device__ __forceinline__ float weight_at(const Walk& walk, int rank, int column, int depth) {
#if BACKWARD
  int gate = depth / PADDED, from = depth % PADDED, unit = rank * UNITS + column;
  bool inside = from < HIDDEN && unit < HIDDEN;
  return inside ? walk.weight[(gate * HIDDEN + from) * HIDDEN + unit] : 0.0f;
#else
  int gate = column / UNITS, unit = rank * UNITS + column % UNITS;
  bool inside = unit < HIDDEN && depth < HIDDEN;
  return inside ? walk.weight[(gate * HIDDEN + unit) * HIDDEN + depth] : 0.0f;
#endif
}

#if MMA
#define GROUPS (COLUMNS / 16 / TILES)
#define STEPS_OF_8 (LOCAL_DEPTH / 8)
struct Product {
  float a[TILES][STEPS_OF_8][4];
  __device__ __forceinline__ void load(const Walk& walk, int rank) {
    int lane = thread_index() % 32, warp = thread_index() / 32;
    int first = warp % GROUPS * TILES * 16 + lane / 4, from = warp / GROUPS * LOCAL_DEPTH + lane % 4;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int k = 0; k < STEPS_OF_8; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          a[tile][k][i] = to_tf32(weight_at(walk, rank, first + tile * 16 + i % 2 * 8, from + k * 8 + i / 2 * 4));
  }
  __device__ __forceinline__ void operator()(const float* in, float* part) const {
    int lane = thread_index() % 32, warp = thread_index() / 32, split = warp / GROUPS;
    const float* mine = in + lane / 4 * IN_STRIDE + split * LOCAL_DEPTH + lane % 4;
    float* out = part + (split * ROWS + lane % 4 * 2) * PART_STRIDE + warp % GROUPS * TILES * 16 + lane / 4;
#pragma unroll
    for (int rows = 0; rows < ROWS / 8; ++rows) {
      float sum[TILES][4] = {};
#pragma unroll
      for (int k = 0; k < STEPS_OF_8; ++k) {
        float b0 = mine[rows * 8 * IN_STRIDE + k * 8], b1 = mine[rows * 8 * IN_STRIDE + k * 8 + 4];
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) multiply(sum[tile], a[tile][k], b0, b1);
      }
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          out[(rows * 8 + i % 2) * PART_STRIDE + tile * 16 + i / 2 * 8] = sum[tile][i];
    }
  }
};
#else
#define CHAINS (ROWS <= 2 ? 4 : ROWS <= 4 ? 2 : 1) // independent sums, to hide the latency of an FMA
struct Product {
  float w[LOCAL_DEPTH];
  __device__ __forceinline__ void load(const Walk& walk, int rank) {
    int column = thread_index() % COLUMNS, from = thread_index() / COLUMNS * LOCAL_DEPTH;
#pragma unroll
    for (int k = 0; k < LOCAL_DEPTH; ++k)
      w[k] = thread_index() < COLUMNS * SPLIT ? weight_at(walk, rank, column, from + k) : 0.0f;
  }
  __device__ __forceinline__ void operator()(const float* in, float* part) const {
    if (thread_index() >= COLUMNS * SPLIT) return;
    int split = thread_index() / COLUMNS;
    float sum[ROWS][CHAINS] = {};
#pragma unroll
    for (int k = 0; k < LOCAL_DEPTH; k += 4)
#pragma unroll
      for (int row = 0; row < ROWS; ++row) {
        float4 v = *(const float4*)(in + row * IN_STRIDE + split * LOCAL_DEPTH + k);
        sum[row][0] += v.x * w[k];
        sum[row][1 % CHAINS] += v.y * w[k + 1];
        sum[row][2 % CHAINS] += v.z * w[k + 2];
        sum[row][3 % CHAINS] += v.w * w[k + 3];
      }
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      float total = sum[row][0];
#pragma unroll
      for (int chain = 1; chain < CHAINS; ++chain) total += sum[row][chain];
      part[(split * ROWS + row) * PART_STRIDE + thread_index() % COLUMNS] = total;
    }
  }
};
#endif

__device__ __forceinline__ float rounded(float value) {
#if MMA
  return to_tf32(value);
#else
  return value;
#endif
}

__device__ __forceinline__ float summed(const float* part, int row, int column) {
  float total = 0.0f;
#pragma unroll
  for (int split = 0; split < SPLIT; ++split) total += part[(split * ROWS + row) * PART_STRIDE + column];
  return total;
}

// One hidden unit of one batch row, and what its thread carries through the walk.
struct Element {
  int local, row, unit, sample;
  bool used, real;  // of this block; and inside the batch and the layer
  __device__ __forceinline__ void find(int index, int rank, int batch) {
    local = index % UNITS;
    row = index / UNITS;
    unit = rank * UNITS + local;
    sample = block_index() / CLUSTER * ROWS + row;
    used = index < ELEMENTS;
    real = used && unit < HIDDEN && sample < batch;
  }
};

#if FEATURES
// The inputs of this block's rows: read a step before they are put into shared memory, where two steps have their place.
#define INPUTS (ROWS * FEATURES)
#define INPUTS_EACH ((INPUTS + THREADS - 1) / THREADS)
struct Inputs {
  float coming[INPUTS_EACH];
  float* places;
  __device__ __forceinline__ void read(const Walk& walk, int step) {
    const int later = BACKWARD ? step - AHEAD : step + AHEAD;
    long long t = walk.reverse ? walk.steps - 1 - step : step, ahead = walk.reverse ? step - later : later - step;
#pragma unroll
    for (int n = 0; n < INPUTS_EACH; ++n) {
      int index = thread_index() + n * THREADS;
      long long sample = block_index() / CLUSTER * ROWS + index / FEATURES;
      bool inside = index < INPUTS && sample < walk.batch;
      const float* from = walk.x + t * walk.x_step + sample * walk.x_row + index % FEATURES;
      coming[n] = inside && step >= 0 && step < walk.steps ? *from : 0.0f;
      if (inside && later >= 0 && later < walk.steps) fetch(from + ahead * walk.x_step);
    }
  }
  __device__ __forceinline__ void put(int step) {
#pragma unroll
    for (int n = 0; n < INPUTS_EACH; ++n) {
      int index = thread_index() + n * THREADS;
      if (index < INPUTS) places[(step & 1) * INPUTS + index] = coming[n];
    }
  }
  __device__ __forceinline__ const float* of(int step, int row) const {
    return places + (step & 1) * INPUTS + row * FEATURES;
  }
};
#endif

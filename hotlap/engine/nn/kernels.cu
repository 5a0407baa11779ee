// One walk over all T steps of an LSTM or GRU layer, forward or backward, for ROWS batch rows and CLUSTER thread blocks.
//
// The recurrent weights stay in registers for the whole walk. A step is a product (state × weights, into `part`), a
// barrier, the pointwise part (gates, new state), and a barrier across the cluster, whose blocks each own UNITS hidden
// units and write what they make into the shared memory of all the others.
//
// Compiled behind device.cu, once per shape; all of these are defined outside:
//   LSTM (1: LSTM, 0: GRU)  BACKWARD (0, 1)  MMA (1: TF32 tensor cores, 0: FMA)  EXACT (accurate tanh and exp)
//   HIDDEN  PADDED  CLUSTER  ROWS  SPLIT (parts of the reduction)  TILES (tiles of 16 columns a warp)  THREADS
//   BLOCKS (thread blocks that share a multiprocessor)  AHEAD (steps that reads are announced to the L2 cache ahead)

#define GATES (LSTM ? 4 : 3)
#define UNITS (PADDED / CLUSTER)
#define COLUMNS (BACKWARD ? UNITS : GATES * UNITS)
#define DEPTH (BACKWARD ? GATES * PADDED : PADDED)
#define BUFFERS (CLUSTER > 1 ? 2 : 1)
#define IN_STRIDE (DEPTH + 4)       // banks: rows 4 apart, so that neither a broadcast nor a fragment conflicts
#define PART_STRIDE (COLUMNS + 4)
#define ELEMENTS (UNITS * ROWS)
#define EACH ((ELEMENTS + THREADS - 1) / THREADS)
#define BIASES (THREADS % UNITS == 0 ? 1 : EACH)  // 1: all elements of a thread are of one unit and share its biases
#define LOCAL_DEPTH (DEPTH / SPLIT)

struct Walk {
  float* gates;       // forward: x W_ih. Backward: all products in, gradients of them out (GRU: r, z, n of x, n of h)
  const float* weight;
  const float* bias_ih;
  const float* bias_hh;
  const float* h0;
  const float* c0;
  float* y;
  float* cells;
  float* h_n;
  float* c_n;
  const float* dy;
  const float* dh_n;
  const float* dc_n;
  float* dh0;
  float* dc0;
  float* dbias;       // one row of 4 × HIDDEN for each cluster
  long long gates_row, y_row, dy_step, dy_row;
  int steps, batch, reverse, keep;  // keep: forward leaves in `gates` what backward begins with
};

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

__device__ __forceinline__ float or_zero(const float* values, long long index, bool real) {
  return real && values != 0 ? values[index] : 0.0f;
}

#if !BACKWARD
KERNEL rnn_forward(const Walk walk) {
  SHARED
  float* in = shared_memory;
  float* part = in + BUFFERS * ROWS * IN_STRIDE;
  const int rank = cluster_rank(), tid = thread_index(), batch = walk.batch;
  Product product;
  product.load(walk, rank);
  for (int i = tid; i < BUFFERS * ROWS * IN_STRIDE; i += THREADS) in[i] = 0.0f;
  block_barrier();
  for (int i = tid; i < ROWS * HIDDEN; i += THREADS) {
    int sample = block_index() / CLUSTER * ROWS + i / HIDDEN;
    float h = or_zero(walk.h0, (long long)sample * HIDDEN + i % HIDDEN, sample < batch);
    in[i / HIDDEN * IN_STRIDE + i % HIDDEN] = rounded(h);
  }
  Element one[EACH];
  float c[EACH], x[EACH][GATES], bias[BIASES][4], h[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    one[e].find(tid + e * THREADS, rank, batch);
    long long at = (long long)one[e].sample * HIDDEN + one[e].unit;
    c[e] = or_zero(LSTM ? walk.c0 : 0, at, one[e].real);
    h[e] = or_zero(walk.h0, at, one[e].real);
#pragma unroll
    for (int g = 0; g < GATES; ++g) {
      int column = g * HIDDEN + one[e].unit;
      if (e < BIASES) {  // of the first row: where it is outside the batch, the others are too
        float of_h = or_zero(walk.bias_hh, column, one[e].real);
        bias[e][g] = or_zero(walk.bias_ih, column, one[e].real) + (LSTM || g < 2 ? of_h : 0.0f);
        if (!LSTM) bias[e][3] = of_h;
      }
      long long row = (long long)(walk.reverse ? walk.steps - 1 : 0) * batch + one[e].sample;
      x[e][g] = or_zero(walk.gates, row * walk.gates_row + column, one[e].real);
    }
  }
  cluster_barrier();
  for (int step = 0; step < walk.steps; ++step) {
    int buffer = BUFFERS > 1 ? step % 2 : 0, next = BUFFERS > 1 ? 1 - buffer : 0;
    product(in + buffer * ROWS * IN_STRIDE, part);
    block_barrier();
    long long t = walk.reverse ? walk.steps - 1 - step : step, after = walk.reverse ? -1 : 1;
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      if (!one[e].used) continue;
      float a[GATES], recurrent[GATES];
#pragma unroll
      for (int g = 0; g < GATES; ++g) {
        recurrent[g] = summed(part, one[e].row, g * UNITS + one[e].local);
        a[g] = x[e][g] + bias[e % BIASES][g];
      }
      long long row = t * batch + one[e].sample;
      if (one[e].real && walk.keep) {
        float* kept = walk.gates + row * walk.gates_row + one[e].unit;
#pragma unroll
        for (int g = 0; g < GATES; ++g) {
          bool alone = !LSTM && g == 2;  // its two products stay apart
          kept[(alone ? 3 : g) * HIDDEN] = alone ? recurrent[g] : x[e][g] + recurrent[g];
        }
      }
      if (one[e].real && step + 1 < walk.steps) {
        const float* coming = walk.gates + (row + after * batch) * walk.gates_row + one[e].unit;
#pragma unroll
        for (int g = 0; g < GATES; ++g) {
          x[e][g] = coming[g * HIDDEN];
          if (AHEAD > 1 && step + AHEAD < walk.steps)
            fetch(coming + after * (AHEAD - 1) * batch * walk.gates_row + g * HIDDEN);
        }
      }
#if LSTM
      float i = sigmoid(a[0] + recurrent[0]), f = sigmoid(a[1] + recurrent[1]);
      float g = tangent(a[2] + recurrent[2]), o = sigmoid(a[3] + recurrent[3]);
      c[e] = f * c[e] + i * g;
      h[e] = o * tangent(c[e]);
      if (one[e].real && walk.cells) walk.cells[row * HIDDEN + one[e].unit] = c[e];
#else
      float r = sigmoid(a[0] + recurrent[0]), z = sigmoid(a[1] + recurrent[1]);
      float n = tangent(a[2] + r * (recurrent[2] + bias[e % BIASES][3]));
      h[e] = n + z * (h[e] - n);
#endif
      float* place = in + (next * ROWS + one[e].row) * IN_STRIDE + one[e].unit;
      put_everywhere(place, one[e].real ? rounded(h[e]) : 0.0f);
      if (one[e].real) walk.y[row * walk.y_row + one[e].unit] = h[e];
    }
    cluster_barrier();
  }
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    if (!one[e].real) continue;
    long long at = (long long)one[e].sample * HIDDEN + one[e].unit;
    walk.h_n[at] = h[e];
    if (LSTM) walk.c_n[at] = c[e];
  }
}
#endif

#if BACKWARD
// What one element reads at a step; read one step ahead, while the product runs.
struct Step {
  float a[4], before, dy;  // before: c (LSTM) or h (GRU) of the step before in the walk
  __device__ __forceinline__ void read(const Walk& walk, const Element& one, int step) {
    if (!one.real) return;
    long long t = walk.reverse ? walk.steps - 1 - step : step, after = walk.reverse ? -1 : 1;
    long long row = t * walk.batch + one.sample, earlier = row - after * walk.batch;
    const float* from = walk.gates + row * 4 * HIDDEN + one.unit;
#pragma unroll
    for (int g = 0; g < 4; ++g) a[g] = from[g * HIDDEN];
    if (step > 0)
      before = LSTM ? walk.cells[earlier * HIDDEN + one.unit] : walk.y[earlier * walk.y_row + one.unit];
    else
      before = or_zero(LSTM ? walk.c0 : walk.h0, (long long)one.sample * HIDDEN + one.unit, true);
    dy = walk.dy ? walk.dy[t * walk.dy_step + one.sample * walk.dy_row + one.unit] : 0.0f;
    if (AHEAD > 1 && step >= AHEAD) {
      long long back = after * (AHEAD - 1) * walk.batch;
#pragma unroll
      for (int g = 0; g < 4; ++g) fetch(from - back * 4 * HIDDEN + g * HIDDEN);
      if (LSTM) fetch(walk.cells + (earlier - back) * HIDDEN + one.unit);
    }
  }
};

KERNEL rnn_backward(const Walk walk) {
  SHARED
  float* in = shared_memory;
  float* part = in + BUFFERS * ROWS * IN_STRIDE;
  const int rank = cluster_rank(), tid = thread_index(), batch = walk.batch;
  Product product;
  product.load(walk, rank);
  for (int i = tid; i < BUFFERS * ROWS * IN_STRIDE; i += THREADS) in[i] = 0.0f;
  Element one[EACH];
  Step now[EACH];
  float bias[BIASES][4], dbias[BIASES][4], direct[EACH], dc[EACH], c[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    one[e].find(tid + e * THREADS, rank, batch);
    long long at = (long long)one[e].sample * HIDDEN + one[e].unit;
    direct[e] = or_zero(walk.dh_n, at, one[e].real);
    dc[e] = or_zero(LSTM ? walk.dc_n : 0, at, one[e].real);
    long long last = (long long)(walk.reverse ? 0 : walk.steps - 1) * batch + one[e].sample;
    c[e] = or_zero(LSTM ? walk.cells : 0, last * HIDDEN + one[e].unit, one[e].real);
#pragma unroll
    for (int g = 0; g < 4 && e < BIASES; ++g) {
      dbias[e][g] = 0.0f;
      int column = (LSTM || g < 3 ? g : 2) * HIDDEN + one[e].unit;
      float of_x = or_zero(walk.bias_ih, column, one[e].real), of_h = or_zero(walk.bias_hh, column, one[e].real);
      bias[e][g] = (LSTM || g < 3 ? of_x : 0.0f) + (LSTM || g != 2 ? of_h : 0.0f);
    }
    now[e].read(walk, one[e], walk.steps - 1);
  }
  cluster_barrier();
  for (int step = walk.steps - 1; step >= 0; --step) {
    int buffer = BUFFERS > 1 ? step % 2 : 0;
    long long t = walk.reverse ? walk.steps - 1 - step : step;
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      if (!one[e].used) continue;
      float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (one[e].real) {
        float dh = direct[e] + now[e].dy, before = now[e].before, a[4];
        if (step + 1 < walk.steps) dh += summed(part, one[e].row, one[e].local);
#pragma unroll
        for (int g = 0; g < 4; ++g) a[g] = now[e].a[g] + bias[e % BIASES][g];
        if (step > 0) now[e].read(walk, one[e], step - 1);
#if LSTM
        float i = sigmoid(a[0]), f = sigmoid(a[1]), g = tangent(a[2]), o = sigmoid(a[3]), tc = tangent(c[e]);
        float of_c = dc[e] + dh * o * (1.0f - tc * tc);
        d[0] = of_c * g * i * (1.0f - i);
        d[1] = of_c * before * f * (1.0f - f);
        d[2] = of_c * i * (1.0f - g * g);
        d[3] = dh * tc * o * (1.0f - o);
        dc[e] = of_c * f;
        c[e] = before;
        direct[e] = 0.0f;
#else
        float r = sigmoid(a[0]), z = sigmoid(a[1]), n = tangent(a[2] + r * a[3]);
        d[1] = dh * (before - n) * z * (1.0f - z);
        d[2] = dh * (1.0f - z) * (1.0f - n * n);
        d[0] = d[2] * a[3] * r * (1.0f - r);
        d[3] = d[2] * r;
        direct[e] = dh * z;
#endif
        float* to = walk.gates + (t * batch + one[e].sample) * 4 * HIDDEN + one[e].unit;
#pragma unroll
        for (int g = 0; g < 4; ++g) {
          to[g * HIDDEN] = d[g];
          dbias[e % BIASES][g] += d[g];
        }
      }
      float* place = in + (buffer * ROWS + one[e].row) * IN_STRIDE + one[e].unit;
#pragma unroll
      for (int g = 0; g < GATES; ++g) put_everywhere(place + g * PADDED, rounded(d[LSTM || g < 2 ? g : 3]));
    }
    cluster_barrier();
    product(in + buffer * ROWS * IN_STRIDE, part);
    block_barrier();
  }
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    if (!one[e].real) continue;
    long long at = (long long)one[e].sample * HIDDEN + one[e].unit;
    if (walk.dh0) walk.dh0[at] = direct[e] + summed(part, one[e].row, one[e].local);
    if (LSTM && walk.dc0) walk.dc0[at] = dc[e];
  }
  cluster_barrier();  // the sums below reuse memory that others of the cluster write to
#pragma unroll
  for (int e = 0; e < EACH; ++e)
#pragma unroll
    for (int g = 0; g < 4; ++g)
      if (one[e].used) in[(one[e].row * 4 + g) * UNITS + one[e].local] = e < BIASES ? dbias[e % BIASES][g] : 0.0f;
  block_barrier();
  for (int i = tid; i < 4 * UNITS; i += THREADS) {
    float total = 0.0f;
    for (int row = 0; row < ROWS; ++row) total += in[row * 4 * UNITS + i];
    int unit = rank * UNITS + i % UNITS;
    if (unit < HIDDEN) walk.dbias[((long long)(block_index() / CLUSTER) * 4 + i / UNITS) * HIDDEN + unit] = total;
  }
}
#endif

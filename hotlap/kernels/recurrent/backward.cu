// Backward; compiled behind kernels.cu.

// What one element reads at a step; read one step ahead, while the product runs. Of gates it reads none but its own, and
// once, so that their gradients may take their place.
struct Step {
  float a[4], before, dy, h;  // before: c (LSTM) or h (GRU) of the step before in the walk; h: that step's h, if SUMMED
  __device__ __forceinline__ void read(const Walk& walk, const Element& one, int step) {
    if (!one.real) return;
    long long t = walk.reverse ? walk.steps - 1 - step : step, after = walk.reverse ? -1 : 1;
    long long row = t * walk.batch + one.sample, earlier = row - after * walk.batch;
    const float* from = walk.kept + row * (KEPT * HIDDEN) + one.unit;
#pragma unroll
    for (int g = 0; g < 4; ++g) a[g] = from[g * HIDDEN];
    if (step > 0)
      before = LSTM ? walk.kept[earlier * (KEPT * HIDDEN) + 4 * HIDDEN + one.unit]
                    : walk.y[earlier * walk.y_row + one.unit];
    else
      before = or_zero(LSTM ? walk.c0 : walk.h0, (long long)one.sample * HIDDEN + one.unit, true);
    if (!SUMMED || !LSTM)
      h = before;
    else if (step > 0)
      h = walk.y[earlier * walk.y_row + one.unit];
    else
      h = or_zero(walk.h0, (long long)one.sample * HIDDEN + one.unit, true);
    dy = walk.dy ? walk.dy[t * walk.dy_step + one.sample * walk.dy_row + one.unit] : 0.0f;
    if (AHEAD > 1 && step >= AHEAD) {
      long long back = after * (AHEAD - 1);
#pragma unroll
      for (int g = 0; g < KEPT; ++g)
        fetch(from - back * walk.batch * (KEPT * HIDDEN) + g * HIDDEN);
      if (!LSTM || SUMMED) fetch(walk.y + (row - back * walk.batch) * walk.y_row + one.unit);
      if (walk.dy) fetch(walk.dy + (t - back) * walk.dy_step + one.sample * walk.dy_row + one.unit);
    }
  }
};

// Gradients of the gates of one element, from that of its state; `direct` and `dc` are what goes on to the step before.
__device__ __forceinline__ void gradients(const Step& now, float dh, float& direct, float& dc, float& c, float (&d)[4]) {
#if LSTM
  float i = now.a[0], f = now.a[1], g = now.a[2], o = now.a[3], tc = tangent(c);
  float of_c = dc + dh * o * (1.0f - tc * tc);
  d[0] = of_c * g * i * (1.0f - i);
  d[1] = of_c * now.before * f * (1.0f - f);
  d[2] = of_c * i * (1.0f - g * g);
  d[3] = dh * tc * o * (1.0f - o);
  dc = of_c * f;
  c = now.before;
  direct = 0.0f;
#else
  float r = now.a[0], z = now.a[1], n = now.a[2];
  d[1] = dh * (now.before - n) * z * (1.0f - z);
  d[2] = dh * (1.0f - z) * (1.0f - n * n);
  d[0] = d[2] * now.a[3] * r * (1.0f - r);
  d[3] = d[2] * r;
  direct = dh * z;
#endif
}

#if SUMMED
// The gradient of the recurrent weights: a thread sums for one gate of one unit, and for every SLOTS-th group of four states.
#define GATES_OF_ALL (GATES * PADDED)
#define SLOTS (THREADS / GATES_OF_ALL)
#define CHUNKS ((PADDED / 4 + SLOTS - 1) / SLOTS)
struct OfStates {
  float sum[CHUNKS][4];
  float* states;  // of the step before, ROWS × PADDED
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < CHUNKS * 4; ++i) sum[i / 4][i % 4] = 0.0f;
  }
  __device__ __forceinline__ void add(const float* in) {
    int column = thread_index() % GATES_OF_ALL, slot = thread_index() / GATES_OF_ALL;
    if (slot >= SLOTS) return;
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      float d = in[row * IN_STRIDE + column];
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        int first = (slot + chunk * SLOTS) * 4;
        if (first >= PADDED) continue;
        float4 h = *(const float4*)(states + row * PADDED + first);
        sum[chunk][0] += d * h.x;
        sum[chunk][1] += d * h.y;
        sum[chunk][2] += d * h.z;
        sum[chunk][3] += d * h.w;
      }
    }
  }
  __device__ __forceinline__ void store(const Walk& walk) const {
    int column = thread_index() % GATES_OF_ALL, slot = thread_index() / GATES_OF_ALL;
    int gate = column / PADDED, unit = column % PADDED;
    if (slot >= SLOTS || unit >= HIDDEN) return;
    float* to = walk.of_states + ((long long)block_index() * GATES + gate) * HIDDEN * HIDDEN + unit * HIDDEN;
#pragma unroll
    for (int i = 0; i < CHUNKS * 4; ++i) {
      int state = (slot + i / 4 * SLOTS) * 4 + i % 4;
      if (state < HIDDEN) to[state] = sum[i / 4][i % 4];
    }
  }
};
#endif

__device__ __forceinline__ void store(const Walk& walk, const Element& one, long long t, const float (&d)[4]) {
  if (!one.real) return;
  float* to = walk.dgates + (t * walk.batch + one.sample) * walk.dgates_row + one.unit;
#pragma unroll
  for (int g = 0; g < 4; ++g) to[g * HIDDEN] = d[g];
}

KERNEL rnn_backward(const Walk walk) {
  SHARED
  float* in = shared_memory;
  float* part = in + BUFFERS * ROWS * IN_STRIDE;
  const int rank = cluster_rank(), tid = thread_index(), batch = walk.batch;
  Product product;
  product.load(walk, rank);
  float* rest = part + SPLIT * ROWS * PART_STRIDE;  // a multiple of four floats from the beginning
#if SUMMED
  OfStates of_states;
  of_states.states = rest;
  of_states.clear();
  rest += ROWS * PADDED;
#endif
#if FEATURES
  Inputs inputs;
  inputs.places = rest;
  inputs.read(walk, walk.steps - 1);
  inputs.put(walk.steps - 1);
  inputs.read(walk, walk.steps - 2);
#endif
  for (int i = tid; i < BUFFERS * ROWS * IN_STRIDE; i += THREADS) in[i] = 0.0f;
  Element one[EACH];
  Step now[EACH];
  float sums[BIASES][4][1 + FEATURES] = {}, direct[EACH], dc[EACH], c[EACH];  // sums: of biases, of each feature's weight
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    one[e].find(tid + e * THREADS, rank, batch);
    long long at = (long long)one[e].sample * HIDDEN + one[e].unit;
    direct[e] = or_zero(walk.dh_n, at, one[e].real);
    dc[e] = or_zero(LSTM ? walk.dc_n : 0, at, one[e].real);
    long long last = (long long)(walk.reverse ? 0 : walk.steps - 1) * batch + one[e].sample;
    c[e] = or_zero(LSTM ? walk.kept : 0, last * (KEPT * HIDDEN) + 4 * HIDDEN + one[e].unit, one[e].real);
    now[e].read(walk, one[e], walk.steps - 1);
  }
  cluster_barrier();
  for (int step = walk.steps - 1; step >= 0; --step) {
    int buffer = BUFFERS > 1 ? step % 2 : 0;
    long long t = walk.reverse ? walk.steps - 1 - step : step;
    float d[EACH][4];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      if (!one[e].used) continue;
#pragma unroll
      for (int g = 0; g < 4; ++g) d[e][g] = 0.0f;
#if SUMMED
      if (!one[e].real) of_states.states[one[e].row * PADDED + one[e].unit] = 0.0f;
#endif
      if (one[e].real) {
        float dh = direct[e] + now[e].dy;
        if (step + 1 < walk.steps) dh += summed(part, one[e].row, one[e].local);
        Step then = now[e];
#if SUMMED
        of_states.states[one[e].row * PADDED + one[e].unit] = then.h;
#endif
        if (!LATE && step > 0) now[e].read(walk, one[e], step - 1);
        gradients(then, dh, direct[e], dc[e], c[e], d[e]);
      }
      float* place = in + (buffer * ROWS + one[e].row) * IN_STRIDE + one[e].unit;
#pragma unroll
      for (int g = 0; g < GATES; ++g) put_everywhere(place + g * PADDED, rounded(d[e][LSTM || g < 2 ? g : 3]));
      if (!LATE) store(walk, one[e], t, d[e]);
    }
    cluster_arrive();
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      if (!one[e].used) continue;
      if (LATE && step > 0) now[e].read(walk, one[e], step - 1);
      if (LATE) store(walk, one[e], t, d[e]);
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        sums[e % BIASES][g][0] += d[e][g];
#if FEATURES
#pragma unroll
        for (int i = 0; i < FEATURES && g < GATES; ++i)
          sums[e % BIASES][g][1 + i] += d[e][g] * inputs.of(step, one[e].row)[i];
#endif
      }
    }
    cluster_wait();
#if FEATURES
    inputs.put(step - 1);  // its place was last read before the barrier of step + 1
    inputs.read(walk, step - 2);
#endif
    product(in + buffer * ROWS * IN_STRIDE, part);
#if SUMMED
    of_states.add(in);
#endif
    block_barrier();
  }
#if SUMMED
  of_states.store(walk);
#endif
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    if (!one[e].real) continue;
    long long at = (long long)one[e].sample * HIDDEN + one[e].unit;
    if (walk.dh0) walk.dh0[at] = direct[e] + summed(part, one[e].row, one[e].local);
    if (LSTM && walk.dc0) walk.dc0[at] = dc[e];
  }
  cluster_barrier();  // the sums below reuse memory that others of the cluster write to
#pragma unroll
  for (int k = 0; k <= FEATURES; ++k) {
#pragma unroll
    for (int e = 0; e < EACH; ++e)
#pragma unroll
      for (int g = 0; g < 4; ++g)
        if (one[e].used) in[(one[e].row * 4 + g) * UNITS + one[e].local] = e < BIASES ? sums[e % BIASES][g][k] : 0.0f;
    block_barrier();
    for (int i = tid; i < 4 * UNITS; i += THREADS) {
      float total = 0.0f;
      for (int row = 0; row < ROWS; ++row) total += in[row * 4 * UNITS + i];
      int unit = rank * UNITS + i % UNITS;
      long long place = ((long long)(block_index() / CLUSTER) * (1 + FEATURES) + k) * 4 + i / UNITS;
      if (unit < HIDDEN) walk.parts[place * HIDDEN + unit] = total;
    }
    block_barrier();
  }
}

// Forward; compiled behind kernels.cu.

// The inputs' part of one element's gates, without biases.
struct FromInputs {
#if FEATURES
  float weight[BIASES][GATES][FEATURES];
  Inputs inputs;
  __device__ __forceinline__ void load(const Walk& walk, const Element& one, int e) {
    if (e >= BIASES) return;
#pragma unroll
    for (int g = 0; g < GATES; ++g)
#pragma unroll
      for (int i = 0; i < FEATURES; ++i)
        weight[e % BIASES][g][i] =
            or_zero(walk.weight_ih, (long long)(g * HIDDEN + one.unit) * FEATURES + i, one.real);
  }
  __device__ __forceinline__ void operator()(const Walk&, const Element& one, int e, int step, float (&x)[GATES]) const {
    const float* values = inputs.of(step, one.row);
#pragma unroll
    for (int g = 0; g < GATES; ++g) x[g] = 0.0f;
#pragma unroll
    for (int i = 0; i < FEATURES; ++i)
#pragma unroll
      for (int g = 0; g < GATES; ++g) x[g] += values[i] * weight[e % BIASES][g][i];
  }
#else
  __device__ __forceinline__ void load(const Walk&, const Element&, int) {}
  __device__ __forceinline__ void operator()(
      const Walk& walk, const Element& one, int, int step, float (&x)[GATES]) const {
    bool inside = one.real && step < walk.steps;
    long long t = walk.reverse ? walk.steps - 1 - step : step, after = walk.reverse ? -1 : 1;
    const float* from = walk.x + t * walk.x_step + one.sample * walk.x_row + one.unit;
#pragma unroll
    for (int g = 0; g < GATES; ++g) {
      x[g] = inside ? from[g * HIDDEN] : 0.0f;
      if (AHEAD > 1 && inside && step + AHEAD <= walk.steps)
        fetch(from + after * (AHEAD - 1) * walk.x_step + g * HIDDEN);
    }
  }
#endif
};

__device__ __forceinline__ void store(
    const Walk& walk, const Element& one, long long t, float h, const float (&keeping)[KEPT]) {
  if (!one.real) return;
  long long row = t * walk.batch + one.sample;
  walk.y[row * walk.y_row + one.unit] = h;
  if (walk.kept == 0) return;
  float* kept = walk.kept + row * (KEPT * HIDDEN) + one.unit;
#pragma unroll
  for (int k = 0; k < KEPT; ++k) kept[k * HIDDEN] = keeping[k];
}

KERNEL rnn_forward(const Walk walk) {
  SHARED
  float* in = shared_memory;
  float* part = in + BUFFERS * ROWS * IN_STRIDE;
  const int rank = cluster_rank(), tid = thread_index(), batch = walk.batch;
  Product product;
  product.load(walk, rank);
  FromInputs from_inputs;
#if FEATURES
  from_inputs.inputs.places = part + SPLIT * ROWS * PART_STRIDE;
  from_inputs.inputs.read(walk, 0);
  from_inputs.inputs.put(0);
  from_inputs.inputs.read(walk, 1);
#endif
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
    for (int g = 0; g < GATES && e < BIASES; ++g) {  // of the first row: where it is outside the batch, the others are too
      int column = g * HIDDEN + one[e].unit;
      float of_h = or_zero(walk.bias_hh, column, one[e].real);
      bias[e % BIASES][g] = or_zero(walk.bias_ih, column, one[e].real) + (LSTM || g < 2 ? of_h : 0.0f);
      if (!LSTM) bias[e % BIASES][3] = of_h;
    }
    from_inputs.load(walk, one[e], e);
    if (one[e].used) from_inputs(walk, one[e], e, 0, x[e]);
  }
  cluster_barrier();
  for (int step = 0; step < walk.steps; ++step) {
    int buffer = BUFFERS > 1 ? step % 2 : 0, next = BUFFERS > 1 ? 1 - buffer : 0;
#if FEATURES
    from_inputs.inputs.put(step + 1);  // its place was last read before the barrier that ended step - 2
    from_inputs.inputs.read(walk, step + 2);
#endif
    product(in + buffer * ROWS * IN_STRIDE, part);
    block_barrier();
    long long t = walk.reverse ? walk.steps - 1 - step : step;
    float keeping[EACH][KEPT];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      if (!one[e].used) continue;
      float s[4];
#pragma unroll
      for (int g = 0; g < GATES; ++g) {
        float recurrent = summed(part, one[e].row, g * UNITS + one[e].local), a = x[e][g] + bias[e % BIASES][g];
        if (LSTM || g < 2) s[g] = a + recurrent;
        else s[2] = recurrent + bias[e % BIASES][3], s[3] = a;
      }
      if (!LATE) from_inputs(walk, one[e], e, step + 1, x[e]);
      pointwise(s, c[e], h[e], keeping[e]);
      float* place = in + (next * ROWS + one[e].row) * IN_STRIDE + one[e].unit;
      put_everywhere(place, one[e].real ? rounded(h[e]) : 0.0f);
      if (!LATE) store(walk, one[e], t, h[e], keeping[e]);
    }
    cluster_arrive();
#pragma unroll
    for (int e = 0; e < EACH && LATE; ++e) {
      if (!one[e].used) continue;
      store(walk, one[e], t, h[e], keeping[e]);
      from_inputs(walk, one[e], e, step + 1, x[e]);
    }
    cluster_wait();
  }
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    if (!one[e].real) continue;
    long long at = (long long)one[e].sample * HIDDEN + one[e].unit;
    walk.h_n[at] = h[e];
    if (LSTM) walk.c_n[at] = c[e];
  }
}

// Forward; compiled behind tiles.cu.

#define WARP_UNITS (16 / SPLIT)
#define STACK (4 / SPLIT)       // tiles of 16 sums: SPLIT 1: a gate of 16 units; 2: two gates of eight
#define STEPS_OF_16 (PADDED / 16)
typedef float Sums[NARROW][STACK][4];

// Four sums a unit: LSTM i f g o; GRU r, z, the state's part of n, the inputs' part of n.
__device__ __forceinline__ float& sum_of(Sums& sums, int e, int gate, int column) {
  const int narrow = e / HALVES / COLUMNS;
  return SPLIT == 1 ? sums[narrow][gate][half_of(e) * 2 + column] : sums[narrow][gate / 2 % STACK][gate % 2 * 2 + column];
}
__device__ __forceinline__ int gate_of(int tile, int i) { return SPLIT == 1 ? tile : 2 * tile + i % 2; }
__device__ __forceinline__ bool has_state(int tile) { return LSTM || SPLIT > 1 || tile < 3; }
__device__ __forceinline__ bool has_inputs(int tile) { return LSTM || SPLIT > 1 || tile != 2; }

// Element i of a fragment: which unit of the layer it is of.
__device__ __forceinline__ int unit_at(const Mine& mine, int i) { return mine.unit + (SPLIT == 1 ? i % 2 * 8 : 0); }

struct Product {
  float a[STACK][STEPS_OF_16 * 2][4];
  float4 b[NARROW][STEPS_OF_16];
  __device__ __forceinline__ void load(const Walk& walk, const Mine& mine) {
#pragma unroll
    for (int tile = 0; tile < STACK; ++tile)
#pragma unroll
      for (int k = 0; k < STEPS_OF_16 * 2; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          int gate = gate_of(tile, i), unit = unit_at(mine, i), depth = k / 2 * 16 + mine.q * 4 + k % 2 * 2 + i / 2;
          bool inside = gate < GATES && unit < HIDDEN && depth < HIDDEN;
          a[tile][k][i] = to_tf32(or_zero(walk.weight, (gate * HIDDEN + unit) * HIDDEN + depth, inside));
        }
  }
  __device__ __forceinline__ void read(const Mine& mine, const float* in) {
#pragma unroll
    for (int narrow = 0; narrow < NARROW; ++narrow)
#pragma unroll
      for (int k = 0; k < STEPS_OF_16; ++k)
        b[narrow][k] = *(const float4*)(in + place_of(mine.column(narrow)) + k * 16 + mine.q * 4);
  }
  // Few tiles: every other product goes into sums of its own, so that chains of dependent ones are half as long.
  __device__ __forceinline__ void operator()(Sums& sums) const {
    const bool apart = SPLIT > 1 && NARROW == 1;
    Sums others = {};
#pragma unroll
    for (int k = 0; k < STEPS_OF_16; ++k)
#pragma unroll
      for (int second = 0; second < 2; ++second)
#pragma unroll
        for (int tile = 0; tile < STACK; ++tile)
#pragma unroll
          for (int narrow = 0; narrow < NARROW; ++narrow) {
            const float4& v = b[narrow][k];
            if (!has_state(tile)) continue;
            float(&to)[4] = apart && second ? others[narrow][tile] : sums[narrow][tile];
            multiply(to, a[tile][2 * k + second], second ? v.z : v.x, second ? v.w : v.y);
          }
#pragma unroll
    for (int i = 0; i < NARROW * STACK * 4 && apart; ++i)
      sums[i / 4 / STACK][i / 4 % STACK][i % 4] += others[i / 4 / STACK][i / 4 % STACK][i % 4];
  }
};

// Sums begin with biases and the inputs' part, which is read a step before.
struct Begin {
  const float* from;  // of this thread, at the step that is read next
  long long move;
  float bias[HALVES][4];
  __device__ __forceinline__ void load_biases(const Walk& walk, const Mine& mine) {
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        int unit = mine.unit + half * 8, of_x = LSTM || g < 3 ? g : 2;
        bool inside = unit < HIDDEN, inputs = LSTM || g != 2, states = LSTM || g != 3;
        bias[half][g] = or_zero(walk.bias_ih, of_x * HIDDEN + unit, inside && inputs) +
                        or_zero(walk.bias_hh, g * HIDDEN + unit, inside && states);
      }
  }
#if FEATURES
  float a[STACK][X_STEPS][4], low[STACK][X_STEPS][4], coming[NARROW][X_STEPS][2];
  __device__ __forceinline__ void load(const Walk& walk, const Mine& mine) {
    load_biases(walk, mine);
    long long sample = block_index() / CLUSTER * ROWS + mine.column(0);
    from = walk.x + (walk.reverse ? (walk.steps - 1) * walk.x_step : 0) + sample * walk.x_row + mine.q;
    move = walk.reverse ? -walk.x_step : walk.x_step;
#pragma unroll
    for (int tile = 0; tile < STACK; ++tile)
#pragma unroll
      for (int k = 0; k < X_STEPS; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          int gate = gate_of(tile, i), unit = unit_at(mine, i), feature = k * 8 + mine.q + (BOTH ? 0 : i / 2 * 4);
          bool inside = unit < HIDDEN && feature < FEATURES && (LSTM || gate != 2);
          int row = (LSTM || gate < 3 ? gate : 2) * HIDDEN + unit;
          Parts weight;
          weight.of(or_zero(walk.weight_ih, (long long)row * FEATURES + feature, inside));
          a[tile][k][i] = weight.high, low[tile][k][i] = BOTH && i / 2 ? 0.0f : weight.low;
        }
  }
  __device__ __forceinline__ void read(const Walk& walk, const Mine& mine, const bool (&)[EACH], int step) {
#pragma unroll
    for (int narrow = 0; narrow < NARROW; ++narrow) {
      const float* at = from + narrow * 8 * walk.x_row;
      bool inside = step < walk.steps && block_index() / CLUSTER * ROWS + mine.column(narrow) < walk.batch;
#pragma unroll
      for (int i = 0; i < X_STEPS * 2; ++i)
        coming[narrow][i / 2][i % 2] = inside && i * 4 + mine.q < FEATURES ? at[i * 4] : 0.0f;
      if (inside && mine.warp == 0 && mine.q == 0 && step + AHEAD < walk.steps) fetch(at + AHEAD * move);
    }
    from += move;
  }
  __device__ __forceinline__ void operator()(Sums& sums) const {
    clear(sums);
#pragma unroll
    for (int k = 0; k < X_STEPS; ++k)
#pragma unroll
      for (int narrow = 0; narrow < NARROW; ++narrow) {
        Parts x0, x1;
        x0.of(coming[narrow][k][0]), x1.of(coming[narrow][k][1]);
#pragma unroll
        for (int tile = 0; tile < STACK; ++tile)
          if (has_inputs(tile)) multiply(sums[narrow][tile], low[tile][k], x0.high, x1.high);
#pragma unroll
        for (int tile = 0; tile < STACK; ++tile)
          if (has_inputs(tile) && !BOTH) multiply(sums[narrow][tile], a[tile][k], x0.low, x1.low);
#pragma unroll
        for (int tile = 0; tile < STACK; ++tile)
          if (has_inputs(tile)) multiply(sums[narrow][tile], a[tile][k], x0.high, BOTH ? x0.low : x1.high);
      }
  }
#else
  float coming[EACH][GATES];
  Announced announced;
  __device__ __forceinline__ void load(const Walk& walk, const Mine& mine) {
    load_biases(walk, mine);
    const float* first = walk.x + (walk.reverse ? (walk.steps - 1) * walk.x_step : 0);
    move = walk.reverse ? -walk.x_step : walk.x_step;
    from = first + mine.sample * walk.x_row + mine.unit;
    announced.clear();
    announced.add(walk, 0, first + AHEAD * move, walk.x_row, GATES * HIDDEN, move);
  }
  __device__ __forceinline__ void read(const Walk& walk, const Mine&, const bool (&real)[EACH], int step) {
#pragma unroll
    for (int e = 0; e < EACH; ++e)
#pragma unroll
      for (int g = 0; g < GATES; ++g) {
        const float* at = from + further(e) * walk.x_row;
        coming[e][g] = step < walk.steps && real[e] ? at[half_of(e) * 8 + g * HIDDEN] : 0.0f;
      }
    announced.go_on(step + AHEAD < walk.steps);
    from += move;
  }
  __device__ __forceinline__ void operator()(Sums& sums) const {
    clear(sums);
#pragma unroll
    for (int e = 0; e < EACH; ++e)
#pragma unroll
      for (int g = 0; g < GATES; ++g)
        sum_of(sums, e, LSTM || g < 2 ? g : 3, e / HALVES % COLUMNS) += coming[e][g];
  }
#endif
  __device__ __forceinline__ void clear(Sums& sums) const {
#pragma unroll
    for (int e = 0; e < EACH; ++e)
#pragma unroll
      for (int g = 0; g < 4; ++g)
#pragma unroll
        for (int column = 0; column < 2; ++column) sum_of(sums, e, g, column) = bias[half_of(e)][g];
  }
};

struct Outputs {
  float *y, *kept;  // of this thread's first element at this step
  int move;         // batch rows to the next
  __device__ __forceinline__ Outputs(const Walk& walk, const Mine& mine) {
    long long first = (walk.reverse ? walk.steps - 1LL : 0LL) * walk.batch + mine.sample;
    move = walk.reverse ? -walk.batch : walk.batch;
    y = walk.y + first * walk.y_row + mine.unit;
    kept = walk.kept == 0 ? 0 : walk.kept + first * (KEPT * HIDDEN) + mine.unit;
  }
  __device__ __forceinline__ void store(const Walk& walk, const bool (&real)[EACH], const float (&h)[EACH],
                                        const float (&keeping)[EACH][KEPT]) {
#pragma unroll
    for (int e = 0; e < EACH; ++e)
      if (real[e]) y[further(e) * walk.y_row + half_of(e) * 8] = h[e];
#pragma unroll
    for (int e = 0; e < EACH; ++e)
#pragma unroll
      for (int k = 0; k < KEPT; ++k)
        if (real[e] && kept != 0) kept[(further(e) * KEPT + k) * HIDDEN + half_of(e) * 8] = keeping[e][k];
    y += (long long)move * (int)walk.y_row;
    if (kept != 0) kept += (long long)move * (KEPT * HIDDEN);
  }
};

KERNEL rnn_forward(const Walk walk) {
  SHARED
  float* in = shared_memory;
  const int tid = thread_index();
  const Mine mine(tid / 32 * WARP_UNITS);
  Product product;
  product.load(walk, mine);
  Begin begin;
  begin.load(walk, mine);
    for (int i = tid; i < 2 * BUFFER; i += THREADS) in[i] = 0.0f;
  block_barrier();
  for (int i = tid; i < ROWS * HIDDEN; i += THREADS) {
    int sample = block_index() / CLUSTER * ROWS + i / HIDDEN;
    float h = or_zero(walk.h0, (long long)sample * HIDDEN + i % HIDDEN, sample < walk.batch);
    in[place_of(i / HIDDEN) + i % HIDDEN] = to_tf32(h);
  }
  bool real[EACH];
  float c[EACH], h[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    real[e] = mine.real(walk, e);
    c[e] = or_zero(LSTM ? walk.c0 : 0, mine.state(e), real[e]);
    h[e] = or_zero(walk.h0, mine.state(e), real[e]);
  }
  Outputs outputs(walk, mine);
  Sums sums;
  begin.read(walk, mine, real, 0);
  begin(sums);
  begin.read(walk, mine, real, 1);
  cluster_barrier();
  product.read(mine, in);
  for (int step = 0; step < walk.steps; ++step) {
    float* next = in + ((step + 1) & 1) * BUFFER;  // last read before the barrier that ended the step before
    product(sums);
    float s[EACH][4], keeping[EACH][KEPT];
#pragma unroll
    for (int e = 0; e < EACH; ++e)
#pragma unroll
      for (int g = 0; g < 4; ++g) s[e][g] = sum_of(sums, e, g, e / HALVES % COLUMNS);
    begin(sums);
    begin.read(walk, mine, real, step + 2);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      pointwise(s[e], c[e], h[e], keeping[e]);
      put_everywhere(next + place_of(mine.row + further(e)) + mine.unit + half_of(e) * 8, to_tf32(h[e]));
    }
    cluster_arrive();
    if (CLUSTER > 1) outputs.store(walk, real, h, keeping);
    cluster_wait();
    product.read(mine, next);
    if (CLUSTER == 1) outputs.store(walk, real, h, keeping);
  }
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    if (!real[e]) continue;
    walk.h_n[mine.state(e)] = h[e];
    if (LSTM) walk.c_n[mine.state(e)] = c[e];
  }
}

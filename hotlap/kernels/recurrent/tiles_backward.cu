// Backward; compiled behind tiles.cu.

#define GROUPS (UNITS / 16)
#define EIGHTS (PADDED / 8 / SPLIT)  // eight units whose gates' gradients a warp multiplies at once
#define STEPS_OF_EIGHT (LSTM ? 4 : 3)
#define CHAINS (NARROW == 1 ? 4 : 2)

struct Product {
  float a[EIGHTS][STEPS_OF_EIGHT][4];
  // Of eight units, the steps of the reduction are gates 0 and 1 of the first four and of the last four, then gates 2 and
  // 3 likewise, or in a GRU gate 2 of all eight.
  __device__ __forceinline__ void load(const Walk& walk, const Mine& mine, int group, int split) {
#pragma unroll
    for (int eight = 0; eight < EIGHTS; ++eight)
#pragma unroll
      for (int k = 0; k < STEPS_OF_EIGHT; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          bool all = !LSTM && k == 2;
          int gate = all ? 2 : k / 2 * 2 + i / 2;
          int from = (split * EIGHTS + eight) * 8 + (all ? i / 2 : k % 2) * 4 + mine.q;
          int unit = mine.rank * UNITS + group * 16 + i % 2 * 8 + mine.u;
          bool inside = from < HIDDEN && unit < HIDDEN;
          a[eight][k][i] = to_tf32(or_zero(walk.weight, (gate * HIDDEN + from) * HIDDEN + unit, inside));
        }
  }
  __device__ __forceinline__ void operator()(const Mine& mine, int split, const float* in, float (&sums)[NARROW][4]) const {
    float chain[NARROW][CHAINS][4] = {};
#pragma unroll
    for (int eight = 0; eight < EIGHTS; ++eight)
#pragma unroll
      for (int narrow = 0; narrow < NARROW; ++narrow) {
        const float* from = in + place_of(mine.column(narrow)) + (split * EIGHTS + eight) * 32 + mine.q * 4;
        float4 v = *(const float4*)from, w = *(const float4*)(from + 16);
        float(&to)[CHAINS][4] = chain[narrow];
        const int first = eight * STEPS_OF_EIGHT;
        multiply(to[first % CHAINS], a[eight][0], v.x, v.y);
        multiply(to[(first + 1) % CHAINS], a[eight][1], w.x, w.y);
        multiply(to[(first + 2) % CHAINS], a[eight][2], v.z, LSTM ? v.w : w.z);
        if (LSTM) multiply(to[(first + 3) % CHAINS], a[eight][STEPS_OF_EIGHT - 1], w.z, w.w);
      }
#pragma unroll
    for (int narrow = 0; narrow < NARROW; ++narrow)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[narrow][i] = chain[narrow][0][i] + chain[narrow][1][i];
        if (CHAINS == 4) sums[narrow][i] += chain[narrow][2 % CHAINS][i] + chain[narrow][3 % CHAINS][i];
      }
  }
};

// The gradients that reach this thread's states through the gates. SPLIT: warps exchange what each has summed for others.
__device__ __forceinline__ void gather(const Mine& mine, int group, int split, float* part, const float (&sums)[NARROW][4],
                                       float (&of_h)[EACH]) {
#if SPLIT == 1
#pragma unroll
  for (int e = 0; e < EACH; ++e) of_h[e] = sums[e / HALVES / COLUMNS][half_of(e) * 2 + e / HALVES % COLUMNS];
#else
  const int lane = thread_index() % 32;
  float* theirs = part + (group * 2 + 1 - split) * EACH * 32 + lane;
  const float* own = part + (group * 2 + split) * EACH * 32 + lane;
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    const float(&sum)[4] = sums[e / COLUMNS];
    theirs[e * 32] = split ? sum[e % COLUMNS] : sum[2 + e % COLUMNS];
    of_h[e] = split ? sum[2 + e % COLUMNS] : sum[e % COLUMNS];
  }
  block_barrier();
#pragma unroll
  for (int e = 0; e < EACH; ++e) of_h[e] += own[e * 32];
#endif
}

// What is read for one element at a step, two steps before it is used.
struct Read {
  float a[4], before, dy;  // before: c (LSTM) or h (GRU) of the step before in the walk
};

// How the gradients of gates follow from that of the state: made before it is known.
struct Slopes {
  float gate[4], cell, pass, dy;
  __device__ __forceinline__ void of(const Read& now, float& c) {
    dy = now.dy;
#if LSTM
    float i = now.a[0], f = now.a[1], g = now.a[2], o = now.a[3], tc = tangent(c);
    gate[0] = g * i * (1.0f - i);
    gate[1] = now.before * f * (1.0f - f);
    gate[2] = i * (1.0f - g * g);
    gate[3] = tc * o * (1.0f - o);
    cell = o * (1.0f - tc * tc);
    pass = f;
    c = now.before;
#else
    float r = now.a[0], z = now.a[1], n = now.a[2];
    gate[1] = (now.before - n) * z * (1.0f - z);
    gate[2] = (1.0f - z) * (1.0f - n * n);
    gate[0] = gate[2] * now.a[3] * r * (1.0f - r);
    gate[3] = gate[2] * r;
    pass = z;
#endif
  }
  // `carried` is what goes on to the step before: of c (LSTM), or straight to h (GRU).
  __device__ __forceinline__ void operator()(float of_h, float& carried, float (&d)[4]) const {
    float dh = of_h + dy;
#if LSTM
    float of_c = carried + dh * cell;
    d[0] = of_c * gate[0], d[1] = of_c * gate[1], d[2] = of_c * gate[2], d[3] = dh * gate[3];
    carried = of_c * pass;
#else
    dh += carried;
    d[0] = dh * gate[0], d[1] = dh * gate[1], d[2] = dh * gate[2], d[3] = dh * gate[3];
    carried = dh * pass;
#endif
  }
};

// Where this thread's first element is in memory, at the step that is read next and at the one that is written next.
struct Memory {
  const float *kept, *y, *dy;
  float* dgates;
  long long dy_move;
  int move;             // batch rows to the next
  float initial[EACH];  // c (LSTM) or h (GRU) before the first step
  Announced announced;
  __device__ __forceinline__ Memory(const Walk& walk, const Mine& mine, const bool (&real)[EACH]) {
    long long last = walk.reverse ? 0 : walk.steps - 1, row = last * walk.batch + mine.sample;
    move = walk.reverse ? walk.batch : -walk.batch;
    kept = walk.kept + row * (KEPT * HIDDEN) + mine.unit;
    y = walk.y + row * walk.y_row + mine.unit;
    dy = walk.dy + (walk.dy ? last * walk.dy_step + mine.sample * walk.dy_row + mine.unit : 0);
    dy_move = walk.reverse ? walk.dy_step : -walk.dy_step;
    dgates = walk.dgates + row * walk.dgates_row + mine.unit;
#pragma unroll
    for (int e = 0; e < EACH; ++e) initial[e] = or_zero(LSTM ? walk.c0 : walk.h0, mine.state(e), real[e]);
    announced.clear();
    const int of_kept = ROWS * LINES_OF(KEPT * HIDDEN), of_dy = ROWS * LINES_OF(HIDDEN);
    const long long ahead = (last * walk.batch + AHEAD * move), kept_move = (long long)move * (KEPT * HIDDEN);
    announced.add(walk, 0, walk.kept + ahead * (KEPT * HIDDEN), KEPT * HIDDEN, KEPT * HIDDEN, kept_move);
    const float* later = walk.dy ? walk.dy + last * walk.dy_step + AHEAD * dy_move : 0;
    announced.add(walk, of_kept, later, walk.dy_row, HIDDEN, dy_move);
    if (!LSTM) announced.add(walk, of_kept + of_dy, walk.y + ahead * walk.y_row, walk.y_row, HIDDEN, move * walk.y_row);
  }
  __device__ __forceinline__ void read(const Walk& walk, const bool (&real)[EACH], int step, Read (&to)[EACH]) {
    const float* before = LSTM ? kept + (long long)move * (KEPT * HIDDEN) + 4 * HIDDEN : y + (long long)move * (int)walk.y_row;
    const int apart = LSTM ? KEPT * HIDDEN : (int)walk.y_row;
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      bool inside = real[e] && step >= 0;
#pragma unroll
      for (int g = 0; g < 4; ++g)
        to[e].a[g] = inside ? kept[(further(e) * KEPT + g) * HIDDEN + half_of(e) * 8] : 0.0f;
      to[e].before = inside && step > 0 ? before[(long long)further(e) * apart + half_of(e) * 8] : initial[e];
      to[e].dy = inside && walk.dy != 0 ? dy[further(e) * walk.dy_row + half_of(e) * 8] : 0.0f;
    }
    announced.go_on(step >= AHEAD);
    kept += (long long)move * (KEPT * HIDDEN);
    if (!LSTM) y += (long long)move * (int)walk.y_row;
    if (walk.dy != 0) dy += dy_move;
  }
  __device__ __forceinline__ void write(const Walk& walk, const bool (&real)[EACH], const float (&d)[EACH][4]) {
#pragma unroll
    for (int e = 0; e < EACH; ++e)
#pragma unroll
      for (int g = 0; g < 4; ++g)
        if (real[e]) dgates[further(e) * (long long)walk.dgates_row + g * HIDDEN + half_of(e) * 8] = d[e][g];
    dgates += (long long)move * walk.dgates_row;
  }
};

// Sums over all steps, which become the gradients of biases and of the inputs' weights.
struct Totals {
  float bias[HALVES][4];
#if FEATURES
  float weight[GATES][X_STEPS][4], x[NARROW][X_STEPS][2];
  const float* from;  // of this thread, at the step that is read next
  long long move;
  __device__ __forceinline__ void begin(const Walk& walk, const Mine& mine) {
    from = walk.x + (walk.reverse ? 0 : (walk.steps - 1) * walk.x_step) + mine.sample * walk.x_row + mine.u;
    move = walk.reverse ? walk.x_step : -walk.x_step;
  }
  // The batch rows of a step are the reduction: row 2 q is k = q and row 2 q + 1 is k = q + 4.
  __device__ __forceinline__ void read(const Walk& walk, const Mine& mine, int step) {
#pragma unroll
    for (int narrow = 0; narrow < NARROW; ++narrow)
#pragma unroll
      for (int i = 0; i < X_STEPS * 2; ++i) {
        const int row = narrow * 8 + i % 2, feature = i / 2 * 8 + mine.u;
        const float* at = from + row * walk.x_row + i / 2 * 8;
        bool inside = step >= 0 && mine.sample + row < walk.batch && feature < FEATURES && i % 2 < COLUMNS;
        x[narrow][i / 2][i % 2] = inside ? *at : 0.0f;
        if (inside && mine.warp == 0 && mine.u == 0 && step >= AHEAD) fetch(at + AHEAD * move);
      }
    from += move;
  }
#endif
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < HALVES * 4; ++i) bias[i / 4][i % 4] = 0.0f;
#if FEATURES
#pragma unroll
    for (int i = 0; i < GATES * X_STEPS * 4; ++i) weight[i / 4 / X_STEPS][i / 4 % X_STEPS][i % 4] = 0.0f;
#endif
  }
  __device__ __forceinline__ void add(const float (&d)[EACH][4]) {
#pragma unroll
    for (int e = 0; e < EACH; ++e)
#pragma unroll
      for (int g = 0; g < 4; ++g) bias[half_of(e)][g] += d[e][g];
#if FEATURES
#pragma unroll
    for (int narrow = 0; narrow < NARROW; ++narrow)
#pragma unroll
      for (int g = 0; g < GATES; ++g) {
        float high[4] = {}, low[4] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (i % 2 < HALVES) {
            Parts parts;
            parts.of(d[((narrow * COLUMNS + i / 2 % COLUMNS) * HALVES + i % 2) % EACH][g]);
            high[i] = parts.high, low[i] = parts.low;
          }
#pragma unroll
        for (int k = 0; k < X_STEPS; ++k) {
          Parts x0, x1;
          x0.of(x[narrow][k][0]), x1.of(x[narrow][k][1]);
          if (COLUMNS > 1) multiply(weight[g][k], high, x0.low, x1.low);
          if (ROWS <= 8) multiply(weight[g][k], low, x0.high, x1.high);
          multiply(weight[g][k], high, x0.high, COLUMNS > 1 ? x1.high : x0.low);  // four rows leave room for both
        }
      }
#endif
  }
  __device__ __forceinline__ void store(const Walk& walk, const Mine& mine) const {
    float* parts = walk.parts + (long long)(block_index() / CLUSTER) * (1 + FEATURES) * 4 * HIDDEN + mine.unit;
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        float total = bias[half][g];
        total += from_lane_across(total, 1);
        total += from_lane_across(total, 2);
        if (mine.q == 0 && mine.unit + half * 8 < HIDDEN) parts[g * HIDDEN + half * 8] = total;
      }
#if FEATURES
#pragma unroll
    for (int g = 0; g < GATES; ++g)
#pragma unroll
      for (int i = 0; i < X_STEPS * 4; ++i) {
        int half = i / 2 % 2, feature = i / 4 * 8 + mine.q * 2 + i % 2;
        if (half < HALVES && feature < FEATURES && mine.unit + half * 8 < HIDDEN)
          parts[((1 + feature) * 4 + g) * HIDDEN + half * 8] = weight[g][i / 4][i % 4];
      }
#endif
  }
};

KERNEL rnn_backward(const Walk walk) {
  SHARED
  float *in = shared_memory, *part = in + 2 * BUFFER;
  const int tid = thread_index(), group = tid / 32 % GROUPS, split = tid / 32 / GROUPS;
  const Mine mine(group * 16 + split * 8);
  Product product;
  product.load(walk, mine, group, split);
  Totals totals;
  totals.clear();
  Read coming[EACH];
  Slopes slopes[EACH];
  bool real[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e) real[e] = mine.real(walk, e);
  Memory memory(walk, mine, real);
  float carried[EACH], c[EACH], of_h[EACH], d[EACH][4];
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    float dh = or_zero(walk.dh_n, mine.state(e), real[e]), dc = or_zero(LSTM ? walk.dc_n : 0, mine.state(e), real[e]);
    of_h[e] = LSTM ? dh : 0.0f;
    carried[e] = LSTM ? dc : dh;
    c[e] = LSTM && real[e] ? memory.kept[(further(e) * KEPT + 4) * HIDDEN + half_of(e) * 8] : 0.0f;
  }
  memory.read(walk, real, walk.steps - 1, coming);
#pragma unroll
  for (int e = 0; e < EACH; ++e) slopes[e].of(coming[e], c[e]);
  memory.read(walk, real, walk.steps - 2, coming);
#if FEATURES
  totals.begin(walk, mine);
  totals.read(walk, mine, walk.steps - 1);
#endif
  cluster_barrier();
  for (int step = walk.steps - 1; step >= 0; --step) {
    float* now = in + (step & 1) * BUFFER;  // last read before the barrier of step + 1
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      slopes[e](of_h[e], carried[e], d[e]);
      float4 four = {to_tf32(d[e][0]), to_tf32(d[e][1]), to_tf32(d[e][LSTM ? 2 : 3]), LSTM ? to_tf32(d[e][3]) : 0.0f};
      put_four_everywhere(now + place_of(mine.row + further(e)) + (mine.unit + half_of(e) * 8) * 4, four);
    }
    cluster_arrive();
    if (CLUSTER > 1) memory.write(walk, real, d);
    cluster_wait();
    float sums[NARROW][4];
    product(mine, split, now, sums);
    if (CLUSTER == 1) memory.write(walk, real, d);
    totals.add(d);
#if FEATURES
    totals.read(walk, mine, step - 1);
#endif
#pragma unroll
    for (int e = 0; e < EACH; ++e) slopes[e].of(coming[e], c[e]);
    memory.read(walk, real, step - 2, coming);
    gather(mine, group, split, part, sums, of_h);
  }
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    if (!real[e]) continue;
    if (walk.dh0) walk.dh0[mine.state(e)] = of_h[e] + (LSTM ? 0.0f : carried[e]);
    if (LSTM && walk.dc0) walk.dc0[mine.state(e)] = carried[e];
  }
  totals.store(walk, mine);
}

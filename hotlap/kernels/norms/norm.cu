// Batch normalisation of rows of channels (channels-last), with the activation behind it. Compiled behind device.cu.
//
// Defined outside: THREADS  TYPE: 0 float, 1 bfloat16, 2 float16  ACTIVATION: 0 none, 1 ReLU, 2 SiLU
//
// A thread has one vector of 16 bytes of channels and goes down the rows; LANES of them lie beside each other, as many
// rows as fit in a block below each other. Blocks of one tile of channels share its rows; what each adds up is a part.
// Parts are put together by a launch of their own, always in the same order.

#if TYPE == 0
#define WIDE 4
#else
#define WIDE 8
#endif
#define LANES 32
#define AT_ONCE 4     // rows a thread has on their way from memory
#define CHANNELS 4    // of a block that puts parts together

struct Norm {
  const float4 *x, *g;                      // rows of vectors: inputs, gradients of the outputs
  float4 *y, *dx;
  const float *weight, *bias;               // 0: one and zero
  float *running_mean, *running_variance;   // 0: not kept
  long long* tracked;                       // batches so far; 0: not counted
  float* kept;                              // [4][channels]: mean, 1 / deviation, scale, shift
  float2* parts;                            // [parts of the rows][channels]
  float *dweight, *dbias;                   // 0: not asked for
  long long rows;
  int channels, row_parts;
  float momentum, tiny;
};

struct Vector {
  float of[WIDE];
  __device__ __forceinline__ Vector() {}
  __device__ __forceinline__ Vector(const float4& four) {
#if TYPE == 0
    of[0] = four.x, of[1] = four.y, of[2] = four.z, of[3] = four.w;
#else
    unpack(four.x, 0), unpack(four.y, 2), unpack(four.z, 4), unpack(four.w, 6);
#endif
  }
  __device__ __forceinline__ float4 packed() const {
    float4 four;
#if TYPE == 0
    four.x = of[0], four.y = of[1], four.z = of[2], four.w = of[3];
#else
    four.x = two(0), four.y = two(2), four.z = two(4), four.w = two(6);
#endif
    return four;
  }
#if TYPE == 1
  __device__ __forceinline__ void unpack(float both, int at) {
    of[at] = of_bits(bits_of(both) << 16), of[at + 1] = of_bits(bits_of(both) & 0xffff0000u);
  }
  __device__ __forceinline__ float two(int at) const { return of_bits(two_bfloat16(of[at], of[at + 1])); }
#elif TYPE == 2
  __device__ __forceinline__ void unpack(float both, int at) {
    of[at] = of_float16(bits_of(both) & 0xffffu), of[at + 1] = of_float16(bits_of(both) >> 16);
  }
  __device__ __forceinline__ float two(int at) const { return of_bits(two_float16(of[at], of[at + 1])); }
#endif
};

// Where a thread is among rows and channels.
struct Place {
  int lane, row, rows, lanes, part, vector, vectors;  // rows: of a block at a time
  long long first, step;
  __device__ __forceinline__ Place(const Norm& all) {
    vectors = all.channels / WIDE;
    const int tiles = (vectors + LANES - 1) / LANES;
    lanes = vectors < LANES ? vectors : LANES;
    rows = THREADS / lanes;
    lane = thread_index() % lanes, row = thread_index() / lanes;
    part = block_index() / tiles;
    vector = block_index() % tiles * LANES + lane;
    first = (long long)part * rows + row;
    step = (long long)all.row_parts * rows;
  }
  __device__ __forceinline__ bool is_used() const { return row < rows && vector < vectors; }
  __device__ __forceinline__ long long at(long long number) const { return number * vectors + vector; }
  __device__ __forceinline__ void read(Vector& into, const float* from) const {
#pragma unroll
    for (int i = 0; i < WIDE; ++i) into.of[i] = from[vector * WIDE + i];
  }
};

// How many rows a part has: its blocks take `rows` in a row, then skip those of the other parts.
struct Shares {
  int rows, whole;
  long long rest;  // of the last, shorter round
  __device__ __forceinline__ Shares(const Norm& all) {
    const int vectors = all.channels / WIDE;
    rows = THREADS / (vectors < LANES ? vectors : LANES);
    const long long round = (long long)all.row_parts * rows, rounds = all.rows / round;
    whole = (int)(rounds * rows), rest = all.rows - rounds * round;
  }
  __device__ __forceinline__ float of(int part) const {
    const long long left = rest - (long long)part * rows;
    return (float)(whole + (left < 0 ? 0 : left > rows ? rows : (int)left));
  }
};

// The mean of some values and the sum of their squared distances from it.
struct Moments {
  float count, mean, squares;
  __device__ __forceinline__ void add(const Moments& other) {
    if (other.count == 0.0f) return;
    const float all = count + other.count, apart = other.mean - mean, share = other.count / all;
    mean += apart * share;
    squares += other.squares + apart * apart * count * share;
    count = all;
  }
};

struct Sums {
  float one, two;
  __device__ __forceinline__ void add(const Sums& other) { one += other.one, two += other.two; }
};

__device__ __forceinline__ float activated(float z) {
#if ACTIVATION == 1
  return z < 0.0f ? 0.0f : z;
#elif ACTIVATION == 2
  return z * sigmoid(z);
#else
  return z;
#endif
}

// The gradient before the activation, of that behind it.
__device__ __forceinline__ float before(float z, float gradient) {
#if ACTIVATION == 1
  return z <= 0.0f ? 0.0f : gradient;
#elif ACTIVATION == 2
  const float s = sigmoid(z);
  return gradient * (s * (1.0f + z * (1.0f - s)));
#else
  return gradient;
#endif
}

// What `rows` threads below each other found, put together by the first of them; `width` values each.
template <class Found, int width>
__device__ __forceinline__ void gather(Found (&found)[width], float* memory, int row, int rows, int lane, int lanes) {
  Found* shared = (Found*)memory;
  for (int left = rows; left > 1;) {
    const int half = (left + 1) / 2;
    if (row >= half && row < left) {
#pragma unroll
      for (int i = 0; i < width; ++i) shared[i * (THREADS / 2) + (row - half) * lanes + lane] = found[i];
    }
    block_barrier();
    if (row < left - half) {
#pragma unroll
      for (int i = 0; i < width; ++i) found[i].add(shared[i * (THREADS / 2) + row * lanes + lane]);
    }
    block_barrier();
    left = half;
  }
}

KERNEL norm_moments(const Norm all) {
  SHARED
  const Place here(all);
  float count = 0.0f;
  Vector pivot, one, two;  // sums of the distances from the thread's first value, and of their squares
#pragma unroll
  for (int i = 0; i < WIDE; ++i) pivot.of[i] = one.of[i] = two.of[i] = 0.0f;
  if (here.is_used()) {
    long long row = here.first;
    if (row < all.rows) pivot = Vector(all.x[here.at(row)]);
    for (; row < all.rows; row += AT_ONCE * here.step) {
      float4 read[AT_ONCE];
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k)
        if (row + k * here.step < all.rows) read[k] = all.x[here.at(row + k * here.step)];
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k) {
        if (row + k * here.step >= all.rows) continue;
        const Vector x(read[k]);
        count += 1.0f;
#pragma unroll
        for (int i = 0; i < WIDE; ++i) {
          const float apart = x.of[i] - pivot.of[i];
          one.of[i] += apart, two.of[i] += apart * apart;
        }
      }
    }
  }
  Moments found[WIDE];
#pragma unroll
  for (int i = 0; i < WIDE; ++i) {
    const float mean = count == 0.0f ? 0.0f : one.of[i] / count, squares = two.of[i] - one.of[i] * mean;
    found[i].count = count, found[i].mean = pivot.of[i] + mean, found[i].squares = squares < 0.0f ? 0.0f : squares;
  }
  gather(found, shared_memory, here.row, here.rows, here.lane, here.lanes);
  if (here.row != 0 || here.vector >= here.vectors) return;
#pragma unroll
  for (int i = 0; i < WIDE; ++i) {
    float2 part;
    part.x = found[i].mean, part.y = found[i].squares;
    all.parts[(long long)here.part * all.channels + here.vector * WIDE + i] = part;
  }
}

KERNEL norm_settle(const Norm all) {
  SHARED
  const int channel = block_index() * CHANNELS + thread_index() % CHANNELS, begin = thread_index() / CHANNELS;
  const Shares shares(all);
  Moments found[1] = {{0.0f, 0.0f, 0.0f}};
#pragma unroll 4
  for (int part = begin; part < all.row_parts; part += THREADS / CHANNELS) {
    const float2 read = all.parts[(long long)part * all.channels + channel];
    found[0].add({shares.of(part), read.x, read.y});
  }
  gather(found, shared_memory, begin, THREADS / CHANNELS, thread_index() % CHANNELS, CHANNELS);
  if (begin != 0) return;
  const float count = (float)all.rows, mean = found[0].mean, variance = found[0].squares / count;
  const float inverse_deviation = 1.0f / sqrtf(variance + all.tiny);
  const float scale = (all.weight ? all.weight[channel] : 1.0f) * inverse_deviation;
  all.kept[channel] = mean, all.kept[all.channels + channel] = inverse_deviation;
  all.kept[2 * all.channels + channel] = scale;
  all.kept[3 * all.channels + channel] = (all.bias ? all.bias[channel] : 0.0f) - mean * scale;
  if (all.running_mean) {
    float &of_mean = all.running_mean[channel], &of_variance = all.running_variance[channel];
    of_mean += all.momentum * (mean - of_mean);
    of_variance += all.momentum * (found[0].squares / (count - 1.0f) - of_variance);
  }
  if (all.tracked && channel == 0) *all.tracked += 1;
}

KERNEL norm_apply(const Norm all) {
  const Place here(all);
  if (!here.is_used()) return;
  Vector scale, shift;
  here.read(scale, all.kept + 2 * all.channels), here.read(shift, all.kept + 3 * all.channels);
  for (long long row = here.first; row < all.rows; row += AT_ONCE * here.step) {
    float4 read[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k)
      if (row + k * here.step < all.rows) read[k] = all.x[here.at(row + k * here.step)];
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
      if (row + k * here.step >= all.rows) continue;
      Vector x(read[k]);
#pragma unroll
      for (int i = 0; i < WIDE; ++i) x.of[i] = activated(x.of[i] * scale.of[i] + shift.of[i]);
      all.y[here.at(row + k * here.step)] = x.packed();
    }
  }
}

KERNEL norm_sums(const Norm all) {
  SHARED
  const Place here(all);
  Sums found[WIDE];  // of the gradients before the activation, and of them times the distance from the mean
#pragma unroll
  for (int i = 0; i < WIDE; ++i) found[i].one = found[i].two = 0.0f;
  if (here.is_used()) {
    Vector mean, scale, shift;
    here.read(mean, all.kept);
    here.read(scale, all.kept + 2 * all.channels), here.read(shift, all.kept + 3 * all.channels);
    for (long long row = here.first; row < all.rows; row += AT_ONCE / 2 * here.step) {
      float4 inputs[AT_ONCE / 2], gradients[AT_ONCE / 2];
#pragma unroll
      for (int k = 0; k < AT_ONCE / 2; ++k) {
        if (row + k * here.step >= all.rows) continue;
        inputs[k] = all.x[here.at(row + k * here.step)], gradients[k] = all.g[here.at(row + k * here.step)];
      }
#pragma unroll
      for (int k = 0; k < AT_ONCE / 2; ++k) {
        if (row + k * here.step >= all.rows) continue;
        const Vector x(inputs[k]), g(gradients[k]);
#pragma unroll
        for (int i = 0; i < WIDE; ++i) {
          const float dz = before(x.of[i] * scale.of[i] + shift.of[i], g.of[i]);
          found[i].one += dz, found[i].two += dz * (x.of[i] - mean.of[i]);
        }
      }
    }
  }
  gather(found, shared_memory, here.row, here.rows, here.lane, here.lanes);
  if (here.row != 0 || here.vector >= here.vectors) return;
#pragma unroll
  for (int i = 0; i < WIDE; ++i) {
    float2 part;
    part.x = found[i].one, part.y = found[i].two;
    all.parts[(long long)here.part * all.channels + here.vector * WIDE + i] = part;
  }
}

// The gradients of weight and bias, and two numbers of a channel for those of the inputs.
KERNEL norm_settle_sums(const Norm all) {
  SHARED
  const int channel = block_index() * CHANNELS + thread_index() % CHANNELS, begin = thread_index() / CHANNELS;
  Sums found[1] = {{0.0f, 0.0f}};
#pragma unroll 4
  for (int part = begin; part < all.row_parts; part += THREADS / CHANNELS) {
    const float2 read = all.parts[(long long)part * all.channels + channel];
    found[0].add({read.x, read.y});
  }
  gather(found, shared_memory, begin, THREADS / CHANNELS, thread_index() % CHANNELS, CHANNELS);
  if (begin != 0) return;
  const float inverse_deviation = all.kept[all.channels + channel], count = (float)all.rows;
  const float of_weight = found[0].two * inverse_deviation;
  if (all.dweight) all.dweight[channel] = of_weight;
  if (all.dbias) all.dbias[channel] = found[0].one;
  float2 two;
  two.x = found[0].one / count, two.y = of_weight * inverse_deviation / count;
  all.parts[channel] = two;  // the first part's, which this thread alone has read
}

KERNEL norm_inputs(const Norm all) {
  const Place here(all);
  if (!here.is_used()) return;
  Vector scale, shift, slope, rest;
  here.read(scale, all.kept + 2 * all.channels), here.read(shift, all.kept + 3 * all.channels);
#pragma unroll
  for (int i = 0; i < WIDE; ++i) {
    const float2 two = all.parts[here.vector * WIDE + i];
    slope.of[i] = -scale.of[i] * two.y;
    rest.of[i] = -scale.of[i] * two.x - slope.of[i] * all.kept[here.vector * WIDE + i];
  }
  for (long long row = here.first; row < all.rows; row += AT_ONCE / 2 * here.step) {
    float4 inputs[AT_ONCE / 2], gradients[AT_ONCE / 2];
#pragma unroll
    for (int k = 0; k < AT_ONCE / 2; ++k) {
      if (row + k * here.step >= all.rows) continue;
      inputs[k] = all.x[here.at(row + k * here.step)], gradients[k] = all.g[here.at(row + k * here.step)];
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE / 2; ++k) {
      if (row + k * here.step >= all.rows) continue;
      Vector x(inputs[k]);
      const Vector g(gradients[k]);
#pragma unroll
      for (int i = 0; i < WIDE; ++i) {
        const float dz = before(x.of[i] * scale.of[i] + shift.of[i], g.of[i]);
        x.of[i] = scale.of[i] * dz + (slope.of[i] * x.of[i] + rest.of[i]);
      }
      all.dx[here.at(row + k * here.step)] = x.packed();
    }
  }
}

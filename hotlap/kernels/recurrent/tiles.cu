// The walk with TF32 tensor cores, one barrier a step: a warp multiplies the weights of all gates of its units with the
// whole state, arranged so that the tensor cores leave every gate of a unit in one thread, which makes its new state of
// them without passing anything on. Two copies of the state in shared memory make one barrier enough.
//
// Defined outside, beside what kernels.cu has: ROWS (4, 8, 16 …)  SPLIT. Forward, a warp has 16 / SPLIT units. Backward, it
// has 16 and a SPLIT-th of the reduction, and each of the SPLIT warps goes on with its part of the units. SPLIT is 1 or 2.
// FEATURES inputs are multiplied by the tensor cores too: inputs and weights in two TF32 parts, of which all but low × low is
// multiplied, as good as float32. Their weights' gradient is summed by them, with inputs and, up to eight rows, gates' gradients
// in two parts: with more rows the registers do not suffice.
//
// Fragments of m16n8k8, lane = 4 u + q: of the left operand a thread has rows u and u + 8, of the right one row n = u,
// of the sums rows u and u + 8 and columns 2 q and 2 q + 1. Which k is which element of the reduction is free, and chosen
// so that a thread reads 16 bytes at a time. With four batch rows, columns 2 q and 2 q + 1 are the same row.

#define DEPTH (BACKWARD ? 4 * PADDED : PADDED)  // backward: the gradients of a unit's gates lie together
// Banks: neither 16 bytes of four threads × 8 rows nor the results of 8 units × 4 rows meet in one.
#define ROW_APART (ROWS == 4 ? DEPTH + (DEPTH % 32 ? 24 : 8) : DEPTH + (DEPTH % 32 ? 0 : 16))
#define BUFFER (ROWS * ROW_APART + (ROWS == 4 ? 0 : ROWS * 4))
#define NARROW (ROWS == 4 ? 1 : ROWS / 8)       // tiles of eight batch rows
#define COLUMNS (ROWS == 4 ? 1 : 2)             // batch rows of a thread in each
#define HALVES (SPLIT == 1 ? 2 : 1)             // units of a thread, eight apart
#define EACH (HALVES * COLUMNS * NARROW)        // elements of a thread
#define X_STEPS ((FEATURES + 7) / 8)
#define BOTH (FEATURES <= 4)                    // both parts of the inputs have room in one product

__device__ __forceinline__ int place_of(int row) { return row * ROW_APART + (ROWS == 4 ? 0 : row / 2 * 8); }
__device__ __forceinline__ int half_of(int e) { return e % HALVES; }
__device__ __forceinline__ int further(int e) {  // batch rows from the thread's first
  return ROWS == 4 ? 0 : e / HALVES / COLUMNS * 8 + e / HALVES % COLUMNS;
}

struct Parts {
  float high, low;
  // Of `low` the tensor cores take the upper bits, which is enough.
  __device__ __forceinline__ void of(float value) { high = to_tf32(value), low = value - high; }
};

// What of the block's work is this thread's.
struct Mine {
  int u, q, warp, rank, unit, row, sample;  // the last three: of its first element
  __device__ __forceinline__ Mine(int first) {  // of its warp's units
    u = thread_index() % 32 / 4, q = thread_index() % 4, warp = thread_index() / 32, rank = cluster_rank();
    unit = rank * UNITS + first + u;
    row = ROWS == 4 ? q : 2 * q;
    sample = block_index() / CLUSTER * ROWS + row;
  }
  __device__ __forceinline__ bool real(const Walk& walk, int e) const {
    return unit + half_of(e) * 8 < HIDDEN && sample + further(e) < walk.batch;
  }
  __device__ __forceinline__ long long state(int e) const {
    return (long long)(sample + further(e)) * HIDDEN + unit + half_of(e) * 8;
  }
  // The batch row of this block that column u of a right operand is.
  __device__ __forceinline__ int column(int narrow) const { return ROWS == 4 ? u / 2 : narrow * 8 + u; }
};

// Memory that all threads of the cluster read soon, 128 bytes an entry; each announces its share to the L2 cache.
#define LINES_OF(width) ((width) % 32 ? (width) / 32 + 2 : (width) / 32)
#if BACKWARD
#define LINES (ROWS * (LINES_OF(KEPT * HIDDEN) + (LSTM ? 1 : 2) * LINES_OF(HIDDEN)))
#else
#define LINES (ROWS * LINES_OF(GATES * HIDDEN))
#endif
#define SHARES ((LINES + THREADS * CLUSTER - 1) / (THREADS * CLUSTER))
struct Announced {
  const float* at[SHARES];  // at the step that is announced next; 0: nothing
  long long move[SHARES];
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int share = 0; share < SHARES; ++share) at[share] = 0, move[share] = 0;
  }
  // `width` floats of each of the block's rows, as entries from number `from` on; `first` is of the batch's first row.
  __device__ __forceinline__ void add(
      const Walk& walk, int from, const float* first, long long row_apart, int width, long long to_next) {
    const int lines = LINES_OF(width);
#pragma unroll
    for (int share = 0; share < SHARES; ++share) {
      int index = (share * CLUSTER + cluster_rank()) * THREADS + thread_index() - from, in_row = index % lines * 32;
      long long sample = block_index() / CLUSTER * ROWS + index / lines;
      if (index < 0 || index >= lines * ROWS || sample >= walk.batch || first == 0) continue;
      at[share] = first + sample * row_apart + (in_row < width ? in_row : width - 1);
      move[share] = to_next;
    }
  }
  __device__ __forceinline__ void go_on(bool inside) {
#pragma unroll
    for (int share = 0; share < SHARES; ++share) {
      if (inside && at[share] != 0) fetch(at[share]);
      at[share] += move[share];
    }
  }
};

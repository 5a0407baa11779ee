// Adam for many tensors in one launch, and the sum of the squares of their gradients in another. Compiled behind device.cu.
//
// Defined outside: THREADS  TENSORS, the most of a launch  SQUARES: which of the two this is.
// A chunk is THREADS × 4 × `rounds` elements of one tensor; `ends` are the chunks up to and with each tensor.

struct Update {
  float* weight[TENSORS];
  const float* gradient[TENSORS];
  float *first[TENSORS], *second[TENSORS];  // running means of the gradient and of its square
  float* steps[TENSORS];                    // taken before this one
  long long size[TENSORS];
  const float* rate;  // 0: `given_rate`
  float* squares;     // of all gradients of all launches, in parts; 0: they are not clipped
  unsigned int* tickets;
  int ends[TENSORS];
  int tensors, rounds, blocks, begin, parts, decoupled;  // begin: the first part of this launch, parts: of all
  float given_rate, log_first, log_second, keep_first, keep_second, add_first, add_second, tiny, decay, most;
};

struct Chunk {
  int tensor;
  long long from, to;
  __device__ __forceinline__ Chunk(const Update& all, int number) {
    tensor = 0;
    while (all.ends[tensor] <= number) ++tensor;
    long long each = THREADS * 4LL * all.rounds;
    from = (number - (tensor ? all.ends[tensor - 1] : 0)) * each;
    to = from + each < all.size[tensor] ? from + each : all.size[tensor];
  }
};

__device__ __forceinline__ bool is_aligned(const void* address) { return (unsigned long long)address % 16 == 0; }

// Of a warp, always in the same order.
__device__ __forceinline__ float summed(float value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) value += from_lane_across(value, apart);
  return value;
}

#if SQUARES

KERNEL adam_squares(const Update all) {
  SHARED
  float total = 0.0f;
  const int chunks = all.ends[all.tensors - 1];
  for (int number = block_index(); number < chunks; number += all.blocks) {
    const Chunk chunk(all, number);
    const float* gradient = all.gradient[chunk.tensor];
    if (is_aligned(gradient) && chunk.to % 4 == 0) {
      for (long long i = chunk.from + thread_index() * 4; i < chunk.to; i += THREADS * 4) {
        const float4 g = *(const float4*)(gradient + i);
        total += g.x * g.x + g.y * g.y + (g.z * g.z + g.w * g.w);
      }
    } else {
      for (long long i = chunk.from + thread_index(); i < chunk.to; i += THREADS) total += gradient[i] * gradient[i];
    }
  }
  total = summed(total);
  if (thread_index() % 32 == 0) shared_memory[thread_index() / 32] = total;
  block_barrier();
  if (thread_index() >= 32) return;
  total = summed(thread_index() < THREADS / 32 ? shared_memory[thread_index()] : 0.0f);
  if (thread_index() == 0) all.squares[all.begin + block_index()] = total;
}

#else

// What is the same for all elements of a tensor.
struct Now {
  float rate, step_size, root, clip;
  __device__ __forceinline__ Now(const Update& all, float step) {
    rate = all.rate ? *all.rate : all.given_rate;
    step_size = rate / -expm1f(step * all.log_first);  // 1 - beta ** step, also where that is small
    root = rsqrtf(-expm1f(step * all.log_second));
    clip = 1.0f;
    if (all.squares == 0) return;
    float total = 0.0f;
    for (int part = thread_index() % 32; part < all.parts; part += 32) total += all.squares[part];
    clip = all.most / (sqrtf(summed(total)) + 1e-6f);  // as clip_grad_norm_ does: NaN stays NaN
    if (clip >= 1.0f) clip = 1.0f;
  }
  __device__ __forceinline__ void operator()(
      const Update& all, float& weight, float gradient, float& first, float& second) const {
    gradient *= clip;
    if (all.decoupled) weight -= rate * all.decay * weight;
    else gradient += all.decay * weight;
    first = all.keep_first * first + all.add_first * gradient;
    second = all.keep_second * second + all.add_second * gradient * gradient;
    weight -= step_size * first / (sqrtf(second) * root + all.tiny);
  }
};

struct Place {
  float* weight;
  const float* gradient;
  float *first, *second;
  __device__ __forceinline__ Place(const Update& all, int tensor)
      : weight(all.weight[tensor]), gradient(all.gradient[tensor]), first(all.first[tensor]), second(all.second[tensor]) {}
  __device__ __forceinline__ bool by_four(const Chunk& chunk) const {
    return is_aligned(weight) && is_aligned(gradient) && is_aligned(first) && is_aligned(second) && chunk.to % 4 == 0;
  }
};

// Four elements of a tensor, on their way from memory or just changed.
struct Four {
  float4 w, g, m, v;
  __device__ __forceinline__ void read(const Place& at, long long i) {
    w = *(const float4*)(at.weight + i), g = *(const float4*)(at.gradient + i);
    m = *(const float4*)(at.first + i), v = *(const float4*)(at.second + i);
  }
  __device__ __forceinline__ void change(const Update& all, const Now& now) {
    now(all, w.x, g.x, m.x, v.x), now(all, w.y, g.y, m.y, v.y);
    now(all, w.z, g.z, m.z, v.z), now(all, w.w, g.w, m.w, v.w);
  }
  __device__ __forceinline__ void write(const Place& at, long long i) const {
    *(float4*)(at.weight + i) = w, *(float4*)(at.first + i) = m, *(float4*)(at.second + i) = v;
  }
};

KERNEL adam_step(const Update all) {
  const Chunk chunk(all, block_index());
  const Place at(all, chunk.tensor);
  const bool by_four = at.by_four(chunk);
  long long i = chunk.from + thread_index() * (by_four ? 4 : 1);
  Four four = {};
  if (by_four && i < chunk.to) four.read(at, i);  // before all else, which takes as long
  const Now now(all, *all.steps[chunk.tensor] + 1.0f);
  block_barrier();
  const bool is_last = thread_index() == 0 && take_ticket(all.tickets, all.blocks - 1) == all.blocks - 1;
  for (; !by_four && i < chunk.to; i += THREADS) now(all, at.weight[i], at.gradient[i], at.first[i], at.second[i]);
  while (i < chunk.to) {
    four.change(all, now);
    four.write(at, i);
    i += THREADS * 4;
    if (i < chunk.to) four.read(at, i);
  }
  // Every block has read how many steps there were: the last one to do so counts this one, for all tensors.
  if (thread_index() >= 32 || summed(is_last ? 1.0f : 0.0f) == 0.0f) return;
  for (int tensor = thread_index(); tensor < all.tensors; tensor += 32) *all.steps[tensor] += 1.0f;
}

#endif

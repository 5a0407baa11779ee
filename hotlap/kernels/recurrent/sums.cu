// Gradients of weights and biases from the parts that the walk and the large products left, each added in a fixed order.
// A block adds 32 columns, each by THREADS / 32 threads. Compiled behind device.cu.

struct Sums {
  const float* of_walk;    // walk_parts × (1 + walked) × 4 × hidden; see `parts` of kernels.cu
  const float* of_states;  // state_parts × (4 × hidden) × hidden: gradients of the gates × states before;
                           // summed: by the walk, and for the gates that weight_hh has
  const float* of_inputs;  // input_parts × (gates × hidden) × features, where the walk has not added them
  float* weight_ih;
  float* weight_hh;
  float* bias_ih;          // 0: the layer has none
  float* bias_hh;
  int walk_parts, state_parts, input_parts, walked, hidden, features, lstm, summed;
};

__device__ __forceinline__ void put_bias(const Sums& all, int gate, int unit, float value) {
  if (all.bias_ih == 0) return;
  int hidden = all.hidden;
  if (all.lstm || gate < 3) all.bias_ih[gate * hidden + unit] = value;
  if (all.lstm || gate != 2) all.bias_hh[(all.lstm || gate < 2 ? gate : 2) * hidden + unit] = value;
}

KERNEL rnn_sums(const Sums all) {
  SHARED
  const int lane = thread_index() % 32, slice = thread_index() / 32, slices = THREADS / 32;
  const int hidden = all.hidden, gates = all.lstm ? 4 : 3;
  const long long of_walk = (1LL + all.walked) * 4 * hidden, of_states = (all.summed ? gates : 4LL) * hidden * hidden;
  const long long of_inputs = all.walked ? 0 : (long long)gates * hidden * all.features;
  const long long index = block_index() * 32LL + lane, state = index - of_walk, input = state - of_states;
  const float* from = state < 0 ? all.of_walk + index : input < 0 ? all.of_states + state : all.of_inputs + input;
  long long apart = state < 0 ? of_walk : input < 0 ? of_states : of_inputs;
  int parts = state < 0 ? all.walk_parts : input < 0 ? all.state_parts : input < of_inputs ? all.input_parts : 0;
  float total = 0.0f;
#pragma unroll 4
  for (int part = slice; part < parts; part += slices) total += from[part * apart];
  shared_memory[slice * 32 + lane] = total;
  block_barrier();
  if (slice > 0 || input >= of_inputs) return;
  for (int other = 1; other < slices; ++other) total += shared_memory[other * 32 + lane];
  if (state < 0) {
    int gate = index / hidden % 4, unit = index % hidden, feature = (int)(index / hidden / 4) - 1;
    if (feature < 0) put_bias(all, gate, unit, total);
    else if (gate < gates) all.weight_ih[((long long)gate * hidden + unit) * all.features + feature] = total;
  } else if (input < 0) {
    long long gate = state / hidden / hidden, rest = state % ((long long)hidden * hidden);
    if (all.summed) all.weight_hh[state] = total;
    else if (all.lstm || gate != 2) all.weight_hh[(all.lstm || gate < 2 ? gate : 2) * hidden * hidden + rest] = total;
  } else {
    all.weight_ih[input] = total;
  }
}

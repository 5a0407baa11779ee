// Runs one launch of the kernel compiled before it; see emulator.cpp.

#if defined(SUMS)
typedef Sums Given;
#elif defined(TENSORS)
typedef Update Given;
#elif defined(ACTIVATION)
typedef Norm Given;
static int the_part;
extern "C" void choose(int part) { the_part = part; }
#else
typedef Walk Given;
#endif
static Given the_given;
static void enter() {
#if defined(SUMS)
  rnn_sums(the_given);
#elif defined(TENSORS) && SQUARES
  adam_squares(the_given);
#elif defined(TENSORS)
  adam_step(the_given);
#elif defined(ACTIVATION)
  void (*parts[])(Norm) = {norm_moments, norm_settle, norm_apply, norm_sums, norm_settle_sums, norm_inputs};
  parts[the_part](the_given);
#elif BACKWARD
  rnn_backward(the_given);
#else
  rnn_forward(the_given);
#endif
  emulated::fibers[emulated::current].done = true;
}

extern "C" void run(const Given* given, int clusters, int floats, int round_to_tf32) {
  using namespace emulated;
  constexpr size_t stack = 256 << 10;
  memcpy(&the_given, given, sizeof the_given);
  shared_floats = floats;
  rounding = round_to_tf32;
  stacks = (char*)malloc(stack * kThreads);
  shared = (float*)malloc(sizeof(float) * floats * CLUSTER);
  for (cluster = 0; cluster < clusters; ++cluster) {
    for (int i = 0; i < floats * CLUSTER; ++i) shared[i] = NAN;
    memset(block_arrivals, 0, sizeof block_arrivals);
    memset(warp_arrivals, 0, sizeof warp_arrivals);
    cluster_arrivals = 0;
    memset(fibers, 0, sizeof fibers);
    for (int i = 0; i < kThreads; ++i) {
      getcontext(&fibers[i].context);
      fibers[i].context.uc_stack.ss_sp = stacks + stack * i;
      fibers[i].context.uc_stack.ss_size = stack;
      fibers[i].context.uc_link = &scheduler;
      makecontext(&fibers[i].context, enter, 0);
    }
    for (int left = kThreads; left > 0;) {
      left = 0;
      for (int turn = 0; turn < kThreads; ++turn) {
        current = cluster % 2 ? kThreads - 1 - turn : turn;  // what depends on the order shows in the second cluster
        if (fibers[current].done) continue;
        swapcontext(&scheduler, &fibers[current].context);
        left += !fibers[current].done;
      }
    }
  }
  free(stacks);
  free(shared);
}

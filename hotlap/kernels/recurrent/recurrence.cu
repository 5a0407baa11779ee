// One walk over all T steps of an LSTM or GRU layer: what kernels of every kind are given, and the gates of one unit.
// Compiled behind device.cu, before kernels.cu or tiles.cu.

#define GATES (LSTM ? 4 : 3)
#define UNITS (PADDED / CLUSTER)
#define KEPT (LSTM ? 5 : 4)          // LSTM: i f g o c; GRU: r z n and the state's part of n

struct Walk {
  const float* x;          // inputs; FEATURES 0: their products with weight_ih, for forward only, perhaps in `kept`
  const float* weight_ih;  // forward
  const float* weight;
  const float* bias_ih;
  const float* bias_hh;
  const float* h0;
  const float* c0;
  float* y;
  float* kept;             // steps × batch × KEPT × HIDDEN: what backward begins with; 0: nothing goes backward
  float* h_n;
  float* c_n;
  const float* dy;
  const float* dh_n;
  const float* dc_n;
  float* dgates;           // steps × batch rows of 4 × HIDDEN (GRU: r, z, n of x, n of h); may be `kept`
  float* dh0;
  float* dc0;
  float* parts;            // of each cluster: gradients of biases, then of weight_ih by feature, each 4 × HIDDEN
  float* of_states;        // SUMMED: of each cluster, the gradient of weight_hh
  long long x_step, x_row, y_row, dy_step, dy_row;
  int steps, batch, reverse, dgates_row;
};

__device__ __forceinline__ float or_zero(const float* values, long long index, bool real) {
  return real && values != 0 ? values[index] : 0.0f;
}

// New c and h of one unit from the sums of its gates, and what backward needs of it. GRU: s[2] is the state's part of n
// with its bias, s[3] the inputs'.
__device__ __forceinline__ void pointwise(const float (&s)[4], float& c, float& h, float (&keeping)[KEPT]) {
#if LSTM
  float i = sigmoid(s[0]), f = sigmoid(s[1]), g = tangent(s[2]), o = sigmoid(s[3]);
  c = f * c + i * g;
  h = o * tangent(c);
  keeping[0] = i, keeping[1] = f, keeping[2] = g, keeping[3] = o, keeping[4] = c;
#else
  float r = sigmoid(s[0]), z = sigmoid(s[1]), n = tangent(s[3] + r * s[2]);
  h = n + z * (h - n);
  keeping[0] = r, keeping[1] = z, keeping[2] = n, keeping[3] = s[2];
#endif
}

/// A step as one rank computes it, with integers in place of tensors: what every execution of a
/// schedule must arrive at.
#pragma once

#include <vector>

#include "pentatron/parallel/pipeline/schedule/schedule.h"
#include "tests/parallel/pipeline/schedule/world.h"

namespace pentatron::pipeline::execution {

inline Value mix(Value a, Value b, Value c, Value d) {
  Value x = 0x9e3779b97f4a7c15u;
  for (const Value y : {a, b, c, d}) {
    x ^= y + 0x9e3779b97f4a7c15u + (x << 6) + (x >> 2);
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 32;
  }
  return x;
}

/// The three functions of a stage. They depend on the microbatch through its data, which every
/// stage may look up.
inline Value run_forward(Value in, int stage, int mb) {
  return mix(1, in, stage, mb);
}
inline Value run_input(Value in, Value grad, int stage) {
  return mix(2, in, grad, stage);
}
inline Value run_weight(Value in, Value grad, int stage) {
  return mix(3, in, grad, stage);
}

inline constexpr Value kData = 11; // input of the first stage
inline constexpr Value kLoss = 13; // gradient of the last stage's output

/// What one rank computes with all stages.
struct Sequential {
  std::vector<std::vector<Value>> output, gradient; // [stage][microbatch]
  std::vector<Value> weight;                        // [stage]

  explicit Sequential(const Schedule& s)
      : output(s.num_stages, std::vector<Value>(s.num_microbatches)), gradient(output),
        weight(s.num_stages) {
    for (int mb = 0; mb < s.num_microbatches; ++mb) {
      for (int i = 0; i < s.num_stages; ++i) {
        output[i][mb] = run_forward(i == 0 ? kData : output[i - 1][mb], i, mb);
      }
      for (int i = s.num_stages - 1; i >= 0; --i) {
        const Value in = i == 0 ? kData : output[i - 1][mb];
        const Value above = i == s.num_stages - 1 ? kLoss : gradient[i + 1][mb];
        gradient[i][mb] = run_input(in, above, i);
        weight[i] += run_weight(in, above, i);
      }
    }
  }
};

} // namespace pentatron::pipeline::execution

/// Addresses of the rows of gradients (the token and the sample of each row), for random numbers
/// that do not depend on the layout.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pentatron::nn {

struct Microbatch;

class GradientRows {
 public:
  /// The gradients that follow are of this microbatch, which stays until the next call.
  void set(const Microbatch& microbatch) { microbatch_ = &microbatch; }
  /// Of `rows` rows: those of the stream with so many tokens, or so many between layers that are
  /// split (outer tokens); else numbers that the microbatch has for itself.
  std::vector<int64_t> ids(int64_t rows) const;
  /// The same on a device, without a copy to the host [filled] int64: rows that fill `rows` up are
  /// numbered from the last on.
  at::Tensor device_ids(int64_t rows, int64_t filled, at::Device device) const;

 private:
  at::Tensor stream_ids(int64_t rows) const; ///< undefined: there is no such stream
  int64_t first_number() const;              ///< where there is none

  const Microbatch* microbatch_ = nullptr;
};

} // namespace pentatron::nn

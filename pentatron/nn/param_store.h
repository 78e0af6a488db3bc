/// Who owns the storage of parameters: a layer asks for values, it does not hold them.
///
/// A unit is what is gathered and released together: one segment. ResidentStore keeps everything in
/// memory; a store that shards parameters over data-parallel ranks (ZeRO-3) gathers in acquire()
/// and frees in release() without the layers knowing.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/param.h"

namespace pentatron::nn {

class ParamStore {
 public:
  virtual ~ParamStore() = default;
  virtual void acquire(int64_t unit) = 0; ///< values of the unit are defined from here
  virtual void release(int64_t unit) = 0; ///< until here
};

/// All values in one flat buffer and all gradients in another, so that the optimizer and the
/// reductions see two vectors. Every parameter starts at a multiple of 64 elements; the gaps are
/// zero and stay zero.
class ResidentStore final : public ParamStore {
 public:
  struct Range {
    Param* param = nullptr;
    int64_t begin = 0; ///< in both flat buffers, in elements
    int64_t size = 0;
  };

  /// `gradients` false: for evaluation; no gradient buffer is made.
  ResidentStore(ParamList& params, at::Device device, bool gradients = true);

  void acquire(int64_t) override {}
  void release(int64_t) override {}

  const at::Tensor& values() const { return values_; }
  const at::Tensor& gradients() const { return gradients_; }
  const std::vector<Range>& ranges() const { return ranges_; }
  void zero_grad();

 private:
  at::Tensor values_, gradients_;
  std::vector<Range> ranges_;
};

} // namespace pentatron::nn

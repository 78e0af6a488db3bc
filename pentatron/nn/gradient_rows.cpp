#include "pentatron/nn/gradient_rows.h"

#include <ATen/ATen.h>

#include <numeric>

#include "pentatron/nn/context.h"
#include "pentatron/nn/host_copies.h"

namespace pentatron::nn {

at::Tensor GradientRows::stream_ids(int64_t rows) const {
  if (microbatch_ == nullptr) return {};
  for (const SequenceLayout& layout : microbatch_->layouts) {
    const bool outer = layout.tokens() != rows && layout.outer_tokens() == rows;
    if ((layout.tokens() != rows && !outer) || !layout.row_ids.defined()) continue;
    return outer ? layout.outer(layout.row_ids) : layout.row_ids;
  }
  return {};
}

int64_t GradientRows::first_number() const {
  // Such as the rows of an expert: no two microbatches have the same numbers.
  if (microbatch_ == nullptr || microbatch_->layouts.empty() ||
      microbatch_->layouts.front().sample_ids.empty())
    return 0;
  const uint64_t apart = microbatch_->layouts.front().sample_ids.front() * 0x9E3779B97F4A7C15u;
  return static_cast<int64_t>(apart >> 1);
}

std::vector<int64_t> GradientRows::ids(int64_t rows) const {
  if (const at::Tensor given = stream_ids(rows); given.defined()) {
    const at::Tensor ids = host_values(given);
    const int64_t* const first = ids.const_data_ptr<int64_t>();
    return {first, first + rows};
  }
  std::vector<int64_t> result(static_cast<size_t>(rows));
  std::iota(result.begin(), result.end(), first_number());
  return result;
}

at::Tensor GradientRows::device_ids(int64_t rows, int64_t filled, at::Device device) const {
  const at::TensorOptions options = at::TensorOptions().dtype(at::kLong).device(device);
  at::Tensor given = stream_ids(rows);
  if (!given.defined()) return at::arange(filled, options).add_(first_number());
  if (given.device() != device) given = to_device(given, device);
  if (filled == rows) return given.contiguous();
  return at::cat({given, at::arange(1, filled - rows + 1, options) + given.narrow(0, rows - 1, 1)});
}

} // namespace pentatron::nn

#include "pentatron/nn/gradient_rows.h"

#include <ATen/ATen.h>

#include <numeric>

#include "pentatron/nn/context.h"
#include "pentatron/nn/host_copies.h"

namespace pentatron::nn {

std::vector<int64_t> GradientRows::ids(int64_t rows) const {
  std::vector<int64_t> result(static_cast<size_t>(rows));
  std::iota(result.begin(), result.end(), int64_t{0});
  if (microbatch_ == nullptr) return result;
  for (const SequenceLayout& layout : microbatch_->layouts) {
    const bool outer = layout.tokens() != rows && layout.outer_tokens() == rows;
    if ((layout.tokens() != rows && !outer) || !layout.row_ids.defined()) continue;
    const at::Tensor ids = host_values(outer ? layout.outer(layout.row_ids) : layout.row_ids);
    const int64_t* const first = ids.const_data_ptr<int64_t>();
    return {first, first + rows};
  }
  // Such as the rows of an expert: no two microbatches have the same numbers.
  if (!microbatch_->layouts.empty() && !microbatch_->layouts.front().sample_ids.empty()) {
    const uint64_t apart = microbatch_->layouts.front().sample_ids.front() * 0x9E3779B97F4A7C15u;
    for (int64_t& id : result) id += static_cast<int64_t>(apart >> 1);
  }
  return result;
}

} // namespace pentatron::nn

#include "pentatron/parallel/data/gradients.h"

#include <ATen/ATen.h>

#include "pentatron/comm/collectives.h"

namespace pentatron::parallel {

void reduce_gradients(const nn::ResidentStore& store, const comm::Group& dp,
                      const comm::Group& tp) {
  comm::all_reduce_(store.gradients(), comm::ReduceOp::kSum, dp);
  if (tp.size() == 1) return;
  std::vector<at::Tensor> partial;
  for (const nn::ResidentStore::Range& range : store.ranges()) {
    if (range.param->spec().placement("tp").kind == nn::Placement::Kind::kPartial) {
      partial.push_back(range.param->main_grad().view({-1}));
    }
  }
  if (partial.empty()) return;
  const at::Tensor joined = at::cat(partial);
  comm::all_reduce_(joined, comm::ReduceOp::kSum, tp);
  int64_t begin = 0;
  for (const at::Tensor& gradient : partial) {
    gradient.copy_(joined.narrow(0, begin, gradient.numel()));
    begin += gradient.numel();
  }
}

} // namespace pentatron::parallel

// A program outside the repository: a parameter of two ranks, initialised by the global index, is
// one rank's parameter.
#include <cstdio>

#include <ATen/ATen.h>

#include "pentatron/base/philox.h"
#include "pentatron/nn/param.h"

int main() {
  using namespace pentatron;
  const nn::ShardSpec spec = {
      .name = "weight", .shape = {6, 4}, .placements = {{"tp", nn::Placement::shard(0)}}};
  const auto values = [&](const nn::Coordinates& where) {
    nn::Param param(spec, nn::Init::normal(0.02), at::kDouble, where);
    param.set_value(at::empty(param.shape(), at::kDouble));
    param.set_main_grad(at::zeros(param.shape(), at::kDouble));
    param.initialize(/*seed=*/1);
    return param.value();
  };
  const at::Tensor whole = values({});
  const at::Tensor halves =
      at::cat({values({{"tp", {.rank = 0, .size = 2}}}), values({{"tp", {.rank = 1, .size = 2}}})});
  const double expected = 0.02 * Stream(1, "init/weight").normal(7);
  if (!at::equal(whole, halves) || whole.flatten()[7].item<double>() != expected) {
    std::printf("consumer: the halves differ from the whole\n");
    return 1;
  }
  std::printf("consumer: ok\n");
  return 0;
}

#include <ATen/ATen.h>

#include "pentatron/nn/ops/matmul.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/nn/ops/wgrad.h"
#include "pentatron/nn/record.h"

namespace pentatron::nn {

at::Tensor linear(const at::Tensor& x, Param& weight, Param* bias, const ForwardContext& ctx) {
  ctx.use(&weight);
  ctx.use(bias);
  at::Tensor y;
  {
    const NoAutograd guard;
    y = matmul_nt(x.detach(), weight, bias != nullptr ? bias->value() : at::Tensor());
  }
  const bool any = weight.trainable || (bias != nullptr && bias->trainable);
  record(
      "linear", {x}, {y}, {any ? x : at::Tensor()},
      [&weight, bias, queue = ctx.wgrad, wants_dx = x.requires_grad()](auto&& grads, Saved& saved) {
        const NoAutograd guard;
        const at::Tensor dy = grads[0];
        at::Tensor dx;
        if (wants_dx) dx = matmul_nn(dy, weight);
        Param* const trained_bias = bias != nullptr && bias->trainable ? bias : nullptr;
        if (weight.trainable || trained_bias != nullptr) {
          queue->push(std::make_unique<LinearWgrad>(
              dy, saved.take(0), weight.trainable ? &weight : nullptr, trained_bias));
        }
        return std::vector<at::Tensor>{dx};
      });
  return y;
}

at::Tensor add_bias(const at::Tensor& x, Param& bias, const ForwardContext& ctx) {
  ctx.use(&bias);
  at::Tensor y;
  {
    const NoAutograd guard;
    y = x.detach().add(bias.value());
  }
  record("add_bias", {x}, {y}, {}, [&bias](auto&& grads, Saved&) {
    const NoAutograd guard;
    if (bias.trainable) {
      add_column_sums(bias.main_grad(), grads[0]);
      bias.accumulated();
    }
    return std::vector<at::Tensor>{grads[0]};
  });
  return y;
}

} // namespace pentatron::nn

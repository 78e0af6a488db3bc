#include "pentatron/nn/record.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <new>

#include "pentatron/base/error.h"
#include "pentatron/nn/saved_detail.h"

namespace pentatron::nn {

namespace {

class ClosureNode final : public torch::autograd::Node {
 public:
  ClosureNode(const char* name, std::shared_ptr<Saved> saved, BackwardFn backward)
      : name_(name), saved_(std::move(saved)), backward_(std::move(backward)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    if (!backward_) raise<Error>("internal error: {} is differentiated twice", name_);
    const at::NoGradGuard no_grad;
    return backward_(std::move(grads), *saved_);
  }
  void release_variables() override {
    backward_ = nullptr;
    saved_ = nullptr;
  }
  std::string name() const override { return name_; }

 private:
  const char* name_;
  std::shared_ptr<Saved> saved_;
  BackwardFn backward_;
};

} // namespace

bool grad_enabled() {
  return at::GradMode::is_enabled();
}

void record(const char* name, const std::vector<at::Tensor>& inputs,
            const std::vector<at::Tensor>& outputs, std::vector<at::Tensor> saved,
            BackwardFn backward) {
  if (!grad_enabled()) return detail::deliver(saved);
  auto node = std::shared_ptr<ClosureNode>(
      new ClosureNode(name, save(name, std::move(saved), outputs), std::move(backward)),
      torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (const at::Tensor& output : outputs) {
    PT_DCHECK(!output.requires_grad());
    torch::autograd::set_history(output, node);
  }
}

struct NoAutograd::Guard {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
};

NoAutograd::NoAutograd() {
  static_assert(sizeof(Guard) <= sizeof(storage_));
  new (storage_) Guard();
}

NoAutograd::~NoAutograd() {
  reinterpret_cast<Guard*>(storage_)->~Guard();
}

} // namespace pentatron::nn

#include "pentatron/nn/host_copies.h"

#include <ATen/ATen.h>

#include <atomic>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "pentatron/base/error.h"
#include "pentatron/nn/layer_graphs.h"

namespace pentatron::nn {

static std::atomic<HostReadHook> hook = nullptr;

void set_host_read_hook(HostReadHook called) {
  hook.store(called);
}

/// What is copied once would stay in a graph for ever.
static void refuse_in_graph() {
  if (records_graph())
    raise<ConfigError>("train.cuda_graphs=true does not support this model: a layer exchanges "
                       "numbers with the host\n  try: train.cuda_graphs=false");
}

static void count(const SourceLocation& where) {
  refuse_in_graph();
  if (const HostReadHook called = hook.load(std::memory_order_relaxed)) called(where);
}

at::Tensor host_values(const at::Tensor& x, const SourceLocation& where) {
  count(where);
  return x.to(at::kCPU).contiguous();
}

HostCopy::HostCopy(const at::Tensor& x, const SourceLocation& where) {
  count(where);
  if (x.is_cpu()) {
    host_ = x.contiguous();
    return;
  }
  host_ = at::empty(x.sizes(), x.options().device(at::kCPU).pinned_memory(true));
  host_.copy_(x, /*non_blocking=*/true);
  copied_.emplace(x.device().type());
  copied_->record(c10::impl::VirtualGuardImpl(x.device().type()).getStream(x.device()));
}

at::Tensor HostCopy::values() const {
  if (copied_) copied_->synchronize();
  return host_;
}

at::Tensor rows_where(const at::Tensor& mask, const SourceLocation& where) {
  count(where);
  return at::nonzero(mask).view({-1});
}

at::Tensor to_device(const at::Tensor& x, at::Device device) {
  if (x.device() == device) return x;
  refuse_in_graph();
  return x.pin_memory().to(device, /*non_blocking=*/true);
}

} // namespace pentatron::nn

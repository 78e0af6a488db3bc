#include "pentatron/comm/backend/staged/staged_backend.h"

#include <ATen/ATen.h>

#include <mutex>
#include <utility>
#include <vector>

namespace pentatron::comm {

namespace {

using Tensors = std::vector<at::Tensor>;

/// An output and the host's copy of it, which the operation writes.
struct Output {
  at::Tensor here, host;
};

class Arriving : public Work::Pending {
 public:
  Arriving(Work inner, std::vector<Output> outputs)
      : inner_(std::move(inner)), outputs_(std::move(outputs)) {}
  void wait() override {
    inner_.wait();
    const std::lock_guard lock(mutex_);
    for (const Output& one : outputs_) one.here.copy_(one.host);
    outputs_.clear();
  }
  bool done() const override { return inner_.done(); }

 private:
  Work inner_;
  std::mutex mutex_;
  std::vector<Output> outputs_;
};

class StagedBackend final : public Backend {
 public:
  StagedBackend(std::shared_ptr<Backend> host, at::Device device)
      : host_(std::move(host)), device_(device) {}

  int rank() const override { return host_->rank(); }
  const std::string& name() const override { return host_->name(); }
  const std::vector<int>& ranks() const override { return host_->ranks(); }
  bool carries_gpu_tensors() const override { return true; }
  std::shared_ptr<Activity> activity() const override { return host_->activity(); }

  std::shared_ptr<Backend> split(int color, int key, const std::string& name,
                                 GroupUse use) override {
    std::shared_ptr<Backend> part = host_->split(color, key, name, use);
    return part ? staged(std::move(part), device_) : nullptr;
  }

  Work all_reduce(const at::Tensor& out, const at::Tensor& in, ReduceOp op) override {
    if (!moves(in)) return host_->all_reduce(out, in, op);
    const at::Tensor both = copied(in);
    return arriving(host_->all_reduce(both, both, op), {{out, both}});
  }

  Work all_gather(const Tensors& outs, const at::Tensor& in) override {
    if (!moves(in)) return host_->all_gather(outs, in);
    const Tensors parts = empty(outs);
    return arriving(host_->all_gather(parts, copied(in)), pairs(outs, parts));
  }

  Work reduce_scatter(const at::Tensor& out, const Tensors& ins, ReduceOp op) override {
    if (!moves(out)) return host_->reduce_scatter(out, ins, op);
    const at::Tensor part = empty(out);
    return arriving(host_->reduce_scatter(part, copied(ins), op), {{out, part}});
  }

  Work broadcast(const at::Tensor& inout, int root) override {
    if (!moves(inout)) return host_->broadcast(inout, root);
    const bool sends = rank() == root;
    const at::Tensor part = sends ? copied(inout) : empty(inout);
    return arriving(host_->broadcast(part, root),
                    sends ? std::vector<Output>{} : std::vector<Output>{{inout, part}});
  }

  Work all_to_all(const Tensors& outs, const Tensors& ins) override {
    if (!moves(ins[0])) return host_->all_to_all(outs, ins);
    const Tensors parts = empty(outs);
    return arriving(host_->all_to_all(parts, copied(ins)), pairs(outs, parts));
  }

  Work send_recv(const std::vector<Transfer>& transfers) override {
    std::vector<Transfer> parts = transfers;
    std::vector<Output> outputs;
    for (Transfer& part : parts) {
      if (!moves(part.tensor)) continue;
      const at::Tensor here = part.tensor;
      const bool sends = part.kind == Transfer::Kind::kSend;
      part.tensor = sends ? copied(here) : empty(here);
      if (!sends) outputs.push_back({here, part.tensor});
    }
    return arriving(host_->send_recv(parts), std::move(outputs));
  }

  Work barrier() override { return host_->barrier(); }

 private:
  bool moves(const at::Tensor& x) const { return x.device() == device_; }

  /// A contiguous copy in the host's memory.
  static at::Tensor copied(const at::Tensor& x) {
    const at::Tensor copy = empty(x);
    copy.copy_(x);
    return copy;
  }
  static Tensors copied(const Tensors& tensors) {
    Tensors copies;
    for (const at::Tensor& x : tensors) copies.push_back(copied(x));
    return copies;
  }
  static at::Tensor empty(const at::Tensor& like) {
    return at::empty(like.sizes(), like.options().device(at::kCPU));
  }
  static Tensors empty(const Tensors& like) {
    Tensors result;
    for (const at::Tensor& x : like) result.push_back(empty(x));
    return result;
  }
  static std::vector<Output> pairs(const Tensors& outs, const Tensors& parts) {
    std::vector<Output> result;
    for (size_t i = 0; i < outs.size(); ++i) result.push_back({outs[i], parts[i]});
    return result;
  }
  static Work arriving(Work inner, std::vector<Output> outputs) {
    return Work(std::make_shared<Arriving>(std::move(inner), std::move(outputs)));
  }

  const std::shared_ptr<Backend> host_;
  const at::Device device_;
};

} // namespace

std::shared_ptr<Backend> staged(std::shared_ptr<Backend> host, at::Device device) {
  return std::make_shared<StagedBackend>(std::move(host), device);
}

} // namespace pentatron::comm

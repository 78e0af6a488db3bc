#include "pentatron/comm/recorder.h"

#include <fmt/format.h>

#include <algorithm>

#include "pentatron/base/format.h"
#include "pentatron/comm/backend.h"

namespace pentatron::comm {

void Recorder::enable(bool on) {
  const std::lock_guard lock(mutex_);
  enabled_ = on;
}

bool Recorder::enabled() const {
  const std::lock_guard lock(mutex_);
  return enabled_;
}

void Recorder::add(RecordedOperation operation) {
  const std::lock_guard lock(mutex_);
  operations_.push_back(std::move(operation));
}

std::vector<RecordedOperation> Recorder::take() {
  const std::lock_guard lock(mutex_);
  std::vector<RecordedOperation> taken = std::exchange(operations_, {});
  std::ranges::stable_sort(taken, {}, &RecordedOperation::start_s);
  return taken;
}

namespace {

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& x : tensors) bytes += static_cast<int64_t>(x.nbytes());
  return bytes;
}

/// An operation that is written down at the first sign of its end.
class RecordedWork : public Work::Pending {
 public:
  RecordedWork(Work inner, std::shared_ptr<Recorder> recorder, RecordedOperation operation)
      : inner_(std::move(inner)), recorder_(std::move(recorder)), operation_(std::move(operation)) {
  }
  ~RecordedWork() override { finish(); }

  void wait() override {
    if (!finished_) operation_.wait_s = monotonic_s();
    inner_.wait();
    finish();
  }
  bool done() const override {
    if (!inner_.done()) return false;
    finish();
    return true;
  }
  std::shared_ptr<DeviceOperation> on_device() const override { return inner_.on_device(); }

 private:
  void finish() const {
    if (std::exchange(finished_, true)) return;
    operation_.end_s = monotonic_s();
    if (operation_.wait_s == 0) operation_.wait_s = operation_.end_s;
    recorder_->add(std::move(operation_));
  }

  Work inner_;
  std::shared_ptr<Recorder> recorder_;
  mutable RecordedOperation operation_;
  mutable bool finished_ = false;
};

class RecordedBackend : public Backend {
 public:
  RecordedBackend(std::shared_ptr<Backend> inner, std::shared_ptr<Recorder> recorder)
      : inner_(std::move(inner)), recorder_(std::move(recorder)) {}

  int rank() const override { return inner_->rank(); }
  const std::string& name() const override { return inner_->name(); }
  const std::vector<int>& ranks() const override { return inner_->ranks(); }
  bool carries_gpu_tensors() const override { return inner_->carries_gpu_tensors(); }
  std::shared_ptr<Activity> activity() const override { return inner_->activity(); }
  std::shared_ptr<DeviceGroup> device_group() const override { return inner_->device_group(); }

  std::shared_ptr<Backend> split(int color, int key, const std::string& name,
                                 GroupUse use) override {
    std::shared_ptr<Backend> part = inner_->split(color, key, name, use);
    return part ? std::make_shared<RecordedBackend>(std::move(part), recorder_) : nullptr;
  }

  Work all_reduce(const at::Tensor& out, const at::Tensor& in, ReduceOp op) override {
    return record("all_reduce", {in}, 2 * bytes_of({in}) * others() / (others() + 1),
                  [&] { return inner_->all_reduce(out, in, op); });
  }
  Work all_gather(const std::vector<at::Tensor>& outs, const at::Tensor& in) override {
    return record("all_gather", {in}, bytes_of({in}) * others(),
                  [&] { return inner_->all_gather(outs, in); });
  }
  Work reduce_scatter(const at::Tensor& out, const std::vector<at::Tensor>& ins,
                      ReduceOp op) override {
    return record("reduce_scatter", ins, of_others(ins),
                  [&] { return inner_->reduce_scatter(out, ins, op); });
  }
  Work broadcast(const at::Tensor& inout, int root) override {
    const int64_t sent = rank() == root ? bytes_of({inout}) * others() : 0;
    return record("broadcast", {inout}, sent, [&] { return inner_->broadcast(inout, root); });
  }
  Work all_to_all(const std::vector<at::Tensor>& outs,
                  const std::vector<at::Tensor>& ins) override {
    return record("all_to_all", ins, of_others(ins), [&] { return inner_->all_to_all(outs, ins); });
  }
  Work send_recv(const std::vector<Transfer>& transfers) override {
    std::string call;
    std::vector<at::Tensor> tensors;
    int64_t sent = 0;
    for (const Transfer& transfer : transfers) {
      const bool sends = transfer.kind == Transfer::Kind::kSend;
      call += fmt::format("{}{} {}", call.empty() ? "" : ", ", sends ? "send to" : "recv from",
                          transfer.peer);
      tensors.push_back(transfer.tensor);
      if (sends) sent += bytes_of({transfer.tensor});
    }
    return record(call, tensors, sent, [&] { return inner_->send_recv(transfers); });
  }
  Work barrier() override {
    return record("barrier", {}, 0, [&] { return inner_->barrier(); });
  }

 private:
  int64_t others() const { return static_cast<int64_t>(ranks().size()) - 1; }
  /// Of tensors that belong to one rank each, those of other ranks.
  int64_t of_others(const std::vector<at::Tensor>& tensors) const {
    return bytes_of(tensors) - bytes_of({tensors[static_cast<size_t>(rank())]});
  }

  Work record(const std::string& call, const std::vector<at::Tensor>& tensors, int64_t sent_bytes,
              const auto& start) {
    if (!recorder_->enabled()) return start();
    RecordedOperation operation{.group = name(),
                                .call = call,
                                .bytes = bytes_of(tensors),
                                .sent_bytes = sent_bytes,
                                .start_s = monotonic_s()};
    return Work(std::make_shared<RecordedWork>(start(), recorder_, std::move(operation)));
  }

  const std::shared_ptr<Backend> inner_;
  const std::shared_ptr<Recorder> recorder_;
};

} // namespace

Group recorded(const Group& group, std::shared_ptr<Recorder> recorder) {
  if (group.shared_backend() == nullptr) return group;
  return Group(std::make_shared<RecordedBackend>(group.shared_backend(), std::move(recorder)));
}

} // namespace pentatron::comm

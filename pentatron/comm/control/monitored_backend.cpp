#include "pentatron/comm/control/monitored_backend.h"

#include "pentatron/comm/backend/shape_text.h"

#include <algorithm>
#include <exception>

namespace pentatron::comm::control {

namespace {

using Token = OperationLog::Token;

const char* dtype_name(at::ScalarType type) {
  switch (type) {
  case at::kDouble:
    return "float64";
  case at::kFloat:
    return "float32";
  case at::kBFloat16:
    return "bfloat16";
  case at::kHalf:
    return "float16";
  case at::kLong:
    return "int64";
  case at::kInt:
    return "int32";
  case at::kShort:
    return "int16";
  case at::kChar:
    return "int8";
  case at::kByte:
    return "uint8";
  case at::kBool:
    return "bool";
  default:
    return c10::toString(type);
  }
}

OperationStart describe(const char* call, const at::Tensor& tensor) {
  OperationStart start;
  start.call = call;
  start.dtype = dtype_name(tensor.scalar_type());
  start.num_dims = static_cast<int>(tensor.dim());
  const int kept = std::min(start.num_dims, OperationStart::kMaxDims);
  std::copy_n(tensor.sizes().begin(), kept, start.dims.begin());
  return start;
}

/// The length of all where parts of several ranks have different ones.
OperationStart describe_part(const char* call, const at::Tensor& part,
                             const std::vector<at::Tensor>& parts) {
  OperationStart start = describe(call, part);
  if (have_equal_sizes(parts)) return start;
  start.dims[0] = 0;
  for (const at::Tensor& one : parts) start.dims[0] += one.numel();
  start.num_dims = 1;
  return start;
}

/// One or several operations of the log that one Work carries.
class MonitoredWork : public Work::Pending {
 public:
  MonitoredWork(Work inner, std::shared_ptr<OperationLog> log, Token token)
      : inner_(std::move(inner)), log_(std::move(log)), token_(token) {}
  MonitoredWork(Work inner, std::shared_ptr<OperationLog> log, std::vector<Token> tokens)
      : inner_(std::move(inner)), log_(std::move(log)), more_(std::move(tokens)) {}

  void wait() override {
    if (inner_.on_device()) return inner_.wait(); // the host does not wait; the log follows the GPU
    for_each([this](Token token) { log_->wait(token); });
    try {
      inner_.wait();
    } catch (...) {
      for_each([this](Token token) { log_->leave(token); });
      throw;
    }
    for_each([this](Token token) { log_->end(token); });
  }
  bool done() const override {
    if (!inner_.done()) return false;
    if (!inner_.on_device()) for_each([this](Token token) { log_->end(token); });
    return true;
  }
  std::shared_ptr<DeviceOperation> on_device() const override { return inner_.on_device(); }

 private:
  void for_each(const auto& act) const {
    act(token_);
    for (const Token token : more_) act(token);
  }

  Work inner_;
  const std::shared_ptr<OperationLog> log_;
  const Token token_;
  const std::vector<Token> more_;
};

class MonitoredBackend : public Backend {
 public:
  MonitoredBackend(std::shared_ptr<Backend> inner, std::shared_ptr<OperationLog> log)
      : inner_(std::move(inner)), log_(std::move(log)),
        group_(log_->add_group(inner_->name(), inner_->ranks())) {
    if (const auto device = inner_->device_group()) log_->add_device(group_, device);
  }

  int rank() const override { return inner_->rank(); }
  const std::string& name() const override { return inner_->name(); }
  const std::vector<int>& ranks() const override { return inner_->ranks(); }
  bool carries_gpu_tensors() const override { return inner_->carries_gpu_tensors(); }
  std::shared_ptr<DeviceGroup> device_group() const override { return inner_->device_group(); }
  std::shared_ptr<Activity> activity() const override { return log_; }

  std::shared_ptr<Backend> split(int color, int key, const std::string& name,
                                 GroupUse use) override {
    OperationStart start;
    start.call = "split";
    start.note = name;
    const Token token = log_->begin(group_, start);
    log_->wait(token);
    std::shared_ptr<Backend> part = inner_->split(color, key, name, use);
    log_->end(token);
    return part ? monitored(std::move(part), log_) : nullptr;
  }

  Work all_reduce(const at::Tensor& out, const at::Tensor& in, ReduceOp op) override {
    const char* call = op == ReduceOp::kSum ? "all_reduce(sum)" : "all_reduce(max)";
    const Token token = log_->begin(group_, describe(call, in));
    return work(inner_->all_reduce(out, in, op), token);
  }
  Work all_gather(const std::vector<at::Tensor>& outs, const at::Tensor& in) override {
    const Token token = log_->begin(group_, describe_part("all_gather", in, outs));
    return work(inner_->all_gather(outs, in), token);
  }
  Work reduce_scatter(const at::Tensor& out, const std::vector<at::Tensor>& ins,
                      ReduceOp op) override {
    const char* call =
        op == ReduceOp::kSum ? "reduce_scatter(sum) to a part" : "reduce_scatter(max) to a part";
    const Token token = log_->begin(group_, describe_part(call, out, ins));
    return work(inner_->reduce_scatter(out, ins, op), token);
  }
  Work broadcast(const at::Tensor& inout, int root) override {
    OperationStart start = describe("broadcast", inout);
    start.root = root;
    const Token token = log_->begin(group_, start);
    return work(inner_->broadcast(inout, root), token);
  }
  Work all_to_all(const std::vector<at::Tensor>& outs,
                  const std::vector<at::Tensor>& ins) override {
    OperationStart start = describe("all_to_all", ins[0]);
    start.comparable = false;
    const Token token = log_->begin(group_, start);
    return work(inner_->all_to_all(outs, ins), token);
  }
  Work send_recv(const std::vector<Transfer>& transfers) override {
    std::vector<Token> tokens;
    tokens.reserve(transfers.size());
    for (const Transfer& transfer : transfers) {
      const bool sends = transfer.kind == Transfer::Kind::kSend;
      tokens.push_back(log_->begin_transfer(group_, sends ? rank() : transfer.peer,
                                            sends ? transfer.peer : rank(),
                                            describe(sends ? "send" : "recv", transfer.tensor)));
    }
    Work inner = inner_->send_recv(transfers);
    if (auto device = inner.on_device()) log_->follow(tokens, std::move(device));
    return Work(std::make_shared<MonitoredWork>(std::move(inner), log_, std::move(tokens)));
  }
  Work barrier() override {
    OperationStart start;
    start.call = "barrier";
    const Token token = log_->begin(group_, start);
    return work(inner_->barrier(), token);
  }

 private:
  Work work(Work inner, Token token) {
    if (auto device = inner.on_device()) log_->follow({token}, std::move(device));
    return Work(std::make_shared<MonitoredWork>(std::move(inner), log_, token));
  }

  const std::shared_ptr<Backend> inner_;
  const std::shared_ptr<OperationLog> log_;
  const int group_;
};

} // namespace

std::shared_ptr<Backend> monitored(std::shared_ptr<Backend> backend,
                                   std::shared_ptr<OperationLog> log) {
  return std::make_shared<MonitoredBackend>(std::move(backend), std::move(log));
}

MonitoredCall::MonitoredCall(OperationLog& log, const std::string& name,
                             const std::vector<int>& ranks, const char* call)
    : log_(log), exceptions_(std::uncaught_exceptions()) {
  OperationStart start;
  start.call = call;
  token_ = log_.begin(log_.add_group(name, ranks), start);
  log_.wait(token_);
}

MonitoredCall::~MonitoredCall() {
  if (std::uncaught_exceptions() > exceptions_)
    log_.leave(token_);
  else
    log_.end(token_);
}

} // namespace pentatron::comm::control

#include "pentatron/comm/backend/messages/message_backend.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/backend/messages/protocols.h"
#include "pentatron/comm/backend/reduce.h"
#include "pentatron/comm/backend/shape_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace pentatron::comm::messages {

namespace {

class Waiting : public Work::Pending {
 public:
  Waiting(std::shared_ptr<Engine> engine, std::vector<OperationPtr> operations)
      : engine_(std::move(engine)), operations_(std::move(operations)) {}
  void wait() override {
    for (const OperationPtr& operation : operations_) engine_->wait(operation);
  }
  bool done() const override {
    return std::all_of(operations_.begin(), operations_.end(),
                       [this](const OperationPtr& one) { return engine_->done(one); });
  }

 private:
  std::shared_ptr<Engine> engine_;
  std::vector<OperationPtr> operations_;
};

Work work(const std::shared_ptr<Engine>& engine, OperationPtr operation) {
  return Work(std::make_shared<Waiting>(engine, std::vector<OperationPtr>{std::move(operation)}));
}

void check_cpu(std::string_view call, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors)
    if (!tensor.is_cpu())
      raise<CommError>("{} between processes needs CPU tensors, not {}\n  try: device=cpu", call,
                       tensor.device().str());
}

const char* op_name(ReduceOp op) {
  return op == ReduceOp::kSum ? "sum" : "max";
}

} // namespace

MessageBackend::MessageBackend(std::shared_ptr<Engine> engine, std::shared_ptr<GroupState> group)
    : engine_(std::move(engine)), group_(std::move(group)) {}

OperationPtr MessageBackend::start(std::string name, std::string call, MakeProtocol make_protocol) {
  auto operation = std::make_shared<Operation>(*engine_, group_, group_->collectives);
  operation->name = std::move(name);
  operation->call = std::move(call);
  operation->members = group_->members;
  operation->member = group_->member;
  operation->make_protocol = std::move(make_protocol);
  engine_->start(operation);
  return operation;
}

Work MessageBackend::all_reduce(const at::Tensor& out, const at::Tensor& in, ReduceOp op) {
  check_reducible(in.scalar_type(), op);
  check_cpu("all_reduce", {out, in});
  return work(engine_,
              start("all_reduce", fmt::format("all_reduce({}) of {}", op_name(op), shape_text(in)),
                    [=](Operation& self) { return messages::all_reduce(self, out, in, op); }));
}

Work MessageBackend::all_gather(const std::vector<at::Tensor>& outs, const at::Tensor& in) {
  check_cpu("all_gather", {in});
  check_cpu("all_gather", outs);
  return work(engine_,
              start("all_gather", fmt::format("all_gather of {}", part_text(outs)),
                    [=](Operation& self) { return messages::all_gather(self, outs, in); }));
}

Work MessageBackend::reduce_scatter(const at::Tensor& out, const std::vector<at::Tensor>& ins,
                                    ReduceOp op) {
  check_reducible(out.scalar_type(), op);
  check_cpu("reduce_scatter", {out});
  check_cpu("reduce_scatter", ins);
  return work(engine_,
              start("reduce_scatter",
                    fmt::format("reduce_scatter({}) to a part of {}", op_name(op), part_text(ins)),
                    [=](Operation& self) { return messages::reduce_scatter(self, out, ins, op); }));
}

Work MessageBackend::broadcast(const at::Tensor& inout, int root) {
  check_cpu("broadcast", {inout});
  return work(engine_,
              start("broadcast", fmt::format("broadcast(root {}) of {}", root, shape_text(inout)),
                    [=](Operation& self) { return messages::broadcast(self, inout, root); }));
}

Work MessageBackend::all_to_all(const std::vector<at::Tensor>& outs,
                                const std::vector<at::Tensor>& ins) {
  check_cpu("all_to_all", outs);
  check_cpu("all_to_all", ins);
  // Shapes may differ between pairs; the protocol compares them.
  return work(engine_,
              start("all_to_all",
                    fmt::format("all_to_all of {}", c10::toString(ins[0].scalar_type())),
                    [=](Operation& self) { return messages::all_to_all(self, outs, ins); }));
}

Work MessageBackend::send_recv(const std::vector<Transfer>& transfers) {
  std::vector<OperationPtr> operations;
  for (const Transfer& transfer : transfers) {
    const bool sends = transfer.kind == Transfer::Kind::kSend;
    const int from = sends ? group_->member : transfer.peer;
    const int to = sends ? transfer.peer : group_->member;
    const at::Tensor tensor = transfer.tensor;
    check_cpu("send_recv", {tensor});
    auto operation =
        std::make_shared<Operation>(*engine_, group_, group_->transfers_between(from, to));
    operation->name = "send";
    operation->members = {group_->members[static_cast<size_t>(from)],
                          group_->members[static_cast<size_t>(to)]};
    operation->route =
        fmt::format(" from rank {} to rank {}", operation->members[0], operation->members[1]);
    operation->member = sends ? 0 : 1;
    operation->call = fmt::format("send of {}", shape_text(tensor));
    operation->make_protocol = [=](Operation& self) {
      return messages::transfer(self, tensor, sends);
    };
    engine_->start(operation);
    operations.push_back(std::move(operation));
  }
  return Work(std::make_shared<Waiting>(engine_, std::move(operations)));
}

Work MessageBackend::barrier() {
  return work(engine_, start("barrier", "barrier", messages::barrier));
}

std::shared_ptr<Backend> MessageBackend::split(int color, int key, const std::string& name,
                                               GroupUse) {
  auto words = std::make_shared<std::vector<std::vector<int64_t>>>();
  const std::vector<int64_t> own = {color, key, engine_->next_context()};
  const auto exchange = [=](Operation& self) { return exchange_words(self, own, words); };
  engine_->wait(start("split", fmt::format("split into {}", name), exchange));

  // The groups of one split are numbered by color, above every number that a member has seen.
  int context = 0;
  std::vector<int> colors;
  std::vector<std::pair<int64_t, int>> mine; // (key, member here)
  for (size_t r = 0; r < words->size(); ++r) {
    const std::vector<int64_t>& theirs = (*words)[r];
    colors.push_back(static_cast<int>(theirs[0]));
    context = std::max(context, static_cast<int>(theirs[2]));
    if (theirs[0] == color) mine.emplace_back(theirs[1], static_cast<int>(r));
  }
  std::sort(colors.begin(), colors.end());
  colors.erase(std::unique(colors.begin(), colors.end()), colors.end());
  engine_->contexts_used_up_to(context + static_cast<int>(colors.size()) - 1);
  context += static_cast<int>(std::find(colors.begin(), colors.end(), color) - colors.begin());
  std::sort(mine.begin(), mine.end());
  std::vector<int> members;
  int member = 0;
  for (const auto& [their_key, r] : mine) {
    if (r == group_->member) member = static_cast<int>(members.size());
    members.push_back(group_->members[static_cast<size_t>(r)]);
  }
  return std::make_shared<MessageBackend>(
      engine_,
      std::make_shared<GroupState>(name, std::move(members), member, context, group_->run));
}

} // namespace pentatron::comm::messages

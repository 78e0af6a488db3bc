#include "pentatron/comm/backend/in_process/in_process_backend.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/backend/reduce.h"
#include "pentatron/comm/backend/shape_text.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <fmt/format.h>

namespace pentatron::comm::in_process {

namespace {

constexpr int64_t kReduceSlice = 16384;     // elements of one task
constexpr int64_t kSingleTaskBytes = 65536; // below, waking helpers costs more than copying alone

class Waiting : public Work::Pending {
 public:
  Waiting(std::shared_ptr<World> world, std::vector<std::pair<OperationPtr, int>> operations)
      : world_(std::move(world)), operations_(std::move(operations)) {}
  void wait() override {
    for (auto& [operation, member] : operations_) world_->wait(operation, member);
  }
  bool done() const override {
    return std::all_of(operations_.begin(), operations_.end(),
                       [this](const auto& entry) { return world_->done(entry.first); });
  }

 private:
  std::shared_ptr<World> world_;
  std::vector<std::pair<OperationPtr, int>> operations_;
};

Work work(const std::shared_ptr<World>& world, OperationPtr operation, int member) {
  return Work(std::make_shared<Waiting>(
      world, std::vector<std::pair<OperationPtr, int>>{{std::move(operation), member}}));
}

const char* op_name(ReduceOp op) {
  return op == ReduceOp::kSum ? "sum" : "max";
}

void check_cpu(std::string_view call, const at::Tensor& tensor) {
  if (!tensor.is_cpu())
    raise<CommError>("{} with the in_process backend needs CPU tensors, not {}", call,
                     tensor.device().str());
}

Contribution tensors(std::string call, const at::Tensor& like, std::vector<at::Tensor> ins,
                     std::vector<at::Tensor> outs) {
  for (const auto& tensor : ins) check_cpu(call, tensor);
  for (const auto& tensor : outs) check_cpu(call, tensor);
  Contribution result;
  result.call = std::move(call);
  result.tensors = true;
  result.dtype = like.scalar_type();
  result.shape = like.sizes().vec();
  result.ins = std::move(ins);
  result.outs = std::move(outs);
  return result;
}

/// The lengths of different parts in place of the shape of one.
Contribution of_parts(Contribution one, const std::vector<at::Tensor>& parts) {
  if (have_equal_sizes(parts)) return one;
  one.shape.clear();
  for (const at::Tensor& part : parts) one.shape.push_back(part.numel());
  return one;
}

void copy_data(const at::Tensor& out, const at::Tensor& in) {
  if (in.numel() == 0) return;
  if (out.is_contiguous() && in.is_contiguous()) {
    if (out.data_ptr() != in.data_ptr())
      std::memcpy(out.mutable_data_ptr(), in.const_data_ptr(), in.nbytes());
  } else {
    const at::NoGradGuard no_grad;
    out.copy_(in);
  }
}

/// One task for each copy, or one for all if they are small.
void plan_copies(Operation& operation, std::vector<std::pair<at::Tensor, at::Tensor>> copies) {
  int64_t bytes = 0;
  for (const auto& [out, in] : copies) bytes += static_cast<int64_t>(in.nbytes());
  const bool single = bytes <= kSingleTaskBytes;
  operation.num_tasks = single ? 1 : static_cast<int64_t>(copies.size());
  operation.task = [copies = std::move(copies), single](int64_t task) {
    if (single)
      for (const auto& [out, in] : copies) copy_data(out, in);
    else
      copy_data(copies[task].first, copies[task].second);
  };
}

} // namespace

InProcessBackend::InProcessBackend(std::shared_ptr<GroupState> group, int member)
    : group_(std::move(group)), member_(member) {}

OperationPtr InProcessBackend::start(std::string_view name, Contribution contribution, Plan plan) {
  World& world = *group_->world;
  int64_t number;
  {
    std::lock_guard lock(world.mutex());
    number = ++group_->num_collectives[member_];
  }
  std::vector<Start> starts;
  starts.push_back({{-1, -1, number},
                    fmt::format("{} #{}", name, number),
                    group_->members,
                    member_,
                    std::move(contribution),
                    std::move(plan)});
  return world.start(*group_, member_, std::move(starts)).front();
}

Work InProcessBackend::all_reduce(const at::Tensor& out, const at::Tensor& in, ReduceOp op) {
  check_reducible(in.scalar_type(), op);
  auto plan = [op](Operation& operation) {
    std::vector<at::Tensor> ins, outs;
    for (const auto& contribution : operation.contributions) {
      ins.push_back(contribution->ins[0]);
      outs.push_back(contribution->outs[0]);
    }
    const int64_t numel = ins[0].numel();
    operation.num_tasks = (numel + kReduceSlice - 1) / kReduceSlice;
    operation.task = [op, numel, ins = std::move(ins), outs = std::move(outs)](int64_t task) {
      reduce_slice(ins, outs, task * kReduceSlice, std::min(numel, (task + 1) * kReduceSlice), op);
    };
    return std::string();
  };
  auto contribution = tensors(fmt::format("all_reduce({})", op_name(op)), in, {in}, {out});
  return work(group_->world, start("all_reduce", std::move(contribution), plan), member_);
}

Work InProcessBackend::all_gather(const std::vector<at::Tensor>& outs, const at::Tensor& in) {
  auto plan = [](Operation& operation) {
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;
    for (const auto& to : operation.contributions)
      for (size_t from = 0; from < to->outs.size(); ++from)
        copies.emplace_back(to->outs[from], operation.contributions[from]->ins[0]);
    plan_copies(operation, std::move(copies));
    return std::string();
  };
  auto operation = start("all_gather", of_parts(tensors("all_gather", in, {in}, outs), outs), plan);
  return work(group_->world, std::move(operation), member_);
}

Work InProcessBackend::reduce_scatter(const at::Tensor& out, const std::vector<at::Tensor>& ins,
                                      ReduceOp op) {
  check_reducible(out.scalar_type(), op);
  auto plan = [op](Operation& operation) {
    const size_t size = operation.contributions.size();
    std::vector<std::vector<at::Tensor>> ins(size);
    std::vector<at::Tensor> outs;
    for (size_t to = 0; to < size; ++to) {
      for (const auto& from : operation.contributions) ins[to].push_back(from->ins[to]);
      outs.push_back(operation.contributions[to]->outs[0]);
    }
    int64_t most = 0;
    for (const at::Tensor& out : outs) most = std::max(most, out.numel());
    const int64_t slices = (most + kReduceSlice - 1) / kReduceSlice;
    operation.num_tasks = slices * static_cast<int64_t>(size);
    operation.task = [=, ins = std::move(ins), outs = std::move(outs)](int64_t task) {
      const int64_t to = task / slices, begin = task % slices * kReduceSlice;
      const int64_t end = std::min(outs[to].numel(), begin + kReduceSlice);
      if (begin < end) reduce_slice(ins[to], {outs[to]}, begin, end, op);
    };
    return std::string();
  };
  auto contribution = of_parts(
      tensors(fmt::format("reduce_scatter({}) to a part", op_name(op)), out, ins, {out}), ins);
  return work(group_->world, start("reduce_scatter", std::move(contribution), plan), member_);
}

Work InProcessBackend::broadcast(const at::Tensor& inout, int root) {
  auto plan = [root](Operation& operation) {
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;
    for (const auto& to : operation.contributions)
      copies.emplace_back(to->outs[0], operation.contributions[root]->ins[0]);
    plan_copies(operation, std::move(copies));
    return std::string();
  };
  auto contribution = tensors(fmt::format("broadcast(root {})", root), inout, {inout}, {inout});
  return work(group_->world, start("broadcast", std::move(contribution), plan), member_);
}

Work InProcessBackend::all_to_all(const std::vector<at::Tensor>& outs,
                                  const std::vector<at::Tensor>& ins) {
  auto plan = [](Operation& operation) {
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;
    const size_t size = operation.contributions.size();
    for (size_t to = 0; to < size; ++to)
      for (size_t from = 0; from < size; ++from) {
        const at::Tensor& in = operation.contributions[from]->ins[to];
        const at::Tensor& out = operation.contributions[to]->outs[from];
        if (in.sizes() != out.sizes())
          return fmt::format(
              "{} differs between ranks: rank {} sends {} to rank {}, which expects {}",
              operation.title, operation.members[from], shape_text(in), operation.members[to],
              shape_text(out));
        copies.emplace_back(out, in);
      }
    plan_copies(operation, std::move(copies));
    return std::string();
  };
  Contribution contribution = tensors("all_to_all", ins[0], ins, outs);
  contribution.shape.clear(); // pairs may differ; the plan compares them
  return work(group_->world, start("all_to_all", std::move(contribution), plan), member_);
}

Work InProcessBackend::send_recv(const std::vector<Transfer>& transfers) {
  World& world = *group_->world;
  auto plan = [](Operation& operation) {
    plan_copies(operation,
                {{operation.contributions[1]->outs[0], operation.contributions[0]->ins[0]}});
    return std::string();
  };
  std::vector<Start> starts;
  for (const Transfer& transfer : transfers) {
    const bool sends = transfer.kind == Transfer::Kind::kSend;
    const int from = sends ? member_ : transfer.peer, to = sends ? transfer.peer : member_;
    int64_t number;
    {
      std::lock_guard lock(world.mutex());
      number = ++(sends ? group_->num_sends : group_->num_receives)[{from, to}];
    }
    const int from_rank = group_->members[from], to_rank = group_->members[to];
    Contribution contribution = tensors("send", transfer.tensor, {}, {});
    (sends ? contribution.ins : contribution.outs).push_back(transfer.tensor);
    check_cpu("send_recv", transfer.tensor);
    starts.push_back({{from, to, number},
                      fmt::format("send #{} from rank {} to rank {}", number, from_rank, to_rank),
                      {from_rank, to_rank},
                      sends ? 0 : 1,
                      std::move(contribution),
                      plan});
  }
  std::vector<std::pair<OperationPtr, int>> operations;
  const std::vector<OperationPtr> started = world.start(*group_, member_, std::move(starts));
  for (size_t i = 0; i < started.size(); ++i)
    operations.emplace_back(started[i], transfers[i].kind == Transfer::Kind::kSend ? 0 : 1);
  return Work(std::make_shared<Waiting>(group_->world, std::move(operations)));
}

Work InProcessBackend::barrier() {
  Contribution contribution;
  contribution.call = "barrier";
  auto operation =
      start("barrier", std::move(contribution), [](Operation&) { return std::string(); });
  return work(group_->world, std::move(operation), member_);
}

std::shared_ptr<Backend> InProcessBackend::split(int color, int key, const std::string& name,
                                                 GroupUse) {
  Contribution contribution;
  contribution.call = fmt::format("split into {}", name);
  contribution.color = color;
  contribution.key = key;
  auto plan = [name, world = group_->world](Operation& operation) {
    std::map<int, std::vector<std::pair<int, int>>> colors; // color -> (key, member)
    for (size_t i = 0; i < operation.contributions.size(); ++i) {
      const Contribution& one = *operation.contributions[i];
      colors[one.color].emplace_back(one.key, static_cast<int>(i));
    }
    operation.new_groups.resize(operation.members.size());
    for (auto& [color, entries] : colors) {
      std::sort(entries.begin(), entries.end());
      std::vector<int> members;
      for (const auto& [key, member] : entries) members.push_back(operation.members[member]);
      auto group = std::make_shared<GroupState>(world, name, std::move(members));
      for (const auto& [key, member] : entries) operation.new_groups[member] = group;
    }
    return std::string();
  };
  OperationPtr operation = start("split", std::move(contribution), plan);
  group_->world->wait(operation, member_);
  std::shared_ptr<GroupState> group = operation->new_groups[member_];
  const auto position =
      std::find(group->members.begin(), group->members.end(), group_->members[member_]);
  return std::make_shared<InProcessBackend>(group,
                                            static_cast<int>(position - group->members.begin()));
}

} // namespace pentatron::comm::in_process

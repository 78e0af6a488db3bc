/// The backend whose ranks are threads of one process; tensors are CPU tensors and are read where
/// they lie.
#pragma once

#include "pentatron/comm/backend.h"
#include "pentatron/comm/backend/in_process/world.h"

namespace pentatron::comm::in_process {

class InProcessBackend : public Backend {
 public:
  /// `member` is the calling rank's index in the group.
  InProcessBackend(std::shared_ptr<GroupState> group, int member);

  int rank() const override { return member_; }
  const std::string& name() const override { return group_->name; }
  const std::vector<int>& ranks() const override { return group_->members; }
  std::shared_ptr<Backend> split(int color, int key, const std::string& name,
                                 GroupUse use) override;

  Work all_reduce(const at::Tensor& out, const at::Tensor& in, ReduceOp op) override;
  Work all_gather(const std::vector<at::Tensor>& outs, const at::Tensor& in) override;
  Work reduce_scatter(const at::Tensor& out, const std::vector<at::Tensor>& ins,
                      ReduceOp op) override;
  Work broadcast(const at::Tensor& inout, int root) override;
  Work all_to_all(const std::vector<at::Tensor>& outs, const std::vector<at::Tensor>& ins) override;
  Work send_recv(const std::vector<Transfer>& transfers) override;
  Work barrier() override;

 private:
  OperationPtr start(std::string_view name, Contribution contribution, Plan plan);

  std::shared_ptr<GroupState> group_;
  int member_;
};

} // namespace pentatron::comm::in_process

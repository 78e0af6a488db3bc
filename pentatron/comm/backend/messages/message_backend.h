/// The backend whose ranks are processes connected by a transport; tensors are CPU tensors.
#pragma once

#include "pentatron/comm/backend.h"
#include "pentatron/comm/backend/messages/engine.h"

namespace pentatron::comm::messages {

class MessageBackend : public Backend {
 public:
  MessageBackend(std::shared_ptr<Engine> engine, std::shared_ptr<GroupState> group);

  int rank() const override { return group_->member; }
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
  using MakeProtocol = std::function<Protocol(Operation&)>;
  OperationPtr start(std::string name, std::string call, MakeProtocol make_protocol);

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<GroupState> group_;
};

} // namespace pentatron::comm::messages

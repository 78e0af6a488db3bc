/// The interface for the communication of a group, implemented by in_process, mpi and nccl.
///
/// Callers are collectives.cpp and group.cpp, which check shapes within a rank, handle groups of
/// one and put tensors into the form asked for here. Every function starts the operation and
/// returns; ranks must start the operations of one group in the same order. Every rank of a group
/// takes part, send_recv excepted.
#pragma once

#include "pentatron/comm/group.h"
#include "pentatron/comm/work.h"

#include <ATen/core/Tensor.h>

namespace pentatron::comm {

class Activity;
class DeviceGroup;

/// One half of a transfer between two ranks of a group.
struct Transfer {
  enum class Kind : unsigned char { kSend, kRecv } kind;
  at::Tensor tensor; ///< contiguous; written by kRecv
  int peer;          ///< rank in the group
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual int rank() const = 0;
  virtual const std::string& name() const = 0;
  virtual const std::vector<int>& ranks() const = 0; ///< world ranks of the members
  virtual std::shared_ptr<Backend> split(int color, int key, const std::string& name,
                                         GroupUse use) = 0;
  virtual bool carries_gpu_tensors() const { return false; }
  /// What carries its operations on GPUs; null if it has none.
  virtual std::shared_ptr<DeviceGroup> device_group() const { return nullptr; }
  /// Receives reports of long work on this rank (long_work.h); null if ranks are not monitored.
  virtual std::shared_ptr<Activity> activity() const { return nullptr; }

  /// out = op over ranks of in. Both contiguous; may be the same tensor. Floating types narrower
  /// than fp32 accumulate in fp32 and round once. Sums are in rank order, so the result is bitwise
  /// the same on every rank and run. (NCCL keeps its own order and precision.)
  virtual Work all_reduce(const at::Tensor& out, const at::Tensor& in, ReduceOp op) = 0;
  /// outs[r] = in of rank r, perhaps views with strides; outs[rank()] may be `in` itself. Shapes
  /// are equal, or contiguous with different lengths, which all ranks know.
  virtual Work all_gather(const std::vector<at::Tensor>& outs, const at::Tensor& in) = 0;
  /// out = op over ranks q of ins[rank()] of rank q; all contiguous. `out` may be ins[rank()]
  /// itself. Shapes as of all_gather.
  virtual Work reduce_scatter(const at::Tensor& out, const std::vector<at::Tensor>& ins,
                              ReduceOp op) = 0;
  /// inout = inout of `root`, contiguous.
  virtual Work broadcast(const at::Tensor& inout, int root) = 0;
  /// outs[r] = ins[rank()] of rank r. Shapes may differ between pairs; views with strides are
  /// allowed.
  virtual Work all_to_all(const std::vector<at::Tensor>& outs,
                          const std::vector<at::Tensor>& ins) = 0;
  /// All transfers at once. Between two ranks the n-th send meets the n-th receive.
  virtual Work send_recv(const std::vector<Transfer>& transfers) = 0;
  virtual Work barrier() = 0;
};

} // namespace pentatron::comm

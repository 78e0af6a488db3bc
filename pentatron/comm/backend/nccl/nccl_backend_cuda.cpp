// NCCL (Nvidia's collectives) through its own interface. The ranks are connected already, by MPI or
// sockets, and that carries NCCL's identifiers: NCCL's rendezvous needs no port of ours.
//
// Each group of more than one rank has a communicator and a stream of its own, split from its
// parent's. An operation waits on the GPU for what the current stream has written, and its wait()
// makes the then current stream wait for it; the host waits for nothing. Tensors are kept until
// then or, if another stream waits, until the GPU is past the operation. Events tell the control
// thread when an operation begins and ends.
#include "pentatron/base/error.h"
#include "pentatron/comm/backend.h"
#include "pentatron/comm/backend/nccl/communicator_cuda.h"
#include "pentatron/comm/backend/nccl/connections.h"
#include "pentatron/comm/backend/reduce.h"
#include "pentatron/comm/backend/shape_text.h"
#include "pentatron/comm/gpu_ranks.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <deque>
#include <exception>
#include <mutex>

namespace pentatron::comm {

namespace {

using Tensors = std::vector<at::Tensor>;

ncclDataType_t type_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
  case at::kDouble:
    return ncclFloat64;
  case at::kFloat:
    return ncclFloat32;
  case at::kHalf:
    return ncclFloat16;
  case at::kBFloat16:
    return ncclBfloat16;
  case at::kLong:
    return ncclInt64;
  case at::kInt:
    return ncclInt32;
  case at::kByte:
  case at::kBool:
    return ncclUint8;
  case at::kChar:
    return ncclInt8;
  default:
    raise<CommError>("NCCL does not support {} tensors", c10::toString(x.scalar_type()));
  }
}

ncclRedOp_t operation_of(ReduceOp op) {
  return op == ReduceOp::kSum ? ncclSum : ncclMax;
}

size_t count_of(const at::Tensor& x) {
  return static_cast<size_t>(x.numel());
}

/// Whether the tensors lie one behind the other, each contiguous.
bool lie_in_a_row(const Tensors& tensors) {
  const auto* next = static_cast<const std::byte*>(tensors[0].const_data_ptr());
  for (const at::Tensor& one : tensors) {
    if (!one.is_contiguous() || one.const_data_ptr() != next) return false;
    next += one.nbytes();
  }
  return true;
}

/// The events around an operation in its group's stream.
class Passage final : public DeviceOperation {
 public:
  explicit Passage(std::shared_ptr<DeviceFailure> failure) : failure_(std::move(failure)) {}

  void begin(const c10::cuda::CUDAStream& stream) { start_.record(stream); }
  void finish(const c10::cuda::CUDAStream& stream) { end_.record(stream); }
  void block(const c10::cuda::CUDAStream& stream) { end_.block(stream); }
  bool done() const { return end_.query(); }
  /// Waits on the host. Errors are those of what ran before, and told elsewhere.
  void synchronize() const noexcept { cudaEventSynchronize(end_.event()); }

  Progress progress() noexcept override {
    if (passed(end_)) return Progress::kDone;
    return passed(start_) ? Progress::kRunning : Progress::kQueued;
  }

 private:
  bool passed(const at::cuda::CUDAEvent& event) const {
    const cudaError_t result = cudaEventQuery(event.event());
    if (result == cudaSuccess) return true;
    (void)cudaGetLastError(); // of this thread: the control thread's
    if (result != cudaErrorNotReady) failure_->note(cudaGetErrorString(result));
    return false;
  }

  at::cuda::CUDAEvent start_, end_;
  std::shared_ptr<DeviceFailure> failure_;
};

/// An operation and what it uses.
struct Flight {
  std::shared_ptr<Passage> passage;
  c10::cuda::CUDAStream launched_on; ///< what the tensors belong to
  Tensors tensors;

  /// What `waiting` frees from now on is used again behind the operation.
  void wait(const c10::cuda::CUDAStream& waiting) {
    passage->block(waiting);
    if (waiting == launched_on) tensors.clear();
  }
};

/// A stream of our own: torch's pool hands out its 32 streams again, and two groups that share one
/// could wait for each other.
c10::cuda::CUDAStream make_stream(c10::DeviceIndex device, GroupUse use) {
  const c10::cuda::CUDAGuard guard(device);
  int least = 0, greatest = 0;
  C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                              stream_priority(use, least, greatest)));
  return c10::cuda::getStreamFromExternal(stream, device);
}

class Flying : public Work::Pending {
 public:
  explicit Flying(std::shared_ptr<Flight> flight) : flight_(std::move(flight)) {}
  void wait() override { flight_->wait(c10::cuda::getCurrentCUDAStream()); }
  bool done() const override { return flight_->passage->done(); }
  std::shared_ptr<DeviceOperation> on_device() const override { return flight_->passage; }

 private:
  std::shared_ptr<Flight> flight_;
};

class NcclBackend final : public Backend {
 public:
  NcclBackend(std::shared_ptr<Backend> cpu, int device, std::shared_ptr<Communicator> comm,
              GroupUse use)
      : cpu_(std::move(cpu)), device_(static_cast<c10::DeviceIndex>(device)),
        comm_(std::move(comm)), stream_(make_stream(device_, use)) {}

  ~NcclBackend() override {
    // The communicator goes; what is under way must not, unless an error ends this rank: its peers
    // may never come, and nothing would tell them why.
    if (std::uncaught_exceptions() > 0) comm_->abort();
    const std::lock_guard lock(mutex_);
    for (const auto& flight : flights_) flight->passage->synchronize();
    cudaStreamDestroy(stream_);
  }

  int rank() const override { return cpu_->rank(); }
  const std::string& name() const override { return cpu_->name(); }
  const std::vector<int>& ranks() const override { return cpu_->ranks(); }
  bool carries_gpu_tensors() const override { return true; }
  std::shared_ptr<DeviceGroup> device_group() const override { return comm_; }

  std::shared_ptr<Backend> split(int color, int key, const std::string& name,
                                 GroupUse use) override {
    if (use == GroupUse::kTransfers) check_connections();
    std::shared_ptr<Backend> part = cpu_->split(color, key, name, use);
    const bool wanted = color != Group::kUnused && part->ranks().size() > 1;
    std::shared_ptr<Communicator> comm = comm_->split(wanted, color, key, *part, use);
    if (!wanted) return part;
    return std::make_shared<NcclBackend>(std::move(part), device_, std::move(comm), use);
  }

  Work all_reduce(const at::Tensor& out, const at::Tensor& in, ReduceOp op) override {
    if (in.is_cpu()) return cpu_->all_reduce(out, in, op);
    check_reducible(in.scalar_type(), op);
    return launch({out, in}, [&] {
      check(ncclAllReduce(in.const_data_ptr(), out.mutable_data_ptr(), count_of(in), type_of(in),
                          operation_of(op), comm_->get(), stream_),
            "ncclAllReduce");
    });
  }

  Work all_gather(const Tensors& outs, const at::Tensor& in) override {
    if (in.is_cpu()) return cpu_->all_gather(outs, in);
    if (!have_equal_sizes(outs)) return gather_parts(outs, in);
    return launch(with(outs, in), [&] {
      const bool direct = lie_in_a_row(outs);
      const at::Tensor mine = in.contiguous();
      at::Tensor rows;
      if (!direct) rows = at::empty({size(), in.numel()}, in.options());
      check(ncclAllGather(mine.const_data_ptr(),
                          direct ? outs[0].mutable_data_ptr() : rows.mutable_data_ptr(),
                          count_of(mine), type_of(mine), comm_->get(), stream_),
            "ncclAllGather");
      if (direct) return;
      for (int64_t r = 0; r < size(); ++r) {
        const at::Tensor& out = outs[static_cast<size_t>(r)];
        out.copy_(rows[r].view(out.sizes()), /*non_blocking=*/true);
      }
    });
  }

  Work reduce_scatter(const at::Tensor& out, const Tensors& ins, ReduceOp op) override {
    if (out.is_cpu()) return cpu_->reduce_scatter(out, ins, op);
    check_reducible(out.scalar_type(), op);
    if (!have_equal_sizes(ins)) return reduce_parts(out, ins, op);
    return launch(with(ins, out), [&] {
      const at::Tensor whole = lie_in_a_row(ins) ? ins[0] : at::stack(ins);
      check(ncclReduceScatter(whole.const_data_ptr(), out.mutable_data_ptr(), count_of(out),
                              type_of(out), operation_of(op), comm_->get(), stream_),
            "ncclReduceScatter");
    });
  }

  Work broadcast(const at::Tensor& inout, int root) override {
    if (inout.is_cpu()) return cpu_->broadcast(inout, root);
    return launch({inout}, [&] {
      check(ncclBroadcast(inout.const_data_ptr(), inout.mutable_data_ptr(), count_of(inout),
                          type_of(inout), root, comm_->get(), stream_),
            "ncclBroadcast");
    });
  }

  Work all_to_all(const Tensors& outs, const Tensors& ins) override {
    if (ins[0].is_cpu()) return cpu_->all_to_all(outs, ins);
    Tensors all = outs;
    all.insert(all.end(), ins.begin(), ins.end());
    return launch(std::move(all), [&] {
      Tensors sent, received;
      for (size_t r = 0; r < ins.size(); ++r) {
        sent.push_back(ins[r].contiguous());
        received.push_back(outs[r].is_contiguous() ? outs[r]
                                                   : at::empty(outs[r].sizes(), outs[r].options()));
      }
      in_one_call([&] {
        for (int r = 0; r < size(); ++r) {
          send(sent[static_cast<size_t>(r)], r);
          receive(received[static_cast<size_t>(r)], r);
        }
      });
      for (size_t r = 0; r < outs.size(); ++r)
        if (!received[r].is_same(outs[r])) outs[r].copy_(received[r], /*non_blocking=*/true);
    });
  }

  Work send_recv(const std::vector<Transfer>& transfers) override {
    if (transfers.empty() || transfers[0].tensor.is_cpu()) return cpu_->send_recv(transfers);
    Tensors all;
    for (const Transfer& one : transfers) all.push_back(one.tensor);
    return launch(std::move(all), [&] {
      in_one_call([&] {
        for (const Transfer& one : transfers)
          one.kind == Transfer::Kind::kSend ? send(one.tensor, one.peer)
                                            : receive(one.tensor, one.peer);
      });
    });
  }

  Work barrier() override { return cpu_->barrier(); }

 private:
  int64_t size() const { return static_cast<int64_t>(ranks().size()); }

  void check(ncclResult_t result, const char* call) const { comm_->check(result, call); }

  /// NCCL gathers and scatters equal parts only; others take a call for each rank.
  Work gather_parts(const Tensors& outs, const at::Tensor& in) {
    return launch(with(outs, in), [&] {
      in_one_call([&] {
        for (int r = 0; r < size(); ++r) {
          const at::Tensor& out = outs[static_cast<size_t>(r)];
          if (out.numel() > 0)
            check(ncclBroadcast(r == rank() ? in.const_data_ptr() : out.const_data_ptr(),
                                out.mutable_data_ptr(), count_of(out), type_of(out), r,
                                comm_->get(), stream_),
                  "ncclBroadcast");
        }
      });
    });
  }
  Work reduce_parts(const at::Tensor& out, const Tensors& ins, ReduceOp op) {
    return launch(with(ins, out), [&] {
      in_one_call([&] {
        for (int r = 0; r < size(); ++r) {
          const at::Tensor& in = ins[static_cast<size_t>(r)];
          if (in.numel() > 0)
            check(ncclReduce(in.const_data_ptr(), r == rank() ? out.mutable_data_ptr() : nullptr,
                             count_of(in), type_of(in), operation_of(op), r, comm_->get(), stream_),
                  "ncclReduce");
        }
      });
    });
  }

  static Tensors with(Tensors tensors, const at::Tensor& one) {
    tensors.push_back(one);
    return tensors;
  }

  void send(const at::Tensor& x, int to) {
    if (x.numel() > 0)
      check(ncclSend(x.const_data_ptr(), count_of(x), type_of(x), to, comm_->get(), stream_),
            "ncclSend");
  }
  void receive(const at::Tensor& x, int from) {
    if (x.numel() > 0)
      check(ncclRecv(x.mutable_data_ptr(), count_of(x), type_of(x), from, comm_->get(), stream_),
            "ncclRecv");
  }
  void in_one_call(const auto& calls) {
    check(ncclGroupStart(), "ncclGroupStart");
    calls();
    check(ncclGroupEnd(), "ncclGroupEnd");
  }

  /// Puts what `issue` calls on this group's stream, behind what the current stream does.
  Work launch(Tensors tensors, const auto& issue) {
    for (const at::Tensor& one : tensors)
      if (!one.is_cuda() || one.device().index() != device_)
        raise<CommError>("group {} supports tensors on cuda:{} and the CPU, not on {}", name(),
                         static_cast<int>(device_), one.device().str());
    const std::lock_guard lock(mutex_);
    while (!flights_.empty() && flights_.front()->passage->done()) flights_.pop_front();
    const c10::cuda::CUDAGuard device(device_);
    const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(device_);
    at::cuda::CUDAEvent ready;
    ready.record(current);
    auto flight = std::make_shared<Flight>(
        Flight{std::make_shared<Passage>(comm_->failure()), current, std::move(tensors)});
    {
      // Temporaries come from this stream and are used again behind the operation.
      const c10::cuda::CUDAStreamGuard on(stream_);
      ready.block(stream_);
      flight->passage->begin(stream_);
      issue();
      flight->passage->finish(stream_);
    }
    flights_.push_back(flight);
    return Work(std::make_shared<Flying>(std::move(flight)));
  }

  const std::shared_ptr<Backend> cpu_;
  const c10::DeviceIndex device_;
  const std::shared_ptr<Communicator> comm_;
  const c10::cuda::CUDAStream stream_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<Flight>> flights_;
};

} // namespace

bool nccl_available() {
  return true;
}

Group with_nccl(const Group& world, int device) {
  if (world.size() > 1) use_all_connections();
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
  if (world.size() == 1) return world;
  const std::shared_ptr<Backend>& cpu = world.shared_backend();
  return Group(std::make_shared<NcclBackend>(cpu, device, Communicator::of_world(*cpu),
                                             GroupUse::kCollectives));
}

} // namespace pentatron::comm

/// An NCCL communicator: made from an identifier or split from another one, watched and aborted by
/// any thread.
///
/// NCCL's calls that start operations come from one thread at a time. error() and abort() may come
/// from the control thread meanwhile; after abort() every check() throws.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <nccl.h>

#include "pentatron/base/error.h"
#include "pentatron/comm/backend.h"
#include "pentatron/comm/device_operation.h"

namespace pentatron::comm {

/// An error of the GPU that ends all its work, such as an illegal access.
class DeviceFailure {
 public:
  void note(const char* why) {
    const std::lock_guard lock(mutex_);
    if (text_.empty())
      text_ = fmt::format("CUDA: {}, in this operation or a kernel before it", why);
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

class Communicator final : public DeviceGroup {
 public:
  /// Of all ranks of `cpu`, which carries the identifier. Collective.
  static std::shared_ptr<Communicator> of_world(Backend& cpu) {
    auto made = std::make_shared<Communicator>(cpu.name());
    ncclUniqueId id{};
    if (cpu.rank() == 0) made->check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    const at::Tensor bytes = at::empty({NCCL_UNIQUE_ID_BYTES}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), id.internal, sizeof id.internal);
    cpu.broadcast(bytes, 0).wait();
    std::memcpy(id.internal, bytes.const_data_ptr(), sizeof id.internal);
    ncclConfig_t config = config_for(GroupUse::kCollectives);
    made->check(ncclCommInitRankConfig(&made->comm_, static_cast<int>(cpu.ranks().size()), id,
                                       cpu.rank(), &config),
                "ncclCommInitRankConfig");
    return made;
  }

  /// The part of `cpu`, whose ranks have one `color`, or null without `wanted`. Collective over
  /// this communicator, which must have nothing under way.
  std::shared_ptr<Communicator> split(bool wanted, int color, int key, Backend& cpu, GroupUse use) {
    auto made = std::make_shared<Communicator>(cpu.name());
    ncclConfig_t config = config_for(use);
    check(ncclCommSplit(comm_, wanted ? color : NCCL_SPLIT_NOCOLOR, key, &made->comm_, &config),
          "ncclCommSplit");
    if (wanted) parts_.push_back(made);
    return wanted ? made : nullptr;
  }

  explicit Communicator(std::string group) : group_(std::move(group)) {}
  /// Ends the communicators split from it, then itself. Destroying them would wait for peers that
  /// may be gone, so they are aborted: end_gpu_messages() has made sure that no peer still
  /// receives.
  ~Communicator() override {
    parts_.clear();
    abort();
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  ncclComm_t get() const {
    if (aborted_) raise<CommError>("the GPU communication of group {} was aborted", group_);
    return comm_;
  }

  /// Where operations note it; error() tells it.
  const std::shared_ptr<DeviceFailure>& failure() const { return failure_; }

  void check(ncclResult_t result, const char* call) const {
    if (result == ncclSuccess) return;
    const std::string why = describe(result);
    if (why.find("Duplicate GPU") != std::string::npos)
      raise<CommError>("ranks of group {} share a GPU, which NCCL does not support: {}\n  try: one "
                       "rank per GPU, or dist.gpu_messages=host",
                       group_, why);
    raise<CommError>("{} of group {} failed: {}\n  try: NCCL_DEBUG=INFO", call, group_, why);
  }

  std::string error() override {
    const std::lock_guard lock(mutex_);
    ncclResult_t result = ncclSuccess;
    if (std::string text = failure_->text(); !text.empty()) return text;
    if (comm_ == nullptr || aborted_) return "";
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
    if (asked != ncclSuccess) result = asked;
    if (result == ncclSuccess || result == ncclInProgress) return "";
    return "NCCL: " + describe(result);
  }

  void abort() override {
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr && !aborted_.exchange(true)) ncclCommAbort(comm_);
  }

 private:
  /// Transfers can wait for a long time while kernels compute, so they use few of the GPU's
  /// multiprocessors: waiting communicators must never occupy all of them.
  static ncclConfig_t config_for(GroupUse use) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (use == GroupUse::kTransfers) config.maxCTAs = 8;
    return config;
  }

  std::string describe(ncclResult_t result) const {
    return std::string(ncclGetErrorString(result)) + " (" +
           (comm_ != nullptr ? ncclGetLastError(comm_) : "no communicator") + ")";
  }

  const std::string group_;
  std::vector<std::shared_ptr<Communicator>> parts_; ///< live as long as this one
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> aborted_ = false;
  const std::shared_ptr<DeviceFailure> failure_ = std::make_shared<DeviceFailure>();
  std::mutex mutex_; ///< of error() and abort()
};

} // namespace pentatron::comm

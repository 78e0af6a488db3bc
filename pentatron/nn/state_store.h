/// Flat vectors that are stored outside of memory and loaded part by part: the state of an
/// optimizer. CPU ranks use a file without a name, GPU ranks pinned host memory.
///
/// A part is brought into buffers of the device while another one is computed with, and put back
/// while the next one is. Bits do not change.
///
/// Throws Error with the key `offload.dir` where the folder cannot be written or the disk is full:
/// space is taken when a vector is added.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pentatron::nn {

class StateStore {
 public:
  virtual ~StateStore() = default;

  /// A part of several vectors.
  class Part {
   public:
    virtual ~Part() = default;
    /// In the order of the vectors, on the device; hold the values behind arrive().
    const std::vector<at::Tensor>& buffers() const { return buffers_; }
    /// Waits for the values.
    virtual void arrive() = 0;
    /// Starts to put the values of the buffers back.
    virtual void leave() = 0;
    /// Waits until they are.
    virtual void settle() = 0;

   protected:
    std::vector<at::Tensor> buffers_;
  };

  /// [n] zeros, as a tensor that can be read and written as a whole while no part is under way: a
  /// mapping of the file, or host memory. Lives as long as the store.
  virtual at::Tensor add(int64_t n, at::ScalarType type) = 0;
  /// Starts to bring pieces of such vectors, each contiguous.
  virtual std::shared_ptr<Part> bring(const std::vector<at::Tensor>& pieces) = 0;
};

std::shared_ptr<StateStore> state_store_in_file(const std::filesystem::path& folder);
std::shared_ptr<StateStore> state_store_in_host(at::Device device);

} // namespace pentatron::nn

/// Offloading of activations until their backward pass: to a file, or from a GPU to host memory.
/// Results are bit-identical.
///
/// Of a layer whose forward pass has ended, what its operators keep is copied out while the next
/// layer computes, and comes back while the backward pass of the next layer computes. So about two
/// layers are in memory at a time, plus the inputs of layers, which stay. A storage is copied once,
/// however many operators keep views of it.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/saved.h"

namespace pentatron::nn {

class Offload : public SavedHooks {
 public:
  /// A microbatch begins its way through the layers of a stage.
  virtual void begin_pass() = 0;
  /// A layer begins; storages of `staying` are in memory whatever happens, and are not copied.
  virtual void begin_layer(const std::vector<at::Tensor>& staying) = 0;
  /// A layer begins of which nothing is copied: of the layers before, only the last may still be
  /// on its way.
  virtual void begin_staying_layer() = 0;
};

/// Offloads CPU tensors to an unnamed file in `folder`, with separate threads. The file goes with
/// the object, or with the process. Throws Error where the folder cannot be written, then or from a
/// later call.
std::shared_ptr<Offload> offload_to_file(const std::filesystem::path& folder);

/// Offloads GPU tensors to pinned host memory, with a separate stream.
std::shared_ptr<Offload> offload_to_host();

} // namespace pentatron::nn

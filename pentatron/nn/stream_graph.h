/// A CUDA graph: what a function launches on a GPU, recorded once and launched again as a whole, so
/// that the host does not launch each kernel.
#pragma once

#include <functional>
#include <memory>

namespace pentatron::nn {

class StreamGraph {
 public:
  /// For the current GPU. `memory`: a graph recorded before, whose memory this one shares: the two
  /// must always be launched one after the other, in this order. Null: its own. Throws Error in a
  /// build without CUDA.
  static std::unique_ptr<StreamGraph> make(const StreamGraph* memory);
  virtual ~StreamGraph() = default;

  /// Records the launches of `body`, of this thread and of the autograd engine; nothing runs.
  /// Tensors that `body` makes keep their addresses. Called once; throws what `body` throws, and
  /// Error (LibTorch's) for what a graph cannot hold, such as a wait of the host.
  virtual void record(const std::function<void()>& body) = 0;
  /// Runs what was recorded, in the current stream.
  virtual void launch() = 0;
};

} // namespace pentatron::nn

/// The layers of a chunk as two CUDA graphs, of the forward and of the backward pass: for models
/// whose kernels are shorter than their launches.
///
/// The first passes run without graphs, because libraries prepare themselves in them; then both
/// passes are recorded. A graph has the addresses of everything that it reads: parameters, their
/// gradients and one microbatch's tensors are at the same places in every step. So one microbatch
/// is under way at a time, and every microbatch has documents of the same lengths.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/context.h"
#include "pentatron/nn/stream_graph.h"

namespace pentatron::nn {

class Tape;

class LayerGraphs {
 public:
  /// The layers' forward pass from the flow before them to the one behind, and their backward pass
  /// from its gradient to that of the flow before.
  using Pass = std::function<at::Tensor(const at::Tensor& from, Tape& tape)>;
  /// StreamGraph::make, or another one in tests.
  using Maker = std::function<std::unique_ptr<StreamGraph>(const StreamGraph* memory)>;

  /// `stream`: whose layout the layers see.
  explicit LayerGraphs(int stream, Maker make = StreamGraph::make);
  ~LayerGraphs();

  /// Runs a forward pass that a backward pass will follow, recorded in `own` while graphs are not
  /// ready. The result is valid until the next call. Throws ConfigError if the documents are not as
  /// long as in the pass before, or have padding or positions of their own; Error (internal) if
  /// another pass is under way, or weight gradients are deferred.
  at::Tensor forward(const at::Tensor& in, ForwardContext& ctx, Tape& own, const Pass& run);
  /// Its backward pass; the result is valid until the next call.
  at::Tensor backward(const at::Tensor& gradient, Tape& own, const Pass& run);
  /// Gives the memory of the graphs back. They will be recorded anew.
  void forget();

 private:
  void check_layout(const ForwardContext& ctx);

  const size_t stream_;
  const Maker make_;
  int passes_ = 0; ///< without graphs
  SequenceLayout layout_;
  std::unique_ptr<StreamGraph> forward_, backward_;
  at::Tensor in_, out_, gradient_, given_;
  std::unique_ptr<Tape> tape_;
  std::vector<Param*> uses_;        ///< one for each gradient that a parameter gets
  std::vector<Param*> params_;      ///< each once
  std::vector<at::Tensor> kept_;    ///< that the graphs read, and others own
  const Tape* under_way_ = nullptr; ///< the `own` of a launched forward pass
};

/// Whether a graph is being recorded now, by any thread.
bool records_graph();
/// The graph that is being recorded reads `x`, which whoever owns it may drop. Nothing without one.
void keep_for_graph(const at::Tensor& x);

} // namespace pentatron::nn

/// A model as a list of segments, each with its own small autograd graph: the embedding, one layer,
/// the head.
///
/// Between segments the graph is cut: a segment's input is a detached leaf, its output is
/// remembered by its gradient edge and the tensor passed on. Backward walks the segments in reverse
/// and calls the engine once for each. So gathering parameters, recomputation, releasing outputs
/// and overlapping microbatches are steps of a list and not hooks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/context.h"
#include "pentatron/nn/param_store.h"

namespace pentatron::nn {

/// What crosses a segment boundary: the hidden states [tokens, hidden] between layers, token ids
/// before the first, the summed loss after the last.
class Segment {
 public:
  virtual ~Segment() = default;
  virtual std::string name() const = 0;
  virtual at::Tensor forward(const at::Tensor& x, const ForwardContext& ctx) const = 0;
  /// Whether recompute=full runs it again in backward. A layer is; the embedding and the head are
  /// not.
  virtual bool recomputable() const { return false; }
};

/// One microbatch on its way through a list of segments: forward fills it, backward empties it.
class Tape {
 public:
  Tape();
  ~Tape();
  Tape(Tape&&) noexcept;
  Tape& operator=(Tape&&) noexcept;

  struct Record;
  std::vector<Record>& records() { return records_; }

 private:
  std::vector<Record> records_;
};

struct ChunkOptions {
  int64_t first_unit = 0; ///< number of the first segment among the units of the ParamStore
  bool recompute =
      false; ///< keep only inputs of recomputable segments and run them again in backward
};

/// Consecutive segments that one rank runs for a microbatch.
class Chunk {
 public:
  Chunk(std::vector<std::unique_ptr<Segment>> segments, ChunkOptions options);

  /// Runs all segments. With a tape, backward can follow; `ctx` must be alive until then.
  at::Tensor forward(const at::Tensor& x, ForwardContext& ctx, ParamStore& store, Tape* tape) const;

  /// Consumes the tape. `grad` is that of the output; undefined: ones. Returns the gradient of the
  /// input, undefined if the input is not floating point.
  at::Tensor backward(at::Tensor grad, ForwardContext& ctx, ParamStore& store, Tape& tape) const;

  const std::vector<std::unique_ptr<Segment>>& segments() const { return segments_; }

 private:
  std::vector<std::unique_ptr<Segment>> segments_;
  ChunkOptions options_;
};

} // namespace pentatron::nn

/// A model as a list of segments, each with its own small autograd graph: the embedding, one layer,
/// the head.
///
/// Between segments the graph is cut: what a segment takes is a detached leaf, what it gives is
/// remembered by its gradient edge and the tensor passed on. Backward walks the segments in reverse
/// and calls the engine once for each. So gathering parameters, recomputation, releasing outputs
/// and overlapping microbatches are steps of a list and not hooks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/flow.h"
#include "pentatron/nn/layer_graphs.h"
#include "pentatron/nn/offload.h"
#include "pentatron/nn/param_store.h"
#include "pentatron/nn/saved.h"

namespace pentatron::nn {

class Segment {
 public:
  struct Output {
    std::vector<at::Tensor> flows; ///< in the order of Ports::gives
    at::Tensor loss;               ///< scaled; undefined: the segment has none
  };
  virtual ~Segment() = default;
  virtual std::string name() const = 0;
  /// Not called in a pass in which its stream has no tokens; what it gives is undefined then.
  /// `taken` in the order of Ports::takes.
  virtual Output forward(const std::vector<at::Tensor>& taken, const ForwardContext& ctx) const = 0;
  /// Whether Recomputation::layers runs it again in backward. A layer is; the embedding and the
  /// head are not.
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
  /// Of the segments that have a backward pass.
  std::vector<Record>& records() { return records_; }

  /// What is kept for backward: the inputs of segments and the tensors of their operators.
  SavedTensors saved() const;

 private:
  std::vector<Record> records_;
};

struct ChunkOptions {
  int64_t first_segment = 0;                  ///< its number in the model
  Recomputation recompute = {};               ///< layers are the recomputable segments
  std::shared_ptr<Offload> offload = nullptr; ///< what layers keep goes there; null: it stays
  int64_t offloaded =
      0;               ///< layers, from the first; 0: all but the last, which backward needs first
  bool graphs = false; ///< layers run as CUDA graphs (layer_graphs.h)
};

struct ConnectedSegment {
  std::unique_ptr<Segment> segment;
  Ports ports;
};

/// Consecutive segments that one rank runs for a microbatch.
class Chunk {
 public:
  /// `flows`: how many the model has.
  Chunk(std::vector<ConnectedSegment> segments, size_t flows, ChunkOptions options);

  /// Runs all segments on what crosses the boundary before them, and gives what crosses the one
  /// behind. With a tape, backward can follow; `ctx` must be alive until then.
  Flows forward(Flows flows, ForwardContext& ctx, ParamStore& store, Tape* tape) const;

  /// Consumes the tape: from the gradients of the flows behind the chunk to those before it. A
  /// segment's loss has the gradient 1. Throws Error (internal) if the gradient of a flow is
  /// missing.
  Flows backward(Flows gradients, ForwardContext& ctx, ParamStore& store, Tape& tape) const;

  /// Backward shall go no further down than it has to. `trains`: segment number `segment` has a
  /// parameter that trains; `wanted`: by flow, whether what it takes depends on one. A segment for
  /// which neither holds keeps nothing and has no backward pass. Without this call every gradient
  /// is wanted.
  void limit_backward(size_t segment, bool trains, std::vector<bool> wanted);

  const std::vector<ConnectedSegment>& segments() const { return segments_; }

 private:
  struct Reach {
    bool runs = true;
    std::vector<bool> wanted; ///< by flow
  };

  /// Segments whose forward pass backward runs again, from what the first of them takes.
  struct Group {
    size_t begin = 0, end = 0;
    std::vector<int> takes; ///< flows from before the group
  };
  void make_groups();
  /// Hooks for what segment i keeps; null: it stays.
  std::shared_ptr<Offload> offload_of(size_t i) const;
  /// The group that segment i is in; null: what it keeps stays.
  const Group* group_of(size_t i) const;
  /// The layers that run as graphs: segments that take one flow and give it.
  struct GraphedLayers {
    size_t begin = 0, end = 0;
    size_t flow = 0;
    std::unique_ptr<LayerGraphs> graphs;
  };
  void make_graphed();
  bool graphed(size_t i) const {
    return graphed_ != nullptr && graphed_->begin <= i && i < graphed_->end;
  }
  void forward_graphed(Flows& flows, ForwardContext& ctx, ParamStore& store, Tape& tape) const;
  void backward_graphed(Flows& gradients, ForwardContext& ctx, ParamStore& store, Tape& tape) const;
  /// Takes the record of segment i from the tape and calls the engine. `added`: of flows that
  /// several segments take.
  void differentiate(size_t i, Tape& tape, Flows& gradients, std::vector<bool>& added) const;

  /// The records of a group's segments, made again.
  void run_again(const Group& group, ForwardContext& ctx, ParamStore& store, Tape& tape) const;

  Segment::Output run_recorded(size_t i, std::vector<at::Tensor> taken, ForwardContext& ctx,
                               Tape& tape, const std::shared_ptr<Offload>& offload) const;
  Tape::Record start_of(const Group& group, std::vector<at::Tensor> taken) const;
  Segment::Output run(const ConnectedSegment& place, const std::vector<at::Tensor>& taken,
                      ForwardContext& ctx) const;

  std::vector<ConnectedSegment> segments_;
  std::vector<Reach> reach_; ///< of backward, by segment
  std::vector<Group> groups_;
  std::unique_ptr<GraphedLayers> graphed_;
  size_t flows_;
  ChunkOptions options_;
};

} // namespace pentatron::nn

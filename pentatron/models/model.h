/// The interface of a model for trainer, parallelize, checkpoint, generate and cli. One table maps
/// the type of a model to its class; no other place names a class.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "pentatron/base/segment_range.h"
#include "pentatron/models/model_config.h"
#include "pentatron/models/model_spec.h"
#include "pentatron/nn/cost.h"
#include "pentatron/nn/module.h"
#include "pentatron/nn/segment.h"
#include "pentatron/parallel/context/context_parallel.h"
#include "pentatron/parallel/expert/dispatch.h"
#include "pentatron/parallel/tensor/tensor_parallel.h"

namespace pentatron::models {

struct ModelBuild {
  at::ScalarType dtype = at::kFloat;
  parallel::TensorParallel tp;
  parallel::ExpertParallel experts = {};
  parallel::ContextParallel context = {};
  nn::ChunkOptions chunks = {}; ///< of every stage; first_segment follows from `stages`
  /// Of each shared parameter that several pipeline ranks hold: which of them this rank is.
  std::map<std::string, nn::AxisPosition, std::less<>> shared = {};
  std::shared_ptr<const nn::AdapterPlan> adapters = {}; ///< of linear layers; null: none
  /// Adapters of which each row of a pass may take one (ForwardContext::variant_rows).
  std::vector<nn::AdapterPlan> variants = {};
  std::vector<SegmentRange> stages; ///< that this rank holds, ascending; empty: the whole model
};

/// This rank's part of a model.
class Model {
 public:
  virtual ~Model() = default;
  Model(const Model&) = delete;

  const ModelConfig& config() const { return config_; }
  const ModelSpec& spec() const { return spec_; }
  at::ScalarType dtype() const { return build_.dtype; }
  const parallel::TensorParallel& tensor_parallel() const { return build_.tp; }
  const comm::Group& context_group() const { return build_.context.group; }

  /// They get storage from a ParamStore, and values from initialize() or a checkpoint.
  nn::ParamList& params() { return params_; }
  void initialize(uint64_t seed);

  /// Builds tables and other data on the parameters' device, for sequences of up to `longest[i]`
  /// tokens in stream i. Throws ConfigError if the model has fewer positions.
  virtual void finish(at::Device device, const std::vector<int64_t>& longest) = 0;

  /// Backward passes end where nothing before trains; `trains`: which segments of the whole model
  /// have a parameter that does.
  void limit_backward(const std::vector<bool>& trains);
  /// Whether there is a backward pass of the segment.
  bool has_backward(int64_t segment) const { return has_backward_[static_cast<size_t>(segment)]; }
  /// The flows before a segment whose gradients are wanted, ascending.
  std::vector<int> gradients_before(int64_t segment) const;

  /// One for each stage that this rank holds. Losses are scaled by ctx.loss_scales.
  const std::vector<nn::Chunk>& chunks() const { return chunks_; }
  /// Of a rank that holds the whole model in one stage.
  const nn::Chunk& whole() const;

 protected:
  Model(const ModelConfig& config, const ModelBuild& build);
  /// Makes this rank's chunks: `make` is called for the segments that it holds, in their order.
  void assemble(const std::function<std::unique_ptr<nn::Segment>(int64_t segment)>& make);
  /// Where parameters are registered.
  nn::Scope root();
  /// A parameter of ModelSpec::shared, for one of its segments; made once on a rank.
  nn::Param& shared_param(int64_t segment, const std::string& name, nn::ShardSpec spec,
                          nn::Init init);

  ModelConfig config_;
  ModelBuild build_;
  ModelSpec spec_;
  nn::ParamList params_;
  std::vector<nn::Chunk> chunks_;

 private:
  std::vector<bool> has_backward_;               ///< by segment
  std::vector<std::vector<bool>> trained_flows_; ///< ModelSpec::trained_flows()
};

/// The segments, flows and losses of a model, without building it.
ModelSpec model_spec(const ModelConfig& config);

/// Registers the parameters. Throws ConfigError if a size does not divide over the tensor ranks.
std::unique_ptr<Model> make_model(const ModelConfig& config, const ModelBuild& build);

/// Of one microbatch on this rank; `shapes` has one for each stream.
nn::Cost segment_cost(const ModelConfig& config, const std::vector<nn::LayerShape>& shapes,
                      int64_t segment);

} // namespace pentatron::models

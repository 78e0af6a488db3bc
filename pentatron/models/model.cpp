#include "pentatron/models/model.h"

#include <algorithm>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/models/bert/bert.h"
#include "pentatron/models/gpt/gpt.h"
#include "pentatron/models/t5/t5.h"

namespace pentatron::models {

namespace {

/// A type of model; ModelConfig::type selects one.
struct Type {
  ModelType type;
  ModelSpec (*spec)(const ModelConfig&);
  std::unique_ptr<Model> (*make)(const ModelConfig&, const ModelBuild&);
  nn::Cost (*cost)(const ModelConfig&, const std::vector<nn::LayerShape>&, int64_t segment);
};

template <class T> Type type_of_class(ModelType type) {
  return {.type = type,
          .spec = &T::spec_of,
          .make = [](const ModelConfig& config, const ModelBuild& build) -> std::unique_ptr<Model> {
            return std::make_unique<T>(config, build);
          },
          .cost = &T::segment_cost};
}

const Type& type_of(const ModelConfig& config) {
  static const std::vector<Type> types = {type_of_class<Gpt>(ModelType::kGpt),
                                          type_of_class<Bert>(ModelType::kBert),
                                          type_of_class<T5>(ModelType::kT5)};
  const auto found = std::ranges::find(types, config.type, &Type::type);
  PT_DCHECK(found != types.end());
  return *found;
}

} // namespace

Model::Model(const ModelConfig& config, const ModelBuild& build)
    : config_(config), build_(build), spec_(model_spec(config)) {
  if (build_.stages.empty()) build_.stages = {{0, spec_.num_segments()}};
  limit_backward(std::vector<bool>(spec_.segments.size(), true));
}

nn::Scope Model::root() {
  return nn::Scope(params_, build_.dtype, {{"tp", {build_.tp.rank(), build_.tp.size()}}})
      .with_adapters(build_.adapters.get())
      .with_variants(&build_.variants);
}

nn::Param& Model::shared_param(int64_t segment, const std::string& name, nn::ShardSpec spec,
                               nn::Init init) {
  if (nn::Param* const made = params_.find_or_null(name)) {
    made->used_by(segment);
    return *made;
  }
  const auto position = build_.shared.find(name);
  return root().of_segment(segment).shared_param(
      name, std::move(spec), init,
      position != build_.shared.end() ? position->second : nn::AxisPosition{});
}

void Model::assemble(const std::function<std::unique_ptr<nn::Segment>(int64_t)>& make) {
  for (const SegmentRange& stage : build_.stages) {
    std::vector<nn::ConnectedSegment> segments;
    for (int64_t i = stage.begin; i < stage.end; ++i)
      segments.push_back({.segment = make(i), .ports = spec_.ports(i)});
    nn::ChunkOptions options = build_.chunks;
    options.first_segment = stage.begin;
    chunks_.emplace_back(std::move(segments), spec_.flows.size(), std::move(options));
  }
}

void Model::limit_backward(const std::vector<bool>& trains) {
  trained_flows_ = spec_.trained_flows(trains);
  has_backward_ = trains;
  for (size_t i = 0; i < trains.size(); ++i)
    for (const int flow : spec_.segments[i].takes)
      if (trained_flows_[i][static_cast<size_t>(flow)]) has_backward_[i] = true;
  for (size_t c = 0; c < chunks_.size(); ++c)
    for (int64_t i = build_.stages[c].begin; i < build_.stages[c].end; ++i)
      chunks_[c].limit_backward(static_cast<size_t>(i - build_.stages[c].begin),
                                trains[static_cast<size_t>(i)],
                                trained_flows_[static_cast<size_t>(i)]);
}

std::vector<int> Model::gradients_before(int64_t segment) const {
  std::vector<int> flows = spec_.alive_before(segment);
  std::erase_if(flows, [&](int flow) {
    return !trained_flows_[static_cast<size_t>(segment)][static_cast<size_t>(flow)];
  });
  return flows;
}

void Model::initialize(uint64_t seed) {
  for (nn::Param& param : params_) param.initialize(seed);
}

const nn::Chunk& Model::whole() const {
  PT_DCHECK(chunks_.size() == 1 &&
            static_cast<int64_t>(chunks_[0].segments().size()) == spec_.num_segments());
  return chunks_[0];
}

ModelSpec model_spec(const ModelConfig& config) {
  return type_of(config).spec(config);
}

std::unique_ptr<Model> make_model(const ModelConfig& config, const ModelBuild& build) {
  std::unique_ptr<Model> model = type_of(config).make(config, build);
  if (build.adapters != nullptr)
    for (nn::Param& param : model->params())
      param.with_adapters = build.adapters->whole.contains(param.name());
  return model;
}

nn::Cost segment_cost(const ModelConfig& config, const std::vector<nn::LayerShape>& shapes,
                      int64_t segment) {
  return type_of(config).cost(config, shapes, segment);
}

} // namespace pentatron::models

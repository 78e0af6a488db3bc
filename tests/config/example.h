// A small configuration with every kind of field.
#pragma once

#include "pentatron/base/error.h"
#include "pentatron/config/config.h"

namespace pentatron::config_example {

enum class NormKind { kLayerNorm, kRms };
constexpr auto enum_names(NormKind) {
  return std::array{config::name(NormKind::kLayerNorm, "layernorm"),
                    config::name(NormKind::kRms, "rmsnorm"), config::name(NormKind::kRms, "rms")};
}

struct RopeConfig {
  double theta = 10000.0;
  bool interleaved = false;

  static constexpr auto fields() {
    using C = RopeConfig;
    return std::tuple{config::field("theta", &C::theta, "base of the angles").positive(),
                      config::field("interleaved", &C::interleaved, "pairs are neighbours")
                          .on_resume(config::OnResume::kData)};
  }
};

struct ModelConfig {
  int64_t num_layers = 12;
  int64_t num_attention_heads = 32;
  int64_t vocab_size = 50304;
  std::optional<int64_t> kv_channels;
  NormKind norm = NormKind::kRms;
  double dropout = 0.1;
  RopeConfig rope{.theta = 500000.0};

  static constexpr auto fields() {
    using C = ModelConfig;
    return std::tuple{
        config::field("num_layers", &C::num_layers, "transformer layers").range(1, 1000),
        config::field("num_attention_heads", &C::num_attention_heads, "query heads").min(1),
        config::field("vocab_size", &C::vocab_size, "tokens in the vocabulary")
            .multiple_of(64)
            .of_task(),
        config::field("kv_channels", &C::kv_channels, "size of a head").positive(),
        config::field("norm", &C::norm, "normalisation"),
        config::field("dropout", &C::dropout, "probability").min(0).less_than(1),
        config::field("rope", &C::rope, "rotary positions").on_resume(config::OnResume::kModel)};
  }
};

struct DatasetConfig {
  std::vector<std::string> path;
  std::vector<double> weights;
  std::optional<std::vector<int64_t>> splits;
  std::vector<NormKind> norms;
  std::vector<bool> flags;

  static constexpr auto fields() {
    using C = DatasetConfig;
    return std::tuple{config::field("path", &C::path, "files").not_empty(),
                      config::field("weights", &C::weights, "of each file").positive(),
                      config::field("splits", &C::splits, "parts"),
                      config::field("norms", &C::norms, "of each file"),
                      config::field("flags", &C::flags, "of each file")};
  }
};

struct Config {
  std::string name = "run";
  int64_t seed = 1234;
  int8_t small = 3;
  float single = 0.1F;
  std::optional<std::string> note;
  int64_t tensor_model_parallel_size = 1;
  ModelConfig model;
  DatasetConfig dataset{.path = {"corpus"}, .weights = {}, .splits = {}, .norms = {}, .flags = {}};

  static constexpr auto fields() {
    using C = Config;
    return std::tuple{
        config::field("name", &C::name, "of the run"),
        config::field("seed", &C::seed, "of every random number"),
        config::field("small", &C::small, "eight bits"),
        config::field("single", &C::single, "fp32").unit("s"),
        config::field("note", &C::note, "free text"),
        config::field("tensor_model_parallel_size", &C::tensor_model_parallel_size, "tp").min(1),
        config::field("model", &C::model, "the network"),
        config::field("dataset", &C::dataset, "the data")};
  }
  void validate(config::Violations& violations, std::string_view path) const {
    if (model.num_attention_heads < 1) return;
    if (model.num_attention_heads % tensor_model_parallel_size == 0) return;
    violations.add(
        config::join(path, "tensor_model_parallel_size"),
        fmt::format("tensor_model_parallel_size={} does not divide model.num_attention_heads={}",
                    tensor_model_parallel_size, model.num_attention_heads),
        fmt::format(
            "tensor_model_parallel_size={}",
            config::nearest_divisor(model.num_attention_heads, tensor_model_parallel_size)));
  }
};

} // namespace pentatron::config_example

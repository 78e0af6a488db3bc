// Multi-token prediction against PyTorch (tests/data/hf_tiny/gen_multi_token.py), and what runs,
// files and evaluation make of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/convert.h"
#include "pentatron/checkpoint/hf/hf_weights.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/data/shifted_fields.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/step_inputs.h"
#include "tests/support/ranks.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kModels = fs::path(PENTATRON_TEST_DATA) / "hf_tiny";
constexpr double kFactor = 0.3; // of the generator

at::Tensor tensor_of(const SafetensorsFile& file, const std::string& name) {
  return checkpoint::to_tensor(file.at(name));
}

/// The batch of a file, whose first sample has several documents.
class GoldenBatch final : public data::Dataset {
 public:
  explicit GoldenBatch(const SafetensorsFile& file)
      : ids_(tensor_of(file, "input_ids")), labels_(tensor_of(file, "labels")),
        starts_(tensor_of(file, "starts")), streams_{{"tokens", ids_.size(1)}},
        fields_(data::next_token_fields()) {}
  const std::vector<data::BatchStream>& streams() const override { return streams_; }
  const std::vector<data::BatchField>& fields() const override { return fields_; }
  void sample(int64_t n, const data::SampleView& view) const override {
    const int64_t s = ids_.size(1);
    std::copy_n(ids_[n].const_data_ptr<int64_t>(), s, view.ints(0).begin());
    std::copy_n(labels_[n].const_data_ptr<int64_t>(), s, view.ints(1).begin());
    for (int64_t i = 1; n == 0 && i < starts_.numel(); ++i) {
      const int64_t place = starts_[i].item<int64_t>();
      view.begin_document(0, place);
      for (int64_t k = place; k < s; ++k) view.position_ids(0)[static_cast<size_t>(k)] = k - place;
    }
  }

 private:
  at::Tensor ids_, labels_, starts_;
  std::vector<data::BatchStream> streams_;
  std::vector<data::BatchField> fields_;
};

models::ModelConfig gpt2_config() {
  models::ModelConfig c;
  c.num_layers = 2;
  c.hidden_size = 24;
  c.num_attention_heads = 3;
  c.vocab_size = 67;
  c.max_position_embeddings = 20;
  c.position_embedding_type = models::PositionEmbedding::kLearnedAbsolute;
  c.normalization = models::Normalization::kLayerNorm;
  c.activation_func = models::ActivationFunction::kGeluTanh;
  c.add_qkv_bias = c.add_attention_proj_bias = c.add_mlp_bias = true;
  c.mtp_num_layers = 2;
  return c;
}

struct Golden {
  explicit Golden(const std::string& name) : folder(kModels / name) {
    if (name == "gpt2_mtp") {
      config = gpt2_config();
    } else {
      source = checkpoint::open_model(folder.string());
      config = source->config();
    }
    config.mtp_loss_scaling_factor = kFactor;
    model = parallelize::make_model({.config = config,
                                     .build = {.dtype = at::kDouble},
                                     .device = at::kCPU,
                                     .max_sequence = 20,
                                     .gradients = true},
                                    {}, {});
    if (source) {
      source->load(model.model->params());
      return;
    }
    const SafetensorsFile weights(folder / "weights.safetensors");
    for (nn::Param& param : model.model->params())
      nn::load_global(param, tensor_of(weights, param.name()).to(at::kDouble));
  }
  /// By the names of the generator.
  std::map<std::string, at::Tensor> gradients() {
    if (source)
      return checkpoint::hf_tensors({"deepseek_v3", config}, model.model->params(),
                                    [](const nn::Param& param) { return param.main_grad(); });
    std::map<std::string, at::Tensor> all;
    for (const nn::Param& param : model.model->params()) {
      all[param.name()] = at::zeros(param.spec().shape, at::kDouble);
      nn::store_global(param, param.main_grad(), all[param.name()]);
    }
    return all;
  }

  fs::path folder;
  std::unique_ptr<checkpoint::ModelSource> source;
  models::ModelConfig config;
  parallelize::RankModel model;
};

class MultiToken : public testing::TestWithParam<std::string> {};

TEST_P(MultiToken, LossesAndGradientsAreThoseOfPyTorch) {
  Golden golden(GetParam());
  const models::ModelSpec& spec = golden.model.model->spec();
  const SafetensorsFile expected(golden.folder / "expected.safetensors");
  const std::vector<int64_t> ids = {0, 1};
  data::Batch batch = data::make_batch(GoldenBatch(expected), ids);
  data::add_shifted_fields(batch, spec.shifted_fields);
  const nn::Microbatch input = model_input(batch, spec.streams, at::kCPU);
  nn::StepState state;
  nn::WgradQueue wgrad;
  nn::ForwardContext ctx{.batch = &input, .wgrad = &wgrad, .state = &state};
  for (const models::LossTerm& term : spec.losses)
    ctx.loss_scales[term.name] =
        term.weight / static_cast<double>(batch.num_targets.at(term.labels));
  nn::Tape tape;
  golden.model.model->whole().forward({}, ctx, *golden.model.store, &tape);
  golden.model.model->whole().backward({}, ctx, *golden.model.store, tape);
  ASSERT_EQ(std::ssize(spec.losses), 1 + golden.config.mtp_num_layers);
  for (size_t i = 0; i < spec.losses.size(); ++i) {
    const models::LossTerm& term = spec.losses[i];
    const double reference =
        tensor_of(expected, i == 0 ? "loss" : fmt::format("mtp_{}_loss", i)).item<double>();
    EXPECT_NEAR(state.loss_sum(term.name) / static_cast<double>(batch.num_targets.at(term.labels)),
                reference, 1e-10 * reference)
        << term.name;
  }
  const std::map<std::string, at::Tensor> gradients = golden.gradients();
  size_t compared = 0;
  for (const auto& [name, entry] : expected.tensors()) {
    if (!name.starts_with("grad_head.")) continue;
    const std::string parameter = name.substr(std::string("grad_head.").size());
    ASSERT_TRUE(gradients.contains(parameter)) << parameter;
    const at::Tensor& gradient = gradients.at(parameter);
    const at::Tensor head = checkpoint::to_tensor(entry);
    const double norm = tensor_of(expected, "grad_norm." + parameter).item<double>();
    // Without rotary positions the K part of a bias has none.
    EXPECT_NEAR(gradient.norm().item<double>(), norm, 1e-10 * norm + 1e-15) << parameter;
    EXPECT_LE((gradient.reshape({-1}).narrow(0, 0, head.numel()) - head).abs().max().item<double>(),
              1e-10 * norm + 1e-15)
        << parameter;
    ++compared;
  }
  EXPECT_EQ(compared, gradients.size());
}

INSTANTIATE_TEST_SUITE_P(Models, MultiToken,
                         testing::Values("deepseek_v3_mtp", "deepseek_v3_mtp_tied", "gpt2_mtp"),
                         [](const auto& info) { return info.param; });

} // namespace
} // namespace pentatron::trainer

// Training adapters against Hugging Face's PEFT, step by step; what is written is what it writes.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "pentatron/base/json.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/adapters/adapter_source.h"
#include "pentatron/checkpoint/hf/hf_config.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/trainer/evaluate_hf.h"
#include "pentatron/trainer/train.h"
#include "tests/support/files.h"
#include "tests/support/ranks.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;

const fs::path kAdapterData = PENTATRON_TEST_DATA;

struct AdapterCase {
  std::string folder, model, precision, keys = {};
  int ranks = 1;
  double tolerance = 1e-12, final_tolerance = 1e-7, logits_tolerance = 2e-6;
};
std::ostream& operator<<(std::ostream& out, const AdapterCase& one) {
  return out << one.folder << " " << one.precision << " " << one.keys;
}

double relative_gap(double a, double b) {
  return std::abs(a - b) / std::abs(b);
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

Config config_of(const AdapterCase& one, const fs::path& out) {
  const fs::path base = kAdapterData / "hf_tiny" / one.model,
                 peft = kAdapterData / "peft_curves" / one.folder;
  std::vector<std::string> keys = {"dtype=" + one.precision,
                                   "kernels=order",
                                   "checkpoint.load=hf:" + base.string(),
                                   "peft.load=" + peft.string(),
                                   "dataset.type=batches",
                                   "dataset.path=" + (peft / "batches.safetensors").string(),
                                   "train.train_iters=20",
                                   "train.global_batch_size=4",
                                   "optimizer.lr=2e-3",
                                   "optimizer.min_lr=2e-4",
                                   "scheduler.lr_decay_style=cosine",
                                   "scheduler.lr_warmup_iters=4",
                                   "scheduler.lr_decay_iters=20",
                                   "checkpoint.save=" + (out / "ck").string(),
                                   "checkpoint.export_hf=true",
                                   "logger.log_interval=1",
                                   "logger.dir=" + (out / "log").string(),
                                   "logger.peak_tflops=1"};
  std::istringstream more(one.keys);
  for (std::string key; more >> key;) keys.push_back(key);
  return load_config(std::nullopt, keys, {}, one.ranks);
}

void expect_curve(const fs::path& log, const Json& curve, double tolerance) {
  std::ifstream in(log);
  std::string line;
  size_t i = 0;
  for (; std::getline(in, line); ++i) {
    const Json metrics = parse_json(line, "metrics.jsonl");
    for (const char* key : {"loss", "grad_norm"})
      EXPECT_LT(relative_gap(metrics[key].get<double>(), curve[key][i].get<double>()), tolerance)
          << key << " of " << i;
  }
  EXPECT_EQ(i, 20u);
}

class AdapterCurve : public testing::TestWithParam<AdapterCase> {};

TEST_P(AdapterCurve, EveryStepAndTheFilesArePefts) {
  const AdapterCase& one = GetParam();
  const TemporaryFolder folder;
  const fs::path& scratch = folder.path();
  const fs::path peft = kAdapterData / "peft_curves" / one.folder;
  const Config config = config_of(one, scratch);
  test::run_ranks(one.ranks, [&](const comm::Group& world) { Trainer(config, world).run(); });
  const Json curve = read_json(peft / "curve.json");
  expect_curve(scratch / "log" / "metrics.jsonl",
               curve[one.precision == "fp64" ? "float64" : "float32"], one.tolerance);

  const fs::path adapter = scratch / "ck" / "adapter";
  const SafetensorsFile written(adapter / "adapter_model.safetensors"),
      expected(peft / "adapter_final.safetensors");
  ASSERT_EQ(written.tensors().size(), expected.tensors().size());
  for (const auto& [name, tensor] : expected.tensors()) {
    ASSERT_NE(written.find(name), nullptr) << name;
    EXPECT_LT(
        largest_difference(checkpoint::to_tensor(written.at(name)), checkpoint::to_tensor(tensor)),
        one.final_tolerance)
        << name;
  }
  EXPECT_EQ(checkpoint::read_peft_settings(adapter).r, config.peft.r);

  const fs::path logits = scratch / "logits.safetensors";
  const std::string base = (kAdapterData / "hf_tiny" / one.model).string();
  // The adapter that was written, and the checkpoint, which knows its base.
  for (const std::string& model :
       {base + std::string(checkpoint::kWithAdapter) + adapter.string(),
        base + std::string(checkpoint::kWithAdapter) + (scratch / "ck").string(),
        (scratch / "ck").string()}) {
    evaluate_hf({.model = model,
                 .batches = peft / "merged.safetensors",
                 .logits_out = logits,
                 .dtype = config.dtype});
    EXPECT_LT(largest_difference(
                  checkpoint::to_tensor(SafetensorsFile(logits).at("logits")),
                  checkpoint::to_tensor(SafetensorsFile(peft / "merged.safetensors").at("logits"))),
              one.logits_tolerance)
        << model;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Peft, AdapterCurve,
    testing::Values(AdapterCase{"llama", "llama", "fp64"},
                    AdapterCase{"llama", "llama", "fp32", "", 1, 5e-4, 1e-3, 1e-2},
                    AdapterCase{"llama_dora", "llama", "fp64"},
                    AdapterCase{"gpt2_rslora", "gpt2", "fp64"},
                    AdapterCase{"mixtral_experts", "mixtral", "fp64"},
                    AdapterCase{"mixtral_experts", "mixtral", "fp64",
                                "parallel.tensor_model_parallel_size=2 "
                                "parallel.sequence_parallel=true "
                                "parallel.expert_model_parallel_size=2 train.micro_batch_size=2",
                                4},
                    AdapterCase{"mixtral_all_linear", "mixtral", "fp64"},
                    AdapterCase{"mixtral_all_linear", "mixtral", "fp64",
                                "parallel.tensor_model_parallel_size=2 "
                                "parallel.expert_model_parallel_size=2 train.micro_batch_size=2",
                                4},
                    AdapterCase{"deepseek_all_linear", "deepseek_v3", "fp64"},
                    AdapterCase{"deepseek_all_linear", "deepseek_v3", "fp64",
                                "parallel.tensor_model_parallel_size=2 "
                                "parallel.sequence_parallel=true train.recompute=full "
                                "train.micro_batch_size=2 ddp.zero_stage=2",
                                4},
                    AdapterCase{"qwen2_moe_all_linear", "qwen2_moe", "fp64"},
                    AdapterCase{"qwen2_moe_all_linear", "qwen2_moe", "fp64",
                                "parallel.tensor_model_parallel_size=2 "
                                "parallel.sequence_parallel=true train.micro_batch_size=2",
                                4},
                    AdapterCase{"llama_modules", "llama", "fp64"},
                    AdapterCase{"llama_modules", "llama", "fp64",
                                "parallel.tensor_model_parallel_size=2 "
                                "parallel.sequence_parallel=true "
                                "parallel.pipeline_model_parallel_size=2 "
                                "train.micro_batch_size=1 ddp.zero_stage=3",
                                8},
                    AdapterCase{"gpt2_modules", "gpt2", "fp64"},
                    AdapterCase{"llama_lm_head", "llama", "fp64"},
                    AdapterCase{"llama_lm_head", "llama", "fp64",
                                "parallel.tensor_model_parallel_size=2 "
                                "parallel.sequence_parallel=true "
                                "parallel.pipeline_model_parallel_size=2 "
                                "train.micro_batch_size=1 ddp.zero_stage=2",
                                4},
                    AdapterCase{"llama_lm_head_dora", "llama", "fp64"},
                    AdapterCase{"llama_lm_head_dora", "llama", "fp64",
                                "parallel.tensor_model_parallel_size=2 "
                                "train.micro_batch_size=2 ddp.zero_stage=3",
                                4},
                    AdapterCase{"llama_tied_lm_head", "llama3_rope_scaling_tied", "fp64"},
                    AdapterCase{"llama_tied_lm_head", "llama3_rope_scaling_tied", "fp64",
                                "parallel.tensor_model_parallel_size=2 "
                                "parallel.pipeline_model_parallel_size=2 "
                                "train.micro_batch_size=1 ddp.zero_stage=1",
                                4},
                    // B of an embedding has numbers up to 4, which the files round.
                    AdapterCase{"llama_embed_tokens", "llama", "fp64", "", 1, 1e-12, 2.4e-7},
                    AdapterCase{"llama_embed_tokens", "llama", "fp64",
                                "parallel.tensor_model_parallel_size=2 "
                                "parallel.sequence_parallel=true "
                                "parallel.pipeline_model_parallel_size=2 "
                                "train.micro_batch_size=1 ddp.zero_stage=2",
                                4, 1e-12, 2.4e-7},
                    AdapterCase{"gemma2_tied_both", "gemma2", "fp64", "", 1, 1e-12, 2.4e-7},
                    AdapterCase{"gemma2_tied_both", "gemma2", "fp64",
                                "parallel.tensor_model_parallel_size=2 "
                                "parallel.sequence_parallel=true "
                                "parallel.pipeline_model_parallel_size=2 "
                                "train.micro_batch_size=1 ddp.zero_stage=3",
                                8, 1e-12, 2.4e-7},
                    AdapterCase{"bert_dense_dora", "bert_masked_lm", "fp64"},
                    AdapterCase{"bert_dense_dora", "bert_masked_lm", "fp64",
                                "parallel.tensor_model_parallel_size=2 "
                                "parallel.sequence_parallel=true "
                                "parallel.pipeline_model_parallel_size=2 "
                                "train.micro_batch_size=2 ddp.zero_stage=2",
                                8},
                    AdapterCase{"bert_regression", "bert_regression", "fp64"},
                    AdapterCase{"bert_regression", "bert_regression", "fp64",
                                "parallel.tensor_model_parallel_size=2 "
                                "parallel.sequence_parallel=true train.micro_batch_size=2 "
                                "ddp.zero_stage=3",
                                4},
                    AdapterCase{"llama_tied_modules", "llama3_rope_scaling_tied", "fp64"},
                    AdapterCase{"llama_tied_modules", "llama3_rope_scaling_tied", "fp64",
                                "parallel.tensor_model_parallel_size=2 "
                                "parallel.pipeline_model_parallel_size=2 "
                                "train.micro_batch_size=1 ddp.zero_stage=2",
                                4},
                    AdapterCase{"llama", "llama", "fp64",
                                "parallel.tensor_model_parallel_size=4 "
                                "parallel.sequence_parallel=true train.micro_batch_size=4",
                                4},
                    AdapterCase{"llama_dora", "llama", "fp64",
                                "parallel.tensor_model_parallel_size=2 "
                                "parallel.sequence_parallel=true "
                                "parallel.pipeline_model_parallel_size=2 "
                                "train.micro_batch_size=1 ddp.zero_stage=3",
                                8},
                    AdapterCase{"gpt2_rslora", "gpt2", "fp64",
                                "parallel.tensor_model_parallel_size=2 train.micro_batch_size=2 "
                                "ddp.zero_stage=1",
                                4}));

} // namespace
} // namespace pentatron::trainer

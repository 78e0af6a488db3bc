/// Trains one work in one layout, with the program's own Trainer, and compares with one rank.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pentatron/comm/collectives.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/trainer/adapters.h"
#include "pentatron/trainer/train.h"
#include "tests/support/quiet_log.h"
#include "tests/support/ranks.h"
#include "tests/trainer/layouts.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::test {

inline std::string matrix() {
  const char* const text = std::getenv("PENTATRON_MATRIX");
  return text == nullptr ? "" : text;
}
/// PENTATRON_MATRIX=full takes every layout in fp64, and in fp32 those that do not jump.
inline bool full_matrix() {
  return matrix() == "full";
}

struct Trained {
  std::vector<double> losses, norms, validation, auxiliary;
  double key_noise = 0;                      ///< see key_noise_of()
  std::map<std::string, at::Tensor> weights; ///< and buffers; global, in fp64
  std::map<std::string, at::Tensor> start;   ///< before the first step; of one rank only
};

/// The global tensors of a model from all ranks. Every element must be held by some rank, and be
/// the same on all that hold it.
inline std::map<std::string, at::Tensor>
gather_weights(trainer::Trainer& trainer, const trainer::Config& config, const comm::Group& world) {
  const std::unique_ptr<models::Model> whole =
      models::make_model(config.model, {.adapters = trainer::plan_adapters(config)});
  std::map<std::string, at::Tensor> highest, lowest;
  const double none = -std::numeric_limits<double>::infinity();
  for (const nn::Param& param : whole->params())
    highest[param.name()] = at::full(param.spec().shape, none, at::kDouble);
  for (const nn::Param& buffer : whole->params().buffers())
    highest[buffer.name()] = at::full(buffer.spec().shape, none, at::kDouble);
  for (auto& [name, tensor] : highest) lowest[name] = tensor.clone();
  const auto store = [&](const nn::Param& param) {
    const at::Tensor value = param.value().to(at::kCPU, at::kDouble);
    nn::store_global(param, value, highest.at(param.name()));
    nn::store_global(param, -value, lowest.at(param.name()));
  };
  trainer.read_values(store);
  for (const nn::Param& buffer : trainer.model().model.params().buffers()) store(buffer);
  for (auto& [name, tensor] : highest) {
    comm::all_reduce_(tensor, comm::ReduceOp::kMax, world);
    comm::all_reduce_(lowest.at(name), comm::ReduceOp::kMax, world);
    EXPECT_TRUE(at::equal(tensor, -lowest.at(name))) << "copies of " << name << " differ";
    EXPECT_TRUE(at::isfinite(tensor).all().item<bool>()) << "no rank holds all of " << name;
  }
  return highest;
}

inline std::vector<std::string> split_keys(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

/// A work with more keys, as a checked configuration for so many ranks; `folder` has its documents.
inline trainer::Config layout_config(const std::string& work, const std::string& keys, int ranks,
                                     const std::filesystem::path& folder) {
  std::vector<std::string> all = {
      "model.vocab_size=259", "model.init_method_std=0.1", "train.seq_length=16",
      "train.micro_batch_size=1", "train.global_batch_size=8", "train.train_iters=20",
      "train.eval_interval=20", "train.eval_iters=1", "train.num_threads=1", "kernels=order",
      "optimizer.lr=3e-3", "optimizer.min_lr=3e-4",
      // Or Adam turns the rounding noise of an element whose gradient is near 0 into a step: in
      // fp32 a noise of 1e-9 moved a weight by 4e-5 with 1e-7. Gradients are about 1e-2.
      "optimizer.adam_eps=1e-5", "logger.peak_tflops=1", "logger.tensorboard=false",
      "logger.plot=false", "dataset.split=80,20,0", "logger.dir=" + (folder / "logs").string()};
  for (const Work& known : works()) {
    if (known.name != work) continue;
    all.push_back("dataset.path=" + (folder / known.data).string());
    if (known.data.ends_with(".safetensors"))
      all.push_back("dataset.valid_data_path=" + (folder / known.data).string());
    if (known.data == Work().data) all.emplace_back("model.max_position_embeddings=16");
    for (const std::string& text : {known.keys, keys}) {
      const std::vector<std::string> more = split_keys(text);
      all.insert(all.end(), more.begin(), more.end());
    }
  }
  return trainer::load_config(std::nullopt, all, {}, ranks);
}

/// What the key part of a qkv bias may differ by, relative to the whole bias: without rotary
/// positions, key norms and sinks its gradient is mathematically zero, and Adam amplifies what fp32
/// leaves of it. 0: it has the bound of all weights.
inline double key_noise_of(const trainer::Config& config) {
  const models::ModelConfig& model = config.model;
  const bool zero = model.position_embedding_type != models::PositionEmbedding::kRope &&
                    !model.qk_layernorm && model.softmax_type == models::SoftmaxType::kVanilla;
  return zero && config.dtype != trainer::Precision::kFp64 ? 1e-3 : 0;
}

/// What rank 0 sees of the training; nothing in other processes than its own.
/// `look`: at each line of metrics.jsonl.
inline Trained train_layout(const std::string& work, int ranks, const std::string& keys,
                            const std::function<void(const Json&)>& look = {}) {
  Trained trained;
  std::mutex mutex;
  const Scratch scratch;
  const QuietLog quiet;
  write_documents(scratch / "documents.jsonl", 400);
  write_stories(scratch / "stories.jsonl", 200);
  write_labels(scratch, 200);
  write_pairs(scratch / "pairs.safetensors");
  const auto body = [&](const comm::Group& world) {
    const std::string folder = comm::gather_text(scratch.path.string(), world).front();
    const trainer::Config config = layout_config(work, keys, ranks, folder);
    trainer::Trainer trainer(config, world);
    if (world.size() == 1) trained.start = gather_weights(trainer, config, world);
    const trainer::TrainReport report = trainer.run();
    std::map<std::string, at::Tensor> weights = gather_weights(trainer, config, world);
    if (world.rank() != 0) return;
    const std::lock_guard lock(mutex);
    trained.weights = std::move(weights);
    trained.key_noise = key_noise_of(config);
    trained.validation = {report.validation.value().loss.value()};
    for (const Json& step : read_metrics(report.metrics.string())) {
      if (look) look(step);
      if (step.at("grad_norm").is_null()) continue; // an overflow
      trained.losses.push_back(step.at("loss").get<double>());
      trained.norms.push_back(step.at("grad_norm").get<double>());
      for (const char* term : {"z_loss", "seq_load_balancing_loss", "global_load_balancing_loss",
                               "mtp_1_loss", "mtp_2_loss"})
        if (step.contains(term)) trained.auxiliary.push_back(step.at(term).get<double>());
    }
  };
  if (ranks == 1) {
    at::set_num_threads(1);
    body({});
  } else {
    run_ranks(ranks, body);
  }
  return trained;
}

/// One rank's training of a work, made once.
inline const Trained& one_rank(const std::string& work, const std::string& keys) {
  static std::map<std::string, Trained> made;
  const auto [slot, fresh] = made.try_emplace(work + " " + keys);
  if (fresh) slot->second = train_layout(work, 1, keys);
  return slot->second;
}

/// The bounds of docs/design.md section 1.
struct Bounds {
  double losses, weights;
  double auxiliary; ///< of balance losses, which count choices
};
/// Of a work whose configuration has these keys. Two things amplify rounding in fp32: routers,
/// which in 20 steps choose some hundred thousand times between experts of which two may be as good
/// as equal; and adaptive Muon, whose update is about as large for small gradients as for large
/// ones.
inline Bounds bounds_of(const std::string& dtype, const std::string& keys = "") {
  const auto has = [&](const char* key) { return keys.find(key) != std::string::npos; };
  if (dtype == "fp64") return {1e-10, 1e-10, 1e-10};
  if (has("optimizer=adaptive_muon")) return {2e-4, 1e-3, 1e-3};
  if (has("num_moe_experts=")) return {1e-4, 2e-4, 1e-3};
  return {2e-5, 2e-5, 2e-5};
}

/// Compares every weight; ||a - b|| / ||b|| is at most `bound`, and twice that for the B of
/// adapters, which begins at zero and is nothing but the sum of its updates. The key part of a qkv
/// bias is compared relative to the whole bias; for `key_noise` see key_noise_of().
inline void expect_same_weights(const std::map<std::string, at::Tensor>& weights,
                                const std::map<std::string, at::Tensor>& oracle, double bound,
                                double key_noise = 0) {
  const auto relative = [](const at::Tensor& a, const at::Tensor& whole) {
    const double norm = a.norm().item<double>();
    return norm == 0 ? 0 : norm / whole.norm().item<double>(); // a frozen bias is 0
  };
  const auto difference = [&](const at::Tensor& a, const at::Tensor& b) {
    return relative(a - b, b);
  };
  const std::string qkv_bias = "qkv.bias";
  for (const auto& [name, weight] : oracle) {
    const at::Tensor& other = weights.at(name);
    if (!name.ends_with(qkv_bias)) {
      const bool from_zero = name.find(".lora_B") != std::string::npos;
      EXPECT_LE(difference(other, weight), from_zero ? 2 * bound : bound) << name;
      continue;
    }
    const std::string attention = name.substr(0, name.size() - qkv_bias.size());
    const int64_t q = oracle.at(attention + "proj.weight").size(1);
    const int64_t kv = (weight.size(0) - q) / 2;
    const auto part = [&](int64_t begin, int64_t rows) {
      return difference(other.narrow(0, begin, rows), weight.narrow(0, begin, rows));
    };
    const at::Tensor keys = other.narrow(0, q, kv) - weight.narrow(0, q, kv);
    EXPECT_LE(part(0, q), bound) << name << " of queries";
    EXPECT_LE(relative(keys, weight), std::max(bound, key_noise)) << name << " of keys";
    EXPECT_LE(part(q + kv, kv), bound) << name << " of values";
  }
}

inline void expect_same_training(const Trained& run, const Trained& oracle, const Bounds& bounds) {
  ASSERT_EQ(run.losses.size(), oracle.losses.size());
  for (size_t i = 0; i < oracle.losses.size(); ++i) {
    ASSERT_NEAR(run.losses[i], oracle.losses[i], bounds.losses * oracle.losses[i])
        << "loss of step " << i + 1;
    ASSERT_NEAR(run.norms[i], oracle.norms[i], bounds.losses * oracle.norms[i])
        << "gradient norm of step " << i + 1;
  }
  ASSERT_EQ(run.auxiliary.size(), oracle.auxiliary.size());
  for (size_t i = 0; i < oracle.auxiliary.size(); ++i)
    EXPECT_NEAR(run.auxiliary[i], oracle.auxiliary[i], bounds.auxiliary * oracle.auxiliary[i]);
  for (size_t i = 0; i < oracle.validation.size(); ++i)
    EXPECT_NEAR(run.validation[i], oracle.validation[i], bounds.losses * oracle.validation[i]);
  expect_same_weights(run.weights, oracle.weights, bounds.weights, oracle.key_noise);
}

} // namespace pentatron::test

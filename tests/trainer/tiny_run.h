/// Small runs of the trainer, and what they leave behind.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <algorithm>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "pentatron/base/json.h"
#include "pentatron/base/philox.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/trainer/train.h"
#include "tests/support/files.h"

namespace pentatron::test {

/// A folder of its own, removed at the end.
struct Scratch {
  std::string operator/(const std::string& name) const { return (path / name).string(); }
  /*implicit*/ operator const std::filesystem::path&() const { return path; }

  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path();
};

/// JSON lines of short documents, some 20 bytes each, of a few words.
inline std::string write_documents(const std::string& file, int count, uint64_t seed = 1) {
  const char* const words[] = {"the", "loss", "falls", "slowly", "and", "then", "rises"};
  const Stream stream(seed, "documents");
  std::ofstream out(file);
  for (int i = 0; i < count; ++i) {
    std::string text;
    for (int w = 0; w < 4; ++w)
      text +=
          std::string(
              words[static_cast<size_t>(stream.uniform(static_cast<uint64_t>(i * 4 + w)) * 7)]) +
          (w < 3 ? " " : ".");
    out << R"({"text": ")" << text << R"(", "other": "another text of about that length"})" << '\n';
  }
  return file;
}

/// Short conversations.
inline void write_chats(const std::string& file, int count) {
  std::ofstream out(file);
  for (int i = 0; i < count; ++i)
    out << R"({"messages":[{"role":"user","content":"Say )" << i
        << R"("},{"role":"assistant","content":")" << i << ' ' << i * i << "\"}]}\n";
}

/// Documents of two to five sentences of one or two short words.
inline std::string write_stories(const std::string& file, int count, uint64_t seed = 1) {
  const char* const words[] = {"Up", "So", "On", "It", "Go", "We", "He"};
  const Stream stream(seed, "stories");
  uint64_t n = 0;
  const auto below = [&](int end) {
    return static_cast<size_t>(stream.uniform(n++) * static_cast<double>(end));
  };
  std::ofstream out(file);
  for (int i = 0; i < count; ++i) {
    std::string text;
    for (size_t s = 0, sentences = 2 + below(4); s < sentences; ++s) {
      text += std::string(s > 0 ? " " : "") + words[below(7)];
      if (below(2) > 0) text += std::string(" ") + words[below(7)];
      text += ".";
    }
    out << R"({"text": ")" << text << "\"}\n";
  }
  return file;
}

/// Texts and pairs of one to twelve letters, in classes.jsonl with a class below three and in
/// numbers.jsonl with a number.
inline void write_labels(const std::filesystem::path& folder, int count) {
  const Stream stream(1, "labels");
  uint64_t n = 0;
  const auto letters = [&] {
    std::string text;
    for (auto left = 1 + static_cast<int>(6 * stream.uniform(n++)); left > 0; --left)
      text += static_cast<char>('a' + static_cast<int>(26 * stream.uniform(n++)));
    return text;
  };
  std::ofstream classes(folder / "classes.jsonl"), numbers(folder / "numbers.jsonl");
  for (int i = 0; i < count; ++i) {
    const std::string first = letters(), second = letters();
    const std::string text =
        fmt::format(R"({{"text": "{}", "text_pair": "{}", "label": )", first, second);
    classes << text << static_cast<int>(3 * stream.uniform(n++)) << "}\n";
    numbers << text << stream.uniform(n++) << "}\n";
  }
}

/// Prepared batches for T5 as transformers has them, padded: 20 steps of 8 pairs of 1 to 16 tokens
/// and targets of 1 to 12.
inline void write_pairs(const std::string& file) {
  constexpr int64_t kSteps = 20, kBatch = 8, kLength = 16, kTargets = 12;
  const Stream stream(1, "pairs");
  uint64_t n = 0;
  const auto below = [&](int64_t end) {
    return static_cast<int64_t>(stream.uniform(n++) * static_cast<double>(end));
  };
  std::map<std::string, at::Tensor> tensors;
  const auto add = [&](const std::string& ids, const std::string& mask, int64_t length,
                       int64_t padding) {
    at::Tensor& tokens = tensors[ids] = at::full({kSteps, kBatch, length}, padding, at::kLong);
    at::Tensor& real = tensors[mask] = at::zeros_like(tokens);
    for (int64_t row = 0; row < kSteps * kBatch; ++row) {
      const int64_t size = 1 + below(length);
      for (int64_t i = row * length; i < row * length + size; ++i) {
        tokens.data_ptr<int64_t>()[i] = 65 + below(4); // few, so that there is something to learn
        real.data_ptr<int64_t>()[i] = 1;
      }
    }
  };
  add("input_ids", "attention_mask", kLength, 0);
  add("labels", "decoder_attention_mask", kTargets, -100);
  checkpoint::write_tensors(file, tensors);
}

/// Two layers of width 32 on samples of 16 tokens; later settings win.
inline trainer::Config tiny(const std::string& data, std::vector<std::string> overrides,
                            int ranks = 1) {
  std::vector<std::string> all = {"model.num_layers=2",
                                  "model.hidden_size=32",
                                  "model.num_attention_heads=2",
                                  "model.ffn_hidden_size=48",
                                  "model.init_method_std=0.1",
                                  "train.seq_length=16",
                                  "train.micro_batch_size=2",
                                  "train.global_batch_size=4",
                                  "train.train_iters=3",
                                  "train.num_threads=1",
                                  "optimizer.lr=1e-2",
                                  "optimizer.min_lr=1e-3",
                                  "kernels=order",
                                  "logger.peak_tflops=1",
                                  "logger.tensorboard=false",
                                  "logger.plot=false"};
  // Random tokens come from no file.
  if (std::ranges::find(overrides, "dataset.type=mock") == overrides.end())
    all.push_back("dataset.path=" + data);
  if (std::ranges::find(overrides, "model.type=t5") == overrides.end())
    all.emplace_back("model.max_position_embeddings=64");
  all.insert(all.end(), overrides.begin(), overrides.end());
  return trainer::load_config(std::nullopt, all, {}, ranks);
}

struct Trace {
  trainer::TrainReport report;
  std::vector<Json> steps;                   ///< the steps in metrics.jsonl
  std::map<std::string, at::Tensor> weights; ///< at the end
};

/// The lines of training steps, or with `evaluations` those of evaluations.
inline std::vector<Json> read_metrics(const std::string& file, bool evaluations = false) {
  std::vector<Json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    Json json = parse_json(line, file);
    if (json.contains("validation_loss") == evaluations) lines.push_back(std::move(json));
  }
  return lines;
}

inline Trace finish(trainer::Trainer& trainer, const trainer::TrainerOptions& options = {}) {
  Trace trace;
  trace.report = trainer.run(options);
  if (!trace.report.metrics.empty()) trace.steps = read_metrics(trace.report.metrics.string());
  for (const nn::Param& param : trainer.model().model.params())
    trace.weights[param.name()] = param.dense_value().clone();
  for (const nn::Param& buffer : trainer.model().model.params().buffers())
    trace.weights[buffer.name()] = buffer.value().clone();
  return trace;
}

inline Trace run(const trainer::Config& config) {
  at::set_num_threads(1);
  trainer::Trainer trainer(config, {});
  return finish(trainer);
}

} // namespace pentatron::test

/// A tiny random model and what tests of serving need around it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pentatron/generate/generate.h"
#include "pentatron/parallelize/load_model.h"
#include "pentatron/serve/text_job.h"

namespace pentatron::test {

inline constexpr int64_t kServedContext = 512;

inline models::ModelConfig tiny_served_config() {
  models::ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 32;
  config.num_attention_heads = 4;
  config.num_query_groups = 2;
  config.vocab_size = 61;
  config.max_position_embeddings = kServedContext;
  config.init_method_std = 0.3;
  return config;
}

inline parallelize::RankModel tiny_served_model(const models::ModelConfig& config,
                                                at::ScalarType dtype = at::kDouble) {
  parallelize::RankModel model = parallelize::make_model({.config = config,
                                                          .build = {.dtype = dtype},
                                                          .max_sequence = kServedContext,
                                                          .gradients = false},
                                                         {});
  model.model->initialize(3);
  return model;
}

/// Numbers below 61, different for each seed.
inline std::vector<int64_t> some_tokens(int64_t count, int64_t seed) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back((seed * 31 + i * i * 7 + i * seed) % 61);
  return tokens;
}

/// Keeps what it is given.
struct RecordingSink final : serve::TextSink {
  void begin(int64_t reused_tokens) override { reused = reused_tokens; }
  void prompt_token(const serve::ScoredToken& scored) override { prompt.push_back(scored); }
  bool token(const serve::ScoredToken& scored) override {
    tokens.push_back(scored.token);
    scores.push_back(scored);
    return std::ssize(tokens) != enough;
  }
  void finish(generate::Finish reason) override {
    ++ends;
    why = reason;
    finished = true;
  }
  void fail(const std::string& sentence) override {
    ++ends;
    failure = sentence;
  }
  void cancel() override {
    ++ends;
    cancelled = true;
  }

  int64_t reused = -1, enough = -1;
  std::vector<serve::ScoredToken> prompt, scores;
  std::vector<int64_t> tokens;
  generate::Finish why = generate::Finish::kLength;
  std::string failure;
  bool finished = false, cancelled = false;
  int ends = 0; ///< must be 1
};

} // namespace pentatron::test

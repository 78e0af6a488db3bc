/// Generates answers with a model.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "pentatron/data/tokenizer.h"
#include "pentatron/evaluation/evaluate_tasks.h"

namespace pentatron::evaluation {

struct Prompt {
  std::vector<int64_t> tokens;
  const Generation* generation = nullptr;
  Answer* answer = nullptr; ///< receives the text
};

struct AnswerOptions {
  int64_t max_length = 0;
  int64_t batch_tokens = 2048; ///< of prompts and answers that are written at the same time
  comm::Group dp;
  bool together = false; ///< ranks of `dp` all write all texts
  std::function<void(int64_t prompts)> done;
};

/// Draws greedily until a stop token, a stop string or max_gen_toks tokens; a stop string and what
/// follows it are cut off. Collective as evaluate_tasks().
void generate_answers(parallelize::ModelView model, const data::Tokenizer& tokenizer,
                      const TextEnds& ends, std::vector<Prompt>& prompts,
                      const AnswerOptions& options);

} // namespace pentatron::evaluation

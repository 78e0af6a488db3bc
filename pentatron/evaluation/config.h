/// The section `eval`: scores on tasks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "pentatron/config/config.h"

namespace pentatron::evaluation {

struct EvalConfig {
  std::vector<std::string> tasks;
  int64_t interval = 0;
  std::string data_path;
  std::optional<int64_t> max_length;
  int64_t batch_tokens = 2048;
  int64_t limit = 0;
  std::optional<int64_t> num_fewshot;
  int64_t bootstrap_iters = 100000;
  uint64_t seed = 1234;

  static constexpr auto fields() {
    using C = EvalConfig;
    using config::field;
    return std::tuple{
        field("tasks", &C::tasks,
              "tasks to score during training: names of built-in tasks, and task files (YAML)")
            .or_one(),
        field("interval", &C::interval,
              "number of training iterations between evaluations on eval.tasks; 0: only after the "
              "last iteration")
            .non_negative()
            .unit("iterations"),
        field("data_path", &C::data_path,
              "folder that data paths in a task file are relative to; empty: the folder of the "
              "task file, or the working directory for built-in tasks"),
        field("max_length", &C::max_length,
              "maximum length of a prompt together with its answer; longer prompts are cut at the "
              "beginning; default: the model's context, or train.seq_length during training")
            .size()
            .unit("tokens"),
        field("batch_tokens", &C::batch_tokens,
              "number of tokens in a batch of texts; a longer text forms a separate batch")
            .size()
            .unit("tokens"),
        field("limit", &C::limit, "number of documents of each task to use; 0: all")
            .non_negative()
            .unit("documents"),
        field("num_fewshot", &C::num_fewshot,
              "number of examples shown before each question, instead of the number in the task "
              "file; a task whose number is 0 shows none")
            .non_negative()
            .unit("examples"),
        field("bootstrap_iters", &C::bootstrap_iters,
              "number of bootstrap resamples for standard errors that have no formula; 0: do not "
              "compute them")
            .range(0, 1e7),
        field("seed", &C::seed,
              "random seed for the choice of the examples shown before each question")
            .non_negative()};
  }
};

} // namespace pentatron::evaluation

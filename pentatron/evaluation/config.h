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
              "tasks that are scored during training: names of those that come with pentatron, and "
              "task files (YAML)"),
        field("interval", &C::interval,
              "number of training iterations between evaluations on eval.tasks; 0: only after the "
              "last one")
            .non_negative()
            .unit("iterations"),
        field("data_path", &C::data_path,
              "folder where the paths of a task's data begin; empty: the folder of the task file, "
              "or the working directory for tasks that come with pentatron"),
        field("max_length", &C::max_length,
              "tokens that the model sees at most of a prompt with its answer; longer prompts lose "
              "their beginning; default: the model's context, or train.seq_length during training")
            .size()
            .unit("tokens"),
        field("batch_tokens", &C::batch_tokens,
              "tokens of the texts that run at the same time; a longer text runs alone")
            .size()
            .unit("tokens"),
        field("limit", &C::limit, "documents of each task that are used; 0: all")
            .non_negative()
            .unit("documents"),
        field("num_fewshot", &C::num_fewshot,
              "examples that are shown before each question, in place of the task's number; a task "
              "that says 0 shows none")
            .non_negative()
            .unit("examples"),
        field("bootstrap_iters", &C::bootstrap_iters,
              "resamples for standard errors that have no formula; 0: no standard errors")
            .range(0, 1e7),
        field("seed", &C::seed, "random seed for the choice of examples")};
  }
};

} // namespace pentatron::evaluation

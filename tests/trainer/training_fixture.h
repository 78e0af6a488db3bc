/// A tiny model that trains on a file of its own.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {

class Training : public testing::Test {
 protected:
  Config config(std::vector<std::string> more, int ranks = 1) const {
    more.insert(more.begin(), "logger.dir=" + (scratch / fmt::format("log{}", ++runs_)));
    return test::tiny(data, std::move(more), ranks);
  }
  std::vector<double> rates(std::vector<std::string> more) const {
    more.insert(more.begin(), {"optimizer.lr=1.0", "optimizer.min_lr=0.1", "train.train_iters=8",
                               "scheduler.lr_warmup_iters=2"});
    std::vector<double> out;
    for (const Json& step : test::run(config(more)).steps)
      out.push_back(step["learning_rate"].get<double>());
    return out;
  }
  test::Scratch scratch;
  std::string data = test::write_documents(scratch / "data.jsonl", 100);

 private:
  mutable int runs_ = 0;
};

} // namespace pentatron::trainer

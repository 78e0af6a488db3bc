/// The files that runs with the keys of key_effects.h read.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/data/preprocess/preprocess.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {

/// A folder with data of every kind and a checkpoint, "earlier".
struct KeyFiles {
  KeyFiles() {
    test::write_documents(scratch / "data.jsonl", 100);
    test::write_documents(scratch / "other.jsonl", 100, /*seed=*/2);
    test::write_documents(scratch / "bad.jsonl", 100);
    test::write_stories(scratch / "stories.jsonl", 100);
    test::write_chats(scratch / "chat.jsonl", 60);
    std::ofstream labels(scratch / "labels.jsonl");
    for (int i = 0; i < 60; ++i)
      labels << Json{{"text", i % 3 == 0 ? "Go up" : "So it is"},
                     {"other", i % 2 == 0 ? "We" : "He"},
                     {"label", i % 3 == 0 ? 1 : 0},
                     {"mood", i % 2 == 0 ? "glad" : "sad"}}
             << '\n';
    labels.close();
    std::ofstream(scratch / "bad.jsonl", std::ios::app) << "{no json\n";
    for (const std::string name : {"data", "other"}) {
      data::preprocess({.inputs = {scratch / (name + ".jsonl")},
                        .tokenizer = data::make_tokenizer({}),
                        .output = scratch / name,
                        .append_eod = true});
      std::ofstream(scratch / (name + ".json"))
          << Json{{"train", Json::array({scratch / (name + "_text_document")})}};
    }
    test::run(test::tiny(scratch / "data.jsonl",
                         {"checkpoint.save=" + (scratch / "earlier"), "train.train_iters=1"}));
  }

  /// `settings` with this folder for {}, for runs that begin with nothing of an earlier one.
  std::vector<std::string> fresh(std::vector<std::string> settings) const {
    settings.insert(settings.begin(), "logger.dir={}/log");
    for (std::string& text : settings) {
      for (size_t at = 0; (at = text.find("{}")) != std::string::npos;)
        text.replace(at, 2, scratch.path.string());
    }
    for (const char* made : {"log", "ck", "elsewhere"}) std::filesystem::remove_all(scratch / made);
    return settings;
  }
  Config config(const std::vector<std::string>& settings) const {
    return test::tiny(scratch / "data.jsonl", settings);
  }

  test::Scratch scratch;
};

} // namespace pentatron::trainer

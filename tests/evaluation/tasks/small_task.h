/// A folder with a small task of multiple choice, whose keys and files a test replaces.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "pentatron/evaluation/tasks/read_tasks.h"
#include "pentatron/evaluation/tasks/scores.h"
#include "tests/support/files.h"

namespace pentatron::test {

class SmallTask {
 public:
  SmallTask() {
    write("test.jsonl", R"({"question": "a b", "label": 1, "words": ["no", "yes"], "more": "x"}
{"question": "c d", "label": 0, "words": ["no", "yes"], "more": "y"}
{"question": "e f", "label": 0, "words": ["no", "yes"], "more": "z"}
)");
    write("small.yaml", yaml());
  }

  /// The task file, with these lines in place of those with the same keys, or behind them. A line
  /// that is only a key removes it.
  static std::string yaml(const std::vector<std::string>& lines = {}) {
    std::string text = "\ntask: small\n"
                       "dataset_path: json\n"
                       "dataset_kwargs: {data_files: {test: test.jsonl}}\n"
                       "test_split: test\n"
                       "output_type: multiple_choice\n"
                       "doc_to_text: \"{{question}}\"\n"
                       "doc_to_choice: [\"no\", \"yes\"]\n"
                       "doc_to_target: label\n";
    for (const std::string& line : lines) {
      const std::string key = "\n" + line.substr(0, line.find(':') + 1);
      if (const size_t at = text.find(key); at != std::string::npos)
        text.erase(at, text.find('\n', at + 1) - at);
      if (line.find(':') + 1 < line.size()) text += line + "\n";
    }
    return text;
  }

  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(path(name).parent_path());
    std::ofstream(path(name), std::ios::binary) << text;
  }
  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }

  evaluation::TaskList list(const std::string& name) const {
    return evaluation::read_tasks({.names = {path(name).string()}, .data_path = {}});
  }
  /// Of the file small.yaml with these lines, checked as before an evaluation.
  std::vector<evaluation::Item> items(const std::vector<std::string>& lines = {}) const {
    write("small.yaml", yaml(lines));
    const evaluation::Task task = list("small.yaml").tasks.at(0);
    std::vector<evaluation::Item> items = evaluation::make_items(task, {});
    evaluation::check_targets(task, items);
    evaluation::check_filters(task, items);
    return items;
  }
  /// Without the names of the folder.
  std::string error(const std::vector<std::string>& lines) const {
    return short_names(message_of([&] { items(lines); }));
  }
  std::string list_error(const std::string& name) const {
    return short_names(message_of([&] { list(name); }));
  }

 private:
  std::string short_names(std::string text) const {
    const std::string folder = folder_.path().string() + "/";
    for (size_t at = 0; (at = text.find(folder)) != std::string::npos;)
      text.erase(at, folder.size());
    return text;
  }

  TemporaryFolder folder_;
};

} // namespace pentatron::test

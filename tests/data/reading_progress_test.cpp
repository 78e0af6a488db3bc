// Who waits for data learns that reading goes on, whatever their type.
#include "pentatron/data/reading_progress.h"

#include <array>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/log.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/objectives/labelled_texts.h"
#include "pentatron/data/sft/sft_dataset.h"
#include "tests/data/data_files.h"
#include "tests/data/megatron_files.h"
#include "tests/data/sft_examples.h"
#include "tests/support/log_capture.h"

namespace pentatron::data {
namespace {

/// Writes down how often it was told of progress when it encoded each text.
class DiaryTokenizer final : public Tokenizer {
 public:
  explicit DiaryTokenizer(const int& told) : told_(told) {}
  std::string name() const override { return "diary"; }
  int64_t vocab_size() const override { return 2; }
  int32_t eod() const override { return 1; }
  void encode(std::string_view, std::vector<int32_t>& tokens) const override {
    seen.insert(told_);
    tokens.push_back(0);
  }
  std::string decode(std::span<const int64_t>) const override { return {}; }
  std::string token_name(int64_t) const override { return "x"; }

  mutable std::set<int> seen;

 private:
  const int& told_;
};

class ReadingTells : public testing::Test {
 protected:
  ReadingProgress::Options counting() {
    return {.working = [this] { ++told; }};
  }
  const TemporaryFolder folder;
  int told = 0;
  const DiaryTokenizer tokenizer{told};
  const std::string text = std::string(2'000'000, 'x'); // more than is read at once
};

TEST_F(ReadingTells, OfEachExample) {
  const std::string line = talk("Q", "A") + "\n";
  const TaughtTexts texts({folder.write("a.jsonl", line + line + line)}, {}, tokenizer,
                          {.vocab_size = 2, .sequence_length = 64, .reading = counting()});
  EXPECT_EQ(texts.size(), 3);
  EXPECT_EQ(tokenizer.seen.size(), 3u);
}

TEST_F(ReadingTells, OfEachReadOfLabelledTexts) {
  const std::string line = "{\"text\": \"" + text + "\", \"label\": 1}\n";
  const auto encode = [&](std::string_view, std::optional<std::string_view>) {
    EncodedPair pair{.tokens = {}, .types = {0}};
    tokenizer.encode("", pair.tokens);
    return pair;
  };
  const LabelledTexts texts({folder.write("a.jsonl", line + line)}, {},
                            {.encode = encode, .vocab_size = 2, .reading = counting()});
  EXPECT_EQ(texts.size(), 2);
  EXPECT_EQ(tokenizer.seen.size(), 2u);
}

TEST_F(ReadingTells, OfEachIndexedCorpusOfAPart) {
  const auto open = [&](DatasetConfig config) {
    told = 0;
    config.path = "1 " + megatron_file("corpus_a") + " 2 " + megatron_file("corpus_b");
    config.type = DatasetType::kIndexed;
    open_datasets(config, {.sequence_length = 8,
                           .vocab_size = 100'000,
                           .tokenizer = std::make_shared<DiaryTokenizer>(told),
                           .train_samples = 2,
                           .validation_samples = 2,
                           .test_samples = 2,
                           .reading = counting()});
    return told;
  };
  EXPECT_EQ(open({}), 3 * 2);
  EXPECT_EQ(open({.order = SampleOrder::kMegatron}), 3 * 2);
}

/// What a terminal gets when half of a file was read: by another thread, as most files are.
std::string shown(const ReadingProgress::Options& options, bool console) {
  const test::LogCapture terminal(true);
  std::jthread([&] { // what a rank is
    log::set_thread_output(nullptr, console);
    ReadingProgress progress("reading", std::array{InputFile{.size_bytes = 10}}, options);
    std::jthread([&] { progress.add(5); }).join();
  })
      .join();
  return terminal.text();
}

TEST(ReadingProgress, IsDrawnByTheRankOfTheConsole) {
  EXPECT_THAT(shown({}, true), testing::HasSubstr("reading [#"));
  EXPECT_EQ(shown({}, false), "");
  EXPECT_EQ(shown({.draw = false}, true), "");
}

} // namespace
} // namespace pentatron::data

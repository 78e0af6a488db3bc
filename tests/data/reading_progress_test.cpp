// Who waits for data learns that reading goes on, whatever their type.
#include "pentatron/data/reading_progress.h"

#include <array>
#include <atomic>
#include <chrono>
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
#include "pentatron/data/parallel_files.h"
#include "pentatron/data/sft/sft_dataset.h"
#include "tests/data/data_files.h"
#include "tests/data/megatron_files.h"
#include "tests/data/sft_examples.h"
#include "tests/support/log_capture.h"

namespace pentatron::data {
namespace {

/// Writes down how often it was told of progress when it encoded each text.
class DiaryTokenizer : public Tokenizer {
 public:
  explicit DiaryTokenizer(const std::atomic<int>& told) : told_(told) {}
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

 protected:
  const std::atomic<int>& told_;
};

/// Encodes no text before somebody was told of progress, or for ten seconds.
class PatientTokenizer final : public DiaryTokenizer {
 public:
  using DiaryTokenizer::DiaryTokenizer;
  void encode(std::string_view text, std::vector<int32_t>& tokens) const override {
    if (text.empty()) return; // which asks for the template of special tokens
    for (int i = 0; i < 1000 && told_ == 0 && seen.empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    DiaryTokenizer::encode(text, tokens);
  }
};

class ReadingTells : public testing::Test {
 protected:
  ReadingProgress::Options counting() {
    return {.working = [this] { ++told; }};
  }
  const TemporaryFolder folder;
  std::atomic<int> told{0};
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
    return told.load();
  };
  EXPECT_EQ(open({}), 3 * 2);
  // Four of them are long enough for an order of samples, for which lengths are read twice.
  EXPECT_EQ(open({.order = SampleOrder::kMegatron}), 3 * 2 + 4 * 2);
}

TEST_F(ReadingTells, ThroughTheContextOfEachType) {
  const std::string line = R"({"text": "A. B.", "label": 1, "messages": [)"
                           R"({"role": "user", "content": "Q"}, )"
                           R"({"role": "assistant", "content": "A"}]})"
                           "\n";
  const std::string file = folder.write("a.jsonl", line + line + line + line + line);
  for (const DatasetType type :
       {DatasetType::kText, DatasetType::kBert, DatasetType::kSft, DatasetType::kClassification}) {
    told = 0;
    const auto patient = std::make_shared<PatientTokenizer>(told);
    DatasetContext context{.sequence_length = 8,
                           .vocab_size = 1000,
                           .fields = {{.name = "input_ids"}},
                           .tokenizer = patient,
                           .reading = counting()};
    if (type == DatasetType::kClassification) context.fields.push_back(label_field(""));
    open_datasets({.type = type, .path = file, .split = "1"}, context);
    EXPECT_FALSE(patient->seen.contains(0)) << "type " << static_cast<int>(type);
  }
}

/// What a terminal gets when a part of a file was read: by other threads, as most files are.
std::string shown(const ReadingProgress::Options& options, bool console) {
  const test::LogCapture terminal(true);
  std::jthread([&] { // what a rank is
    log::set_thread_output(nullptr, console);
    ReadingProgress progress("reading", std::array{InputFile{.size_bytes = 10}}, options);
    for_each_file(4, 4, [&](size_t) { progress.add(1); });
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

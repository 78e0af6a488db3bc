// Files with examples that cannot be learned, or not completely.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/data/sft/sft_dataset.h"
#include "tests/data/data_files.h"
#include "tests/data/sft_examples.h"

namespace pentatron::data {
namespace {

using namespace testing;

class SftFiles : public testing::Test {
 protected:
  const ByteTokenizer tokenizer;
  const TemporaryFolder folder;

  TaughtTexts read(const std::string& lines, int64_t length,
                   const DatasetConfig& config = {}) const {
    return {{folder.write("taught.jsonl", lines)},
            config,
            tokenizer,
            {.vocab_size = 257, .sequence_length = length}};
  }
};

TEST_F(SftFiles, EveryIncompleteExampleCountsOnce) {
  const std::string asked = R"({"messages": [{"role": "user", "content": ")";
  const TaughtTexts texts = read(talk("Q", "A") + "\n" + talk(std::string(300, 'q'), "A") + "\n" +
                                     talk(std::string(300, 'q'), std::string(300, 'a')) + "\n" +
                                     talk("Q", std::string(300, 'a')) + "\n" + asked + "Q\"}]}\n" +
                                     asked + std::string(300, 'q') + "\"}]}\n",
                                 128);
  EXPECT_EQ(texts.size(), 2);
  EXPECT_THAT(texts.incomplete(),
              ElementsAre("1 example cut to 129 tokens",
                          "2 examples left out, because no answer begins in the first 128 tokens",
                          "2 examples left out, without an answer to learn"));
  EXPECT_THAT(read(talk("Q", "A"), 128).incomplete(), IsEmpty());
}

TEST_F(SftFiles, WithoutAnyAnswerTheReasonIsTold) {
  const auto message = [&](const std::string& lines) {
    return error_of<DataError>([&] { read(lines, 128); });
  };
  const std::string asked = R"({"messages": [{"role": "user", "content": "Q"}]})";
  const auto answered = [](const char* more) {
    return fmt::format(R"({{"messages": [{{"role": "user", "content": "Q"}}, {{"role": )"
                       R"("assistant", "content": "A"{}}}]}})",
                       more);
  };
  EXPECT_THAT(message(asked), AllOf(HasSubstr("no example of dataset.path="),
                                    HasSubstr("one has \"role\": \"assistant\"")));
  EXPECT_THAT(message(answered(R"(, "weight": 0)") + "\n" + asked),
              HasSubstr("has an answer to learn: one example has only answers of \"weight\": 0\n"
                        "  try: \"weight\": 1"));
  EXPECT_THAT(message(R"({"text": ""})"), HasSubstr("try: texts that are not empty"));
  // The answers of a prompt have no weight.
  EXPECT_THAT(message(R"({"prompt": [{"role": "user", "content": "Q"}, {"role": "assistant",)"
                      R"( "content": "A"}], "completion": [{"role": "user", "content": "Q"}]})"),
              Not(HasSubstr("weight")));
}

TEST_F(SftFiles, LongLinesAndBrokenOnesHaveARemedy) {
  DatasetConfig config;
  config.max_line_bytes = 50;
  const auto message = [&](const std::string& lines) {
    const std::string file = folder.write("lines.jsonl", lines);
    return error_of<DataError>(
        [&] { TaughtTexts({file}, config, tokenizer, {.vocab_size = 257, .sequence_length = 8}); });
  };
  const std::string text(60, 'a');
  EXPECT_THAT(message(R"({"text": ")" + text + "\"}\n"),
              HasSubstr("line 1 has 72 bytes, more than dataset.max_line_bytes=50\n  try: "
                        "dataset.max_line_bytes=128"));
  for (const char* lines :
       {"{\n \"text\": \"a\"\n}\n", "{'text': 'a'}\n", "3\n", R"({"text": "a"} {"text": "b"})"})
    EXPECT_THAT(message(lines), HasSubstr("try: each example as one JSON object on one line, or"))
        << lines;
  EXPECT_THAT(message(R"({"text": "a", "text": "b"})"),
              HasSubstr("try: dataset.on_bad_input=skip to leave such input out"));
}

} // namespace
} // namespace pentatron::data

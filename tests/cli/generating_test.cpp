// The verbs generate and chat as a user runs them.
#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "tests/cli/program_folder.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kData = PENTATRON_TEST_DATA;

class Generating : public test::ProgramFolder {
 protected:
  std::vector<Json> lines(const std::string& arguments) const {
    std::vector<Json> result;
    std::istringstream in(run(arguments + " 2>/dev/null"));
    for (std::string line; std::getline(in, line);) result.push_back(parse_json(line, "line"));
    return result;
  }
};

TEST_F(Generating, IsTheSameOnRanksOfEveryKind) {
  const std::string base = "generate '" + (kData / "hf_tiny/llama").string() +
                           "' --tokens 5,1,2 --max-new-tokens 9 --json --logprobs --seed 3 "
                           "dtype=fp64 ";
  const Json expected = lines(base).at(0);
  EXPECT_EQ(expected["prompt_ids"], Json({5, 1, 2}));
  EXPECT_EQ(expected["ids"].size(), 9u);
  EXPECT_EQ(expected["logprobs"].size(), 9u);
  EXPECT_EQ(expected["finish"], "length");
  for (const char* more : {"--ranks 2 parallel.tensor_model_parallel_size=2",
                           "--ranks 2 --backend sockets parallel.pipeline_model_parallel_size=2"})
    EXPECT_EQ(lines(base + more).at(0)["ids"], expected["ids"]) << more;
}

/// A model with a tokenizer of letters: what the tests need, not a good model.
void make_model(const fs::path& model) {
  fs::copy(kData / "hf_tiny/llama", model);
  std::ofstream(model / "tokenizer_config.json")
      << Json{{"eos_token", "<e>"},
              {"chat_template",
               "{% for m in messages %}({{ m['role'][0] }}){{ m['content'] }}{% endfor %}(a)"}};
  Json vocabulary = Json::object();
  for (int i = 33; i < 127; ++i) vocabulary[std::string(1, static_cast<char>(i))] = i - 33;
  std::ofstream(model / "tokenizer.json")
      << Json{{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}},
              {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
              {"decoder", {{"type", "ByteLevel"}}},
              {"added_tokens", Json::array({{{"id", 94}, {"content", "<e>"}, {"special", true}}})}};
}

TEST_F(Generating, WritesTextsSideBySideAndStopsAtStrings) {
  make_model(folder / "model");
  std::ofstream(folder / "prompts.jsonl") << Json{{"prompt", "abc"}} << "\n\n"
                                          << Json{{"prompt", "xyz!"}} << "\n";
  const std::string base = "generate model --max-new-tokens 12 --json --seed 7 ";
  const std::vector<Json> two = lines(base + "--prompts prompts.jsonl");
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0]["prompt_ids"], Json({64, 65, 66}));
  EXPECT_EQ(two[1]["prompt"], "xyz!");
  EXPECT_EQ(lines(base + "--prompt abc --prompt 'xyz!' --batch-size 1"), two);
  const std::string text = two[0]["text"];
  ASSERT_GT(text.size(), 4u);
  std::ofstream(folder / "stop") << text.substr(2, 2);
  const Json cut = lines(base + "--prompt abc --stop \"$(cat stop)\"").at(0);
  EXPECT_EQ(cut["text"], text.substr(0, text.find(text.substr(2, 2))));
  EXPECT_EQ(cut["finish"], "stop_string");
  // What is shown on a terminal is the prompt and the same text.
  const std::string shown =
      run("generate model --max-new-tokens 12 --seed 7 --prompt abc 2>/dev/null");
  EXPECT_EQ(shown, "abc" + text + "\n");
}

TEST_F(Generating, ATalkIsALineATurn) {
  make_model(folder / "model");
  const std::string out =
      run("chat model --max-new-tokens 3 --seed 7 2>/dev/null", 0, "printf 'hi\\n\\nyo\\n' | ");
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 2) << out;
  EXPECT_THAT(run("chat '" + (kData / "hf_tiny/llama").string() + "' 2>&1", 1),
              HasSubstr("has no tokenizer"));
  fs::remove(folder / "model/tokenizer_config.json");
  EXPECT_THAT(run("chat model 2>&1", 1), HasSubstr("has no chat template"));
  EXPECT_THAT(run("chat model --backend sockets --ranks 2 2>&1", 1), HasSubstr("standard input"));
}

TEST_F(Generating, AFileThatShrinksUnderTheModelIsToldInASentence) {
  make_model(folder / "model");
  run("convert model mine --format pentatron 2>/dev/null");
  EXPECT_EQ(lines("generate mine --prompt abc --max-new-tokens 9 --json --seed 3"),
            lines("generate model --prompt abc --max-new-tokens 9 --json --seed 3"));
  run("chat mine --max-new-tokens 3 >answer 2>told", 1,
      "{ printf 'hi\\n'; for i in $(seq 600); do [ -s answer ] && break; sleep 0.1; done; "
      "truncate -s 4096 mine/*/model_*.safetensors; printf 'hi\\n'; } | ");
  EXPECT_THAT(content_of(folder / "told"), HasSubstr("error: a file was truncated"));
}

} // namespace
} // namespace pentatron

// Adapters that the verb serve holds beside their base: their texts are those of the merged models.
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/served_program.h"

namespace pentatron {
namespace {

class ServingAdapters : public test::ServedProgram {
 protected:
  void train(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"train",
                                          "--hf",
                                          "model",
                                          "train.seq_length=16",
                                          "train.micro_batch_size=1",
                                          "train.global_batch_size=2",
                                          "train.train_iters=4",
                                          "dataset.type=mock",
                                          "optimizer.lr=0.05",
                                          "checkpoint.save=" + name,
                                          "checkpoint.export_hf=true",
                                          "train.num_threads=1",
                                          "logger.peak_tflops=1",
                                          "kernels=order"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const test::Result trained = run(arguments);
    ASSERT_EQ(trained.status, 0) << trained.err;
  }
  std::string generated(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"generate",  "model",        "--prompt",
                                          "abcabcabc", "--json",       "--temperature",
                                          "0",         "--ignore-eos", "--max-new-tokens",
                                          "20",        "kernels=order"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return parse_json(run(arguments).out, "line")["text"].get<std::string>();
  }
  /// All at the same time, twice: their rows are in the same passes.
  void expect_texts(const std::map<std::string, std::string>& expected) const {
    std::vector<std::pair<std::string, std::unique_ptr<test::RawClient>>> clients;
    for (int i = 0; i < 2; ++i) {
      for (const auto& [name, text] : expected) {
        clients.emplace_back(name, std::make_unique<test::RawClient>(port));
        const std::string body = dump_json({{"model", name},
                                            {"prompt", "abcabcabc"},
                                            {"max_tokens", 20},
                                            {"temperature", 0},
                                            {"ignore_eos", true}});
        clients.back().second->send(
            fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                        "application/json\r\nContent-Length: {}\r\n\r\n{}",
                        body.size(), body));
      }
    }
    for (const auto& [name, client] : clients) {
      const std::string answer = client->read_answer();
      const Json body = parse_json(answer.substr(answer.find("\r\n\r\n") + 4), "body");
      EXPECT_EQ(body["choices"][0]["text"], expected.at(name)) << name;
      EXPECT_EQ(body["model"], name);
    }
  }
  /// The same by `generate`, whose prompts name adapters or are continued with each of them.
  void expect_generated(const std::map<std::string, std::string>& expected,
                        const std::vector<std::string>& layout) const {
    std::ofstream(folder / "prompts.jsonl") << R"({"prompt": "abcabcabc"}
{"prompt": "abcabcabc", "adapter": null}
{"prompt": "abcabcabc", "adapter": "two"})";
    std::vector<std::string> arguments = {"generate",         "model",     "--prompt-file",
                                          "prompts.jsonl",    "--json",    "--adapter",
                                          "one=one",          "--adapter", "two=two/adapter",
                                          "--temperature",    "0",         "--ignore-eos",
                                          "--max-new-tokens", "20",        "kernels=order"};
    arguments.insert(arguments.end(), layout.begin(), layout.end());
    const test::Result result = run(arguments);
    EXPECT_EQ(result.status, 0) << result.err;
    std::istringstream lines(result.out);
    for (const char* name : {"one", "two", "model", "two"}) {
      std::string line;
      ASSERT_TRUE(std::getline(lines, line)) << name;
      const Json text = parse_json(line, "line");
      EXPECT_EQ(text["text"], expected.at(name)) << name;
      EXPECT_EQ(text["adapter"], name == std::string("model") ? Json() : Json(name));
    }
  }
  /// Two adapters, on one rank and on two.
  void expect_served(const std::string& family, const std::vector<std::string>& one,
                     const std::vector<std::string>& two, const std::vector<std::string>& layout) {
    test::make_letter_model(folder / "model", family);
    train("one", one);
    train("two", two);
    const std::map<std::string, std::string> expected = {
        {"model", generated({})},
        {"one", generated({"--adapter", "one"})},
        {"two", generated({"--adapter", "two/adapter"})}};
    EXPECT_NE(expected.at("one"), expected.at("model"));
    EXPECT_NE(expected.at("one"), expected.at("two"));
    EXPECT_NE(expected.at("two"), expected.at("model"));
    for (const std::vector<std::string>& ranks : {std::vector<std::string>{}, layout}) {
      std::vector<std::string> arguments = {"--adapter", "one=one", "--adapter", "two=two/adapter"};
      arguments.insert(arguments.end(), ranks.begin(), ranks.end());
      start_server(arguments);
      EXPECT_EQ(ask("GET", "/v1/models").body()["data"].size(), 3u);
      expect_texts(expected);
      EXPECT_EQ(stop().status, 0);
      expect_generated(expected, ranks);
    }
  }
};

const std::vector<std::string> kTensor = {"--ranks", "2", "parallel.tensor_model_parallel_size=2"};
const std::vector<std::string> kExperts = {"--ranks", "2", "parallel.tensor_model_parallel_size=2",
                                           "parallel.expert_model_parallel_size=2",
                                           "parallel.expert_tensor_parallel_size=1"};

/// Each writes conversations as it was taught.
TEST_F(ServingAdapters, WithChatTemplatesOfTheirOwn) {
  namespace fs = std::filesystem;
  test::make_letter_model(folder / "model");
  std::ofstream(folder / "model/tokenizer_config.json") << R"({"eos_token": "<e>"})";
  train("one", {"peft.type=lora"});
  train("two", {"peft.type=lora", "seed=2"});
  std::ofstream(folder / "two/adapter/chat_template.jinja")
      << "{% for m in messages %}{{ m['content'] }}{% endfor %}!";
  start_server({"--adapter", "one=one/adapter", "--adapter", "two=two/adapter"});
  const auto asked = [&](const std::string& model) {
    return chat({{"model", model},
                 {"messages", Json::array({{{"role", "user"}, {"content", "abc"}}})},
                 {"max_tokens", 2}});
  };
  for (const char* name : {"model", "one"})
    EXPECT_THAT(asked(name).text, testing::HasSubstr("the model has no chat template")) << name;
  const test::Reply reply = asked("two");
  EXPECT_EQ(reply.status, 200) << reply.text;
  EXPECT_EQ(reply.body()["usage"]["prompt_tokens"], 4) << "abc!";
  stop();
}

/// Random texts of a prompt differ only by the adapters: all draw the same numbers.
TEST_F(ServingAdapters, DrawTheSameNumbers) {
  test::make_letter_model(folder / "model");
  train("one", {"peft.type=lora"});
  const auto texts = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {
        "generate",      "model", "--prompt",         "abc", "--prompt",     "cab", "--json",
        "--temperature", "1",     "--max-new-tokens", "8",   "kernels=order"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::istringstream lines(run(arguments).out);
    std::vector<Json> all;
    for (std::string line; std::getline(lines, line);)
      all.push_back(parse_json(line, "line")["text"]);
    return all;
  };
  const std::vector<Json> merged = texts({"--adapter", "one"}),
                          named = texts({"--adapter", "a=one", "--adapter", "b=one/adapter"});
  ASSERT_EQ(merged.size(), 2u);
  EXPECT_THAT(named, testing::ElementsAre(merged[0], merged[0], merged[1], merged[1]));
  const test::Result shown =
      run({"generate", "model", "--tokens", "1,2", "--max-new-tokens", "2", "--temperature", "0",
           "--adapter", "a=one", "--adapter", "b=one/adapter", "kernels=order"});
  EXPECT_THAT(shown.out, testing::MatchesRegex("a:\n[0-9]+ [0-9]+\n\nb:\n[0-9]+ [0-9]+\n\n"));
  std::ofstream(folder / "asks.jsonl") << R"({"prompt": "abc", "adapter": "c"})";
  for (const std::string more : {"", "a=one"}) {
    std::vector<std::string> arguments = {"generate", "model", "--prompt-file", "asks.jsonl"};
    if (!more.empty()) arguments.insert(arguments.end(), {"--adapter", more});
    EXPECT_THAT(run(arguments).err, testing::HasSubstr("try: --adapter c=DIR"));
  }
}

TEST_F(ServingAdapters, OfLinearLayers) {
  expect_served("llama", {"peft.type=lora"}, {"peft.type=lora", "seed=2"}, kTensor);
}

TEST_F(ServingAdapters, ThatScaleRows) {
  expect_served("llama", {"peft.type=dora"}, {"peft.type=lora", "seed=2"}, kTensor);
}

TEST_F(ServingAdapters, ThatScaleRowsBesideABias) {
  expect_served("gpt2", {"peft.type=dora"}, {"peft.type=dora", "seed=2"}, kTensor);
}

TEST_F(ServingAdapters, OfTheVocabulary) {
  expect_served("llama", {"peft.type=lora", "peft.target_modules=[lm_head,embed_tokens]"},
                {"peft.type=dora", "peft.target_modules=[lm_head,q_proj]", "seed=2"}, kTensor);
}

TEST_F(ServingAdapters, OfATableThatIsTheOutputLayerToo) {
  expect_served("llama3_rope_scaling_tied",
                {"peft.type=lora", "peft.target_modules=[embed_tokens]", "peft.alpha=200"},
                {"peft.type=lora", "peft.target_modules=[lm_head]", "peft.alpha=2000", "seed=2"},
                kTensor);
}

TEST_F(ServingAdapters, OfLatents) {
  expect_served("deepseek_v3", {"peft.type=lora", "peft.target_modules=[kv_b_proj]"},
                {"peft.type=dora", "seed=2"}, kTensor);
}

TEST_F(ServingAdapters, OfRoutersAndProjectionsToLatents) {
  expect_served(
      "deepseek_v3", {"peft.type=lora", "peft.target_modules=[router,q_a_proj,kv_a_proj_with_mqa]"},
      {"peft.type=lora", "peft.target_modules=[gate,o_proj,kv_a_proj_with_mqa]", "seed=2"},
      kTensor);
}

TEST_F(ServingAdapters, OfGatesOfSharedExperts) {
  expect_served(
      "qwen2_moe", {"peft.type=lora", "peft.target_modules=[shared_expert_gate,mlp.gate,o_proj]"},
      {"peft.type=lora", "peft.target_modules=[shared_expert_gate,v_proj,o_proj]", "seed=2"},
      kTensor);
}

TEST_F(ServingAdapters, OfExperts) {
  expect_served("mixtral", {"peft.type=lora", "peft.target_modules=[experts.*]"},
                {"peft.type=lora", "peft.target_modules=[experts.*,q_proj]", "seed=2"}, kExperts);
}

TEST_F(ServingAdapters, OfExpertsOnTensorRanks) {
  expect_served("qwen2_moe", {"peft.type=lora", "peft.target_modules=[experts.*]"},
                {"peft.type=lora", "peft.target_modules=[experts.down_proj,o_proj]", "seed=2"},
                kTensor);
}

} // namespace
} // namespace pentatron

// The program as a user runs it: the files it leaves, what it says where, and its exit status.
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/safetensors.h"
#include "tests/cli/started_program.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using test::kData;
using test::kRoot;
using test::Result;

class Program : public test::StartedProgram {};

TEST_F(Program, QuickstartLearnsAndLeavesItsFiles) {
  const Result r =
      run({"train", (kRoot / "examples/quickstart.yaml").string(), "train.train_iters=12",
           "train.global_batch_size=4", "train.micro_batch_size=4", "train.seq_length=64",
           "train.eval_interval=12", "train.eval_iters=2", "logger.sample_tokens=20",
           "logger.peak_tflops=1", "logger.log_interval=4"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_THAT(r.err, HasSubstr("sample at iteration 12: "));
  for (const char* line : {"\niterations   12\n", "\nloss         ", "\nvalidation   ",
                           "\nunigram      ", "\nmetrics      runs/quickstart/metrics.jsonl\n",
                           "\nplot         runs/quickstart/loss.svg\n",
                           "\ncheckpoint   runs/quickstart/checkpoints/step_00000012\n"})
    EXPECT_THAT(r.out, HasSubstr(line));
  EXPECT_THAT(r.err, HasSubstr("\niteration 12/12 | loss "));
  EXPECT_THAT(r.err, Not(HasSubstr("\x1b["))) << "no progress bar in a file";
  std::ifstream in(folder / "runs/quickstart/metrics.jsonl");
  std::vector<double> losses, validation;
  for (std::string line; std::getline(in, line);) {
    const Json json = parse_json(line, "metrics");
    const bool evaluation = json.contains("validation_loss");
    EXPECT_NE(json.contains("loss"), evaluation) << line;
    (evaluation ? validation : losses)
        .push_back(json[evaluation ? "validation_loss" : "loss"].get<double>());
  }
  ASSERT_EQ(losses.size(), 12u);
  ASSERT_FALSE(validation.empty());
  const Json summary = read_json(folder / "runs/quickstart/run.json");
  EXPECT_EQ(summary["exit_reason"], "finished");
  EXPECT_EQ(summary["last_loss"]["value"].get<double>(), losses.back());
  EXPECT_EQ(summary["last_validation_loss"]["value"].get<double>(), validation.back());
  EXPECT_TRUE(summary["pentatron"].is_string() && summary["torch"].is_string());
  EXPECT_THAT(content_of(folder / "runs/quickstart/loss.svg"), HasSubstr("class=\"dot\""));
  EXPECT_LT(losses.back(), losses.front() - 1);
  for (const char* file : {"loss.svg", "config.yaml", "tensorboard", "checkpoints/latest"})
    EXPECT_TRUE(fs::exists(folder / "runs/quickstart" / file)) << file;

  const Result text = run({"generate", "runs/quickstart/checkpoints", "--prompt", "It is",
                           "--max-new-tokens", "5", "--temperature", "0"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, StartsWith("It is"));
  const Result broken = run({"generate", "runs/quickstart/checkpoints", "--top-p", "7"});
  EXPECT_EQ(broken.status, 2);
  EXPECT_THAT(broken.err, HasSubstr("--top-p 7"));
}

TEST_F(Program, EvaluatePrintsOneJsonLineAndWritesWhatIsAsked) {
  const fs::path model = kData / "hf_tiny/llama";
  const Result r =
      run({"evaluate", "--hf", model, "--batches", model / "expected.safetensors", "--logits-out",
           "l.safetensors", "--grads-out", "g.safetensors", "dtype=fp64"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 1) << r.out;
  EXPECT_TRUE(r.err.empty()) << r.err;
  const double loss = parse_json(r.out, "output")["loss"].get<double>();
  const SafetensorsFile expected(model / "expected.safetensors");
  double reference = 0;
  std::memcpy(&reference, expected.at("loss").data.data(), sizeof reference);
  EXPECT_NEAR(loss, reference, 1e-10 * reference);
  const SafetensorsFile logits(folder / "l.safetensors"), grads(folder / "g.safetensors");
  EXPECT_EQ(logits.at("logits").dtype, SafeDtype::kF32);
  for (const auto& [name, tensor] : grads.tensors())
    EXPECT_EQ(tensor.dtype, SafeDtype::kF64) << name;
}

TEST_F(Program, ErrorsAreOneSentenceOnStandardErrorWithAStatus) {
  const std::string llama = kData / "hf_tiny/llama", batch = llama + "/expected.safetensors";
  std::ofstream(folder / "file") << "x";
  struct Case {
    std::vector<std::string> arguments;
    int status; ///< 1: it failed at work; 2: what was asked for is not valid
    std::string text;
  };
  const std::vector<Case> cases = {
      {{"train", "none.yaml"}, 2, "none.yaml does not exist"},
      {tiny({"train.train_itres=5"}), 2, "train.train_iters"},
      {tiny({"device=cuda"}), 2, "device=cuda"},
      {tiny({"model.vocab_size=100"}), 2, "model.vocab_size=100"},
      {tiny({"checkpoint.save=file"}), 2, "checkpoint.save=file"},
      {tiny({"checkpoint.load=hf:none"}), 1, "none does not exist"},
      {{"evaluate", "--hf", "none", "--batches", batch}, 1, "none does not exist"},
      {{"evaluate", "--hf", llama, "--batches", "none"}, 1, "none"},
      {{"evaluate", "--hf", llama, "--batches", batch, "--logits-out", "no/l"},
       2,
       "--logits-out no/l"},
      {{"evaluate", "--hf", llama, "--batches", batch, "model.num_layers=3"},
       2,
       "model.num_layers=3"},
      {{"generate", "none"}, 1, "none"},
      {{"generate", "hf:" + llama, "--prompt", "x"}, 2, "has no tokenizer"},
      {{"chat", "hf:" + llama}, 2, "has no tokenizer"},
      {{"generate", "hf:" + llama, "--tokens", "1", "--ranks", "2"},
       2,
       "parallel.tensor_model_parallel_size=2"},
      {{"generate", "hf:" + llama, "--tokens", "1", "train.train_iters=3"},
       2,
       "train.train_iters=3"},
      {{"generate", "hf:" + llama, "--tokens", "1", "--min-p", "7"}, 2, "--min-p 7"},
      {{"generate", "hf:" + llama, "--tokens", "1,999"}, 2, "--tokens has 999"},
      {{"config", "show", "model.preset=qwen9"}, 2, "model.preset=qwen9"},
  };
  for (const auto& [arguments, status, text] : cases) {
    const Result r = run(arguments);
    EXPECT_EQ(r.status, status) << text << "\n" << r.err;
    EXPECT_THAT(r.err, HasSubstr("error: "));
    EXPECT_THAT(r.err, HasSubstr(text));
    EXPECT_TRUE(r.out.empty()) << r.out;
  }
}

TEST_F(Program, AnUnknownLevelOfTheProcessorIsAnError) {
  ::setenv("PENTATRON_CPU", "bogus", 1);
  const Result r = run(tiny({}));
  ::unsetenv("PENTATRON_CPU");
  EXPECT_EQ(r.status, 2);
  EXPECT_THAT(r.err,
              HasSubstr("the environment variable PENTATRON_CPU=bogus is not one of reference"));
  EXPECT_THAT(r.err, HasSubstr("try: unset PENTATRON_CPU"));
}

TEST_F(Program, GeneratesTokensOfAHuggingFaceModel) {
  const Result r = run({"generate", "hf:" + (kData / "hf_tiny/gpt2").string(), "--tokens", "1,2,3",
                        "--max-new-tokens", "6", "--temperature", "0"});
  ASSERT_EQ(r.status, 0) << r.err;
  std::istringstream in(r.out);
  int64_t token = 0, count = 0;
  for (; in >> token; ++count) EXPECT_GE(token, 0);
  EXPECT_EQ(count, 6);
  EXPECT_THAT(r.err, HasSubstr("3 prompt tokens in "));
}

TEST_F(Program, ASignalSavesAndTheRunGoesOn) {
  const std::vector<std::string> base = tiny({"train.train_iters=1000000", "checkpoint.save=ck",
                                              "logger.dir=log", "logger.tensorboard=false"});
  const pid_t child = start(base);
  while (!fs::exists(folder / "log/metrics.jsonl") ||
         fs::file_size(folder / "log/metrics.jsonl") < 500)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ::kill(child, SIGTERM);
  const Result stopped = finish(child);
  EXPECT_EQ(stopped.status, 0) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("stopped by a signal after iteration"));
  std::string name;
  std::getline(std::ifstream(folder / "ck/latest") >> std::ws, name);
  const int64_t at = std::stoll(name.substr(5));
  std::vector<std::string> again = base;
  again.insert(again.end(), {"checkpoint.load=ck", "train.train_iters=" + std::to_string(at + 2)});
  const Result resumed = run(again);
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("resumed from ck/" + name));
  EXPECT_THAT(resumed.out, HasSubstr("iterations   " + std::to_string(at + 2)));
}

TEST_F(Program, AKillAtAnyMomentLeavesAWholeCheckpoint) {
  const std::vector<std::string> base = tiny({"train.train_iters=1000000", "checkpoint.save=ck",
                                              "checkpoint.save_interval=1", "checkpoint.keep=2"});
  int64_t reached = 0;
  for (int round = 0; round < 6; ++round) {
    std::vector<std::string> arguments = base;
    if (round > 0) arguments.push_back("checkpoint.load=ck");
    const pid_t child = start(arguments);
    const auto name = [&] {
      std::string text;
      std::getline(std::ifstream(folder / "ck/latest") >> std::ws, text);
      return text;
    };
    const std::string before = name();
    while (name() == before && ::waitpid(child, nullptr, WNOHANG) == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(3000 + 4217 * round));
    ::kill(child, SIGKILL);
    const Result killed = finish(child);
    EXPECT_EQ(killed.status, 128 + SIGKILL) << killed.err;
    if (round > 0) {
      EXPECT_THAT(killed.err, HasSubstr("resumed from ck/step_"));
      EXPECT_THAT(killed.err, Not(HasSubstr("corrupted"))) << killed.err;
    }
    const int64_t now = std::stoll(name().substr(5));
    EXPECT_GE(now, reached) << "nothing that was saved is lost";
    reached = now;
  }
  std::vector<std::string> last = base;
  last.insert(last.end(),
              {"checkpoint.load=ck", "train.train_iters=" + std::to_string(reached + 3)});
  const Result end = run(last);
  EXPECT_EQ(end.status, 0) << end.err;
  size_t folders = 0;
  for (const auto& entry : fs::directory_iterator(folder / "ck")) {
    EXPECT_EQ(entry.path().filename().string().find(".tmp-"), std::string::npos)
        << entry.path() << " is left behind";
    // A kill between a save and its name in `latest` goes back to the one before, and the save is
    // kept in earlier-N.
    const std::string name = entry.path().filename().string();
    folders += name.starts_with("step_");
    EXPECT_TRUE(!entry.is_directory() || name.starts_with("step_") || name.starts_with("earlier-"))
        << name;
  }
  EXPECT_EQ(folders, 2u);
}

TEST_F(Program, TheConfigurationPageIsUpToDate) {
  const Result r = run({"config", "markdown"});
  ASSERT_EQ(r.status, 0);
  EXPECT_EQ(r.out, content_of(kRoot / "docs/configuration.md"))
      << "renew it: pentatron config markdown > docs/configuration.md";
}

TEST_F(Program, ShowsComparesAndExplainsConfigurations) {
  std::ofstream(folder / "a.yaml") << "model:\n  num_layers: 7\n";
  std::ofstream(folder / "b.yaml") << "model:\n  num_layers: 9\n";
  EXPECT_EQ(run({"config", "diff", "a.yaml", "b.yaml"}).out, "model.num_layers: 7 -> 9\n");
  EXPECT_THAT(run({"config", "show", "a.yaml", "seed=3"}).out, HasSubstr("num_layers: 7"));
  EXPECT_THAT(run({"config", "help", "optimizer"}).out, HasSubstr("weight_decay"));
  EXPECT_THAT(run({"config", "presets"}).out, HasSubstr("llama3_8b"));
  const Json schema = parse_json(run({"config", "schema"}).out, "schema");
  EXPECT_TRUE(schema["properties"].contains("model"));
  const Result shown = run({"config", "show"});
  std::ofstream(folder / "c.yaml") << shown.out;
  EXPECT_EQ(run({"config", "show", "c.yaml"}).out, shown.out) << "what is shown can be read";
  const Result key = run({"config", "help", "optimizer.lr"});
  EXPECT_THAT(key.out, HasSubstr("optimizer.lr: peak learning rate"));
  EXPECT_THAT(key.out, Not(HasSubstr("min_lr=")));
  const Result words = run({"config", "help", "warmup", "fraction"});
  EXPECT_THAT(words.out, HasSubstr("scheduler.lr_warmup_fraction"));
  EXPECT_THAT(words.out, Not(HasSubstr("scheduler.lr_warmup_iters")));
}

TEST_F(Program, HelpOfTrainListsTheSectionsOfTheConfiguration) {
  const std::string help = run({"train", "--help"}).out;
  const Json schema = parse_json(run({"config", "schema"}).out, "schema");
  for (const auto& [name, property] : schema["properties"].items()) {
    if (name == "include") continue;
    if (property.contains("properties")) {
      const std::string about = property["description"];
      EXPECT_THAT(help, ::testing::ContainsRegex("\n  " + name + " +" + about.substr(0, 20)));
      const Result keys = run({"config", "help", name});
      EXPECT_THAT(keys.out, HasSubstr(name + ".")) << "what the help says to ask";
    } else {
      EXPECT_THAT(help, ::testing::ContainsRegex("top level .*" + name));
    }
  }
  EXPECT_THAT(help, HasSubstr("pentatron config help SECTION"));
}

TEST_F(Program, MergesConfigurationFilesInOrder) {
  std::ofstream(folder / "base.yaml") << "seed: 1\nmodel: {num_layers: 7, hidden_size: 64}\n";
  std::ofstream(folder / "a.yaml") << "include: [base.yaml]\nmodel: {num_layers: 8}\n";
  std::ofstream(folder / "b.yaml") << "seed: 5\n";
  const std::string shown =
      run({"config", "show", "a.yaml", "b.yaml", "train.train_iters=3", "--origin"}).out;
  for (const char* line : {"seed: 5 .* # b.yaml:1\n", "model.num_layers: 8 .* # a.yaml:2\n",
                           "model.hidden_size: 64 .* # base.yaml:2\n",
                           "train.train_iters: 3 .* # override 'train.train_iters=3'\n",
                           "optimizer.lr: .* # default\n"})
    EXPECT_THAT(shown, ::testing::ContainsRegex(line));
  EXPECT_THAT(run({"config", "show", "b.yaml", "a.yaml"}).out, HasSubstr("seed: 1\n"));
  EXPECT_EQ(run({"config", "diff", "base.yaml", "a.yaml"}).out, "model.num_layers: 7 -> 8\n");
  std::vector<std::string> train = tiny({"train.train_iters=1", "logger.dir=log"});
  train.insert(train.begin() + 1, {"b.yaml", "a.yaml"});
  ASSERT_EQ(run(train).status, 0);
  const std::string stored = content_of(folder / "log/config.yaml");
  EXPECT_THAT(stored, HasSubstr("seed: 1\n"));
  EXPECT_THAT(stored, Not(HasSubstr("include")));
  std::ofstream(folder / "loop.yaml") << "include: loop.yaml\n";
  const Result loop = run({"train", "loop.yaml"});
  EXPECT_EQ(loop.status, 2);
  EXPECT_THAT(loop.err, HasSubstr("loop.yaml:1: loop.yaml includes itself"));
}

TEST_F(Program, ComparesTheConfigurationsOfFilesRunsAndCheckpoints) {
  ASSERT_EQ(run(tiny({"train.train_iters=1", "logger.dir=run", "checkpoint.save=ck"})).status, 0);
  std::ofstream(folder / "seven.yaml") << run({"config", "show", "run/config.yaml", "seed=7"}).out;
  for (const char* saved : {"run", "run/config.yaml", "ck", "ck/step_00000001"}) {
    EXPECT_EQ(run({"config", "diff", "run", saved}).out, "") << saved;
    EXPECT_EQ(run({"config", "diff", saved, "seven.yaml"}).out, "seed: 1234 -> 7\n") << saved;
  }
  std::ofstream(folder / "two.yaml") << "parallel: {tensor_model_parallel_size: 2}";
  EXPECT_EQ(run({"config", "diff", "two.yaml"}).out,
            "parallel.tensor_model_parallel_size: 1 -> 2\n")
      << "a file for several ranks is compared too";
  fs::create_directory(folder / "empty");
  for (const char* none : {"empty", "none.yaml"}) {
    const Result r = run({"config", "diff", "run", none});
    EXPECT_NE(r.status, 0) << none;
    EXPECT_THAT(r.err, HasSubstr(none));
  }
}

TEST_F(Program, SuggestsWhatIsNearOrTheValueBefore) {
  struct Case {
    const char *typed, *suggested;
  };
  for (const Case& c : {Case{"device=gpu", "try: device=auto\n"},
                        {"dtype=float16", "try: dtype=fp16\n"},
                        {"dtype=float32", "try: dtype=fp32\n"},
                        {"a=1", "try: one of model, train,"},
                        {"lr=1", "try: optimizer.lr=1\n"},
                        {"learning_rate=1", "try: optimizer.lr\n"},
                        {"train.batch_size=1", "try: train.global_batch_size\n"},
                        {"tp=2", "try: parallel.tensor_model_parallel_size\n"},
                        {"optimizer.beta1=0", "try: optimizer.adam_beta1\n"},
                        {"model.activation_func=gelu_new", "try: model.activation_func=gelu_tanh"},
                        {"model.activation_func=relu2", "try: model.activation_func=squared_relu"},
                        {"ddp.zero_stage=4", "try: ddp.zero_stage=3\n"},
                        {"logger.progress=true", "try: logger.progress=on\n"},
                        {"dataset=c.jsonl", "try: dataset.path=c.jsonl\n"},
                        {"data_parallel_size=2", "try: --ranks RANKS"},
                        {"modle.num_layer=2", "try: model.num_layers\n"}})
    EXPECT_THAT(run({"config", "show", c.typed}).err, HasSubstr(c.suggested)) << c.typed;
  EXPECT_THAT(run({"config", "show", "device=quantum"}).err,
              HasSubstr("is not one of auto, cpu, cuda\n  try: device=auto\n"));
}

} // namespace
} // namespace pentatron

// Every option and key that names a file or a folder: what is wrong there is said with its name and
// with what to try.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "tests/cli/letter_model.h"
#include "tests/cli/program_folder.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A command with `{}` in the place of the path. `name` is the option or key; that of an argument
/// is empty.
struct PathOption {
  std::string name, command;
};

const std::string kTrain =
    "train model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 "
    "train.seq_length=8 train.micro_batch_size=1 train.global_batch_size=1 train.train_iters=1 "
    "train.num_threads=1 logger.peak_tflops=1 kernels=order model.vocab_size=300 ";
const std::string kLlama = PENTATRON_TEST_DATA "/hf_tiny/llama";

class PathErrors : public test::ProgramFolder {
 protected:
  void SetUp() override {
    std::ofstream texts(folder / "texts.jsonl");
    for (int i = 0; i < 20; ++i) texts << "{\"text\": \"the loss falls slowly\"}\n";
    texts.close();
    std::ofstream(folder / "junk.bin") << "\xff\xfe\xff\xff\xff\xff\xff\xff\xff junk\n";
    std::ofstream(folder / "array.json") << "[1]\n";
    fs::create_directory(folder / "empty");
    test::make_letter_model(folder / "model");
    run("preprocess --input texts.jsonl --tokenizer bytes --output corpus 2>/dev/null");
  }
  void check(const PathOption& option, const std::string& path,
             const std::string& begin = "error: ") const {
    std::string command = option.command;
    command.replace(command.find("{}"), 2, path);
    const std::string out = run(command + " 2>&1 </dev/null; true");
    const std::string error = out.substr(std::min(out.size(), out.find(begin)));
    const std::string shown = fs::path(path).replace_extension(); // PREFIX.bin is the prefix
    EXPECT_THAT(error, AllOf(HasSubstr(option.name + shown), HasSubstr("\n  try: "))) << command;
    for (const char* made : {"log", "out", "out.json"}) fs::remove_all(folder / made);
  }
  /// What is read.
  const std::vector<PathOption> inputs = {
      {"dataset.path=", kTrain + "dataset.path={}"},
      {"dataset.path=", kTrain + "dataset.type=indexed dataset.path={}"},
      {"dataset.path=", kTrain + "dataset.type=batches dataset.path={}"},
      {"dataset.train_data_path=", kTrain + "dataset.type=indexed dataset.train_data_path={}"},
      {"dataset.train_data_path=", kTrain + "model.type=bert model.head=classification "
                                            "model.num_labels=2 dataset.train_data_path={}"},
      {"dataset.valid_data_path=",
       kTrain + "dataset.type=indexed dataset.train_data_path=corpus_text_document "
                "dataset.valid_data_path={}"},
      {"dataset.test_data_path=",
       kTrain + "dataset.type=indexed dataset.train_data_path=corpus_text_document "
                "dataset.test_data_path={}"},
      {"dataset.per_split_data_args_path=",
       kTrain + "dataset.type=indexed dataset.per_split_data_args_path={}"},
      {"tokenizer.path=", kTrain + "dataset.path=texts.jsonl tokenizer.path={}"},
      {"checkpoint.load=", kTrain + "dataset.path=texts.jsonl checkpoint.load={}"},
      {"checkpoint.load=",
       kTrain + "dataset.path=texts.jsonl checkpoint.load={} checkpoint.finetune=true"},
      {"checkpoint.load=hf:", kTrain + "dataset.path=texts.jsonl checkpoint.load=hf:{}"},
      {"", kTrain + "{}"},
      {"--hf ", "train --hf {}"},
      {"--hf ", "evaluate --hf {} --text a"},
      {"", "evaluate {} --text a"},
      {"--file ", "evaluate model --file {}"},
      {"--batches ", "evaluate model --batches {}"},
      {"", "generate {} --prompt a"},
      {"--prompt-file ", "generate model --max-new-tokens 1 --prompt-file {}"},
      {"", "chat {}"},
      {"", "serve {}"},
      {"--input ", "preprocess --tokenizer bytes --output out --input {}"},
      {"--tokenizer ", "preprocess --input texts.jsonl --output out --tokenizer {}"},
      {"--tokenizer ", "tokenize --tokenizer {}"},
      {"--input ", "tokenize --train-bpe 300 --output out.json --input {}"},
      {"", "corpus merge {} corpus_text_document --output out"},
      {"", "corpus split {} --shares 1,1 --output out"},
      {"", "corpus inspect {}"},
      {"", "corpus verify {}"},
      {"--prefix ", "inspect samples --sequence-length 8 --index 0 --prefix {}"},
      {"--tokenizer ", "inspect samples --prefix corpus_text_document --sequence-length 8 "
                       "--index 0 --text --tokenizer {}"},
      {"--sft ", "inspect samples --index 0 --tokenizer bytes --sft {}"},
      {"--tokenizer ", "inspect samples --index 0 --sft texts.jsonl --tokenizer {}"},
      {"--in ", "inspect quantize --recipe mxfp8_1x32 --out out --in {}"},
      {"--adapter ", "evaluate model --text a --adapter {}"},
      {"--adapter ", "generate model --prompt a --adapter {}"},
      {"--adapter ", "chat model --adapter {}"},
      {"--adapter ", "serve model --adapter a={}"},
      {"--adapter ", "convert model out --format hf --adapter {}"},
      {"", "plot {}"},
      {"", "convert {} out --format hf"},
      {"--text-file ", "convert model out --format gguf --quantize q8_0 --text-file {}"},
      {"", "config show {}"},
      {"", "config diff {}"},
      {"", "checkpoint inspect {}"},
      {"", "checkpoint verify {}"},
      {"", "checkpoint diff {} {}"},
      {"", "checkpoint repair {}"},
      {"", "checkpoint prune {} --keep 1"}};
  /// What is written beside the results: a warning says that it is not.
  const std::vector<PathOption> extras = {
      {"logger.mlflow_dir=", kTrain + "dataset.path=texts.jsonl logger.dir=log "
                                      "logger.mlflow_experiment=a logger.mlflow_dir={}"},
      {"dataset.data_cache_path=",
       kTrain +
           "dataset.type=indexed dataset.path=corpus_text_document dataset.order=megatron "
           "dataset.data_cache_path={} --ranks 2 --backend sockets train.global_batch_size=2"}};
  /// What is written.
  const std::vector<PathOption> outputs = {
      {"checkpoint.save=", kTrain + "dataset.path=texts.jsonl checkpoint.save={}"},
      {"logger.dir=", kTrain + "dataset.path=texts.jsonl logger.dir={}"},
      {"offload.dir=", kTrain + "dataset.path=texts.jsonl offload.activations=true "
                                "offload.num_layers=1 offload.dir={}"},
      {"--logits-out ",
       "evaluate " + kLlama + " --batches " + kLlama + "/expected.safetensors --logits-out {}"},
      {"--grads-out ",
       "evaluate " + kLlama + " --batches " + kLlama + "/expected.safetensors --grads-out {}"},
      {"--hidden-out ", "evaluate model --text ab --hidden-out {}"},
      {"--output ", "preprocess --input texts.jsonl --tokenizer bytes --output {}"},
      {"--output ", "tokenize --train-bpe 300 --input texts.jsonl --output {}"},
      {"--output ", "corpus merge corpus_text_document corpus_text_document --output {}"},
      {"--output ", "corpus split corpus_text_document --shares 1,1 --output {}"},
      {"--out ", "finetune model texts.jsonl --out {}"},
      {"--out ", "inspect quantize --recipe mxfp8_1x32 --in '" PENTATRON_TEST_DATA
                 "/kernels/quantize/ties_e2m1.safetensors' --out {}"},
      {"--out ", "evaluate model --tasks '" PENTATRON_TEST_DATA
                 "/evaluation/yes_no.yaml' eval.limit=1 eval.max_length=8 --out {}"},
      {"--output ", "plot log --output {}"}};
};

TEST_F(PathErrors, NameTheOptionOfWhatIsNotThere) {
  for (const PathOption& option : inputs) check(option, "none");
}

TEST_F(PathErrors, NameTheOptionOfAFolderWithoutWhatIsMeant) {
  for (const PathOption& option : inputs) check(option, "empty");
}

TEST_F(PathErrors, NameTheOptionOfAFileOfAnotherKind) {
  for (const PathOption& option : inputs) check(option, "junk.bin");
  for (const PathOption& option : inputs)
    if (option.name == "--tokenizer " || option.name == "tokenizer.path=")
      for (const char* path : {"array.json", "texts.jsonl"}) check(option, path);
}

TEST_F(PathErrors, NameTheOptionOfWhatCannotBeWritten) {
  for (const PathOption& option : outputs) {
    if (option.command.starts_with("plot"))
      run(kTrain + "dataset.path=texts.jsonl logger.dir=log 2>/dev/null");
    check(option, "junk.bin/below");
  }
}

TEST_F(PathErrors, NameTheKeyOfWhatIsNotWrittenBesideTheResults) {
  for (const PathOption& option : extras)
    check(option, "junk.bin/below", "warning: " + option.name);
}

TEST_F(PathErrors, AreTriedForEveryKeyThatNamesAFile) {
  int found = 0;
  const Json table = parse_json(run("config commands"), "table");
  for (const Json& key : table["keys"]) {
    const std::string name = key["name"];
    const auto ends = [&](const char* end) { return name.ends_with(end); };
    if (name == "eval.data_path") continue; // a task names its files, whose error names the task
    if (!ends("path") && !ends("dir") && name != "checkpoint.save" && name != "checkpoint.load")
      continue;
    ++found;
    const auto tries = [&](const PathOption& tried) { return tried.name == name + "="; };
    EXPECT_TRUE(std::ranges::any_of(inputs, tries) || std::ranges::any_of(outputs, tries) ||
                std::ranges::any_of(extras, tries))
        << name;
  }
  EXPECT_GT(found, 8);
}

TEST_F(PathErrors, AreTriedForEveryOptionThatTakesAFile) {
  const std::set<std::string> texts = {
      "--text",   "--text-key",  "--label-key",      "--prompt",       "--stop",
      "--system", "--json-keys", "--pattern",        "--split",        "--title",
      "--format", "--dtype",     "--max-shard-size", "--tasks",        "--name",
      "--listen", "--max-body",  "--token-file",     "--text-pair-key"}; // serving_test
  const Json table = parse_json(run("config commands"), "table");
  for (const Json& command : table["commands"]) {
    std::vector<std::pair<std::string, Json>> all = {{command["name"], command}};
    for (const Json& below : command["commands"])
      all.emplace_back(all[0].first + " " + std::string(below["name"]), below);
    for (const auto& [name, one] : all)
      for (const Json& option : one["options"]) {
        const std::string long_name = option["names"][0];
        if (!option["files"].get<bool>() || texts.contains(long_name)) continue;
        const auto tries = [&, &path = name](const PathOption& tried) {
          return tried.command.starts_with(path + " ") && tried.name == long_name + " ";
        };
        EXPECT_TRUE(std::ranges::any_of(inputs, tries) || std::ranges::any_of(outputs, tries))
            << name << " " << long_name;
      }
  }
}

} // namespace
} // namespace pentatron

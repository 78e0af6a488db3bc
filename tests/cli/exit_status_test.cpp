// docs/cli.md: how commands end. Every command is in the table that `config commands` prints.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "tests/cli/letter_model.h"
#include "tests/cli/program_folder.h"
#include "tests/cli/started_program.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ExitStatus : public test::ProgramFolder {
 protected:
  std::string call(const std::string& arguments, int status) const {
    return run(arguments + " 2>&1 < /dev/null", status);
  }
  /// "train", "checkpoint inspect" and so on.
  std::vector<std::string> commands() const {
    std::vector<std::string> paths;
    const Json table = parse_json(run("config commands"), "table");
    for (const Json& command : table["commands"]) {
      const std::string name = command["name"];
      if (command["commands"].empty()) paths.push_back(name);
      for (const Json& below : command["commands"])
        paths.push_back(name + " " + std::string(below["name"]));
    }
    return paths;
  }
  /// Calls `visit` with every command and each of its options.
  void for_each_option(const std::function<void(const std::string&, const Json&)>& visit) const {
    const std::function<void(const std::string&, const Json&)> walk = [&](const std::string& name,
                                                                          const Json& command) {
      for (const Json& option : command["options"]) visit(name, option);
      for (const Json& below : command["commands"])
        walk((name.empty() ? "" : name + " ") + std::string(below["name"]), below);
    };
    walk("", parse_json(run("config commands"), "table"));
  }
};

TEST_F(ExitStatus, IsZeroForHelpWhichHasAnExample) {
  const std::vector<std::string> all = commands();
  EXPECT_GT(all.size(), 25u);
  for (const std::string& command : all) {
    EXPECT_THAT(call(command + " --help", 0),
                AllOf(HasSubstr("example"), HasSubstr("pentatron " + command)))
        << command;
  }
  EXPECT_THAT(call("--help", 0), HasSubstr("completion"));
  EXPECT_THAT(call("--version", 0), HasSubstr("pentatron"));
}

TEST_F(ExitStatus, IsTwoForOptionsAndKeysThatDoNotExist) {
  for (const std::string& command : commands())
    EXPECT_THAT(call(command + " --no-such-option", 2),
                AllOf(HasSubstr("error: --no-such-option is not an option of pentatron " + command),
                      HasSubstr("\n  try: pentatron " + command + " --help\n")))
        << command;
  test::make_letter_model(folder / "model");
  for (const char* command : {"train", "evaluate model --text ab", "generate model --prompt ab",
                              "chat model", "serve model", "config show"}) {
    EXPECT_THAT(call(command + std::string(" model.num_layer=2"), 2),
                AllOf(HasSubstr("error: "), HasSubstr("model.num_layer"), HasSubstr("try: ")))
        << command;
    EXPECT_THAT(call(command + std::string(" train.num_threads=many"), 2), HasSubstr("many"));
  }
}

TEST_F(ExitStatus, IsOneForInputThatIsMissingAndTwoForAConfiguration) {
  const std::vector<std::pair<std::string, int>> calls = {
      {"train none.yaml", 2},
      {"config show none.yaml", 2},
      {"config diff none.yaml", 2},
      {"finetune none none.jsonl --out x", 1},
      {"evaluate none --text ab", 1},
      {"generate none --prompt ab", 1},
      {"chat none", 1},
      {"serve none", 1},
      {"convert none x --format hf", 1},
      {"checkpoint inspect none", 1},
      {"checkpoint verify none", 1},
      {"checkpoint diff none none", 1},
      {"checkpoint repair none", 1},
      {"checkpoint prune none --keep 1", 1},
      {"preprocess --input none.jsonl --tokenizer bytes --output x", 1},
      {"tokenize --tokenizer none.json", 1},
      {"corpus merge none none --output x", 1},
      {"corpus split none --shares 50,50 --output x", 1},
      {"corpus inspect none", 1},
      {"corpus verify none", 1},
      {"inspect samples --prefix none --sequence-length 8 --index 0", 1},
      {"inspect quantize --recipe mxfp8_1x32 --in none --out x", 1},
      {"plot none", 1}};
  for (const auto& [arguments, status] : calls)
    EXPECT_THAT(call(arguments, status), AllOf(HasSubstr("error: "), HasSubstr("none")))
        << arguments;
  // Nor is it another where the message cannot be written.
  for (const auto& [arguments, status] : calls)
    for (const char* error : {" 2> /dev/full", " 2>&-"})
      run(arguments + error + " < /dev/null", status);
  // The others read nothing, or a file that is part of the program.
  std::set<std::string> missing;
  for (const std::string& command : commands()) missing.insert(command);
  for (const auto& [arguments, status] : calls)
    std::erase_if(missing, [&](const std::string& name) {
      return arguments.starts_with(name + " ") || arguments == name;
    });
  EXPECT_EQ(missing, (std::set<std::string>{"completion", "config commands", "config help",
                                            "config markdown", "config presets", "config schema",
                                            "doctor", "inspect blend"}));
}

TEST_F(ExitStatus, IsTwoForAFolderOfAnotherRunWhateverStartsTheRanks) {
  std::ofstream(folder / "text.txt") << std::string(4000, 'a');
  const std::string train =
      "train model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 "
      "dataset.path=text.txt train.seq_length=16 train.micro_batch_size=1 "
      "train.global_batch_size=2 train.train_iters=1 train.num_threads=1 logger.peak_tflops=1 "
      "kernels=order logger.dir='one run'";
  call(train, 0);
  for (const char* start : {"", " --ranks 2", " --ranks 2 --backend sockets"})
    EXPECT_THAT(call(train + start, 2),
                AllOf(HasSubstr("logger.dir=one run contains the metrics of another run"),
                      HasSubstr("try: 'logger.dir=one run-2' for a new run")))
        << start;
}

TEST_F(ExitStatus, IsTwoForWhatIsNotSupportedOrDoesNotFitTheModel) {
  test::make_letter_model(folder / "model");
  run("convert model model.gguf --format gguf 2>/dev/null");
  std::string bytes = content_of(folder / "model.gguf");
  bytes.replace(bytes.find("llama"), 5, "mamba"); // the value of general.architecture
  std::ofstream(folder / "other.gguf", std::ios::binary) << bytes;
  EXPECT_THAT(call("generate other.gguf --prompt ab", 2),
              HasSubstr("general.architecture=mamba is not supported"));
  fs::create_directory(folder / "other");
  std::ofstream(folder / "other/config.json") << R"({"model_type": "mamba"})";
  EXPECT_THAT(call("generate other --prompt ab", 2),
              HasSubstr("model_type=mamba is not a supported"));
  EXPECT_THAT(call("convert other out --format gguf", 2), HasSubstr("model_type=mamba"));
  EXPECT_THAT(
      call("generate model --tokens 1,131,140 --max-new-tokens 1", 2),
      AllOf(HasSubstr("--tokens has 131, but the ids of the model's vocabulary are 0 to 130"),
            HasSubstr("try: --tokens 1,130,130\n")));
}

TEST_F(ExitStatus, IsTwoForACommandLineThatCannotBeReadWithTheWayOut) {
  struct Case {
    const char *arguments, *message, *remedy;
  };
  for (const Case& c : std::vector<Case>{
           {"", "pentatron needs a command: train, finetune, evaluate", "pentatron --help"},
           {"trian", "trian is not a command of pentatron", "pentatron train"},
           {"trian --help", "trian is not a command of pentatron", "pentatron train"},
           {"corpus", "pentatron corpus needs a command: merge, split", "pentatron corpus --help"},
           {"corpus mrege a b", "mrege is not a command of pentatron corpus",
            "pentatron corpus merge"},
           {"corpus merge", "pentatron corpus merge needs the argument prefixes",
            "pentatron corpus merge --help"},
           {"corpus merge a b", "pentatron corpus merge needs --output",
            "pentatron corpus merge --help"},
           {"corpus merge a b --outpt x", "--outpt is not an option of pentatron corpus merge",
            "--output"},
           {"generate a --prompt b --max-tokens 8",
            "--max-tokens is not an option of pentatron generate", "--max-new-tokens"},
           {"evaluate a --text b --second c", "--second is not an option of pentatron evaluate",
            "pentatron evaluate --help"},
           {"train --num-experts 8 --lr 1e-3", "--num-experts is not an option of pentatron train",
            "model.num_moe_experts=8"},
           {"train --num-experts=8", "--num-experts is not an option of",
            "model.num_moe_experts=8"},
           {"train --num-experts", "--num-experts is not an option", "model.num_moe_experts=VALUE"},
           {"train --swiglu seed=1", "--swiglu is not an option of",
            "model.activation_func=swiglu"},
           {"train --use-distributed-optimizer", "--use-distributed-optimizer is not an option",
            "ddp.zero_stage=1"},
           {"train --main-grads-dtype fp32",
            "--main-grads-dtype is not an option of pentatron train: gradients accumulate in fp32",
            "remove --main-grads-dtype"},
           {"train --fp8-format hybrid", "--fp8-format is not an option of",
            "mixed_precision.fp8=hybrid"},
           {"preprocess --num-layers 8", "--num-layers is not an option",
            "pentatron preprocess --help"},
           {"corpus merge a b --output", "--output needs a value", "pentatron corpus merge --help"},
           {"checkpoint prune a --keep a", "--keep a is not an integer",
            "pentatron checkpoint prune --help"},
           {"doctor more", "pentatron doctor takes no argument more", "pentatron doctor --help"},
           {"train --ranks many", "--ranks many is not an integer greater than 0",
            "pentatron train --help"},
           {"train --ranks 0", "--ranks 0 is not an integer greater than 0", "--ranks 1"},
           {"train --backend socket", "--backend socket is not one of in_process, mpi, sockets",
            "--backend sockets"},
           {"completion fish", "shell fish is not one of bash, zsh", "pentatron completion --help"},
           {"plot a --output b --output c", "--output is given 2 times", "--output c"},
           {"generate a --json=maybe", "--json takes no value", "--json"},
           {"generate a --logprobs", "--logprobs has no effect without --json",
            "remove --logprobs"},
           {"generate a --tokens 1 --prompt b", "--prompt cannot be used with --tokens",
            "remove --tokens"},
           {"evaluate a --context 0", "--context 0 is not an integer greater than 0",
            "--context 1"},
           {"inspect blend --weights 1,b --size 2", "--weights b is not a number",
            "pentatron inspect blend --help"},
           {"convert a b --max-shard-size 10XB",
            "--max-shard-size 10XB is not a size like 500MB or 5GB", "pentatron convert --help"},
           {"convert a b --max-shard-size -5", "--max-shard-size -5 is not a size",
            "pentatron convert --help"},
           {"convert a b --format gguf --max-shard-size 5MB",
            "--max-shard-size 5MB has no effect on a GGUF model", "remove --max-shard-size"},
           {"checkpoint prune a --keep 0 --keep-every 2",
            "--keep-every 2 has no effect with --keep 0", "--keep 1"},
           {"generate a --tokens 1 --seed -1",
            "--seed -1 is not an integer from 0 to 18446744073709551615", "--seed 0"},
           {"generate a --tokens 1 --seed 99999999999999999999999",
            "--seed 99999999999999999999999 is not an integer from 0 to 18446744073709551615",
            "--seed 18446744073709551615"},
           {"inspect samples --prefix a --index 0,-1",
            "--index -1 is not an integer from 0 to 4611686018427387904", "--index 0"},
           {"inspect samples --prefix a --index 9223372036854775807",
            "--index 9223372036854775807 is not an integer from 0 to 4611686018427387904",
            "--index 4611686018427387904"},
           {"inspect samples --prefix a --index 0,100000000000000000000,1",
            "--index 100000000000000000000 is not an integer from 0 to 4611686018427387904",
            "--index 4611686018427387904"},
           {"inspect samples --prefix a --index 0 --order megatron --num-samples 0",
            "--num-samples 0 is not an integer greater than 0", "--num-samples 1"},
           {"inspect samples --prefix a --index 0 --order megatron --num-samples "
            "99999999999999999999",
            "--num-samples 99999999999999999999 is not an integer greater than 0 below 2^63",
            "pentatron inspect samples --help"},
           {"tokenize --train-bpe 99999999999999999999 --output a.json",
            "--train-bpe 99999999999999999999 is not an integer from 257 to 1048576",
            "--train-bpe 1048576"},
           {"tokenize --train-bpe 10 --output a.json",
            "--train-bpe 10 is not an integer from 257 to 1048576", "--train-bpe 257"},
           {"corpus split a --shares -1,2 --output b", "--shares -1 is not a number above 0",
            "--shares 90,10"},
           {"convert a b --max-shard-size 0", "--max-shard-size 0 is not a size like 500MB or 5GB",
            "pentatron convert --help"},
           {"config diff nothere a", "nothere does not exist",
            "the path of a YAML file, a run folder or a checkpoint"},
           {"config help ''", "the word to search for is empty", "pentatron config help"},
           {"config show .", "the configuration file . is not a file", "the path of a YAML file"},
           {"corpus split a --shares 99,,1 --output b", "--shares 99,,1 has an empty item",
            "pentatron corpus split --help"},
           {"inspect blend --weights=1,1, --size 2", "--weights 1,1, has an empty item",
            "pentatron inspect blend --help"}})
    EXPECT_THAT(call(c.arguments, 2),
                AllOf(testing::StartsWith(std::string("error: ") + c.message),
                      testing::EndsWith(std::string("\n  try: ") + c.remedy + "\n")))
        << c.arguments;
}

TEST_F(ExitStatus, IsTwoForAnEmptyValueOfAnyOptionButATextsOwn) {
  const std::set<std::string> texts = {"--prompt", "--system", "--text", "--title"};
  int tried = 0;
  for_each_option([&](const std::string& command, const Json& option) {
    const std::string name = option["names"].back();
    if (!option["value"].get<bool>() || texts.contains(name)) return;
    EXPECT_THAT(call(command + " " + name + " ''", 2),
                testing::ContainsRegex("^error: (--[a-z-]+ is empty|--[a-z-]+  is not one of |"
                                       "--[a-z-]+ has no effect without|pentatron .* needs )"))
        << command << " " << name;
    ++tried;
  });
  EXPECT_GT(tried, 60);
}

TEST_F(ExitStatus, IsTwoForAnOptionWithoutTheOneThatItNeeds) {
  // What the help says is what the command line holds: "with --json: also print ...".
  const std::regex needs("^with (--[a-z-]+)(?: or (--[a-z-]+))?[:, ]");
  const std::map<std::string, std::string> complete = {
      {"inspect samples", " --prefix none --index 0 --order stable"},
      {"evaluate", " none --batches none"},
      {"convert", " none none --format hf"}};
  std::set<std::string> tried;
  for_each_option([&](const std::string& command, const Json& option) {
    const std::string name = option["names"].back(), help = option["help"];
    std::smatch match;
    if (!std::regex_search(help, match, needs)) return;
    const auto more = complete.find(command);
    std::string arguments = command + (more != complete.end() ? more->second : "");
    const bool batches = match[1] == "--batches";
    if (batches) arguments = command + " none --text a";
    arguments += " " + name + (option["value"].get<bool>() ? " 1" : "");
    EXPECT_THAT(call(arguments, 2),
                AllOf(HasSubstr("error: "), HasSubstr(name), HasSubstr(match[1].str())))
        << arguments;
    tried.insert(command + " " + name);
  });
  EXPECT_GE(tried.size(), 14u) << testing::PrintToString(tried);
}

TEST_F(ExitStatus, IsTheSameForTheSameMistake) {
  test::make_letter_model(folder / "model");
  for (const char* format : {"hf", "gguf"}) { // without a tokenizer
    const std::string out = std::string("bare.") + format;
    fs::copy(fs::path(PENTATRON_TEST_DATA) / "hf_tiny/llama", folder / "llama",
             fs::copy_options::overwrite_existing | fs::copy_options::recursive);
    call("convert llama " + out + " --format " + format, 0);
    for (const char* command : {"generate ", "chat ", "evaluate "})
      EXPECT_THAT(call(command + out +
                           (command == std::string("chat ")       ? ""
                            : command == std::string("generate ") ? " --prompt a"
                                                                  : " --text ab"),
                       2),
                  HasSubstr("has no tokenizer"));
  }
  std::ofstream texts(folder / "texts.jsonl");
  for (int i = 0; i < 40; ++i) texts << "{\"text\": \"the loss falls slowly\"}\n";
  texts.close();
  call("preprocess --input texts.jsonl --tokenizer bytes --output corpus --append-eod", 0);
  const std::string tiny = "train model.num_layers=1 model.hidden_size=32 "
                           "model.num_attention_heads=2 train.seq_length=16 kernels=order "
                           "logger.peak_tflops=1 train.num_threads=1 train.train_iters=1 ";
  for (const char* data : // no training data
       {"dataset.path=texts.jsonl", "dataset.type=indexed dataset.path=corpus_text_document",
        "dataset.type=indexed dataset.path=corpus_text_document dataset.order=megatron"})
    EXPECT_THAT(call(tiny + data + " dataset.split=0,0,100", 2), HasSubstr("sample")) << data;
  call(tiny + "dataset.path=texts.jsonl checkpoint.save=saved", 0);
  // A run that differs from its checkpoint.
  for (const char* key :
       {"dtype=bf16", "model.hidden_size=64",
        "dataset.type=mock dataset.path= tokenizer.type=null tokenizer.vocab_size=256"})
    EXPECT_THAT(call(tiny + "dataset.path=texts.jsonl checkpoint.load=saved " + key, 2),
                HasSubstr("try: "))
        << key;
  // A key that the model determines, also if its value is the default.
  for (const char* command :
       {"evaluate model --text ab ", "generate model --prompt ab ", "chat model "})
    for (const char* key : {"model.num_layers=4", "model.num_layers=5", "train.train_iters=5",
                            "model={num_layers: 5}"})
      EXPECT_THAT(call(std::string(command) + "'" + key + "'", 2), HasSubstr("has no effect here"))
          << command << key;
  EXPECT_THAT(call("generate model --tokens 1 lr=1", 2),
              HasSubstr("lr is not a key of this command"));
  EXPECT_THAT(call("generate model ab", 2), HasSubstr("try: --prompt ab"));
  EXPECT_THAT(call("generate model --tokens 1 temperature=0", 2),
              HasSubstr("try: --temperature 0"));
}

class SignalStatus : public test::StartedProgram {};

TEST_F(SignalStatus, IsThatOfTheSignal) {
  test::make_letter_model(folder / "model");
  for (const int signal : {SIGINT, SIGTERM}) {
    const pid_t child = start(
        {"generate", "model", "--prompt", "ab", "--max-new-tokens", "1000000000", "--ignore-eos"});
    ASSERT_TRUE(within(60, [&] { return content_of(folder / "out").size() > 100; }));
    ::kill(child, signal);
    EXPECT_EQ(finish(child).status, 128 + signal);
  }
}

} // namespace
} // namespace pentatron

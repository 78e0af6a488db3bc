// What every command writes: results appear whole or not at all, and nothing that is not the
// command's own is overwritten. A new command is one entry in the table.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/letter_model.h"
#include "tests/cli/program_folder.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kModel = PENTATRON_TEST_DATA "/hf_tiny/llama";
const std::string kTiny =
    "model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 model.vocab_size=64 "
    "dataset.type=mock train.seq_length=16 train.micro_batch_size=1 train.global_batch_size=2 "
    "train.num_threads=1 logger.peak_tflops=1 logger.tensorboard=false kernels=order ";

struct Command {
  std::string name;      ///< with the name of its subcommand
  std::string arguments; ///< of a call that works in the prepared folder
  /// What it writes: files or a folder. Empty: standard output alone.
  std::vector<std::string> outputs = {};
  std::string changes = {};  ///< what it is asked to change: all that begins so
  bool mixed_folder = false; ///< the outputs are folders in which other files may lie
  std::string resumes = {};  ///< what a failure leaves so that the next call continues
  bool only_own = false;     ///< --overwrite replaces only what such a command wrote
  std::string says = ".*";   ///< what its output is, as a regular expression
  std::string variant = {};  ///< of a command that has several entries
  std::string before = {};   ///< the program that runs it
};

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {.name = "train",
       .arguments = kTiny + "train.train_iters=2 checkpoint.save=new logger.dir=new_log",
       .outputs = {"new", "new_log"},
       .mixed_folder = true},
      {.name = "finetune",
       .arguments = "talker examples.jsonl --out tuned --epochs 1 train.num_threads=1 "
                    "logger.peak_tflops=1 logger.tensorboard=false kernels=order",
       .outputs = {"tuned"},
       .mixed_folder = true},
      {.name = "evaluate",
       .arguments = "--hf '" + kModel + "' --batches '" + kModel +
                    "/expected.safetensors' --logits-out l.safetensors --grads-out g.safetensors "
                    "--hidden-out h.safetensors",
       .outputs = {"l.safetensors", "g.safetensors", "h.safetensors"},
       .only_own = true},
      {.name = "evaluate",
       .arguments = "talker --tasks task.yaml --out scores.json",
       .outputs = {"scores.json"},
       .only_own = true,
       .variant = "tasks"},
      {.name = "generate", .arguments = "saved --tokens 1,2,3 --max-new-tokens 2"},
      {.name = "chat",
       .arguments = "talker --max-new-tokens 4 --seed 1 < question.txt",
       .says = "^[!-~]{1,4}\n$"},
      {.name = "serve",
       .arguments = "talker --port 0 kernels=order train.num_threads=1",
       .says = "serving talker at http://127.0.0.1:[0-9]*\n",
       .before = PENTATRON_TEST_DATA "/../support/until_served.sh env "},
      {.name = "convert",
       .arguments = "saved exported --format hf",
       .outputs = {"exported"},
       .only_own = true},
      {.name = "checkpoint inspect", .arguments = "saved"},
      {.name = "checkpoint verify", .arguments = "saved"},
      {.name = "checkpoint diff", .arguments = "saved saved/step_00000002"},
      {.name = "checkpoint repair", .arguments = "saved"},
      {.name = "checkpoint prune", .arguments = "saved --keep 1", .changes = "saved/"},
      {.name = "config show", .arguments = "seed=5"},
      {.name = "config diff", .arguments = "a.yaml"},
      {.name = "config help", .arguments = "optimizer"},
      {.name = "config schema", .arguments = ""},
      {.name = "config markdown", .arguments = ""},
      {.name = "config presets", .arguments = ""},
      {.name = "config commands", .arguments = ""},
      {.name = "doctor", .arguments = "", .changes = "cache/"},
      {
          .name = "preprocess",
          .arguments = "--input texts.jsonl --tokenizer bytes --output fresh",
          .outputs = {"fresh_text_document.bin", "fresh_text_document.idx"},
          .resumes = "fresh.partial/",
          .only_own = true,
      },
      {
          .name = "preprocess",
          .arguments = "--input texts.jsonl --tokenizer bytes --output fresh --split-sentences",
          .outputs = {"fresh_text_sentence.bin", "fresh_text_sentence.idx"},
          .resumes = "fresh.partial/",
          .only_own = true,
          .variant = "sentences",
      },
      {
          .name = "tokenize",
          .arguments = "--train-bpe 300 --output tokenizer.json < words.txt",
          .outputs = {"tokenizer.json", "tokenizer_config.json"},
          .only_own = true,
      },
      {
          .name = "corpus merge",
          .arguments = "corpus_text_document corpus_text_document --output both",
          .outputs = {"both.bin", "both.idx"},
          .only_own = true,
      },
      {
          .name = "corpus split",
          .arguments = "corpus_text_document --shares 50,50 --output part",
          .outputs = {"part_0.bin", "part_0.idx", "part_1.bin", "part_1.idx"},
          .only_own = true,
      },
      {.name = "corpus inspect", .arguments = "corpus_text_document"},
      {.name = "corpus verify", .arguments = "corpus_text_document"},
      {.name = "inspect samples",
       .arguments = "--prefix corpus_text_document --sequence-length 8 --index 0"},
      {.name = "inspect quantize",
       .arguments = "--recipe nvfp4_1x16 --in '" PENTATRON_TEST_DATA
                    "/kernels/quantize/ties_e2m1.safetensors' --out q.safetensors",
       .outputs = {"q.safetensors"},
       .only_own = true},
      {.name = "plot", .arguments = "run --output p.svg", .outputs = {"p.svg"}, .only_own = true},
      {.name = "inspect blend", .arguments = "--weights 1,2 --size 4"},
      {.name = "completion", .arguments = "bash"},
  };
  return all;
}

using Files = std::map<std::string, std::string>;

class Outputs : public test::ProgramFolder, public testing::WithParamInterface<Command> {
 protected:
  Outputs() {
    static const TemporaryFolder once; // the same for every case: made by the first
    if (fs::is_empty(once.path())) {
      prepare();
      fs::copy(folder, once.path(), fs::copy_options::recursive);
    } else {
      fs::copy(once.path(), folder, fs::copy_options::recursive);
    }
  }
  void prepare() const {
    std::ofstream(folder / "a.yaml") << "seed: 5\n";
    std::ofstream(folder / "question.txt") << "hello\n";
    test::make_letter_model(folder / "talker"); // it has a chat template
    std::ofstream(folder / "task.yaml")
        << "task: small\ndataset_path: json\ndataset_kwargs: {data_files: {test: task.jsonl}}\n"
           "test_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{a}}'\n"
           "doc_to_choice: [a, b]\ndoc_to_target: label\n";
    std::ofstream questions(folder / "task.jsonl");
    for (int i = 0; i < 20; ++i)
      questions << R"({"a": "is it", "label": 1})"
                << "\n";
    questions.close();
    std::ofstream examples(folder / "examples.jsonl");
    for (int i = 0; i < 4; ++i)
      examples << R"({"prompt": "hello", "completion": "world"})"
               << "\n";
    fs::create_directory(folder / "run");
    std::ofstream(folder / "run/metrics.jsonl")
        << "{\"iteration\":1,\"loss\":4}\n{\"iteration\":2,\"loss\":3}\n";
    std::ofstream texts(folder / "texts.jsonl"), words(folder / "words.txt");
    for (int i = 0; i < 40; ++i) {
      texts << "{\"text\": \"the loss falls slowly, then it rises " << i << "\"}\n";
      words << "the loss falls slowly, then it rises " << i << "\n";
    }
    texts.close();
    words.close();
    call("preprocess --input texts.jsonl --tokenizer bytes --output corpus --append-eod");
    call("train " + kTiny + "train.train_iters=2 checkpoint.save_interval=1 checkpoint.save=saved");
    call("train " + kTiny +
         "train.train_iters=1 model.vocab_size=257 dataset.type=text dataset.path=texts.jsonl "
         "checkpoint.save=texts");
    // These measure kernels, for all cases.
    call("generate saved --tokens 1,2,3 --max-new-tokens 2");
    call("evaluate --hf '" + kModel + "' --batches '" + kModel +
         "/expected.safetensors' --grads-out measured.safetensors");
    fs::remove(folder / "measured.safetensors");
  }
  /// Every command finds its own cache here.
  std::string call(const std::string& arguments, int status = 0, const std::string& before = "",
                   const std::string& messages = "2>&1") const {
    const std::string redirected =
        arguments.find(" < ") == std::string::npos ? arguments + " < /dev/null " : arguments + " ";
    return run(redirected + messages, status, before + "XDG_CACHE_HOME=$PWD/cache ");
  }
  std::string call(int status = 0, const std::string& before = "") const {
    return call(GetParam().name + " " + GetParam().arguments, status, before + GetParam().before);
  }
  static std::string overwriting() {
    std::string arguments = GetParam().arguments;
    arguments.insert(std::min(arguments.size(), arguments.find(" < ")), " --overwrite");
    return arguments;
  }
  Files files() const {
    Files found;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      const std::string name = fs::relative(entry.path(), folder);
      if (!entry.is_directory() && !name.starts_with("cache/"))
        found[name] = content_of(entry.path());
    }
    return found;
  }
  static bool begins(const std::string& name, const std::string& output) {
    return name == output || name.starts_with(output + "/");
  }
  static bool is_output(const std::string& name) {
    return std::ranges::any_of(GetParam().outputs,
                               [&](const std::string& output) { return begins(name, output); });
  }
};

TEST_P(Outputs, AreWhatTheTableSaysAndNothingElse) {
  const Files before = files();
  const std::string said = call();
  EXPECT_THAT(said, testing::ContainsRegex(GetParam().says));
  const Files after = files();
  std::set<std::string> made;
  for (const auto& [name, content] : after) {
    const auto old = before.find(name);
    if (old != before.end() && old->second == content) continue;
    const std::string& changes = GetParam().changes;
    if (!changes.empty() && name.starts_with(changes)) continue;
    EXPECT_TRUE(is_output(name)) << name;
    EXPECT_EQ(name.find(".tmp-"), std::string::npos) << name;
    for (const std::string& output : GetParam().outputs)
      if (begins(name, output)) made.insert(output);
  }
  EXPECT_EQ(made.size(), GetParam().outputs.size());
  for (const auto& [name, content] : before)
    EXPECT_TRUE(after.contains(name) || GetParam().changes == "saved/") << name << " is gone";
}

TEST_P(Outputs, AppearWhereMessagesCannotBeWritten) {
  if (GetParam().name == "doctor") return; // it takes 20 s, and writes no file
  call(GetParam().name + " " + GetParam().arguments, 0, GetParam().before, "2> /dev/full");
  const Files after = files();
  for (const std::string& output : GetParam().outputs)
    EXPECT_TRUE(std::ranges::any_of(after, [&](const auto& file) {
      return begins(file.first, output);
    })) << output;
}

TEST_P(Outputs, ThatExistAndAreNotItsOwnStay) {
  for (const std::string& output : GetParam().outputs) {
    if (GetParam().mixed_folder) continue; // runs: run_folders_test
    for (const bool as_folder : {false, true}) {
      fs::remove_all(folder / output);
      const fs::path file = as_folder ? folder / output / "notes" : folder / output;
      fs::create_directories(file.parent_path());
      std::ofstream(file) << "mine\n";
      const Files before = files();
      const std::string said = call(2);
      EXPECT_TRUE(files() == before) << said;
      EXPECT_THAT(said, HasSubstr("error: "));
      fs::remove_all(folder / output);
    }
  }
}

TEST_P(Outputs, ThatAreNotItsOwnStayEvenWithOverwrite) {
  if (!GetParam().only_own) return;
  for (const std::string& output : GetParam().outputs) {
    call();
    const bool as_folder = fs::is_directory(folder / output);
    std::ofstream(as_folder ? folder / output / "notes.txt" : folder / output) << "mine\n";
    const Files before = files();
    const std::string said = call(GetParam().name + " " + overwriting(), 2);
    EXPECT_TRUE(files() == before) << said;
    EXPECT_THAT(said, HasSubstr("\n  try: ")); // not that something went wrong on the way
    for (const std::string& all : GetParam().outputs) fs::remove_all(folder / all);
  }
}

TEST_P(Outputs, ThatExistAreReplacedOnlyWithOverwrite) {
  if (GetParam().outputs.empty() || GetParam().mixed_folder) return;
  if (GetParam().only_own) {
    call();
  } else {
    for (const std::string& output : GetParam().outputs) std::ofstream(folder / output) << "mine\n";
  }
  const Files before = files();
  const std::string said = call(2);
  EXPECT_THAT(said, HasSubstr(" exists\n  try: another "));
  EXPECT_THAT(said, HasSubstr(", or --overwrite "));
  EXPECT_TRUE(files() == before);
  call(GetParam().name + " " + overwriting());
  for (const std::string& output : GetParam().outputs) {
    if (!fs::is_regular_file(folder / output)) continue;
    EXPECT_THAT(content_of(folder / output), Not(HasSubstr("mine"))) << output;
  }
}

TEST_P(Outputs, AppearWholeOrNotAtAllOnAFullDisk) {
  if (GetParam().outputs.empty() || GetParam().mixed_folder) return; // runs: save_test
  const Files before = files();
  const std::string said = call(1, "trap '' XFSZ; ulimit -f 1; ");
  EXPECT_THAT(said, HasSubstr("error: "));
  for (const auto& [name, content] : files()) {
    const auto old = before.find(name);
    if (!GetParam().resumes.empty() && name.starts_with(GetParam().resumes)) continue;
    EXPECT_TRUE(old != before.end() && old->second == content) << name << " is left behind";
  }
}

std::string test_name(const testing::TestParamInfo<Command>& info) {
  std::string name = info.param.name;
  if (!info.param.variant.empty()) name += " " + info.param.variant;
  std::ranges::replace(name, ' ', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Commands, Outputs, testing::ValuesIn(commands()), test_name);

/// The names below "Subcommands:" of a help text.
std::vector<std::string> subcommands(const std::string& help) {
  std::vector<std::string> names;
  std::istringstream lines(help.substr(std::min(help.size(), help.find("Subcommands:"))));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && line.starts_with("  ")) {
    std::istringstream words(line);
    std::string name;
    if (line[2] != ' ' && words >> name) names.push_back(name);
  }
  return names;
}

using OutputTable = test::ProgramFolder;

TEST_F(OutputTable, NeverAnInput) {
  std::ofstream(folder / "texts.jsonl") << "{\"text\": \"the loss falls\"}\n";
  fs::copy(PENTATRON_TEST_DATA "/kernels/quantize/ties_e2m1.safetensors", folder / "x.safetensors");
  run("tokenize --train-bpe 300 --input texts.jsonl --output t/tokenizer.json");
  const std::string texts = content_of(folder / "texts.jsonl"),
                    x = content_of(folder / "x.safetensors"),
                    tokenizer = content_of(folder / "t/tokenizer.json");
  for (const char* arguments :
       {"tokenize --train-bpe 300 --input texts.jsonl --output texts.jsonl --overwrite 2>&1",
        "tokenize --train-bpe 300 --input t/tokenizer.json --output t --overwrite 2>&1",
        "inspect quantize --recipe mxfp8_1x32 --in x.safetensors --out ./x.safetensors "
        "--overwrite 2>&1"})
    EXPECT_THAT(run(arguments, 2), HasSubstr("is an input of this command")) << arguments;
  EXPECT_EQ(content_of(folder / "texts.jsonl"), texts);
  EXPECT_EQ(content_of(folder / "x.safetensors"), x);
  EXPECT_EQ(content_of(folder / "t/tokenizer.json"), tokenizer);
}

TEST_F(OutputTable, HasEveryCommand) {
  std::set<std::string> listed, known;
  for (const Command& command : commands()) listed.insert(command.name);
  for (const std::string& verb : subcommands(run("--help"))) {
    const std::vector<std::string> below = subcommands(run(verb + " --help"));
    for (const std::string& name : below) known.insert(verb + " " + name);
    if (below.empty()) known.insert(verb);
  }
  EXPECT_GT(known.size(), 20u);
  EXPECT_EQ(listed, known) << "add the command to the table, with what it writes";
}

} // namespace
} // namespace pentatron

// Tab completion as bash drives it: a function that is given the words of a line.
#include <algorithm>
#include <filesystem>
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
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class Completion : public test::ProgramFolder {
 protected:
  void SetUp() override {
    std::ofstream(folder / "complete.sh") << run("completion bash") << R"(
COMP_WORDBREAKS=$' \t\n"\'><=;|&(:'
COMP_WORDS=(pentatron "$@") COMP_CWORD=$#
COMP_LINE="pentatron $*" COMP_POINT=${#COMP_LINE}
compopt() { echo "$2" > asked_for; } # of bash itself only while it completes
_pentatron
((${#COMPREPLY[@]})) && printf '%s\n' "${COMPREPLY[@]}"
true
)";
  }
  /// What is offered for the last of these words (in the quotes of a shell). Nothing may be said.
  std::vector<std::string> offered(const std::string& words) const {
    const std::string command =
        "cd '" + folder.string() + "' && bash complete.sh " + words + " 2>&1";
    FILE* pipe = ::popen(command.c_str(), "r");
    std::string out;
    char buffer[4096];
    for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
    EXPECT_EQ(::pclose(pipe), 0) << out;
    std::vector<std::string> lines;
    std::istringstream in(out);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
};

TEST_F(Completion, OffersCommandsAndTheirOptions) {
  EXPECT_THAT(offered("''"), AllOf(Contains("train"), Contains("checkpoint"), Contains("config"),
                                   Contains("completion"), Contains("tokenize")));
  EXPECT_THAT(offered("tr"), ElementsAre("train"));
  EXPECT_THAT(offered("checkpoint ''"),
              UnorderedElementsAre("inspect", "verify", "diff", "repair", "prune"));
  EXPECT_THAT(offered("checkpoint prune --keep"), ElementsAre("--keep", "--keep-every"));
  EXPECT_THAT(offered("train --ba"), ElementsAre("--backend"));
  EXPECT_THAT(offered("train --backend ''"), ElementsAre("in_process", "mpi", "sockets"));
  EXPECT_THAT(offered("train --backend = s"), ElementsAre("sockets"));
  EXPECT_THAT(offered("train --ranks ''"), IsEmpty()) << "a number";
  EXPECT_THAT(offered("completion ''"), ElementsAre("bash", "zsh"));
  EXPECT_THAT(offered("convert a b --format ''"), ElementsAre("pentatron", "hf", "gguf"));
  EXPECT_THAT(offered("convert a b --dtype q"), ElementsAre("q8_0", "q4_k"));
  EXPECT_THAT(offered("evaluate m --tasks hel"), ElementsAre("hellaswag"));
  std::ofstream(folder / "mine.yaml") << "task: mine\n";
  EXPECT_THAT(offered("evaluate m --tasks m"), ElementsAre("mmlu", "mine.yaml"));
  EXPECT_THAT(offered("nonsense ''"), IsEmpty());
}

TEST_F(Completion, CompletesTheLastItemOfAList) {
  std::ofstream(folder / "mine.yaml") << "task: mine\n";
  EXPECT_THAT(offered("evaluate m --tasks hellaswag,m"),
              ElementsAre("hellaswag,mmlu", "hellaswag,mine.yaml"));
  EXPECT_THAT(offered("evaluate m --tasks = mmlu,hel"), ElementsAre("mmlu,hellaswag"));
  EXPECT_THAT(offered("evaluate m --tasks hellaswag,hel"), IsEmpty()) << "named already";
  EXPECT_THAT(offered("generate m --tokens 1,"), IsEmpty()) << "numbers";
  EXPECT_THAT(offered("train eval.tasks = hel"), ElementsAre("[hellaswag"));
  EXPECT_THAT(offered("train train.recompute_modules = '[mlp_act,lay'"),
              ElementsAre("[mlp_act,layernorm"));
  for (const char* words : {"evaluate m --tasks hel", "train eval.tasks = hel"}) {
    fs::remove(folder / "asked_for");
    offered(words);
    EXPECT_EQ(content_of(folder / "asked_for"), "nospace\n") << "the list goes on: " << words;
  }
  fs::remove(folder / "asked_for");
  offered("train dtype = fp");
  EXPECT_FALSE(fs::exists(folder / "asked_for"));
}

TEST_F(Completion, OffersKeysAndTheirValues) {
  EXPECT_THAT(offered("train optim"), ElementsAre("optimizer."));
  EXPECT_THAT(offered("train optimizer.lr"), ElementsAre("optimizer.lr="));
  EXPECT_THAT(offered("train a.yaml dty"), ElementsAre("dtype="));
  EXPECT_THAT(offered("train dtype ="), ElementsAre("fp64", "fp32", "bf16", "fp16"));
  EXPECT_THAT(offered("train dtype = b"), ElementsAre("bf16"));
  EXPECT_THAT(offered("train seed=3 logger.plot = t"), ElementsAre("true"));
  EXPECT_THAT(offered("train model.preset = gpt2_12"), ElementsAre("gpt2_124m"));
  EXPECT_THAT(offered("config show sched"), ElementsAre("scheduler."));
  EXPECT_THAT(offered("config help sched"), ElementsAre("scheduler"));
  EXPECT_THAT(offered("config help optimizer.lr"), ElementsAre("optimizer.lr"));
  // Only the keys that a command takes.
  EXPECT_THAT(offered("generate m d"), ElementsAre("dtype=", "device="));
  EXPECT_THAT(offered("generate m optimizer."), IsEmpty());
}

TEST_F(Completion, OffersFiles) {
  std::ofstream(folder / "text one.jsonl") << "x";
  fs::create_directory(folder / "texts");
  EXPECT_THAT(offered("train text"), UnorderedElementsAre("text one.jsonl", "texts"));
  EXPECT_THAT(offered("train dataset.path = texts"), ElementsAre("texts"));
  EXPECT_THAT(offered("train --hf texts"), ElementsAre("texts"));
  EXPECT_THAT(offered("evaluate texts"), ElementsAre("texts"));
}

TEST_F(Completion, KnowsEveryKeyAndEveryOption) {
  const Json table = parse_json(run("config commands"), "table");
  size_t options = 0, keys = 0;
  for (const Json& command : table["commands"]) {
    const std::string name = command["name"];
    EXPECT_THAT(offered("'' "), Contains(name));
    const std::string help = run(name + " --help");
    for (const Json& option : command["options"])
      for (const std::string spelling : option["names"]) {
        EXPECT_THAT(help, HasSubstr(spelling));
        ++options;
      }
  }
  const std::string shown = run("config help");
  for (const Json& key : table["keys"]) {
    EXPECT_THAT(shown, HasSubstr("  " + std::string(key["name"]) + "="));
    ++keys;
  }
  EXPECT_GT(options, 50u);
  EXPECT_GT(keys, 150u);
}

TEST_F(Completion, NeedsNoLibTorch) {
  const fs::path program = PENTATRON_PROGRAM;
  fs::create_directories(folder / "bin");
  fs::create_directories(folder / "share/pentatron");
  fs::copy(program, folder / "bin/pentatron"); // without pentatron-torch beside it
  fs::copy(program.parent_path() / "share/pentatron/commands.json", folder / "share/pentatron");
  const std::string command = "cd '" + folder.string() + "' && ./bin/pentatron completion ";
  EXPECT_EQ(std::system((command + "bash > b && bash -n b").c_str()), 0);
  EXPECT_EQ(std::system((command + "zsh > z && grep -q '^#compdef pentatron' z").c_str()), 0);
  EXPECT_EQ(std::system("command -v zsh > /dev/null") == 0
                ? std::system(("zsh -n '" + (folder / "z").string() + "'").c_str())
                : 0,
            0);
  fs::remove_all(folder / "share");
  EXPECT_EQ(std::system((command + "bash 2> err").c_str()), 1 << 8);
  EXPECT_THAT(content_of(folder / "err"), HasSubstr("commands.json"));
}

} // namespace
} // namespace pentatron

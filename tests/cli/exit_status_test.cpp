// docs/cli.md: how commands end. Every command is in the table that `config commands` prints.
#include <csignal>
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
#include "tests/cli/started_program.h"

namespace pentatron {
namespace {

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
                AllOf(HasSubstr("error: "), HasSubstr("  try: pentatron ")))
        << command;
  test::make_letter_model(folder / "model");
  for (const char* command : {"train", "evaluate model --text ab", "generate model --prompt ab",
                              "chat model", "config show"}) {
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
      {"evaluate none --text ab", 1},
      {"generate none --prompt ab", 1},
      {"chat none", 1},
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
      {"inspect samples --prefix none --sequence-length 8 --num-samples 2 --index 0", 1},
      {"plot none", 1}};
  for (const auto& [arguments, status] : calls)
    EXPECT_THAT(call(arguments, status), AllOf(HasSubstr("error: "), HasSubstr("none")))
        << arguments;
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

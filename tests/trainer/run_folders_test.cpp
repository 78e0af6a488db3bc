// A folder that holds a run is that run's: what was written there stays, whoever starts next.
#include "pentatron/trainer/run_folders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <regex>
#include <set>
#include <sys/wait.h>

#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/trainer/run_files.h"
#include "tests/support/log_capture.h"
#include "tests/support/ranks.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::log_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Files = std::map<std::string, std::string>;

class RunFoldersTest : public testing::Test {
 protected:
  /// Names below the temporary folder; "" leaves the key out.
  Config config(const std::string& dir, const std::string& save, std::vector<std::string> more = {},
                int ranks = 1) const {
    if (!dir.empty()) more.insert(more.begin(), "logger.dir=" + (scratch / dir));
    if (!save.empty()) more.insert(more.begin(), "checkpoint.save=" + (scratch / save));
    return test::tiny(data, std::move(more), ranks);
  }
  std::string load(const std::string& folder) const {
    return "checkpoint.load=" + (scratch / folder);
  }
  /// Every file and folder, with what is in it.
  Files files() const {
    Files found;
    for (const auto& entry : fs::recursive_directory_iterator(scratch.path))
      found[fs::relative(entry.path(), scratch.path)] =
          entry.is_directory() ? "folder" : content_of(entry.path());
    return found;
  }
  /// The message of a start that must change nothing.
  std::string refused(const Config& config) const {
    const Files before = files();
    const std::string message = error_of([&] { test::run(config); });
    EXPECT_FALSE(message.empty());
    EXPECT_TRUE(files() == before) << message;
    return message;
  }
  /// The keys of the ways that a `try:` line shows.
  static std::vector<std::vector<std::string>> ways(const std::string& message) {
    std::vector<std::vector<std::string>> all;
    const std::string line = message.substr(message.find("try: ") + 5);
    const std::regex key(R"(([a-z_]+\.[a-z_]+=[^ ,]+))");
    for (size_t begin = 0; begin < line.size();) {
      const size_t end = std::min(line.find(", or ", begin), line.size());
      const std::string way = line.substr(begin, end - begin);
      all.emplace_back();
      for (std::sregex_iterator it(way.begin(), way.end(), key), last; it != last; ++it)
        all.back().push_back((*it)[1]);
      begin = end + 5;
    }
    return all;
  }
  test::Scratch scratch;
  std::string data = test::write_documents(scratch / "data.jsonl", 100);
};

TEST_F(RunFoldersTest, ASecondStartIsRefusedAndBothWaysWork) {
  for (const auto& [dir, save] : {std::pair{"a", "a/checkpoints"},
                                  {"b", "b"},
                                  {"c_log", "c"},
                                  {"d/log", "d"},
                                  {"", "e"},
                                  {"f", ""}}) {
    SCOPED_TRACE(std::string(dir) + " " + save);
    test::run(config(dir, save));
    const std::string message = refused(config(dir, save));
    EXPECT_THAT(message, HasSubstr(" of another run"));
    const auto found = ways(message);
    ASSERT_EQ(found.size(), *save == 0 ? 1u : 2u) << message;
    const Files before = files();
    for (std::vector<std::string> keys : found) {
      ASSERT_FALSE(keys.empty()) << message;
      keys.emplace_back("train.train_iters=4");
      const test::Trace trace = test::run(config(dir, save, keys));
      EXPECT_EQ(trace.report.iterations, 4);
    }
    for (const auto& [name, content] : files()) {
      if (before.contains(name) && name.find("step_0") != std::string::npos) {
        EXPECT_EQ(before.at(name), content) << name;
      }
    }
  }
  EXPECT_TRUE(fs::exists(scratch / "a-2/checkpoints/step_00000004")) << "nested as they were";
  EXPECT_TRUE(fs::exists(scratch / "c-2/step_00000004"));
  EXPECT_THAT(refused(config("a", "a/checkpoints")), HasSubstr(scratch / "a-3")) << "the next free";
}

TEST_F(RunFoldersTest, AFolderWithoutANameHasNewOnesInIt) {
  const fs::path before = fs::current_path();
  fs::create_directories(scratch / "a/b");
  fs::current_path(scratch / "a/b");
  for (const char* dir : {".", "./", "..", "../b/."}) {
    SCOPED_TRACE(dir);
    const std::vector<std::string> keys = {std::string("logger.dir=") + dir,
                                           std::string("checkpoint.save=") + dir + "/ck"};
    test::run(test::tiny(data, keys));
    const std::string message = error_of([&] { test::run(test::tiny(data, keys)); });
    const auto found = ways(message);
    EXPECT_EQ(found.size(), 2u) << message;
    for (std::vector<std::string> way : found) {
      EXPECT_THAT(message, Not(HasSubstr(".-")));
      way.insert(way.begin(), keys.begin(), keys.end());
      way.emplace_back("train.train_iters=4");
      EXPECT_EQ(test::run(test::tiny(data, way)).report.iterations, 4) << message;
    }
    fs::current_path(scratch);
    fs::remove_all(scratch / "a");
    fs::create_directories(scratch / "a/b");
    fs::current_path(scratch / "a/b");
  }
  fs::current_path(before);
}

TEST_F(RunFoldersTest, AnotherRunsFolderIsRefusedHoweverTheRunBegins) {
  test::run(config("a", "a/ck"));
  test::run(config("b", "b/ck"));
  const std::string finetune = "checkpoint.finetune=true";
  EXPECT_THAT(refused(config("", "a/ck", {load("b/ck")})),
              HasSubstr("a/ck contains the checkpoints"));
  EXPECT_THAT(refused(config("", "a/ck", {load("b/ck"), finetune})), HasSubstr("a/ck contains"));
  EXPECT_THAT(refused(config("", "a/ck", {load("a/ck"), finetune})),
              HasSubstr("checkpoint.finetune=false to resume it"));
  EXPECT_THAT(
      refused(config("a", "c", {load("b/ck"), finetune})),
      AllOf(HasSubstr("a contains the metrics"), HasSubstr(load("a/ck") + " checkpoint.save=")));
  EXPECT_THAT(refused(config("b", "a/ck", {load("a/ck")})), HasSubstr("b contains the metrics"))
      << "the metrics of b are not of the run that goes on";
  EXPECT_THAT(refused(config("b", "a/ck", {"checkpoint.load=auto"})), HasSubstr("b contains"));
  const std::string model = PENTATRON_TEST_DATA "/hf_tiny/llama";
  EXPECT_THAT(
      refused(config("a", "c", {"checkpoint.load=hf:" + model, "checkpoint.strictness=log_all"})),
      HasSubstr("a contains the metrics"));
  EXPECT_FALSE(fs::exists(scratch / "c"));
}

TEST_F(RunFoldersTest, AFolderOfAnotherRunIsRefusedForEitherUse) {
  test::run(config("a", "a_ck"));
  test::run(config("b", "b"));
  fs::create_directories(scratch / "summary"); // what is left where the metrics were moved away
  fs::copy(scratch / "a/run.json", scratch / "summary/run.json");
  fs::create_directories(scratch / "yaml");
  std::ofstream(scratch / "yaml/config.yaml") << "logger: {dir: " << scratch / "yaml"
                                              << "}\n";
  for (const auto& [dir, save, load_from, text] :
       {std::tuple{"c", "a", "", "checkpoint.save=" + scratch / "a contains the metrics"},
        {"", "a", "", "checkpoint.save=" + scratch / "a contains the metrics"},
        {"c", "a", "b", "checkpoint.save=" + scratch / "a contains the metrics"},
        {"c", "summary", "", "checkpoint.save=" + scratch / "summary contains the metrics"},
        {"c", "yaml", "", "checkpoint.save=" + scratch / "yaml contains the metrics"},
        {"a_ck", "c", "", "logger.dir=" + scratch / "a_ck contains the checkpoints"},
        {"a_ck", "", "", "logger.dir=" + scratch / "a_ck contains the checkpoints"},
        {"a_ck", "c", "b", "logger.dir=" + scratch / "a_ck contains the checkpoints"},
        {"a_ck", "a", "", "checkpoint.save=" + scratch / "a contains the metrics"}}) {
    SCOPED_TRACE(fmt::format("{} {} {}", dir, save, load_from));
    std::vector<std::string> keys;
    if (*load_from != 0) keys = {load(load_from), "checkpoint.finetune=true"};
    const std::string message = refused(config(dir, save, keys));
    EXPECT_THAT(message, HasSubstr(text + " of another run"));
    for (std::vector<std::string> way : ways(message)) {
      way.insert(way.begin(), keys.begin(), keys.end());
      way.emplace_back("train.train_iters=4");
      const Trainer follows(config(dir, save, way), {});
    }
  }
}

TEST_F(RunFoldersTest, ARunMayMoveOneOfItsFoldersIntoTheOther) {
  test::run(config("a", "a_ck"));
  const auto steps = [&](const std::string& dir, const std::string& save, const std::string& from,
                         int iterations) {
    return test::run(config(dir, save,
                            {"checkpoint.load=" + (from == "auto" ? from : scratch / from),
                             fmt::format("train.train_iters={}", iterations)}))
        .report.iterations;
  };
  EXPECT_EQ(steps("a_ck", "c", "a_ck", 4), 4) << "its metrics beside its checkpoints";
  EXPECT_EQ(steps("a_ck", "c", "auto", 5), 5);
  EXPECT_EQ(steps("d", "a", "a_ck", 4), 4) << "its checkpoints beside its metrics";
  EXPECT_EQ(steps("d", "a", "auto", 5), 5);
  test::run(config("both", "both"));
  EXPECT_EQ(steps("e", "both", "auto", 4), 4);
  EXPECT_EQ(steps("both", "f", "both/step_00000003", 4), 4);
  fs::create_directories(scratch / "mine"); // a configuration of the user
  std::ofstream(scratch / "mine/config.yaml") << "seed: 5\n";
  EXPECT_EQ(test::run(config("g", "mine")).report.iterations, 3);
}

TEST_F(RunFoldersTest, ARunThatGoesOnWritesIntoItsOwn) {
  const Config first = config("a", "a/ck", {"train.train_iters=2"});
  test::run(first);
  EXPECT_EQ(test::run(config("a", "a/ck", {load("a/ck")})).steps.size(), 3u);
  EXPECT_EQ(test::run(config("a", "b/ck", {load("a/ck/step_00000003"), "train.train_iters=4"}))
                .steps.size(),
            4u)
      << "from a checkpoint of the run that lives in this logger.dir";
  EXPECT_EQ(
      test::run(config("a", "b/ck", {"checkpoint.load=auto", "train.train_iters=5"})).steps.size(),
      5u)
      << "whose config.yaml names the new folder";
  fs::rename(scratch / "a", scratch / "moved");
  EXPECT_EQ(test::run(config("moved", "moved/ck", {load("moved/ck"), "train.train_iters=4"}))
                .report.iterations,
            4);
}

TEST_F(RunFoldersTest, AnAdapterOfTheUserIsNeverReplaced) {
  test::run(config("base_log", "base"));
  fs::create_directories(scratch / "ck/adapter");
  const std::string file = scratch / "ck/adapter/adapter_config.json";
  std::ofstream(file) << "mine\n";
  EXPECT_THAT(refused(config("a", "ck",
                             {"peft.type=lora", load("base"), "checkpoint.finetune=true",
                              "checkpoint.export_hf=true"})),
              HasSubstr(file + " exists"));
  EXPECT_EQ(content_of(file), "mine\n");
}

TEST_F(RunFoldersTest, FilesOfTheUserBesideExportsStay) {
  const std::vector<std::string> keys = {"checkpoint.export_hf=true", "checkpoint.save_interval=1",
                                         "checkpoint.keep=1"};
  const auto more = [&](std::vector<std::string> added) {
    added.insert(added.end(), keys.begin(), keys.end());
    return added;
  };
  test::run(config("a", "ck", more({"train.train_iters=1"})));
  const std::string notes = scratch / "ck/hf/step_00000001/notes.txt";
  std::ofstream(notes) << "mine\n";
  std::ofstream(scratch / "ck/step_00000001/notes.txt") << "mine\n";
  test::run(config("a", "ck", more({"checkpoint.load=auto"})));
  EXPECT_EQ(names_in(scratch / "ck/hf"),
            (std::vector<std::string>{"step_00000001", "step_00000003"}));
  EXPECT_EQ(names_in(scratch / "ck/hf/step_00000001"), std::vector<std::string>{"notes.txt"});
  EXPECT_EQ(content_of(notes), "mine\n");
  EXPECT_EQ(names_in(scratch / "ck/step_00000001"), std::vector<std::string>{"notes.txt"});
}

TEST_F(RunFoldersTest, FilesOfTheUserBesideAnAdapterStay) {
  test::run(config("base_log", "base"));
  const std::vector<std::string> keys = {"peft.type=lora", load("base"), "checkpoint.finetune=true",
                                         "checkpoint.export_hf=true"};
  test::run(config("a", "ck", keys));
  std::ofstream(scratch / "ck/adapter/notes.txt") << "mine\n";
  test::run(config("a", "ck",
                   {"peft.type=lora", "checkpoint.load=auto", "checkpoint.export_hf=true",
                    "train.train_iters=4"}));
  EXPECT_EQ(content_of(scratch / "ck/adapter/notes.txt"), "mine\n");
  EXPECT_TRUE(fs::exists(scratch / "ck/adapter/adapter_config.json"));
}

TEST_F(RunFoldersTest, AFileOfTheUserIsNeverReplaced) {
  std::vector<std::string> names = {"ck/latest", "ck/hf/step_00000002/mine"};
  for (const char* name : kRunFiles) names.push_back(std::string("a/") + name);
  for (const char* keys : {"", "checkpoint.load=auto"}) {
    for (const std::string& name : names) {
      SCOPED_TRACE(name + " " + keys);
      for (const char* folder : {"a", "ck", "a-2", "ck-2"}) fs::remove_all(scratch / folder);
      fs::create_directories(fs::path(scratch / name).parent_path());
      std::ofstream(scratch / name) << "mine\n";
      std::vector<std::string> more = {"profiling.trace=true"};
      if (*keys != 0) more.emplace_back(keys);
      const std::string message = refused(config("a", "ck", more));
      if (name != "a/metrics.jsonl") {
        EXPECT_THAT(message, HasSubstr(scratch / name.substr(0, name.find("/mine")) + " exists"));
      }
      const auto found = ways(message);
      ASSERT_EQ(found.size(), 1u) << message;
      more.insert(more.end(), found[0].begin(), found[0].end());
      EXPECT_EQ(test::run(config("a", "ck", more)).report.iterations, 3);
      EXPECT_EQ(content_of(scratch / name), "mine\n");
    }
  }
}

TEST_F(RunFoldersTest, EveryFileOfARunIsInTheList) {
  test::run(config("a", "ck",
                   {"profiling.trace=true", "logger.plot=true", "logger.tensorboard=true",
                    "logger.wandb_project=w", "logger.mlflow_experiment=m",
                    "dataset.on_bad_input=skip"}));
  std::set<std::string> known(kRunFiles.begin(), kRunFiles.end());
  known.insert("run.lock");
  for (const auto& entry : fs::directory_iterator(scratch / "a"))
    EXPECT_TRUE(known.contains(entry.path().filename())) << entry.path();
}

TEST_F(RunFoldersTest, AStartThatFailedDoesNotBlockTheNext) {
  std::ofstream(data, std::ios::app) << "no JSON\n";
  const std::vector<std::string> keys = {"dataset.on_bad_input=skip"};
  std::vector<std::string> failing = keys;
  failing.push_back(load("nothing"));
  EXPECT_THAT(error_of([&] { test::run(config("a", "ck", failing)); }),
              HasSubstr("does not exist"));
  for (const char* folder : {"a", "ck"}) EXPECT_FALSE(fs::exists(scratch / folder)) << folder;
  fs::create_directory(scratch / "a"); // of the user
  EXPECT_THAT(error_of([&] { test::run(config("a", "b/c", failing)); }),
              HasSubstr("does not exist"));
  EXPECT_TRUE(fs::is_empty(scratch / "a"));
  EXPECT_FALSE(fs::exists(scratch / "b"));
  test::run(config("a", "ck", keys));
  EXPECT_TRUE(fs::exists(scratch / "a/skipped.jsonl"));
  // As if it had been ended before its first step.
  fs::remove_all(scratch / "ck");
  fs::resize_file(scratch / "a/metrics.jsonl", 0);
  const std::string summary = content_of(scratch / "a/run.json");
  EXPECT_EQ(test::run(config("a", "ck", keys)).report.iterations, 3);
  EXPECT_EQ(content_of(scratch / "a/earlier-1/run.json"), summary);
}

TEST_F(RunFoldersTest, ARunThatGoesBackKeepsWhatCameLater) {
  const std::vector<std::string> keep = {"checkpoint.save_interval=1", "checkpoint.keep=0",
                                         "train.train_iters=5"};
  const auto with = [&](const std::string& dir, const std::string& save, const std::string& from,
                        const char* iterations) {
    std::vector<std::string> keys = keep;
    keys.insert(keys.end(), {from, "seed=5", std::string("train.train_iters=") + iterations});
    return config(dir, save, keys);
  };
  for (const auto& [dir, save] : {std::pair{"a", "a/ck"}, {"b", "b"}, {"c_log", "c"}, {"", "d"}}) {
    SCOPED_TRACE(save);
    test::run(config(dir, save, keep));
    const fs::path at = scratch / save, logs = scratch / dir;
    const std::string before = *dir == 0 ? "" : content_of(logs / "metrics.jsonl");
    const std::string fifth = content_of(at / "step_00000005/manifest.json");
    const std::string log = log_of(
        [&] { test::run(with(dir, save, load(std::string(save) + "/step_00000002"), "3")); });
    EXPECT_THAT(log, AllOf(HasSubstr("goes back to iteration 2: its later checkpoints, from "
                                     "step_00000003 on, are in " +
                                     (at / "earlier-1").string())));
    EXPECT_EQ(content_of(at / "earlier-1/step_00000005/manifest.json"), fifth);
    EXPECT_EQ(checkpoint::checkpoints_in(at).size(), 3u);
    EXPECT_EQ(content_of(at / "latest"), "step_00000003\n");
    if (*dir != 0) {
      EXPECT_EQ(content_of(logs / "earlier-1/metrics.jsonl"), before);
      EXPECT_EQ(test::read_metrics(logs / "metrics.jsonl").size(), 3u);
    }
    // As if a process that went back to 1 had been killed between two moves.
    std::ofstream(at / "latest") << "step_00000001\n";
    fs::create_directory(at / "earlier-2");
    fs::rename(at / "step_00000003", at / "earlier-2/step_00000003");
    EXPECT_EQ(test::run(with(dir, save, "checkpoint.load=auto", "2")).report.iterations, 2);
    EXPECT_TRUE(fs::exists(at / "earlier-3/step_00000002/manifest.json"));
    EXPECT_EQ(content_of(at / "latest"), "step_00000002\n");
    EXPECT_THAT(log_of([&] { test::run(with(dir, save, "checkpoint.load=auto", "3")); }),
                Not(HasSubstr("goes back")));
  }
}

TEST_F(RunFoldersTest, WhatIsCutIsKeptFirst) {
  // Wherever the run saves, and whether anything but the metrics is later.
  const std::vector<std::string> keep = {"checkpoint.save_interval=1", "checkpoint.keep=0",
                                         "train.train_iters=5", "logger.plot=true"};
  for (const char* save : {"other", ""}) {
    SCOPED_TRACE(save);
    for (const char* folder : {"a", "other"}) fs::remove_all(scratch / folder);
    test::run(config("a", "a/ck", keep));
    const fs::path dir = scratch / "a";
    Files before = files();
    const std::vector<std::string> keys = {load("a/ck/step_00000002"), "train.train_iters=3",
                                           "logger.plot=true"};
    const std::string log = log_of([&] { test::run(config("a", save, keys)); });
    EXPECT_THAT(log, HasSubstr("goes back to iteration 2: a copy of its metrics is in " +
                               (dir / "earlier-1").string()));
    for (const char* name : {"metrics.jsonl", "run.json", "config.yaml", "loss.svg"})
      EXPECT_EQ(content_of(dir / "earlier-1" / name), before.at(std::string("a/") + name)) << name;
    EXPECT_EQ(test::read_metrics(dir / "metrics.jsonl").size(), 3u);
    EXPECT_TRUE(fs::exists(dir / "ck/step_00000005/manifest.json"));
  }
  // As if a run had been killed two steps after its last checkpoint.
  test::run(config("b", "b/ck", keep));
  for (const char* later : {"4", "5"})
    fs::remove_all(scratch / fmt::format("b/ck/step_0000000{}", later));
  std::ofstream(scratch / "b/ck/latest") << "step_00000003\n";
  const std::string metrics = content_of(scratch / "b/metrics.jsonl");
  std::vector<std::string> again = keep;
  again.emplace_back("checkpoint.load=auto");
  EXPECT_EQ(test::run(config("b", "b/ck", again)).steps.size(), 5u);
  EXPECT_EQ(content_of(scratch / "b/earlier-1/metrics.jsonl"), metrics);
  EXPECT_FALSE(fs::exists(scratch / "b/ck/earlier-1"));
  again.emplace_back("train.train_iters=6");
  EXPECT_EQ(test::run(config("b", "b/ck", again)).steps.size(), 6u);
  EXPECT_FALSE(fs::exists(scratch / "b/earlier-2")) << "nothing was cut";
}

TEST_F(RunFoldersTest, AFolderAroundTheCheckpointsMayBeAnotherRuns) {
  test::run(config("runs", "elsewhere")); // metrics of one run ...
  test::run(config("a", "runs/a"));       // ... around the checkpoints of another
  const std::vector<std::string> more = {load("runs/a"), "train.train_iters=4"};
  EXPECT_THAT(refused(config("runs", "runs/a", more)), HasSubstr("runs contains the metrics"));
  EXPECT_EQ(test::run(config("a", "runs/a", more)).report.iterations, 4);
  fs::remove(scratch / "runs/config.yaml"); // now nothing says whose they are
  EXPECT_EQ(test::run(config("runs", "runs/a", {load("runs/a"), "train.train_iters=5"}))
                .report.iterations,
            5);
}

TEST_F(RunFoldersTest, ALiveRunKeepsOthersOut) {
  const auto with = [&](const std::string& dir, const std::string& save) {
    return config(dir, save, {"checkpoint.load=auto"});
  };
  {
    const Trainer alive(with("a", "a_ck"), {});
    for (const auto& [dir, save] : {std::pair{"a", "a_ck"}, {"a", "b"}, {"b", "a_ck"}, {"a", ""}}) {
      const std::string message = refused(*save == 0 ? config(dir, save) : with(dir, save));
      EXPECT_THAT(message, AllOf(HasSubstr("is in use by process " + std::to_string(::getpid())),
                                 HasSubstr(" since 20"), HasSubstr("try: logger.dir=")));
      for (std::vector<std::string> keys : ways(message)) {
        keys.emplace_back("checkpoint.load=");
        const Trainer beside(config(dir, save, keys), {});
      }
    }
  }
  test::run(with("a", "a_ck"));
}

TEST_F(RunFoldersTest, AKilledProcessHoldsNothing) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    RunLock lock;
    const char answer = lock.take(scratch.path, true) ? 'n' : 'y';
    [[maybe_unused]] const ssize_t n = ::write(ready[1], &answer, 1);
    ::pause();
    ::_exit(0);
  }
  char answer = 0;
  ASSERT_EQ(::read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  RunLock lock;
  EXPECT_THAT(lock.take(scratch.path, true).value_or(""),
              HasSubstr("process " + std::to_string(child) + " on "));
  EXPECT_FALSE(lock.held());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(lock.take(scratch.path, false), std::nullopt);
  EXPECT_TRUE(lock.held());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(RunFoldersTest, ARequeuedRunWithoutACheckpointBeginsAgainAndKeepsWhatWasWritten) {
  const std::vector<std::string> keys = {"checkpoint.load=auto", "logger.tensorboard=true"};
  std::vector<std::string> written;
  for (int attempt = 1; attempt <= 3; ++attempt) {
    const test::Trace trace = test::run(config("a", "a/ck", keys));
    EXPECT_EQ(trace.steps.size(), 3u);
    EXPECT_EQ(trace.steps.front()["iteration"], 1);
    written.push_back(content_of(scratch / "a/metrics.jsonl"));
    fs::remove_all(scratch / "a/ck"); // as if it had been ended before the first
  }
  for (int attempt = 1; attempt <= 2; ++attempt) {
    const fs::path earlier = scratch / fmt::format("a/earlier-{}", attempt);
    EXPECT_EQ(content_of(earlier / "metrics.jsonl"), written[static_cast<size_t>(attempt - 1)]);
    EXPECT_TRUE(fs::exists(earlier / "config.yaml"));
    EXPECT_TRUE(fs::exists(earlier / "tensorboard"));
  }
  EXPECT_THAT(refused(config("a", "c", {"checkpoint.load=auto"})),
              HasSubstr("a contains the metrics"))
      << "of a run that saved elsewhere";
}

TEST_F(RunFoldersTest, ARunThatOnlyEvaluatesWritesNothing) {
  const std::vector<std::string> evaluation = {"train.eval_interval=1", "dataset.split=50,50",
                                               "logger.plot=true", "logger.tensorboard=true"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), evaluation.begin(), evaluation.end());
    return config("a", "a/ck", more);
  };
  test::run(with({}));
  const Files before = files();
  const auto unchanged = [&](std::vector<std::string> more) {
    const test::Trace trace = test::run(with(std::move(more)));
    EXPECT_TRUE(trace.report.validation);
    EXPECT_EQ(trace.report.metrics, fs::path());
    Files after = files();
    for (const char* lock : {"a/run.lock", "a/ck/run.lock"}) after[lock] = before.at(lock);
    EXPECT_TRUE(after == before);
  };
  unchanged({load("a/ck")}); // nothing is left to do
  unchanged({load("a/ck"), "train.train_iters=0"});
  unchanged({load("a/ck"), "train.train_iters=0", "checkpoint.finetune=true"});
  const RunFolders alive(config("a", "a/ck", {load("a/ck")}), {});
  unchanged({load("a/ck"), "train.train_iters=0"}); // beside the run too
}

TEST_F(RunFoldersTest, AFolderWithTheNameOfACheckpointIsNoneOfAnotherRun) {
  const std::string folder = scratch / "b/step_00000001";
  fs::create_directories(folder);
  std::ofstream(folder + "/mine.txt") << "mine";
  const std::string message = refused(config("a", "b"));
  EXPECT_THAT(message, HasSubstr("contains step_00000001, which has the name of a checkpoint and "
                                 "contains other files"));
  EXPECT_THAT(message, HasSubstr("or move " + folder));
}

TEST_F(RunFoldersTest, AllRanksRefuseTogether) {
  test::run(config("a", "a/ck"));
  const Files before = files();
  const Config again =
      config("a", "a/ck", {"train.micro_batch_size=1", "train.global_batch_size=4"}, 4);
  const std::string message = error_of(
      [&] { test::run_ranks(4, [&](const comm::Group& world) { Trainer(again, world).run(); }); });
  EXPECT_THAT(message, HasSubstr("contains the checkpoints of another run"));
  EXPECT_TRUE(files() == before);
}

} // namespace
} // namespace pentatron::trainer

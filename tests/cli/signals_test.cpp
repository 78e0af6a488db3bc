// What a run does when it is asked to stop, is suspended, or cannot write its results.
#include <cctype>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "tests/cli/program_folder.h"
#include "tests/cli/started_program.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using test::Result;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Signals : public test::StartedProgram {
 protected:
  std::vector<std::string> endless(std::vector<std::string> more) const {
    more.insert(more.end(), {"train.train_iters=1000000", "checkpoint.save=ck", "logger.dir=log",
                             "logger.tensorboard=false"});
    return tiny(std::move(more));
  }
  /// A new run without end, of one rank or more, that has made steps.
  pid_t begin(const std::string& ranks) const {
    fs::remove_all(folder / "ck");
    fs::remove_all(folder / "log");
    std::vector<std::string> arguments =
        endless({"train.global_batch_size=256", "train.micro_batch_size=1"});
    if (!ranks.empty()) arguments.insert(arguments.end(), {ranks, "--backend=sockets"});
    const pid_t child = start(arguments);
    EXPECT_TRUE(within(60, [&] { return metrics() > 100; })) << err();
    return child;
  }
  uintmax_t metrics() const {
    std::error_code error;
    const uintmax_t size = fs::file_size(folder / "log/metrics.jsonl", error);
    return error ? 0 : size;
  }
  std::string err() const { return content_of(folder / "err"); }
  static bool has_ended(pid_t child) {
    siginfo_t info = {};
    return ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == child;
  }
};

/// train.num_threads reaches the kernels.
TEST_F(Signals, ARunHasAsManyThreadsAsItIsTold) {
  const auto threads_with = [&](const std::string& setting) {
    fs::remove_all(folder / "ck");
    fs::remove_all(folder / "log");
    const pid_t child = start(endless({setting, "kernels=order"}));
    EXPECT_TRUE(within(60, [&] { return metrics() > 100; })) << err();
    const fs::path tasks = "/proc/" + std::to_string(child) + "/task";
    const auto count = std::distance(fs::directory_iterator(tasks), {});
    ::kill(child, SIGKILL);
    finish(child);
    return count;
  };
  const auto one = threads_with("train.num_threads=1");
  EXPECT_GE(threads_with("train.num_threads=3"), one + 2);
}

TEST_F(Signals, AClosedTerminalSavesOnceHoweverOftenItIsTold) {
  for (const char* ranks : {"", "--ranks=2"}) {
    SCOPED_TRACE(ranks);
    const pid_t child = begin(ranks);
    for (int i = 0; i < 3; ++i) {
      ::kill(child, SIGHUP);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    const Result r = finish(child);
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_THAT(r.err, HasSubstr("stopped by a signal after iteration"));
    EXPECT_TRUE(fs::exists(folder / "ck/latest"));
  }
}

TEST_F(Signals, CtrlCIsAnsweredAtOnceAndASecondOneEndsTheRun) {
  for (const char* ranks : {"", "--ranks=2"}) {
    SCOPED_TRACE(ranks);
    // A step of many seconds, and more of them after the answer.
    std::vector<std::string> arguments =
        endless({"train.global_batch_size=30000", "train.micro_batch_size=1"});
    if (*ranks != 0) arguments.insert(arguments.end(), {ranks, "--backend=sockets"});
    const pid_t child = start(arguments);
    ASSERT_TRUE(within(60, [&] { return err().find("MFU is measured") != std::string::npos; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ::kill(child, SIGINT);
    EXPECT_TRUE(within(
        0.5, [&] { return err().find("an iteration that has begun") != std::string::npos; }));
    EXPECT_FALSE(has_ended(child)) << "the step is not at its end yet";
    EXPECT_EQ(err().find("an iteration that has begun"), err().rfind("an iteration that has begun"))
        << "once, not for each rank";
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    ::kill(child, SIGINT);
    EXPECT_TRUE(within(3, [&] { return has_ended(child); }));
    const std::string told = *ranks == 0 ? "stopped without saving" : "ended by a second signal";
    EXPECT_NE(err().find(told), std::string::npos);
    EXPECT_EQ(err().find(told), err().rfind(told)) << "once";
    ::kill(child, SIGKILL);
    EXPECT_NE(finish(child).status, 0);
    EXPECT_FALSE(fs::exists(folder / "ck/latest"));
    fs::remove_all(folder / "log");
    fs::remove(folder / "err"); // or the next run seems to have begun
  }
}

/// As `timeout` and launchers send it: to the process, and to its group.
TEST_F(Signals, ASignalThatComesTwiceAtOnceSavesLikeOne) {
  for (const char* ranks : {"", "--ranks=2"}) {
    SCOPED_TRACE(ranks);
    const pid_t child = begin(ranks);
    for (int i = 0; i < 3; ++i) ::kill(child, i == 1 ? SIGINT : SIGTERM);
    const Result r = finish(child);
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_THAT(r.err, HasSubstr("stopped by a signal after iteration"));
    EXPECT_TRUE(fs::exists(folder / "ck/latest"));
  }
}

TEST_F(Signals, AKilledRunHasLeftItsPictureAndSaysThatItWasRunning) {
  const pid_t child = start(endless({}));
  EXPECT_TRUE(within(60, [&] { return fs::exists(folder / "log/loss.svg"); })) << err();
  ::kill(child, SIGKILL);
  finish(child);
  EXPECT_THAT(content_of(folder / "log/loss.svg"), HasSubstr("</svg>"));
  const Json summary = read_json(folder / "log/run.json");
  EXPECT_EQ(summary["exit_reason"], "running");
  EXPECT_TRUE(summary["ended"].is_null());
  EXPECT_GT(summary["iteration"].get<int64_t>(), 0);
  EXPECT_GT(summary["consumed_tokens"].get<int64_t>(), 0);
}

/// The state of a process and its children, as ps shows it: "T" for one that is stopped.
std::string states(pid_t parent) {
  std::string all;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    if (std::isdigit(entry.path().filename().string()[0]) == 0) continue;
    const std::string stat = content_of(entry.path() / "stat");
    const size_t at = stat.rfind(')');
    if (at == std::string::npos) continue;
    int of = 0;
    char state = 0;
    if (std::sscanf(stat.c_str() + at + 1, " %c %d", &state, &of) != 2) continue;
    if (of == parent || entry.path().filename() == std::to_string(parent)) all += state;
  }
  return all;
}

TEST_F(Signals, CtrlZStopsTheRanksAndTheyGoOn) {
  const pid_t child =
      start(endless({"--ranks=2", "--backend=sockets", "dist.heartbeat_s=0.2", "dist.timeout_s=2",
                     "train.micro_batch_size=1", "kernels=order"}));
  ASSERT_TRUE(within(60, [&] { return metrics() > 500; })) << err();
  ::kill(child, SIGTSTP);
  ASSERT_TRUE(within(10, [&] { return states(child) == "TTT"; })) << states(child);
  const uintmax_t before = metrics();
  std::this_thread::sleep_for(std::chrono::seconds(8)); // longer than anything that ranks wait for
  EXPECT_EQ(metrics(), before);
  ::kill(child, SIGCONT);
  EXPECT_TRUE(within(10, [&] { return metrics() > before + 1000; })) << err();
  ::kill(child, SIGTERM);
  const Result r = finish(child);
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_THAT(r.err, HasSubstr("stopped by a signal after iteration"));
}

class FullDisks : public test::ProgramFolder {
 protected:
  const std::string train_ =
      "train model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 "
      "dataset.type=mock train.seq_length=16 train.micro_batch_size=1 train.global_batch_size=2 "
      "train.num_threads=1 logger.peak_tflops=1 kernels=order ";
};

TEST_F(FullDisks, ARunWhoseLastCheckpointIsNotSavedFails) {
  const std::string keys = train_ + "train.train_iters=2 checkpoint.save=ck checkpoint.on_error=";
  const std::string small_disk = "trap '' XFSZ; ulimit -f 8; "; // files of at most 4 or 8 KiB
  for (const char* ranks : {"", " --ranks 2"}) {
    const std::string out = run(keys + "continue" + ranks + " 2>&1", 1, small_disk);
    EXPECT_THAT(out, AllOf(HasSubstr("iterations   2"), HasSubstr("error: "),
                           HasSubstr("the checkpoint of iteration 2 was not saved"),
                           HasSubstr("try: checkpoint.load=auto")));
    EXPECT_EQ(out.find("was not saved"), out.rfind("was not saved")) << "told once: " << out;
  }
  run(keys + "continue checkpoint.load=auto 2>&1"); // what it says to try
  EXPECT_TRUE(fs::exists(folder / "ck/step_00000002/manifest.json"));
}

TEST_F(FullDisks, ATokenizerThatIsNotWrittenLeavesNoFolder) {
  std::ofstream(folder / "words.txt") << "the loss falls slowly, then it rises\n";
  for (const char* output : {"a/b/c", "d/tokenizer.json", "words/x/"})
    run(std::string("tokenize --train-bpe 300 --input words.txt --output ") + output + " 2>&1", 1,
        "trap '' XFSZ; ulimit -f 1; ");
  for (const char* left : {"a", "d", "words"}) EXPECT_FALSE(fs::exists(folder / left)) << left;
}

/// logger.dir on a disk of its own that is full, and emptied while the run goes on.
TEST_F(FullDisks, LoggingNeverEndsARun) {
  std::ofstream(folder / "run.sh")
      << R"(set -e
mkdir log; mount -t tmpfs -o size=50m none log
head -c 100000000 /dev/zero > log/fill 2> /dev/null || true
trap 'kill $run' EXIT
")" PENTATRON_PROGRAM R"(" )" +
             train_ +
             R"(train.train_iters=100000000 checkpoint.save=ck logger.dir=log 2> err > out &
run=$!
for i in $(seq 600); do grep -q 'training continues' err && break; sleep 0.1; done
sleep 1
rm log/fill
for i in $(seq 600); do grep -q 'can be written again' err && break; sleep 0.1; done
kill -TERM $run
trap - EXIT
wait $run
cp log/metrics.jsonl log/config.yaml .
)";
  FILE* const probe = ::popen("unshare -rm true 2>&1", "r");
  if (::pclose(probe) != 0) GTEST_SKIP() << "no mount namespaces here";
  const std::string command = "cd '" + folder.string() + "' && unshare -rm bash run.sh 2>&1";
  FILE* const pipe = ::popen(command.c_str(), "r");
  char text[4096] = "";
  const size_t n = std::fread(text, 1, sizeof text - 1, pipe);
  const std::string err = content_of(folder / "err");
  EXPECT_EQ(::pclose(pipe), 0) << std::string(text, n) << err;
  const auto count = [&](const char* what) {
    size_t found = 0;
    for (size_t at = err.find(what); at != std::string::npos; at = err.find(what, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("training continues"), 1u) << err;
  EXPECT_EQ(count("can be written again"), 1u) << err;
  // Every file is named once as incomplete, most of them in the first message.
  std::map<std::string, int> named;
  const std::regex list(
      "(?:training continues, and|: [^;\n]*;) ([a-z_., /]+) (?:is|are) incomplete");
  for (std::sregex_iterator it(err.begin(), err.end(), list), last; it != last; ++it) {
    std::istringstream names((*it)[1]);
    for (std::string name; names >> name;) ++named[name.substr(0, name.find(','))];
  }
  for (const char* file : {"metrics.jsonl", "config.yaml", "run.json", "kernels.json"})
    EXPECT_EQ(named[file], 1) << file << "\n" << err;
  for (const auto& [name, times] : named) EXPECT_EQ(times, 1) << name << "\n" << err;
  EXPECT_THAT(err, HasSubstr("No space left on device"));
  int64_t iteration = 0;
  std::ifstream in(folder / "metrics.jsonl");
  for (std::string line; std::getline(in, line);)
    ASSERT_EQ(parse_json(line, "metrics.jsonl")["iteration"].get<int64_t>(), ++iteration);
  EXPECT_GT(iteration, 0) << "and no line is missing";
  EXPECT_TRUE(fs::exists(folder / "ck/latest"));
}

} // namespace
} // namespace pentatron

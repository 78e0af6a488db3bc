// The processes of a run map one order of samples, in a file that has no name.
#include <cctype>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/started_program.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;

class SharedOrder : public test::StartedProgram {
 protected:
  /// For each process of a run in Megatron's order, its own or that of a rank, the files without
  /// names that it maps read-only, as device and inode. Processes that map none are left out.
  std::vector<std::set<std::string>> shared_by(std::vector<std::string> launch) {
    fs::remove_all(folder / "log");
    launch.insert(launch.end(), {"dataset.type=indexed", "dataset.path=corpus_text_document",
                                 "dataset.order=megatron", "train.micro_batch_size=1",
                                 "train.train_iters=1000000", "logger.dir=log",
                                 "logger.tensorboard=false", "kernels=order"});
    const pid_t child = start(tiny(launch));
    EXPECT_TRUE(within(60, [&] { return content_of(folder / "log/metrics.jsonl").size() > 100; }))
        << content_of(folder / "err");
    std::vector<std::set<std::string>> all;
    for (const fs::path& process : processes_of(child))
      if (std::set<std::string> files = nameless(process); !files.empty())
        all.push_back(std::move(files));
    ::kill(child, SIGTERM);
    EXPECT_EQ(finish(child).status, 0) << content_of(folder / "err");
    return all;
  }

 private:
  static std::vector<fs::path> processes_of(pid_t parent) {
    std::vector<fs::path> all{"/proc/" + std::to_string(parent)};
    for (const auto& entry : fs::directory_iterator("/proc")) {
      if (std::isdigit(entry.path().filename().string()[0]) == 0) continue;
      const std::string stat = content_of(entry.path() / "stat");
      const size_t at = stat.rfind(')');
      int of = 0;
      if (at != std::string::npos && std::sscanf(stat.c_str() + at + 1, " %*c %d", &of) == 1 &&
          of == parent)
        all.push_back(entry.path());
    }
    return all;
  }
  static std::set<std::string> nameless(const fs::path& process) {
    std::set<std::string> files;
    std::istringstream maps(content_of(process / "maps"));
    for (std::string line; std::getline(maps, line);) {
      std::istringstream words(line);
      std::string addresses, permissions, offset, device, inode;
      words >> addresses >> permissions >> offset >> device >> inode;
      if (permissions == "r--s" && line.ends_with(" (deleted)")) files.insert(device + " " + inode);
    }
    return files;
  }
};

TEST_F(SharedOrder, ProcessesMapOneFileWithoutAName) {
  std::ofstream texts(folder / "texts.jsonl");
  for (int i = 0; i < 100; ++i) texts << "{\"text\": \"the loss falls slowly\"}\n";
  texts.close();
  ASSERT_EQ(run({"preprocess", "--input", "texts.jsonl", "--tokenizer", "bytes", "--output",
                 "corpus", "--append-eod"})
                .status,
            0);
  const auto processes = shared_by({"--ranks=2", "--backend=sockets"});
  ASSERT_EQ(processes.size(), 2u) << "the two ranks, not their parent";
  EXPECT_EQ(processes[0].size(), 1u) << testing::PrintToString(processes[0]);
  EXPECT_EQ(processes[0], processes[1]);
  // Threads have no need of one, and processes that have a folder use that.
  EXPECT_EQ(shared_by({"--ranks=2"}).size(), 0u);
  EXPECT_EQ(shared_by({"--ranks=2", "--backend=sockets", "dataset.data_cache_path=cached"}).size(),
            0u);
}

} // namespace
} // namespace pentatron

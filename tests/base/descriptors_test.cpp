#include "pentatron/base/descriptors.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/gguf.h"
#include "pentatron/base/json.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/naming.h"
#include "pentatron/base/run_lock.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/files.h"

namespace pentatron {
namespace {

/// What an OutOfDescriptors says; other errors are not caught.
std::string out_of_descriptors(const std::function<void()>& action) {
  try {
    action();
  } catch (const OutOfDescriptors& error) {
    return error.what();
  }
  return "no error";
}

TEST(Descriptors, AFileThatCannotBeOpenedForLackOfThemIsNotToBlame) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "a.json", lock = folder.path() / "run.lock";
  std::ofstream(file) << "{}";
  struct Case {
    std::filesystem::path opened;
    std::function<void()> open;
  };
  for (const Case& c : {Case{file, [&] { MappedFile mapped(file); }},
                        {file, [&] { read_json(file); }},
                        {file, [&] { is_gguf(file); }},
                        {file, [&] { AtomicFile written(file); }},
                        {folder.path(), [&] { sync_path(folder.path()); }},
                        {lock, [&] { RunLock().take(folder.path(), true); }}}) {
    c.open();
    std::string said;
    {
      const test::FewDescriptors none(0);
      said = out_of_descriptors(c.open);
    }
    EXPECT_THAT(said, testing::MatchesRegex(
                          "cannot open " + c.opened.string() +
                          ": this process has reached its limit of [0-9]+ open files\n  try: "
                          "ulimit -n [0-9]+"));
  }
}

TEST(Descriptors, SuggestsALimitThatEverybodyMaySet) {
  const auto say = [](rlim_t soft, rlim_t hard) {
    const rlimit limit = {.rlim_cur = soft, .rlim_max = hard};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    std::fputs(out_of_descriptors([] { require_descriptors(EMFILE); }).c_str(), stderr);
    std::exit(0);
  };
  const testing::ExitedWithCode well(0);
  EXPECT_EXIT(say(64, 100), well, "its limit of 64 open files\n  try: ulimit -n 100$");
  EXPECT_EXIT(say(64, 64), well, "its limit of 64 open files\n  try: ulimit -n 65536$");
}

TEST(Descriptors, SaysWhatElseHasRunOut) {
  EXPECT_EQ(out_of_descriptors([] { require_descriptors(ENFILE, "a pipe"); }),
            "cannot open a pipe: this machine has reached its limit of open files\n  try: a larger "
            "/proc/sys/fs/file-max");
  EXPECT_EQ(out_of_descriptors([] { require_descriptors(ENOMEM); }),
            "cannot open another file or connection (Cannot allocate memory)");
  for (const int other : {0, ENOENT, EACCES, EADDRINUSE})
    EXPECT_NO_THROW(require_descriptors(other));
}

TEST(Descriptors, NoKeyIsNamedForWhatIsNotItsFault) {
  EXPECT_EQ(out_of_descriptors([] {
              naming(
                  "--in ", "a", [] { require_descriptors(ENFILE, "a"); }, "another file");
            }),
            "cannot open a: this machine has reached its limit of open files\n  try: a larger "
            "/proc/sys/fs/file-max");
}

} // namespace
} // namespace pentatron

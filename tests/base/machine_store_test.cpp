// What one process puts into a store, all processes of the machine map, and no crash leaves a file.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/machine_store.h"
#include "tests/support/files.h"

namespace pentatron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

MachineStore::Entry add_text(MachineStore& store, const std::string& key, std::string_view text) {
  const MachineStore::Lock lock(store);
  return store.add(key, text.size(), [&](const MachineStore::Put& put) {
    const auto bytes = std::as_bytes(std::span(text));
    put(bytes.first(bytes.size() / 3));
    put(bytes.subspan(bytes.size() / 3));
  });
}

/// "absent" if there is no such entry.
std::string text_of(const MachineStore::Entry& entry) {
  if (entry.owner == nullptr) return "absent";
  return {reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size()};
}

std::string find_text(MachineStore& store, const std::string& key) {
  const MachineStore::Lock lock(store);
  return text_of(store.find(key));
}

/// Whether `body` is true in another process.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

/// As `ulimit -f`, for as long as it exists.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(MachineStore, ProcessesFindWhatAnotherOneHasPut) {
  const TemporaryFolder folder;
  const auto store = MachineStore::make({folder.path()});
  const std::string first(100'001, 'a');
  EXPECT_EQ(find_text(*store, "one"), "absent");
  EXPECT_EQ(text_of(add_text(*store, "one", first)), first);
  EXPECT_TRUE(in_child([&] {
    const auto same = MachineStore::open(store->address());
    return find_text(*same, "one") == first && find_text(*same, "two") == "absent" &&
           text_of(add_text(*same, "two", "second")) == "second" &&
           text_of(add_text(*same, "three", "third")) == "third";
  }));
  EXPECT_EQ(find_text(*store, "two"), "second");
  EXPECT_EQ(find_text(*store, "three"), "third");
  EXPECT_EQ(find_text(*store, "one"), first);
  const MachineStore::Entry entry = store->find("one");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(entry.bytes.data()) % 64, 0u);
}

TEST(MachineStore, AnEntryOutlivesTheStoreThatItCameFrom) {
  const TemporaryFolder folder;
  auto store = MachineStore::make({folder.path()});
  const MachineStore::Entry entry = add_text(*store, "one", "text");
  store.reset();
  EXPECT_EQ(text_of(entry), "text");
}

TEST(MachineStore, ItsFilesHaveNoNamesAndAreTheUsersAlone) {
  const TemporaryFolder folder;
  const auto store = MachineStore::make({folder.path()});
  add_text(*store, "one", "text");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  int process = 0, descriptor = -1;
  ASSERT_EQ(std::sscanf(store->address().c_str(), "%d\n%d", &process, &descriptor), 2);
  EXPECT_EQ(process, ::getpid());
  struct stat status = {};
  ASSERT_EQ(::fstat(descriptor, &status), 0);
  EXPECT_EQ(status.st_nlink, 0u);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
}

TEST(MachineStore, AProcessThatIsKilledWhileItWritesHasAddedNothingAndHoldsNobodyUp) {
  const TemporaryFolder folder;
  const auto store = MachineStore::make({folder.path()});
  add_text(*store, "one", "text");
  // What it leaves must not be taken for headers of entries, wherever the next ones end.
  const std::string half(1'000'000, 'h');
  EXPECT_FALSE(in_child([&] {
    const auto same = MachineStore::open(store->address());
    const MachineStore::Lock lock(*same);
    same->add("two", 2 * half.size(), [&](const MachineStore::Put& put) {
      put(std::as_bytes(std::span(half)));
      ::kill(::getpid(), SIGKILL);
    });
    return true;
  }));
  EXPECT_EQ(find_text(*store, "two"), "absent");
  add_text(*store, "two", "short");
  EXPECT_EQ(find_text(*store, "three"), "absent");
  add_text(*store, "three", half);
  EXPECT_EQ(find_text(*store, "one"), "text");
  EXPECT_EQ(find_text(*store, "two"), "short");
  EXPECT_EQ(find_text(*store, "three"), half);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(MachineStore, TakesTheNextFolderWhereOneHasNoRoom) {
  const TemporaryFolder one, other;
  const auto store = MachineStore::make({one.path(), other.path()});
  const std::string large(1'500'000, 'l'), second(1'500'000, 's');
  const FileLimit limit(2'000'000);
  add_text(*store, "large", large);
  add_text(*store, "second", second);
  EXPECT_EQ(find_text(*store, "large"), large);
  EXPECT_EQ(find_text(*store, "second"), second);
  const std::string error = message_of([&] { add_text(*store, "third", large); });
  EXPECT_THAT(error, AllOf(HasSubstr(one.path().string() + ": File too large"),
                           HasSubstr(other.path().string() + ": File too large")));
  EXPECT_EQ(find_text(*store, "third"), "absent");
  add_text(*store, "small", "text"); // which still fits
  EXPECT_EQ(find_text(*store, "small"), "text");
  EXPECT_TRUE(in_child([&] { // from both folders
    const auto same = MachineStore::open(store->address());
    return find_text(*same, "large") == large && find_text(*same, "second") == second;
  }));
}

TEST(MachineStore, LeavesOutFoldersThatCannotBeWritten) {
  const TemporaryFolder folder;
  const auto store = MachineStore::make({"/proc", folder.path() / "none", folder.path()});
  EXPECT_EQ(text_of(add_text(*store, "one", "text")), "text");
  EXPECT_THAT(message_of([] {
                MachineStore::make({"/proc", "/none/such"});
              }),
              AllOf(HasSubstr("/proc: "), HasSubstr("/none/such: No such file or directory")));
}

TEST(MachineStore, IsOpenedByTheAddressOfALivingProcessAlone) {
  const TemporaryFolder folder;
  std::string address;
  {
    const auto store = MachineStore::make({folder.path()});
    address = store->address();
    const std::string other_file = address.substr(0, address.find('\n')) + "\n0 1 2 /tmp";
    EXPECT_THAT(message_of([&] { MachineStore::open(other_file); }),
                HasSubstr("cannot be opened: No such file"));
  }
  EXPECT_THAT(message_of([&] { MachineStore::open(address); }), HasSubstr("cannot be opened"));
  EXPECT_THAT(message_of([] { MachineStore::open("17"); }), HasSubstr("not the address"));
}

TEST(MachineStore, AllProcessesLearnThatItIsClosed) {
  const TemporaryFolder folder;
  const auto store = MachineStore::make({folder.path()});
  add_text(*store, "one", "text");
  EXPECT_FALSE(store->closed());
  EXPECT_TRUE(in_child([&] {
    const auto same = MachineStore::open(store->address());
    const MachineStore::Lock lock(*same);
    const bool before = same->closed();
    same->close();
    return !before && same->closed();
  }));
  EXPECT_TRUE(store->closed());
  EXPECT_EQ(find_text(*store, "one"), "text");
}

} // namespace
} // namespace pentatron

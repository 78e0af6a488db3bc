#include "pentatron/base/hf_cache.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "tests/support/files.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A cache as huggingface_hub lays it out: snapshots of links to blobs.
class HfCache : public testing::Test {
 protected:
  HfCache() {
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"})
      ::unsetenv(name);
    ::setenv("HF_HUB_CACHE", folder.path().c_str(), 1);
    add("main", kRevision);
  }
  ~HfCache() override { ::unsetenv("HF_HUB_CACHE"); }
  void write(const fs::path& path, const std::string& text) const {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void add(const std::string& reference, const std::string& revision) const {
    if (!reference.empty()) write(model() / "refs" / reference, revision);
    write(model() / "blobs/5f3a", "{}");
    fs::create_directories(model() / "snapshots" / revision);
    fs::create_symlink("../../blobs/5f3a", model() / "snapshots" / revision / "config.json");
  }
  fs::path model() const { return folder.path() / "models--Some-Org--A.model_1"; }
  std::string error(const fs::path& where) const {
    try {
      resolve_model_path(where);
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  }
  static constexpr const char* kRevision = "0123456789abcdef0123456789abcdef01234567";
  const TemporaryFolder folder;
};

TEST_F(HfCache, FindsTheSnapshotOfMain) {
  const fs::path found = resolve_model_path("Some-Org/A.model_1");
  EXPECT_EQ(found, model() / "snapshots" / kRevision);
  EXPECT_TRUE(fs::exists(found / "config.json")) << "a link to a blob";
}

TEST_F(HfCache, LooksWhereTheEnvironmentSays) {
  ::unsetenv("HF_HUB_CACHE");
  ::setenv("HF_HOME", "/h", 1);
  EXPECT_EQ(hf_cache_folder(), "/h/hub");
  ::setenv("HF_HOME", "~/x", 1);
  EXPECT_EQ(hf_cache_folder(), fs::path(std::getenv("HOME")) / "x/hub");
  ::unsetenv("HF_HOME");
  EXPECT_EQ(hf_cache_folder(), fs::path(std::getenv("HOME")) / ".cache/huggingface/hub");
}

TEST_F(HfCache, AFolderOfThatNameComesFirst) {
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  fs::create_directories("Some-Org/A.model_1");
  const fs::path found = resolve_model_path("Some-Org/A.model_1");
  fs::current_path(before);
  EXPECT_EQ(found, "Some-Org/A.model_1");
}

TEST_F(HfCache, AModelThatIsNotThereComesWithTheCommandThatDownloadsIt) {
  EXPECT_THAT(error("Other/model"),
              AllOf(HasSubstr("Other/model does not exist"), HasSubstr(folder.path().string()),
                    HasSubstr("try: hf download Other/model")));
  EXPECT_EQ(error("no/such/folder"), "no error") << "not a name";
  EXPECT_EQ(error("none"), "no error");
}

TEST_F(HfCache, ANameInAFolderThatIsThereIsAPath) {
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  fs::create_directories("runs");
  const std::string said = error("runs/missing");
  fs::create_directories("Some-Org");
  const fs::path found = resolve_model_path("Some-Org/A.model_1");
  fs::current_path(before);
  EXPECT_EQ(said, "no error") << "nothing to download";
  EXPECT_EQ(found, model() / "snapshots" / kRevision) << "the cache has it";
}

TEST_F(HfCache, AMissingFileComesWithTheCommandThatDownloadsIt) {
  EXPECT_EQ(download_or(resolve_model_path("Some-Org/A.model_1"), "x"),
            "hf download Some-Org/A.model_1");
  for (const fs::path& other : {folder.path(), model(), model() / "snapshots", fs::path("a/b"),
                                fs::path("models--a/snapshots/1"), fs::path()})
    EXPECT_EQ(download_or(other, "x"), "x") << other;
}

TEST_F(HfCache, AReferenceCannotLeaveTheCache) {
  write(folder.path() / "outside/config.json", "{}");
  for (const char* reference : {"../../outside", "/etc", "..", ".", "", "a/b", "gone"}) {
    write(model() / "refs/main", reference);
    EXPECT_THAT(error("Some-Org/A.model_1"), HasSubstr("does not name a folder")) << reference;
  }
  for (const char* name : {"../x", "x/..", "a/../b", "/a", "a/", "a--b/c", "-a/b", ".a/b", "a/b/c"})
    EXPECT_FALSE(is_hf_name(name)) << name;
}

TEST_F(HfCache, WithoutMainTheOnlySnapshotIsMeant) {
  fs::remove_all(model() / "refs");
  EXPECT_EQ(resolve_model_path("Some-Org/A.model_1"), model() / "snapshots" / kRevision);
  add("", "fedcba");
  EXPECT_THAT(error("Some-Org/A.model_1"), HasSubstr("2 snapshots"));
}

} // namespace
} // namespace pentatron

#include "pentatron/cli/files/torch_place.h"

#include <cstdlib>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "tests/support/files.h"

namespace pentatron::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// Sets a variable of the environment, or unsets it, until the end of a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }

 private:
  void set(const char* value) { value == nullptr ? ::unsetenv(name_) : ::setenv(name_, value, 1); }

  const char* name_;
  std::optional<std::string> before_;
};

/// A folder with a bundle for torch 2.11 and environments that have a torch or none.
class TorchPlace : public ::testing::Test {
 protected:
  void make_torch(const fs::path& torch, const std::string& version) {
    write(torch / "lib/libtorch_cpu.so", "");
    write(torch / "version.py", "__all__ = []\n__version__ = '" + version + "'\n");
  }
  void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::string failure(const fs::path& bin) {
    try {
      torch_to_load(bin);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TemporaryFolder dir_;
  fs::path root_ = dir_.path();
  fs::path bin_ = root_ / "bundle/bin";
  // No python3 of the machine answers.
  Variable path_{"PATH", "/nowhere"}, torch_root_{"TORCH_ROOT", nullptr},
      active_{"VIRTUAL_ENV", nullptr}, home_{"HOME", "/nowhere"},
      libraries_{"LD_LIBRARY_PATH", nullptr};
};

TEST_F(TorchPlace, ABuildKnowsItsOwn) {
  EXPECT_EQ(torch_to_load(bin_), std::nullopt);
}

TEST_F(TorchPlace, IsLookedForInOrder) {
  write(bin_ / "../share/pentatron/torch_version", "2.11\n");
  EXPECT_THAT(failure(bin_), HasSubstr("there is no torch in TORCH_ROOT"));
  EXPECT_THAT(failure(bin_), HasSubstr("try: pip install 'torch==2.11.*'"));

  make_torch(root_ / "python/lib/python3.13/dist-packages/torch", "2.11.0");
  write(root_ / "python/bin/python3", "");
  const std::string path = "/nowhere:" + (root_ / "python/bin").string();
  const Variable path_variable("PATH", path.c_str());
  EXPECT_EQ(torch_to_load(bin_), root_ / "python/lib/python3.13/dist-packages/torch");

  const fs::path in_environment = root_ / "venv/lib/python3.12/site-packages/torch";
  make_torch(in_environment, "2.11.0+cpu");
  const std::string environment = (root_ / "venv").string();
  const Variable active("VIRTUAL_ENV", environment.c_str());
  EXPECT_EQ(torch_to_load(bin_), in_environment);

  make_torch(root_ / "torch", "2.11.1");
  EXPECT_EQ(torch_to_load(bin_), root_ / "torch"); // as site-packages/torch of a wheel

  make_torch(root_ / "named", "2.11.0");
  const std::string named = (root_ / "named").string();
  const Variable variable("TORCH_ROOT", named.c_str());
  EXPECT_EQ(torch_to_load(bin_), root_ / "named");
}

TEST_F(TorchPlace, RefusesOtherVersionsAndFoldersWithoutTorch) {
  write(bin_ / "../share/pentatron/torch_version", "2.11\n");
  for (const std::string version : {"2.1.0", "2.12.0+cu130", "2.110.0"}) {
    make_torch(root_ / "torch", version);
    EXPECT_THAT(failure(bin_), HasSubstr("is " + version + ", but this command needs torch 2.11"));
  }
  const Variable variable("TORCH_ROOT", "/nowhere/torch");
  EXPECT_THAT(failure(bin_), HasSubstr("TORCH_ROOT=/nowhere/torch has no lib/libtorch_cpu.so"));
}

TEST_F(TorchPlace, LibrariesOfItsPackagesComeBeforeThoseOfTheUser) {
  make_torch(root_ / "torch", "2.11.0");
  fs::create_directories(root_ / "nvidia/nccl/lib");
  fs::create_directories(root_ / "nvidia/cu13/lib");
  fs::create_directories(root_ / "nvidia/headers");
  const std::string root = root_.string();
  const std::string own =
      root + "/torch/lib:" + root + "/nvidia/cu13/lib:" + root + "/nvidia/nccl/lib";
  EXPECT_EQ(library_path(root_ / "torch"), own);
  const Variable before("LD_LIBRARY_PATH", "/own");
  EXPECT_EQ(library_path(root_ / "torch"), own + ":/own");
}

TEST_F(TorchPlace, TheProgramForCudaNeedsAGpuAndATorchWithCuda) {
  const fs::path torch = root_ / "torch", cpu = bin_ / "pentatron-torch",
                 cuda = bin_ / "pentatron-torch-cuda";
  make_torch(torch, "2.11.0");
  EXPECT_EQ(torch_program(bin_, torch, true), cpu);
  write(cuda, "");
  EXPECT_EQ(torch_program(bin_, torch, true), cpu);
  EXPECT_EQ(torch_program(bin_, std::nullopt, true), cuda);
  write(torch / "lib/libtorch_cuda.so", "");
  EXPECT_EQ(torch_program(bin_, torch, true), cuda);
  EXPECT_EQ(torch_program(bin_, torch, false), cpu);
}

TEST_F(TorchPlace, TheProgramForCudaRefusesATorchForAnotherCuda) {
  const fs::path torch = root_ / "torch", cuda = bin_ / "pentatron-torch-cuda";
  write(cuda, "");
  write(bin_ / "../share/pentatron/cuda_version", "13\n");
  make_torch(torch, "2.11.0");
  write(torch / "lib/libtorch_cuda.so", "");
  EXPECT_EQ(torch_program(bin_, torch, true), cuda) << "it does not say";
  std::ofstream(torch / "version.py") << "cuda: Optional[str] = '13.1'\n";
  EXPECT_EQ(torch_program(bin_, torch, true), cuda);
  std::ofstream(torch / "version.py") << "cuda: Optional[str] = '12.8'\n";
  try {
    torch_program(bin_, torch, true);
    ADD_FAILURE() << "it was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("is made for CUDA 12.8, but this program needs one for CUDA 13"));
  }
  EXPECT_EQ(torch_program(bin_, torch, false), bin_ / "pentatron-torch");
}

} // namespace
} // namespace pentatron::cli

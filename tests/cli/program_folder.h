/// Tests that run the program through the shell in a folder of their own.
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/files.h"

namespace pentatron::test {

class ProgramFolder : public testing::Test {
 protected:
  /// The file of the program; a copy that starts sooner (tests/support/prepared).
  virtual std::string program() const { return PENTATRON_PREPARED_PROGRAM; }
  /// What the program writes to standard output (and error, with `2>&1` in `arguments`).
  std::string run(const std::string& arguments, int expected_status = 0,
                  const std::string& before = "") const {
    std::string command = "cd '";
    command += folder.string() + "' && " + before + "'" + program() + "' " + arguments;
    FILE* pipe = ::popen(command.c_str(), "r");
    std::string out;
    char buffer[4096];
    for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
    EXPECT_EQ(::pclose(pipe), expected_status << 8) << command << "\n" << out;
    return out;
  }

 private:
  const TemporaryFolder temporary_;

 protected:
  const std::filesystem::path folder = temporary_.path();
};

} // namespace pentatron::test

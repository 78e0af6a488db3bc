/// What is written to the console (base/log.h).
#pragma once

#include <cstdio>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "pentatron/base/log.h"

namespace pentatron::test {

/// What is written while it exists.
class LogCapture {
 public:
  explicit LogCapture(bool terminal) : file_(std::tmpfile()) { log::set_output(file_, terminal); }
  ~LogCapture() {
    log::set_output(stderr, false);
    std::fclose(file_);
  }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  std::string text() const {
    std::rewind(file_);
    std::string out(10000, '\0');
    out.resize(std::fread(out.data(), 1, out.size(), file_));
    return out;
  }

 private:
  std::FILE* file_;
};

/// What `work` writes to standard error.
inline std::string log_of(const std::function<void()>& work) {
  testing::internal::CaptureStderr();
  work();
  return testing::internal::GetCapturedStderr();
}

} // namespace pentatron::test

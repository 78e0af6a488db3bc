/// What is written to the console (base/log.h) while it exists.
#pragma once

#include <cstdio>
#include <string>

#include "pentatron/base/log.h"

namespace pentatron::test {

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

} // namespace pentatron::test

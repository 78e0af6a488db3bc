/// Progress of files that are read, for people and for ranks that wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "pentatron/base/progress.h"
#include "pentatron/data/input_files.h"

namespace pentatron::data {

class ReadingProgress {
 public:
  struct Options {
    /// Called again and again while reading goes on, also by several threads at once.
    std::function<void()> working = {};
    bool draw = true; ///< a progress line on a terminal
  };
  /// `label` as of base/progress.h.
  ReadingProgress(std::string label, std::span<const InputFile> files, Options options);

  /// Says that work went on, and how much more of the files, as they lie on the disk, is done. Any
  /// thread; the progress is shown where its messages go.
  void add(int64_t disk_bytes);

 private:
  Options options_;
  std::atomic<int64_t> done_{0};
  Progress line_;
};

} // namespace pentatron::data

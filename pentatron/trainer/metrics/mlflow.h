/// A run in MLflow's file store (mlruns), which `mlflow ui --backend-store-uri FOLDER` shows.
/// Nothing is sent, and MLflow is not needed.
/// Source: mlflow/store/tracking/file_store.py.
#pragma once

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "pentatron/trainer/metrics/tracked.h"

namespace pentatron::trainer {

/// STORE/EXPERIMENT/RUN/ with meta.yaml, params, tags, and a file for each metric to which lines
/// "milliseconds value step" are appended. A resumed run continues in its folder; values of later
/// steps are removed, and copies of the affected files are kept as artifacts in earlier-N. One
/// thread at a time; all functions throw DataError if a file cannot be written.
class MlflowWriter {
 public:
  /// Finds the experiment by its name, or makes it. `run.id` has at least 8 hexadecimal digits.
  MlflowWriter(const std::filesystem::path& store, const TrackedRun& run);

  void log(int64_t step, const TrackedValues& values);
  enum class End : int { kFinished = 3, kFailed = 4, kKilled = 5 };
  void finish(End end);

  const std::filesystem::path& path() const { return path_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void write_meta(int status, int64_t end_ms) const;
  std::FILE* metric(const std::string& name);

  std::filesystem::path path_;
  std::string experiment_, id_, name_;
  int64_t begin_ms_ = 0;
  std::map<std::string, std::unique_ptr<std::FILE, Close>> metrics_;
};

} // namespace pentatron::trainer

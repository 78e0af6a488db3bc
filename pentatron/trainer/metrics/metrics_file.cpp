#include "pentatron/trainer/metrics/metrics_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "pentatron/base/error.h"

namespace pentatron::trainer {

namespace {

/// The length of the part of the file to keep.
int64_t kept_bytes(const std::filesystem::path& path, int64_t resumed_iteration) {
  std::ifstream in(path, std::ios::binary);
  std::string line;
  int64_t kept = 0;
  while (resumed_iteration > 0 && std::getline(in, line) && !in.eof()) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("iteration") || !json["iteration"].is_number_integer())
      break;
    if (json["iteration"].get<int64_t>() > resumed_iteration) break;
    kept += static_cast<int64_t>(line.size()) + 1;
  }
  return kept;
}

} // namespace

std::string metrics_line(const TrainLog& log) {
  std::string line = fmt::format("{{\"iteration\":{}", log.iteration);
  const auto number = [&](const std::string& key, double value) {
    line += fmt::format(",{}:{}", nlohmann::json(key).dump(),
                        std::isfinite(value) ? exact_text(value) : "null");
  };
  const auto optional = [&](const char* key, const auto& value) {
    if (value) number(key, static_cast<double>(*value));
  };
  bool nan = false;
  if (log.losses.empty()) line += ",\"loss\":null"; // every line has the member
  for (size_t i = 0; i < log.losses.size(); ++i) {
    std::string key = i == 0 ? "loss" : log.losses[i].first;
    std::replace(key.begin(), key.end(), ' ', '_');
    number(key, log.losses[i].second);
    nan = nan || !std::isfinite(log.losses[i].second);
  }
  optional("grad_norm", log.grad_norm);
  number("learning_rate", log.learning_rate);
  line += fmt::format(",\"consumed_samples\":{},\"global_batch_size\":{}", log.consumed_samples,
                      log.global_batch_size);
  number("step_time_s", log.step_time_s);
  optional("tokens_per_s", log.tokens_per_s);
  optional("tflops", log.tflops);
  optional("mfu", log.mfu);
  optional("hfu", log.hfu);
  if (log.memory_bytes) line += fmt::format(",\"memory_bytes\":{}", *log.memory_bytes);
  optional("loss_scale", log.loss_scale);
  if (log.num_zeros) line += fmt::format(",\"num_zeros\":{}", *log.num_zeros);
  optional("params_norm", log.params_norm);
  optional("data_wait", log.data_wait);
  std::string saves;
  for (const SaveLog& save : log.saves)
    saves += fmt::format(R"({}{{"iteration":{},"state":"{}","seconds":{},"bytes":{}}})",
                         saves.empty() ? "" : ",", save.iteration, save.state,
                         exact_text(save.seconds), save.bytes);
  if (!saves.empty()) line += fmt::format(",\"checkpoints\":[{}]", saves);
  line += fmt::format(",\"skipped\":{},\"nan\":{}}}", log.skipped_iterations > 0,
                      nan || log.nan_iterations > 0);
  return line;
}

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t resumed_iteration)
    : path_(path) {
  const int64_t kept = kept_bytes(path, resumed_iteration);
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0 || ::ftruncate(fd_, kept) != 0) {
    const int reason = errno;
    if (fd_ >= 0) ::close(fd_);
    raise<DataError>("{} cannot be written: {}", path.string(), std::strerror(reason));
  }
}

MetricsFile::~MetricsFile() {
  ::close(fd_);
}

void MetricsFile::write(const TrainLog& log) {
  const std::string line = metrics_line(log) + "\n";
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(fd_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) raise<DataError>("{} cannot be written: {}", path_.string(), std::strerror(errno));
    done += static_cast<size_t>(n);
  }
}

} // namespace pentatron::trainer

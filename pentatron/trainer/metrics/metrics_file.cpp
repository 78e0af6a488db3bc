#include "pentatron/trainer/metrics/metrics_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include <nlohmann/json.hpp>

#include "pentatron/base/error.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/plot/metrics_text.h"

namespace pentatron::trainer {

namespace {

/// Lines that wait for a disk that can be written again: some 50,000 steps.
constexpr size_t kMaxWaiting = size_t{16} << 20;

/// The length of the part of the file to keep; of a file that cannot be read all.
int64_t kept_bytes(const std::filesystem::path& path, int64_t resumed_iteration) {
  if (resumed_iteration == 0) return 0;
  try {
    const MappedFile file(path);
    return static_cast<int64_t>(plot::parse_metrics(file.text(), resumed_iteration).bytes);
  } catch (const DataError&) {
    std::error_code error;
    const auto size = std::filesystem::file_size(path, error);
    return error ? 0 : static_cast<int64_t>(size);
  }
}

} // namespace

std::string metrics_line(const TrainLog& log) {
  std::string line = fmt::format("{{\"iteration\":{}", log.iteration);
  const auto number = [&](const std::string& key, double value) {
    line += fmt::format(",{}:{}", nlohmann::json(key).dump(), json_text(value));
  };
  const auto optional = [&](const char* key, const auto& value) {
    if (value) number(key, static_cast<double>(*value));
  };
  bool nan = false;
  if (log.losses.empty() || !log.losses[0].second)
    line += ",\"loss\":null"; // every line has the member
  for (size_t i = 0; i < log.losses.size(); ++i) {
    if (!log.losses[i].second) continue;
    std::string key = i == 0 ? "loss" : log.losses[i].first;
    std::replace(key.begin(), key.end(), ' ', '_');
    number(key, *log.losses[i].second);
    nan = nan || !std::isfinite(*log.losses[i].second);
  }
  optional("grad_norm", log.grad_norm);
  optional("max_attention_logit", log.logits.most);
  optional("clipped_heads", log.logits.clipped_heads);
  number("learning_rate", log.learning_rate);
  line += fmt::format(",\"consumed_samples\":{},\"global_batch_size\":{}", log.consumed_samples,
                      log.global_batch_size);
  if (log.consumed_tokens > 0) line += fmt::format(",\"consumed_tokens\":{}", log.consumed_tokens);
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
  std::string experts;
  for (const LayerLoad& load : log.experts)
    experts += fmt::format(
        R"({}{{"layer":{},"max_load":{},"entropy":{},"unused":{},"dropped":{},"histogram":[{}]}})",
        experts.empty() ? "" : ",", nlohmann::json(load.layer).dump(), exact_text(load.largest),
        exact_text(load.entropy), load.unused, exact_text(load.dropped),
        fmt::join(load.histogram, ","));
  if (!experts.empty()) line += fmt::format(",\"experts\":[{}]", experts);
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

std::string evaluation_line(int64_t iteration, std::optional<double> loss, const Scores& figures,
                            int64_t consumed_samples, int64_t consumed_tokens) {
  std::string line = fmt::format("{{\"iteration\":{},\"validation_loss\":{}", iteration,
                                 loss ? json_text(*loss) : "null");
  for (const auto& [name, value] : figures)
    line += fmt::format(",\"validation_{}\":{}", name, json_text(value));
  return line + fmt::format(",\"consumed_samples\":{},\"consumed_tokens\":{}}}", consumed_samples,
                            consumed_tokens);
}

std::string task_line(int64_t iteration, const Scores& figures, int64_t consumed_samples,
                      int64_t consumed_tokens) {
  std::string line = fmt::format("{{\"iteration\":{}", iteration);
  for (const auto& [name, value] : figures)
    line += fmt::format(",\"{}\":{}", name, json_text(value));
  return line + fmt::format(",\"consumed_samples\":{},\"consumed_tokens\":{}}}", consumed_samples,
                            consumed_tokens);
}

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t resumed_iteration)
    : path_(path) {
  size_ = kept_bytes(path, resumed_iteration);
}

MetricsFile::~MetricsFile() {
  if (fd_ >= 0) ::close(fd_);
}

void MetricsFile::write(const std::string& line) {
  if (waiting_.size() + line.size() + 1 <= kMaxWaiting)
    waiting_ += line + "\n";
  else
    ++lost_;
  flush();
}

void MetricsFile::flush() {
  const auto fail = [this](int reason) {
    raise<DataError>("{} cannot be written: {}", path_.string(), std::strerror(reason));
  };
  if (fd_ < 0) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd_ < 0) fail(errno);
    if (::ftruncate(fd_, size_) != 0) {
      const int reason = errno;
      ::close(std::exchange(fd_, -1));
      fail(reason);
    }
  }
  for (size_t done = 0; done < waiting_.size();) {
    const ssize_t n = ::write(fd_, waiting_.data() + done, waiting_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int reason = n < 0 ? errno : ENOSPC;
      if (::ftruncate(fd_, size_) != 0) ::close(std::exchange(fd_, -1)); // and again when opened
      fail(reason);
    }
    done += static_cast<size_t>(n);
  }
  size_ += static_cast<int64_t>(waiting_.size());
  waiting_.clear();
}

} // namespace pentatron::trainer

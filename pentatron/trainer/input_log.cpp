#include "pentatron/trainer/input_log.h"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/trainer/model_tokenizer.h"
#include "pentatron/trainer/run_files.h"

namespace pentatron::trainer {

namespace fs = std::filesystem;

void write_skipped(const Config& config, const data::InputReport& report) {
  if (config.logger.dir.empty()) return;
  const fs::path file = fs::path(config.logger.dir) / kSkippedFile;
  if (report.skips().empty()) {
    std::error_code ignored;
    fs::remove(file, ignored);
    return;
  }
  try {
    fs::create_directories(file.parent_path());
    AtomicFile out(file);
    for (const data::SkippedInput& input : report.skips()) out.write(input.to_json() + "\n");
    out.commit();
    const auto listed = static_cast<int64_t>(report.skips().size());
    if (listed == report.total_skipped())
      log::info("all skipped input is listed in {}", file.string());
    else
      log::info("the first {} of {} skipped inputs are listed in {}", listed,
                report.total_skipped(), file.string());
  } catch (const std::exception& error) { // logging never ends a run
    log::warning("the list of skipped input was not written: {}", error.what());
  }
}

std::string describe_parts(const data::Datasets& datasets, int64_t train_samples) {
  std::string text;
  const auto line = [&](const char* name, const data::PartSize& size, const std::string& more) {
    if (size.tokens == 0 && size.documents == 0) return;
    text += fmt::format("\n  {:<11} {}, {}{}", name, counted(size.documents, "document"),
                        counted(size.tokens, "token"), more);
  };
  std::string epochs;
  const int64_t epoch = datasets.train ? datasets.train->samples_per_epoch() : 0;
  if (epoch > 0 && train_samples > 0)
    epochs = fmt::format(", {:.2f} epochs in this run",
                         static_cast<double>(train_samples) / static_cast<double>(epoch));
  line("training", datasets.train_size, epochs);
  line("validation", datasets.validation_size, "");
  line("test", datasets.test_size, "");
  return text;
}

void log_input(const Config& config, const data::Datasets& datasets,
               const data::Tokenizer& tokenizer, int64_t train_samples) {
  if (data::reads_text(config.dataset.type)) log::info("{}", describe_tokenizer(config, tokenizer));
  if (!datasets.summary.empty())
    log::info("data: {}{}", datasets.summary, describe_parts(datasets, train_samples));
}

} // namespace pentatron::trainer

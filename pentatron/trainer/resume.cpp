#include "pentatron/trainer/resume.h"

#include <algorithm>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/sharded/attachments.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/data/data_files.h"
#include "pentatron/trainer/differences.h"

namespace pentatron::trainer {

namespace {

/// Leaves the files that `others` has too.
void keep_common(std::vector<data::DataFile>& files, const std::vector<data::DataFile>& others) {
  std::erase_if(files, [&](const data::DataFile& file) {
    return std::ranges::none_of(others, [&](const auto& o) { return o.path == file.path; });
  });
}

/// Empty if no file has changed. Other settings name other files, so then only those that both runs
/// read are compared.
std::string changed_files(const std::string& folder, const std::string& data_files,
                          bool other_settings) {
  const checkpoint::Attachments attachments = checkpoint::read_manifest(folder).attachments;
  const auto stored = attachments.find(data::kDataFilesName);
  if (stored == attachments.end()) return ""; // not saved by a Trainer
  std::vector<data::DataFile> before = data::data_files_from_json(
      checkpoint::read_attachment(folder, data::kDataFilesName, stored->second));
  std::vector<data::DataFile> now = data::data_files_from_json(data_files);
  if (other_settings) {
    keep_common(before, now);
    keep_common(now, before);
  }
  return data::describe_changes(before, now);
}

} // namespace

void check_digest(const CheckpointConfig& config, const std::string& folder,
                  const std::string& saved, const std::string& own) {
  if (!config.check_tokenizer || saved.empty() || saved == own) return;
  raise<ConfigError>(
      "{} was trained with a different tokenizer ({} instead of {})\n  try: the tokenizer of the "
      "checkpoint, or checkpoint.check_tokenizer=false if the token ids are equal",
      folder, saved, own);
}

std::vector<std::string> data_changes(const Config& saved, const Config& config,
                                      const std::string& folder, const std::string& data_files) {
  std::vector<std::string> all;
  const std::string settings = differences(saved, config, {config::OnResume::kData});
  if (!settings.empty())
    all.push_back(
        fmt::format("data settings have changed since {} was saved; it used {}", folder, settings));
  try {
    const std::string files = changed_files(folder, data_files, !settings.empty());
    if (!files.empty())
      all.push_back(
          fmt::format("the training data has changed since {} was saved: {}", folder, files));
  } catch (const Error& error) {
    all.push_back(
        fmt::format("cannot check whether the training data has changed: {}", error.what()));
  }
  return all;
}

} // namespace pentatron::trainer

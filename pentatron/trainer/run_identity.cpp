#include "pentatron/trainer/run_identity.h"

#include <filesystem>

#include "pentatron/base/error.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/paths.h"
#include "pentatron/base/sha256.h"
#include "pentatron/checkpoint/sharded/attachments.h"
#include "pentatron/checkpoint/sharded/manifest.h"

namespace pentatron::trainer {

namespace fs = std::filesystem;

std::string name_of_run(const LoggerConfig& logger) {
  if (!logger.run_name.empty()) return logger.run_name;
  std::error_code error;
  const fs::path dir = fs::absolute(logger.dir, error).lexically_normal();
  return (dir.has_filename() ? dir : dir.parent_path()).filename().string();
}

std::string hash_of_config(const Config& config, const std::string& started_from) {
  const std::string hash = config::hash(config, {config::OnResume::kIgnored});
  return started_from.empty() ? hash : sha256(hash + "\n" + started_from).substr(0, hash.size());
}

TrackedRun tracked_run(const Config& config, const std::string& id, std::string group,
                       int64_t resumed) {
  TrackedRun run{.id = id,
                 .name = name_of_run(config.logger),
                 .group = std::move(group),
                 .resumed_iteration = resumed};
  for (const config::FieldInfo& field : config::list_fields<Config>())
    run.config.emplace_back(field.path, tracked_value(config::get(config, field.path)));
  return run;
}

std::string started_from(const std::filesystem::path& folder) {
  const checkpoint::Attachments attachments = checkpoint::read_manifest(folder).attachments;
  const auto found = attachments.find(kStartedFrom);
  return found == attachments.end()
             ? ""
             : checkpoint::read_attachment(folder, kStartedFrom, found->second);
}

std::optional<std::string> started_from_another(const fs::path& folder, const std::string& model) {
  const fs::path given = resolve_model_path(model);
  std::error_code error;
  if (!fs::exists(given, error))
    raise<CheckpointError>("{} does not exist\n  try: {}", model,
                           download_or(model, "the folder or file of the model"));
  const std::string told = started_from(folder);
  std::string from = after_hf_prefix(told).value_or(told);
  fs::path origin = from;
  if (!fs::exists(origin, error) && is_hf_name(from))
    origin = find_in_hf_cache(from).value_or(origin);
  if (from.empty()) return from;
  if (!fs::exists(origin, error) || contains_path(given, origin)) return std::nullopt;
  return from;
}

} // namespace pentatron::trainer

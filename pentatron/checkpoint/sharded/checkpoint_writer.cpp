#include "pentatron/checkpoint/sharded/checkpoint_writer.h"

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/checkpoint/sharded/parity.h"
#include "pentatron/checkpoint/sharded/spares.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

fs::path cleaned_target(const fs::path& dir, int64_t iteration, const DirectoryLock& lock,
                        const std::function<void()>& progress) {
  remove_abandoned(dir, lock, progress);
  return dir / step_name(iteration);
}

} // namespace

CheckpointWriter::CheckpointWriter(const fs::path& dir, int64_t iteration,
                                   const std::function<void()>& progress)
    : dir_(dir), iteration_(iteration), lock_(dir),
      folder_(cleaned_target(dir, iteration, lock_, progress), progress) {}

fs::path CheckpointWriter::commit(std::span<const std::string> descriptions,
                                  const CheckpointInfo& info) {
  Manifest manifest{.iteration = iteration_,
                    .state = info.state,
                    .config_yaml = info.config_yaml,
                    .tokenizer = info.tokenizer};
  for (const std::string& text : descriptions)
    add_file(manifest, parse_file_description(text, "a rank's description of its file"));
  check_manifest(manifest, step_name(iteration_)); // before anything more is written
  for (const auto& [name, file] : manifest.files) {
    if (!info.files_here.empty() && !info.files_here.contains(name)) continue;
    std::error_code error;
    const auto size = fs::file_size(path() / name, error);
    if (error || size != file.bytes)
      raise<CheckpointError>("{} has {} bytes, but its rank wrote {}", (path() / name).string(),
                             error ? 0 : size, file.bytes);
  }
  if (info.parity_parts.empty())
    write_parity(path(), manifest, info.parity);
  else
    add_parity(path(), manifest, info.parity, info.parity_parts);
  manifest.attachments = write_attachments(path(), info.attachments);
  const std::string text = to_text(manifest);
  write_spares(path(), text, info.attachments, info.parity);
  write_file_atomically(path() / kManifestName, text);
  folder_.commit(Existing::kReplace);
  write_file_atomically(dir_ / kLatestName, step_name(iteration_) + "\n");
  return dir_ / step_name(iteration_);
}

} // namespace pentatron::checkpoint

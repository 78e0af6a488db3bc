#include "pentatron/trainer/described_run.h"

#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/sharded/folders.h"

namespace pentatron::trainer {

namespace fs = std::filesystem;

namespace {

using Found = std::pair<fs::path, checkpoint::Manifest>;

std::optional<Found> newest_manifest(const fs::path& dir) {
  const auto latest = checkpoint::latest_name(dir);
  const fs::path folder = latest ? dir / *latest : dir;
  try {
    return Found{folder, checkpoint::read_manifest(folder)};
  } catch (const Error&) { // a search takes longer
  }
  try {
    const auto found =
        checkpoint::newest_checkpoint(dir, checkpoint::VerifyScope::kWeightsStructure);
    if (found) return Found{found->folder, checkpoint::read_manifest(found->folder)};
  } catch (const Error&) {
  }
  return std::nullopt;
}

} // namespace

std::optional<DescribedRun> described_run(const CheckpointConfig& checkpoint) {
  if (checkpoint.load.empty() || foreign_model(checkpoint)) return std::nullopt;
  std::optional<Found> found =
      newest_manifest(loads_own(checkpoint) ? checkpoint.save : checkpoint.load);
  if (!found) return std::nullopt;
  DescribedRun run{
      .folder = found->first, .manifest = std::move(found->second), .config = {}, .trained = false};
  run.trained = run.manifest.state.contains("optimizer_steps");
  run.config = stored_config(run.manifest.config_yaml);
  return run;
}

Config stored_config(std::string_view yaml) {
  Config config;
  config::Violations of_another_version;
  config::apply_yaml(config, std::string(yaml), "", of_another_version);
  return config;
}

Config described_config(const checkpoint::ModelFacts& facts) {
  return facts.saved_config.empty() ? Config() : stored_config(facts.saved_config);
}

} // namespace pentatron::trainer

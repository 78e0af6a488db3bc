#include "pentatron/checkpoint/read_model.h"

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/checkpoint/run_checkpoint.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/comm/gather_text.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

/// What the first rank finds out, for all ranks; its errors too.
std::string on_first_rank(const comm::Group& world, const std::function<std::string()>& find) {
  std::string found, fault;
  if (world.rank() == 0) {
    try {
      found = find();
    } catch (const CheckpointError& error) {
      fault = error.what();
    }
  }
  fault = comm::broadcast_text(fault, 0, world);
  if (!fault.empty()) throw CheckpointError(fault);
  return comm::broadcast_text(found, 0, world);
}

} // namespace

void read_model(const std::string& where, const fs::path& opened, const comm::Group& world,
                const std::function<void(ModelSource&)>& read, ModelPurpose purpose) {
  KnownDamage damaged;
  const std::optional<std::string> average = after_average_prefix(where);
  const fs::path given = average.value_or(where);
  // A run may have saved another checkpoint while the ranks looked for one.
  fs::path folder =
      world.size() > 1 ? comm::broadcast_text(opened.string(), 0, world) : opened.string();
  while (true) {
    const auto source = open_model(average ? averaged(folder.string()) : folder.string(), purpose);
    if (source->format() != ModelFormat::kPentatron || folder == given) return read(*source);
    std::string why;
    try {
      return read_together(world, [&] { read(*source); });
    } catch (const DamagedCheckpoint& error) {
      why = error.what();
    }
    // An error in what was done with the weights is not damage.
    damaged[folder] = on_first_rank(world, [&]() -> std::string {
      const VerifyReport report = verify(folder, VerifyScope::kWeights);
      return report.ok() ? "" : report.faults[0];
    });
    if (damaged[folder].empty()) throw CheckpointError(why);
    const fs::path next = on_first_rank(world, [&] {
      const auto found =
          newest_checkpoint(given, {.scope = VerifyScope::kWeightsStructure, .damaged = damaged});
      return found ? found->folder.string() : "";
    });
    if (next.empty()) throw CheckpointError(why);
    if (world.rank() == 0)
      log::warning("{}: {}; using {} instead", folder.filename().string(), damaged[folder],
                   next.string());
    folder = next;
  }
}

} // namespace pentatron::checkpoint

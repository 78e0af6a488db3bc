/// Copies of a checkpoint's small files, the manifest and the attachments: as many as it has parity
/// files of a group, each in a separate folder ("spare_00") under the same names. Small files are
/// so lost only if all copies are, and can be put back by hand too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/checkpoint/sharded/manifest.h"

namespace pentatron::checkpoint {

/// Whether the name is that of a folder of copies, or of something in one.
bool is_spare_name(std::string_view name);

/// Durable but for the entry of `folder` itself. Throws Error.
void write_spares(const std::filesystem::path& folder, const std::string& manifest,
                  const std::map<std::string, std::string>& attachments, int64_t count);

/// Returns the copies in the folder that do not match the manifest: the name of each
/// ("spare_00/manifest.json") and the reason. A missing spare folder is not an error, because older
/// checkpoints have none.
std::map<std::string, std::string> damaged_spares(const std::filesystem::path& folder,
                                                  const Manifest& manifest);

/// Whether a copy of the manifest can be read.
bool has_spare_manifest(const std::filesystem::path& folder);

/// Whether a copy of the attachment is intact.
bool has_spare(const std::filesystem::path& folder, const Manifest& manifest,
               const std::string& attachment);

/// Puts small files that are not as written back from copies, then copies from them. Adds the names
/// of what was written to `repaired`, and of attachments that no copy has to `lost`, with the
/// reason. Returns the manifest; throws CheckpointError if no copy of it can be read.
Manifest repair_small_files(const std::filesystem::path& folder, std::vector<std::string>& repaired,
                            std::vector<std::string>& lost);

} // namespace pentatron::checkpoint

/// Small files inside a checkpoint's folder which are not tensors: a tokenizer's files,
/// config.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace pentatron::checkpoint {

inline constexpr uint64_t kMaxAttachmentBytes = uint64_t{64} << 20; ///< of all of a checkpoint
inline constexpr size_t kMaxAttachments = 256;

/// Entry of an attachment in the manifest.
struct Attachment {
  uint64_t bytes = 0;
  uint32_t crc = 0; ///< CRC-32C of all of it
  bool operator==(const Attachment&) const = default;
};
/// By name.
using Attachments = std::map<std::string, Attachment, std::less<>>;

/// Whether the name is one in the checkpoint's folder or in a folder of it ("hf/config.json"): of
/// letters, digits and ._-+, none of the parts beginning with a dot, and not that of a manifest, a
/// shard, a parity file or a folder of copies.
bool is_attachment_name(std::string_view name);

/// Names the kernels that a run used.
inline constexpr const char* kKernelsName = "kernels.json";
/// Whether a checkpoint serves without the attachment, damaged or lost: whoever wants it says what
/// it does instead.
inline bool is_optional(std::string_view name) {
  return name == kKernelsName;
}

/// The bytes of a file of limited size; CheckpointError if it cannot be read or is larger.
std::string read_small_file(const std::filesystem::path& file, size_t max_bytes);

/// Unless it is there. Throws CheckpointError.
void make_folder(const std::filesystem::path& folder);

/// Writes the files into `folder`, durably but for the folder itself. Throws CheckpointError for
/// impossible names and above the limits.
Attachments write_attachments(const std::filesystem::path& folder,
                              const std::map<std::string, std::string>& contents);

/// The bytes. Throws CheckpointError, naming the file, if they are not as written.
std::string read_attachment(const std::filesystem::path& folder, std::string_view name,
                            const Attachment& attachment);

} // namespace pentatron::checkpoint

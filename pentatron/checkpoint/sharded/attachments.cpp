#include "pentatron/checkpoint/sharded/attachments.h"

#include <algorithm>
#include <span>

#include <sys/stat.h>

#include <fmt/format.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/crc32c.h"
#include "pentatron/base/error.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/sharded/shard_file.h"
#include "pentatron/checkpoint/sharded/spares.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxPart = 128;

bool is_plain_part(std::string_view part) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-' || c == '+';
  };
  return !part.empty() && part.size() <= kMaxPart && part.front() != '.' &&
         std::ranges::all_of(part, is_plain);
}

uint32_t checksum(std::string_view text) {
  return crc32c(std::as_bytes(std::span(text)));
}

} // namespace

bool is_attachment_name(std::string_view name) {
  const std::vector<std::string_view> parts = split(name, '/');
  if (parts.size() > 2 || !std::ranges::all_of(parts, is_plain_part)) return false;
  // ".tmp-": what AtomicFile calls a file on its way.
  return name.find(".tmp-") == std::string_view::npos && name != "manifest.json" &&
         !is_spare_name(name) &&
         (parts.size() == 2 || (!name.ends_with(".safetensors") && !name.ends_with(".parity")));
}

std::string read_small_file(const fs::path& path, size_t max_bytes) {
  try {
    const MappedFile file(path);
    if (file.size() > max_bytes)
      raise<CheckpointError>("{} has {} bytes, more than the limit of {}", path.string(),
                             file.size(), max_bytes);
    std::string text(file.text());
    file.check_size();
    return text;
  } catch (const CannotOpen& error) {
    throw UnreadableFile(error.what());
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
}

void make_folder(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST)
    raise<CheckpointError>("cannot create {}: {}", folder.string(),
                           std::generic_category().message(errno));
}

Attachments write_attachments(const fs::path& folder,
                              const std::map<std::string, std::string>& contents) {
  Attachments written;
  uint64_t bytes = 0;
  for (const auto& [name, text] : contents) {
    if (!is_attachment_name(name))
      raise<CheckpointError>("'{}' is not a valid name for a file in a checkpoint", excerpt(name));
    bytes += text.size();
    if (bytes > kMaxAttachmentBytes || written.size() >= kMaxAttachments)
      raise<CheckpointError>("{} does not fit into the checkpoint: at most {} files with {} bytes "
                             "in total are allowed",
                             excerpt(name), kMaxAttachments, kMaxAttachmentBytes);
    const fs::path path = folder / name;
    make_folder(path.parent_path());
    write_file_atomically(path, text);
    written.emplace(name, Attachment{.bytes = text.size(), .crc = checksum(text)});
  }
  return written;
}

std::string read_attachment(const fs::path& folder, std::string_view name,
                            const Attachment& attachment) {
  const fs::path path = folder / name;
  std::string text = read_small_file(path, kMaxAttachmentBytes);
  if (text.size() != attachment.bytes)
    raise<CheckpointError>("{} is corrupted: it has {} bytes instead of {}", path.string(),
                           text.size(), attachment.bytes);
  if (checksum(text) != attachment.crc)
    raise<CheckpointError>("{} is corrupted: its checksum does not match", path.string());
  return text;
}

} // namespace pentatron::checkpoint

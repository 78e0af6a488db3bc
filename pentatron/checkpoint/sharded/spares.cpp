#include "pentatron/checkpoint/sharded/spares.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "spare_";

std::string spare_name(size_t n) {
  return fmt::format("{}{:02}", kPrefix, n);
}

/// The folders of copies that are there.
std::vector<std::string> spares_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (size_t n = 0; n < kMaxParity; ++n)
    if (fs::is_directory(folder / spare_name(n), error)) names.push_back(spare_name(n));
  return names;
}

/// How many there are to be, unless there are none at all.
size_t copies_of(const Manifest& manifest) {
  size_t rows = 0;
  for (const auto& [name, parity] : manifest.parity) rows = std::max(rows, parity.row + 1);
  return rows;
}

/// The manifest's text, if it is a good one.
std::optional<std::string> good_manifest(const fs::path& folder) {
  try {
    std::string text = read_manifest_text(folder);
    parse_manifest(text, (folder / kManifestName).string());
    return text;
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

/// Why the file is not as written; empty if it is.
std::string fault_of(const fs::path& folder, const std::string& name,
                     const Attachment& attachment) {
  try {
    read_attachment(folder, name, attachment);
    return {};
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

} // namespace

bool is_spare_name(std::string_view name) {
  return name.starts_with(kPrefix);
}

void write_spares(const fs::path& folder, const std::string& manifest,
                  const std::map<std::string, std::string>& attachments, int64_t count) {
  for (size_t n = 0; n < static_cast<size_t>(count); ++n) {
    const fs::path spare = folder / spare_name(n);
    make_folder(spare);
    write_attachments(spare, attachments);
    write_file_atomically(spare / kManifestName, manifest);
  }
}

std::map<std::string, std::string> damaged_spares(const fs::path& folder,
                                                  const Manifest& manifest) {
  std::map<std::string, std::string> damaged;
  if (spares_in(folder).empty()) return damaged;
  const std::string text = read_manifest_text(folder);
  for (size_t n = 0; n < copies_of(manifest); ++n) {
    const std::string spare = spare_name(n);
    if (good_manifest(folder / spare) != text) {
      const std::string name = fmt::format("{}/{}", spare, kManifestName);
      damaged[name] = fmt::format("{} is corrupted: it is not a copy of the manifest",
                                  (folder / name).string());
    }
    for (const auto& [name, attachment] : manifest.attachments)
      if (std::string why = fault_of(folder / spare, name, attachment); !why.empty())
        damaged[fmt::format("{}/{}", spare, name)] = std::move(why);
  }
  return damaged;
}

bool has_spare_manifest(const fs::path& folder) {
  const std::vector<std::string> spares = spares_in(folder);
  return std::ranges::any_of(
      spares, [&](const std::string& spare) { return good_manifest(folder / spare).has_value(); });
}

bool has_spare(const fs::path& folder, const Manifest& manifest, const std::string& attachment) {
  const auto found = manifest.attachments.find(attachment);
  return found != manifest.attachments.end() &&
         std::ranges::any_of(spares_in(folder), [&](const std::string& spare) {
           return fault_of(folder / spare, attachment, found->second).empty();
         });
}

Manifest repair_small_files(const fs::path& folder, std::vector<std::string>& repaired,
                            std::vector<std::string>& lost) {
  const std::vector<std::string> spares = spares_in(folder);
  const auto restore = [&](const std::string& name, const std::string& text) {
    if (is_spare_name(name)) make_folder(folder / name.substr(0, name.find('/')));
    make_folder((folder / name).parent_path());
    write_file_atomically(folder / name, text);
    repaired.push_back(name);
  };
  if (!good_manifest(folder)) {
    for (const std::string& spare : spares) {
      if (const auto text = good_manifest(folder / spare)) {
        restore(kManifestName, *text);
        break;
      }
    }
  }
  Manifest manifest = read_manifest(folder);
  bool complete = true;
  for (const auto& entry : manifest.attachments) {
    const std::string& name = entry.first;
    const auto& attachment = entry.second;
    const std::string why = fault_of(folder, name, attachment);
    if (why.empty()) continue;
    const auto good = std::ranges::find_if(spares, [&](const std::string& spare) {
      return fault_of(folder / spare, name, attachment).empty();
    });
    if (good == spares.end()) {
      lost.push_back(fmt::format("{}, and no copy of it is intact", why));
      complete = complete && is_optional(name);
    } else {
      restore(name, read_attachment(folder / *good, name, attachment));
    }
  }
  if (!complete) return manifest;
  for (const auto& [copy, why] : damaged_spares(folder, manifest)) {
    const std::string name = copy.substr(copy.find('/') + 1);
    const auto attachment = manifest.attachments.find(name);
    if (attachment != manifest.attachments.end() &&
        !fault_of(folder, name, attachment->second).empty())
      continue; // lost, above
    restore(copy, name == kManifestName ? read_manifest_text(folder)
                                        : read_attachment(folder, name, attachment->second));
  }
  return manifest;
}

} // namespace pentatron::checkpoint

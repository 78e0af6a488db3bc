#include "pentatron/checkpoint/sharded/verify.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "pentatron/base/crc32c.h"
#include "pentatron/base/error.h"
#include "pentatron/base/io_thread.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/sharded/shard_file.h"
#include "pentatron/checkpoint/sharded/spares.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr size_t kThreads = 2;
constexpr uint64_t kJobBytes = uint64_t{64} << 20;
constexpr size_t kReadBlock = size_t{1} << 20;
constexpr size_t kMaxFaults = 1000;

/// Faults in the order of files and chunks, whatever the order in which threads find them. Beyond a
/// limit only the first of each file is kept.
class Faults {
 public:
  void add(const std::string& file, size_t chunk, std::string text) {
    const std::lock_guard lock(mutex_);
    const auto [first, is_new] = first_.try_emplace(file, chunk, text);
    if (!is_new) first->second = std::min(first->second, std::pair(chunk, text));
    if (faults_.size() < kMaxFaults) faults_.emplace(file, chunk, std::move(text));
  }
  std::vector<std::string> list() const {
    std::vector<std::string> texts;
    for (const auto& [file, chunk, text] : faults_) texts.push_back(text);
    return texts;
  }
  std::map<std::string, std::string> first_by_file() const {
    std::map<std::string, std::string> first;
    for (const auto& [file, fault] : first_) first.emplace(file, fault.second);
    return first;
  }

 private:
  std::mutex mutex_;
  std::set<std::tuple<std::string, size_t, std::string>> faults_;
  std::map<std::string, std::pair<size_t, std::string>> first_; ///< of each file
};

void check_chunks(const fs::path& folder, const std::string& name, const FileInfo& info,
                  size_t first, size_t last, Faults& faults,
                  const std::function<void(uint64_t)>& progress) {
  const ShardFile file(folder / name, info);
  std::vector<std::byte> buffer(static_cast<size_t>(std::min<uint64_t>(info.bytes, kReadBlock)));
  for (size_t chunk = first; chunk < last; ++chunk) {
    const uint64_t end = std::min(info.bytes, (chunk + 1) * info.chunk_bytes);
    uint32_t crc = 0;
    for (uint64_t at = chunk * info.chunk_bytes; at < end;) {
      const auto part =
          std::span(buffer).first(static_cast<size_t>(std::min<uint64_t>(end - at, buffer.size())));
      file.read(at, part);
      crc = crc32c(part, crc);
      at += part.size();
      if (progress) progress(part.size());
    }
    if (crc != info.crcs[chunk]) faults.add(name, chunk, damaged_chunk(name, info, chunk));
  }
}

/// Others read the file by its header, so the header must say what the manifest says.
void check_header(const fs::path& folder, const std::string& name, const Manifest& manifest) {
  const FileInfo& info = manifest.files.find(name)->second;
  const SafetensorsFile file(folder / name);
  if (file.tensors().size() != info.entries.size())
    raise<CheckpointError>("the header of {} lists {} tensors, but the manifest lists {}", name,
                           file.tensors().size(), info.entries.size());
  for (const auto& [tensor, entry] : info.entries) {
    const SafeTensor* const listed = file.find(tensor);
    const std::vector<int64_t> shape =
        entry.boxes.size() == 1 ? entry.boxes[0].size : std::vector{entry.numel()};
    if (listed == nullptr || listed->dtype != manifest.tensors.find(tensor)->second.dtype ||
        listed->shape != shape ||
        static_cast<uint64_t>(listed->data.data() - file.file().bytes().data()) != entry.begin)
      raise<CheckpointError>("the header of {} and the manifest disagree about {}", name,
                             excerpt(tensor, 200));
  }
}

/// Files that somebody could take for the checkpoint's: shards, and what lies among attachments.
void find_unlisted(const fs::path& folder, const Manifest& manifest, Faults& faults) {
  std::error_code error;
  const auto look = [&](const std::string& below, const auto& is_foreign) {
    for (fs::directory_iterator it(folder / below, error), end; !error && it != end;
         it.increment(error)) {
      const std::string name = below + it->path().filename().string();
      if (is_foreign(name))
        faults.add(name, 0, fmt::format("{} is not listed in the manifest", excerpt(name)));
    }
  };
  look("", [&](const std::string& name) {
    return (name.ends_with(".safetensors") || name.ends_with(kParitySuffix)) &&
           !manifest.files.contains(name) && !manifest.parity.contains(name);
  });
  std::set<std::string> folders;
  for (const auto& [name, attachment] : manifest.attachments) {
    if (const size_t slash = name.find('/'); slash != std::string::npos)
      folders.insert(name.substr(0, slash + 1));
  }
  for (const std::string& below : folders)
    look(below, [&](const std::string& name) { return !manifest.attachments.contains(name); });
}

void check_attachments(const fs::path& folder, const Manifest& manifest, bool all, Faults& faults) {
  for (const auto& [name, attachment] : manifest.attachments) {
    if (!all && is_optional(name)) continue;
    try {
      read_attachment(folder, name, attachment);
    } catch (const CheckpointError& error) {
      faults.add(name, 0, error.what());
    }
  }
}

void check_spares(const fs::path& folder, const Manifest& manifest, bool all, Faults& faults) {
  for (const auto& [name, why] : damaged_spares(folder, manifest))
    if (all || !is_optional(name.substr(name.find('/') + 1))) faults.add(name, 0, why);
}

/// Without the chunk, so that what several jobs find is one fault.
void add_fault(const std::string& name, const FileInfo& info, const CheckpointError& error,
               Faults& faults) {
  faults.add(name, 0,
             fmt::format("{} (with {})", error.what(), tensors_between(info, 0, info.bytes)));
}

void check_sizes(const fs::path& folder, const Manifest& manifest, Faults& faults,
                 const std::function<void()>& progress) {
  const auto check = [&](const std::string& name, const FileInfo& info) {
    try {
      const ShardFile file(folder / name, info);
    } catch (const CheckpointError& error) {
      add_fault(name, info, error, faults);
    }
    if (progress) progress();
  };
  for (const auto& [name, info] : manifest.files) check(name, info);
  for (const auto& [name, parity] : manifest.parity) check(name, parity.file);
}

void check_files(const fs::path& folder, const Manifest& manifest, Faults& faults,
                 const std::function<void(uint64_t)>& progress) {
  IoThreads threads(kThreads);
  const auto check = [&](const std::string& name, const FileInfo& info) {
    const auto step = static_cast<size_t>(std::max<uint64_t>(1, kJobBytes / info.chunk_bytes));
    for (size_t first = 0; first < info.num_chunks(); first += step) {
      threads.submit([&folder, &name, &info, &faults, &progress, first, step] {
        try {
          check_chunks(folder, name, info, first, std::min(info.num_chunks(), first + step), faults,
                       progress);
        } catch (const CheckpointError& error) {
          add_fault(name, info, error, faults);
        }
      });
    }
  };
  for (const auto& [name, info] : manifest.files) check(name, info);
  for (const auto& [name, parity] : manifest.parity) check(name, parity.file);
  threads.finish();
}

/// State of an optimizer is called "<parameter>/<what>".
bool has_weights(const FileInfo& file) {
  return std::ranges::any_of(
      file.entries, [](const auto& entry) { return entry.first.find('/') == std::string::npos; });
}

/// Takes what is not there out of the list.
template <class Files>
void set_aside(const fs::path& folder, Files& files, std::vector<std::string>& absent) {
  std::erase_if(files, [&](const auto& entry) {
    std::error_code error;
    if (fs::exists(folder / entry.first, error)) return false;
    absent.push_back(entry.first);
    return true;
  });
}

/// Whether the files that have faults can be rebuilt from parity files and copies. Of files that
/// were not read, the size tells whether they are lost.
bool can_be_repaired(const fs::path& folder, const Manifest& manifest,
                     const std::map<std::string, std::string>& faults) {
  const auto is_lost = [&](const std::string& name, const FileInfo& info) {
    std::error_code error;
    return faults.contains(name) || fs::file_size(folder / name, error) != info.bytes || error;
  };
  std::set<std::string> covered;
  std::map<std::vector<std::string>, size_t> intact; // parity files of a group of shards
  for (const auto& [name, parity] : manifest.parity) {
    covered.insert(name);
    covered.insert(parity.shards.begin(), parity.shards.end());
    intact[parity.shards] += is_lost(name, parity.file) ? 0 : 1;
  }
  for (const auto& [shards, rows] : intact) {
    size_t lost = 0;
    for (const std::string& name : shards)
      lost += is_lost(name, manifest.files.find(name)->second) ? 1 : 0;
    if (lost > rows) return false;
  }
  return std::ranges::all_of(faults, [&](const auto& fault) {
    const std::string& name = fault.first;
    return covered.contains(name) || is_spare_name(name) || has_spare(folder, manifest, name);
  });
}

} // namespace

bool repair_suffices(const fs::path& folder,
                     const std::map<std::string, std::string>& first_faults) {
  try {
    return can_be_repaired(folder, read_manifest(folder), first_faults);
  } catch (const CheckpointError&) {
    return has_spare_manifest(folder);
  }
}

VerifyReport verify(const fs::path& folder, VerifyScope scope,
                    const std::function<void()>& progress,
                    const std::function<void(uint64_t)>& bytes_read, VerifyShare share) {
  VerifyReport report;
  Faults faults;
  try {
    Manifest manifest = read_manifest(folder);
    report.iteration = manifest.iteration;
    report.files = manifest.files.size();
    report.tensors = manifest.tensors.size();
    for (const auto& [name, info] : manifest.files) report.bytes += info.bytes;
    for (const auto& [name, attachment] : manifest.attachments) report.bytes += attachment.bytes;
    for (const auto& [name, parity] : manifest.parity) report.bytes += parity.file.bytes;
    report.files += manifest.attachments.size() + manifest.parity.size();
    const bool of_machine =
        scope == VerifyScope::kPresent || scope == VerifyScope::kPresentStructure;
    if (of_machine) {
      set_aside(folder, manifest.files, report.absent);
      set_aside(folder, manifest.attachments, report.absent);
      set_aside(folder, manifest.parity, report.absent);
    }
    if (scope == VerifyScope::kWeights || scope == VerifyScope::kWeightsStructure) {
      std::erase_if(manifest.files, [](const auto& file) { return !has_weights(file.second); });
      manifest.parity.clear();
    } else {
      find_unlisted(folder, manifest, faults);
    }
    int64_t turn = 0;
    const auto of_others = [&](const auto&) { return turn++ % share.of != share.part; };
    std::erase_if(manifest.files, of_others);
    std::erase_if(manifest.parity, of_others);
    const bool structure =
        scope == VerifyScope::kStructure || scope == VerifyScope::kPresentStructure;
    if (structure || scope == VerifyScope::kWeightsStructure)
      check_sizes(folder, manifest, faults, progress);
    else
      check_files(folder, manifest, faults, [&](uint64_t bytes) {
        if (progress) progress();
        if (bytes_read) bytes_read(bytes);
      });
    check_attachments(folder, manifest, of_machine || scope == VerifyScope::kWhole, faults);
    if (scope == VerifyScope::kWhole || scope == VerifyScope::kStructure)
      check_spares(folder, manifest, scope == VerifyScope::kWhole, faults);
    if (faults.list().empty()) {
      for (const auto& [name, info] : manifest.files) {
        check_header(folder, name, manifest);
        if (progress) progress();
      }
    }
  } catch (const CheckpointError& error) {
    faults.add("", 0, error.what());
  } catch (const DataError& error) { // of a header
    faults.add("", 0, error.what());
  }
  report.faults = faults.list();
  report.first_faults = faults.first_by_file();
  report.repairable = repair_suffices(folder, report.first_faults);
  return report;
}

} // namespace pentatron::checkpoint

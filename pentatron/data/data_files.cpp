#include "pentatron/data/data_files.h"

#include <algorithm>
#include <map>

#include "pentatron/base/crc32c.h"
#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/data/indexed/data_file.h"

namespace pentatron::data {

namespace {

constexpr uint64_t kBlocks = 16, kBlockBytes = 4096;

DataFile describe(const std::filesystem::path& path) {
  const RandomAccessFile file(path);
  const uint64_t size = file.size();
  uint32_t crc = 0;
  std::vector<std::byte> block;
  const auto add = [&](uint64_t begin, uint64_t bytes) {
    block.resize(bytes);
    file.read(begin, std::span<std::byte>(block), "a block");
    crc = crc32c(block, crc);
  };
  if (size <= kBlocks * kBlockBytes) {
    add(0, size);
  } else {
    const uint64_t step = (size - kBlockBytes) / (kBlocks - 1);
    for (uint64_t i = 0; i + 1 < kBlocks; ++i) add(step * i, kBlockBytes);
    add(size - kBlockBytes, kBlockBytes);
  }
  return {.path = path.string(), .bytes = static_cast<int64_t>(size), .crc = crc};
}

} // namespace

std::vector<DataFile> describe_files(const std::vector<std::filesystem::path>& files) {
  std::vector<DataFile> all;
  for (const std::filesystem::path& path : files) {
    if (std::ranges::find(all, path.string(), &DataFile::path) != all.end()) continue;
    try {
      all.push_back(describe(path));
    } catch (const DataError&) { // standard input, or gone meanwhile
    }
  }
  return all;
}

std::string to_json(const std::vector<DataFile>& files) {
  Json all = Json::array();
  for (const DataFile& file : files)
    all.push_back({{"path", file.path}, {"bytes", file.bytes}, {"crc32c", file.crc}});
  return dump_json(all, 1) + "\n";
}

std::vector<DataFile> data_files_from_json(std::string_view text) {
  const std::string where = "the list of data files";
  const Json all = parse_json(text, where);
  if (!all.is_array()) throw DataError(where + " is not a list");
  std::vector<DataFile> files;
  for (const Json& file : all)
    files.push_back({.path = std::filesystem::path(json_get<std::string>(file, "path", where))
                                 .lexically_normal() // ./a is a
                                 .string(),
                     .bytes = json_get<int64_t>(file, "bytes", where),
                     .crc = json_get<int64_t>(file, "crc32c", where)});
  return files;
}

std::string describe_changes(const std::vector<DataFile>& before,
                             const std::vector<DataFile>& now) {
  std::map<std::string, const DataFile*> old;
  for (const DataFile& file : before) old[file.path] = &file;
  std::vector<std::string> changes;
  for (const DataFile& file : now) {
    const auto found = old.find(file.path);
    if (found == old.end()) {
      changes.push_back(file.path + " is new");
      continue;
    }
    if (file.bytes != found->second->bytes)
      changes.push_back(fmt::format("{} has {} bytes instead of {}", file.path, file.bytes,
                                    found->second->bytes));
    else if (file.crc != found->second->crc)
      changes.push_back(file.path + " has the same size and other content");
    old.erase(found);
  }
  for (const auto& [path, file] : old) changes.push_back(path + " is gone");
  if (changes.size() < 2) return changes.empty() ? "" : changes[0];
  return fmt::format("{}; {} more {}", changes[0], changes.size() - 1,
                     changes.size() == 2 ? "file differs" : "files differ");
}

} // namespace pentatron::data

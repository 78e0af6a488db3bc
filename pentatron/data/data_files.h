/// Size and checksum of the files of a dataset, stored with a run, so a resumed run can detect
/// whether they have changed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace pentatron::data {

/// Name of the list in a checkpoint.
inline constexpr const char* kDataFilesName = "data_files.json";

struct DataFile {
  std::string path;
  int64_t bytes = 0;
  int64_t crc = 0; ///< CRC-32C of blocks spread over the file; of a small file of all of it
  bool operator==(const DataFile&) const = default;
};

/// Reads some 64 KiB of each, in one entry per path. Files that cannot be read now are left out.
std::vector<DataFile> describe_files(const std::vector<std::filesystem::path>& files);

std::string to_json(const std::vector<DataFile>& files);
/// Throws DataError.
std::vector<DataFile> data_files_from_json(std::string_view text);

/// "a.jsonl has 120 bytes instead of 100; 2 more files differ". Empty if nothing has changed.
std::string describe_changes(const std::vector<DataFile>& before, const std::vector<DataFile>& now);

} // namespace pentatron::data

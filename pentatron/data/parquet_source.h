/// A Parquet file as JSON Lines, from the program pentatron-parquet in the same folder.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "pentatron/data/byte_source.h"

namespace pentatron::data {

/// Each row is one line with the columns `columns`, of texts or lists of integers, and, where the
/// file has them, the columns `more`, of whatever JSON has; a null leaves its key out. The file's
/// name is not taken as an option or by a shell. Throws DataError while reading a file that is
/// damaged; ConfigError if this build has no pentatron-parquet, with the command that makes it;
/// Error for what else keeps that program from reading. `reader` stands in for it, for tests.
std::unique_ptr<ByteSource> open_parquet(const std::filesystem::path& file,
                                         const std::vector<std::string>& columns,
                                         const std::vector<std::string>& more = {},
                                         const std::filesystem::path& reader = {});

} // namespace pentatron::data

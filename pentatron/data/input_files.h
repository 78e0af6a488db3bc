/// The files of a dataset, in order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/data/byte_source.h"

namespace pentatron::data {

enum class FileFormat : uint8_t {
  kText,      ///< the whole file is one document
  kJsonLines, ///< JSON objects, one on each line or as the elements of an array, each a document
  kTsv,       ///< a line with column names, then lines of cells, each a document
  kParquet    ///< rows with columns of text, each a document
};

struct InputFile {
  std::filesystem::path path;
  FileFormat format = FileFormat::kText;
  int64_t size_bytes = 0; ///< on disk
};

struct InputFiles {
  std::vector<InputFile> files;
  int64_t ignored = 0; ///< files in folders whose ending is of no known kind
};

/// Every file of `paths` in the order given; a folder stands for the files in it and its
/// subfolders, sorted by relative path, without hidden files and links to folders. `.jsonl`,
/// `.ndjson` and `.json` are JSON lines, `.tsv` tab-separated values, `.txt`, `.text` and `.md`
/// text, each also with `.gz`, `.zst` or `.zstd` behind, and `.parquet` is Parquet; a file named
/// directly may have any ending and is then text. Throws DataError if a path does not exist or is
/// neither a file nor a folder, or if no file is found; its message names the paths as `option`, a
/// key or a flag ("--input").
InputFiles find_input_files(const std::vector<std::string>& paths,
                            std::string_view option = "dataset.path");

/// The content of a file: text, or JSON objects that have at least `keys`, which are texts or token
/// ids, and of `more` what they have. A file of tab-separated values whose columns `keys` names by
/// numbers ("4") has no line with names. Throws DataError.
std::unique_ptr<ByteSource> open_input(const InputFile& file, const std::vector<std::string>& keys,
                                       const std::vector<std::string>& more = {});

/// The paths that `dataset.path` names: itself if that exists, else the parts between its commas,
/// without spaces around them and without brackets around the whole ("[a, b]" is "a,b").
std::vector<std::string> split_paths(const std::string& path);

/// Returns the folder of the text that comes with pentatron: `corpus` next to the source tree or
/// `share/pentatron/corpus` of an installation. Searches the parents of the program and of the
/// working directory. Throws DataError if it is not found.
std::filesystem::path default_corpus();

} // namespace pentatron::data

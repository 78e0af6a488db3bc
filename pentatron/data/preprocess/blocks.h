/// The input of preprocessing in blocks of whole documents.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "pentatron/data/input_files.h"
#include "pentatron/data/input_report.h"

namespace pentatron::data {

/// Where a block ends: what a resumed run skips.
struct InputPosition {
  int64_t file = 0;    ///< files before it are done
  int64_t records = 0; ///< lines or elements of this one are done
};

struct Block {
  int64_t number = 0;
  const InputFile* file = nullptr;
  std::string text;             ///< documents or JSON records, one after the other
  std::vector<size_t> ends;     ///< of each in `text`
  std::vector<int64_t> records; ///< the number of each record; empty for a text file
  bool is_array = false;        ///< the records are elements of an array, not lines
  std::vector<std::pair<BadInput, SkippedInput>> bad; ///< what could not be put into `text`
  bool begins_file = false;
  InputPosition end;
  int64_t disk_bytes = 0; ///< read of all files when the block was made
};

struct BlockOptions {
  int64_t max_document_bytes = 0;
  InputPosition begin = {};
  std::vector<std::string> keys = {}; ///< what is wanted of objects that have more
};

/// Hands all blocks to `take`, in order; stops when it returns false.
void read_blocks(const std::vector<InputFile>& files, const BlockOptions& options,
                 const std::function<bool(Block)>& take);

} // namespace pentatron::data

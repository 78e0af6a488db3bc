/// One set of the arrays of GptIndex for all ranks of a machine. Ranks that are threads share one
/// object. Ranks that are processes map the same bytes read-only: a file of
/// `dataset.data_cache_path`, or without such a folder an entry of a MachineStore. Both are found
/// by what they were made from: the lengths of the sequences and all options, not names or times.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "pentatron/base/machine_store.h"
#include "pentatron/data/gpt/gpt_index.h"

namespace pentatron::data {

/// The lengths of a part's sequences, read where they are needed.
struct SequenceLengths {
  int64_t first_sequence = 0;
  int64_t count = 0;
  /// Those of sequences first_sequence + begin and on.
  std::function<void(int64_t begin, std::span<int32_t> out)> read;
};

/// Returns the result of build_gpt_index() with its arrays in a mapped file of `folder`. If the
/// file is missing or damaged, one caller builds it, writes it under a temporary name and renames
/// it; the other callers on the machine wait. They use a lock of the folder, which ends with its
/// process; on a file system without such locks several callers may build at once. If the folder
/// cannot be written, logs a warning and each caller keeps the arrays in its own memory.
GptIndex cached_gpt_index(const std::filesystem::path& folder, const SequenceLengths& lengths,
                          const GptIndexOptions& options);

/// cached_gpt_index(), or with an empty folder build_gpt_index(). Threads that ask for the same get
/// the same object for as long as one of them holds it. With `read_only` a file of the folder is
/// used, but none is written.
///
/// With an empty folder and a `store`, one of the processes that have it builds the index, and the
/// others wait and map its arrays. If the store has no room, this one logs a warning, and from then
/// on every process keeps new arrays in its own memory.
std::shared_ptr<const GptIndex> shared_gpt_index(const std::filesystem::path& folder,
                                                 const SequenceLengths& lengths,
                                                 const GptIndexOptions& options,
                                                 bool read_only = false,
                                                 MachineStore* store = nullptr);

} // namespace pentatron::data

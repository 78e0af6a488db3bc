/// Whether every byte of a checkpoint is as written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace pentatron::checkpoint {

struct VerifyReport {
  int64_t iteration = -1; ///< -1: the manifest cannot be read
  uint64_t files = 0, bytes = 0, tensors = 0;
  bool repairable = false;         ///< parity files and copies suffice for repair_checkpoint()
  std::vector<std::string> absent; ///< of kPresent: listed files that are not there
  std::vector<std::string> faults; ///< each names its file, and what of which tensors it concerns
  std::map<std::string, std::string> first_faults; ///< by file; "": of the manifest
  bool ok() const { return faults.empty(); }
};

enum class VerifyScope : uint8_t {
  kWhole,   ///< optional attachments too, as the next two
  kPresent, ///< a machine's part of a checkpoint: missing files are not an error
  /// Of a machine's part, what kStructure looks at.
  kPresentStructure,
  kWeights, ///< what a model without training needs: no optimizer state, parity files or copies
  /// kWeights without the content of shards, of which only sizes and headers are looked at: a
  /// CheckpointReader checks what it reads.
  kWeightsStructure,
  /// Everything but the content of shards and parity files, of which only sizes and headers are
  /// looked at: who reads them checks what it reads.
  kStructure
};

/// One of several readers, who each read the content of their share of shards and parity files.
struct VerifyShare {
  int64_t part = 0, of = 1;
};

/// Reads everything, on two threads: the manifest with its tiling, every chunk of every file, the
/// attachments and their copies, the Safetensors headers against the manifest, and that no
/// Safetensors file, and nothing among the attachments, is there which the manifest does not know.
/// What is in the folder is never thrown; OutOfDescriptors is. `progress` is called again and
/// again, by any thread; `bytes_read` with the bytes of shards and parity files that were read
/// since its last call.
VerifyReport verify(const std::filesystem::path& folder, VerifyScope scope = VerifyScope::kWhole,
                    const std::function<void()>& progress = {},
                    const std::function<void(uint64_t)>& bytes_read = {}, VerifyShare share = {});

/// VerifyReport::repairable of a folder with `first_faults`, which several readers may have found.
/// Throws OutOfDescriptors.
bool repair_suffices(const std::filesystem::path& folder,
                     const std::map<std::string, std::string>& first_faults);

} // namespace pentatron::checkpoint

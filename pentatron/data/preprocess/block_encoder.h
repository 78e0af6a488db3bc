/// Parses and tokenizes blocks of documents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/data/input_report.h"
#include "pentatron/data/json_line.h"
#include "pentatron/data/preprocess/blocks.h"
#include "pentatron/data/preprocess/preprocess.h"

namespace pentatron::data {

/// The tokens of a block for one key.
struct Encoded {
  std::vector<int32_t> tokens;
  std::vector<int64_t> lengths;   ///< of each sequence; none is empty
  std::vector<int64_t> sequences; ///< of each document
};

struct EncodedBlock {
  Block block; // without its text
  size_t text_size = 0;
  std::vector<Encoded> keys;
  InputReport report{OnBadInput::kSkip};
  std::exception_ptr error;
};

/// Of one worker.
class BlockEncoder {
 public:
  /// `options` must outlive it.
  explicit BlockEncoder(const PreprocessOptions& options) : options_(options) {}
  EncodedBlock operator()(Block block);

 private:
  void take_record(std::string_view record, SkippedInput place, EncodedBlock& out);
  void encode(std::string_view text, Encoded& out);
  void take_ids(const std::vector<int32_t>& ids, Encoded& out);
  void end_document(size_t first, Encoded& out);
  void encode_sequence(std::string_view text, Encoded& out);

  const PreprocessOptions& options_;
  std::vector<TextOrIds> documents_;
};

} // namespace pentatron::data

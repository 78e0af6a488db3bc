/// Prepared batches: the named tensors of a Safetensors file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "pentatron/base/safetensors.h"
#include "pentatron/data/batch.h"
#include "pentatron/data/dataset.h"

namespace pentatron::data {

/// Sample n is row n % batch of step n / batch, so that a run whose global batch is the file's
/// batch takes one step of the file after another.
///
/// Tensors have the names of `fields`, and the shape [steps, batch, sequence], or [steps, batch] or
/// [steps, batch, 1] of a field without a stream. For each stream the file may hold
/// `attention_mask` and `position_ids`, of the stream "decoder" `decoder_attention_mask` and
/// `decoder_position_ids`; without them all tokens are real, and positions count from 0. Instead of
/// `input_ids` and labels of the next token there may be `tokens` [steps, batch, sequence + 1].
/// Other tensors are ignored.
class BatchesDataset final : public Dataset {
 public:
  /// kOneBatch: the tensors have no dimension of steps.
  enum class Form : uint8_t { kSteps, kOneBatch };

  /// Throws DataError for a field that the file lacks (with the tensors that it has), for types and
  /// shapes that do not fit each other, for values outside of a field's limit, and for a mask whose
  /// ones are not together, or that has none in a row with targets.
  BatchesDataset(const std::filesystem::path& path, std::vector<BatchField> fields,
                 Form form = Form::kSteps);

  const std::vector<BatchStream>& streams() const override { return streams_; }
  const std::vector<BatchField>& fields() const override { return fields_; }
  std::optional<int64_t> size() const override { return steps_ * batch_size_; }
  int64_t samples_per_epoch() const override { return steps_ * batch_size_; }
  void sample(int64_t n, const SampleView& view) const override;
  int64_t steps() const { return steps_; }
  int64_t batch_size() const { return batch_size_; }

 private:
  class Reader;
  struct Values {
    std::vector<int64_t> ints;
    std::vector<double> floats;
  };
  struct Shape {
    std::vector<StreamRange> real;     ///< [rows]; empty: all tokens
    std::vector<int64_t> position_ids; ///< [rows * s]; empty: from 0
  };

  std::string name_;
  std::vector<BatchField> fields_;
  std::vector<BatchStream> streams_;
  int64_t steps_ = 0;
  int64_t batch_size_ = 0;
  std::vector<Values> values_; ///< of each field
  std::vector<Shape> shapes_;  ///< of each stream
};

/// Tokens of a sample of each stream, from the shapes alone; 0 if no tensor of the file tells.
/// Throws DataError if the file cannot be read.
std::vector<int64_t> lengths_in_batches(const std::filesystem::path& path,
                                        const std::vector<BatchField>& fields,
                                        const std::vector<std::string>& streams);

/// The one batch of a file whose tensors have no dimension of steps. Throws what BatchesDataset
/// does.
Batch read_batch(const std::filesystem::path& path, const std::vector<BatchField>& fields);

} // namespace pentatron::data

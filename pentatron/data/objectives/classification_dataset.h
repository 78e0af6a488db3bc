/// Texts, or pairs of texts, with a label each, to fine-tune a classifier or a regression on.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pentatron/data/dataset.h"
#include "pentatron/data/objectives/labelled_texts.h"

namespace pentatron::data {

/// Fields `input_ids` and `token_type_ids`, with the padding at the end, and `labels` [b]: classes
/// (-100: no label) or, as kFloat64, numbers (NaN: no label). Every text is one sample per epoch,
/// in a new random order in each epoch; sample n depends on (texts, options, n) alone.
class ClassificationDataset final : public Dataset {
 public:
  struct Options {
    int64_t sequence_length = 512; ///< no text is longer
    uint64_t seed = 0;
    std::string name = "train"; ///< part of the key of the order
    int64_t pad_token = -1;
    FieldType label_type = FieldType::kInt64;
    bool ends = false; ///< after one epoch
  };
  /// Of the samples [range.begin, range.end), which is not empty.
  ClassificationDataset(std::shared_ptr<const LabelledTexts> texts, StreamRange range,
                        const Options& options);

  /// What fields() are; `pad` fills input_ids.
  static std::vector<BatchField> fields_with(FieldType label_type, double pad = 0);
  /// The labels that a model reads: those of each sample in `wanted`; null if it has none.
  static const BatchField* labels_of(const std::vector<BatchField>& wanted);

  const std::vector<BatchStream>& streams() const override { return streams_; }
  const std::vector<BatchField>& fields() const override { return fields_; }
  std::optional<int64_t> size() const override;
  int64_t samples_per_epoch() const override { return range_.size(); }
  void sample(int64_t n, const SampleView& view) const override;

 private:
  std::shared_ptr<const LabelledTexts> texts_;
  StreamRange range_;
  Options options_;
  std::vector<BatchStream> streams_;
  std::vector<BatchField> fields_;
};

} // namespace pentatron::data

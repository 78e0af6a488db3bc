#include "pentatron/data/objectives/classification_dataset.h"

#include <algorithm>
#include <limits>

#include "pentatron/base/error.h"
#include "pentatron/data/batch.h"
#include "pentatron/data/permutation.h"

namespace pentatron::data {

namespace {

enum ClassificationField : size_t { kTextIds, kTextTypes, kTextLabels };
constexpr const char* kLabelsName = "labels";

} // namespace

std::vector<BatchField> ClassificationDataset::fields_with(FieldType label_type, double pad) {
  BatchField labels = label_field("", kLabelsName);
  if (label_type == FieldType::kFloat64) {
    labels.type = label_type;
    labels.fill = std::numeric_limits<double>::quiet_NaN();
    labels.none = labels.fill;
  }
  return {{.name = "input_ids", .fill = pad}, {.name = "token_type_ids"}, std::move(labels)};
}

const BatchField* ClassificationDataset::labels_of(const std::vector<BatchField>& wanted) {
  const auto found = std::ranges::find_if(wanted, [](const BatchField& field) {
    return field.name == kLabelsName && field.stream.empty();
  });
  return found == wanted.end() ? nullptr : &*found;
}

ClassificationDataset::ClassificationDataset(std::shared_ptr<const LabelledTexts> texts,
                                             StreamRange range, const Options& options)
    : texts_(std::move(texts)), range_(range),
      options_(options), streams_{{"tokens", options.sequence_length}},
      fields_(fields_with(options.label_type, static_cast<double>(options.pad_token))) {
  PT_DCHECK(range.size() > 0);
}

std::optional<int64_t> ClassificationDataset::size() const {
  return options_.ends ? std::optional(range_.size()) : std::nullopt;
}

void ClassificationDataset::sample(int64_t n, const SampleView& view) const {
  if (n < 0 || (options_.ends && n >= range_.size()))
    raise<DataError>("the {} data has {} samples, so sample {} does not exist", options_.name,
                     range_.size(), n + 1);
  const auto count = static_cast<uint64_t>(range_.size()), number = static_cast<uint64_t>(n);
  const Permutation order(options_.seed, "labelled texts " + options_.name, number / count, count);
  const int64_t i = range_.begin + static_cast<int64_t>(order(number % count));
  texts_->copy(i, view.ints(kTextIds).data(), view.ints(kTextTypes).data());
  view.set_real(0, {0, texts_->length(i)});
  if (options_.label_type == FieldType::kFloat64)
    view.floats(kTextLabels)[0] = texts_->label(i);
  else
    view.ints(kTextLabels)[0] = static_cast<int64_t>(texts_->label(i));
}

} // namespace pentatron::data

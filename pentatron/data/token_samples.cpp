#include "pentatron/data/token_samples.h"

#include <algorithm>
#include <numeric>

#include "pentatron/data/batch.h"

namespace pentatron::data {

namespace {

constexpr size_t kInputIds = 0, kLabels = 1; // places in fields()
constexpr size_t kTokens = 0;                // in streams()
constexpr int64_t kNoLabel = -100;

} // namespace

TokenSamples::TokenSamples(std::shared_ptr<const TokenDataset> tokens, const Options& options)
    : tokens_(std::move(tokens)), options_(options),
      marks_(options.eod >= 0 &&
             (options.eod_mask_loss || options.reset_position_ids || options.reset_attention_mask)),
      streams_{{"tokens", tokens_->sequence_length()}}, fields_(next_token_fields()) {}

void TokenSamples::sample(int64_t n, const SampleView& view) const {
  const std::span<int64_t> inputs = view.ints(kInputIds), labels = view.ints(kLabels);
  const size_t s = inputs.size();
  std::vector<int64_t> tokens(s + 1);
  std::vector<uint8_t> loss_mask(s);
  tokens_->sample_with_mask(n, tokens.data(), loss_mask.data());
  std::copy_n(tokens.begin(), s, inputs.begin());
  for (size_t i = 0; i < s; ++i) labels[i] = loss_mask[i] != 0 ? tokens[i + 1] : kNoLabel;
  if (marks_) mark_documents(view);
}

/// Everything that depends on where documents end.
void TokenSamples::mark_documents(const SampleView& view) const {
  const std::span<int64_t> inputs = view.ints(kInputIds), labels = view.ints(kLabels);
  const std::span<int64_t> positions = view.position_ids(kTokens);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] != options_.eod) continue;
    if (options_.eod_mask_loss) labels[i] = kNoLabel;
    if (i + 1 == inputs.size()) break;
    if (options_.reset_position_ids) {
      const auto next = positions.subspan(i + 1);
      std::iota(next.begin(), next.end(), int64_t{0});
    }
    if (options_.reset_attention_mask) view.begin_document(kTokens, static_cast<int64_t>(i) + 1);
  }
}

} // namespace pentatron::data

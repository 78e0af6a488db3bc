#include "pentatron/data/batch.h"

#include <algorithm>
#include <numeric>

namespace pentatron::data {

namespace {

/// Everything in row `r` that depends on where documents end.
void mark_documents(Batch& batch, int64_t r, const BatchOptions& options) {
  const int64_t s = batch.sequence_length;
  const int64_t* tokens = batch.tokens.data() + r * s;
  int64_t* positions = batch.position_ids.data() + r * s;
  for (int64_t i = 0; i < s; ++i) {
    if (tokens[i] != options.eod) continue;
    if (options.eod_mask_loss) batch.loss_mask[static_cast<size_t>(r * s + i)] = 0;
    if (i + 1 == s) break;
    if (options.reset_position_ids) std::iota(positions + i + 1, positions + s, int64_t{0});
    if (options.reset_attention_mask) batch.cu_seqlens.push_back(r * s + i + 1);
  }
}

} // namespace

Batch make_batch(const Dataset& dataset, std::span<const int64_t> sample_ids,
                 const BatchOptions& options) {
  Batch batch;
  const int64_t b = batch.batch_size = static_cast<int64_t>(sample_ids.size());
  const int64_t s = batch.sequence_length = dataset.sequence_length();
  const auto n = static_cast<size_t>(b * s);
  batch.sample_ids.assign(sample_ids.begin(), sample_ids.end());
  batch.tokens.resize(n);
  batch.labels.resize(n);
  batch.loss_mask.resize(n);
  batch.position_ids.resize(n);
  batch.cu_seqlens.push_back(0);
  const bool marks = options.eod >= 0 && (options.eod_mask_loss || options.reset_position_ids ||
                                          options.reset_attention_mask);
  std::vector<int64_t> row(static_cast<size_t>(s + 1));
  for (int64_t r = 0; r < b; ++r) {
    uint8_t* const mask = batch.loss_mask.data() + r * s;
    if (const int64_t id = sample_ids[static_cast<size_t>(r)]; id >= 0) {
      dataset.sample_with_mask(id, row.data(), mask);
    } else {
      std::fill(row.begin(), row.end(), 0);
      std::fill(mask, mask + s, uint8_t{0});
    }
    std::copy_n(row.data(), s, batch.tokens.data() + r * s);
    std::copy_n(row.data() + 1, s, batch.labels.data() + r * s);
    std::iota(batch.position_ids.data() + r * s, batch.position_ids.data() + (r + 1) * s,
              int64_t{0});
    if (marks) mark_documents(batch, r, options);
    batch.cu_seqlens.push_back((r + 1) * s);
  }
  for (size_t i = 1; i < batch.cu_seqlens.size(); ++i) {
    const int64_t length = batch.cu_seqlens[i] - batch.cu_seqlens[i - 1];
    batch.max_seqlen = std::max(batch.max_seqlen, length);
    batch.squared_lengths += length * length;
  }
  batch.packed = static_cast<int64_t>(batch.cu_seqlens.size()) > b + 1;
  batch.num_targets = std::accumulate(batch.loss_mask.begin(), batch.loss_mask.end(), int64_t{0});
  return batch;
}

} // namespace pentatron::data

/// Samples laid side by side, ready for one forward.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pentatron/data/dataset.h"

namespace pentatron::data {

/// b samples of s tokens, all arrays sample-major. Labels are the tokens one place further on.
struct Batch {
  int64_t batch_size = 0;            ///< b
  int64_t sequence_length = 0;       ///< s
  std::vector<int64_t> sample_ids;   ///< [b]
  std::vector<int64_t> tokens;       ///< [b * s]
  std::vector<int64_t> labels;       ///< [b * s]
  std::vector<uint8_t> loss_mask;    ///< [b * s], 1 where the label counts
  std::vector<int64_t> position_ids; ///< [b * s]
  /// Where attention begins anew, as offsets into the b * s tokens, from 0 to b * s: at every
  /// sample, and after every end of a document under reset_attention_mask.
  std::vector<int64_t> cu_seqlens;
  int64_t max_seqlen = 0;      ///< the longest piece between two of cu_seqlens
  int64_t squared_lengths = 0; ///< sum of the squares of these pieces: what attention scales with
  int64_t num_targets = 0;     ///< ones in loss_mask
  bool packed = false;         ///< cu_seqlens has more pieces than samples
};

struct BatchOptions {
  int64_t eod = -1; ///< the token that ends a document; -1 for none
  bool eod_mask_loss = false;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
};

/// A sample number of -1 stands for one of zeros without a loss.
Batch make_batch(const Dataset& dataset, std::span<const int64_t> sample_ids,
                 const BatchOptions& options);

} // namespace pentatron::data

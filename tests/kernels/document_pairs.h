/// Self-attention within documents, as pairs.
#pragma once

#include <vector>

#include "pentatron/kernels/attention/attention_pair.h"

namespace pentatron::kernels::testing {

/// `documents`: first token of each, then the number of tokens.
inline std::vector<AttentionPair> document_pairs(const std::vector<int64_t>& documents) {
  std::vector<AttentionPair> pairs;
  for (size_t i = 0; i + 1 < documents.size(); ++i) {
    const int64_t begin = documents[i], size = documents[i + 1] - begin;
    pairs.push_back(
        {.query_begin = begin, .query_size = size, .key_begin = begin, .key_size = size});
  }
  return pairs;
}

} // namespace pentatron::kernels::testing

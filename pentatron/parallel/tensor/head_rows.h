/// Which tokens take part in the products of an output layer (vocab.h): without LibTorch.
#pragma once

#include <cstdint>

namespace pentatron::parallel {

/// Whether leaving out tokens without a label is worth the copies.
constexpr bool leaves_out(int64_t labelled, int64_t tokens) {
  return 4 * labelled <= 3 * tokens;
}

/// Tokens whose logits a loss computes, of a pass with so many.
constexpr int64_t head_rows(int64_t labelled, int64_t tokens) {
  return leaves_out(labelled, tokens) ? labelled : tokens;
}

} // namespace pentatron::parallel

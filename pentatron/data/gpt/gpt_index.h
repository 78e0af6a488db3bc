/// Which tokens each sample of a GPT dataset is made of: the three index arrays of megatron-core's
/// GPTDataset, equal to them number for number.
///
/// The sequences of a part of a corpus are laid end to end, epoch after epoch, in random order
/// (`documents`); the stream is cut every sequence_length tokens (`sample_begin`), and the samples
/// are taken in random order (`shuffle`). Neighbours share one token.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "pentatron/data/gpt/shared_array.h"

namespace pentatron::data {

struct GptIndexOptions {
  int64_t sequence_length = 0;
  /// The samples asked for; as many epochs are taken as it needs. None: one epoch.
  std::optional<int64_t> num_samples = {};
  uint64_t seed = 1234;
  /// Whether a last sample that the tokens do not fill is left out.
  bool drop_last_partial_sequence = true;
  std::string name = "the corpus"; ///< for messages
};

/// Arrays in 32 bits where their numbers allow, else in 64.
using PlaceArray = std::variant<SharedArray<int32_t>, SharedArray<int64_t>>;
using ShuffleArray = std::variant<SharedArray<uint32_t>, SharedArray<int64_t>>;
template <class Array> int64_t at(const Array& array, int64_t i) {
  return std::visit(
      [&](const auto& values) { return static_cast<int64_t>(values[static_cast<size_t>(i)]); },
      array);
}

struct GptIndex {
  int64_t sequence_length = 0;
  int64_t tokens_per_epoch = 0;
  int64_t num_epochs = 0;
  int64_t num_samples = 0;       ///< at least those asked for
  int64_t samples_per_epoch = 0; ///< of one epoch alone
  bool separate_last_epoch = false;
  SharedArray<int32_t> documents; ///< [epochs * sequences], numbers of sequences
  PlaceArray sample_begin;        ///< [num_samples + 1, 2]: place in `documents`, offset there
  ShuffleArray shuffle;           ///< [num_samples]

  int64_t array_bytes() const;
};

/// The numbers of an index without its arrays, of a part that is sequences [first_sequence,
/// first_sequence + sequences) and holds `tokens`. Throws ConfigError if that is less than one
/// sample, and for a seed over 32 bits.
GptIndex count_gpt_index(int64_t tokens, int64_t sequences, int64_t first_sequence,
                         const GptIndexOptions& options);
/// Whether the places, and the numbers of the samples, need 64 bits.
bool has_wide_places(const GptIndex& counted, int64_t sequences);
bool has_wide_shuffle(const GptIndex& counted);
/// What array_bytes() of build_gpt_index() will be.
int64_t planned_array_bytes(const GptIndex& counted, int64_t sequences);

/// `lengths` are those of the part's sequences. Throws as count_gpt_index(), and nothing else.
GptIndex build_gpt_index(std::span<const int32_t> lengths, int64_t first_sequence,
                         const GptIndexOptions& options);

} // namespace pentatron::data

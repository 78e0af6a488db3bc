/// What tokenizer.json puts around the tokens of a text or of a pair of texts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/data/tokenizer.h"

namespace pentatron::data::tokenizer {

struct PostProcessor {
  /// A special token or one of the texts, with the type id of its tokens.
  struct Piece {
    static constexpr int32_t kFirst = -1, kSecond = -2;
    int32_t token = kFirst; ///< or the id of a special token
    int32_t type = 0;
    bool operator==(const Piece&) const = default;
  };
  std::vector<Piece> single{{Piece::kFirst, 0}};
  std::vector<Piece> pair{{Piece::kFirst, 0}, {Piece::kSecond, 1}};
  bool has_pair = true; ///< false: the steps for a pair cannot follow each other

  /// The special tokens of `single` on one side of the text.
  std::vector<int32_t> before() const;
  std::vector<int32_t> after() const;
};

/// The member "post_processor". Throws DataError, which names it, for a type that is not known and
/// for a template that has a text not just once.
PostProcessor make_post_processor(const Json& json);

/// [CLS] a [SEP], and [CLS] a [SEP] b [SEP] with the type 1 from b on.
PostProcessor bert_post_processor(int32_t cls, int32_t sep);

/// Puts the pieces around the texts, which it shortens first if all would be longer than
/// `max_length` (0: any length). A pair loses tokens at the end of its longer text; as in the
/// library `tokenizers`, strategy longest_first. Throws DataError if `max_length` leaves no room
/// for the special tokens.
EncodedPair post_process(const PostProcessor& processor, std::vector<int32_t> first,
                         std::optional<std::vector<int32_t>> second, int64_t max_length);

} // namespace pentatron::data::tokenizer

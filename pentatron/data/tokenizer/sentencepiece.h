/// SentencePiece's .model files: unigram and BPE, also word and char.
///
/// Source: Kudo and Richardson 2018 (arXiv:1808.06226).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/data/tokenizer.h"
#include "pentatron/data/tokenizer/hugging_face.h"

namespace pentatron::data::tokenizer {

enum class PieceType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct SentencePieceModel {
  enum class Type : uint8_t { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };
  struct NormalizerSpec {
    std::string charsmap;
    bool add_dummy_prefix = true;
    bool remove_extra_whitespaces = true;
    bool escape_whitespaces = true;
  };
  std::vector<Piece> pieces;
  Type type = Type::kUnigram;
  bool byte_fallback = false;
  bool treat_whitespace_as_suffix = false;
  std::string unk_surface = " \xE2\x81\x87 ";
  std::string bos_piece = "<s>", eos_piece = "</s>";
  NormalizerSpec normalizer;
  std::string denormalizer_charsmap;
};

/// Reads the protocol buffer of a .model file. Throws DataError for one that is damaged.
SentencePieceModel read_sentencepiece(std::string_view bytes);

struct SentencePieceOptions {
  std::string name = "sentencepiece";
  EodChoice eod = {}; ///< without a choice: the model's end of a sentence
};

/// The same ids and texts as the SentencePiece library.
std::shared_ptr<const Tokenizer> make_sentencepiece(SentencePieceModel model,
                                                    const SentencePieceOptions& options);

} // namespace pentatron::data::tokenizer

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/protobuf.h"
#include "pentatron/data/tokenizer/sentencepiece.h"
#include "pentatron/data/utf8.h"

namespace pentatron::data::tokenizer {

namespace {

std::string valid_text(std::string_view text, std::string_view what) {
  if (find_invalid_utf8(text) != std::string_view::npos)
    raise<DataError>("{} of the SentencePiece model is not UTF-8", what);
  return std::string(text);
}

SentencePieceModel::Piece read_piece(std::string_view bytes) {
  SentencePieceModel::Piece piece;
  for (ProtobufReader reader(bytes); reader.next();) {
    if (reader.field() == 1) piece.text = valid_text(reader.text(), "a piece");
    if (reader.field() == 2) piece.score = reader.real();
    if (reader.field() == 3) {
      const uint64_t type = reader.number();
      if (type < 1 || type > 6)
        raise<DataError>("the piece '{}' has the type {}, which is not known", piece.text, type);
      piece.type = static_cast<PieceType>(type);
    }
  }
  if (piece.text.empty()) throw DataError("a piece of the SentencePiece model is empty");
  if (!(piece.score > -1e30F && piece.score < 1e30F))
    raise<DataError>("the piece '{}' has the score {}", piece.text, piece.score);
  return piece;
}

void read_trainer(std::string_view bytes, SentencePieceModel& model) {
  for (ProtobufReader reader(bytes); reader.next();) {
    switch (reader.field()) {
    case 3: {
      const uint64_t type = reader.number();
      if (type < 1 || type > 4)
        raise<DataError>("the SentencePiece model has the type {}, which is not known", type);
      model.type = static_cast<SentencePieceModel::Type>(type);
      break;
    }
    case 24:
      model.treat_whitespace_as_suffix = reader.boolean();
      break;
    case 35:
      model.byte_fallback = reader.boolean();
      break;
    case 44:
      model.unk_surface = valid_text(reader.text(), "unk_surface");
      break;
    case 46:
      model.bos_piece = valid_text(reader.text(), "bos_piece");
      break;
    case 47:
      model.eos_piece = valid_text(reader.text(), "eos_piece");
      break;
    default:
      break;
    }
  }
}

void read_normalizer(std::string_view bytes, SentencePieceModel::NormalizerSpec& spec) {
  for (ProtobufReader reader(bytes); reader.next();) {
    switch (reader.field()) {
    case 2:
      spec.charsmap = reader.text();
      break;
    case 3:
      spec.add_dummy_prefix = reader.boolean();
      break;
    case 4:
      spec.remove_extra_whitespaces = reader.boolean();
      break;
    case 5:
      spec.escape_whitespaces = reader.boolean();
      break;
    default:
      break;
    }
  }
}

} // namespace

SentencePieceModel read_sentencepiece(std::string_view bytes) {
  SentencePieceModel model;
  for (ProtobufReader reader(bytes); reader.next();) {
    switch (reader.field()) {
    case 1:
      model.pieces.push_back(read_piece(reader.text()));
      break;
    case 2:
      read_trainer(reader.text(), model);
      break;
    case 3:
      read_normalizer(reader.text(), model.normalizer);
      break;
    case 5: {
      SentencePieceModel::NormalizerSpec spec;
      read_normalizer(reader.text(), spec);
      model.denormalizer_charsmap = spec.charsmap;
      break;
    }
    default:
      break;
    }
  }
  if (model.pieces.empty()) throw DataError("the SentencePiece model has no pieces");
  return model;
}

} // namespace pentatron::data::tokenizer

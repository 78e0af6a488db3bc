#include "pentatron/data/tokenizer/sentencepiece.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <unordered_map>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/cached_tokenizer.h"
#include "pentatron/data/tokenizer/charsmap.h"
#include "pentatron/data/tokenizer/decoder.h"
#include "pentatron/data/tokenizer/hugging_face.h"
#include "pentatron/data/tokenizer/merges.h"
#include "pentatron/data/tokenizer/unicode.h"
#include "pentatron/data/tokenizer/unigram.h"
#include "pentatron/data/utf8.h"

namespace pentatron::data::tokenizer {

namespace {

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";
using Type = SentencePieceModel::Type;

bool is_ordinary(PieceType type) {
  return type == PieceType::kNormal || type == PieceType::kUserDefined ||
         type == PieceType::kUnused;
}

/// BPE by scores: of all neighbours whose text together is a piece, those with the highest score
/// merge first. Every symbol has a number: pieces their ids, single characters that are no piece
/// numbers behind them.
class ScoreBpe {
 public:
  void build(const SentencePieceModel& model, const std::unordered_map<std::string, int32_t>& ids) {
    next_number_ = static_cast<int32_t>(model.pieces.size());
    std::vector<float> scores;
    for (const auto& [text, id] : ids) {
      scores.push_back(model.pieces[static_cast<size_t>(id)].score);
      add_characters(text, ids);
    }
    std::sort(scores.begin(), scores.end(), std::greater<>());
    scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
    struct Pair {
      int32_t left, right, whole;
    };
    std::vector<Pair> pairs;
    std::string left, right;
    for (const auto& [text, id] : ids) {
      for (size_t cut = utf8_length(text[0]); cut < text.size(); cut += utf8_length(text[cut])) {
        left = text.substr(0, cut);
        right = text.substr(cut);
        const int32_t a = symbol(left, ids), b = symbol(right, ids);
        if (a < 0 || b < 0 || is_frozen(model, a) || is_frozen(model, b)) continue;
        pairs.push_back({a, b, id});
      }
    }
    merges_ = Merges(pairs.size());
    for (const Pair& pair : pairs) {
      const float score = model.pieces[static_cast<size_t>(pair.whole)].score;
      const auto rank =
          std::lower_bound(scores.begin(), scores.end(), score, std::greater<>()) - scores.begin();
      merges_.set(pair.left, pair.right, {static_cast<uint32_t>(rank), pair.whole});
    }
  }

  /// The symbol of a character; -1 if no piece has it, so that it never merges.
  int32_t character(char32_t c) const {
    const auto found = characters_.find(c);
    return found == characters_.end() ? -1 : found->second;
  }
  const Merges& merges() const { return merges_; }

 private:
  static bool is_frozen(const SentencePieceModel& model, int32_t symbol) {
    return static_cast<size_t>(symbol) < model.pieces.size() &&
           model.pieces[static_cast<size_t>(symbol)].type == PieceType::kUserDefined;
  }
  void add_characters(const std::string& text,
                      const std::unordered_map<std::string, int32_t>& ids) {
    for (size_t i = 0; i < text.size();) {
      const CodePoint c = read_code_point(text.data() + i);
      if (!characters_.contains(c.value)) {
        const auto found = ids.find(text.substr(i, c.size));
        characters_[c.value] = found != ids.end() ? found->second : next_number_++;
      }
      i += c.size;
    }
  }
  int32_t symbol(const std::string& text,
                 const std::unordered_map<std::string, int32_t>& ids) const {
    if (const auto found = ids.find(text); found != ids.end()) return found->second;
    if (text.size() != utf8_length(text[0])) return -1;
    return character(read_code_point(text.data()).value);
  }

  int32_t next_number_ = 0; // for a character that is no piece
  std::unordered_map<char32_t, int32_t> characters_;
  Merges merges_;
};

class SentencePieceTokenizer final : public CachedTokenizer {
 public:
  SentencePieceTokenizer(SentencePieceModel model, const SentencePieceOptions& options)
      : name_(options.name), model_(std::move(model)), rules_(model_.normalizer.charsmap),
        inverse_rules_(model_.denormalizer_charsmap) {
    index_pieces();
    if (model_.type == Type::kBpe) {
      bpe_.build(model_, ids_);
      choose_cuts();
    }
    int32_t bos = -1;
    for (const std::string* piece : {&model_.bos_piece, &model_.eos_piece}) {
      const auto id = token_id(*piece);
      const bool is_control = id && type_of(*id) == PieceType::kControl;
      if (piece == &model_.bos_piece && is_control) bos = *id;
      if (piece == &model_.eos_piece && is_control) eod_ = *id;
    }
    if (eod_ < 0 || !options.eod.required.empty() || !options.eod.likely.empty())
      eod_ = find_eod(*this, options.eod);
    using Piece = PostProcessor::Piece;
    const Piece first{Piece::kFirst, 0};
    if (bos >= 0) {
      around_ = {.single = {{bos, 0}, first},
                 .pair = {{bos, 0}, first, {bos, 1}, {Piece::kSecond, 1}}};
    } else if (eod_ >= 0) {
      around_ = {.single = {first, {eod_, 0}},
                 .pair = {first, {eod_, 0}, {Piece::kSecond, 0}, {eod_, 0}}};
    }
  }

  std::string name() const override { return name_; }
  int64_t vocab_size() const override { return static_cast<int64_t>(model_.pieces.size()); }
  int32_t eod() const override { return eod_; }
  std::string token_name(int64_t id) const override {
    check(id);
    std::string text;
    for (std::string_view rest = model_.pieces[static_cast<size_t>(id)].text; !rest.empty();) {
      const bool space = rest.starts_with(kSpaceSymbol);
      const size_t size = space ? kSpaceSymbol.size() : utf8_length(rest[0]);
      text += space ? std::string_view(" ") : rest.substr(0, size);
      rest.remove_prefix(size);
    }
    return printable_token(text, id);
  }
  std::optional<int32_t> token_id(std::string_view token) const override {
    const std::string text(token);
    if (const auto found = reserved_.find(text); found != reserved_.end()) return found->second;
    if (const auto found = ids_.find(text); found != ids_.end()) return found->second;
    return std::nullopt;
  }
  bool is_special(int64_t id) const override {
    return id == eod_ || (id >= 0 && id < vocab_size() &&
                          type_of(static_cast<int32_t>(id)) == PieceType::kControl);
  }

  std::string decode(std::span<const int64_t> tokens) const override {
    return decode(tokens, /*with_special=*/false);
  }
  /// As the library does, which shows no control pieces either.
  std::string decode_with_special(std::span<const int64_t> tokens) const override {
    return decode(tokens, /*with_special=*/true);
  }

 protected:
  void encode_valid(std::string_view text, WordCache& cache,
                    std::vector<int32_t>& tokens) const override {
    const std::string normalized = normalize(text);
    if (normalized.empty()) return;
    Output out{*this, tokens};
    switch (model_.type) {
    case Type::kUnigram:
      encode_unigram(normalized, out);
      break;
    case Type::kBpe:
      encode_bpe(normalized, cache, out);
      break;
    case Type::kWord:
      encode_words(normalized, out);
      break;
    case Type::kChar:
      encode_characters(normalized, out);
      break;
    }
  }
  const PostProcessor& post_processor() const override { return around_; }

 private:
  /// Takes pieces of the normalized text; unknown ones become bytes, or one token for neighbours.
  struct Output {
    const SentencePieceTokenizer& tokenizer;
    std::vector<int32_t>& tokens;
    bool after_unknown = false;

    void put(std::string_view piece, int32_t id) {
      const bool unknown = id == tokenizer.unk_;
      if (unknown && tokenizer.model_.byte_fallback) {
        for (const char b : piece)
          tokens.push_back(tokenizer.byte_ids_[static_cast<unsigned char>(b)]);
      } else if (!(unknown && after_unknown)) {
        tokens.push_back(id);
      }
      after_unknown = unknown;
    }
  };

  PieceType type_of(int32_t id) const { return model_.pieces[static_cast<size_t>(id)].type; }
  void check(int64_t id) const {
    if (id < 0 || id >= vocab_size())
      raise<DataError>("token {} is outside the tokenizer's range of 0 to {}", id,
                       vocab_size() - 1);
  }

  void index_pieces() {
    bool have_bytes = true;
    byte_ids_.fill(-1);
    for (size_t i = 0; i < model_.pieces.size(); ++i) {
      const auto& piece = model_.pieces[i];
      const auto id = static_cast<int32_t>(i);
      if (!(is_ordinary(piece.type) ? ids_ : reserved_).emplace(piece.text, id).second)
        raise<DataError>("the piece '{}' of the SentencePiece model occurs twice", piece.text);
      if (is_ordinary(piece.type) && piece.type != PieceType::kUnused) pieces_.add(piece.text, id);
      if (piece.type == PieceType::kUnused && model_.type == Type::kBpe)
        raise<DataError>("the piece '{}' is of type unused, which is not supported in a "
                         "SentencePiece model of type BPE",
                         piece.text);
      if (piece.type == PieceType::kUserDefined) {
        user_.add(piece.text, id);
        user_first_[static_cast<unsigned char>(piece.text[0])] = true;
      }
      if (piece.type == PieceType::kNormal) {
        lowest_ = std::min(lowest_, piece.score);
        highest_ = std::max(highest_, piece.score);
      }
      if (piece.type == PieceType::kUnknown) {
        if (unk_ >= 0)
          raise<DataError>(
              "the pieces {} and {} of the SentencePiece model are both of type unknown", unk_, id);
        unk_ = id;
      }
      if (piece.type == PieceType::kByte) {
        const int byte = fallback_byte(piece.text);
        if (byte < 0 || !model_.byte_fallback)
          raise<DataError>("the piece '{}' of the SentencePiece model cannot be a byte",
                           piece.text);
        byte_ids_[static_cast<size_t>(byte)] = id;
      }
    }
    if (unk_ < 0) throw DataError("the SentencePiece model has no unknown piece");
    for (const int32_t id : byte_ids_) have_bytes = have_bytes && id >= 0;
    if (model_.byte_fallback && !have_bytes)
      throw DataError("the SentencePiece model has byte_fallback, but not all 256 byte pieces");
  }

  /// What one step of normalization reads and writes.
  std::pair<std::string_view, size_t> normalize_prefix(std::string_view input,
                                                       const Charsmap& rules, bool keep) const {
    if (keep && user_first_[static_cast<unsigned char>(input[0])]) {
      if (const Trie::Found found = user_.longest(input); found.length != 0)
        return {input.substr(0, found.length), found.length};
    }
    const Charsmap::Rule rule = rules.longest(input);
    if (rule.length != 0) return {rule.replacement, rule.length};
    const size_t length = utf8_length(input[0]);
    return {input.substr(0, length), length};
  }

  std::string normalize(std::string_view input) const {
    const SentencePieceModel::NormalizerSpec& spec = model_.normalizer;
    const std::string_view space = spec.escape_whitespaces ? kSpaceSymbol : std::string_view(" ");
    std::string out;
    if (spec.remove_extra_whitespaces) {
      while (!input.empty()) {
        const auto [text, length] = normalize_prefix(input, rules_, true);
        if (text != " ") break;
        input.remove_prefix(length);
      }
    }
    if (input.empty()) return out;
    out.reserve(input.size() + input.size() / 2 + 8);
    if (!model_.treat_whitespace_as_suffix && spec.add_dummy_prefix) out += space;
    bool after_space = spec.remove_extra_whitespaces;
    while (!input.empty()) {
      auto [text, length] = normalize_prefix(input, rules_, true);
      while (after_space && text.starts_with(' ')) text.remove_prefix(1);
      if (!text.empty()) {
        for (const char c : text) {
          if (c == ' ') {
            out += space;
          } else {
            out += c;
          }
        }
        after_space = text.ends_with(' ');
      }
      input.remove_prefix(length);
      if (!spec.remove_extra_whitespaces) after_space = false;
    }
    if (spec.remove_extra_whitespaces) {
      while (out.ends_with(space)) out.resize(out.size() - space.size());
    }
    if (model_.treat_whitespace_as_suffix && spec.add_dummy_prefix) out += space;
    return out;
  }

  void encode_unigram(std::string_view text, Output& out) const {
    std::vector<Segment> segments;
    const float unk_score = lowest_ - 10.0F;
    best_segmentation<float>(
        pieces_, text, unk_score, unk_,
        [this](int32_t id, size_t bytes) {
          return type_of(id) == PieceType::kUserDefined
                     ? static_cast<float>(static_cast<float>(bytes) * highest_ - 0.1)
                     : model_.pieces[static_cast<size_t>(id)].score;
        },
        segments);
    for (const Segment& segment : segments)
      out.put(text.substr(segment.begin, segment.end - segment.begin), segment.token);
  }

  /// Whether no piece goes on over the beginning of a run of U+2581: then the parts of a text that
  /// such places separate are independent of each other.
  void choose_cuts() {
    cut_at_space_ = ids_.contains(std::string(kSpaceSymbol));
    for (const auto& [text, id] : ids_) {
      if (type_of(id) == PieceType::kUserDefined) continue;
      for (size_t at = text.find(kSpaceSymbol); at != std::string::npos;
           at = text.find(kSpaceSymbol, at + 1)) {
        if (at > 0 && !std::string_view(text).substr(0, at).ends_with(kSpaceSymbol))
          cut_at_space_ = false;
      }
    }
  }

  /// User-defined pieces stay as they are; nothing merges over them.
  void encode_bpe(std::string_view text, WordCache& cache, Output& out) const {
    size_t done = 0;
    for (size_t i = 0; i < text.size();) {
      Trie::Found user;
      if (user_first_[static_cast<unsigned char>(text[i])]) user = user_.longest(text.substr(i));
      if (user.length == 0) {
        i += utf8_length(text[i]);
        continue;
      }
      encode_bpe_text(text.substr(done, i - done), cache, out);
      out.put(text.substr(i, user.length), user.value);
      i += user.length;
      done = i;
    }
    encode_bpe_text(text.substr(done), cache, out);
  }

  void encode_bpe_text(std::string_view text, WordCache& cache, Output& out) const {
    if (!cut_at_space_) {
      encode_bpe_part(text, out);
      return;
    }
    const char* limit = text.data() + text.size();
    while (!text.empty()) {
      size_t end = text.find_first_not_of(kSpaceSymbol); // bytes: may keep parts together
      end = text.find(kSpaceSymbol, end == std::string_view::npos ? text.size() : end);
      const std::string_view part = text.substr(0, end);
      text.remove_prefix(part.size());
      // The part before ended where U+2581, which is known, or a user-defined piece began: an
      // unknown piece does not go on into this one.
      if (cache.find(part, limit, out.tokens)) continue;
      const size_t before = out.tokens.size();
      out.after_unknown = false;
      encode_bpe_part(part, out);
      cache.insert(part, out.tokens.data() + before, out.tokens.size() - before);
    }
    out.after_unknown = false;
  }

  void encode_bpe_part(std::string_view text, Output& out) const {
    std::vector<int32_t> symbols; // pieces, numbers behind them, or -1
    for_each_code_point(text, [&](char32_t c) { symbols.push_back(bpe_.character(c)); });
    bpe_.merges().apply(symbols);
    size_t at = 0;
    for (const int32_t symbol : symbols) {
      const bool is_piece = symbol >= 0 && symbol < vocab_size();
      const std::string_view piece =
          is_piece ? std::string_view(model_.pieces[static_cast<size_t>(symbol)].text)
                   : text.substr(at, utf8_length(text[at]));
      out.put(piece, token_id(piece).value_or(unk_));
      at += piece.size();
    }
  }

  void encode_words(std::string_view text, Output& out) const {
    while (!text.empty()) {
      const size_t end = std::min(text.find(kSpaceSymbol, 1), text.size());
      const std::string_view word = text.substr(0, end);
      out.put(word, token_id(word).value_or(unk_));
      text.remove_prefix(end);
    }
  }

  void encode_characters(std::string_view text, Output& out) const {
    while (!text.empty()) {
      const Trie::Found user = user_.longest(text);
      const std::string_view piece =
          text.substr(0, user.length != 0 ? user.length : utf8_length(text[0]));
      out.put(piece, token_id(piece).value_or(unk_));
      text.remove_prefix(piece.size());
    }
  }

  std::string decode(std::span<const int64_t> tokens, bool with_special) const {
    const SentencePieceModel::NormalizerSpec& spec = model_.normalizer;
    std::string text, bytes;
    bool at_start = true; // a space of the first piece is the dummy prefix
    bool prefix_dropped = false;
    const auto flush = [&] {
      if (!bytes.empty()) text += replace_bytes(bytes);
      bytes.clear();
    };
    for (const int64_t id : tokens) {
      check(id);
      if (!with_special && id == eod_) continue;
      const auto& piece = model_.pieces[static_cast<size_t>(id)];
      if (piece.type == PieceType::kByte) {
        bytes += static_cast<char>(fallback_byte(piece.text));
        continue;
      }
      flush();
      if (prefix_dropped || !text.empty()) at_start = false;
      prefix_dropped = false;
      if (piece.type == PieceType::kControl) continue;
      if (piece.type == PieceType::kUnknown) {
        text += model_.unk_surface;
        continue;
      }
      std::string_view rest = piece.text;
      if (at_start && (spec.add_dummy_prefix || spec.remove_extra_whitespaces) &&
          rest.starts_with(kSpaceSymbol)) {
        rest.remove_prefix(kSpaceSymbol.size());
        prefix_dropped = !spec.remove_extra_whitespaces;
      }
      append_with_spaces(rest, text);
    }
    flush();
    if (inverse_rules_.empty()) return text;
    std::string out;
    for (std::string_view rest = text; !rest.empty();) {
      const auto [replacement, length] = normalize_prefix(rest, inverse_rules_, false);
      out += replacement;
      rest.remove_prefix(length);
    }
    return out;
  }

  static void append_with_spaces(std::string_view piece, std::string& text) {
    while (!piece.empty()) {
      if (piece.starts_with(kSpaceSymbol)) {
        text += ' ';
        piece.remove_prefix(kSpaceSymbol.size());
      } else {
        text += piece.front();
        piece.remove_prefix(1);
      }
    }
  }

  /// Every byte that is no part of a character becomes U+FFFD.
  static std::string replace_bytes(std::string_view bytes) {
    std::string out;
    while (!bytes.empty()) {
      const size_t bad = find_invalid_utf8(bytes);
      out += bytes.substr(0, bad);
      if (bad == std::string_view::npos) break;
      out += "\xEF\xBF\xBD";
      bytes.remove_prefix(bad + 1);
    }
    return out;
  }

  std::string name_;
  SentencePieceModel model_;
  Charsmap rules_, inverse_rules_;
  std::unordered_map<std::string, int32_t> ids_;      // of ordinary pieces
  std::unordered_map<std::string, int32_t> reserved_; // of the others
  Trie pieces_;                                       // that are in use
  Trie user_;                                         // user-defined ones
  std::array<bool, 256> user_first_ = {};             // their first bytes
  std::array<int32_t, 256> byte_ids_;
  int32_t unk_ = -1;
  int32_t eod_ = -1;
  float lowest_ = FLT_MAX, highest_ = FLT_MIN;
  ScoreBpe bpe_;
  bool cut_at_space_ = false;
  PostProcessor around_;
};

} // namespace

std::shared_ptr<const Tokenizer> make_sentencepiece(SentencePieceModel model,
                                                    const SentencePieceOptions& options) {
  return std::make_shared<SentencePieceTokenizer>(std::move(model), options);
}

} // namespace pentatron::data::tokenizer

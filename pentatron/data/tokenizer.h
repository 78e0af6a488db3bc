/// From text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pentatron::data {

/// A file of a tokenizer under the name by which a folder that contains it is a tokenizer's. Of a
/// GGUF file it is what tokenizer.json would be.
struct TokenizerFile {
  std::string name;
  std::string content;
};

/// An encoder with its own scratch memory and word cache, so that threads with one each never wait
/// for each other. Not for two threads at once; the tokenizer must outlive it.
class Encoder {
 public:
  virtual ~Encoder() = default;
  /// What Tokenizer::encode() does.
  virtual void encode(std::string_view text, std::vector<int32_t>& tokens) = 0;
};

/// A text or two as one sequence.
struct EncodedPair {
  std::vector<int32_t> tokens;
  std::vector<int32_t> types; ///< of each token, often 0 for the first text and 1 for the second
};

/// Immutable, so that any number of threads may use one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// "bytes" and the like, for messages and manifests.
  virtual std::string name() const = 0;
  /// Ids are in [0, vocab_size()).
  virtual int64_t vocab_size() const = 0;
  /// The id put after every document; -1 if the tokenizer names none.
  virtual int32_t eod() const = 0;

  /// Appends the tokens of `text` (valid UTF-8; else DataError) to `tokens`, none of them added
  /// before or after the text. Special tokens that a text spells out are recognised where the
  /// tokenizer's own library does so.
  virtual void encode(std::string_view text, std::vector<int32_t>& tokens) const = 0;
  /// Like encode(), and adds the special tokens that the tokenizer puts around a text: [CLS] and
  /// [SEP], <s> and the like.
  virtual void encode_with_special(std::string_view text, std::vector<int32_t>& tokens) const {
    encode(text, tokens);
  }
  /// What the tokenizer puts around a text or a pair of texts, with the type of each token; at most
  /// `max_length` tokens (0: any number), for which the longer text is cut at its end.
  virtual EncodedPair encode_pair(std::string_view text, std::optional<std::string_view> second,
                                  int64_t max_length = 0) const;
  /// For one thread that encodes much.
  virtual std::unique_ptr<Encoder> make_encoder() const;

  /// The text of the tokens; special ones and eod() are nothing. Not always valid UTF-8: a sequence
  /// may end within a character. Throws DataError for an id outside [0, vocab_size()).
  virtual std::string decode(std::span<const int64_t> tokens) const = 0;
  /// Like decode(), and includes the text of special tokens.
  virtual std::string decode_with_special(std::span<const int64_t> tokens) const {
    return decode(tokens);
  }
  /// One token to show to a person: printable, never empty.
  virtual std::string token_name(int64_t id) const = 0;

  /// The bytes of a text that the token stands for, with a space where the tokenizer writes a mark
  /// for it; empty if that is not known.
  virtual std::string token_bytes(int64_t /*id*/) const { return {}; }

  /// The id of the token that the tokenizer's own file spells so, if there is one.
  virtual std::optional<int32_t> token_id(std::string_view token) const;
  /// Whether decode() leaves the token out.
  virtual bool is_special(int64_t id) const { return id == eod(); }

  /// Whether encode(a + b) is encode(a) followed by encode(b) for every a and b, so that a document
  /// may be encoded in pieces as it is read.
  virtual bool encodes_in_pieces() const { return false; }
};

/// Bytes are tokens 0 to 255, the end of a document is 256.
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int64_t kVocabSize = 257;
  static constexpr int32_t kEod = 256;

  std::string name() const override { return "bytes"; }
  int64_t vocab_size() const override { return kVocabSize; }
  int32_t eod() const override { return kEod; }
  void encode(std::string_view text, std::vector<int32_t>& tokens) const override;
  std::string decode(std::span<const int64_t> tokens) const override;
  std::string token_name(int64_t id) const override;
  std::string token_bytes(int64_t id) const override {
    return id < kEod ? std::string(1, static_cast<char>(id)) : std::string();
  }
  bool encodes_in_pieces() const override { return true; }
};

} // namespace pentatron::data

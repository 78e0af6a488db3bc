#include "pentatron/data/tokenizer/hugging_face.h"

#include <algorithm>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/data/tokenizer/added_tokens.h"
#include "pentatron/data/tokenizer/bpe.h"
#include "pentatron/data/tokenizer/byte_level.h"
#include "pentatron/data/tokenizer/cached_tokenizer.h"
#include "pentatron/data/tokenizer/component.h"
#include "pentatron/data/tokenizer/decoder.h"
#include "pentatron/data/tokenizer/model.h"
#include "pentatron/data/tokenizer/post_processor.h"
#include "pentatron/data/tokenizer/pre_tokenizer.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer {

namespace {

/// The shortcut for a byte-level model, if it is one without special cases.
std::unique_ptr<ByteBpe> make_byte_bpe(const Model& model) {
  const auto* bpe = dynamic_cast<const BpeModel*>(&model);
  if (bpe == nullptr) return nullptr;
  const BpeOptions& options = bpe->options();
  if (!options.continuing_subword_prefix.empty() || !options.end_of_word_suffix.empty())
    return nullptr;
  std::array<int32_t, 256> of_byte = {};
  for (size_t b = 0; b < 256; ++b) {
    std::string character;
    append_utf8(character, byte_characters()[b]);
    const std::optional<int32_t> id = bpe->vocabulary().find(character);
    if (!id && (options.byte_fallback || !options.unk_token.empty())) return nullptr;
    of_byte[b] = id.value_or(-1);
  }
  std::shared_ptr<std::unordered_map<std::string, int32_t>> whole;
  if (options.ignore_merges) {
    whole = std::make_shared<std::unordered_map<std::string, int32_t>>();
    bpe->vocabulary().for_each([&](std::string_view token, int32_t) {
      if (auto bytes = characters_to_bytes(token))
        (*whole)[std::move(*bytes)] = *bpe->vocabulary().find(token);
    });
  }
  return std::make_unique<ByteBpe>(bpe->merges(), of_byte, std::move(whole));
}

class HuggingFaceTokenizer final : public CachedTokenizer {
 public:
  HuggingFaceTokenizer(const Json& json, const HuggingFaceOptions& options)
      : name_(options.name), normalizer_(make_normalizer(member(json, "normalizer"))),
        pre_tokenization_(make_pre_tokenizer(member(json, "pre_tokenizer"))),
        model_(make_model(member(json, "model"))),
        added_(member(json, "added_tokens"), model_->vocabulary(), normalizer_.get()),
        post_processor_(make_post_processor(member(json, "post_processor"))),
        decoder_(make_decoder(member(json, "decoder"))) {
    vocab_size_ = model_->vocabulary().end();
    if (!added_.entries().empty())
      vocab_size_ = std::max<int64_t>(vocab_size_, added_.entries().rbegin()->first + 1);
    if (vocab_size_ == 0) throw DataError("the tokenizer has no tokens");
    for (const auto* pieces : {&post_processor_.single, &post_processor_.pair}) {
      for (const PostProcessor::Piece& piece : *pieces) {
        if (piece.token >= vocab_size_)
          raise<DataError>("the post-processor adds token {}, but the vocabulary has {} tokens",
                           piece.token, vocab_size_);
      }
    }
    if (pre_tokenization_.plan) byte_bpe_ = make_byte_bpe(*model_);
    joins_bytes_ = is_byte_level_decoder(member(json, "decoder"));
    if (const Json unknown = member(member(json, "model"), "unk_token"); unknown.is_string())
      unknown_ = unknown.get<std::string>();
    eod_ = find_eod(*this, options.eod);
  }

  std::string name() const override { return name_; }
  int64_t vocab_size() const override { return vocab_size_; }
  int32_t eod() const override { return eod_; }

  std::string decode(std::span<const int64_t> tokens) const override {
    return decode(tokens, /*with_special=*/false);
  }
  std::string decode_with_special(std::span<const int64_t> tokens) const override {
    return decode(tokens, /*with_special=*/true);
  }
  std::string token_name(int64_t id) const override {
    const std::string_view text = token_text(id);
    const auto bytes = joins_bytes_ ? characters_to_bytes(text) : std::nullopt;
    return printable_token(bytes ? std::string_view(*bytes) : text, id);
  }
  std::string token_bytes(int64_t id) const override {
    if (const int byte = joins_bytes_ ? -1 : fallback_byte(token_text(id)); byte >= 0)
      return std::string(1, static_cast<char>(byte)); // some files list these as added tokens
    if (const auto added = added_.entries().find(static_cast<int32_t>(id));
        added != added_.entries().end())
      return added->second.token.content;
    const std::string_view text = token_text(id);
    if (text == unknown_) return {}; // of any text
    if (joins_bytes_) return characters_to_bytes(text).value_or(std::string(text));
    constexpr std::string_view kSpace = "\u2581";
    std::string bytes(text);
    for (size_t at = bytes.find(kSpace); at != std::string::npos; at = bytes.find(kSpace, at + 1))
      bytes.replace(at, kSpace.size(), " ");
    return bytes;
  }
  std::optional<int32_t> token_id(std::string_view token) const override {
    for (const auto& [id, entry] : added_.entries()) {
      if (entry.token.content == token) return id;
    }
    return model_->vocabulary().find(token);
  }
  bool is_special(int64_t id) const override {
    return id == eod_ || added_.is_special(token_text(id));
  }

 protected:
  void encode_valid(std::string_view text, WordCache& cache,
                    std::vector<int32_t>& tokens) const override {
    std::vector<TextPart> parts;
    added_.split(text, /*normalized=*/false, parts);
    for (const TextPart& part : parts) {
      if (part.token >= 0) {
        tokens.push_back(part.token);
        continue;
      }
      const std::string_view between = text.substr(part.begin, part.end - part.begin);
      if (normalizer_) {
        const std::string normalized = normalizer_->apply(std::string(between));
        encode_normalized(normalized, part.begin == 0, cache, tokens);
      } else {
        encode_normalized(between, part.begin == 0, cache, tokens);
      }
    }
  }
  const PostProcessor& post_processor() const override { return post_processor_; }

 private:
  void encode_normalized(std::string_view text, bool first, WordCache& cache,
                         std::vector<int32_t>& tokens) const {
    std::vector<TextPart> parts;
    added_.split(text, /*normalized=*/true, parts);
    for (const TextPart& part : parts) {
      if (part.token >= 0) {
        tokens.push_back(part.token);
      } else {
        encode_text(text.substr(part.begin, part.end - part.begin), first && part.begin == 0, cache,
                    tokens);
      }
    }
  }

  void encode_text(std::string_view text, bool first, WordCache& cache,
                   std::vector<int32_t>& tokens) const {
    if (byte_bpe_) {
      if (pre_tokenization_.plan->add_prefix_space && !text.starts_with(' ')) {
        const std::string with_space = " " + std::string(text);
        encode_bytes(with_space, 0, with_space.data() + with_space.size(), cache, tokens);
      } else {
        encode_bytes(text, 0, text.data() + text.size(), cache, tokens);
      }
      return;
    }
    if (!pre_tokenization_.general) {
      model_->encode(text, cache, tokens);
      return;
    }
    Words words;
    words.text = text;
    words.words.push_back({0, text.size(), first});
    pre_tokenization_.general->apply(words);
    for (const Words::Word& word : words.words) model_->encode(words.view(word), cache, tokens);
  }

  /// Applies the steps of the plan from `step` on to `text`.
  void encode_bytes(std::string_view text, size_t step, const char* limit, WordCache& cache,
                    std::vector<int32_t>& tokens) const {
    const std::vector<ByteLevelStep>& steps = pre_tokenization_.plan->steps;
    if (step == steps.size()) {
      byte_bpe_->encode(text, limit, cache, tokens);
      return;
    }
    const Splitter& splitter = *steps[step].splitter;
    const auto take = [&](size_t begin, size_t end) {
      encode_bytes(text.substr(begin, end - begin), step + 1, limit, cache, tokens);
    };
    size_t done = 0;
    for (size_t from = 0; from < text.size();) {
      const Match match = splitter.find(text, from);
      if (!match.found()) break;
      if (match.begin > done && steps[step].keep_gaps) take(done, match.begin);
      if (match.end > match.begin) take(match.begin, match.end);
      done = match.end;
      from = match.end;
      if (match.end == match.begin)
        from += match.end < text.size() ? utf8_length(text[match.end]) : 1;
    }
    if (done < text.size() && steps[step].keep_gaps) take(done, text.size());
  }

  /// Of the added token or the model's; empty in a gap.
  std::string_view token_text(int64_t id) const {
    const auto added = added_.entries().find(static_cast<int32_t>(id));
    if (added != added_.entries().end()) return added->second.text;
    return model_->vocabulary().token(id).value_or(std::string_view());
  }

  std::string decode(std::span<const int64_t> ids, bool with_special) const {
    std::vector<std::string> tokens;
    std::string bytes;
    for (const int64_t id : ids) {
      if (id < 0 || id >= vocab_size_)
        raise<DataError>("token {} is outside the tokenizer's range of 0 to {}", id,
                         vocab_size_ - 1);
      const std::string_view text = token_text(id);
      if (!with_special && (id == eod_ || added_.is_special(text))) continue;
      if (joins_bytes_) {
        const auto of_token = characters_to_bytes(text);
        bytes += of_token ? std::string_view(*of_token) : text;
      } else if (!text.empty()) {
        tokens.emplace_back(text);
      }
    }
    if (joins_bytes_) return replace_invalid_utf8(bytes);
    if (decoder_) tokens = decoder_->apply(std::move(tokens));
    std::string all;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (!decoder_ && i != 0) all += ' ';
      all += tokens[i];
    }
    return all;
  }

  std::string name_;
  std::unique_ptr<Normalizer> normalizer_;
  PreTokenization pre_tokenization_;
  std::unique_ptr<Model> model_;
  AddedTokens added_;
  PostProcessor post_processor_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<ByteBpe> byte_bpe_;
  bool joins_bytes_ = false;
  std::string unknown_; ///< the token for what the vocabulary cannot write
  int64_t vocab_size_ = 0;
  int32_t eod_ = -1;
};

} // namespace

std::shared_ptr<const Tokenizer> make_hugging_face(const Json& json,
                                                   const HuggingFaceOptions& options) {
  if (!json.is_object()) throw DataError("tokenizer.json is not an object");
  return std::make_shared<HuggingFaceTokenizer>(json, options);
}

Json gpt2_as_tokenizer_json(const Json& vocabulary, std::string_view merges) {
  Json list = Json::array();
  for (std::string_view line : split(merges, '\n')) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    list.push_back(line);
  }
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  Json json = {{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", std::move(list)}}},
               {"pre_tokenizer", byte_level},
               {"decoder", byte_level},
               {"added_tokens", Json::array()}};
  constexpr const char* kEnd = "<|endoftext|>";
  if (vocabulary.is_object() && vocabulary.contains(kEnd)) {
    json["added_tokens"].push_back(
        {{"id", vocabulary[kEnd]}, {"content", kEnd}, {"special", true}, {"normalized", false}});
  }
  return json;
}

std::string printable_token(std::string_view text, int64_t id) {
  std::string out;
  bool visible = false;
  for (const char c : replace_invalid_utf8(text)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("<0x{:02X}>", byte);
      visible = true;
    } else {
      out += c;
      visible = visible || c != ' ';
    }
  }
  return visible ? out : out.empty() ? fmt::format("<token {}>", id) : "'" + out + "'";
}

int32_t find_eod(const Tokenizer& tokenizer, const EodChoice& choice) {
  if (!choice.required.empty()) {
    const std::optional<int32_t> id = tokenizer.token_id(choice.required);
    if (!id)
      raise<DataError>("the tokenizer has no token '{}' to end documents with", choice.required);
    return *id;
  }
  if (!choice.likely.empty()) {
    if (const std::optional<int32_t> id = tokenizer.token_id(choice.likely)) return *id;
  }
  for (const char* name :
       {"<|endoftext|>", "<|end_of_text|>", "</s>", "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
        "<eos>", "<|im_end|>", "[SEP]", "<eod>", "[EOS]"}) {
    // One that is spelled so by chance may be in any text.
    const std::optional<int32_t> id = tokenizer.token_id(name);
    if (id && tokenizer.is_special(*id)) return *id;
  }
  return -1;
}

} // namespace pentatron::data::tokenizer

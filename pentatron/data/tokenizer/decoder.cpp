#include "pentatron/data/tokenizer/decoder.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/byte_level.h"
#include "pentatron/data/tokenizer/component.h"
#include "pentatron/data/tokenizer/normalizer.h"
#include "pentatron/data/tokenizer/unicode.h"
#include "pentatron/data/utf8.h"

namespace pentatron::data::tokenizer {

namespace {

using Tokens = std::vector<std::string>;

class FunctionDecoder final : public Decoder {
 public:
  explicit FunctionDecoder(std::function<Tokens(Tokens)> f) : f_(std::move(f)) {}
  Tokens apply(Tokens tokens) const override { return f_(std::move(tokens)); }

 private:
  std::function<Tokens(Tokens)> f_;
};

std::unique_ptr<Decoder> make_function(std::function<Tokens(Tokens)> f) {
  return std::make_unique<FunctionDecoder>(std::move(f));
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
  }
  out += text;
  return out;
}

std::string fused(const Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

Tokens decode_byte_level(const Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    const auto of_token = characters_to_bytes(token);
    bytes += of_token ? *of_token : token;
  }
  return {replace_invalid_utf8(bytes)};
}

Tokens decode_byte_fallback(const Tokens& tokens) {
  Tokens out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (find_invalid_utf8(bytes) == std::string_view::npos) {
      out.push_back(bytes);
    } else {
      for (size_t i = 0; i < bytes.size(); ++i) out.emplace_back("\xEF\xBF\xBD");
    }
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const int byte = fallback_byte(token); byte >= 0) {
      bytes += static_cast<char>(byte);
    } else {
      flush();
      out.push_back(token);
    }
  }
  flush();
  return out;
}

std::string clean_up(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) text = replaced(text, from, to);
  return text;
}

std::unique_ptr<Decoder> make_word_piece_decoder(const Json& json) {
  const auto prefix = json_get_or(json, "prefix", std::string("##"), "the decoder WordPiece");
  const bool cleanup = json_get_or(json, "cleanup", true, "the decoder WordPiece");
  return make_function([prefix, cleanup](Tokens tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i != 0)
        tokens[i] =
            tokens[i].starts_with(prefix) ? tokens[i].substr(prefix.size()) : " " + tokens[i];
      if (cleanup) tokens[i] = clean_up(std::move(tokens[i]));
    }
    return tokens;
  });
}

std::unique_ptr<Decoder> make_metaspace_decoder(const Json& json) {
  constexpr std::string_view kWhere = "the decoder Metaspace";
  const auto replacement = json_get_or(json, "replacement", std::string("\xE2\x96\x81"), kWhere);
  if (replacement.empty()) raise<DataError>("{} has an empty replacement", kWhere);
  const bool prefix = json_get_or(json, "add_prefix_space", true, kWhere);
  const auto scheme =
      json_get_or(json, "prepend_scheme", std::string(prefix ? "always" : "never"), kWhere);
  return make_function([replacement, drop = scheme != "never"](Tokens tokens) {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = replaced(tokens[i], replacement, i == 0 && drop ? "" : " ");
    return tokens;
  });
}

std::string strip_token(const std::string& token, std::string_view content, size_t start,
                        size_t stop) {
  std::string_view rest = token;
  for (size_t i = 0; i < start && rest.starts_with(content); ++i)
    rest.remove_prefix(content.size());
  for (size_t i = 0; i < stop && rest.ends_with(content); ++i) rest.remove_suffix(content.size());
  return std::string(rest);
}

std::unique_ptr<Decoder> make_strip(const Json& json) {
  const auto content = json_get_or(json, "content", std::string(" "), "the decoder Strip");
  if (content.empty() || content.size() != utf8_length(content[0]))
    raise<DataError>("the content '{}' of the decoder Strip is not one character", content);
  const auto start = json_get_or(json, "start", int64_t{0}, "the decoder Strip");
  const auto stop = json_get_or(json, "stop", int64_t{0}, "the decoder Strip");
  if (start < 0 || stop < 0)
    raise<DataError>("the decoder Strip has start={} and stop={}", start, stop);
  return make_function([content, start, stop](Tokens tokens) {
    for (std::string& token : tokens)
      token = strip_token(token, content, static_cast<size_t>(start), static_cast<size_t>(stop));
    return tokens;
  });
}

Tokens decode_ctc(const Tokens& tokens, const std::string& pad, const std::string& delimiter,
                  bool cleanup) {
  Tokens out;
  const std::string* previous = nullptr;
  for (const std::string& token : tokens) {
    const bool again = previous != nullptr && *previous == token;
    previous = &token;
    if (again) continue;
    std::string text = replaced(token, pad, "");
    if (cleanup) text = replaced(clean_up(std::move(text)), delimiter, " ");
    if (!text.empty()) out.push_back(std::move(text));
  }
  return out;
}

std::unique_ptr<Decoder> make_decoder_step(const Json& json, int depth);

class SequenceDecoder final : public Decoder {
 public:
  SequenceDecoder(const Json& json, int depth) {
    if (!json.contains("decoders") || !json["decoders"].is_array())
      throw DataError("a decoder of type Sequence has no list `decoders`");
    if (depth >= kMaxComponentDepth) throw DataError("decoders are nested too deep");
    for (const Json& step : json["decoders"]) steps_.push_back(make_decoder_step(step, depth + 1));
  }
  Tokens apply(Tokens tokens) const override {
    for (const auto& step : steps_) tokens = step->apply(std::move(tokens));
    return tokens;
  }

 private:
  std::vector<std::unique_ptr<Decoder>> steps_;
};

std::unique_ptr<Decoder> make_decoder_step(const Json& json, int depth) {
  const auto type = json_get<std::string>(json, "type", "a decoder");
  if (type == "Sequence") return std::make_unique<SequenceDecoder>(json, depth);
  if (type == "ByteLevel")
    return make_function([](Tokens tokens) { return decode_byte_level(tokens); });
  if (type == "ByteFallback")
    return make_function([](Tokens tokens) { return decode_byte_fallback(tokens); });
  if (type == "Fuse") return make_function([](Tokens tokens) { return Tokens{fused(tokens)}; });
  if (type == "WordPiece") return make_word_piece_decoder(json);
  if (type == "Metaspace") return make_metaspace_decoder(json);
  if (type == "Strip") return make_strip(json);
  if (type == "Replace") {
    auto replacer = std::make_shared<const Replacer>(json, "the decoder Replace");
    return make_function([replacer](Tokens tokens) {
      for (std::string& token : tokens) token = replacer->apply(token);
      return tokens;
    });
  }
  if (type == "BPEDecoder") {
    const auto suffix = json_get_or(json, "suffix", std::string("</w>"), "BPEDecoder");
    if (suffix.empty()) throw DataError("the decoder BPEDecoder has an empty suffix");
    return make_function([suffix](Tokens tokens) {
      for (size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = replaced(tokens[i], suffix, i + 1 == tokens.size() ? "" : " ");
      return tokens;
    });
  }
  if (type == "CTC") {
    const auto pad = json_get_or(json, "pad_token", std::string("<pad>"), "CTC");
    const auto delimiter = json_get_or(json, "word_delimiter_token", std::string("|"), "CTC");
    const bool cleanup = json_get_or(json, "cleanup", true, "CTC");
    if (pad.empty() || delimiter.empty()) throw DataError("the decoder CTC has an empty token");
    return make_function([pad, delimiter, cleanup](Tokens tokens) {
      return decode_ctc(tokens, pad, delimiter, cleanup);
    });
  }
  raise<DataError>("the decoder type {} is not supported", type);
}

} // namespace

std::unique_ptr<Decoder> make_decoder(const Json& json) {
  return json.is_null() ? nullptr : make_decoder_step(json, 0);
}

bool is_byte_level_decoder(const Json& json) {
  return json.is_object() && json.contains("type") && json["type"] == "ByteLevel";
}

int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

} // namespace pentatron::data::tokenizer

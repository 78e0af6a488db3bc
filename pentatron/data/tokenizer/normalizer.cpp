#include "pentatron/data/tokenizer/normalizer.h"

#include <functional>
#include <utility>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/byte_level.h"
#include "pentatron/data/tokenizer/charsmap.h"
#include "pentatron/data/tokenizer/component.h"
#include "pentatron/data/tokenizer/splitter.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer {

namespace {

class FunctionNormalizer final : public Normalizer {
 public:
  explicit FunctionNormalizer(std::function<std::string(std::string)> f) : f_(std::move(f)) {}
  std::string apply(std::string text) const override { return f_(std::move(text)); }

 private:
  std::function<std::string(std::string)> f_;
};

class SequenceNormalizer final : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> steps)
      : steps_(std::move(steps)) {}
  std::string apply(std::string text) const override {
    for (const auto& step : steps_) text = step->apply(std::move(text));
    return text;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

/// The code points that `f` maps to themselves, others, or nothing (0xFFFFFFFF).
template <class F> std::string map_code_points(std::string_view text, F&& f) {
  constexpr char32_t kNothing = 0xFFFFFFFF;
  std::string out;
  out.reserve(text.size());
  for_each_code_point(text, [&](char32_t c) {
    const char32_t mapped = f(c);
    if (mapped != kNothing) append_utf8(out, mapped);
  });
  return out;
}
constexpr char32_t kDrop = 0xFFFFFFFF;

bool is_chinese(char32_t c) {
  const auto in = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
  return in(0x4E00, 0x9FFF) || in(0x3400, 0x4DBF) || in(0x20000, 0x2A6DF) || in(0x2A700, 0x2B73F) ||
         in(0x2B740, 0x2B81F) || in(0x2B920, 0x2CEAF) || in(0xF900, 0xFAFF) || in(0x2F800, 0x2FA1F);
}

bool is_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const Category category = old_category(c);
  return category == Category::kCc || category == Category::kCf || category == Category::kCo ||
         category == Category::kCs;
}

std::string strip_accents(std::string_view text, bool spacing_too) {
  return map_code_points(text, [spacing_too](char32_t c) {
    return (spacing_too ? is_old_mark(c) : old_category(c) == Category::kMn) ? kDrop : c;
  });
}

struct BertOptions {
  bool clean_text, chinese, strip, lowercase;
};

std::string bert_normalize(std::string text, const BertOptions& options) {
  if (options.clean_text) {
    text = map_code_points(text, [](char32_t c) -> char32_t {
      if (c == 0 || c == 0xFFFD || is_control(c)) return kDrop;
      return is_space(c) ? U' ' : c;
    });
  }
  if (options.chinese) {
    std::string out;
    out.reserve(text.size());
    for_each_code_point(text, [&](char32_t c) {
      const bool chinese = is_chinese(c);
      if (chinese) out += ' ';
      append_utf8(out, c);
      if (chinese) out += ' ';
    });
    text = std::move(out);
  }
  if (options.strip) text = strip_accents(normalize(text, NormalForm::kNfd), false);
  if (options.lowercase) text = to_lower(text);
  return text;
}

std::string strip(std::string text, bool left, bool right) {
  std::string_view rest = text;
  while (left && !rest.empty()) {
    const CodePoint c = read_code_point(rest.data());
    if (!is_space(c.value)) break;
    rest.remove_prefix(c.size);
  }
  while (right && !rest.empty()) {
    const CodePoint c = last_code_point(rest);
    if (!is_space(c.value)) break;
    rest.remove_suffix(c.size);
  }
  return rest.size() == text.size() ? std::move(text) : std::string(rest);
}

std::string nmt(std::string_view text) {
  return map_code_points(text, [](char32_t c) -> char32_t {
    if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F ||
        c == 0x9F)
      return kDrop;
    if (c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
        c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD)
      return U' ';
    return c;
  });
}

/// Rules for grapheme clusters of fewer than 6 bytes, else for single characters, and of the rules
/// that fit a beginning the one for the shortest: what Hugging Face's library does.
class PrecompiledNormalizer final : public Normalizer {
 public:
  explicit PrecompiledNormalizer(std::string_view bytes)
      : rules_(bytes), clusters_(make_regex_splitter("\\X", PatternFlavor::kRust)) {}

  std::string apply(std::string text) const override {
    std::string out;
    out.reserve(text.size());
    const std::string_view all = text;
    for (size_t i = 0; i < all.size();) {
      const size_t end = cluster_end(all, i);
      const std::string_view cluster = all.substr(i, end - i);
      if (cluster.size() < 6) {
        if (const Charsmap::Rule rule = rules_.shortest(cluster); rule.length != 0) {
          out += rule.replacement;
          i = end;
          continue;
        }
      }
      for (; i < end; i += utf8_length(all[i])) {
        const std::string_view c = all.substr(i, utf8_length(all[i]));
        const Charsmap::Rule rule = rules_.shortest(c);
        out += rule.length != 0 ? rule.replacement : c;
      }
    }
    return out;
  }

 private:
  size_t cluster_end(std::string_view text, size_t i) const {
    const auto plain = [](char c) { return c >= 0x20 && c < 0x7F; };
    if (plain(text[i]) && (i + 1 == text.size() || plain(text[i + 1]))) return i + 1;
    const Match match = clusters_->find(text, i);
    return match.found() && match.begin == i ? match.end : i + utf8_length(text[i]);
  }

  Charsmap rules_;
  std::unique_ptr<Splitter> clusters_;
};

std::unique_ptr<Normalizer> make_function(std::function<std::string(std::string)> f) {
  return std::make_unique<FunctionNormalizer>(std::move(f));
}

std::unique_ptr<Normalizer> make_normalizer_step(const Json& json, int depth);

std::unique_ptr<Normalizer> make_sequence(const Json& json, int depth) {
  if (!json.contains("normalizers") || !json["normalizers"].is_array())
    throw DataError("a normalizer of type Sequence has no list `normalizers`");
  if (depth >= kMaxComponentDepth) throw DataError("normalizers are nested too deep");
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (const Json& step : json["normalizers"])
    steps.push_back(make_normalizer_step(step, depth + 1));
  return std::make_unique<SequenceNormalizer>(std::move(steps));
}

std::unique_ptr<Normalizer> make_bert(const Json& json) {
  constexpr std::string_view kWhere = "BertNormalizer";
  BertOptions options{.clean_text = json_get_or(json, "clean_text", true, kWhere),
                      .chinese = json_get_or(json, "handle_chinese_chars", true, kWhere),
                      .strip = false,
                      .lowercase = json_get_or(json, "lowercase", true, kWhere)};
  options.strip = json_get_or(json, "strip_accents", options.lowercase, kWhere);
  return make_function(
      [options](std::string text) { return bert_normalize(std::move(text), options); });
}

std::unique_ptr<Normalizer> make_form(NormalForm form) {
  return make_function([form](std::string text) { return normalize(text, form); });
}

std::unique_ptr<Normalizer> make_normalizer_step(const Json& json, int depth) {
  const auto type = json_get<std::string>(json, "type", "a normalizer");
  if (type == "Sequence") return make_sequence(json, depth);
  if (type == "NFC") return make_form(NormalForm::kNfc);
  if (type == "NFD") return make_form(NormalForm::kNfd);
  if (type == "NFKC") return make_form(NormalForm::kNfkc);
  if (type == "NFKD") return make_form(NormalForm::kNfkd);
  if (type == "Lowercase") return make_function([](std::string text) { return to_lower(text); });
  if (type == "StripAccents")
    return make_function([](std::string text) { return strip_accents(text, true); });
  if (type == "Nmt") return make_function([](std::string text) { return nmt(text); });
  if (type == "ByteLevel")
    return make_function([](std::string text) { return bytes_to_characters(text); });
  if (type == "BertNormalizer") return make_bert(json);
  if (type == "Strip") {
    const bool left = json_get_or(json, "strip_left", true, "Strip");
    const bool right = json_get_or(json, "strip_right", true, "Strip");
    return make_function(
        [left, right](std::string text) { return strip(std::move(text), left, right); });
  }
  if (type == "Prepend") {
    const auto prefix = json_get<std::string>(json, "prepend", "Prepend");
    return make_function(
        [prefix](std::string text) { return text.empty() ? text : prefix + text; });
  }
  if (type == "Replace") {
    auto replacer = std::make_shared<const Replacer>(json, "the normalizer Replace");
    return make_function([replacer](std::string text) { return replacer->apply(text); });
  }
  if (type == "Precompiled") {
    return std::make_unique<PrecompiledNormalizer>(
        decode_base64(json_get_or(json, "precompiled_charsmap", std::string(), "Precompiled")));
  }
  raise<DataError>("the normalizer type {} is not supported", type);
}

} // namespace

std::unique_ptr<Normalizer> make_normalizer(const Json& json) {
  return json.is_null() ? nullptr : make_normalizer_step(json, 0);
}

struct Replacer::State {
  std::string literal; // empty: a regular expression
  std::unique_ptr<Splitter> pattern;
  std::string content;
};

Replacer::Replacer(const Json& json, std::string_view where) : state_(std::make_unique<State>()) {
  state_->content = json_get<std::string>(json, "content", where);
  const Json pattern = json.contains("pattern") ? json["pattern"] : Json();
  if (pattern.is_object() && pattern.contains("String")) {
    state_->literal = json_get<std::string>(pattern, "String", where);
    if (state_->literal.empty()) raise<DataError>("{} has an empty pattern", where);
  } else if (pattern.is_object() && pattern.contains("Regex")) {
    state_->pattern =
        make_splitter(json_get<std::string>(pattern, "Regex", where), PatternFlavor::kOniguruma);
  } else {
    raise<DataError>("{} has no pattern of kind String or Regex", where);
  }
}
Replacer::~Replacer() = default;
Replacer::Replacer(Replacer&&) noexcept = default;

std::string Replacer::apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  for (size_t from = 0; from <= text.size();) {
    Match match;
    if (state_->pattern) {
      match = state_->pattern->find(text, from);
    } else {
      match.begin = text.find(state_->literal, from);
      match.end = match.begin + state_->literal.size();
    }
    if (!match.found()) break;
    out += text.substr(done, match.begin - done);
    out += state_->content;
    done = match.end;
    from = match.end > match.begin   ? match.end
           : match.end < text.size() ? match.end + utf8_length(text[match.end])
                                     : text.size() + 1;
  }
  out += text.substr(done);
  return out;
}

} // namespace pentatron::data::tokenizer

#include "pentatron/data/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/byte_level.h"
#include "pentatron/data/tokenizer/component.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer {

namespace {

using Word = Words::Word;

/// A part of a word that matched or did not; together they cover it.
struct Part {
  size_t begin, end;
  bool match;
};
/// Appends the parts of `text`.
using FindParts = std::function<void(std::string_view text, std::vector<Part>& parts)>;

FindParts parts_of(std::shared_ptr<const Splitter> splitter) {
  return [splitter](std::string_view text, std::vector<Part>& parts) {
    size_t done = 0;
    for (size_t from = 0; from < text.size();) {
      const Match match = splitter->find(text, from);
      if (!match.found()) break;
      if (match.begin > done) parts.push_back({done, match.begin, false});
      parts.push_back({match.begin, match.end, true});
      done = match.end;
      from = match.end;
      if (match.end == match.begin)
        from += match.end < text.size() ? utf8_length(text[match.end]) : 1;
    }
    if (done < text.size()) parts.push_back({done, text.size(), false});
  };
}

/// Every character for which `is` holds is a match of its own.
FindParts parts_of(std::function<bool(char32_t)> is) {
  return [is](std::string_view text, std::vector<Part>& parts) {
    size_t done = 0;
    for (size_t i = 0; i < text.size();) {
      const CodePoint c = read_code_point(text.data() + i);
      if (is(c.value)) {
        if (i > done) parts.push_back({done, i, false});
        parts.push_back({i, i + c.size, true});
        done = i + c.size;
      }
      i += c.size;
    }
    if (done < text.size()) parts.push_back({done, text.size(), false});
  };
}

void merge_parts(const std::vector<Part>& parts, SplitBehavior behavior, std::vector<Part>& out) {
  bool previous = false;
  switch (behavior) {
  case SplitBehavior::kIsolated:
    out = parts;
    return;
  case SplitBehavior::kRemoved:
    std::copy_if(parts.begin(), parts.end(), std::back_inserter(out),
                 [](const Part& part) { return !part.match; });
    return;
  case SplitBehavior::kContiguous:
    for (const Part& part : parts) {
      if (!out.empty() && out.back().match == part.match) {
        out.back().end = part.end;
      } else {
        out.push_back(part);
      }
    }
    return;
  case SplitBehavior::kMergedWithPrevious:
    for (const Part& part : parts) {
      if (part.match && !previous && !out.empty()) {
        out.back().end = part.end;
      } else {
        out.push_back(part);
      }
      previous = part.match;
    }
    return;
  case SplitBehavior::kMergedWithNext:
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (part->match && !previous && !out.empty()) {
        out.back().begin = part->begin;
      } else {
        out.push_back(*part);
      }
      previous = part->match;
    }
    std::reverse(out.begin(), out.end());
    return;
  }
}

void split(Words& words, const FindParts& find, SplitBehavior behavior, bool invert = false) {
  std::vector<Word> out;
  std::vector<Part> parts, merged;
  for (const Word& word : words.words) {
    parts.clear();
    merged.clear();
    find(words.view(word), parts);
    if (invert) {
      for (Part& part : parts) part.match = !part.match;
    }
    merge_parts(parts, behavior, merged);
    for (const Part& part : merged) {
      if (part.end > part.begin)
        out.push_back(
            {word.begin + part.begin, word.begin + part.end, word.first && part.begin == 0});
    }
  }
  words.words = std::move(out);
}

/// Writes every word anew: `rewrite(word, text)` appends it.
template <class F> void rewrite(Words& words, F&& f) {
  std::string text;
  text.reserve(words.text.size() + words.text.size() / 2);
  for (Word& word : words.words) {
    const size_t begin = text.size();
    f(word, text);
    word.begin = begin;
    word.end = text.size();
  }
  words.text = std::move(text);
}

class SplitPreTokenizer final : public PreTokenizer {
 public:
  SplitPreTokenizer(FindParts find, SplitBehavior behavior, bool invert = false)
      : find_(std::move(find)), behavior_(behavior), invert_(invert) {}
  void apply(Words& words) const override { split(words, find_, behavior_, invert_); }

 private:
  FindParts find_;
  SplitBehavior behavior_;
  bool invert_;
};

class SequencePreTokenizer final : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> steps)
      : steps_(std::move(steps)) {}
  void apply(Words& words) const override {
    for (const auto& step : steps_) step->apply(words);
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

class ByteLevelPreTokenizer final : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, std::shared_ptr<const Splitter> splitter)
      : add_prefix_space_(add_prefix_space) {
    if (splitter) find_ = parts_of(std::move(splitter));
  }
  void apply(Words& words) const override {
    if (add_prefix_space_) {
      rewrite(words, [&](const Word& word, std::string& text) {
        const std::string_view old = words.view(word);
        if (!old.starts_with(' ')) text += ' ';
        text += old;
      });
    }
    if (find_) split(words, find_, SplitBehavior::kIsolated);
    rewrite(words, [&](const Word& word, std::string& text) {
      for (const char c : words.view(word))
        append_utf8(text, byte_characters()[static_cast<unsigned char>(c)]);
    });
  }

 private:
  bool add_prefix_space_;
  FindParts find_;
};

class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  enum class Prepend : uint8_t { kAlways, kFirst, kNever };
  MetaspacePreTokenizer(std::string replacement, Prepend prepend, bool splits)
      : replacement_(std::move(replacement)), prepend_(prepend), splits_(splits) {
    const char32_t c = read_code_point(replacement_.data()).value;
    find_ = parts_of([c](char32_t other) { return other == c; });
  }
  void apply(Words& words) const override {
    rewrite(words, [&](const Word& word, std::string& text) {
      const std::string_view old = words.view(word);
      const bool has = old.starts_with(' ') || old.starts_with(replacement_);
      if (!has && (prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && word.first)))
        text += replacement_;
      for (const char c : old) {
        if (c == ' ') {
          text += replacement_;
        } else {
          text += c;
        }
      }
    });
    if (splits_) split(words, find_, SplitBehavior::kMergedWithNext);
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  bool splits_;
  FindParts find_;
};

class FixedLengthPreTokenizer final : public PreTokenizer {
 public:
  explicit FixedLengthPreTokenizer(int64_t length) : length_(length) {}
  void apply(Words& words) const override {
    std::vector<Word> out;
    for (const Word& word : words.words) {
      for (size_t i = word.begin; i < word.end;) {
        const size_t begin = i;
        for (int64_t k = 0; k < length_ && i < word.end; ++k) i += utf8_length(words.text[i]);
        out.push_back({begin, i, word.first && begin == word.begin});
      }
    }
    words.words = std::move(out);
  }

 private:
  int64_t length_;
};

bool is_punctuation(char32_t c) {
  if (c < 0x80) return (char_tables().flags[c] & (kPunctuation | kSymbol)) != 0;
  const Category category = old_category(c);
  return category >= Category::kPc && category <= Category::kPs;
}
bool is_number(char32_t c) {
  return (char_tables().flags[c] & kNumber) != 0;
}

SplitBehavior read_behavior(const Json& json, std::string_view otherwise, std::string_view where) {
  const auto name = json_get_or(json, "behavior", std::string(otherwise), where);
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  raise<DataError>("the behavior {} of the pre-tokenizer {} is not supported", name, where);
}

std::string read_character(const Json& json, std::string_view key, std::string otherwise,
                           std::string_view where) {
  auto text = json_get_or(json, key, std::move(otherwise), where);
  if (text.empty() || text.size() != utf8_length(text[0]))
    raise<DataError>("`{}` of {} is not one character but '{}'", key, where, text);
  return text;
}

/// Builds the general form and notes the plan while it can.
class Builder {
 public:
  std::unique_ptr<PreTokenizer> make(const Json& json, int depth) {
    const auto type = json_get<std::string>(json, "type", "a pre-tokenizer");
    if (type == "Sequence") return make_sequence(json, depth);
    if (type == "ByteLevel") return make_byte_level(json);
    if (type == "Split") return make_split(json);
    planned_ = planned_ && type == "Digits";
    if (type == "Digits") return make_digits(json);
    if (type == "Metaspace") return make_metaspace(json);
    if (type == "WhitespaceSplit") return make_characters(is_space, SplitBehavior::kRemoved);
    if (type == "Whitespace") {
      return std::make_unique<SplitPreTokenizer>(
          parts_of(make_splitter("\\w+|[^\\w\\s]+", PatternFlavor::kRust)), SplitBehavior::kRemoved,
          /*invert=*/true);
    }
    if (type == "BertPreTokenizer") {
      std::vector<std::unique_ptr<PreTokenizer>> steps;
      steps.push_back(make_characters(is_space, SplitBehavior::kRemoved));
      steps.push_back(make_characters(is_punctuation, SplitBehavior::kIsolated));
      return std::make_unique<SequencePreTokenizer>(std::move(steps));
    }
    if (type == "Punctuation")
      return make_characters(is_punctuation, read_behavior(json, "Isolated", type));
    if (type == "CharDelimiterSplit") {
      const std::string delimiter = read_character(json, "delimiter", "", type);
      const char32_t c = read_code_point(delimiter.data()).value;
      return make_characters([c](char32_t other) { return other == c; }, SplitBehavior::kRemoved);
    }
    if (type == "FixedLength") {
      const int64_t length = json_get_or(json, "length", int64_t{5}, type);
      if (length < 1) raise<DataError>("the pre-tokenizer FixedLength has the length {}", length);
      return std::make_unique<FixedLengthPreTokenizer>(length);
    }
    raise<DataError>("the pre-tokenizer type {} is not supported", type);
  }

  std::unique_ptr<ByteLevelPlan> plan() {
    return planned_ && ended_ ? std::make_unique<ByteLevelPlan>(std::move(plan_)) : nullptr;
  }

 private:
  static std::unique_ptr<PreTokenizer> make_characters(std::function<bool(char32_t)> is,
                                                       SplitBehavior behavior) {
    return std::make_unique<SplitPreTokenizer>(parts_of(std::move(is)), behavior);
  }

  std::unique_ptr<PreTokenizer> make_sequence(const Json& json, int depth) {
    if (!json.contains("pretokenizers") || !json["pretokenizers"].is_array())
      throw DataError("a pre-tokenizer of type Sequence has no list `pretokenizers`");
    if (depth >= kMaxComponentDepth) throw DataError("pre-tokenizers are nested too deep");
    std::vector<std::unique_ptr<PreTokenizer>> steps;
    for (const Json& step : json["pretokenizers"]) steps.push_back(make(step, depth + 1));
    return std::make_unique<SequencePreTokenizer>(std::move(steps));
  }

  std::unique_ptr<PreTokenizer> make_byte_level(const Json& json) {
    const bool prefix = json_get_or(json, "add_prefix_space", true, "ByteLevel");
    std::shared_ptr<const Splitter> splitter;
    if (json_get_or(json, "use_regex", true, "ByteLevel")) splitter = find_scanner(kGpt2Pattern);
    // A prefix of words that were split before would be one for each.
    planned_ = planned_ && !ended_ && !(prefix && !plan_.steps.empty());
    ended_ = true;
    plan_.add_prefix_space = prefix;
    if (splitter) plan_.steps.push_back({splitter});
    return std::make_unique<ByteLevelPreTokenizer>(prefix, splitter);
  }

  static std::unique_ptr<PreTokenizer> make_metaspace(const Json& json) {
    using Prepend = MetaspacePreTokenizer::Prepend;
    const bool prefix = json_get_or(json, "add_prefix_space", true, "Metaspace");
    const auto scheme =
        json_get_or(json, "prepend_scheme", std::string(prefix ? "always" : "never"), "Metaspace");
    if (scheme != "always" && scheme != "first" && scheme != "never")
      raise<DataError>("the prepend_scheme {} of Metaspace is not supported", scheme);
    return std::make_unique<MetaspacePreTokenizer>(
        read_character(json, "replacement", "\xE2\x96\x81", "Metaspace"),
        scheme == "always"  ? Prepend::kAlways
        : scheme == "first" ? Prepend::kFirst
                            : Prepend::kNever,
        json_get_or(json, "split", true, "Metaspace"));
  }

  std::unique_ptr<PreTokenizer> make_split(const Json& json) {
    const Json pattern = json.contains("pattern") ? json["pattern"] : Json();
    std::string expression;
    if (pattern.is_object() && pattern.contains("String")) {
      expression = escape_pattern(json_get<std::string>(pattern, "String", "Split"));
    } else if (pattern.is_object() && pattern.contains("Regex")) {
      expression = json_get<std::string>(pattern, "Regex", "Split");
    } else {
      throw DataError("a pre-tokenizer of type Split has no pattern of kind String or Regex");
    }
    const std::shared_ptr<const Splitter> splitter =
        make_splitter(expression, PatternFlavor::kOniguruma);
    const SplitBehavior behavior = read_behavior(json, "", "Split");
    const bool invert = json_get_or(json, "invert", false, "Split");
    add_step(splitter, behavior, invert);
    return std::make_unique<SplitPreTokenizer>(parts_of(splitter), behavior, invert);
  }

  std::unique_ptr<PreTokenizer> make_digits(const Json& json) {
    const bool each = json_get_or(json, "individual_digits", false, "Digits");
    if (each) {
      add_step(find_scanner("\\p{N}"), SplitBehavior::kIsolated, false);
    } else {
      add_step(make_splitter("\\p{N}+", PatternFlavor::kRust), SplitBehavior::kIsolated, false);
    }
    return make_characters(is_number, each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }

  void add_step(std::shared_ptr<const Splitter> splitter, SplitBehavior behavior, bool invert) {
    planned_ =
        planned_ && !ended_ &&
        (behavior == SplitBehavior::kIsolated || (behavior == SplitBehavior::kRemoved && invert));
    plan_.steps.push_back({std::move(splitter), behavior == SplitBehavior::kIsolated});
  }

  ByteLevelPlan plan_;
  bool planned_ = true;
  bool ended_ = false; // with a ByteLevel
};

} // namespace

PreTokenization make_pre_tokenizer(const Json& json) {
  PreTokenization result;
  if (json.is_null()) return result;
  Builder builder;
  result.general = builder.make(json, 0);
  result.plan = builder.plan();
  return result;
}

} // namespace pentatron::data::tokenizer

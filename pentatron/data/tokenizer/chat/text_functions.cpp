#include "pentatron/data/tokenizer/chat/text_functions.h"

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/base/white_space.h"
#include "pentatron/data/tokenizer/chat/formats.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer::chat {

namespace {

bool is_letter(char32_t c) {
  return (char_tables().flags[c] & kLetter) != 0;
}

List split_from_end(const std::string& text, const Value* separator, int64_t most) {
  List out;
  std::string_view rest = text;
  const bool at_space = separator == nullptr || separator->is_none();
  const std::string by = at_space ? "" : string_of(*separator, "rsplit");
  if (!at_space && by.empty()) throw DataError("rsplit has an empty separator");
  for (; most != 0; --most) {
    if (at_space) rest = without_trailing_space(rest);
    size_t begin = at_space ? rest.size() : rest.rfind(by);
    while (at_space && begin > 0) {
      const CodePoint c = last_code_point(rest.substr(0, begin));
      if (is_white_space(c.value)) break;
      begin -= c.size;
    }
    if (begin == std::string_view::npos || (at_space && begin == 0)) break;
    out.emplace_back(std::string(rest.substr(begin + by.size())));
    rest = rest.substr(0, begin);
  }
  if (at_space) rest = without_trailing_space(rest);
  if (!at_space || !rest.empty()) out.emplace_back(std::string(rest));
  std::reverse(out.begin(), out.end());
  return out;
}

Value partition(const std::string& text, const std::string& by, bool first) {
  if (by.empty()) throw DataError("partition has an empty separator");
  const size_t at = first ? text.find(by) : text.rfind(by);
  if (at == std::string::npos)
    return first ? make_tuple({text, "", ""}) : make_tuple({"", "", text});
  return make_tuple({text.substr(0, at), by, text.substr(at + by.size())});
}

Value padded(const std::string& text, std::string_view name, const Arguments& arguments) {
  const int64_t width = integer_of(&needed(arguments, 0, "width", name), 0, name);
  const Value* given = arguments.find(1, "fillchar");
  const std::string fill = name == "zfill" ? "0" : given == nullptr ? " " : string_of(*given, name);
  if (length(Value(fill)) != 1) throw DataError("a text is filled up with one character");
  if (width > 100'000) raise<DataError>("{} to {} characters", name, width);
  const int64_t missing = std::max<int64_t>(0, width - length(Value(text)));
  const int64_t left = name == "ljust"    ? 0
                       : name == "center" ? missing / 2 + (missing & width & 1)
                                          : missing;
  std::string before, after;
  for (int64_t i = 0; i < missing; ++i) (i < left ? before : after) += fill;
  const bool sign = name == "zfill" && (text.starts_with('-') || text.starts_with('+'));
  return text.substr(0, sign ? 1 : 0) + before + text.substr(sign ? 1 : 0) + after;
}

/// As str.splitlines: at every character that ends a line.
List lines_of(const std::string& text, bool keep_ends) {
  List lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = read_code_point(text.data() + i);
    const bool ends = (c.value >= U'\n' && c.value <= U'\r') ||
                      (c.value >= 0x1C && c.value <= 0x1E) || c.value == 0x85 ||
                      c.value == 0x2028 || c.value == 0x2029;
    const size_t end = i;
    i += c.size;
    if (!ends) continue;
    if (c.value == U'\r' && i < text.size() && text[i] == '\n') ++i;
    lines.emplace_back(text.substr(begin, (keep_ends ? i : end) - begin));
    begin = i;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string swapped_case(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); i += utf8_length(text[i])) {
    const std::string letter = text.substr(i, utf8_length(text[i]));
    const Category category = char_tables().category[read_code_point(letter.data()).value];
    out += category == Category::kLu   ? to_lower(letter)
           : category == Category::kLl ? to_upper(letter)
                                       : letter;
  }
  return out;
}

/// isalpha and its like: whether the text is not empty and every character is one.
bool is_all(const std::string& text, std::string_view name) {
  if (name == "isupper" || name == "islower") // and has a letter that has both
    return text == (name == "isupper" ? to_upper(text) : to_lower(text)) &&
           to_upper(text) != to_lower(text);
  bool all = !text.empty();
  for_each_code_point(text, [&](char32_t c) {
    const bool digit = char_tables().category[c] == Category::kNd;
    all = all && (name == "isspace"   ? is_white_space(c)
                  : name == "isalpha" ? is_letter(c)
                  : name == "isalnum" ? is_letter(c) || digit
                  : name == "isascii" ? c < 0x80
                                      : digit);
  });
  return all;
}

bool starts_or_ends(const std::string& text, const Value& affix, bool start) {
  if (const List* any = affix.list()) {
    return std::any_of(any->begin(), any->end(),
                       [&](const Value& one) { return starts_or_ends(text, one, start); });
  }
  const std::string& wanted = string_of(affix, start ? "startswith" : "endswith");
  return start ? text.starts_with(wanted) : text.ends_with(wanted);
}

} // namespace

const Value* Arguments::find(size_t position, std::string_view name) const {
  if (position < values.size()) return &values[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

const Value& needed(const Arguments& arguments, size_t position, std::string_view name,
                    std::string_view what) {
  const Value* value = arguments.find(position, name);
  if (value == nullptr) raise<DataError>("{} needs an argument {}", what, name);
  return *value;
}

const std::string& string_of(const Value& v, std::string_view what) {
  const std::string* text = v.string();
  if (text == nullptr) raise<DataError>("{} needs a string, not {}", what, type_name(v));
  return *text;
}

int64_t integer_of(const Value* v, int64_t otherwise, std::string_view what) {
  if (v == nullptr || v->is_none()) return otherwise;
  int64_t out = 0;
  if (!to_integer(*v, out)) raise<DataError>("{} needs an integer, not {}", what, type_name(*v));
  return out;
}

std::string strip(std::string_view text, const Value* characters, bool left, bool right) {
  if (characters == nullptr || characters->is_none()) {
    if (left) text = without_leading_space(text);
    return std::string(right ? without_trailing_space(text) : text);
  }
  const std::string& set = string_of(*characters, "strip");
  const auto among = [&](std::string_view one) {
    for (size_t at = set.find(one); at != std::string::npos; at = set.find(one, at + 1))
      if ((static_cast<unsigned char>(set[at]) & 0xC0) != 0x80) return true;
    return false;
  };
  while (left && !text.empty() && among(text.substr(0, utf8_length(text.front()))))
    text.remove_prefix(utf8_length(text.front()));
  while (right && !text.empty() && among(text.substr(text.size() - last_code_point(text).size)))
    text.remove_suffix(last_code_point(text).size);
  return std::string(text);
}

std::string title(std::string_view text, WordStart words) {
  constexpr std::string_view kDottedI = "\u0130", kItsLower = "i\u0307"; // alone becomes two
  std::string out;
  bool start = true;
  const std::string lower = to_lower_words(text);
  for (size_t i = 0, j = 0; i < text.size();) {
    const std::string_view letter = text.substr(i, utf8_length(text[i]));
    const size_t size = letter == kDottedI ? kItsLower.size() : utf8_length(lower[j]);
    if (start)
      out += words == WordStart::kBlank ? to_upper(letter) : to_title(letter);
    else
      out.append(lower, j, size);
    i += letter.size();
    j += size;
    const char32_t c = read_code_point(letter.data()).value;
    start = words == WordStart::kNoLetter ? !is_letter(c)
            : words == WordStart::kBlank
                ? is_white_space(c) || std::string_view("-({[<").find(letter) != std::string::npos
                : false;
  }
  return out;
}

std::string replace(const std::string& text, const std::string& from, const std::string& to,
                    int64_t count) {
  std::string out;
  if (from.empty()) { // before each character and at the end
    size_t i = 0;
    for (; i < text.size() && count != 0; --count) {
      out += to;
      out.append(text, i, utf8_length(text[i]));
      check_length(out);
      i += utf8_length(text[i]);
    }
    if (count != 0) out += to;
    out.append(text, i);
    return out;
  }
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string::npos && count != 0; --count) {
    out.append(text, done, at - done);
    out += to;
    check_length(out);
    done = at + from.size();
    at = text.find(from, done);
  }
  return out.append(text, done);
}

List split(const std::string& text, const Value* separator, int64_t most) {
  List out;
  std::string_view rest = text;
  if (separator == nullptr || separator->is_none()) {
    for (;;) {
      rest = without_leading_space(rest);
      if (rest.empty()) return out;
      const size_t end = most-- == 0 ? rest.size() : find_space(rest).begin;
      out.emplace_back(std::string(rest.substr(0, end)));
      rest.remove_prefix(end);
    }
  }
  const std::string& by = string_of(*separator, "split");
  if (by.empty()) throw DataError("split has an empty separator");
  for (size_t at = rest.find(by); at != std::string_view::npos && most != 0; at = rest.find(by)) {
    out.emplace_back(std::string(rest.substr(0, at)));
    rest.remove_prefix(at + by.size());
    --most;
  }
  out.emplace_back(std::string(rest));
  return out;
}

std::string join(const List& items, const std::string& separator) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i != 0) out += separator;
    out += to_text(items[i]);
    check_length(out);
  }
  return out;
}

std::string indent(const std::string& text, const Arguments& arguments) {
  const Value* width = arguments.find(0, "width");
  const std::string pad =
      width != nullptr && width->string() != nullptr
          ? *width->string()
          : std::string(
                static_cast<size_t>(std::clamp<int64_t>(integer_of(width, 4, "indent"), 0, 1000)),
                ' ');
  const Value* first = arguments.find(1, "first");
  const Value* blank = arguments.find(2, "blank");
  std::string out;
  size_t begin = 0;
  for (bool start = true; begin <= text.size(); start = false) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const bool padded = start ? first != nullptr && is_true(*first)
                              : end > begin || (blank != nullptr && is_true(*blank));
    if (padded) out += pad;
    out.append(text, begin, end - begin);
    if (end < text.size()) out += '\n';
    check_length(out);
    begin = end + 1;
  }
  return out;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += c == '&'    ? "&amp;"
           : c == '<'  ? "&lt;"
           : c == '>'  ? "&gt;"
           : c == '"'  ? "&#34;"
           : c == '\'' ? "&#39;"
                       : std::string(1, c);
  check_length(out);
  return out;
}

std::string markup_text(const Value& v) {
  return v.is_markup ? *v.string() : escaped(to_text(v));
}

void escape_arguments(Arguments& arguments) {
  const auto escape = [](Value& v) {
    double number = 0;
    if (!to_real(v, number)) v = markup_text(v);
  };
  for (Value& v : arguments.values) escape(v);
  for (auto& [name, v] : arguments.named) escape(v);
}

int64_t count_words(std::string_view text) {
  int64_t words = 0;
  bool inside = false;
  for_each_code_point(text, [&](char32_t c) {
    const bool part = c == U'_' || (char_tables().flags[c] & (kLetter | kNumber)) != 0;
    words += part && !inside ? 1 : 0;
    inside = part;
  });
  return words;
}

Value truncated(const Value& v, const Arguments& arguments) {
  const std::string& text = string_of(v, "truncate");
  const int64_t most = integer_of(arguments.find(0, "length"), 255, "truncate"),
                leeway = integer_of(arguments.find(3, "leeway"), 5, "truncate"),
                size = length(Value(text));
  const Value* words = arguments.find(1, "killwords");
  const Value* given = arguments.find(2, "end");
  const std::string end = given == nullptr ? "..." : string_of(*given, "truncate");
  const int64_t keep = most - length(Value(end));
  if (keep < 0 || leeway < 0)
    raise<DataError>("truncate to {} characters with the end '{}' and a leeway of {}", most, end,
                     leeway);
  if (size - leeway <= most) return v;
  size_t bytes = 0;
  for (int64_t i = 0; i < keep; ++i) bytes += utf8_length(text[bytes]);
  std::string cut = text.substr(0, bytes);
  if (words == nullptr || !is_true(*words)) cut = cut.substr(0, cut.rfind(' '));
  return v.is_markup ? make_markup(cut + escaped(end)) : Value(cut + end);
}

std::string url_encoded(const Value& v) {
  const auto quoted = [](const Value& part, bool in_query) {
    std::string out;
    for (const char c : to_text(part)) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
      if (plain || std::string_view("_.-~").find(c) != std::string_view::npos ||
          (c == '/' && !in_query))
        out += c;
      else if (c == ' ' && in_query)
        out += '+';
      else
        out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
    check_length(out);
    return out;
  };
  if (v.list() == nullptr && v.dict() == nullptr) return quoted(v, false);
  std::string out;
  const auto add = [&](const Value& key, const Value& value) {
    out += (out.empty() ? "" : "&") + quoted(key, true) + "=" + quoted(value, true);
    check_length(out);
  };
  if (const Dict* dict = v.dict()) {
    for (const auto& [key, value] : *dict) add(key, value);
    return out;
  }
  for (const Value& pair : *v.list()) {
    const List two = elements(pair);
    if (two.size() != 2) throw DataError("urlencode needs pairs");
    add(two[0], two[1]);
  }
  return out;
}

bool has_string_method(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "capitalize", "casefold", "center",     "count",      "endswith",     "find",
      "format",     "index",    "isalnum",    "isalpha",    "isascii",      "isdecimal",
      "isdigit",    "islower",  "isnumeric",  "isspace",    "isupper",      "join",
      "ljust",      "lower",    "lstrip",     "partition",  "removeprefix", "removesuffix",
      "replace",    "rfind",    "rindex",     "rjust",      "rpartition",   "rsplit",
      "rstrip",     "split",    "splitlines", "startswith", "strip",        "swapcase",
      "title",      "upper",    "zfill"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

Value call_string_method(const std::string& text, std::string_view name,
                         const Arguments& arguments) {
  if (name == "strip") return strip(text, arguments.find(0, "chars"), true, true);
  if (name == "lstrip") return strip(text, arguments.find(0, "chars"), true, false);
  if (name == "rstrip") return strip(text, arguments.find(0, "chars"), false, true);
  if (name == "split" || name == "rsplit") {
    const int64_t most = integer_of(arguments.find(1, "maxsplit"), -1, name);
    const Value* separator = arguments.find(0, "sep");
    return make_list(name == "split" ? split(text, separator, most)
                                     : split_from_end(text, separator, most));
  }
  if (name == "partition" || name == "rpartition")
    return partition(text, string_of(needed(arguments, 0, "sep", name), name), name == "partition");
  if (name == "removeprefix" || name == "removesuffix") {
    const bool front = name == "removeprefix";
    const std::string& affix = string_of(needed(arguments, 0, "affix", name), name);
    if (front ? !text.starts_with(affix) : !text.ends_with(affix)) return text;
    return front ? text.substr(affix.size()) : text.substr(0, text.size() - affix.size());
  }
  if (name == "format") return brace_format(text, arguments);
  if (name == "ljust" || name == "rjust" || name == "center" || name == "zfill")
    return padded(text, name, arguments);
  if (name.starts_with("is")) return is_all(text, name);
  if (name == "splitlines") {
    const Value* keep = arguments.find(0, "keepends");
    return make_list(lines_of(text, keep != nullptr && is_true(*keep)));
  }
  if (name == "upper") return to_upper(text);
  if (name == "lower") return to_lower_words(text);
  if (name == "casefold") return to_lower(text);
  if (name == "swapcase") return swapped_case(text);
  if (name == "title") return title(text, WordStart::kNoLetter);
  if (name == "capitalize") return title(text, WordStart::kText);
  if (name == "startswith" || name == "endswith")
    return starts_or_ends(text, needed(arguments, 0, "prefix", name), name == "startswith");
  if (name == "replace")
    return replace(text, string_of(needed(arguments, 0, "old", name), name),
                   string_of(needed(arguments, 1, "new", name), name),
                   integer_of(arguments.find(2, "count"), -1, name));
  if (name == "join") return join(elements(needed(arguments, 0, "iterable", name)), text);
  const std::string& part = string_of(needed(arguments, 0, "sub", name), name);
  if (name == "count") {
    int64_t count = 0;
    if (part.empty()) return length(Value(text)) + 1;
    for (size_t at = text.find(part); at != std::string::npos;
         at = text.find(part, at + part.size()))
      ++count;
    return count;
  }
  const size_t at = name.starts_with('r') ? text.rfind(part) : text.find(part);
  if (name.ends_with("index") && at == std::string::npos)
    raise<DataError>("{}: the text does not contain the other one", name);
  return at == std::string::npos ? Value(int64_t{-1}) : Value(length(Value(text.substr(0, at))));
}

} // namespace pentatron::data::tokenizer::chat

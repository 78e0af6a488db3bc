#include <algorithm>
#include <charconv>
#include <optional>

#include "pentatron/base/error.h"
#include "pentatron/base/white_space.h"
#include "pentatron/data/regex.h"
#include "pentatron/data/tokenizer/chat/text_functions.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer::chat {

namespace {

constexpr size_t kMaxWrapped = size_t{1} << 20;

struct WrapOptions {
  int64_t width = 79;
  bool break_long_words = true, break_on_hyphens = true;
};

struct Chunk {
  std::string_view text;
  int64_t size; ///< characters
};

/// Words, parts of them that end in a hyphen, and white space: as textwrap of Python splits.
std::vector<std::string> chunks_of(const std::string& line, bool on_hyphens) {
  static const Regex kHyphens(
      "([\\t\\n\\x0b\\x0c\\r ]+|(?<=[\\w!\"'&.,?])-{2,}(?=\\w)|[^\\t\\n\\x0b\\x0c\\r ]+?(?:"
      "-(?:(?<=[^\\d\\W]{2}-)|(?<=[^\\d\\W]-[^\\d\\W]-))(?=[^\\d\\W]-?[^\\d\\W])"
      "|(?=[\\t\\n\\x0b\\x0c\\r ]|\\Z)|(?<=[\\w!\"'&.,?])(?=-{2,}\\w)))");
  static const Regex kWords("([\\t\\n\\x0b\\x0c\\r ]+|[^\\t\\n\\x0b\\x0c\\r ]+)");
  std::vector<std::string> chunks;
  for (const Regex::Groups& groups : (on_hyphens ? kHyphens : kWords).find_all(line))
    chunks.push_back(groups[0]);
  return chunks;
}

/// The bytes of the first `count` characters.
size_t bytes_of(std::string_view text, int64_t count) {
  size_t bytes = 0;
  for (; bytes < text.size() && count > 0; --count) bytes += utf8_length(text[bytes]);
  return bytes;
}

/// Cuts what fits into `room` characters off a word that is longer than a line.
Chunk cut_off(Chunk& word, int64_t room, bool on_hyphens) {
  size_t bytes = bytes_of(word.text, room);
  const std::string_view head = word.text.substr(0, bytes);
  const size_t hyphen = head.rfind('-');
  if (on_hyphens && word.size > room && hyphen != std::string_view::npos && hyphen > 0 &&
      head.substr(0, hyphen).find_first_not_of('-') != std::string_view::npos) {
    bytes = hyphen + 1;
    room = length(Value(std::string(head.substr(0, bytes))));
  }
  const Chunk cut{word.text.substr(0, bytes), std::min(room, word.size)};
  word = {word.text.substr(bytes), word.size - cut.size};
  return cut;
}

/// textwrap.wrap of Python without changes of white space inside lines.
List wrapped(const std::string& line, const WrapOptions& options) {
  const std::vector<std::string> texts = chunks_of(line, options.break_on_hyphens);
  std::vector<Chunk> rest; // the next one last
  for (auto text = texts.rbegin(); text != texts.rend(); ++text)
    rest.push_back({*text, length(Value(*text))});
  List lines;
  const auto blank = [](const Chunk& chunk) { return stripped(chunk.text).empty(); };
  while (!rest.empty()) {
    std::vector<Chunk> now;
    int64_t size = 0;
    if (blank(rest.back()) && !lines.empty()) rest.pop_back();
    for (; !rest.empty() && size + rest.back().size <= options.width; rest.pop_back()) {
      now.push_back(rest.back());
      size += rest.back().size;
    }
    if (!rest.empty() && rest.back().size > options.width) {
      if (options.break_long_words) {
        now.push_back(cut_off(rest.back(), options.width - size, options.break_on_hyphens));
      } else if (now.empty()) {
        now.push_back(rest.back());
        rest.pop_back();
      }
    }
    if (!now.empty() && blank(now.back())) now.pop_back();
    std::string text;
    for (const Chunk& chunk : now) text += chunk.text;
    if (!now.empty()) lines.emplace_back(std::move(text));
  }
  return lines;
}

/// Without <tags> and <!-- comments -->, up to the first that is not closed.
std::string without_tags(std::string_view text) {
  std::string out;
  for (;;) {
    const size_t begin = text.find('<');
    if (begin == std::string_view::npos) return out.append(text);
    const bool comment = text.substr(begin).starts_with("<!--");
    const size_t end = comment ? text.find("-->", begin + 4) : text.find('>', begin);
    if (end == std::string_view::npos) return out.append(text);
    out.append(text.substr(0, begin));
    text.remove_prefix(end + (comment ? 3 : 1));
  }
}

/// The character of "#39" or "#x27".
std::string numbered_character(std::string_view name) {
  const bool hex = name.size() > 1 && (name[1] | 0x20) == 'x';
  uint32_t code = 0;
  const std::string_view digits = name.substr(hex ? 2 : 1);
  const auto error =
      std::from_chars(digits.data(), digits.data() + digits.size(), code, hex ? 16 : 10).ec;
  const bool bad =
      error != std::errc() || code == 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000);
  if (code < 0x20 ? code != 9 && code != 10 && code != 12 && code != 13 && code != 0
                  : code >= 0x7F && code < 0xA0)
    raise<DataError>("striptags of &{}; is not supported", name);
  std::string out;
  append_utf8(out, bad ? 0xFFFD : code);
  return out;
}

/// The characters of &lt; and its like.
std::string unescaped(std::string_view text) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"amp", "&"}, {"lt", "<"}, {"gt", ">"}, {"quot", "\""}, {"apos", "'"}, {"nbsp", "\u00a0"}};
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '&') {
      out += text[i];
      continue;
    }
    const std::string_view rest = text.substr(i + 1);
    const size_t numbers = rest.starts_with("#x") || rest.starts_with("#X") ? 2
                           : rest.starts_with('#')                          ? 1
                                                                            : 0;
    const std::string_view set =
        numbers == 2   ? "0123456789abcdefABCDEF"
        : numbers == 1 ? "0123456789"
                       : "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const size_t end = std::min(rest.find_first_not_of(set, numbers), rest.size());
    const std::string_view name = rest.substr(0, end);
    const bool closed = end < rest.size() && rest[end] == ';';
    const auto found = std::ranges::find_if(kNames, [&](const auto& one) {
      return closed ? name == one.first : one.first != "apos" && name.starts_with(one.first);
    });
    if (numbers > 0 && end > numbers) {
      out += numbered_character(name);
      i += end + (closed ? 1 : 0);
    } else if (numbers == 0 && found != std::end(kNames)) {
      out += found->second;
      i += closed ? end + 1 : found->first.size();
    } else if (closed && numbers == 0 && !name.empty()) {
      raise<DataError>("striptags of &{}; is not supported", name);
    } else {
      out += '&';
    }
  }
  return out;
}

} // namespace

std::string word_wrapped(const std::string& text, const Arguments& arguments) {
  const auto flag = [&](size_t position, const char* name) {
    const Value* given = arguments.find(position, name);
    return given == nullptr || is_true(*given);
  };
  const WrapOptions options{.width = integer_of(arguments.find(0, "width"), 79, "wordwrap"),
                            .break_long_words = flag(1, "break_long_words"),
                            .break_on_hyphens = flag(3, "break_on_hyphens")};
  if (text.size() > kMaxWrapped)
    raise<DataError>("wordwrap of {} bytes, more than {}", text.size(), kMaxWrapped);
  if (options.width < 1) raise<DataError>("wordwrap to {} characters", options.width);
  const Value* given = arguments.find(2, "wrapstring");
  const std::string by =
      given == nullptr || given->is_none() ? "\n" : string_of(*given, "wordwrap");
  List lines;
  const Value all = call_string_method(text, "splitlines", {});
  for (const Value& line : *all.list())
    lines.emplace_back(join(wrapped(*line.string(), options), by));
  return join(lines, by);
}

std::string without_markup(const std::string& text) {
  return unescaped(join(split(without_tags(text), nullptr, -1), " "));
}

} // namespace pentatron::data::tokenizer::chat

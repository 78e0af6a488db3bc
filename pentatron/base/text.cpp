#include "pentatron/base/text.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstdint>

namespace pentatron {

namespace {

/// Bytes of the well-formed character that begins at `text[i]`, 0 if there is none (Unicode 15,
/// table 3-7).
size_t utf8_length(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<uint8_t>(text[k]); };
  const uint8_t first = byte(i);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                        : first >= 0xE0 && first <= 0xEF ? 3
                        : first >= 0xF0 && first <= 0xF4 ? 4
                                                         : 0;
  if (length == 0 || length > text.size() - i) return 0;
  const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(i + 1) < low || byte(i + 1) > high) return 0;
  for (size_t k = 2; k < length; ++k) {
    if ((byte(i + k) & 0xC0) != 0x80) return 0;
  }
  return length;
}

} // namespace

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

bool matches_pattern(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

std::string xml_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
    case '<':
      out += "&lt;";
      break;
    case '>':
      out += "&gt;";
      break;
    case '&':
      out += "&amp;";
      break;
    case '"':
      out += "&quot;";
      break;
    default:
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

namespace {

constexpr std::string_view kTry = "try: ";
/// How commands begin that are told to a user.
constexpr std::string_view kCommands[] = {"pentatron ", "pip ",     "hf ",      "ulimit ",
                                          "chmod ",     "apt-get ", "torchrun "};

/// What a user may copy, also behind "try: ".
bool is_command(std::string_view line) {
  line = trim(line);
  const bool is_tried = line.starts_with(kTry);
  if (is_tried) line.remove_prefix(kTry.size());
  if (!is_tried) return line.starts_with(kCommands[0]); // a sentence may begin with "hf"
  return std::ranges::any_of(kCommands, [&](auto begin) { return line.starts_with(begin); });
}

void fold_line(std::string_view line, size_t columns, std::string& out) {
  const size_t start = std::min(line.find_first_not_of(' '), line.size());
  const size_t gap = line.find("  ", start);
  size_t indent = gap == std::string_view::npos ? start : line.find_first_not_of(' ', gap);
  if (line.substr(start).starts_with(kTry)) indent = start + kTry.size();
  if (indent > columns / 2) indent = std::min(start + 2, columns / 2); // or nothing fits beside it
  const std::string before(indent, ' ');
  size_t used = 0, least = std::max(indent, start + 1);
  while (used + line.size() > columns) {
    size_t cut = columns >= used ? line.rfind(' ', columns - used) : std::string_view::npos;
    if (cut == std::string_view::npos || cut < least) cut = line.find(' ', least);
    const size_t next = line.find_first_not_of(' ', cut);
    if (next == std::string_view::npos) break;
    out += line.substr(0, cut);
    out += '\n' + before;
    line.remove_prefix(next);
    used = indent;
    least = 1;
  }
  out += line;
}

} // namespace

std::string shell_word(std::string_view text) {
  constexpr std::string_view kSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                     "0123456789_@%+=:,./-";
  if (!text.empty() && text.find_first_not_of(kSafe) == std::string_view::npos)
    return std::string(text);
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string fold_lines(std::string_view text, size_t columns) {
  std::string out;
  for (const std::string_view line : split(text, '\n')) {
    if (!out.empty() || line.data() != text.data()) out += '\n';
    if (is_command(line))
      out += line;
    else
      fold_line(line, columns, out);
  }
  return out;
}

std::string excerpt(std::string_view text, size_t limit) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    const auto byte = static_cast<uint8_t>(text[i]);
    const bool bad = length == 0 || byte < 0x20 || byte == 0x7F;
    if (out.size() + (bad ? 1 : length) > limit) return out + "...";
    if (bad) {
      out += '?';
      ++i;
    } else {
      out += text.substr(i, length);
      i += length;
    }
  }
  return out;
}

} // namespace pentatron

#include "pentatron/data/split_sentences.h"

#include <algorithm>
#include <array>

namespace pentatron::data {

namespace {

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

bool is_capital(char c) {
  return c >= 'A' && c <= 'Z';
}

bool is_letter(char c) {
  return is_capital(c) || (c >= 'a' && c <= 'z');
}

/// How many bytes of `rest` are one of `marks`; 0: none.
template <size_t N>
size_t mark_length(std::string_view rest, const std::array<std::string_view, N>& marks) {
  for (const std::string_view mark : marks) {
    if (rest.starts_with(mark)) return mark.size();
  }
  return 0;
}

constexpr std::array<std::string_view, 4> kEnds{".", "!", "?", "\u2026"};
constexpr std::array<std::string_view, 3> kWideEnds{"\u3002", "\uFF01", "\uFF1F"};
constexpr std::array<std::string_view, 10> kClosing{
    "\"", "'", ")", "]", "\u201D", "\u2019", "\u00BB", "\u300D", "\uFF09", "*"};
constexpr std::array<std::string_view, 9> kAbbreviations{"Mr",   "Mrs", "Ms", "Dr", "St",
                                                         "Prof", "Jr",  "Sr", "vs"};

/// Whether the point at `at` belongs to the word before it.
bool is_abbreviated(std::string_view text, size_t at) {
  size_t begin = at;
  while (begin > 0 && is_letter(text[begin - 1])) --begin;
  const std::string_view word = text.substr(begin, at - begin);
  if (word.size() == 1 && is_capital(word[0])) return true;
  return std::ranges::find(kAbbreviations, word) != kAbbreviations.end();
}

size_t skip_spaces(std::string_view text, size_t at) {
  while (at < text.size() && is_space(text[at])) ++at;
  return at;
}

/// Where the sentence that goes on at `at` ends there, or 0 if it does not.
size_t end_at(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(at);
  if (text[at] == '\n') {
    const size_t next = text.find_first_not_of(" \t\r", at + 1);
    return next != std::string_view::npos && text[next] == '\n' ? at : 0;
  }
  const size_t wide = mark_length(rest, kWideEnds);
  size_t length = wide != 0 ? wide : mark_length(rest, kEnds);
  if (length == 0 || (text[at] == '.' && is_abbreviated(text, at))) return 0;
  size_t end = at + length;
  while ((length = mark_length(text.substr(end), kClosing)) != 0) end += length;
  if (wide != 0) return end;
  const size_t next = skip_spaces(text, end);
  const bool small = next < text.size() && text[next] >= 'a' && text[next] <= 'z';
  return next > end && !small ? end : 0;
}

} // namespace

std::vector<std::string_view> split_sentences(std::string_view text) {
  std::vector<std::string_view> sentences;
  size_t begin = skip_spaces(text, 0);
  const auto add = [&](size_t end) {
    size_t last = end;
    while (last > begin && is_space(text[last - 1])) --last;
    if (last > begin) sentences.push_back(text.substr(begin, last - begin));
    begin = skip_spaces(text, end);
  };
  for (size_t at = begin; at < text.size();) {
    if (const size_t end = end_at(text, at); end != 0) {
      add(end);
      at = std::max(begin, at + 1);
    } else {
      ++at;
    }
  }
  add(text.size());
  return sentences;
}

std::vector<std::string> spaced_sentences(std::string_view text) {
  std::vector<std::string> spaced;
  const char* end = nullptr; // of the sentence before
  for (const std::string_view sentence : split_sentences(text)) {
    spaced.emplace_back(end != nullptr && end != sentence.data() ? " " : "").append(sentence);
    end = sentence.data() + sentence.size();
  }
  return spaced;
}

} // namespace pentatron::data

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/base/white_space.h"
#include "pentatron/data/regex.h"
#include "pentatron/data/tokenizer/unicode.h"
#include "pentatron/evaluation/tasks/scores.h"

namespace pentatron::evaluation {

namespace {

using Groups = data::Regex::Groups;

/// What re.findall finds, counted from the end if `select` is negative.
std::optional<Groups> match_in(const std::string& pattern, int64_t select,
                               const std::string& text) {
  const std::vector<Groups> matches = data::Regex(pattern).find_all(text);
  const auto count = static_cast<int64_t>(matches.size());
  const int64_t i = select < 0 ? count + select : select;
  if (count == 0) return std::nullopt;
  if (i < 0 || i >= count)
    raise<DataError>("group_select: {} is not among the {} matches of '{}' in an answer\n  try: "
                     "group_select: -1, the last match",
                     select, count, pattern);
  return matches[static_cast<size_t>(i)];
}

/// The first group that is not empty.
std::string first_of(const Groups& groups) {
  const auto first = std::ranges::find_if(groups, [](const auto& g) { return !g.empty(); });
  return first == groups.end() ? "" : std::string(stripped(*first));
}

std::string select_match(const FilterStep& step, const std::string& text) {
  const std::optional<Groups> groups = match_in(step.regex_pattern, step.group_select, text);
  if (!groups) return step.fallback;
  const bool nothing =
      groups->size() > 1 && std::ranges::all_of(*groups, [](const auto& g) { return g.empty(); });
  return nothing ? std::string(stripped(step.fallback)) : first_of(*groups);
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool special = static_cast<unsigned char>(c) < 0x80 && c != '_' &&
                         !(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'z') &&
                         !(c >= 'A' && c <= 'Z');
    if (special) out += '\\';
    out += c;
  }
  return out;
}

/// The letter "(B)" of a multiple choice: what the pattern finds, else the letter of the choice
/// that the text contains, else the letter after a colon.
class LetterFinder {
 public:
  LetterFinder(const FilterStep& step, const Document& document) : step_(step) {
    const auto choices = document.find("choices");
    if (choices == document.end() || !choices->is_array())
      throw DataError("multi_choice_regex needs documents with a list 'choices'\n  try: function: "
                      "regex");
    for (const Document& choice : *choices) {
      if (!choice.is_string() || texts_.size() == 26)
        throw DataError("multi_choice_regex needs at most 26 choices, which are strings\n  try: "
                        "function: regex");
      texts_.push_back(plain(std::string(stripped(choice.get<std::string>()))));
    }
  }

  std::string find(const std::string& text) const {
    if (std::string found = match_of(step_.regex_pattern, text); !found.empty()) return found;
    std::vector<std::string> longest;
    std::string letters;
    for (size_t i = 0; i < texts_.size(); ++i) {
      longest.push_back(escaped(texts_[i]));
      letters += (letters.empty() ? "" : "|") + std::string(1, letter(i));
    }
    std::ranges::stable_sort(longest, std::ranges::greater(), &std::string::size);
    std::string any;
    for (const std::string& one : longest) any += (&one == longest.data() ? "" : "|") + one;
    if (std::string found = match_of(any, plain(text)); !found.empty()) {
      const auto same = std::find(texts_.rbegin(), texts_.rend(), found); // the last counts
      return same == texts_.rend()
                 ? found
                 : fmt::format("({})", letter(static_cast<size_t>(texts_.rend() - same - 1)));
    }
    const std::string found = match_of(":[\\s]*(" + letters + ")", text);
    return found.empty() ? step_.fallback : "(" + found + ")";
  }

 private:
  std::string match_of(const std::string& pattern, const std::string& text) const {
    const std::optional<Groups> groups = match_in(pattern, step_.group_select, text);
    return groups ? first_of(*groups) : "";
  }
  static char letter(size_t i) { return static_cast<char>('A' + i); }

  std::string plain(std::string text) const {
    for (const std::string& pattern : step_.regexes_to_ignore)
      text = data::Regex(pattern).replace(text, "");
    if (step_.ignore_case) text = data::tokenizer::to_lower(text);
    if (!step_.ignore_punctuation) return text;
    std::string out;
    for (size_t i = 0; i < text.size();) {
      const data::tokenizer::CodePoint c = data::tokenizer::read_code_point(text.data() + i);
      if ((data::tokenizer::char_tables().flags[c.value] & data::tokenizer::kPunctuation) == 0)
        out.append(text, i, c.size);
      i += c.size;
    }
    return out;
  }

  const FilterStep& step_;
  std::vector<std::string> texts_; ///< of the choices
};

std::string mapped(const FilterStep& step, const std::string& text) {
  if (const auto found = step.mapping.find(text); found != step.mapping.end()) return found->second;
  if (!step.default_value)
    raise<DataError>("function: map has no value for the answer '{}'\n  try: default_value: "
                     "\"none\"",
                     text);
  return *step.default_value;
}

} // namespace

void check_filters(const Task& task, const std::vector<Item>& items) {
  for (const FilterSpec& filter : task.filters)
    for (const FilterStep& step : filter.steps)
      if (step.function == "multi_choice_regex")
        for (const Item& item : items) LetterFinder(step, item.document);
}

std::string filtered(const FilterSpec& filter, const std::string& text, const Document& document) {
  std::string out = text;
  for (const FilterStep& step : filter.steps) {
    if (step.function == "regex") out = select_match(step, out);
    if (step.function == "multi_choice_regex") out = LetterFinder(step, document).find(out);
    if (step.function == "map") out = mapped(step, out);
    if (step.function == "remove_whitespace") out = std::string(stripped(out));
    if (step.function == "lowercase") out = data::tokenizer::to_lower(out);
    if (step.function == "uppercase") out = data::tokenizer::to_upper(out);
  }
  return out;
}

} // namespace pentatron::evaluation

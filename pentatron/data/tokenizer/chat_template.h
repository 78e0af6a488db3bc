/// Chat templates: messages to the text that a model was trained on.
///
/// The common subset of Jinja that templates of tokenizer_config.json use, by an interpreter of our
/// own: text, {{ expressions }}, {# comments #}, {% if, elif, else, for (with if and else), set
/// (also of a namespace's member and as a block), macro, call, with, filter, break, continue, raw,
/// generation %}; strings, numbers, lists, tuples, dictionaries, slices, arithmetic, comparisons,
/// in, is, not, and, or, conditional expressions, ~, formats with % and {}, f(*list, **dictionary);
/// loop and namespace(); the usual filters, tests and methods, range, dict, raise_exception and
/// strftime_now. Arguments that are not known are errors. Blocks are
/// trimmed as Hugging Face does (trim_blocks, lstrip_blocks). Nothing else is ever executed; steps,
/// nesting and output are bounded.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace pentatron::data::tokenizer {

namespace chat {
struct Program;
}

/// How blocks and the source's end are read, and what an undefined value is.
struct TemplateRules {
  bool trim_blocks = true;            ///< a line feed after a block is dropped
  bool lstrip_blocks = true;          ///< as are blanks before a block that is first in its line
  bool keep_trailing_newline = false; ///< of the source
  bool strict_undefined = false;      ///< printing or using one is an error
  /// tojson is Jinja's own, whose text can stand in HTML: ASCII, keys in order, no < > & '.
  /// Otherwise it is that of transformers.
  bool html_json = false;
};

/// The date "YYYY-MM-DD" for strftime_now, at midnight; none if it does not exist.
std::optional<std::tm> read_date(std::string_view text);
/// Now, in the local time zone.
std::tm local_time();

class ChatTemplate {
 public:
  /// Throws DataError, which names the line, for what is damaged or not supported.
  explicit ChatTemplate(std::string_view source, const TemplateRules& rules = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// The text for variables such as {"messages": [{"role": ..., "content": ...}], "bos_token": ...,
  /// "add_generation_prompt": true}. tools and documents are None unless given; a message's
  /// thoughts may be called reasoning_content, thinking or reasoning, whichever the template reads.
  /// Throws DataError if the template raises an exception, uses a name in a way that has no
  /// meaning, or goes beyond the bounds. `marks` receives, in order, the bytes [begin, end) of the
  /// text that stand between
  /// {% generation %} and {% endgeneration %}. `now` is the date for strftime_now, which without it
  /// is undefined: templates that allow it print a date of their own.
  std::string render(const nlohmann::ordered_json& variables,
                     std::vector<std::pair<size_t, size_t>>* marks = nullptr,
                     const std::tm* now = nullptr) const;

  /// Whether the template has such marks.
  bool marks_answers() const;

  /// The names that it looks up, whether it sets them itself or not.
  std::set<std::string> names() const;

 private:
  std::unique_ptr<chat::Program> program_;
};

} // namespace pentatron::data::tokenizer

/// A text of a task's documents: the name of a column, a template, a number or a list.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/data/tokenizer/chat_template.h"

namespace pentatron::evaluation {

using Document = OrderedJson;

class Field {
 public:
  Field() = default;
  /// `name`: of the key, for messages. Throws DataError for a damaged template, ConfigError for a
  /// value that no field can have.
  Field(std::string name, Document value);

  bool given() const { return !value_.is_null(); }
  /// A name of letters, digits and underscores, which may be that of a column.
  std::optional<std::string> word() const;
  /// Columns that it may read.
  std::set<std::string> columns() const;

  /// As lm-eval's doc_to_text: text, or a number. A column is taken as it is. `numbers`: digits
  /// that a template writes are a number.
  Document text(const Document& doc, bool numbers) const;
  /// As doc_to_target: text, a number, or a list of them; a template that writes [...] gives a
  /// list.
  Document target(const Document& doc, bool numbers) const;
  /// As doc_to_choice: a list of texts.
  std::vector<std::string> choices(const Document& doc) const;

 private:
  const Document* column(const Document& doc) const;
  std::string render(const Document& doc) const;

  std::string name_;
  Document value_;
  std::shared_ptr<const data::tokenizer::ChatTemplate> template_;
};

/// A list of strings, numbers, None, True and False as Python writes it; none for anything else.
std::optional<Document> parse_python_list(std::string_view text);

} // namespace pentatron::evaluation

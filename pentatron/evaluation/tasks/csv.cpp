#include "pentatron/evaluation/tasks/csv.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron::evaluation {

namespace {

/// The cells that pandas takes for missing values.
bool is_missing(std::string_view cell) {
  constexpr std::string_view kMissing[] = {"",         "#N/A", "#N/A N/A", "#NA",    "-1.#IND",
                                           "-1.#QNAN", "-NaN", "-nan",     "1.#IND", "1.#QNAN",
                                           "<NA>",     "N/A",  "NA",       "NULL",   "NaN",
                                           "None",     "n/a",  "nan",      "null"};
  return std::ranges::find(kMissing, cell) != std::end(kMissing);
}

std::optional<bool> boolean_of(std::string_view cell) {
  if (cell == "True" || cell == "TRUE" || cell == "true") return true;
  if (cell == "False" || cell == "FALSE" || cell == "false") return false;
  return std::nullopt;
}

template <class T> std::optional<T> number_in(std::string_view cell) {
  cell = trim(cell);
  if (cell.starts_with('+') && !cell.starts_with("+-")) cell.remove_prefix(1);
  if (cell.ends_with(')')) return std::nullopt; // nan(...)
  T number = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), number);
  if (cell.empty() || end != cell.data() + cell.size()) return std::nullopt;
  if constexpr (std::is_floating_point_v<T>)
    if (error == std::errc::result_out_of_range)
      return std::strtod(std::string(cell).c_str(), nullptr);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

/// As pandas: a, a.1, a.2.
std::vector<std::string> distinct(std::vector<std::string> names) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (std::find(names.begin(), name, *name) == name) continue;
    int copy = 1;
    while (std::ranges::find(names, fmt::format("{}.{}", *name, copy)) != names.end()) ++copy;
    *name += fmt::format(".{}", copy);
  }
  return names;
}

/// Makes the given cells what `read` gives; false if it gives nothing for one of them.
template <class Read> bool convert(std::vector<Document*> cells, Read read) {
  std::vector<Document> made;
  for (const Document* cell : cells) {
    const auto value = read(cell->get_ref<const std::string&>());
    if (!value) return false;
    made.emplace_back(*value);
  }
  for (size_t i = 0; i < cells.size(); ++i) *cells[i] = std::move(made[i]);
  return true;
}

} // namespace

Documents parse_csv(std::string_view text, const std::vector<std::string>& names, char delimiter,
                    std::string_view where) {
  Documents documents;
  std::vector<std::string> columns = names, row;
  std::string cell;
  int64_t line = 1, row_line = 1;
  bool quoted = false, was_quoted = false;
  const auto end_row = [&] {
    row.push_back(std::exchange(cell, {}));
    const bool blank = row.size() == 1 && row[0].empty() && !was_quoted;
    if (!blank && columns.empty()) {
      columns = distinct(row);
    } else if (!blank) {
      if (row.size() != columns.size())
        raise<DataError>("{}: line {} has {} cells, but there are {} columns: {}\n  try: {}", where,
                         row_line, row.size(), columns.size(),
                         excerpt(fmt::format("{}", fmt::join(columns, ", "))),
                         row.size() > columns.size()
                             ? "quotation marks around a cell that contains the delimiter, or "
                               "another delimiter in dataset_kwargs"
                             : "a cell for each column, or another delimiter in dataset_kwargs");
      Document document = Document::object();
      for (size_t i = 0; i < row.size(); ++i) document[columns[i]] = row[i];
      documents.push_back(std::move(document));
    }
    row.clear();
    was_quoted = false;
    row_line = line;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (quoted) {
      if (c != '"') {
        cell += c;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        cell += text[++i];
      } else {
        quoted = false;
      }
    } else if (c == '"' && cell.empty()) {
      quoted = was_quoted = true;
    } else if (c == delimiter) {
      row.push_back(std::exchange(cell, {}));
    } else if (c == '\n') {
      if (cell.ends_with('\r')) cell.pop_back();
      end_row();
    } else {
      cell += c;
    }
  }
  if (quoted)
    raise<DataError>("{}: the quoted cell in line {} is not closed\n  try: a quotation mark at its "
                     "end, and two for each one inside",
                     where, row_line);
  if (!cell.empty() || !row.empty()) {
    if (cell.ends_with('\r')) cell.pop_back();
    end_row();
  }
  return documents;
}

void infer_cell_types(Documents& rows) {
  if (rows.empty()) return;
  std::vector<std::string> names;
  for (const auto& [name, cell] : rows[0].items()) names.push_back(name);
  for (const std::string& name : names) {
    std::vector<Document*> present, missing;
    for (Document& row : rows) {
      if (!row.contains(name)) continue;
      Document& cell = row[name];
      (is_missing(cell.get_ref<const std::string&>()) ? missing : present).push_back(&cell);
    }
    for (Document* cell : missing) *cell = nullptr;
    if (missing.empty() && convert(present, number_in<int64_t>)) continue;
    if (convert(present, number_in<double>)) continue;
    convert(present, boolean_of);
  }
}

} // namespace pentatron::evaluation

#include <charconv>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/config/node.h"
#include "pentatron/config/violations.h"
#include "pentatron/evaluation/tasks/read_tasks.h"

namespace pentatron::evaluation {

namespace {

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

/// 12, +3, 0x1F, 0b11, 017 (octal) and 1_000, as in YAML 1.1.
std::optional<int64_t> integer_of(std::string text) {
  const bool minus = text.starts_with('-');
  if (minus || text.starts_with('+')) text.erase(0, 1);
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  std::erase(text, '_');
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0b")) {
    base = text[1] == 'x' ? 16 : 2;
    text.erase(0, 2);
  } else if (text.size() > 1 && text[0] == '0') {
    base = 8;
  }
  if (minus) text.insert(0, "-");
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

/// 0.5, .5, 1. and 1.0e+3: with a point, and a sign of the exponent.
std::optional<double> real_of(const std::string& text) {
  const size_t point = text.find('.'), exponent = text.find_first_of("eE");
  if (point == std::string::npos || text.find_first_of("0123456789") == std::string::npos)
    return std::nullopt;
  if (exponent != std::string::npos &&
      (exponent + 1 == text.size() || (text[exponent + 1] != '+' && text[exponent + 1] != '-')))
    return std::nullopt;
  if (point > 0 && (text[point - 1] < '0' || text[point - 1] > '9')) return std::nullopt; // -.5
  double real = 0;
  const char* const begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(begin, end, real);
  return error == std::errc() && stop == end ? std::optional(real) : std::nullopt;
}

Document scalar(const config::Node& node) {
  const std::string& text = node.text;
  if (node.quoted) return text;
  if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) return nullptr;
  if (is_one_of(text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})) return true;
  if (is_one_of(text, {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"}))
    return false;
  if (const std::optional<int64_t> number = integer_of(text)) return *number;
  if (const std::optional<double> number = real_of(text)) return *number;
  return text;
}

Document to_json(const config::Node& node) {
  switch (node.type) {
  case config::Node::Type::kScalar:
    return scalar(node);
  case config::Node::Type::kList: {
    Document list = Document::array();
    for (const config::Node& item : node.items) list.push_back(to_json(item));
    return list;
  }
  case config::Node::Type::kMap: {
    Document map = Document::object();
    for (const config::Node::Member& member : node.members) map[member.key] = to_json(member.value);
    return map;
  }
  default:
    return nullptr;
  }
}

} // namespace

Document read_task_yaml(std::string_view text, const std::filesystem::path& file, bool warns) {
  config::Violations violations;
  std::vector<config::RepeatedKey> repeated;
  const std::optional<config::Node> node =
      config::parse_yaml(text, file.string(), true, violations,
                         {.name = "a task file",
                          .no_tags = "pentatron does not run Python code from task files",
                          .instead_of_tag = "a Jinja template that does the same",
                          .references = true,
                          .repeated = &repeated});
  violations.throw_if_any();
  if (!node || node->type != config::Node::Type::kMap)
    raise<ConfigError>("{} is not a task file: it has no keys\n  try: a YAML file with task, "
                       "dataset_path, output_type, doc_to_text and doc_to_target",
                       file.string());
  if (warns)
    for (const config::RepeatedKey& key : repeated)
      log::shared_warning(
          "{}:{}: the key {} appears twice, first on line {}; the last value counts\n  "
          "try: remove one of them",
          file.string(), key.line, key.key, key.first_line);
  return to_json(*node);
}

} // namespace pentatron::evaluation

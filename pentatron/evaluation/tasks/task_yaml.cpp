#include <charconv>

#include "pentatron/base/error.h"
#include "pentatron/config/node.h"
#include "pentatron/config/violations.h"
#include "pentatron/evaluation/tasks/read_tasks.h"

namespace pentatron::evaluation {

namespace {

constexpr config::YamlKind kTask = {.name = "a task file",
                                    .no_tags = "pentatron does not run Python code from task files",
                                    .instead_of_tag = "a Jinja template that does the same"};

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

Document scalar(const config::Node& node) {
  const std::string& text = node.text;
  if (node.quoted) return text;
  if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) return nullptr;
  if (is_one_of(text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})) return true;
  if (is_one_of(text, {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"}))
    return false;
  const char *const begin = text.data() + (text.starts_with('+') ? 1 : 0), *const end =
                                                                               text.data() +
                                                                               text.size();
  int64_t integer = 0;
  if (const auto [stop, error] = std::from_chars(begin, end, integer);
      error == std::errc() && stop == end)
    return integer;
  double real = 0;
  const auto [stop, error] = std::from_chars(begin, end, real);
  if (error == std::errc() && stop == end && text.find('.') != std::string::npos) return real;
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

Document read_task_yaml(std::string_view text, const std::filesystem::path& file) {
  config::Violations violations;
  const std::optional<config::Node> node =
      config::parse_yaml(text, file.string(), true, violations, kTask);
  violations.throw_if_any();
  if (!node || node->type != config::Node::Type::kMap)
    raise<ConfigError>("{} is not a task file: it has no keys\n  try: a YAML file with task, "
                       "dataset_path, output_type, doc_to_text and doc_to_target",
                       file.string());
  return to_json(*node);
}

} // namespace pentatron::evaluation

// Any bytes are a task or an error, and a task's templates make a text of a document or an error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pentatron/base/error.h"
#include "pentatron/evaluation/tasks/csv.h"
#include "pentatron/evaluation/tasks/parse_task.h"
#include "pentatron/evaluation/tasks/read_tasks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron;
  using namespace pentatron::evaluation;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (size > 4096) return 0;
  static const Document document = {{"text", "one two"}, {"label", 1}, {"list", {"a", "b"}}};
  if (const auto list = parse_python_list(text); list && !list->is_array()) __builtin_trap();
  try {
    Documents rows = parse_csv(text, {}, ',', "input");
    infer_cell_types(rows);
    for (const Document& row : rows)
      if (!row.is_object()) __builtin_trap();
  } catch (const DataError&) {
  }
  try {
    const Task task = parse_task(read_task_yaml(text, "input"), "input");
    if (task.metrics.empty() || (!task.test_split && !task.validation_split)) __builtin_trap();
    task.fields.text.text(document, true);
    task.fields.target.target(document, true);
    if (task.fields.choice.given()) task.fields.choice.choices(document);
  } catch (const ConfigError&) {
  } catch (const DataError&) {
  }
  return 0;
}

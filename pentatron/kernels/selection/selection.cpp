#include "pentatron/kernels/selection/selection.h"

#include <memory>
#include <mutex>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/kernels/selection/probe.h"

namespace pentatron::kernels {

namespace selection_detail {
constinit std::atomic<const Table*> current{nullptr};
constinit std::atomic<bool> noting{false};
constinit std::array<std::atomic<bool>, kNumOpClasses> asked{};
} // namespace selection_detail

namespace {

using selection_detail::Table;

/// Tables stay for the life of the process, since other threads may read the one before; equal
/// selections share one.
const Table* keep(const Table& table) {
  static std::mutex mutex;
  static std::vector<std::unique_ptr<const Table>> kept;
  const std::lock_guard lock(mutex);
  for (const auto& one : kept)
    if (*one == table) return one.get();
  return kept.emplace_back(std::make_unique<const Table>(table)).get();
}

/// Position of the entry, or what is wrong with it.
struct Found {
  int position = -1;
  std::string problem;
};

Found find_entry(OpClass c, const std::string& entry) {
  const Probe probe = describe_probe(c);
  for (size_t i = 0; i < probe.entries.size(); ++i) {
    if (probe.entries[i].name != entry) continue;
    if (probe.entries[i].refusal.empty()) return {static_cast<int>(i), {}};
    return {-1, fmt::format("{}: {} cannot run here: {}", class_name(c), entry,
                            probe.entries[i].refusal)};
  }
  return {-1, fmt::format("{}: this program has no entry {}", class_name(c), entry)};
}

} // namespace

std::string Selection::text() const {
  Json json = Json::object();
  for (const auto& [name, entry] : choices_) json[name] = entry;
  return dump_json(json, 1) + "\n";
}

Selection Selection::parse(std::string_view text, std::string_view origin) {
  const Json json = parse_json(text, origin, {.max_bytes = size_t{1} << 20, .max_depth = 4});
  if (!json.is_object())
    raise<DataError>("{} is not a JSON object of class and entry names", origin);
  std::map<std::string, std::string> choices;
  for (const auto& [name, entry] : json.items())
    choices[name] = json_get<std::string>(json, name, origin);
  return Selection(std::move(choices));
}

std::string Selection::find(OpClass c) const {
  const auto found = choices_.find(class_name(c));
  return found == choices_.end() ? std::string() : found->second;
}

std::vector<std::string> unusable_choices(const Selection& selection) {
  std::vector<std::string> problems;
  for (const auto& [name, entry] : selection.choices()) {
    const std::optional<OpClass> c = find_op_class(name);
    std::string problem =
        c ? find_entry(*c, entry).problem : fmt::format("{}: this program has no such class", name);
    if (!problem.empty()) problems.push_back(std::move(problem));
  }
  return problems;
}

void use_selection(const Selection& selection) {
  Table table;
  table.fill(-1);
  for (const auto& [name, entry] : selection.choices()) {
    if (const std::optional<OpClass> c = find_op_class(name))
      table[c->index()] = static_cast<int8_t>(find_entry(*c, entry).position);
  }
  selection_detail::current.store(keep(table), std::memory_order_release);
}

void clear_selection() {
  selection_detail::current.store(nullptr, std::memory_order_release);
}

AskedClasses::AskedClasses() {
  for (std::atomic<bool>& one : selection_detail::asked) one = false;
  selection_detail::noting = true;
}

AskedClasses::~AskedClasses() {
  selection_detail::noting = false;
}

std::vector<OpClass> AskedClasses::all() const {
  std::vector<OpClass> classes;
  for (size_t i = 0; i < kNumOpClasses; ++i)
    if (selection_detail::asked[i])
      classes.push_back(
          {static_cast<Op>(i / OpClass::kMaxParts), static_cast<uint8_t>(i % OpClass::kMaxParts)});
  return classes;
}

} // namespace pentatron::kernels

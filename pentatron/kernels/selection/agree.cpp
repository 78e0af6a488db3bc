#include "pentatron/kernels/selection/agree.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "pentatron/base/json.h"
#include "pentatron/kernels/selection/probe.h"

namespace pentatron::kernels {

namespace {

const std::vector<std::string>& entries_of(const RunnableEntries& rank, const std::string& name) {
  static const std::vector<std::string> none;
  const auto found = rank.find(name);
  return found == rank.end() ? none : found->second;
}

bool can_run(const RunnableEntries& rank, const std::string& name, const std::string& entry) {
  const std::vector<std::string>& entries = entries_of(rank, name);
  return std::find(entries.begin(), entries.end(), entry) != entries.end();
}

/// The first rank that cannot run it.
std::optional<size_t> find_refusing(const std::vector<RunnableEntries>& ranks,
                                    const std::string& name, const std::string& entry) {
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    if (!can_run(ranks[rank], name, entry)) return rank;
  return std::nullopt;
}

/// The first entry of rank 0 that all can run; empty if there is none.
std::string common_entry(const std::vector<RunnableEntries>& ranks, const std::string& name) {
  for (const std::string& entry : entries_of(ranks[0], name))
    if (!find_refusing(ranks, name, entry)) return entry;
  return {};
}

bool same_order(const std::vector<RunnableEntries>& ranks, const std::string& name) {
  const auto first = [&](const RunnableEntries& rank) {
    const std::vector<std::string>& entries = entries_of(rank, name);
    return entries.empty() ? std::string() : entries.front();
  };
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const RunnableEntries& rank) { return first(rank) == first(ranks[0]); });
}

} // namespace

RunnableEntries runnable_entries() {
  RunnableEntries runnable;
  for (const OpClass c : all_op_classes()) {
    std::vector<std::string>& names = runnable[class_name(c)];
    for (const Probe::Entry& entry : describe_probe(c).entries)
      if (entry.refusal.empty()) names.emplace_back(entry.name);
  }
  return runnable;
}

std::string to_text(const RunnableEntries& entries) {
  return dump_json(Json(entries));
}

RunnableEntries parse_runnable_entries(std::string_view text) {
  constexpr std::string_view kOrigin = "entries of a rank";
  const Json json = parse_json(text, kOrigin, {.max_bytes = size_t{1} << 20, .max_depth = 4});
  if (!json.is_object()) raise<DataError>("{} are not a JSON object", kOrigin);
  RunnableEntries entries;
  for (const auto& [name, list] : json.items())
    entries[name] = json_get<std::vector<std::string>>(json, name, kOrigin);
  return entries;
}

Agreement agree(const Selection& selection, const std::vector<RunnableEntries>& ranks) {
  std::map<std::string, std::string> choices = selection.choices();
  std::map<std::string, std::string> replaced;
  for (auto& [name, entry] : choices) {
    const std::optional<size_t> rank = find_refusing(ranks, name, entry);
    if (!rank) continue;
    const std::string instead = common_entry(ranks, name);
    replaced[name] = fmt::format("{}: rank {} cannot run {}, so all ranks run {}", name, *rank,
                                 entry, instead.empty() ? "what their lists say" : instead);
    entry = instead;
  }
  for (const auto& [name, entries] : ranks[0]) {
    if (choices.contains(name) || same_order(ranks, name)) continue;
    if (const std::string entry = common_entry(ranks, name); !entry.empty()) choices[name] = entry;
  }
  std::erase_if(choices, [](const auto& choice) { return choice.second.empty(); });
  return {Selection(std::move(choices)), std::move(replaced)};
}

Selection with_list_order(const Selection& selection, const std::vector<RunnableEntries>& ranks,
                          const MeasureOptions& options) {
  Selection complete = selection;
  for (const OpClass c : all_op_classes()) {
    if (is_left_out(c, options) || !selection.find(c).empty()) continue;
    if (const std::string entry = common_entry(ranks, class_name(c)); !entry.empty())
      complete.set(c, entry);
  }
  return complete;
}

} // namespace pentatron::kernels

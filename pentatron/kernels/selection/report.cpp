#include "pentatron/kernels/selection/report.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace pentatron::kernels {

namespace {

/// The name without sizes: "gemm bfloat16 nt", "attention_forward float32".
std::string group_name(OpClass c) {
  const std::string name = class_name(c);
  for (const char* size : {" n<", " n>", " head"})
    if (const size_t at = name.find(size); at != std::string::npos) return name.substr(0, at);
  return name;
}

struct Row {
  std::string name, entry;
  std::string_view unit;
  double least = 0, most = 0;
  std::map<std::string_view, std::pair<double, double>> others; ///< relative speeds
  bool disturbed = false;
};

/// The entry that runs: the chosen one, or without a choice the first. None if it was not measured.
std::optional<size_t> running(const Selection& selection, const Measurement& m) {
  const std::string entry = selection.find(m.op_class);
  if (entry.empty()) return 0;
  for (size_t i = 0; i < m.times.size(); ++i)
    if (m.times[i].entry == entry) return i;
  return std::nullopt;
}

std::string range(double least, double most, const char* unit) {
  const auto number = [](double x) {
    return fmt::format(fmt::runtime(x < 10 ? "{:.1f}" : "{:.0f}"), x);
  };
  const std::string low = number(least), high = number(most);
  return low == high ? low + unit : low + " - " + high + unit;
}

std::vector<Row> make_rows(const Selection& selection, std::span<const Measurement> measured) {
  std::vector<Row> rows;
  for (const Measurement& m : measured) {
    const std::optional<size_t> at = running(selection, m);
    const std::string name = group_name(m.op_class);
    const std::string entry(at ? m.times[*at].entry : selection.find(m.op_class));
    const double seconds = at ? m.times[*at].seconds : std::numeric_limits<double>::infinity();
    const double rate = m.work / seconds; // 0: not known
    auto row = std::find_if(rows.begin(), rows.end(),
                            [&](const Row& r) { return r.name == name && r.entry == entry; });
    if (row == rows.end())
      row = rows.insert(rows.end(), {.name = name, .entry = entry, .unit = m.unit, .least = rate});
    row->least = std::min(row->least, rate);
    row->most = std::max(row->most, rate);
    row->disturbed = row->disturbed || m.disturbed;
    for (const Measurement::Time& t : m.times) {
      if (t.entry == entry || !at) continue;
      const double speed = seconds / t.seconds;
      const auto [other, fresh] = row->others.try_emplace(t.entry, speed, speed);
      other->second = {std::min(other->second.first, speed), std::max(other->second.second, speed)};
    }
  }
  return rows;
}

} // namespace

std::string selection_table(const Selection& selection, std::span<const Measurement> measured) {
  std::string table = fmt::format("{:<36} {:<12} {:>20}  {}\n", "operator", "entry", "rate",
                                  "relative speed of other entries");
  for (const Row& row : make_rows(selection, measured)) {
    std::vector<std::string> others;
    for (const auto& [entry, speed] : row.others)
      others.push_back(fmt::format("{} {}", entry, range(speed.first, speed.second, "x")));
    table += fmt::format("{:<36} {:<12} {:>20}  {}\n", row.name, row.entry,
                         row.most == 0 ? "not measured"
                                       : range(row.least / 1e9, row.most / 1e9,
                                               fmt::format(" G{}", row.unit).c_str()),
                         fmt::format("{}{}", fmt::join(others, ", "),
                                     row.disturbed ? " (disturbed by other programs)" : ""));
  }
  return table;
}

std::string describe_departures(const Selection& selection, const MeasureOptions& options) {
  std::map<std::string, size_t> sizes; // of each group
  for (const OpClass c : all_op_classes()) ++sizes[group_name(c)];
  std::vector<std::pair<std::string, std::string>> order;
  std::map<std::pair<std::string, std::string>, size_t> counts;
  for (const auto& [c, entry] : departures(selection)) {
    if (is_left_out(c, options)) continue;
    const std::pair key(group_name(c), entry);
    if (counts[key]++ == 0) order.push_back(key);
  }
  std::vector<std::string> parts;
  for (const auto& [group, entry] : order) {
    const size_t count = counts[{group, entry}], all = sizes[group];
    parts.push_back(count == all
                        ? fmt::format("{} by {}", group, entry)
                        : fmt::format("{} by {} ({} of {} sizes)", group, entry, count, all));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<std::string> slow_choices(const Selection& selection,
                                      std::span<const Measurement> measured) {
  constexpr double kWorthTelling = 1.5;
  std::vector<std::string> found;
  for (const Measurement& m : measured) {
    const std::optional<size_t> at = running(selection, m);
    if (!at) {
      found.push_back(fmt::format("{} uses {}, which no measurement chooses",
                                  class_name(m.op_class), selection.find(m.op_class)));
      continue;
    }
    const Measurement::Time& mine = m.times[*at];
    const Measurement::Time& best =
        *std::min_element(m.times.begin(), m.times.end(),
                          [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
    if (!m.disturbed && mine.seconds > kWorthTelling * best.seconds && best.needed < kLargeWin)
      found.push_back(fmt::format("{} uses {}, but {} is {:.1f} times as fast",
                                  class_name(m.op_class), mine.entry, best.entry,
                                  mine.seconds / best.seconds));
  }
  return found;
}

} // namespace pentatron::kernels

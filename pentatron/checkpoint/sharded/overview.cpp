#include "pentatron/checkpoint/sharded/overview.h"

#include <algorithm>
#include <cctype>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/format.h"
#include "pentatron/base/text.h"

namespace pentatron::checkpoint {

namespace {

/// One line of a table.
struct Row {
  int64_t tensors = 0, elements = 0;
  uint64_t bytes = 0;
  void add(const TensorInfo& info) {
    ++tensors;
    elements += numel(info.shape);
    bytes += info.bytes();
  }
};

std::string shape_text(const std::vector<int64_t>& shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, " x "));
}

std::string bytes_of(uint64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

/// The part of an optimizer tensor's name behind the parameter; empty: it is a parameter.
std::string_view kind_of(std::string_view name) {
  const size_t slash = name.find('/');
  return slash == std::string_view::npos ? std::string_view() : name.substr(slash + 1);
}

/// Names in the order of their first digits' values, so that layer 2 comes before layer 10.
std::string sort_key(std::string_view name) {
  std::string key;
  for (size_t i = 0; i < name.size();) {
    size_t end = i;
    while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
    if (end > i) {
      key += fmt::format("{:0>20}", name.substr(i, end - i));
      i = end;
    } else {
      key += name[i++];
    }
  }
  return key;
}

std::string state_text(const Json& state) {
  std::vector<std::string> parts;
  for (const auto& [key, value] : state.items()) {
    if (value.is_structured()) continue;
    const std::string text =
        value.is_number_float() ? fmt::format("{:.6g}", value.get<double>()) : dump_json(value);
    parts.push_back(fmt::format("{} {}", excerpt(key), excerpt(text)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

using Key = std::tuple<std::string, std::string, std::string>; ///< sort key, name, rest

void add_parameters(std::string& out, const Manifest& manifest, bool all) {
  std::map<Key, Row> rows;
  size_t width = 10;
  for (const auto& [name, info] : manifest.tensors) {
    if (!kind_of(name).empty()) continue;
    std::string shown = excerpt(all ? name : without_numbers(name), 80);
    width = std::max(width, shown.size());
    rows[{sort_key(shown), shown,
          fmt::format("{:<20} {:<5}", shape_text(info.shape), name_of(info.dtype))}]
        .add(info);
  }
  if (rows.empty()) return;
  out += fmt::format("\n{:<{}} {:>6}  {:<20} {:<5} {:>11}\n", "parameters", width,
                     all ? "" : "count", "shape", "dtype", "size");
  for (const auto& [key, row] : rows)
    out +=
        fmt::format("{:<{}} {:>6}  {} {:>11}\n", std::get<1>(key), width,
                    all ? "" : fmt::to_string(row.tensors), std::get<2>(key), bytes_of(row.bytes));
}

void add_optimizer(std::string& out, const Manifest& manifest, bool all) {
  std::map<std::pair<std::string, std::string>, Row> rows;
  size_t width = 15;
  for (const auto& [name, info] : manifest.tensors) {
    if (kind_of(name).empty()) continue;
    const std::string shown = excerpt(all ? std::string_view(name) : kind_of(name), 80);
    width = std::max(width, shown.size());
    rows[{shown, std::string(name_of(info.dtype))}].add(info);
  }
  if (rows.empty()) return;
  out += fmt::format("\n{:<{}} {:>6}  {:>10} {:<5} {:>11}\n", "optimizer state", width,
                     all ? "" : "count", "elements", "dtype", "size");
  for (const auto& [key, row] : rows)
    out += fmt::format("{:<{}} {:>6}  {:>10} {:<5} {:>11}\n", key.first, width,
                       all ? "" : fmt::to_string(row.tensors),
                       format_count(static_cast<double>(row.elements)), key.second,
                       bytes_of(row.bytes));
}

void add_files(std::string& out, const Manifest& manifest) {
  out += "\nfiles\n";
  for (const auto& [name, file] : manifest.files)
    out += fmt::format("{:<50} {:>11}  {}\n", name, bytes_of(file.bytes),
                       counted(std::ssize(file.entries), "tensor"));
  for (const auto& [name, parity] : manifest.parity)
    out += fmt::format("{:<50} {:>11}  parity of {}\n", name, bytes_of(parity.file.bytes),
                       counted(std::ssize(parity.shards), "file"));
  for (const auto& [name, attachment] : manifest.attachments)
    out += fmt::format("{:<50} {:>11}\n", excerpt(name, 80), bytes_of(attachment.bytes));
}

} // namespace

std::string without_numbers(std::string_view name) {
  std::string out;
  for (const std::string_view part : split(name, '.')) {
    const bool number = !part.empty() && std::ranges::all_of(part, [](char c) {
      return std::isdigit(static_cast<unsigned char>(c)) != 0;
    });
    if (!out.empty()) out += '.';
    out += number ? "*" : part;
  }
  return out;
}

std::string overview(const Manifest& manifest, const OverviewOptions& options) {
  Row parameters, optimizer;
  std::map<std::string, int64_t> dtypes;
  for (const auto& [name, info] : manifest.tensors) {
    const bool parameter = kind_of(name).empty();
    (parameter ? parameters : optimizer).add(info);
    if (parameter) ++dtypes[std::string(name_of(info.dtype))];
  }
  uint64_t file_bytes = 0;
  for (const auto& [name, file] : manifest.files) file_bytes += file.bytes;
  for (const auto& [name, parity] : manifest.parity) file_bytes += parity.file.bytes;
  for (const auto& [name, attachment] : manifest.attachments) file_bytes += attachment.bytes;
  std::string out;
  const auto line = [&](std::string_view what, const std::string& text) {
    if (!text.empty()) out += fmt::format("{:<12} {}\n", what, text);
  };
  if (options.facts.empty()) line("iteration", format_grouped(manifest.iteration));
  for (const auto& [what, text] : options.facts) line(what, text);
  std::vector<std::string> types;
  for (const auto& [dtype, count] : dtypes) types.push_back(dtype);
  line("parameters",
       fmt::format("{} in {}, {}, {}", format_count(static_cast<double>(parameters.elements)),
                   counted(parameters.tensors, "tensor"), fmt::join(types, " and "),
                   bytes_of(parameters.bytes)));
  line("optimizer",
       optimizer.tensors == 0
           ? "no state: weights only"
           : fmt::format("{} in {}, {}", format_count(static_cast<double>(optimizer.elements)),
                         counted(optimizer.tensors, "tensor"), bytes_of(optimizer.bytes)));
  line("state", state_text(manifest.state));
  line("files",
       fmt::format("{} with tensors, {} parity, {}, {} together", manifest.files.size(),
                   manifest.parity.size(), counted(std::ssize(manifest.attachments), "other"),
                   bytes_of(file_bytes)));
  add_parameters(out, manifest, options.all);
  add_optimizer(out, manifest, options.all);
  if (options.all)
    add_files(out, manifest);
  else
    out += "\nUse --all to list every tensor and file, --json for a program.\n";
  return out;
}

} // namespace pentatron::checkpoint

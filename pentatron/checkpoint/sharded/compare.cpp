#include "pentatron/checkpoint/sharded/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/format.h"
#include "pentatron/base/text.h"

namespace pentatron::checkpoint {

namespace {

constexpr int64_t kPiece = int64_t{1} << 20; // elements

template <class T> T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

/// A float of `exponent` and `mantissa` bits behind a sign. `finite_only`: the largest exponent is
/// an ordinary one and only the largest mantissa in it means NaN (E4M3).
double small_float(uint32_t bits, int exponent, int mantissa, bool finite_only = false) {
  const uint32_t fraction = bits & ((1u << mantissa) - 1);
  const uint32_t power = bits >> mantissa & ((1u << exponent) - 1);
  const uint32_t largest = (1u << exponent) - 1;
  const double sign = (bits >> (exponent + mantissa) & 1) != 0 ? -1.0 : 1.0;
  const int bias = (1 << (exponent - 1)) - 1;
  if (power == largest && (!finite_only || fraction == (1u << mantissa) - 1)) {
    if (!finite_only && fraction == 0) return sign * std::numeric_limits<double>::infinity();
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (power == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa);
  return sign * std::ldexp((1u << mantissa) + fraction, static_cast<int>(power) - bias - mantissa);
}

double value_of(SafeDtype dtype, const std::byte* p) {
  switch (dtype) {
  case SafeDtype::kF64:
    return load<double>(p);
  case SafeDtype::kF32:
    return load<float>(p);
  case SafeDtype::kF16:
    return small_float(load<uint16_t>(p), 5, 10);
  case SafeDtype::kBF16:
    return std::bit_cast<float>(uint32_t{load<uint16_t>(p)} << 16);
  case SafeDtype::kI64:
    return static_cast<double>(load<int64_t>(p));
  case SafeDtype::kI32:
    return load<int32_t>(p);
  case SafeDtype::kI16:
    return load<int16_t>(p);
  case SafeDtype::kI8:
    return load<int8_t>(p);
  case SafeDtype::kU64:
    return static_cast<double>(load<uint64_t>(p));
  case SafeDtype::kU32:
    return load<uint32_t>(p);
  case SafeDtype::kU16:
    return load<uint16_t>(p);
  case SafeDtype::kU8:
  case SafeDtype::kBool:
    return load<uint8_t>(p);
  case SafeDtype::kF8E4M3:
    return small_float(load<uint8_t>(p), 4, 3, /*finite_only=*/true);
  case SafeDtype::kF8E5M2:
    return small_float(load<uint8_t>(p), 5, 2);
  }
  return 0;
}

std::vector<int64_t> coordinates(std::span<const int64_t> shape, int64_t flat) {
  std::vector<int64_t> at(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    at[d] = flat % shape[d];
    flat /= shape[d];
  }
  return at;
}

void read_range(CheckpointReader& reader, const std::string& name, const TensorInfo& info,
                int64_t begin, std::span<std::byte> bytes) {
  const size_t element = size_of(info.dtype);
  for (const Box& box :
       flat_range_boxes(info.shape, begin, static_cast<int64_t>(bytes.size() / element))) {
    const size_t size = static_cast<size_t>(numel(box)) * element;
    reader.read(name, box, bytes.first(size));
    bytes = bytes.subspan(size);
  }
}

TensorDifference compare(CheckpointReader& first, CheckpointReader& second, const std::string& name,
                         const TensorInfo& info) {
  TensorDifference out{.name = name};
  const size_t element = size_of(info.dtype);
  const int64_t count = numel(info.shape);
  std::vector<std::byte> a(static_cast<size_t>(std::min(count, kPiece)) * element);
  std::vector<std::byte> b(a.size());
  int64_t worst = -1;
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const auto bytes = static_cast<size_t>(std::min(kPiece, count - begin)) * element;
    read_range(first, name, info, begin, std::span(a).first(bytes));
    read_range(second, name, info, begin, std::span(b).first(bytes));
    if (std::memcmp(a.data(), b.data(), bytes) == 0) continue;
    for (size_t i = 0; i < bytes; i += element) {
      if (std::memcmp(&a[i], &b[i], element) == 0) continue;
      ++out.elements;
      const double x = value_of(info.dtype, &a[i]);
      const double y = value_of(info.dtype, &b[i]);
      const double difference = std::isinf(x) && x == y ? 0 : std::abs(x - y);
      if (std::abs(x) > out.max_magnitude) out.max_magnitude = std::abs(x);
      if (worst < 0 || difference > out.max_difference ||
          (std::isnan(difference) && !std::isnan(out.max_difference))) {
        out.max_difference = difference;
        worst = begin + static_cast<int64_t>(i / element);
      }
    }
  }
  if (worst >= 0) out.where = coordinates(info.shape, worst);
  return out;
}

/// The values in a saved configuration by their paths. It has a line for each key and section.
std::map<std::string, std::string> settings_in(const std::string& yaml) {
  std::map<std::string, std::string> settings;
  std::vector<std::string> sections;
  for (const std::string_view line : split(yaml, '\n')) {
    const size_t begin = line.find_first_not_of(' '), colon = line.find(':');
    if (begin == std::string_view::npos || colon == std::string_view::npos) continue;
    sections.resize(std::min(sections.size(), begin / 2));
    std::string path;
    for (const std::string& section : sections) path += section + ".";
    const std::string name(line.substr(begin, colon - begin));
    if (const std::string_view value = trim(line.substr(colon + 1)); !value.empty())
      settings[path + name] = value;
    else
      sections.push_back(name);
  }
  return settings;
}

/// The keys that differ, without those that name the places of a run.
std::vector<std::string> other_keys(const std::string& one, const std::string& other) {
  const std::set<std::string, std::less<>> places = {"checkpoint.save", "checkpoint.load",
                                                     "logger.dir"};
  const auto a = settings_in(one), b = settings_in(other);
  std::set<std::string> keys;
  for (const auto* const settings : {&a, &b})
    for (const auto& [key, value] : *settings) {
      const auto x = a.find(key), y = b.find(key);
      if (!places.contains(key) && (x == a.end() || y == b.end() || x->second != y->second))
        keys.insert(key);
    }
  return {keys.begin(), keys.end()};
}

} // namespace

Json inspect(const Manifest& manifest) {
  Json out{{"format", manifest.format},  {"iteration", manifest.iteration},
           {"state", manifest.state},    {"tokenizer", manifest.tokenizer},
           {"tensors", Json::object()},  {"files", Json::object()},
           {"by_dtype", Json::object()}, {"attachments", Json::object()},
           {"parity", Json::object()}};
  std::map<std::string, int64_t> pieces;
  uint64_t file_bytes = 0;
  for (const auto& [name, file] : manifest.files) {
    out["files"][name] = {{"bytes", file.bytes}, {"tensors", file.entries.size()}};
    file_bytes += file.bytes;
    for (const auto& [tensor, entry] : file.entries)
      pieces[tensor] += static_cast<int64_t>(entry.boxes.size());
  }
  uint64_t bytes = 0;
  for (const auto& [name, info] : manifest.tensors) {
    const std::string dtype(name_of(info.dtype));
    out["tensors"][name] = {
        {"dtype", dtype}, {"shape", info.shape}, {"bytes", info.bytes()}, {"pieces", pieces[name]}};
    Json& of = out["by_dtype"].emplace(dtype, Json::object()).first.value();
    of["tensors"] = of.value("tensors", int64_t{0}) + 1;
    of["elements"] = of.value("elements", int64_t{0}) + numel(info.shape);
    bytes += info.bytes();
  }
  for (const auto& [name, attachment] : manifest.attachments) {
    out["attachments"][name] = attachment.bytes;
    file_bytes += attachment.bytes;
  }
  for (const auto& [name, parity] : manifest.parity) {
    out["parity"][name] = {{"bytes", parity.file.bytes}, {"shards", parity.shards.size()}};
    file_bytes += parity.file.bytes;
  }
  out["tensor_bytes"] = bytes;
  out["file_bytes"] = file_bytes;
  return out;
}

CheckpointDifference diff(CheckpointReader& first, CheckpointReader& second) {
  using Kind = TensorDifference::Kind;
  const Manifest& a = first.manifest();
  const Manifest& b = second.manifest();
  CheckpointDifference out;
  for (const auto& [name, info] : a.tensors) {
    const auto other = b.tensors.find(name);
    if (other == b.tensors.end()) {
      out.different.push_back({.name = name, .kind = Kind::kOnlyInFirst});
      continue;
    }
    ++out.tensors;
    if (other->second != info) {
      out.different.push_back({.name = name, .kind = Kind::kTypeOrShape});
    } else if (TensorDifference d = compare(first, second, name, info); d.elements > 0) {
      out.different.push_back(std::move(d));
    } else {
      ++out.equal;
    }
  }
  for (const auto& [name, info] : b.tensors) {
    if (!a.tensors.contains(name))
      out.different.push_back({.name = name, .kind = Kind::kOnlyInSecond});
  }
  std::ranges::stable_sort(out.different, {}, &TensorDifference::name);
  std::set<std::string> members, attached;
  for (const Manifest* m : {&a, &b}) {
    for (const auto& [key, value] : m->state.items()) members.insert(key);
    for (const auto& [name, attachment] : m->attachments) attached.insert(name);
  }
  for (const std::string& key : members) {
    if (!a.state.contains(key) || !b.state.contains(key) || a.state[key] != b.state[key])
      out.state.push_back(key);
  }
  for (const std::string& name : attached) {
    const auto x = a.attachments.find(name), y = b.attachments.find(name);
    if (x == a.attachments.end() || y == b.attachments.end() || x->second != y->second)
      out.attachments.push_back(name);
  }
  out.config = other_keys(a.config_yaml, b.config_yaml);
  out.tokenizer_equal = a.tokenizer == b.tokenizer;
  return out;
}

std::string to_text(const CheckpointDifference& difference) {
  using Kind = TensorDifference::Kind;
  std::string text;
  for (const TensorDifference& d : difference.different) {
    switch (d.kind) {
    case Kind::kOnlyInFirst:
      text += fmt::format("{}: only in the first\n", d.name);
      break;
    case Kind::kOnlyInSecond:
      text += fmt::format("{}: only in the second\n", d.name);
      break;
    case Kind::kTypeOrShape:
      text += fmt::format("{}: dtype or shape differs\n", d.name);
      break;
    case Kind::kValues:
      text += fmt::format("{}: {} {}, at most by {:.6g} at [{}], magnitude {:.6g}\n", d.name,
                          d.elements, noun_for(d.elements, "element differs", "elements differ"),
                          d.max_difference, fmt::join(d.where, ", "), d.max_magnitude);
    }
  }
  for (const std::string& key : difference.state) text += fmt::format("state.{} differs\n", key);
  for (const std::string& name : difference.attachments) text += fmt::format("{} differs\n", name);
  if (!difference.config.empty())
    text += fmt::format("the configurations differ in {}\n", fmt::join(difference.config, ", "));
  if (!difference.tokenizer_equal) text += "the tokenizers differ\n";
  return text +
         fmt::format("{} of {} tensors are identical\n", difference.equal, difference.tensors);
}

} // namespace pentatron::checkpoint

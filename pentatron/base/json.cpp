#include "pentatron/base/json.h"

#include <cerrno>
#include <fstream>
#include <memory>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/text.h"

namespace pentatron {

namespace {

/// Builds the tree from events; the parser underneath keeps its own stack on the heap, so depth
/// costs no stack here.
template <class Value> class TreeBuilder {
 public:
  using number_integer_t = typename Value::number_integer_t;
  using number_unsigned_t = typename Value::number_unsigned_t;
  using number_float_t = typename Value::number_float_t;
  using string_t = typename Value::string_t;
  using binary_t = typename Value::binary_t;

  TreeBuilder(std::string_view origin, int max_depth) : origin_(origin), max_depth_(max_depth) {}

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(number_integer_t value) { return add(value); }
  bool number_unsigned(number_unsigned_t value) { return add(value); }
  bool number_float(number_float_t value, const string_t&) { return add(value); }
  bool string(string_t& value) { return add(std::move(value)); }
  bool binary(binary_t&) { return false; }
  bool start_object(size_t) { return open(Value::object()); }
  bool start_array(size_t) { return open(Value::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(string_t& name) {
    Value& object = *levels_.back();
    if (object.contains(name)) {
      error_ =
          fmt::format("{}: the key \"{}\" appears twice in one object", origin_, excerpt(name));
      return false;
    }
    member_ = &object[name];
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    error_ = fmt::format("{} is not valid JSON at byte {}", origin_, position);
    return false;
  }

  Value root;
  const std::string& error() const { return error_; }

 private:
  Value* place(Value&& value) {
    if (levels_.empty()) {
      root = std::move(value);
      return &root;
    }
    Value& parent = *levels_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    *member_ = std::move(value);
    return member_;
  }
  bool add(Value value) {
    place(std::move(value));
    return true;
  }
  bool open(Value container) {
    if (static_cast<int>(levels_.size()) >= max_depth_) {
      error_ = fmt::format("{} is nested more than {} levels deep", origin_, max_depth_);
      return false;
    }
    levels_.push_back(place(std::move(container)));
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  std::string_view origin_;
  int max_depth_;
  std::vector<Value*> levels_; // stable: a level's siblings are added only after it is closed
  Value* member_ = nullptr;
  std::string error_;
};

template <class Value>
Value parse_value(std::string_view text, std::string_view origin, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    raise<DataError>("{} has {} bytes of JSON, more than the limit of {}", origin, text.size(),
                     limits.max_bytes);
  }
  // A zero byte is JSON nowhere, and to the parser it is the end of the text.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    raise<DataError>("{} is not valid JSON: byte {} is zero", origin, zero);
  }
  TreeBuilder<Value> builder(origin, limits.max_depth);
  bool complete = false;
  try {
    complete = Value::sax_parse(text.begin(), text.end(), &builder);
  } catch (const Json::exception& e) {
    raise<DataError>("{} is not valid JSON: {}", origin, e.what());
  }
  if (!complete) {
    throw DataError(builder.error().empty() ? fmt::format("{} is not valid JSON", origin)
                                            : builder.error());
  }
  return std::move(builder.root);
}

template <class Value>
Value read_value(const std::filesystem::path& file, const JsonLimits& limits) {
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  std::ifstream stream(file, std::ios::binary);
  if (!stream) require_descriptors(errno, file.native());
  if (error || !stream) raise<DataError>("cannot read {}", file.string());
  if (size > limits.max_bytes) {
    raise<DataError>("{} has {} bytes, more than the limit of {}", file.string(), size,
                     limits.max_bytes);
  }
  std::string text(static_cast<size_t>(size), '\0');
  stream.read(text.data(), static_cast<std::streamsize>(size));
  if (static_cast<uintmax_t>(stream.gcount()) != size) {
    raise<DataError>("{} was truncated while it was being read", file.string());
  }
  return parse_value<Value>(text, file.string(), limits);
}

} // namespace

Json parse_json(std::string_view text, std::string_view origin, const JsonLimits& limits) {
  return parse_value<Json>(text, origin, limits);
}

OrderedJson parse_ordered_json(std::string_view text, std::string_view origin,
                               const JsonLimits& limits) {
  return parse_value<OrderedJson>(text, origin, limits);
}

Json read_json(const std::filesystem::path& file, const JsonLimits& limits) {
  return read_value<Json>(file, limits);
}

OrderedJson read_ordered_json(const std::filesystem::path& file, const JsonLimits& limits) {
  return read_value<OrderedJson>(file, limits);
}

std::string dump_json(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

namespace detail {

const Json* json_find(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(std::string(key));
  return it == object.end() ? nullptr : &*it;
}

void json_missing(std::string_view key, std::string_view where) {
  raise<DataError>("{} has no \"{}\"", where, key);
}

void json_wrong(std::string_view key, const Json& value, std::string_view type,
                std::string_view where) {
  const std::string shown = value.is_structured() ? value.type_name() : dump_json(value);
  raise<DataError>("\"{}\" in {} is {}, but must be {}", key, where, excerpt(shown), type);
}

} // namespace detail

} // namespace pentatron

/// Dotted paths through a schema. Internal to config.
#pragma once

#include <functional>

#include "pentatron/config/schema.h"

namespace pentatron::config {

/// Calls `visit(path, entry, object)` for every value, in order; `object` is the struct that holds
/// the entry.
using Visitor =
    std::function<void(const std::string& path, const Entry& entry, const void* object)>;
void walk(const Schema& schema, const void* object, const Visitor& visit,
          std::string_view path = {});

/// The entry at a dotted path and the struct that holds it; a null entry where there is none.
struct Found {
  const Entry* entry = nullptr;
  void* object = nullptr;
};
Found find(const Schema& schema, void* object, std::string_view path);

/// What somebody who wrote the unknown `path` most likely meant: by edit distance over all dotted
/// paths and, for a key in the wrong section, over last names. Empty where nothing is near. Of
/// fields for some variants of a section only those that `object` has; null: all.
std::string nearest_path(const Schema& schema, const void* object, std::string_view path);

/// Records "path is not a key" with the nearest one that `object` has. `value` is the scalar that
/// was given to it; empty: none was.
void add_unknown(const Schema& root, const void* object, std::string_view path,
                 std::string_view value, std::string_view where, Violations& violations);

} // namespace pentatron::config

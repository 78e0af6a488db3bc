/// Runs an operator: the entry that the selection names for the class of the arguments, else the
/// first of the ordered list that does not refuse.
///
/// Throws ConfigError with every entry's reason if all refuse.
#pragma once

#include <span>
#include <string>

#include "pentatron/base/error.h"
#include "pentatron/kernels/contract.h"
#include "pentatron/kernels/selection/selection.h"

namespace pentatron::kernels {

/// The entry that runs; null if all refuse.
template <class Args>
const Entry<Args>* find_entry(OpClass op_class, std::span<const Entry<Args>> entries,
                              const Args& args, const Context& context) {
  if (const int chosen = chosen_position(op_class);
      chosen >= 0 && entries[static_cast<size_t>(chosen)].refuse(args, context).empty())
    return &entries[static_cast<size_t>(chosen)];
  for (const Entry<Args>& entry : entries)
    if (entry.refuse(args, context).empty()) return &entry;
  return nullptr;
}

/// The reason why each entry refuses the arguments, one line per entry.
template <class Args>
std::string refusals(std::span<const Entry<Args>> entries, const Args& args,
                     const Context& context) {
  std::string reasons;
  for (const Entry<Args>& entry : entries)
    reasons += fmt::format("\n  {}: {}", entry.name, entry.refuse(args, context));
  return reasons;
}

template <class Args>
void run_entry(OpClass op_class, std::span<const Entry<Args>> entries, const Args& args,
               const Context& context) {
  if (const Entry<Args>* entry = find_entry(op_class, entries, args, context))
    return entry->run(args, context);
  raise<ConfigError>("no implementation of {} supports these arguments{}", op_name(op_class.op),
                     refusals(entries, args, context));
}

/// Like run_entry(), for operators with one entry per device.
template <class Args>
void run_first(std::string_view op, std::span<const Entry<Args>> entries, const Args& args,
               const Context& context) {
  for (const Entry<Args>& entry : entries)
    if (entry.refuse(args, context).empty()) return entry.run(args, context);
  raise<ConfigError>("no implementation of {} supports these arguments{}", op,
                     refusals(entries, args, context));
}

} // namespace pentatron::kernels

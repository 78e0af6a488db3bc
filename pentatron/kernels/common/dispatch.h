/// Runs the first entry of an operator's ordered list that does not refuse.
///
/// Throws ConfigError with every entry's reason if all refuse.
#pragma once

#include <span>
#include <string>

#include "pentatron/base/error.h"
#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

template <class Args>
void run_first(std::string_view op, std::span<const Entry<Args>> entries, const Args& args,
               const Context& context) {
  for (const Entry<Args>& entry : entries)
    if (entry.refuse(args, context).empty()) return entry.run(args, context);
  std::string reasons;
  for (const Entry<Args>& entry : entries)
    reasons += fmt::format("\n  {}: {}", entry.name, entry.refuse(args, context));
  raise<ConfigError>("no implementation of {} takes these arguments{}", op, reasons);
}

} // namespace pentatron::kernels

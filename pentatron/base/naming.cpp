#include "pentatron/base/naming.h"

#include <fmt/format.h>

namespace pentatron {

std::string with_name(std::string_view name, std::string_view value, std::string_view message,
                      std::string_view remedy) {
  std::string named = fmt::format("{}{}", name, value);
  if (message.find(named) != std::string_view::npos) {
    named = message;
  } else if (message.starts_with(value) &&
             message.find_first_of(" :", value.size()) == value.size()) {
    named += message.substr(value.size());
  } else {
    named += fmt::format(": {}", message);
  }
  if (parts_of(message).remedy.empty() && !remedy.empty())
    named += fmt::format("\n  try: {}", remedy);
  return named;
}

} // namespace pentatron

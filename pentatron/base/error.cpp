#include "pentatron/base/error.h"

namespace pentatron {

MessageParts parts_of(std::string_view message) {
  constexpr std::string_view kTry = "\n  try: ";
  const size_t at = message.find(kTry);
  if (at == std::string_view::npos) return {message, {}};
  return {message.substr(0, at), message.substr(at + kTry.size())};
}

void dcheck_failed(const char* condition, const char* file, int line) {
  raise<Error>("internal error: {} does not hold at {}:{}", condition, file, line);
}

} // namespace pentatron

/// Deliberate bugs in parallel code, which check that tests detect them;
/// tests/trainer/planted_bugs.txt describes each.
///
/// planted("name") is false and leaves nothing in the program, unless the build has
/// PENTATRON_PLANTED_BUGS: then it is true in processes started with PENTATRON_BUG=name.
#pragma once

#include <string_view>

#ifdef PENTATRON_PLANTED_BUGS
#include <cstdlib>
#endif

namespace pentatron {

#ifdef PENTATRON_PLANTED_BUGS
inline bool planted(std::string_view name) {
  static const char* const chosen = std::getenv("PENTATRON_BUG");
  return chosen != nullptr && name == chosen;
}
#else
constexpr bool planted(std::string_view) {
  return false;
}
#endif

} // namespace pentatron

#include "pentatron/cli/files/terminal.h"

#include <unistd.h>

namespace pentatron::cli {

bool on_terminal() {
  return ::isatty(STDOUT_FILENO) != 0;
}

std::string for_terminal(std::string text) {
  if (!on_terminal()) return text;
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) c = '?';
  }
  return text;
}

} // namespace pentatron::cli

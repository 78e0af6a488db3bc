#include "pentatron/cli/files/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include "pentatron/base/text.h"

namespace pentatron::cli {

bool on_terminal() {
  return ::isatty(STDOUT_FILENO) != 0;
}

std::string folded_for_terminal(std::string text) {
  winsize size = {};
  if (!on_terminal() || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
    return text;
  return fold_lines(text, size.ws_col);
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

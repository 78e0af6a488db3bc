#include "pentatron/cli/files/terminal.h"

#include <utility>

#include <sys/ioctl.h>
#include <unistd.h>

#include "pentatron/base/text.h"

namespace pentatron::cli {

bool on_terminal() {
  return ::isatty(STDOUT_FILENO) != 0;
}

namespace {

std::string folded_for(int file, std::string text) {
  winsize size = {};
  if (::isatty(file) == 0 || ::ioctl(file, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return text;
  return fold_lines(text, size.ws_col);
}

} // namespace

std::string folded_for_terminal(std::string text) {
  return folded_for(STDOUT_FILENO, std::move(text));
}

std::string folded_for_errors(std::string text) {
  return folded_for(STDERR_FILENO, std::move(text));
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

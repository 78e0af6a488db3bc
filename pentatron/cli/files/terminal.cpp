#include "pentatron/cli/files/terminal.h"

#include <cstdio>
#include <utility>

#include <sys/ioctl.h>
#include <unistd.h>

#include "pentatron/base/text.h"

namespace pentatron::cli {

bool on_terminal() {
  return ::isatty(STDOUT_FILENO) != 0;
}

void write_out(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
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
  bool behind_c2 = false; // U+0080 to U+009F in UTF-8, which some terminals obey too
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool control = behind_c2 && byte >= 0x80 && byte < 0xa0;
    behind_c2 = byte == 0xc2;
    if (control) *(&c - 1) = '?';
    if (control || (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) c = '?';
  }
  return text;
}

} // namespace pentatron::cli

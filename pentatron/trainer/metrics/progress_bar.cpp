#include "pentatron/trainer/metrics/progress_bar.h"

#include <algorithm>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

namespace pentatron::trainer {

std::string progress_text(std::string_view label, int64_t done, int64_t total,
                          std::string_view text, int width) {
  const double share =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0)
                : 0.0;
  const std::string head = fmt::format("{} [", label);
  std::string tail = fmt::format("] {:3.0f}% {}/{}", share * 100, done, total);
  if (!text.empty()) tail += fmt::format(" {}", text);
  const int room = width - static_cast<int>(head.size() + tail.size());
  const int bar = std::clamp(room, 4, 40);
  const int filled = static_cast<int>(share * bar);
  std::string line = head + std::string(static_cast<size_t>(filled), '#');
  if (filled < bar) line += '>' + std::string(static_cast<size_t>(bar - filled - 1), '-');
  line += tail;
  return line.substr(0, static_cast<size_t>(std::max(width, 1)));
}

ProgressBar::ProgressBar(std::FILE* out, std::string label, int64_t total, Mode mode)
    : out_(out), label_(std::move(label)), total_(total),
      terminal_(mode == Mode::kTerminal || (mode == Mode::kAuto && ::isatty(::fileno(out)) == 1)) {}

ProgressBar::~ProgressBar() {
  clear();
}

void ProgressBar::clear() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", out_);
  std::fflush(out_);
  drawn_ = false;
}

void ProgressBar::draw() {
  winsize size{};
  const bool known = ::ioctl(::fileno(out_), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  // One column stays free: a full line would wrap.
  const std::string line =
      progress_text(label_, done_, total_, text_, (known ? size.ws_col : 80) - 1);
  std::fputs(("\r\x1b[K" + line).c_str(), out_);
  std::fflush(out_);
  drawn_ = true;
}

void ProgressBar::update(int64_t done, std::string text) {
  done_ = done;
  text_ = std::move(text);
  if (!terminal_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_draw_ && done_ != total_) return;
  next_draw_ = now + std::chrono::milliseconds(100);
  draw();
}

void ProgressBar::print(std::string_view lines) {
  const bool redraw = drawn_;
  clear();
  std::fwrite(lines.data(), 1, lines.size(), out_);
  if (!lines.ends_with('\n')) std::fputc('\n', out_);
  std::fflush(out_);
  if (redraw) draw();
}

} // namespace pentatron::trainer

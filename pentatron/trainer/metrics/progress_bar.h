/// One line at the bottom of a terminal that shows how far a job is. On anything but a terminal
/// nothing is drawn, so that a log file holds plain lines only.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace pentatron::trainer {

/// "label  [#####>----]  37%  37/100  text", at most `width` columns: the bar shrinks first, then
/// the text is cut.
std::string progress_text(std::string_view label, int64_t done, int64_t total,
                          std::string_view text, int width);

class ProgressBar {
 public:
  enum class Mode : uint8_t { kAuto, kTerminal, kPlain };

  /// kAuto draws if `out` is a terminal.
  ProgressBar(std::FILE* out, std::string label, int64_t total, Mode mode = Mode::kAuto);
  /// Removes the bar from the screen.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Sets the state; drawn at most ten times a second.
  void update(int64_t done, std::string text);
  /// Writes whole lines above the bar.
  void print(std::string_view lines);
  void clear();

  bool on_terminal() const { return terminal_; }

 private:
  void draw();

  std::FILE* out_;
  std::string label_;
  std::string text_;
  int64_t done_ = 0;
  int64_t total_;
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_draw_{};
};

} // namespace pentatron::trainer

/// Progress of a job: one line at the bottom of a terminal, or a plain line every few seconds in a
/// file. Messages of log.h appear above the line. The line never wraps, and it disappears at the
/// end, on Ctrl-C and while the program is suspended (Ctrl-Z).
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace pentatron {

/// "label [#####>----]  37% 37/100 text", at most `width` columns: the bar shrinks first, then the
/// text is cut. `counts` replaces "37/100".
std::string progress_text(std::string_view label, int64_t done, int64_t total,
                          std::string_view text, int width, std::string_view counts = {});

/// Any thread may call the functions. Threads whose messages do not go to the console (those of all
/// ranks but one) show nothing.
class Progress {
 public:
  enum class Unit : uint8_t {
    kCount, ///< "37/100"
    kBytes  ///< "1.2 GiB of 3.4 GiB, 12s left"
  };
  struct Options {
    Unit unit = Unit::kCount;
    double line_every_s = 10; ///< in a file; 0: no lines
    bool draw = true;         ///< the line at the bottom of a terminal
  };
  Progress(std::string label, int64_t total, const Options& options);
  Progress(std::string label, int64_t total) : Progress(std::move(label), total, Options()) {}
  /// Removes the line from the screen.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Sets the state; drawn at most ten times a second.
  void update(int64_t done, std::string_view text = {});
  void set_total(int64_t total);
  void clear();

 private:
  std::string counts(double now) const;

  std::mutex mutex_;
  std::string label_;
  int64_t total_;
  Options options_;
  double begin_s_;
  double told_s_;
  double next_draw_s_ = 0;
  bool shown_ = false;
  int64_t done_ = 0;
};

namespace log {

/// Writes whole lines to the console of log.h, above a progress line, whatever the level.
void print(std::string_view lines);

/// Whether messages of this thread go to the console.
bool on_console();

/// The columns of the console: of its terminal, else 80.
int console_width();
/// Columns for tables and paragraphs in the log: at most 120, which is also what files get.
int text_columns();

/// Removes the progress line, if one is shown. May be called in a signal handler.
void clear_progress_in_handler();

} // namespace log
} // namespace pentatron

#include "pentatron/base/log.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>

#include <sys/ioctl.h>
#include <unistd.h>

#include "pentatron/base/progress.h"
#include "pentatron/base/text.h"

namespace pentatron::log {

namespace {

constexpr std::string_view kClearLine = "\r\033[K";

struct Output {
  std::mutex mutex;
  std::FILE* file = stderr;
  bool terminal = ::isatty(STDERR_FILENO) == 1;
  std::string progress;
};

Output& output() {
  static Output* const instance = new Output; // outlives every thread that may still write at exit
  return *instance;
}

std::atomic<Level> threshold{Level::kInfo};
thread_local std::string thread_prefix;
thread_local std::FILE* thread_file = nullptr;
thread_local bool thread_console = true;

std::string harmless(std::string_view message, bool one_line) {
  std::string out(message);
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\t' || (c == '\n' && !one_line)) continue;
    if (byte < 0x20 || byte == 0x7F) c = '?';
  }
  return out;
}

void emit(Output& out, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), out.file);
  std::fflush(out.file);
}

int width_of(std::FILE* file) {
  winsize size{};
  const bool known = ::ioctl(::fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

/// Whether the terminal belongs to another job now (after Ctrl-Z and bg). Ranks may be in a process
/// group of their own, below the one of the job.
bool in_background(std::FILE* file) {
  const pid_t owner = ::tcgetpgrp(::fileno(file));
  return owner > 0 && owner != ::getpgrp() && owner != ::getpgid(::getppid());
}

std::atomic<int> shown_on{-1}; ///< the terminal that shows a progress line

/// For signals that suspend or end the program: first the progress line goes.
extern "C" void on_leaving(int number) {
  const int error = errno;
  clear_progress_in_handler();
  struct sigaction usual = {}, own = {};
  usual.sa_handler = SIG_DFL;
  sigemptyset(&usual.sa_mask);
  ::sigaction(number, &usual, &own);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(number); // a suspended program goes on behind this line
  ::sigaction(number, &own, nullptr);
  errno = error;
}

/// Where a signal would do what it does by default.
void guard_terminal() {
  for (const int number : {SIGTSTP, SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now = {}, guard = {};
    if (::sigaction(number, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 ||
        now.sa_handler != SIG_DFL)
      continue;
    guard.sa_handler = on_leaving;
    guard.sa_flags = SA_RESTART;
    sigemptyset(&guard.sa_mask);
    ::sigaction(number, &guard, nullptr);
  }
}

/// The progress line as it fits now, to be written next.
std::string fitting(const Output& out) {
  if (out.progress.empty() || in_background(out.file)) return {};
  shown_on = ::fileno(out.file);
  return out.progress.substr(0, static_cast<size_t>(std::max(width_of(out.file) - 1, 1)));
}

} // namespace

void clear_progress_in_handler() {
  const int terminal = shown_on.exchange(-1);
  if (terminal >= 0) [[maybe_unused]]
    const ssize_t n = ::write(terminal, kClearLine.data(), kClearLine.size());
}

bool on_console() {
  return thread_console;
}

int console_width() {
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  return width_of(out.file);
}

int text_columns() {
  constexpr int kLeast = 40, kMost = 120;
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  return out.terminal ? std::clamp(width_of(out.file), kLeast, kMost) : kMost;
}

void print(std::string_view lines) {
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  std::string text(lines);
  if (!text.ends_with('\n')) text += '\n';
  if (out.terminal) text = std::string(kClearLine) + text + fitting(out);
  emit(out, text);
}

void set_level(Level level) {
  threshold = level;
}

Level level() {
  return threshold;
}

void set_thread_prefix(std::string prefix) {
  thread_prefix = std::move(prefix);
}

void set_thread_output(std::FILE* file, bool console) {
  thread_file = file;
  thread_console = console;
}

ThreadSettings thread_settings() {
  return {.prefix = thread_prefix, .file = thread_file, .console = thread_console};
}

void set_thread_settings(const ThreadSettings& settings) {
  thread_prefix = settings.prefix;
  thread_file = settings.file;
  thread_console = settings.console;
}

void set_output(std::FILE* file, bool terminal) {
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  out.file = file;
  out.terminal = terminal;
  out.progress.clear();
}

bool is_terminal() {
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  return out.terminal;
}

void set_progress(std::string_view line) {
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  if (!out.terminal) return;
  out.progress = harmless(line, /*one_line=*/true);
  static std::once_flag guarded;
  if (!out.progress.empty()) std::call_once(guarded, guard_terminal);
  if (in_background(out.file)) return;
  emit(out, std::string(kClearLine) + fitting(out));
  if (out.progress.empty()) shown_on = -1;
}

void write(Level level, std::string_view message, Audience audience) {
  if (level < threshold.load()) return;
  std::string line;
  if (!thread_prefix.empty()) line += thread_prefix + ": ";
  if (level == Level::kWarning) line += "warning: ";
  if (level == Level::kError) line += "error: ";
  line += harmless(message, /*one_line=*/false) + '\n';
  if (thread_file != nullptr) {
    std::fwrite(line.data(), 1, line.size(), thread_file);
    std::fflush(thread_file);
  }
  if (!thread_console && (level < Level::kWarning || audience == Audience::kOneRank)) return;
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  if (out.terminal) line = fold_lines(line, static_cast<size_t>(width_of(out.file)));
  // Of ranks that are processes another one may show the progress line of this terminal.
  if (out.terminal && !in_background(out.file))
    line = std::string(kClearLine) + line + fitting(out);
  emit(out, line);
}

} // namespace pentatron::log

#include "pentatron/base/progress.h"

#include <algorithm>

#include <fmt/format.h>

#include "pentatron/base/format.h"
#include "pentatron/base/log.h"

namespace pentatron {

std::string progress_text(std::string_view label, int64_t done, int64_t total,
                          std::string_view text, int width, std::string_view counts) {
  const double share =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0)
                : 0.0;
  const std::string head = fmt::format("{} [", label);
  std::string tail = counts.empty() ? fmt::format("] {:3.0f}% {}/{}", share * 100, done, total)
                                    : fmt::format("] {:3.0f}% {}", share * 100, counts);
  if (!text.empty()) tail += fmt::format(" {}", text);
  const int room = width - static_cast<int>(head.size() + tail.size());
  const int bar = std::clamp(room, 4, 40);
  const int filled = static_cast<int>(share * bar);
  std::string line = head + std::string(static_cast<size_t>(filled), '#');
  if (filled < bar) line += '>' + std::string(static_cast<size_t>(bar - filled - 1), '-');
  line += tail;
  return line.substr(0, static_cast<size_t>(std::max(width, 1)));
}

Progress::Progress(std::string label, int64_t total, const Options& options)
    : label_(std::move(label)), total_(total), options_(options), begin_s_(monotonic_s()),
      told_s_(begin_s_) {}

Progress::~Progress() {
  clear();
}

void Progress::clear() {
  const std::lock_guard lock(mutex_);
  if (shown_) log::set_progress("");
  shown_ = false;
}

void Progress::set_total(int64_t total) {
  const std::lock_guard lock(mutex_);
  total_ = total;
}

std::string Progress::counts(double now) const {
  if (options_.unit == Unit::kCount) return {};
  const double left =
      eta_s(static_cast<double>(done_), static_cast<double>(total_), now - begin_s_);
  return fmt::format("{} of {}{}", format_bytes(static_cast<double>(done_)),
                     format_bytes(static_cast<double>(total_)),
                     left >= 1 ? fmt::format(", {} left", format_duration(left)) : "");
}

void Progress::update(int64_t done, std::string_view text) {
  if (!log::on_console()) return;
  const std::lock_guard lock(mutex_);
  const bool ends = done_ < total_ && done >= total_;
  done_ = std::max(done_, done); // several threads may be out of order
  const double now = monotonic_s();
  if (!log::is_terminal()) {
    if (options_.line_every_s <= 0 || now - told_s_ < options_.line_every_s) return;
    told_s_ = now;
    const double share = 100.0 * static_cast<double>(done_) / std::max(1.0, double(total_));
    const std::string how_many =
        options_.unit == Unit::kCount ? fmt::format("{}/{}", done_, total_) : counts(now);
    log::info("{}: {:.0f}%, {}{}{}", label_, share, how_many, text.empty() ? "" : ", ", text);
    return;
  }
  if (!options_.draw || (now < next_draw_s_ && !ends)) return;
  next_draw_s_ = now + 0.1;
  // Two columns stay free for the terminal's ^C, and a full line would wrap.
  log::set_progress(
      progress_text(label_, done_, total_, text, log::console_width() - 3, counts(now)));
  shown_ = true;
}

} // namespace pentatron

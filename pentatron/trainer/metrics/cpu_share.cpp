#include "pentatron/trainer/metrics/cpu_share.h"

#include <fstream>
#include <string>

#include <unistd.h>

#include <fmt/format.h>

#include "pentatron/kernels/contract.h"

namespace pentatron::trainer {

namespace fs = std::filesystem;

namespace {

constexpr double kLeastWork = 0.5;    // seconds
constexpr double kWorthTelling = 0.1; // share of the time
constexpr int kLeastSteps = 4;
constexpr double kWindow_s = 60;

void add_threads(const fs::path& tasks, CpuTime& time) {
  std::error_code error;
  for (fs::directory_iterator task(tasks, error), end; !error && task != end;
       task.increment(error)) {
    std::ifstream in(task->path() / "schedstat");
    double running = 0, waiting = 0; // nanoseconds
    if (in >> running >> waiting) {
      time.running += running * 1e-9;
      time.waiting += waiting * 1e-9;
    }
  }
}

void add_processors(const fs::path& file, CpuTime& time) {
  std::ifstream in(file);
  std::string name;
  in >> name; // "cpu": user nice system idle iowait irq softirq steal
  const double tick = 1.0 / static_cast<double>(::sysconf(_SC_CLK_TCK));
  double ticks = 0;
  for (int column = 0; column < 8 && in >> ticks; ++column) {
    time.total += ticks * tick;
    if (column == 7) time.stolen = ticks * tick;
  }
}

} // namespace

CpuTime read_cpu_time(const fs::path& root) {
  CpuTime time;
  add_threads(root / "proc/self/task", time);
  add_processors(root / "proc/stat", time);
  return time;
}

std::optional<Finding> find_contention(const CpuTime& before, const CpuTime& after, int threads) {
  const double running = after.running - before.running;
  const double waiting = after.waiting - before.waiting;
  if (running + waiting < kLeastWork) return std::nullopt;
  const double waited = waiting / (running + waiting);
  if (waited > kWorthTelling)
    return Finding{fmt::format("compute threads had to wait for a processor {:.0f} % of the time: "
                               "more threads are busy than there are processors",
                               100 * waited),
                   threads > 1 ? "stop other programs, or use fewer threads (train.num_threads or "
                                 "OMP_NUM_THREADS)"
                               : "stop other programs"};
  const double total = after.total - before.total;
  const double stolen = total > 0 ? (after.stolen - before.stolen) / total : 0;
  if (stolen > kWorthTelling)
    return Finding{
        fmt::format("the host of this virtual machine gave {:.0f} % of the processor time "
                    "to other machines",
                    100 * stolen),
        "a machine with dedicated processors"};
  return std::nullopt;
}

const std::optional<Finding>& ContentionWatch::step(double now_s) {
  if (now_s < next_s_) return finding_;
  const CpuTime now = read_cpu_time(root_);
  if (!begin_) {
    begin_ = now;
    return finding_;
  }
  if (++steps_ < kLeastSteps ||
      now.running + now.waiting - begin_->running - begin_->waiting < kLeastWork)
    return finding_;
  finding_ = find_contention(*begin_, now, kernels::num_threads());
  begin_ = now;
  next_s_ = now_s + kWindow_s;
  return finding_;
}

} // namespace pentatron::trainer

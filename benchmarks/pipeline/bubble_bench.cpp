/// Idle shares of the pipeline schedules, in the real runtime:
///
///   build/dev/benchmarks/bench_pipeline [--ranks 4,8] [--microbatches 8,16,32] [--svg FOLDER]
///   mpirun -n 4 build/dev/benchmarks/bench_pipeline
///   build/dev/benchmarks/bench_pipeline --exchange-ms 2,5,10
///
/// A stage's computations are waits of known lengths, which need no core: so any number of ranks
/// keeps time on any machine, and what is measured is the schedule, the runtime and the messages. A
/// rank's forward pass of a microbatch takes F, its input gradient I, its weight gradient W; a rank
/// with v stages has v parts of each. Ranks are threads, or the processes of an mpirun.
/// With --exchange-ms, each F and each I also waits so long for messages, half way, as for those
/// between experts; overlapped pairs run one after the other, and in turns.
#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/process_ranks.h"
#include "pentatron/comm/rank_threads.h"
#include "pentatron/nn/ops/wgrad.h"
#include "pentatron/nn/record.h"
#include "pentatron/parallel/pipeline/measured.h"
#include "pentatron/parallel/pipeline/runtime.h"
#include "pentatron/parallel/pipeline/schedule/draw.h"
#include "pentatron/parallel/pipeline/schedule/lower.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <thread>

namespace {

using namespace pentatron;
using pipeline::StageCost;
using pipeline::Timeline;

constexpr int64_t kTokens = 4;
constexpr int64_t kHidden = 16;

double timer_lateness_s = 0; ///< by which a sleep of this machine lasts too long

void sleep_s(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

void wait_s(double seconds) {
  sleep_s(seconds - timer_lateness_s);
}

void calibrate(double seconds) {
  std::vector<double> lateness;
  for (int i = 0; i < 25; ++i) {
    const double begin = monotonic_s();
    sleep_s(seconds);
    lateness.push_back(monotonic_s() - begin - seconds);
  }
  std::ranges::nth_element(lateness, lateness.begin() + 12);
  timer_lateness_s = lateness[12];
}

/// Messages in the middle of a pass.
struct Exchange {
  double seconds = 0;
  nn::Turns* turns = nullptr; ///< null: the pass waits for them
};

/// A stage that waits. Its weight gradients go through the WgradQueue like those of a linear layer,
/// to a parameter of the microbatch's own, whose gradient memory takes W to be had; so W passes
/// when the queue runs the task, wherever the schedule has put that.
class WaitingSegment : public nn::Segment {
 public:
  WaitingSegment(const StageCost& cost, const Exchange& exchange, bool last, int num_microbatches)
      : cost_(cost), exchange_(exchange), last_(last) {
    for (int i = 0; i < num_microbatches; ++i) {
      nn::Param& weight =
          weights_.add({.name = "weight", .shape = {kHidden, kHidden}}, {}, at::kFloat, {});
      weight.need_main_grad = [w = cost.backward_weight](nn::Param& param) {
        wait_s(w);
        param.set_main_grad(at::zeros(param.shape()));
      };
      weight.on_ready = [](nn::Param& param) { param.set_main_grad(at::Tensor()); };
      by_microbatch_.push_back(&weight);
    }
  }

  std::string name() const override { return "wait"; }

  Output forward(const std::vector<at::Tensor>& taken,
                 const nn::ForwardContext& ctx) const override {
    nn::Param* const weight = by_microbatch_[ctx.layout->sample_ids[0]];
    ctx.use(weight);
    compute(cost_.forward);
    const at::Tensor h = taken.empty() ? at::zeros({kTokens, kHidden}) : taken[0].detach();
    const at::Tensor y = last_ ? h.sum() : h.clone();
    nn::record(
        "wait", taken, {y}, {h},
        [this, weight, taken_ = !taken.empty(), queue = ctx.wgrad](auto&& grads, nn::Saved& saved) {
          const nn::NoAutograd guard;
          compute(cost_.backward_input);
          const at::Tensor dx = grads[0].expand({kTokens, kHidden}).contiguous();
          queue->push(std::make_unique<nn::LinearWgrad>(dx, saved.take(0), weight, nullptr));
          return taken_ ? std::vector<at::Tensor>{dx} : std::vector<at::Tensor>{};
        });
    if (last_) return {.flows = {}, .loss = y};
    return {.flows = {y}, .loss = {}};
  }

 private:
  void compute(double seconds) const {
    if (exchange_.seconds == 0) return wait_s(seconds);
    wait_s(seconds / 2);
    const double arrives = monotonic_s() + exchange_.seconds;
    if (exchange_.turns != nullptr) exchange_.turns->pass();
    if (const double left = arrives - monotonic_s(); left > timer_lateness_s) wait_s(left);
    wait_s(seconds / 2);
  }

  StageCost cost_;
  Exchange exchange_;
  bool last_;
  nn::ParamList weights_;
  std::vector<nn::Param*> by_microbatch_;
};

/// Parameters that are always there.
class Resident : public nn::ParamStore {
 public:
  void acquire(int64_t, nn::Pass) override {}
  void release(int64_t, nn::Pass) override {}
};

/// One step of `schedule`: the computing passes of every rank.
Timeline measure(const pipeline::Schedule& schedule, const StageCost& cost,
                 const Exchange& exchange, const comm::Group& world) {
  std::vector<nn::Chunk> chunks;
  for (const int stage : schedule.stages_of(world.rank())) {
    const bool first = schedule.is_first(stage), last = schedule.is_last(stage);
    std::vector<nn::ConnectedSegment> segments;
    segments.push_back(
        {std::make_unique<WaitingSegment>(cost, exchange, last, schedule.num_microbatches),
         {.takes = first ? std::vector<int>{} : std::vector<int>{0},
          .gives = last ? std::vector<int>{} : std::vector<int>{0},
          .ends = {}}});
    chunks.emplace_back(std::move(segments), 1, nn::ChunkOptions{});
  }
  std::vector<const nn::Chunk*> held;
  for (const nn::Chunk& chunk : chunks) held.push_back(&chunk);
  std::vector<nn::Microbatch> microbatches;
  for (int i = 0; i < schedule.num_microbatches; ++i) {
    const auto id = static_cast<uint64_t>(i);
    microbatches.push_back(
        {.fields = {}, .layouts = {nn::SequenceLayout::dense(1, kTokens, {id}, at::kCPU)}});
  }
  Resident store;
  nn::StepState state;
  std::vector<pipeline::Interval> intervals;
  pipeline::Boundaries boundaries{.flows = {{.name = "hidden", .width = kHidden}},
                                  .before_stage = {{}}};
  boundaries.before_stage.resize(static_cast<size_t>(schedule.num_stages), {0});
  boundaries.gradients_before_stage = boundaries.before_stage;
  pipeline::Runtime runtime(held, store, world, std::move(boundaries));
  comm::barrier(world);
  runtime.run(schedule, microbatches, state,
              {.training = true, .turns = exchange.turns, .intervals = &intervals});
  std::erase_if(intervals, [](const pipeline::Interval& interval) {
    return !pipeline::is_compute(interval.action.kind);
  });
  return pipeline::gather_timeline(schedule.name, intervals, world);
}

struct Shares {
  double bubble = 0; ///< idle time of the rank that works longest, over its time
  double step = 0;   ///< mean over ranks of the time without work, from first start to last end
};

Shares shares_of(const Timeline& timeline) {
  Shares shares;
  double longest = 0;
  const std::vector<pipeline::RowUse> uses = pipeline::row_use(timeline);
  for (const pipeline::RowUse& use : uses) {
    longest = std::max(longest, use.window);
    shares.step += use.idle_share / static_cast<double>(uses.size());
  }
  shares.bubble = pipeline::bubble(timeline) / longest;
  return shares;
}

/// The published idle time of a rank (schedule/generators.h), `c` being the cost of one stage.
double published_idle(const std::string& name, int p, int m, const StageCost& c) {
  const auto [f, i, w] = c;
  const double others = p - 1;
  if (name == "zb_h1") return others * (f + i - w);
  if (name == "zb_h2") return others * (f + i - w) - std::clamp<double>(m - p, 0, others) * w;
  if (name == "zb_v") return 0;                                              // F = I = W
  if (name == "dualpipe_v") return others * ((f + i + w) + (i + w) - 3 * w); // a pair: F + B
  return others * (f + i + w); // of one stage: interleaved's are shorter
}

struct Options {
  std::vector<int> ranks = {4, 8};
  std::vector<int> microbatches = {8, 16, 32};
  std::vector<std::string> schedules = pipeline::schedule_names();
  double pass_ms = 15;
  std::vector<double> exchange_ms;
  int rounds = 2;
  std::string svg;
};

void run_case(const std::string& name, int m, const Options& options, const comm::Group& world) {
  const int p = world.size();
  const int stages_per_rank = pipeline::stages_per_rank(name);
  const double pass_s = options.pass_ms / 1e3 / stages_per_rank;
  const StageCost cost{pass_s, pass_s, pass_s};
  const pipeline::Schedule schedule = lower(pipeline::make_schedule(name, p, 0, m));
  const Timeline simulated = pipeline::simulate(schedule, {.stages = {cost}});
  Timeline best;
  for (int round = 0; round < options.rounds; ++round) {
    Timeline timeline = measure(schedule, cost, {}, world);
    if (round == 0 || makespan(timeline) < makespan(best)) best = std::move(timeline);
  }
  if (world.rank() != 0) return;
  const double busy = m * stages_per_rank * 3 * pass_s;
  const double idle = published_idle(name, p, m, cost);
  const Shares theory = shares_of(simulated), real = shares_of(best);
  fmt::print("| {} | {} | {} | {:.1f} % | {:.1f} % | {:.1f} % | {:.1f} % | {:.1f} % | {:.3f} |\n",
             name, p, m, 100 * idle / (busy + idle), 100 * theory.bubble, 100 * real.bubble,
             100 * theory.step, 100 * real.step, makespan(best));
  std::fflush(stdout);
  if (options.svg.empty()) return;
  std::filesystem::create_directories(options.svg);
  write_file_atomically(
      std::filesystem::path(options.svg) / fmt::format("pipeline_{}_{}x{}.svg", name, p, m),
      draw_svg(best,
               {.title = fmt::format("{}: {} ranks, {} microbatches, as measured", name, p, m),
                .unit = "s"}));
}

/// Step times of pairs with and without turns.
void run_exchange_case(double exchange_ms, int m, const Options& options,
                       const comm::Group& world) {
  const pipeline::Schedule schedule =
      lower(pipeline::make_schedule("dualpipe_v", world.size(), 0, m));
  const double pass_s = options.pass_ms / 1e3 / 2;
  nn::Turns turns;
  const auto shortest = [&](const Exchange& exchange) {
    double best = std::numeric_limits<double>::infinity();
    for (int round = 0; round < options.rounds; ++round)
      best = std::min(best, makespan(measure(schedule, {pass_s, pass_s, pass_s}, exchange, world)));
    return best;
  };
  const double none = shortest({}), after = shortest({exchange_ms / 1e3}),
               in_turns = shortest({exchange_ms / 1e3, &turns});
  if (world.rank() != 0) return;
  fmt::print("| {} | {} | {} | {:.3f} | {:.3f} | {:.3f} | {:.0f} % |\n", world.size(), m,
             exchange_ms, none, after, in_turns,
             100 * (after - in_turns) / std::max(after - none, 1e-9));
  std::fflush(stdout);
}

void run_all(const Options& options, const comm::Group& world) {
  at::set_num_threads(1);
  for (const double exchange_ms : options.exchange_ms)
    for (const int m : options.microbatches) run_exchange_case(exchange_ms, m, options, world);
  if (!options.exchange_ms.empty()) return;
  for (const int m : options.microbatches)
    for (const std::string& name : options.schedules) run_case(name, m, options, world);
}

int run(int argc, char** argv) {
  Options options;
  CLI::App program("Idle shares of pipeline schedules whose computations are waits");
  program.add_option("--ranks", options.ranks, "without mpirun")->delimiter(',');
  program.add_option("--microbatches", options.microbatches)->delimiter(',');
  program.add_option("--schedules", options.schedules)->delimiter(',');
  program.add_option("--pass-ms", options.pass_ms, "F, I and W of a rank");
  program.add_option("--exchange-ms", options.exchange_ms, "messages in each F and I of a stage")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  program.add_option("--rounds", options.rounds, "the shortest counts")->check(CLI::Range(1, 100));
  program.add_option("--svg", options.svg, "folder for a picture of each");
  CLI11_PARSE(program, argc, argv);
  calibrate(options.pass_ms / 1e3);

  const comm::Launch launch = comm::detect_launch();
  if (launch.rank == 0) {
    fmt::print("F = I = W = {} ms on a rank; sleeps of this machine are {:.0f} us late, which is "
               "taken off\n\n",
               options.pass_ms, timer_lateness_s * 1e6);
    if (!options.exchange_ms.empty())
      fmt::print("| ranks | microbatches | messages, ms | step without messages s | pairs one "
                 "after the other s "
                 "| in turns s | of the messages hidden |\n|---|---|---|---|---|---|---|\n");
    else
      fmt::print(
          "| schedule | ranks | microbatches | bubble, formula | simulated | measured | idle "
          "in step, simulated | measured | step s |\n"
          "|---|---|---|---|---|---|---|---|---|\n");
  }
  if (launch.launcher != comm::Launcher::kNone) {
    comm::run_process_rank(launch, {}, [&](const comm::Group& world) { run_all(options, world); });
  } else {
    for (const int p : options.ranks)
      comm::run_ranks(p, [&](const comm::Group& world) { run_all(options, world); });
  }
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}

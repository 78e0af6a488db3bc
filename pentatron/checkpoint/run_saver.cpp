#include "pentatron/checkpoint/run_saver.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/json.h"
#include "pentatron/checkpoint/machines.h"
#include "pentatron/checkpoint/sharded/checkpoint_writer.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/checkpoint/sharded/parity.h"
#include "pentatron/checkpoint/source_facts.h"
#include "pentatron/checkpoint/staging.h"
#include "pentatron/checkpoint/state_pieces.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/comm/long_work.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

/// More jobs than a save has: submitting never waits, staging alone does.
constexpr size_t kQueue = size_t{1} << 24;
/// Staging may lack so much of what a save would ask for, and is not made anew.
constexpr uint64_t kSmallLack = uint64_t{4} << 20;

CheckpointInfo info_of(const TrainState& state, const optim::Optimizer& optimizer, int64_t parity) {
  CheckpointInfo info{.state = {{"consumed_samples", state.consumed_samples},
                                {"optimizer_steps", optimizer.steps()},
                                {"skipped_iterations", state.skipped_iterations},
                                {"nan_iterations", state.nan_iterations}},
                      .config_yaml = state.config_yaml,
                      .tokenizer = state.tokenizer,
                      .attachments = state.attachments,
                      .parity = parity};
  const auto add = [&](const char* key, const std::optional<double>& value) {
    if (value && std::isfinite(*value)) info.state[key] = *value;
  };
  if (!optimizer.first_steps().empty()) info.state[kFirstSteps] = optimizer.first_steps();
  if (!optimizer.bounds().empty()) info.state[kStateBounds] = optimizer.bounds().all();
  if (!state.expert_choices.empty()) info.state["expert_choices"] = state.expert_choices;
  if (state.loss_scale)
    info.state["loss_scale"] = {{"scale", state.loss_scale->scale},
                                {"growth_tracker", state.loss_scale->growth_tracker},
                                {"hysteresis_tracker", state.loss_scale->hysteresis_tracker}};
  if (state.held_iterations > 0) {
    info.state["held_iterations"] = state.held_iterations;
    info.state["held_samples"] = state.held_samples;
  }
  if (state.eod >= 0) info.state[kEod] = state.eod;
  add("loss", state.loss);
  add("validation_loss", state.validation_loss);
  for (const auto& [name, value] : state.figures) add(name.c_str(), value);
  return info;
}

/// One save under way.
struct Pending {
  enum class Phase : uint8_t { kWriting, kParity, kCommitting, kPruning };
  int64_t iteration = 0;
  double begin_s = 0;
  Phase phase = Phase::kWriting;
  fs::path aside;
  std::vector<std::string> descriptions; // of all ranks' files
  Manifest files;                        // their names and sizes alone
  std::string parity_part;
  CheckpointInfo info; // of leaders, as all that follows
  std::optional<CheckpointWriter> writer;
  fs::path folder;
  std::string note;
};

struct EntryOf {
  ShardFileWriter* file = nullptr;
  std::string name;
};

/// What this rank has done for a save: filled by its thread, read once that is idle.
struct Written {
  std::vector<std::unique_ptr<ShardFileWriter>> files;
  std::vector<EntryOf> entries; ///< items of the staging
  std::vector<std::string> descriptions;
  uint64_t bytes = 0; ///< of all tensors; set before the thread begins
};

constexpr size_t kWrittenAtOnce = 64 << 20; ///< of a large tensor, between two signs of progress

void write_now(const fs::path& aside, const std::vector<FilePlan>& plans, Written& written,
               const comm::ProgressTeller& progress) {
  for (const FilePlan& plan : plans) {
    ShardFileWriter file(aside, plan.name, plan.entries);
    for (size_t i = 0; i < plan.entries.size(); ++i) {
      for (const at::Tensor& view : plan.contents[i]) {
        const at::Tensor data = view.contiguous().cpu();
        std::span<const std::byte> bytes(static_cast<const std::byte*>(data.const_data_ptr()),
                                         static_cast<size_t>(data.nbytes()));
        do {
          const std::span<const std::byte> block =
              bytes.first(std::min(bytes.size(), kWrittenAtOnce));
          file.write(plan.entries[i].name, block);
          progress();
          bytes = bytes.subspan(block.size());
        } while (!bytes.empty());
      }
    }
    written.descriptions.push_back(file.finish());
    progress();
  }
}

} // namespace

struct RunSaver::State {
  SaveOptions options;
  comm::Group world;
  comm::ProgressTeller progress{world}; // while finish() waits
  std::optional<Machines> machines;
  std::unique_ptr<Pending> pending;
  Written written;
  std::unique_ptr<Staging> staging;
  mutable std::mutex mutex; // of the two below, which the thread sets
  std::string error;
  double finished_s = 0;
  std::atomic<bool> failed{false};
  std::atomic<int64_t> jobs{0};
  std::optional<IoThreads> thread; // last: its jobs use the others

  /// What the leaders of machines say, the lowest rank first.
  std::vector<std::string> tell(const std::string& own) const {
    const std::vector<std::string> texts = comm::gather_text(machines->leads() ? own : "", world);
    std::vector<std::string> told;
    for (const int leader : machines->all_leaders())
      told.push_back(texts[static_cast<size_t>(leader)]);
    return told;
  }

  /// Keeps what goes wrong for the next exchange with the other ranks.
  void guard(const std::function<void()>& work) {
    try {
      if (!failed) work();
    } catch (const std::exception& e) {
      const std::lock_guard lock(mutex);
      if (error.empty()) error = e.what();
      failed = true;
    }
    const std::lock_guard lock(mutex);
    finished_s = monotonic_s();
  }
  void submit(std::function<void()> work) {
    if (!thread) thread.emplace(1, kQueue);
    ++jobs;
    thread->submit([this, work = std::move(work)] {
      guard(work);
      --jobs;
    });
  }

  std::string work() const {
    return fmt::format("the checkpoint of iteration {}", pending->iteration);
  }
  std::string begin(int64_t iteration);
  uint64_t stage(std::vector<FilePlan>& plans);
  SaveEvent event(SaveEvent::State state) const;
  SaveEvent fail(const std::string& why);
  SaveEvent after_writing();
  std::vector<SaveEvent> after_parity();
  std::vector<SaveEvent> after_commit();
  void write_parity();
  void begin_commit();
  void commit();
  void prune();
};

RunSaver::RunSaver(SaveOptions options, comm::Group world) : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
  state_->world = std::move(world);
  state_->progress = comm::ProgressTeller(state_->world);
  if (state_->options.node_local)
    state_->machines.emplace(state_->options.dir, state_->world);
  else
    state_->machines.emplace(state_->world);
}

RunSaver::~RunSaver() {
  state_->failed = true; // what has not begun is left out
  state_->thread.reset();
  state_->written.files.clear(); // before the folder that they are in
}

/// Makes the folder aside; returns why that is impossible, or nothing.
std::string RunSaver::State::begin(int64_t iteration) {
  pending = std::make_unique<Pending>();
  pending->iteration = iteration;
  pending->begin_s = monotonic_s();
  written = {};
  error.clear();
  failed = false;
  std::string own;
  const comm::LongWork removing(world, "removing what was not finished in " + options.dir.string());
  if (machines->leads()) {
    try {
      pending->writer.emplace(options.dir, iteration, [this] { progress(); });
      own = "+" + pending->writer->path().string();
    } catch (const Error& e) {
      own = std::string("-") + e.what();
    }
  }
  const std::vector<std::string> answers = tell(own);
  for (const std::string& answer : answers)
    if (answer[0] == '-') return answer.substr(1);
  for (size_t i = 0; i < answers.size(); ++i)
    if (machines->all_leaders()[i] == machines->own_leader()) pending->aside = answers[i].substr(1);
  guard([this] {
    if (std::error_code ignored; !fs::exists(pending->aside, ignored))
      raise<CheckpointError>("this rank cannot see {}\n  try: a folder that all machines share, or "
                             "checkpoint.node_local=true",
                             options.dir.string());
  });
  return "";
}

/// Copies everything and lets the thread write it. Returns the bytes that had to wait.
uint64_t RunSaver::State::stage(std::vector<FilePlan>& plans) {
  const uint64_t bytes = written.bytes;
  bool on_gpu = false;
  for (const FilePlan& plan : plans) {
    for (const auto& views : plan.contents)
      for (const at::Tensor& view : views) on_gpu = on_gpu || view.is_cuda();
  }
  const uint64_t wanted = staging_bytes(bytes, options.staging_bytes);
  if (!staging || staging->capacity() + kSmallLack < wanted)
    staging = std::make_unique<Staging>(wanted, on_gpu);
  staging->on_block([this](size_t block) {
    ++jobs;
    thread->submit([this, block] {
      guard([&] {
        staging->for_each(block, [&](size_t item, std::span<const std::byte> piece) {
          written.entries[item].file->write(written.entries[item].name, piece);
          progress();
        });
      });
      staging->release(block);
      --jobs;
    });
  });
  for (const FilePlan& plan : plans) {
    submit([this, name = plan.name, entries = plan.entries] {
      auto file = std::make_unique<ShardFileWriter>(pending->aside, name, entries);
      for (const EntrySpec& entry : entries) written.entries.push_back({file.get(), entry.name});
      written.files.push_back(std::move(file));
    });
  }
  size_t item = 0;
  for (const FilePlan& plan : plans) {
    for (const std::vector<at::Tensor>& views : plan.contents) {
      for (const at::Tensor& view : views) staging->add(item, view);
      ++item;
    }
  }
  staging->flush();
  submit([this] {
    for (const auto& file : written.files) {
      written.descriptions.push_back(file->finish());
      progress();
    }
    written.files.clear();
  });
  return bytes > staging->capacity() ? bytes - staging->capacity() : 0;
}

SaveEvent RunSaver::State::event(SaveEvent::State state) const {
  return {.state = state,
          .iteration = pending->iteration,
          .seconds = monotonic_s() - pending->begin_s,
          .waited_s = 0,
          .bytes = written.bytes,
          .folder = {},
          .text = {}};
}

SaveEvent RunSaver::State::fail(const std::string& why) {
  SaveEvent failure = event(SaveEvent::State::kFailed);
  failure.text = why;
  const comm::LongWork removing(world, "removing what was written for " + work());
  written = {};
  pending.reset(); // removes the folder aside
  return failure;
}

/// Every rank's time, bytes and error; then, on the leaders, their descriptions. All begin with the
/// parity files, or the leaders with the commit.
SaveEvent RunSaver::State::after_writing() {
  Json own{{"seconds", finished_s - pending->begin_s},
           {"bytes", written.bytes},
           {"error", error},
           {"files", Json::object()}};
  for (const std::string& text : written.descriptions) {
    const FileDescription file = parse_file_description(text, "the description of a file");
    own["files"][file.name] = file.file.bytes;
  }
  SaveEvent now = event(SaveEvent::State::kWritten);
  now.seconds = 0;
  now.bytes = 0;
  std::string why;
  int rank = 0;
  for (const std::string& text : comm::gather_text(dump_json(own), world)) {
    const Json theirs = parse_json(text, "a rank's report");
    now.seconds = std::max(now.seconds, json_get<double>(theirs, "seconds", "a rank's report"));
    now.bytes += static_cast<uint64_t>(json_get<int64_t>(theirs, "bytes", "a rank's report"));
    for (const auto& [name, size] : theirs["files"].items())
      pending->files.files[name].bytes = size.get<uint64_t>();
    const auto problem = json_get<std::string>(theirs, "error", "a rank's report");
    if (why.empty() && !problem.empty())
      why = world.size() > 1 ? fmt::format("rank {}: {}", rank, problem) : problem;
    ++rank;
  }
  if (!why.empty()) return fail(why);
  std::vector<std::string>& descriptions = pending->descriptions;
  const size_t files = written.descriptions.size();
  for (size_t i = 0; i < files; ++i) {
    rank = 0;
    for (std::string& text :
         comm::gather_text_to(machines->all_leaders(), written.descriptions[i], world)) {
      if (options.node_local && machines->leader(rank) == machines->own_leader())
        pending->info.files_here.insert(parse_file_description(text, "a rank's file").name);
      descriptions.push_back(std::move(text));
      ++rank;
    }
  }
  written.bytes = now.bytes;
  if (options.parity > 0) {
    pending->phase = Pending::Phase::kParity;
    submit([this] { write_parity(); });
  } else {
    begin_commit();
  }
  return now;
}

/// This rank's part: the others' files are durable.
void RunSaver::State::write_parity() {
  pending->parity_part = write_parity_part(pending->aside, pending->files, options.parity,
                                           world.rank(), world.size(), [this] { progress(); });
}

std::vector<SaveEvent> RunSaver::State::after_parity() {
  std::string why;
  int rank = 0;
  for (const std::string& problem : comm::gather_text(error, world)) {
    if (why.empty() && !problem.empty())
      why = world.size() > 1 ? fmt::format("rank {}: {}", rank, problem) : problem;
    ++rank;
  }
  if (!why.empty()) return {fail(why)};
  pending->info.parity_parts = comm::gather_text(pending->parity_part, world);
  begin_commit();
  return {};
}

void RunSaver::State::begin_commit() {
  pending->phase = Pending::Phase::kCommitting;
  if (machines->leads()) submit([this] { commit(); });
}

void RunSaver::State::commit() {
  pending->folder = pending->writer->commit(pending->descriptions, pending->info);
  pending->writer.reset(); // its lock too
  if (!options.node_local) prune();
}

void RunSaver::State::prune() {
  try {
    prune_checkpoints(options.dir, options.retention, /*only_report=*/false,
                      [this] { progress(); });
  } catch (const Error& e) {
    pending->note = e.what();
  }
}

std::vector<SaveEvent> RunSaver::State::after_commit() {
  const Json own{{"seconds", finished_s - pending->begin_s},
                 {"folder", pending->folder.string()},
                 {"note", pending->note},
                 {"error", error}};
  SaveEvent done = event(SaveEvent::State::kDurable);
  done.seconds = 0;
  for (const std::string& said : tell(dump_json(own))) {
    const Json told = parse_json(said, "a rank's report");
    const auto text = [&](const char* key) {
      return json_get<std::string>(told, key, "a rank's report");
    };
    if (const std::string why = text("error"); !why.empty()) return {fail(why)};
    done.seconds = std::max(done.seconds, json_get<double>(told, "seconds", "a rank's report"));
    if (done.folder.empty()) done.folder = text("folder");
    if (done.text.empty()) done.text = text("note");
  }
  if (options.node_local && pending->phase == Pending::Phase::kCommitting) {
    pending->phase = Pending::Phase::kPruning; // every machine has the new one
    if (machines->leads()) submit([this] { prune(); });
    return {};
  }
  pending.reset();
  return {done};
}

std::vector<SaveEvent> RunSaver::save(const TrainState& state, const RunParts& parts) {
  State& s = *state_;
  const double begin = monotonic_s();
  std::vector<SaveEvent> events = finish();
  const double waited = monotonic_s() - begin;
  if (const std::string why = s.begin(state.iteration); !why.empty()) {
    events.push_back(s.fail(why));
    return events;
  }
  if (s.machines->leads()) s.pending->info = info_of(state, parts.optimizer, s.options.parity);
  std::vector<FilePlan> plans;
  plans.push_back(plan_file("model", value_pieces(parts.store, parts.adapters_only), s.world));
  plans.push_back(plan_file("optimizer", optimizer_pieces(parts.optimizer), s.world));
  for (const FilePlan& plan : plans) s.written.bytes += plan.data_bytes();
  if (s.options.async) {
    const uint64_t beyond = s.stage(plans);
    SaveEvent queued = s.event(SaveEvent::State::kQueued);
    queued.seconds = monotonic_s() - begin;
    queued.waited_s = waited;
    if (beyond > 0)
      queued.text = fmt::format(
          "{} did not fit into the staging memory of {} and were written before training continued",
          format_bytes(static_cast<double>(beyond)),
          format_bytes(static_cast<double>(s.staging->capacity())));
    events.push_back(std::move(queued));
    return events;
  }
  {
    const comm::LongWork work(s.world, s.work());
    s.guard([&] { write_now(s.pending->aside, plans, s.written, s.progress); });
  }
  for (SaveEvent& e : finish()) events.push_back(std::move(e));
  return events;
}

bool RunSaver::busy() const {
  return state_->jobs.load() > 0;
}

std::vector<SaveEvent> RunSaver::advance(bool any_busy) {
  State& s = *state_;
  if (!s.pending || any_busy) return {};
  if (s.pending->phase == Pending::Phase::kWriting) return {s.after_writing()};
  return s.pending->phase == Pending::Phase::kParity ? s.after_parity() : s.after_commit();
}

std::vector<SaveEvent> RunSaver::finish() {
  State& s = *state_;
  std::vector<SaveEvent> events;
  while (s.pending) {
    if (s.thread) {
      const comm::LongWork work(s.world, s.work());
      s.thread->finish();
    }
    for (SaveEvent& e : advance(false)) events.push_back(std::move(e));
  }
  return events;
}

} // namespace pentatron::checkpoint

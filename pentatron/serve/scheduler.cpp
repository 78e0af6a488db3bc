#include "pentatron/serve/scheduler.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/base/philox.h"

namespace pentatron::serve {

using generate::Finish;
using generate::Session;

/// What one row of logits says.
struct Scheduler::Row {
  Text* text = nullptr;
  std::span<const float> logits;
  std::optional<int64_t> prompt_token; ///< whose score it is; else a token is drawn
  ScoredToken result;
  std::string failure;

  void compute() {
    try {
      const TextJob& job = text->job;
      if (prompt_token) {
        result.token = *prompt_token;
      } else {
        const Stream stream(job.seed, "sample");
        const auto address = (job.number << 32) + static_cast<uint64_t>(text->written());
        result.token =
            generate::sample_token(logits, job.sampling, text->all, stream.uniform(address)).token;
      }
      if (!prompt_token && !job.scores) return;
      const generate::LogProbs probs(logits);
      result.logprob = probs.of(result.token);
      if (job.top > 0) result.top = probs.top(job.top, job.sampling.num_tokens);
    } catch (const Error& error) {
      failure = error.what();
    }
  }
};

Scheduler::Scheduler(RankedSession& session, const Options& options, Metrics& metrics)
    : session_(session), options_(options), metrics_(metrics),
      taken_(static_cast<size_t>(options.texts), false) {
  PT_DCHECK(options.pass_tokens > options.texts && options.scored_rows > 0);
  metrics_.pages_limit = session_.session().pages_limit();
}

Scheduler::Submitted Scheduler::submit(std::vector<TextJob> jobs, Cancelled cancelled) {
  auto request = std::make_shared<Request>();
  request->cancelled = std::move(cancelled);
  request->arrived_s = monotonic_s();
  const std::lock_guard lock(mutex_);
  if (stopping_) return Submitted::kStopping;
  if (in_queue_ + std::ssize(jobs) > options_.queue) return Submitted::kFull;
  in_queue_ += std::ssize(jobs);
  metrics_.waiting = in_queue_;
  for (TextJob& job : jobs) {
    PT_DCHECK(!job.prompt.empty() && job.sink != nullptr);
    auto text = std::make_unique<Text>();
    text->all = job.prompt;
    text->job = std::move(job);
    text->job.sampling.logprob = false; // scores are computed apart
    text->request = request;
    text->first = &job == jobs.data();
    submitted_.push_back(std::move(text));
  }
  changed_.notify_one();
  return Submitted::kTaken;
}

void Scheduler::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  changed_.notify_one();
}

void Scheduler::run(const std::function<bool()>& asked_to_stop) {
  std::optional<double> deadline_s;
  double told_s = monotonic_s();
  while (true) {
    if (!deadline_s && asked_to_stop()) {
      deadline_s = monotonic_s() + options_.stop_timeout_s;
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    if (deadline_s && monotonic_s() > *deadline_s)
      fail_all("the server was stopped before this text was finished");
    if (step()) {
      told_s = monotonic_s();
      continue;
    }
    std::unique_lock lock(mutex_);
    if (stopping_ && submitted_.empty()) break;
    constexpr double kIdle_s = 1;
    if (monotonic_s() - told_s > kIdle_s) {
      lock.unlock();
      session_.tell_idle();
      told_s = monotonic_s();
      lock.lock();
    }
    changed_.wait_for(lock, std::chrono::milliseconds(100),
                      [&] { return woken_ || !submitted_.empty(); });
    woken_ = false;
  }
  session_.stop();
}

bool Scheduler::step() {
  take_submitted();
  drop_cancelled();
  admit();
  count();
  if (running_.empty()) return false;
  std::optional<std::vector<Part>> parts = plan();
  while (!parts) {
    preempt_youngest();
    parts = plan();
  }
  try {
    if (!parts->empty()) read(*parts);
  } catch (const std::exception& error) {
    if (!options_.survives_failures) throw;
    log::error("a forward pass failed, and its texts were ended: {}", error.what());
    for (const Part& part : *parts) {
      if (part.text->done) continue;
      ++metrics_.failed;
      end(*part.text);
      part.text->job.sink->fail(error.what());
    }
  }
  remove_done();
  count();
  return true;
}

void Scheduler::take_submitted() {
  std::vector<TextPtr> taken;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(submitted_);
  }
  for (TextPtr& text : taken) waiting_.push_back(std::move(text));
}

void Scheduler::drop_cancelled() {
  const auto gone = [](const TextPtr& text) {
    return text->request->cancelled != nullptr && *text->request->cancelled;
  };
  std::erase_if(waiting_, [&](const TextPtr& text) {
    if (!gone(text)) return false;
    ++metrics_.cancelled;
    text->job.sink->cancel();
    return true;
  });
  for (const TextPtr& text : running_) {
    if (!gone(text)) continue;
    ++metrics_.cancelled;
    end(*text);
    text->job.sink->cancel();
  }
  remove_done();
}

bool Scheduler::can_begin(const Text& text) const {
  if (text.job.after_first && !text.first && !text.request->first_read) return false;
  if (running_.empty()) return true;
  // Room for the whole prompt, and for a page of each text that runs, so that it is not sent back
  // at once.
  const generate::BatchSession& session = session_.session();
  const int64_t pages = std::ssize(text.all) / Session::kPage + 1;
  return pages + std::ssize(running_) <= session.pages_free();
}

void Scheduler::admit() {
  for (auto next = waiting_.begin();
       next != waiting_.end() && std::ssize(running_) < options_.texts;) {
    const bool waits_for_first =
        (*next)->job.after_first && !(*next)->first && !(*next)->request->first_read;
    if (waits_for_first) {
      ++next;
      continue;
    }
    if (!can_begin(**next)) return; // the younger ones do not overtake it
    TextPtr text = std::move(*next);
    next = waiting_.erase(next);
    begin(std::move(text));
  }
}

void Scheduler::begin(TextPtr text) {
  const auto free = std::ranges::find(taken_, false);
  *free = true;
  text->place = free - taken_.begin();
  const TextJob& job = text->job;
  const bool all_scored = !job.prompt_scores || text->scored >= std::ssize(job.prompt);
  const int64_t reused = session_.open(text->place, text->all, job.variant, all_scored);
  if (!text->begun) {
    text->begun = true;
    metrics_.prompt_tokens += std::ssize(job.prompt);
    metrics_.reused_tokens += reused;
    job.sink->begin(reused);
  }
  running_.push_back(std::move(text));
}

/// At most so many tokens and rows of logits.
Scheduler::Part Scheduler::next_part(Text& text, int64_t tokens, int64_t rows) const {
  const int64_t read = session_.session().length(text.place), size = std::ssize(text.all);
  const int64_t prompt = std::ssize(text.job.prompt);
  Part part{.text = &text, .count = std::min(size - read, tokens)};
  if (text.job.prompt_scores && text.scored < prompt) {
    // Row i scores token i + 1.
    const int64_t first = std::max(read, text.scored - 1);
    part.count = std::min(part.count, first - read + rows);
    part.rows = std::max<int64_t>(0, read + part.count - first);
  } else if (read + part.count == size) {
    part.rows = 1;
  }
  return part;
}

std::optional<std::vector<Scheduler::Part>> Scheduler::plan() {
  const generate::BatchSession& session = session_.session();
  int64_t tokens = options_.pass_tokens, rows = options_.scored_rows, pages = session.pages_free();
  std::vector<Part> parts;
  const auto add = [&](const Part& part) {
    const int64_t needed = session.pages_needed(part.text->place, part.count);
    if (part.count == 0 || needed > pages) return false;
    pages -= needed;
    tokens -= part.count;
    if (part.text->job.prompt_scores) rows -= std::max<int64_t>(0, part.rows - 1);
    parts.push_back(part);
    return true;
  };
  const auto writes = [&](const Text& text) {
    return text.written() > 0 && session.length(text.place) + 1 == std::ssize(text.all);
  };
  for (const TextPtr& text : running_)
    if (writes(*text) && !add(next_part(*text, 1, 1))) return std::nullopt;
  for (const TextPtr& text : running_)
    if (!writes(*text) && tokens > 0) add(next_part(*text, tokens, rows));
  if (parts.empty() && running_.size() > 1) return std::nullopt;
  PT_DCHECK(!parts.empty());
  // Texts of one variant side by side, so that their rows are one product.
  std::ranges::stable_sort(parts, {}, [](const Part& part) { return part.text->job.variant; });
  return parts;
}

void Scheduler::preempt_youngest() {
  TextPtr text = std::move(running_.back());
  running_.pop_back();
  session_.close(text->place);
  taken_[static_cast<size_t>(text->place)] = false;
  text->place = -1;
  ++metrics_.preempted;
  waiting_.push_front(std::move(text));
}

void Scheduler::read(const std::vector<Part>& parts) {
  const double start_s = monotonic_s();
  std::vector<Session::Input> inputs;
  for (const Part& part : parts) {
    const Text& text = *part.text;
    const auto read = static_cast<size_t>(session_.session().length(text.place));
    inputs.push_back({.text = text.place,
                      .tokens = std::span(text.all).subspan(read, static_cast<size_t>(part.count)),
                      .source = read == 0 ? std::span(text.job.source) : std::span<const int64_t>(),
                      .variant = text.job.variant,
                      .logits = part.rows});
  }
  const at::Tensor logits = session_.read(inputs);
  ++metrics_.passes;
  std::vector<Row> rows;
  for (const Part& part : parts) {
    Text& text = *part.text;
    const int64_t read = session_.session().length(text.place);
    for (int64_t row = read - part.rows; row < read; ++row) {
      rows.push_back({.text = &text});
      if (row + 1 < std::ssize(text.job.prompt))
        rows.back().prompt_token = text.job.prompt[static_cast<size_t>(row + 1)];
    }
  }
  if (!rows.empty()) {
    const auto width = static_cast<size_t>(logits.size(1));
    for (size_t i = 0; i < rows.size(); ++i)
      rows[i].logits = {logits.const_data_ptr<float>() + i * width, width};
    at::parallel_for(0, std::ssize(rows), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) rows[static_cast<size_t>(i)].compute();
    });
  }
  metrics_.pass_s.add(monotonic_s() - start_s);
  size_t next = 0;
  for (const Part& part : parts) {
    std::vector<const Row*> own;
    for (int64_t i = 0; i < part.rows; ++i) own.push_back(&rows[next++]);
    give(*part.text, own);
  }
}

void Scheduler::give(Text& text, const std::vector<const Row*>& rows) {
  if (session_.session().length(text.place) >= std::ssize(text.job.prompt))
    text.request->first_read = true;
  for (const Row* const row : rows) {
    if (!row->failure.empty()) {
      ++metrics_.failed;
      end(text);
      text.job.sink->fail(row->failure);
      return;
    }
    if (row->prompt_token) {
      ++text.scored;
      text.job.sink->prompt_token(row->result);
    } else if (text.job.max_new_tokens > 0) {
      give_token(text, *row);
    }
  }
  if (text.job.max_new_tokens == 0 &&
      session_.session().length(text.place) == std::ssize(text.all)) {
    end(text);
    ++metrics_.finished;
    text.job.sink->finish(Finish::kLength);
  }
}

void Scheduler::give_token(Text& text, const Row& row) {
  const TextJob& job = text.job;
  const double now_s = monotonic_s();
  if (text.written() == 0)
    metrics_.first_token_s.add(now_s - text.request->arrived_s);
  else
    metrics_.next_token_s.add(now_s - text.last_token_s);
  text.last_token_s = now_s;
  text.all.push_back(row.result.token);
  ++metrics_.new_tokens;
  std::optional<Finish> why;
  if (text.written() == job.max_new_tokens) why = Finish::kLength;
  if (!job.sink->token(row.result)) why = Finish::kCaller;
  if (std::ranges::find(job.stop_tokens, row.result.token) != job.stop_tokens.end())
    why = Finish::kStopToken;
  if (!why) return;
  end(text);
  ++metrics_.finished;
  metrics_.request_s.add(now_s - text.request->arrived_s);
  job.sink->finish(*why);
}

void Scheduler::end(Text& text) {
  session_.close(text.place);
  taken_[static_cast<size_t>(text.place)] = false;
  text.done = true;
  text.request->first_read = true; // nobody waits for it any longer
}

void Scheduler::remove_done() {
  std::erase_if(running_, [](const TextPtr& text) { return text->done; });
}

void Scheduler::fail_all(const std::string& sentence) {
  take_submitted();
  const auto fail = [&](const TextPtr& text) {
    ++metrics_.failed;
    text->job.sink->fail(sentence);
  };
  for (const TextPtr& text : waiting_) fail(text);
  waiting_.clear();
  for (const TextPtr& text : running_) {
    end(*text);
    fail(text);
  }
  remove_done();
}

void Scheduler::count() {
  {
    const std::lock_guard lock(mutex_);
    in_queue_ = std::ssize(waiting_) + std::ssize(submitted_);
    metrics_.waiting = in_queue_;
  }
  const generate::BatchSession& session = session_.session();
  metrics_.running = std::ssize(running_);
  metrics_.pages_used = session.pages_limit() - session.pages_free();
  metrics_.pages_held = session.pages_held();
}

} // namespace pentatron::serve

/// Selects the texts of each forward pass (continuous batching).
///
/// Texts join and leave at every pass. A pass contains one token of each text that is being
/// generated, and parts of prompts up to a limit of tokens, so a long prompt does not delay the
/// other texts. If the pages of the cache do not suffice, the youngest text goes back to the queue
/// and is read again later; its tokens stay the same, because each is drawn at an address of its
/// own.
///
/// Source: Yu et al. 2022 (Orca, OSDI); Kwon et al. 2023 (arXiv:2309.06180) for pages and
/// preemption; Agrawal et al. 2023 (arXiv:2308.16369) for prompts in parts.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "pentatron/serve/metrics.h"
#include "pentatron/serve/ranked_session.h"
#include "pentatron/serve/text_job.h"

namespace pentatron::serve {

class Scheduler {
 public:
  struct Options {
    int64_t texts = 16;            ///< at most in one pass; those of the session
    int64_t pass_tokens = 256;     ///< at most in one pass; more than `texts`
    int64_t queue = 128;           ///< texts that wait at most
    int64_t scored_rows = 256;     ///< logits of prompts in one pass at most
    double stop_timeout_s = 30;    ///< for running texts to finish
    bool survives_failures = true; ///< a failed pass ends its texts only, not run()
  };
  /// The session and the metrics must outlive it.
  Scheduler(RankedSession& session, const Options& options, Metrics& metrics);

  /// From a client, who is gone when it is true.
  using Cancelled = std::shared_ptr<const std::atomic<bool>>;
  enum class Submitted : uint8_t { kTaken, kFull, kStopping };
  /// All jobs of a request, or none of them. From any thread.
  Submitted submit(std::vector<TextJob> jobs, Cancelled cancelled);
  /// Looks at the cancelled flags soon. From any thread.
  void wake();
  /// Runs passes on the calling thread until `asked_to_stop` (asked every 0.1 s and pass) is true;
  /// then takes no more jobs, finishes those that run or wait within the time limit, fails the
  /// others, and returns. Then the other ranks' follow() returns.
  void run(const std::function<bool()>& asked_to_stop);

  /// One pass, for tests; false if there was nothing to do.
  bool step();

 private:
  struct Request {
    Cancelled cancelled;
    bool first_read = false; ///< its first text has read its prompt
    double arrived_s = 0;
  };
  struct Text {
    TextJob job;
    std::shared_ptr<Request> request;
    bool first = false;       ///< of its request
    int64_t place = -1;       ///< in the session; -1: in the queue
    std::vector<int64_t> all; ///< prompt and new tokens
    int64_t scored = 1;       ///< tokens of the prompt whose scores were given
    double last_token_s = 0;
    bool begun = false, done = false;

    int64_t written() const { return std::ssize(all) - std::ssize(job.prompt); }
  };
  using TextPtr = std::unique_ptr<Text>;
  struct Part {
    Text* text = nullptr;
    int64_t count = 0, rows = 0; ///< tokens to read, and logits behind the last of them
  };

  void take_submitted();
  void drop_cancelled();
  void admit();
  bool can_begin(const Text& text) const;
  void begin(TextPtr text);
  /// Nothing if a text that is being written has no room.
  std::optional<std::vector<Part>> plan();
  Part next_part(Text& text, int64_t tokens, int64_t rows) const;
  void preempt_youngest();
  void read(const std::vector<Part>& parts);
  struct Row;
  void give(Text& text, const std::vector<const Row*>& rows);
  void give_token(Text& text, const Row& row);
  void end(Text& text);
  void remove_done();
  void fail_all(const std::string& sentence);
  void count();

  RankedSession& session_;
  Options options_;
  Metrics& metrics_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TextPtr> submitted_; ///< under the mutex
  int64_t in_queue_ = 0;           ///< under the mutex: submitted and waiting
  bool woken_ = false, stopping_ = false;

  std::deque<TextPtr> waiting_;
  std::vector<TextPtr> running_; ///< from the oldest to the youngest
  std::vector<bool> taken_;      ///< places
};

} // namespace pentatron::serve

#include "pentatron/parallel/pipeline/schedule/text.h"

#include <algorithm>
#include <charconv>
#include <cstddef>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron::pipeline {
namespace {

constexpr size_t kLineLength = 100;
constexpr size_t kMaxNameLength = 64;

struct Word {
  ActionKind kind;
  std::string_view word;
};

constexpr Word kWords[] = {
    {ActionKind::kForward, "F"},       {ActionKind::kBackward, "B"},
    {ActionKind::kBackwardInput, "I"}, {ActionKind::kBackwardWeight, "W"},
    {ActionKind::kSend, "send"},       {ActionKind::kRecv, "recv"},
    {ActionKind::kFree, "free"},
};

std::string_view word(ActionKind kind) {
  for (const Word& entry : kWords) {
    if (entry.kind == kind) return entry.word;
  }
  return "?";
}

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameLength && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

/// Words of a line, without the comment.
std::vector<std::string_view> words_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string_view> words;
  for (std::string_view part : split(line, ' ')) {
    part = trim(part);
    if (!part.empty()) words.push_back(part);
  }
  return words;
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  Schedule run() {
    schedule_.name = std::string(header("schedule"));
    if (!is_name(schedule_.name)) {
      fail(fmt::format("the name \"{}\" is not 1 to {} letters, digits, '_', '-' or '.'",
                       excerpt(schedule_.name), kMaxNameLength));
    }
    schedule_.num_ranks = size("ranks", kMaxRanks);
    schedule_.num_stages = size("stages", kMaxActions);
    schedule_.num_microbatches = size("microbatches", kMaxMicrobatches);
    next_line();
    if (words_.size() == 1 && words_[0] == "lowered") {
      schedule_.lowered = true;
      next_line();
    }
    rank_of_stage();
    for (bool more = read_line(); more;) more = rank();
    if (std::ssize(schedule_.actions) != schedule_.num_ranks) {
      fail(fmt::format("there are actions of {} ranks and not of {}", schedule_.actions.size(),
                       schedule_.num_ranks));
    }
    return std::move(schedule_);
  }

 private:
  [[noreturn]] void fail(const std::string& sentence) const {
    raise<DataError>("{}:{}: {}", source_, line_, sentence);
  }

  /// The next line with anything on it; false at the end.
  bool read_line() {
    words_.clear();
    while (words_.empty() && at_ < text_.size()) {
      const size_t end = std::min(text_.find('\n', at_), text_.size());
      const std::string_view line = text_.substr(at_, end - at_);
      indented_ = line.starts_with(' ') || line.starts_with('\t');
      words_ = words_of(line);
      at_ = end + 1;
      ++line_;
    }
    return !words_.empty();
  }
  void next_line() {
    if (!read_line()) fail("the schedule ends too early");
  }

  std::string_view header(std::string_view key) {
    next_line();
    if (words_.size() != 2 || words_[0] != key) {
      fail(fmt::format("\"{} ...\" is expected here", key));
    }
    return words_[1];
  }

  int size(std::string_view key, int64_t limit) {
    std::string_view value = header(key);
    const int number = take_number(value);
    if (!value.empty() || number < 1 || number > limit) {
      fail(fmt::format("{} is not a number from 1 to {}", key, limit));
    }
    return number;
  }

  void rank_of_stage() {
    if (words_[0] != "rank_of_stage") fail("\"rank_of_stage ...\" is expected here");
    if (std::ssize(words_) - 1 != schedule_.num_stages) {
      fail(fmt::format("rank_of_stage has {} numbers for {} stages", words_.size() - 1,
                       schedule_.num_stages));
    }
    for (std::string_view value : std::vector(words_.begin() + 1, words_.end())) {
      const int number = take_number(value);
      if (!value.empty()) fail("rank_of_stage has something that is not a number");
      schedule_.rank_of_stage.push_back(within(number, schedule_.num_ranks, "rank"));
    }
  }

  /// The lines of one rank; whether there is another.
  bool rank() {
    const auto expected = std::ssize(schedule_.actions);
    if (words_.size() < 2 || words_[0] != "rank" || words_[1] != fmt::format("{}:", expected) ||
        expected >= schedule_.num_ranks) {
      fail(expected < schedule_.num_ranks
               ? fmt::format("\"rank {}: ...\" is expected here", expected)
               : fmt::format("there are only {} ranks", expected));
    }
    std::vector<Action>& steps = schedule_.actions.emplace_back();
    size_t first = 2;
    bool more = true;
    do {
      for (size_t i = first; i < words_.size(); ++i) {
        if (++num_actions_ > kMaxActions) fail("there are too many actions");
        steps.push_back(action(words_[i]));
      }
      first = 0;
      more = read_line();
    } while (more && indented_);
    return more;
  }

  Action action(std::string_view text) {
    const std::string_view whole = text;
    Action action;
    action.stage = within(take_number(text), schedule_.num_stages, "stage");
    take_kind(text, action, whole);
    switch (action.kind) {
    case ActionKind::kSend:
    case ActionKind::kRecv:
      action.flow = take_flow(text, whole);
      action.microbatch = microbatch(text);
      expect(text, action.kind == ActionKind::kSend ? '>' : '<', whole);
      action.peer = within(take_number(text), schedule_.num_ranks, "rank");
      break;
    default:
      action.microbatch = microbatch(text);
    }
    if (action.kind == ActionKind::kForward && text.starts_with('+')) {
      expect(text, '+', whole);
      action.kind = ActionKind::kOverlap;
      action.second_stage = within(take_number(text), schedule_.num_stages, "stage");
      expect(text, 'B', whole);
      action.second_microbatch = microbatch(text);
    }
    if (!text.empty()) not_an_action(whole);
    return action;
  }

  void take_kind(std::string_view& text, Action& action, std::string_view whole) {
    for (const Word& entry : kWords) {
      if (text.starts_with(entry.word)) {
        text.remove_prefix(entry.word.size());
        action.kind = entry.kind;
        return;
      }
    }
    not_an_action(whole);
  }

  Flow take_flow(std::string_view& text, std::string_view whole) {
    if (text.starts_with('F')) return text.remove_prefix(1), Flow::kActivation;
    expect(text, 'B', whole);
    return Flow::kGradient;
  }

  int microbatch(std::string_view& text) {
    return within(take_number(text), schedule_.num_microbatches, "microbatch");
  }

  void expect(std::string_view& text, char c, std::string_view whole) {
    if (!text.starts_with(c)) not_an_action(whole);
    text.remove_prefix(1);
  }

  [[noreturn]] void not_an_action(std::string_view whole) const {
    fail(fmt::format("\"{}\" is not an action such as 2F0", excerpt(whole)));
  }

  int within(int number, int count, std::string_view what) const {
    if (number < count) return number;
    fail(fmt::format("there is no {} {} of {}", what, number, count));
  }

  /// Digits without a leading zero, so that every number has one spelling.
  int take_number(std::string_view& text) const {
    int number = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const size_t length = static_cast<size_t>(end - text.data());
    if (error != std::errc() || number < 0 || text.starts_with('-') ||
        (length > 1 && text.starts_with('0'))) {
      fail(fmt::format("\"{}\" does not begin with a number", excerpt(text)));
    }
    text.remove_prefix(length);
    return number;
  }

  std::string_view text_;
  std::string_view source_;
  size_t at_ = 0;
  int line_ = 0;
  bool indented_ = false;
  int64_t num_actions_ = 0;
  std::vector<std::string_view> words_; // of the line
  Schedule schedule_;
};

} // namespace

std::string to_text(const Action& action) {
  const std::string head = fmt::format("{}{}", action.stage, word(action.kind));
  switch (action.kind) {
  case ActionKind::kOverlap:
    return fmt::format("{}F{}+{}B{}", action.stage, action.microbatch, action.second_stage,
                       action.second_microbatch);
  case ActionKind::kSend:
  case ActionKind::kRecv:
    return fmt::format("{}{}{}{}{}", head, action.flow == Flow::kActivation ? 'F' : 'B',
                       action.microbatch, action.kind == ActionKind::kSend ? '>' : '<',
                       action.peer);
  default:
    return fmt::format("{}{}", head, action.microbatch);
  }
}

std::string to_text(const Schedule& schedule) {
  std::string out =
      fmt::format("schedule {}\nranks {}\nstages {}\nmicrobatches {}\n{}rank_of_stage",
                  schedule.name, schedule.num_ranks, schedule.num_stages, schedule.num_microbatches,
                  schedule.lowered ? "lowered\n" : "");
  for (const int rank : schedule.rank_of_stage) out += fmt::format(" {}", rank);
  out += '\n';
  for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    std::string line = fmt::format("rank {}:", rank);
    for (const Action& action : schedule.actions[rank]) {
      const std::string text = to_text(action);
      if (line.size() + 1 + text.size() > kLineLength) {
        out += line + '\n';
        line.assign(1, ' ');
      }
      line += ' ' + text;
    }
    out += line + '\n';
  }
  return out;
}

Schedule parse_schedule(std::string_view text, std::string_view source) {
  return Parser(text, source).run();
}

} // namespace pentatron::pipeline

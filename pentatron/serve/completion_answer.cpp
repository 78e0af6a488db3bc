#include "pentatron/serve/completion_answer.h"

#include <algorithm>
#include <ctime>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron::serve {

namespace {

size_t characters(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

std::string new_id(const char* prefix) {
  static thread_local std::random_device device;
  const auto half = [] { return (uint64_t{device()} << 32) | device(); };
  return fmt::format("{}-{:016x}{:016x}", prefix, half(), half());
}

} // namespace

class CompletionAnswer::Choice final : public TextSink {
 public:
  Choice(CompletionAnswer& answer, const PromptText& prompt, int64_t index)
      : prompt_(prompt), answer_(answer),
        writer_(answer.tokenizer_, prompt.tokens, answer.request_.stops), index_(index) {}

  void begin(int64_t reused) override {
    reused_ = reused;
    if (answer_.over_) return;
    if (answer_.request_.echo) echo();
    if (!answer_.request_.stream) return;
    answer_.begin_stream();
    if (answer_.request_.endpoint == Endpoint::kChat)
      send({{"role", "assistant"}, {"content", ""}}, {}, "", Json());
    else if (!text_.empty() && !answer_.request_.logprobs)
      send_text(text_);
  }

  void prompt_token(const ScoredToken& scored) override { add_entry(scored, false); }

  bool token(const ScoredToken& scored) override {
    ++written_;
    sum_ += scored.logprob;
    const std::vector<int64_t>& ends = answer_.options_.stop_tokens;
    if (std::ranges::find(ends, scored.token) != ends.end()) return true;
    const std::string piece = writer_.push(scored.token);
    if (answer_.request_.logprobs) add_entry(scored, false);
    text_ += piece;
    if (answer_.request_.stream && !answer_.over_ && !piece.empty()) send_piece(piece);
    return !writer_.stopped() && !answer_.over_;
  }

  void finish(generate::Finish why) override {
    const std::string rest = writer_.finish();
    text_ += rest;
    finish_ = why == generate::Finish::kLength && !writer_.stopped() ? "length" : "stop";
    if (writer_.stopped())
      std::erase_if(entries_, [&](const Entry& e) { return e.offset >= text_.size(); });
    if (answer_.request_.stream && !answer_.over_) {
      if (!rest.empty() || sent_entries_ < entries_.size()) send_piece(rest);
      if (answer_.request_.endpoint == Endpoint::kChat)
        send(Json::object(), {}, "", finish_);
      else
        send({}, {}, "", finish_);
    }
    answer_.choice_done();
  }
  void fail(const std::string& sentence) override {
    answer_.fail(sentence);
    answer_.choice_done();
  }
  void cancel() override {
    answer_.over_ = true; // nobody listens
    answer_.choice_done();
  }

  const PromptText& prompt_;
  int64_t reused() const { return reused_; }
  int64_t written() const { return written_; }
  double mean_logprob() const { return written_ > 0 ? sum_ / static_cast<double>(written_) : 0; }
  const std::string& text() const { return text_; }
  const std::string& finish_reason() const { return finish_; }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  void echo() {
    text_ = prompt_.text;
    if (answer_.request_.logprobs) add_entry({.token = prompt_.tokens.front()}, true);
  }

  void add_entry(const ScoredToken& scored, bool first) {
    Entry entry{.scored = scored,
                .bytes = answer_.bytes_of(scored.token),
                .first = first,
                .offset = offset_};
    // The text of a prompt may have special tokens; new ones are not shown.
    if (!answer_.tokenizer_.is_special(scored.token) || is_written_in_prompt(entry))
      offset_ += entry.bytes.size();
    entries_.push_back(std::move(entry));
  }

  bool is_written_in_prompt(const Entry& special) const {
    return answer_.request_.echo && written_ == 0 &&
           std::string_view(prompt_.text)
               .substr(std::min(special.offset, prompt_.text.size()))
               .starts_with(special.bytes);
  }

  /// New text, with the entries that were not sent yet.
  void send_piece(const std::string& piece) {
    if (answer_.request_.endpoint == Endpoint::kCompletions) return send_text(piece);
    std::vector<Entry> fresh(entries_.begin() + static_cast<std::ptrdiff_t>(sent_entries_),
                             entries_.end());
    sent_entries_ = entries_.size();
    send({{"content", piece}}, fresh, piece, Json());
  }
  void send_text(const std::string& piece) {
    std::vector<Entry> fresh(entries_.begin() + static_cast<std::ptrdiff_t>(sent_entries_),
                             entries_.end());
    // The echoed prompt comes with its scores, when the model has read it.
    const bool with_echo = answer_.request_.echo && answer_.request_.logprobs && sent_entries_ == 0;
    sent_entries_ = entries_.size();
    send({}, fresh, with_echo ? prompt_.text + piece : piece, Json());
  }

  void send(Json delta, const std::vector<Entry>& entries, const std::string& text,
            const Json& finish_reason) {
    Json choice = {{"index", index_}, {"finish_reason", finish_reason}, {"logprobs", Json()}};
    if (answer_.request_.logprobs && !entries.empty())
      choice["logprobs"] = answer_.logprobs_of(entries, text_);
    if (answer_.request_.endpoint == Endpoint::kChat)
      choice["delta"] = std::move(delta);
    else
      choice["text"] = text;
    Json event = answer_.envelope(true);
    event["choices"] = Json::array({std::move(choice)});
    if (answer_.request_.include_usage) event["usage"] = Json();
    answer_.send_event(event);
  }

  CompletionAnswer& answer_;
  generate::TextWriter writer_;
  int64_t index_ = 0;
  std::string text_, finish_;
  std::vector<Entry> entries_;
  size_t sent_entries_ = 0, offset_ = 0;
  int64_t reused_ = 0, written_ = 0;
  double sum_ = 0;
};

CompletionAnswer::CompletionAnswer(CompletionRequest request, std::vector<PromptText> prompts,
                                   Options options, const data::Tokenizer& tokenizer,
                                   std::shared_ptr<http::Exchange> exchange)
    : request_(std::move(request)), prompts_(std::move(prompts)), options_(std::move(options)),
      tokenizer_(tokenizer), exchange_(std::move(exchange)),
      id_(new_id(request_.endpoint == Endpoint::kChat ? "chatcmpl" : "cmpl")),
      created_(std::time(nullptr)) {
  for (const PromptText& prompt : prompts_) {
    for (int64_t i = 0; i < request_.best_of; ++i)
      choices_.push_back(std::make_shared<Choice>(*this, prompt, std::ssize(choices_)));
  }
  open_ = choices_.size();
}

CompletionAnswer::~CompletionAnswer() = default;

std::shared_ptr<TextSink> CompletionAnswer::sink(size_t choice) {
  return {shared_from_this(), choices_[choice].get()};
}

const PromptText& CompletionAnswer::prompt_of(size_t choice) const {
  return choices_[choice]->prompt_;
}

void CompletionAnswer::begin_stream() {
  if (streaming_) return;
  streaming_ = true;
  exchange_->begin("text/event-stream; charset=utf-8");
}

void CompletionAnswer::send_event(const Json& event) {
  exchange_->write("data: " + dump_json(event) + "\n\n");
}

Json CompletionAnswer::envelope(bool chunk) const {
  const bool chat = request_.endpoint == Endpoint::kChat;
  return {{"id", id_},
          {"object", !chat   ? "text_completion"
                     : chunk ? "chat.completion.chunk"
                             : "chat.completion"},
          {"created", created_},
          {"model", options_.model}};
}

std::string CompletionAnswer::bytes_of(int64_t token) const {
  std::string bytes = tokenizer_.is_special(token) ? "" : tokenizer_.token_bytes(token);
  if (bytes.empty()) bytes = tokenizer_.decode_with_special(std::span(&token, 1));
  return bytes;
}

std::string CompletionAnswer::shown(const std::string& bytes) {
  if (is_utf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  return text;
}

Json CompletionAnswer::entry_of(const ScoredToken& scored) const {
  const auto one = [&](int64_t token, double logprob) {
    const std::string bytes = bytes_of(token);
    Json numbers = Json::array();
    for (const char c : bytes) numbers.push_back(static_cast<uint8_t>(c));
    return Json{{"token", shown(bytes)}, {"logprob", logprob}, {"bytes", std::move(numbers)}};
  };
  Json entry = one(scored.token, scored.logprob);
  entry["top_logprobs"] = Json::array();
  for (const generate::Drawn& drawn : scored.top)
    entry["top_logprobs"].push_back(one(drawn.token, drawn.logprob));
  return entry;
}

Json CompletionAnswer::logprobs_of(const std::vector<Entry>& entries,
                                   const std::string& text) const {
  if (request_.endpoint == Endpoint::kChat) {
    Json content = Json::array();
    for (const Entry& entry : entries) content.push_back(entry_of(entry.scored));
    return {{"content", std::move(content)}, {"refusal", Json()}};
  }
  Json tokens = Json::array(), logprobs = Json::array(), top = Json::array(),
       offsets = Json::array();
  for (const Entry& entry : entries) {
    tokens.push_back(shown(entry.bytes));
    logprobs.push_back(entry.first ? Json() : Json(entry.scored.logprob));
    offsets.push_back(characters(std::string_view(text).substr(0, entry.offset)));
    Json likeliest = Json::object();
    for (const generate::Drawn& drawn : entry.scored.top)
      likeliest.emplace(shown(bytes_of(drawn.token)), drawn.logprob);
    likeliest.emplace(shown(entry.bytes), entry.scored.logprob);
    top.push_back(entry.first ? Json() : std::move(likeliest));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", request_.logprobs > 0 ? std::move(top) : Json()},
          {"text_offset", std::move(offsets)}};
}

Json CompletionAnswer::usage() const {
  int64_t prompt = 0, written = 0, reused = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    written += choices_[i]->written();
    if (i % static_cast<size_t>(request_.best_of) != 0) continue;
    prompt += std::ssize(choices_[i]->prompt_.tokens);
    reused += choices_[i]->reused();
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", written},
          {"total_tokens", prompt + written},
          {"prompt_tokens_details", {{"cached_tokens", reused}}}};
}

void CompletionAnswer::choice_done() {
  PT_DCHECK(open_ > 0);
  if (--open_ > 0 || over_) return;
  over_ = true;
  if (!request_.stream) return respond();
  if (request_.include_usage) {
    Json event = envelope(true);
    event["choices"] = Json::array();
    event["usage"] = usage();
    send_event(event);
  }
  exchange_->write("data: [DONE]\n\n");
  exchange_->end();
}

std::vector<const CompletionAnswer::Choice*> CompletionAnswer::best_choices(size_t prompt) const {
  const auto count = static_cast<size_t>(request_.best_of);
  std::vector<const Choice*> all;
  for (size_t i = prompt * count; i < (prompt + 1) * count; ++i) all.push_back(choices_[i].get());
  if (request_.best_of > request_.n)
    std::ranges::stable_sort(all, std::ranges::greater(), &Choice::mean_logprob);
  all.resize(static_cast<size_t>(request_.n));
  return all;
}

Json CompletionAnswer::whole_choice(const Choice& choice, int64_t index) const {
  Json json = {{"index", index}, {"finish_reason", choice.finish_reason()}, {"logprobs", Json()}};
  if (request_.logprobs) json["logprobs"] = logprobs_of(choice.entries(), choice.text());
  if (request_.endpoint == Endpoint::kChat)
    json["message"] = {{"role", "assistant"}, {"content", choice.text()}, {"refusal", Json()}};
  else
    json["text"] = choice.text();
  return json;
}

void CompletionAnswer::respond() {
  Json body = envelope(false);
  body["choices"] = Json::array();
  for (size_t prompt = 0; prompt < prompts_.size(); ++prompt) {
    for (const Choice* const choice : best_choices(prompt))
      body["choices"].push_back(whole_choice(*choice, std::ssize(body["choices"])));
  }
  body["usage"] = usage();
  exchange_->respond({.body = dump_json(body)});
}

void CompletionAnswer::fail(const std::string& sentence) {
  if (over_) return;
  over_ = true;
  if (!streaming_) return exchange_->respond(http::error_response(500, sentence));
  exchange_->write("data: " + http::error_body(500, sentence, {}, {}) + "\n\n");
  exchange_->end();
}

} // namespace pentatron::serve

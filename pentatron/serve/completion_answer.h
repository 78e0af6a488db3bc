/// The answer to one request for completions or chat: takes the tokens of its texts, and sends the
/// JSON that OpenAI's API has, as a whole or as server-sent events.
///
/// Everything but its construction happens on the model's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/data/tokenizer.h"
#include "pentatron/generate/text_writer.h"
#include "pentatron/serve/http/server.h"
#include "pentatron/serve/request.h"
#include "pentatron/serve/text_job.h"

namespace pentatron::serve {

/// A prompt as text (of echo) and as the tokens that the model reads.
struct PromptText {
  std::string text;
  std::vector<int64_t> tokens;
};

class CompletionAnswer : public std::enable_shared_from_this<CompletionAnswer> {
 public:
  struct Options {
    std::string model; ///< its name
    std::vector<int64_t> stop_tokens;
  };
  /// The tokenizer must outlive it.
  CompletionAnswer(CompletionRequest request, std::vector<PromptText> prompts, Options options,
                   const data::Tokenizer& tokenizer, std::shared_ptr<http::Exchange> exchange);
  ~CompletionAnswer();

  const CompletionRequest& request() const { return request_; }
  const std::vector<PromptText>& prompts() const { return prompts_; }
  const std::vector<int64_t>& stop_tokens() const { return options_.stop_tokens; }
  /// Text `choice` of the choices of all prompts: prompt 0's best_of first. Whoever holds it keeps
  /// the answer.
  std::shared_ptr<TextSink> sink(size_t choice);
  const PromptText& prompt_of(size_t choice) const;

 private:
  class Choice;
  struct Entry { ///< of logprobs
    ScoredToken scored;
    std::string bytes;
    bool first = false; ///< of the prompt: it has no score
    size_t offset = 0;  ///< in bytes of the text
  };

  void begin_stream();
  void send_event(const Json& event);
  Json envelope(bool chunk) const;
  Json logprobs_of(const std::vector<Entry>& entries, const std::string& text) const;
  Json entry_of(const ScoredToken& scored) const;
  std::string bytes_of(int64_t token) const;
  /// Of a token that may be half a character.
  static std::string shown(const std::string& bytes);
  Json usage() const;
  void choice_done();
  void respond();
  std::vector<const Choice*> best_choices(size_t prompt) const;
  Json whole_choice(const Choice& choice, int64_t index) const;
  void fail(const std::string& sentence);

  CompletionRequest request_;
  std::vector<PromptText> prompts_;
  Options options_;
  const data::Tokenizer& tokenizer_;
  std::shared_ptr<http::Exchange> exchange_;
  std::string id_;
  int64_t created_ = 0;
  std::vector<std::shared_ptr<Choice>> choices_;
  size_t open_ = 0; ///< choices that are not done
  bool streaming_ = false, over_ = false;
};

} // namespace pentatron::serve

/// The routes of a server: OpenAI's API, health, metrics, and a page to chat with the model.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pentatron/data/tokenizer.h"
#include "pentatron/data/tokenizer/chat_template.h"
#include "pentatron/serve/completion_answer.h"
#include "pentatron/serve/http/server.h"
#include "pentatron/serve/metrics.h"
#include "pentatron/serve/request.h"
#include "pentatron/serve/scheduler.h"

namespace pentatron::serve {

/// How conversations with a model are written.
struct ChatForm {
  std::shared_ptr<const data::tokenizer::ChatTemplate> text; ///< null: the model has no template
  std::vector<std::string> stops;                            ///< texts that also end an answer
};

struct ServiceOptions {
  std::vector<std::string> models;                   ///< names: the base, then its adapters
  std::vector<ChatForm> chats;                       ///< of each model
  int64_t context = 0;                               ///< tokens of a prompt and its text
  int64_t num_tokens = 0;                            ///< tokens that may be drawn
  std::vector<int64_t> completion_stops, chat_stops; ///< end tokens
  /// Of a model with an encoder, which reads the prompt: what its decoder begins with.
  std::optional<int64_t> decoder_start;
  RequestLimits limits;
  std::string bos, eos; ///< of the chat template
};

class Service {
 public:
  /// All must outlive it.
  Service(ServiceOptions options, const data::Tokenizer& tokenizer, Scheduler& scheduler,
          Metrics& metrics);

  /// From any thread.
  void handle(http::Request request, const std::shared_ptr<http::Exchange>& exchange);
  /// Makes /health and /readyz report that the server is stopping, and refuses new texts.
  void stop() { stopping_ = true; }

 private:
  http::Response answer_now(const http::Request& request) const;
  http::Response models() const;
  http::Response model(const std::string& name) const;
  http::Response health(bool ready) const;
  void complete(const http::Request& request, Endpoint endpoint,
                const std::shared_ptr<http::Exchange>& exchange);
  int64_t variant_of(const std::string& name) const;
  std::vector<PromptText> prompts_of(const CompletionRequest& request, int64_t variant) const;
  PromptText chat_prompt(const CompletionRequest& request,
                         const data::tokenizer::ChatTemplate* form) const;
  PromptText plain_prompt(const PromptInput& input) const;
  /// How many new tokens a text may have.
  int64_t room_of(const CompletionRequest& request, const PromptText& prompt) const;
  std::vector<TextJob> jobs_of(CompletionAnswer& answer, int64_t variant) const;

  ServiceOptions options_;
  const data::Tokenizer& tokenizer_;
  Scheduler& scheduler_;
  Metrics& metrics_;
  int64_t started_ = 0; ///< Unix time
  std::atomic<bool> stopping_ = false;
};

/// A path as metrics name it: "other" for those that do not exist, so that their number is limited.
std::string route_of(const std::string& path);

/// The page to chat with a model: HTML with @NONCE@ where scripts and styles have their nonce.
extern const char* const kChatPage;
http::Response chat_page();

} // namespace pentatron::serve

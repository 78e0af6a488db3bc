#include "pentatron/serve/service.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/serve/chat_prompt.h"

namespace pentatron::serve {

namespace {

uint64_t random_number() {
  static thread_local std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

constexpr std::string_view kModelsPath = "/v1/models/";
constexpr const char* kStopping = "the server is stopping";

/// Whether a Content-Type is JSON, of any case and with any parameters.
bool is_json(std::string_view type) {
  constexpr std::string_view kJson = "application/json";
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  if (type.size() < kJson.size() || !std::equal(kJson.begin(), kJson.end(), type.begin(),
                                                [&](char b, char a) { return same(a, b); }))
    return false;
  type.remove_prefix(kJson.size());
  return type.empty() || std::string_view(" \t;").find(type.front()) != std::string_view::npos;
}

struct Route {
  std::string_view path, method;
};
constexpr Route kRoutes[] = {{"/", "GET"},
                             {"/health", "GET"},
                             {"/livez", "GET"},
                             {"/readyz", "GET"},
                             {"/metrics", "GET"},
                             {"/v1/models", "GET"},
                             {"/v1/completions", "POST"},
                             {"/v1/chat/completions", "POST"}};

} // namespace

std::string route_of(const std::string& path) {
  if (path.starts_with(kModelsPath)) return "/v1/models";
  const bool known = std::ranges::find(kRoutes, path, &Route::path) != std::end(kRoutes);
  return known ? path : "other";
}

http::Response chat_page() {
  const std::string nonce = fmt::format("{:016x}{:016x}", random_number(), random_number());
  std::string html = kChatPage;
  constexpr std::string_view kMark = "@NONCE@";
  for (size_t at = html.find(kMark); at != std::string::npos; at = html.find(kMark, at))
    html.replace(at, kMark.size(), nonce);
  return {.content_type = "text/html; charset=utf-8",
          .body = std::move(html),
          .headers = {{"Content-Security-Policy",
                       fmt::format("default-src 'none'; script-src 'nonce-{0}'; style-src "
                                   "'nonce-{0}'; connect-src 'self'; img-src data:; base-uri "
                                   "'none'; form-action 'none'; frame-ancestors 'none'",
                                   nonce)},
                      {"Referrer-Policy", "no-referrer"}}};
}

Service::Service(ServiceOptions options, const data::Tokenizer& tokenizer, Scheduler& scheduler,
                 Metrics& metrics)
    : options_(std::move(options)), tokenizer_(tokenizer), scheduler_(scheduler), metrics_(metrics),
      started_(std::time(nullptr)) {
  PT_DCHECK(!options_.models.empty() && options_.context > 0);
  PT_DCHECK(options_.chats.size() == options_.models.size());
}

void Service::handle(http::Request request, const std::shared_ptr<http::Exchange>& exchange) {
  try {
    if (request.method == "POST" && request.path == "/v1/completions")
      return complete(request, Endpoint::kCompletions, exchange);
    if (request.method == "POST" && request.path == "/v1/chat/completions")
      return complete(request, Endpoint::kChat, exchange);
    exchange->respond(answer_now(request));
  } catch (const ApiError& error) {
    exchange->respond(
        http::error_response(error.status(), error.what(), error.param(), error.code()));
  }
}

http::Response Service::answer_now(const http::Request& request) const {
  const std::string& path = request.path;
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  for (const Route& route : kRoutes) {
    if (route.path != path || route.method == method) continue;
    http::Response response = http::error_response(
        405, fmt::format("{} only accepts {} requests", route.path, route.method));
    response.headers.emplace_back("Allow", route.method == "GET" ? "GET, HEAD" : route.method);
    return response;
  }
  if (path == "/") return chat_page();
  if (path == "/health" || path == "/readyz") return health(!stopping_);
  if (path == "/livez") return health(true);
  if (path == "/metrics")
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_.text()};
  if (path == "/v1/models") return models();
  if (path.starts_with(kModelsPath) && method == "GET")
    return model(path.substr(kModelsPath.size()));
  return http::error_response(404, fmt::format("there is no {}", excerpt(path)), {}, "not_found");
}

http::Response Service::health(bool ready) const {
  if (!ready) return http::error_response(503, kStopping);
  return {.body = R"({"status":"ok"})"};
}

namespace {

Json described(const std::string& name, const std::string& base, int64_t created, int64_t context) {
  Json json = {{"id", name},
               {"object", "model"},
               {"created", created},
               {"owned_by", "pentatron"},
               {"max_model_len", context}};
  if (name != base) json["parent"] = base;
  return json;
}

} // namespace

http::Response Service::models() const {
  Json list = Json::array();
  for (const std::string& name : options_.models)
    list.push_back(described(name, options_.models[0], started_, options_.context));
  return {.body = dump_json({{"object", "list"}, {"data", std::move(list)}})};
}

http::Response Service::model(const std::string& name) const {
  return {.body = dump_json(described(options_.models[static_cast<size_t>(variant_of(name))],
                                      options_.models[0], started_, options_.context))};
}

int64_t Service::variant_of(const std::string& name) const {
  if (name.empty()) return 0;
  const auto found = std::ranges::find(options_.models, name);
  if (found == options_.models.end())
    throw ApiError(404,
                   fmt::format("the model \"{}\" does not exist; this server has \"{}\"{}",
                               excerpt(name), options_.models[0],
                               options_.models.size() > 1 ? " and adapters on it" : ""),
                   "model", "model_not_found");
  return found - options_.models.begin();
}

PromptText Service::plain_prompt(const PromptInput& input) const {
  PromptText prompt;
  if (const auto* const ids = std::get_if<std::vector<int64_t>>(&input)) {
    prompt.tokens = *ids;
    prompt.text = tokenizer_.decode(*ids);
  } else {
    prompt.text = std::get<std::string>(input);
    prompt.tokens = generate::prompt_tokens(tokenizer_, prompt.text, options_.bos);
    if (prompt.tokens.empty())
      throw ApiError(400, "prompt is empty, and the tokenizer has no token to start a text with",
                     "prompt");
  }
  return prompt;
}

PromptText Service::chat_prompt(const CompletionRequest& request,
                                const data::tokenizer::ChatTemplate* form) const {
  if (form == nullptr)
    throw ApiError(400, "the model has no chat template; use /v1/completions", "messages");
  PromptText prompt{
      .text = chat_text(request, *form, {{"bos_token", options_.bos}, {"eos_token", options_.eos}}),
      .tokens = {}};
  std::vector<int32_t> encoded;
  try {
    tokenizer_.encode(prompt.text, encoded);
  } catch (const DataError& error) {
    throw ApiError(400, error.what(), "messages");
  }
  prompt.tokens.assign(encoded.begin(), encoded.end());
  if (prompt.tokens.empty()) throw ApiError(400, "messages have no text", "messages");
  return prompt;
}

std::vector<PromptText> Service::prompts_of(const CompletionRequest& request,
                                            int64_t variant) const {
  if (request.endpoint == Endpoint::kChat)
    return {chat_prompt(request, options_.chats[static_cast<size_t>(variant)].text.get())};
  std::vector<PromptText> prompts;
  for (const PromptInput& input : request.prompts) prompts.push_back(plain_prompt(input));
  return prompts;
}

int64_t Service::room_of(const CompletionRequest& request, const PromptText& prompt) const {
  const char* const field = request.endpoint == Endpoint::kChat ? "messages" : "prompt";
  const auto size = std::ssize(prompt.tokens);
  const int64_t wanted = request.max_tokens.value_or(1);
  int64_t room = options_.context - (options_.decoder_start ? 1 : size);
  if (size > options_.context || wanted > room)
    throw ApiError(400,
                   fmt::format("the model reads at most {} tokens, but this prompt has {}{}",
                               options_.context, size,
                               request.max_tokens
                                   ? fmt::format(", with max_tokens={}", *request.max_tokens)
                                   : ", which leaves no room for an answer"),
                   field, "context_length_exceeded");
  if (options_.limits.max_new_tokens > 0) room = std::min(room, options_.limits.max_new_tokens);
  return request.max_tokens.value_or(room);
}

std::vector<TextJob> Service::jobs_of(CompletionAnswer& answer, int64_t variant) const {
  const CompletionRequest& request = answer.request();
  const uint64_t seed = request.seed ? *request.seed : random_number();
  std::vector<TextJob> jobs;
  const auto count = answer.prompts().size() * static_cast<size_t>(request.best_of);
  for (size_t i = 0; i < count; ++i) {
    const PromptText& prompt = answer.prompt_of(i);
    TextJob job{.prompt = prompt.tokens,
                .source = {},
                .variant = variant,
                .sampling = request.sampling,
                .seed = seed,
                .number = i,
                .max_new_tokens = room_of(request, prompt),
                .stop_tokens = answer.stop_tokens(),
                .scores = request.logprobs.has_value() || request.best_of > request.n,
                .prompt_scores = request.echo && request.logprobs.has_value(),
                .top = request.logprobs.value_or(0),
                .after_first = answer.prompts().size() == 1,
                .sink = answer.sink(i)};
    job.sampling.num_tokens = options_.num_tokens;
    if (options_.decoder_start) {
      job.source = std::move(job.prompt);
      job.prompt = {*options_.decoder_start};
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

void Service::complete(const http::Request& request, Endpoint endpoint,
                       const std::shared_ptr<http::Exchange>& exchange) {
  if (stopping_) throw ApiError(503, kStopping);
  const std::string_view type = request.header("content-type");
  if (!is_json(type)) throw ApiError(415, "the Content-Type of a request must be application/json");
  if (const std::string_view encoding = request.header("content-encoding");
      !encoding.empty() && encoding != "identity")
    throw ApiError(415, fmt::format("a body with Content-Encoding {} cannot be read; send it "
                                    "without",
                                    excerpt(encoding, 40)));
  CompletionRequest parsed = parse_request(request.body, endpoint, options_.limits);
  const int64_t variant = variant_of(parsed.model);
  const std::vector<std::string>& stops = options_.chats[static_cast<size_t>(variant)].stops;
  if (endpoint == Endpoint::kChat && !parsed.ignore_eos)
    parsed.stops.insert(parsed.stops.end(), stops.begin(), stops.end());
  if (options_.decoder_start && parsed.echo)
    throw ApiError(
        400, "echo is not supported: this model answers a prompt instead of continuing it", "echo");
  std::vector<PromptText> prompts = prompts_of(parsed, variant);
  for (const PromptText& prompt : prompts) room_of(parsed, prompt); // before anything begins
  CompletionAnswer::Options options{.model = options_.models[static_cast<size_t>(variant)]};
  if (!parsed.ignore_eos)
    options.stop_tokens =
        endpoint == Endpoint::kChat ? options_.chat_stops : options_.completion_stops;
  const auto answer = std::make_shared<CompletionAnswer>(std::move(parsed), std::move(prompts),
                                                         std::move(options), tokenizer_, exchange);
  std::vector<TextJob> jobs = jobs_of(*answer, variant);
  switch (scheduler_.submit(std::move(jobs), exchange->gone())) {
  case Scheduler::Submitted::kTaken:
    return;
  case Scheduler::Submitted::kFull:
    throw ApiError(429, "too many requests are waiting", {}, "queue_full");
  case Scheduler::Submitted::kStopping:
    throw ApiError(503, kStopping);
  }
}

} // namespace pentatron::serve

#include "pentatron/serve/serve.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <sys/stat.h>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/log.h"
#include "pentatron/base/text.h"
#include "pentatron/cli/commands.h"
#include "pentatron/cli/loaded_model.h"
#include "pentatron/cli/named_adapters.h"
#include "pentatron/cli/ranks.h"
#include "pentatron/cli/writing.h"
#include "pentatron/data/tokenizer/chat_template.h"
#include "pentatron/data/tokenizer/open.h"

namespace pentatron::cli {

namespace {

struct ServeArguments {
  std::string model, name, listen, token_file, max_body = "4MiB";
  std::vector<std::string> config, adapters; ///< NAME=DIR
  int64_t port = 8000;
  bool no_sharing = false;
  serve::ServeOptions options;
  RankArguments ranks;
};

std::atomic<int> stops_asked{0};

/// The first signal asks the server to stop, the second ends the program.
extern "C" void ask_to_stop(int number) {
  if (++stops_asked > 1) {
    ::signal(number, SIG_DFL);
    ::raise(number);
  }
}

void install_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = ask_to_stop;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

/// The token in a file, without white space around it.
std::string read_token(const std::string& file) {
  std::ifstream in(file);
  if (!in) require_descriptors(errno, file);
  std::stringstream content;
  std::error_code error;
  const bool empty = std::filesystem::file_size(file, error) == 0 && !error; // << fails for it
  if (!in || !(empty || content << in.rdbuf()))
    raise<Error>("--token-file {} cannot be read\n  try: --token-file with a file that has "
                 "the token in one line",
                 file);
  const std::string text = content.str(), token(trim(text));
  constexpr size_t kLeast = 16;
  const bool printable = std::ranges::all_of(token, [](char c) { return c > ' ' && c < 127; });
  if (token.size() < kLeast || !printable)
    raise<ConfigError>("--token-file {} must contain one line of at least {} printable characters "
                       "without spaces\n  try: --token-file with a file made by openssl rand -hex "
                       "32",
                       file, kLeast);
  struct stat status = {};
  if (::stat(file.c_str(), &status) == 0 && (status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    log::warning("--token-file {} can be read by other users of this machine\n  try: chmod 600 {}",
                 file, shell_word(file));
  return token;
}

/// The name under which requests find the model.
std::string default_name(const std::string& where) {
  std::filesystem::path path = where.starts_with("hf:") ? where.substr(3) : where;
  if (!std::filesystem::exists(path)) return path.string(); // ORG/NAME
  path = std::filesystem::absolute(path).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return std::filesystem::is_directory(path) ? path.filename().string() : path.stem().string();
}

void set_http_options(const ServeArguments& arguments, serve::http::ServerOptions& http) {
  http.port = static_cast<uint16_t>(arguments.port);
  if (const auto bytes = parse_bytes(arguments.max_body); bytes && *bytes > 0)
    http.max_body_bytes = *bytes;
  else
    raise<ConfigError>("--max-body {} is not a size\n  try: --max-body 4MiB", arguments.max_body);
  if (!arguments.token_file.empty()) http.guard.token = read_token(arguments.token_file);
  http.guard.open_paths = {"/", "/health", "/livez", "/readyz"};
  if (!arguments.listen.empty()) http.address = arguments.listen;
  if (arguments.listen.empty() || arguments.listen == "127.0.0.1" || arguments.listen == "::1") {
    http.guard.hosts = {"127.0.0.1", "localhost", "[::1]"};
    return;
  }
  if (http.guard.token.empty())
    raise<ConfigError>("--listen {} lets other machines send requests, and needs --token-file\n  "
                       "try: --token-file FILE, or remove --listen",
                       arguments.listen);
}

void set_scheduler_options(const serve::ServeOptions& options, int64_t context) {
  const serve::Scheduler::Options& scheduler = options.scheduler;
  if (scheduler.pass_tokens <= scheduler.texts)
    raise<ConfigError>("--pass-tokens {} must be larger than --max-batch {}\n  try: --pass-tokens "
                       "{}",
                       scheduler.pass_tokens, scheduler.texts,
                       std::max<int64_t>(256, 2 * scheduler.texts));
  const int64_t least = (context / generate::Session::kPage + 2) * generate::Session::kPage;
  if (options.cache_tokens != 0 && options.cache_tokens < least)
    raise<ConfigError>("--cache-tokens {} does not hold one text of the model's {} tokens\n  try: "
                       "--cache-tokens {}",
                       options.cache_tokens, context, least);
}

/// What the model says about itself.
void set_service_options(const OpenedModel& opened, const data::Tokenizer& tokenizer,
                         serve::ServiceOptions& service) {
  const models::ModelConfig& model = opened.config.model;
  const checkpoint::ModelFacts& facts = opened.source->facts();
  service.context = opened.config.train.seq_length;
  service.num_tokens = std::min(tokenizer.vocab_size(), model.vocab_size);
  service.limits.vocab_size = service.num_tokens;
  service.chat_stops = service.completion_stops = facts.generation.eos;
  if (tokenizer.eod() >= 0) {
    service.chat_stops.push_back(tokenizer.eod());
    if (service.completion_stops.empty()) service.completion_stops = {tokenizer.eod()};
  }
  if (models::model_spec(model).streams.size() > 1)
    service.decoder_start = model.decoder_start_token;
  const std::filesystem::path path = tokenizer_path(opened);
  service.bos = data::tokenizer::configured_token(path, "bos_token");
  service.eos = data::tokenizer::configured_token(path, "eos_token");
}

serve::ChatForm chat_form(std::optional<ChatFormat> format) {
  if (!format) return {};
  return {.text = std::make_shared<const data::tokenizer::ChatTemplate>(std::move(format->text)),
          .stops = std::move(format->stops)};
}

std::string url_of(const serve::http::ServerOptions& http, uint16_t port) {
  const bool v6 = http.address.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", v6 ? "[" : "", http.address, v6 ? "]" : "", port);
}

int run_serve(const ServeArguments& arguments) {
  const Ranks ranks = find_ranks(arguments.ranks);
  const OpenedModel opened = open_generator(arguments.model, arguments.config, ranks.size);
  tell_unused_settings(opened, ranks);
  serve::ServeOptions options = arguments.options;
  set_http_options(arguments, options.http);
  set_scheduler_options(options, opened.config.train.seq_length);
  const std::shared_ptr<const data::Tokenizer> tokenizer = open_tokenizer_of(opened);
  if (tokenizer == nullptr)
    raise<ConfigError>("{} has no tokenizer, which serve needs\n  try: {}", arguments.model,
                       download_or(opened.source->facts().path, kGivenTokenizer));
  set_service_options(opened, *tokenizer, options.service);
  // What the queue never holds is refused for good, and not until there is room.
  serve::RequestLimits& limits = options.service.limits;
  limits.max_texts = std::min(limits.max_texts, options.scheduler.queue);
  const NamedAdapters adapters =
      read_named_adapters(arguments.adapters, opened,
                          arguments.name.empty() ? default_name(arguments.model) : arguments.name);
  options.service.models = adapters.names;
  options.service.chats.push_back(chat_form(open_chat_format(opened, *tokenizer)));
  for (const checkpoint::Adapter& adapter : adapters.adapters)
    options.service.chats.push_back(
        chat_form(open_chat_format(opened, *tokenizer, &adapter.origin)));
  options.share_prefixes = !arguments.no_sharing;
  options.scheduler.survives_failures = ranks.size == 1;
  options.listening = [&](uint16_t port) {
    fmt::print("serving {} at {}\n", options.service.models[0], url_of(options.http, port));
    std::fflush(stdout);
  };
  options.asked_to_stop = [] { return stops_asked > 0; };
  install_stop_signals();
  return run_ranks(ranks, opened.config, [&](const comm::Group& world) {
    const RankLog rank_log("", world);
    parallelize::RankModel model = load_model(opened, world, adapters.adapters);
    serve::serve(model, options, *tokenizer, world);
  });
}

void add_limit_options(CLI::App& verb, ServeArguments& arguments) {
  serve::ServeOptions& options = arguments.options;
  const auto count = [&](const char* name, int64_t& value, int64_t most, const char* help) {
    verb.add_option(name, value, help)->check(CLI::Range(int64_t{1}, most))->capture_default_str();
  };
  count("--max-batch", options.scheduler.texts, 4096,
        "maximum number of texts to generate at the same time");
  count("--pass-tokens", options.scheduler.pass_tokens, int64_t{1} << 24,
        "maximum number of tokens in one forward pass; longer prompts are processed in several "
        "passes");
  verb.add_option("--cache-tokens", options.cache_tokens,
                  "size of the key-value cache in tokens, for running texts and for prompts that "
                  "share a prefix with earlier prompts; 0: 2048 tokens per text of --max-batch, "
                  "but at most a quarter of the free memory")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  add_cache_option(verb, options.fp8_cache);
  verb.add_flag(
      "--no-prefix-sharing", arguments.no_sharing,
      "process every prompt completely, even if it shares a prefix with an earlier prompt");
  count("--max-queue", options.scheduler.queue, 1 << 20,
        "maximum number of waiting texts; further requests are answered with status 429");
  verb.add_option("--max-tokens", options.service.limits.max_new_tokens,
                  "maximum number of new tokens in a request; 0: the model's context")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  count("--max-choices", options.service.limits.max_choices, 1024,
        "maximum value of n and best_of (number of answers) in a request");
  count("--max-connections", options.http.max_connections, 1 << 16,
        "maximum number of open connections");
  verb.add_option("--max-body", arguments.max_body, "maximum size of the body of a request")
      ->capture_default_str();
  const auto seconds = [&](const char* name, double& value, const char* help) {
    verb.add_option(name, value, help)->check(CLI::Range(0.1, 1e6))->capture_default_str();
  };
  seconds("--request-timeout", options.http.request_timeout_s,
          "time limit for a client to send a request, in seconds");
  seconds("--idle-timeout", options.http.idle_timeout_s,
          "time until a connection without a request is closed, in seconds");
  seconds("--stop-timeout", options.scheduler.stop_timeout_s,
          "time limit for running texts to finish after SIGTERM or Ctrl-C, in seconds");
}

} // namespace

void add_serve(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<ServeArguments>();
  CLI::App* verb =
      program.add_subcommand("serve", "serve a model over HTTP with OpenAI's API and a chat page");
  verb->add_option("model", arguments->model, kModelHelp)->required();
  verb->add_option("config", arguments->config,
                   "key=value settings: dtype, device, kernels, train.num_threads, "
                   "parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size, "
                   "parallel.expert_model_parallel_size, parallel.expert_tensor_parallel_size, "
                   "tokenizer.path, train.seq_length (context, in tokens)");
  verb->add_option("--adapter", arguments->adapters,
                   "NAME=DIR: adapter to serve as an additional model with this name; DIR is a "
                   "Hugging Face PEFT folder, or the checkpoint folder of a run with "
                   "peft.type; repeat the option for several adapters")
      ->allow_extra_args(false);
  verb->add_option("--name", arguments->name,
                   "name of the model in requests; default: the name of its folder or file");
  verb->add_option("--port", arguments->port, "TCP port; 0: any free port")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  verb->add_option("--listen", arguments->listen,
                   "IP address to listen on; other addresses than 127.0.0.1 and ::1 need "
                   "--token-file; default: this machine only (127.0.0.1)");
  verb->add_option("--token-file", arguments->token_file,
                   "file with the token that clients must send as Authorization: Bearer TOKEN");
  add_limit_options(*verb, *arguments);
  add_rank_options(*verb, arguments->ranks);
  verb->footer("examples:\n"
               "  pentatron serve SmolLM2-135M-Instruct\n"
               "  pentatron serve model.gguf --port 8080 --max-batch 32\n"
               "  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: "
               "application/json' -d '{\"messages\": [{\"role\": \"user\", \"content\": "
               "\"Hello\"}]}'");
  verb->callback([arguments, &chosen] { chosen = [arguments] { return run_serve(*arguments); }; });
}

} // namespace pentatron::cli

#include <CLI/CLI.hpp>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>

#include <fmt/format.h>
#include <unistd.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/json.h"
#include "pentatron/base/paths.h"
#include "pentatron/base/progress.h"
#include "pentatron/base/text.h"
#include "pentatron/cli/commands.h"
#include "pentatron/cli/loaded_model.h"
#include "pentatron/cli/ranks.h"
#include "pentatron/cli/writing.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/data/tokenizer/open.h"
#include "pentatron/data/utf8.h"

namespace pentatron::cli {

namespace {

using Messages = nlohmann::ordered_json;

struct ChatArguments {
  std::string model, adapter, system;
  std::vector<std::string> config;
  WritingOptions writing;
  RankArguments ranks;
};

/// A talk as the model's template writes it.
class Talk {
 public:
  Talk(const OpenedModel& opened, const data::Tokenizer& tokenizer, std::string system)
      : tokenizer_(tokenizer), format_(format_of(opened, tokenizer)), system_(std::move(system)) {
    const std::filesystem::path path = tokenizer_path(opened);
    bos_ = data::tokenizer::configured_token(path, "bos_token");
    eos_ = data::tokenizer::configured_token(path, "eos_token");
    reset();
  }
  /// Back to the system message, if there is one.
  void reset() {
    messages_ = Messages::array();
    if (!system_.empty()) say("system", system_);
  }
  void say(const std::string& role, const std::string& content) {
    messages_.push_back({{"role", role}, {"content", content}});
  }
  size_t size() const { return messages_.size(); }
  /// Texts that end an answer, beside the end tokens.
  const std::vector<std::string>& stops() const { return format_.stops; }
  /// {"messages": [{"role": ..., "content": ...}, ...]}, as chat data for training is written.
  Json as_json() const { return {{"messages", Json(messages_)}}; }
  /// All that was said, and the beginning of the model's answer.
  std::vector<int64_t> tokens() const {
    const std::tm now = data::tokenizer::local_time();
    const std::string text = format_.text.render({{"messages", messages_},
                                                  {"bos_token", bos_},
                                                  {"eos_token", eos_},
                                                  {"add_generation_prompt", true}},
                                                 nullptr, &now);
    std::vector<int32_t> encoded;
    tokenizer_.encode(text, encoded);
    return {encoded.begin(), encoded.end()};
  }

 private:
  static ChatFormat format_of(const OpenedModel& opened, const data::Tokenizer& tokenizer) {
    if (auto format = open_chat_format(opened, tokenizer)) return std::move(*format);
    raise<ConfigError>("{} has no chat template, which chat needs to format messages\n  try: "
                       "pentatron generate, or a tokenizer_config.json with chat_template",
                       opened.source->facts().path.string());
  }

  const data::Tokenizer& tokenizer_;
  ChatFormat format_;
  std::string system_, bos_, eos_;
  Messages messages_ = Messages::array();
};

/// The next line that the user types; all ranks get it. Nothing at the end of the input.
std::optional<std::string> ask(const comm::Group& world) {
  std::string line, told = "."; // "." and the line, or nothing
  if (world.rank() == 0) {
    if (::isatty(STDIN_FILENO) == 1) show("\n> ");
    told = std::getline(std::cin, line) ? "." + line : "";
  }
  told = comm::broadcast_text(told, 0, world);
  if (told.empty()) return std::nullopt;
  return told.substr(1);
}

std::atomic<bool> answer_interrupted{false};

extern "C" void interrupt_answer(int) {
  answer_interrupted = true;
}

/// While it exists, Ctrl-C stops the answer; otherwise it ends the program.
class Interruptible {
 public:
  explicit Interruptible(const comm::Group& world) : world_(world) {
    if (world.rank() != 0) return; // rank 0 takes the signal for all
    answer_interrupted = false;
    struct sigaction action = {};
    action.sa_handler = interrupt_answer;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGINT, &action, &before_);
  }
  ~Interruptible() {
    if (world_.rank() == 0) ::sigaction(SIGINT, &before_, nullptr);
  }
  Interruptible(const Interruptible&) = delete;

  /// All ranks stop after the same token.
  bool asked() const {
    if (world_.size() == 1) return answer_interrupted;
    return !comm::broadcast_text(answer_interrupted ? "." : "", 0, world_).empty();
  }

 private:
  const comm::Group& world_;
  struct sigaction before_ = {};
};

constexpr const char* kCommandsHelp = "/reset      clear the conversation\n"
                                      "/save FILE  write the conversation to FILE, as JSON\n"
                                      "/exit       end the chat; so does Ctrl-D\n"
                                      "/help       show this list\n"
                                      "Ctrl-C stops an answer.\n";

/// Answers to commands go to standard error: standard output has the model's text only.
void tell(const comm::Group& world, const std::string& text) {
  if (world.rank() == 0) log::print(text);
}

/// A file that is there is never replaced.
std::string save_talk(const Talk& talk, const std::string& file) {
  if (file.empty()) return "/save needs the name of a file\n  try: /save chat.json\n";
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(file, error))) {
    return fmt::format("{} already exists, and nothing was saved\n  try: /save {}\n", file,
                       free_path(file).string());
  }
  try {
    write_file_atomically(file, dump_json(talk.as_json(), 2) + "\n");
  } catch (const Error& failure) {
    return fmt::format("{}\n", failure.what());
  }
  return fmt::format("saved {} messages to {}\n", talk.size(), file);
}

enum class Next : uint8_t { kAnswer, kAsk, kExit };

/// Lines that begin with "/" are commands, unless a second "/" follows.
Next obey(const std::string& line, Talk& talk, const comm::Group& world) {
  const std::string_view text = trim(line);
  if (!text.starts_with('/') || text.starts_with("//")) return Next::kAnswer;
  const size_t space = std::min(text.find_first_of(" \t"), text.size());
  const std::string_view name = text.substr(0, space), rest = trim(text.substr(space));
  if (name == "/save") {
    if (world.rank() == 0) tell(world, save_talk(talk, std::string(rest)));
    return Next::kAsk;
  }
  if (!rest.empty() && (name == "/reset" || name == "/exit" || name == "/help")) {
    tell(world, fmt::format("{} takes no argument, but \"{}\" is given\n  try: {}\n", name,
                            excerpt(rest), name));
    return Next::kAsk;
  }
  if (name == "/exit") return Next::kExit;
  if (name == "/help") {
    tell(world, kCommandsHelp);
  } else if (name == "/reset") {
    talk.reset();
    tell(world, "conversation cleared\n");
  } else {
    tell(world, fmt::format("{} is not a command of chat\n  try: /help, or //... to send a message "
                            "that begins with /\n",
                            excerpt(name)));
  }
  return Next::kAsk;
}

void chat_on_rank(const ChatArguments& arguments, const OpenedModel& opened,
                  const data::Tokenizer& tokenizer, const comm::Group& world) {
  const RankLog rank_log("", world);
  parallelize::RankModel model = load_model(opened, world);
  generate::Options options = arguments.writing.options;
  options.context = opened.config.train.seq_length;
  options.stop_tokens = opened.source->facts().generation.eos;
  if (tokenizer.eod() >= 0) options.stop_tokens.push_back(tokenizer.eod());
  options.sampling.num_tokens = std::min(tokenizer.vocab_size(), opened.config.model.vocab_size);
  Talk talk(opened, tokenizer, arguments.system);
  std::vector<std::string> stops = arguments.writing.stops;
  stops.insert(stops.end(), talk.stops().begin(), talk.stops().end());
  generate::Session session(model, 1, options.fp8_cache);
  while (const auto line = ask(world)) {
    const std::string_view text = trim(*line);
    if (text.empty()) continue;
    if (data::find_invalid_utf8(*line) != std::string_view::npos)
      throw DataError("the input is not valid UTF-8");
    const Next next = obey(*line, talk, world);
    if (next == Next::kExit) return;
    if (next == Next::kAsk) continue;
    talk.say("user", text.starts_with("//") ? std::string(text.substr(1)) : *line);
    const std::vector<int64_t> prompt = talk.tokens();
    if (std::ssize(prompt) > options.context)
      tell(world,
           fmt::format("(the conversation has {} tokens, more than the model's context of {}: "
                       "only its last {} are read)\n",
                       prompt.size(), options.context, options.context / 2));
    TextWriter writer(tokenizer, prompt, stops);
    const auto speak = [&](const std::string& words) {
      if (world.rank() == 0) show(words);
    };
    const Interruptible interruptible(world);
    bool interrupted = false;
    generate::continue_text(session, prompt, options, [&](size_t, const generate::Drawn& drawn) {
      speak(writer.push(drawn.token));
      interrupted = interruptible.asked();
      return !writer.stopped() && !interrupted;
    });
    speak(writer.finish() + "\n");
    if (interrupted) tell(world, "(stopped)\n");
    talk.say("assistant", writer.text());
  }
}

int run_chat(const ChatArguments& arguments) {
  check_writing(arguments.writing);
  const Ranks ranks = find_ranks(arguments.ranks);
  if (ranks.start == Ranks::Start::kSupervised)
    raise<ConfigError>("--backend {}: the processes of ranks have no standard input\n  try: "
                       "--backend in_process",
                       arguments.ranks.backend);
  const OpenedModel opened = open_generator(with_adapter(arguments.model, arguments.adapter),
                                            arguments.config, ranks.size);
  tell_unused_settings(opened, ranks, &arguments.writing);
  const std::shared_ptr<const data::Tokenizer> tokenizer = open_tokenizer_of(opened);
  if (tokenizer == nullptr)
    raise<ConfigError>("{} has no tokenizer\n  try: {}", arguments.model,
                       download_or(opened.source->facts().path, kGivenTokenizer));
  return run_ranks(ranks, opened.config, [&](const comm::Group& world) {
    chat_on_rank(arguments, opened, *tokenizer, world);
  });
}

} // namespace

void add_chat(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<ChatArguments>();
  arguments->writing.options.max_new_tokens = 1000;
  CLI::App* verb = program.add_subcommand("chat", "chat with a model, using its chat template");
  verb->add_option("model", arguments->model, kModelHelp)->required();
  verb->add_option("--adapter", arguments->adapter, kAdapterHelp);
  verb->add_option("config", arguments->config,
                   "key=value settings: dtype, device, kernels, train.num_threads, "
                   "parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size, "
                   "parallel.expert_model_parallel_size, parallel.expert_tensor_parallel_size, "
                   "tokenizer.path, train.seq_length (context, in tokens)");
  verb->add_option("--system", arguments->system, "system message: instructions for the model");
  add_writing_options(*verb, arguments->writing);
  add_rank_options(*verb, arguments->ranks);
  verb->footer(
      "Each line of input is one message. Commands:\n" + std::string(kCommandsHelp) +
      "example: pentatron chat SmolLM2-135M-Instruct --system \"Answer in one sentence.\"");
  verb->callback([arguments, &chosen] { chosen = [arguments] { return run_chat(*arguments); }; });
}

} // namespace pentatron::cli

#include <CLI/CLI.hpp>

#include <cstdio>
#include <iostream>

#include <fmt/format.h>
#include <unistd.h>

#include "pentatron/base/error.h"
#include "pentatron/cli/commands.h"
#include "pentatron/cli/loaded_model.h"
#include "pentatron/cli/ranks.h"
#include "pentatron/cli/writing.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/data/tokenizer/chat_template.h"
#include "pentatron/data/tokenizer/open.h"
#include "pentatron/data/utf8.h"

namespace pentatron::cli {

namespace {

using Messages = nlohmann::ordered_json;

struct ChatArguments {
  std::string model, system;
  std::vector<std::string> config;
  WritingOptions writing;
  RankArguments ranks;
};

/// A talk as the model's template writes it.
class Talk {
 public:
  Talk(const OpenedModel& opened, const data::Tokenizer& tokenizer)
      : tokenizer_(tokenizer), template_(source_of(opened)) {
    const std::filesystem::path path = tokenizer_path(opened);
    bos_ = data::tokenizer::configured_token(path, "bos_token");
    eos_ = data::tokenizer::configured_token(path, "eos_token");
  }
  void say(const std::string& role, const std::string& content) {
    messages_.push_back({{"role", role}, {"content", content}});
  }
  /// All that was said, and the beginning of the model's answer.
  std::vector<int64_t> tokens() const {
    const std::string text = template_.render({{"messages", messages_},
                                               {"bos_token", bos_},
                                               {"eos_token", eos_},
                                               {"add_generation_prompt", true}});
    std::vector<int32_t> encoded;
    tokenizer_.encode(text, encoded);
    return {encoded.begin(), encoded.end()};
  }

 private:
  static std::string source_of(const OpenedModel& opened) {
    if (auto source = data::tokenizer::find_chat_template(tokenizer_path(opened))) return *source;
    raise<ConfigError>("{} has no chat template, which chat needs to format messages\n  try: "
                       "pentatron generate, or a tokenizer_config.json with chat_template",
                       opened.source->facts().path.string());
  }

  const data::Tokenizer& tokenizer_;
  data::tokenizer::ChatTemplate template_;
  std::string bos_, eos_;
  Messages messages_ = Messages::array();
};

/// The next line that the user types; all ranks get it. Nothing at the end of the input.
std::optional<std::string> ask(const comm::Group& world) {
  std::string line, told = "."; // "." and the line, or nothing
  if (world.rank() == 0) {
    if (::isatty(STDIN_FILENO) == 1) show("\n> ");
    told = std::getline(std::cin, line) ? "." + line : "";
  }
  told = comm::gather_text(told, world)[0];
  if (told.empty()) return std::nullopt;
  return told.substr(1);
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
  Talk talk(opened, tokenizer);
  if (!arguments.system.empty()) talk.say("system", arguments.system);
  generate::Session session(model, 1);
  while (const auto line = ask(world)) {
    if (line->find_first_not_of(" \t\r") == std::string::npos) continue;
    if (data::find_invalid_utf8(*line) != std::string_view::npos)
      throw DataError("the input is not valid UTF-8");
    talk.say("user", *line);
    const std::vector<int64_t> prompt = talk.tokens();
    TextWriter writer(tokenizer, prompt, arguments.writing.stops);
    const auto speak = [&](const std::string& text) {
      if (world.rank() == 0) show(text);
    };
    generate::continue_text(session, prompt, options, [&](size_t, const generate::Drawn& drawn) {
      speak(writer.push(drawn.token));
      return !writer.stopped();
    });
    speak(writer.finish() + "\n");
    talk.say("assistant", writer.text());
  }
}

int run_chat(const ChatArguments& arguments) {
  generate::check(arguments.writing.options);
  const Ranks ranks = find_ranks(arguments.ranks);
  if (ranks.start == Ranks::Start::kSupervised)
    raise<ConfigError>("--backend {}: the processes of ranks have no standard input\n  try: "
                       "--backend in_process",
                       arguments.ranks.backend);
  const OpenedModel opened = open_trained_model(arguments.model, arguments.config, ranks.size);
  const std::shared_ptr<const data::Tokenizer> tokenizer = open_tokenizer_of(opened);
  if (tokenizer == nullptr)
    raise<ConfigError>("{} has no tokenizer\n  try: pentatron generate --tokens", arguments.model);
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
  verb->add_option("config", arguments->config,
                   "key=value settings: dtype, device, kernels, train.num_threads, "
                   "parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size");
  verb->add_option("--system", arguments->system, "system message: instructions for the model");
  add_writing_options(*verb, arguments->writing);
  add_rank_options(*verb, arguments->ranks);
  verb->footer("Each line of input is one message. Press Ctrl-D to end the chat.\nexample: "
               "pentatron chat SmolLM2-135M-Instruct --system \"Answer in one sentence.\"");
  verb->callback([arguments, &chosen] { chosen = [arguments] { return run_chat(*arguments); }; });
}

} // namespace pentatron::cli

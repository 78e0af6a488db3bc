#include "pentatron/base/paths.h"
#include "pentatron/trainer/finetune_settings.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/log.h"
#include "pentatron/base/progress.h"
#include "pentatron/base/text.h"
#include "pentatron/cli/commands.h"
#include "pentatron/cli/loaded_model.h"
#include "pentatron/cli/ranks.h"
#include "pentatron/cli/training.h"

namespace pentatron::cli {

namespace {

struct FinetuneArguments {
  trainer::FinetuneRequest request;
  bool dry_run = false;
  RankArguments ranks;
};

std::string quoted(const std::string& setting) {
  const bool plain = setting.find_first_of(" \t\n\"'\\$`&|;<>(){}[]*?!#~") == std::string::npos;
  if (plain) return setting;
  std::string text = "'";
  for (const char c : setting) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

/// The settings, and why each was chosen, as `pentatron train` takes them.
std::string settings_text(const std::vector<trainer::ChosenSetting>& chosen) {
  constexpr size_t kColumn = 44;
  const auto columns = static_cast<size_t>(log::text_columns());
  std::string text = "finetune chose these settings; set a key to override it:";
  for (const trainer::ChosenSetting& one : chosen) {
    const std::string setting = quoted(one.key + "=" + one.value);
    const size_t column = std::max(setting.size() + 1, kColumn);
    if (!one.why.empty() && 4 + column + one.why.size() > columns) {
      text += "\n  # " + one.why + "\n  " + setting;
      continue;
    }
    text += "\n  " + setting;
    if (!one.why.empty())
      text += std::string(setting.size() < kColumn ? kColumn - setting.size() : 1, ' ') + " # " +
              one.why;
  }
  return text;
}

/// Before the model is read: that the folder is one, or can become one.
void check_folder(const std::string& out) {
  std::filesystem::path there = out;
  std::error_code error;
  while (!there.empty() && !std::filesystem::exists(there, error)) there = there.parent_path();
  if (!there.empty() && !std::filesystem::is_directory(there, error))
    raise<ConfigError>("--out {} cannot be a folder: {} is a file\n  try: --out {}", out,
                       there.string(), shell_word(free_path(there).string()));
}

/// An error as the arguments were typed, not by the keys that they become.
std::string as_typed(std::string message, const trainer::FinetuneRequest& request) {
  for (const auto& [key, argument] :
       {std::pair{"checkpoint.load=" + std::string(kHfPrefix), request.model},
        {"checkpoint.load=", request.model},
        {"dataset.path=", request.data}}) {
    const std::string whole = key + argument;
    for (size_t at = 0; (at = message.find(whole, at)) != std::string::npos; ++at)
      message.erase(at, key.size());
  }
  // A run that goes on keeps what it began with; another one has a folder of its own.
  for (const std::string again : {"checkpoint.finetune=true to start a new run from its weights",
                                  "checkpoint.finetune=true to start a new run"})
    if (const size_t at = message.find(again); at != std::string::npos)
      message.replace(
          at, again.size(),
          fmt::format("--out {} for a new run", shell_word(free_path(request.out).string())));
  return message;
}

/// Does `work`, with its errors as_typed().
template <class F> auto in_typed_words(const trainer::FinetuneRequest& request, F&& work) {
  try {
    return work();
  } catch (const ConfigError& error) {
    throw ConfigError(as_typed(error.what(), request));
  } catch (const DataError& error) {
    throw DataError(as_typed(error.what(), request));
  } catch (const CheckpointError& error) {
    throw CheckpointError(as_typed(error.what(), request));
  }
}

int finetune(FinetuneArguments& arguments) {
  trainer::FinetuneRequest& request = arguments.request;
  if (request.epochs && !(*request.epochs > 0 && *request.epochs <= 1e6))
    raise<ConfigError>("--epochs {} is out of range, > 0 and <= 1e+06\n  try: --epochs 3",
                       *request.epochs);
  for (const std::string& text : request.overrides)
    if (text.find('=') == std::string::npos)
      raise<ConfigError>("{} is not a key=value setting\n  try: optimizer.lr=0.0001", text);
  check_folder(request.out);
  Ranks ranks = find_ranks(arguments.ranks, /*starts=*/!arguments.dry_run);
  request.world_size = ranks.size;
  const trainer::FinetuneRun run =
      in_typed_words(request, [&] { return trainer::make_finetune_run(request); });
  if (!ranks.supervised && ranks.launch.rank == 0) {
    trainer::check_out(request, run.config);
    log::print(settings_text(run.chosen));
  }
  const auto show_next = [&](const trainer::TrainReport& report) {
    if (report.checkpoint.empty()) return;
    const std::vector<std::string>& prompts = run.config.logger.sample_prompts;
    fmt::print("try          pentatron generate {} --temperature 0 --prompt {}\n",
               quoted(report.checkpoint.parent_path().string()),
               quoted(prompts.empty() ? "TEXT" : prompts.front()));
  };
  return in_typed_words(
      request, [&] { return train_on_ranks(run.config, ranks, arguments.dry_run, show_next); });
}

} // namespace

void add_finetune(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<FinetuneArguments>();
  trainer::FinetuneRequest& request = arguments->request;
  CLI::App* verb = program.add_subcommand(
      "finetune", "fine-tune a model on examples, with settings chosen for the model and the data");
  verb->add_option("model", request.model, kModelHelp)->required();
  verb->add_option("data", request.data,
                   "JSON Lines with an example on each line: messages, prompt and completion, "
                   "instruction and output, or text")
      ->required();
  verb->add_option("config", request.overrides,
                   "key=value settings, which override the settings that finetune chooses");
  verb->add_option("--out", request.out,
                   "folder of the run: metrics, checkpoints and the adapter; the same command "
                   "resumes a run that was stopped")
      ->required();
  verb->add_option("--epochs", request.epochs, "number of passes over the examples")
      ->default_str(fmt::format("{:g}", trainer::kEpochs));
  verb->add_flag("--all-weights", request.all_weights,
                 "train all weights of the model instead of adapters (LoRA)");
  verb->add_flag("--dry-run", arguments->dry_run,
                 "show the settings and the required memory, check the data, and exit; writes "
                 "nothing");
  add_rank_options(*verb, arguments->ranks);
  verb->footer("examples:\n"
               "  pentatron finetune SmolLM2-135M-Instruct chats.jsonl --out runs/chats\n"
               "  pentatron finetune SmolLM2-135M-Instruct chats.jsonl --out runs/chats "
               "optimizer.lr=2e-4 peft.r=32\n"
               "  pentatron chat runs/chats/checkpoints");
  verb->callback([arguments, &chosen] { chosen = [arguments] { return finetune(*arguments); }; });
}

} // namespace pentatron::cli

#include "pentatron/generate/generate.h"

#include <CLI/CLI.hpp>

#include <cstdio>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/train_state.h"
#include "pentatron/cli/commands.h"
#include "pentatron/data/dataset.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::cli {

namespace {

struct GenerateArguments {
  std::string checkpoint, prompt;
  generate::SamplingOptions sampling;
};

int run_generate(GenerateArguments arguments) {
  const auto folder = checkpoint::latest_train_state(arguments.checkpoint);
  if (!folder) {
    raise<CheckpointError>(
        "{} holds no checkpoint\n  try: the folder given as checkpoint.save when training",
        arguments.checkpoint);
  }
  trainer::Config config;
  config::Violations violations;
  config::apply_yaml(config, checkpoint::saved_config(*folder), (*folder / "state.json").string(),
                     violations);
  violations.throw_if_any();
  trainer::set_compute_threads(config.train.num_threads);
  const auto tokenizer = data::make_tokenizer(config.tokenizer);
  build::RankModel model = build::make_model({.config = config.model,
                                              .dtype = trainer::scalar_type(config.dtype),
                                              .device = trainer::choose_device(config.device),
                                              .max_sequence = config.train.seq_length,
                                              .gradients = false},
                                             {});
  checkpoint::load_params(*folder, model.gpt->params());
  std::vector<int32_t> encoded;
  tokenizer->encode(arguments.prompt, encoded);
  std::vector<int64_t> prompt(encoded.begin(), encoded.end());
  prompt.insert(prompt.begin(), tokenizer->eod());
  arguments.sampling.context = config.train.seq_length;
  arguments.sampling.stop_token = tokenizer->eod();
  fmt::print("{}", arguments.prompt);
  generate::generate(model, prompt, arguments.sampling, [&](int64_t token) {
    fmt::print("{}", tokenizer->decode(std::span(&token, 1)));
    std::fflush(stdout);
  });
  fmt::print("\n");
  return 0;
}

} // namespace

void add_generate(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* verb = program.add_subcommand("generate", "let a trained model write");
  verb->add_option("checkpoint", arguments->checkpoint,
                   "the folder given as checkpoint.save when training")
      ->required();
  verb->add_option("--prompt", arguments->prompt, "text to continue");
  verb->add_option("--max-tokens", arguments->sampling.max_tokens, "length of the text")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--temperature", arguments->sampling.temperature,
                   "0: always the likeliest token");
  verb->add_option("--top-k", arguments->sampling.top_k,
                   "choose among the k likeliest tokens; 0: all");
  verb->add_option("--top-p", arguments->sampling.top_p,
                   "choose among the likeliest tokens of this probability together");
  verb->add_option("--seed", arguments->sampling.seed, "another seed, another text");
  verb->footer(
      "example: pentatron generate runs/quickstart/checkpoints --prompt \"It is a truth\"");
  verb->callback(
      [arguments, &chosen] { chosen = [arguments] { return run_generate(*arguments); }; });
}

} // namespace pentatron::cli

#include "pentatron/generate/generate.h"

#include <CLI/CLI.hpp>

#include <cstdio>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/checkpoint/hf/hf_weights.h"
#include "pentatron/checkpoint/run_checkpoint.h"
#include "pentatron/cli/commands.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/tokenizer/stream_decoder.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::cli {

namespace {

struct GenerateArguments {
  std::string model, prompt;
  std::vector<int64_t> tokens;
  std::vector<std::string> config;
  generate::SamplingOptions sampling;
};

struct LoadedModel {
  trainer::Config config;
  build::RankModel model;
};

build::RankModel make(const trainer::Config& config, int64_t max_sequence) {
  trainer::set_compute_threads(config.train.num_threads);
  return build::make_model({.config = config.model,
                            .dtype = trainer::scalar_type(config.dtype),
                            .device = trainer::choose_device(config.device),
                            .max_sequence = max_sequence,
                            .gradients = false},
                           {});
}

LoadedModel load_hf(const std::filesystem::path& folder, const GenerateArguments& arguments) {
  const checkpoint::HfModel hf = checkpoint::read_hf_config(folder);
  LoadedModel loaded{.config = with_runtime_keys(arguments.config, {}), .model = {}};
  loaded.config.model = hf.config;
  loaded.config.train.seq_length = hf.config.max_position_embeddings;
  loaded.model = make(loaded.config, hf.config.max_position_embeddings);
  checkpoint::load_hf_weights(folder, hf, loaded.model.gpt->params());
  return loaded;
}

LoadedModel load_saved(const GenerateArguments& arguments) {
  const auto found = checkpoint::newest_checkpoint(arguments.model);
  if (!found) {
    raise<CheckpointError>("{} holds no checkpoint\n  try: the folder given as checkpoint.save "
                           "when training, or hf:DIR for a Hugging Face model",
                           arguments.model);
  }
  if (!found->passed_over.empty())
    log::warning("{}; going back to {}", found->passed_over, found->folder.string());
  trainer::Config config;
  config::Violations violations;
  config::apply_yaml(config, checkpoint::saved_config(found->folder), found->folder.string(),
                     violations);
  violations.throw_if_any();
  // Where the run itself began, or was written to, is of no matter here.
  config.checkpoint = {};
  const std::string trained_in(config::to_string(config.dtype));
  LoadedModel loaded{.config = with_runtime_keys(arguments.config, config), .model = {}};
  if (loaded.config.dtype != config.dtype) {
    raise<ConfigError>("dtype={} is not that of {}: {}\n  try: dtype={}",
                       config::to_string(loaded.config.dtype), found->folder.string(), trained_in,
                       trained_in);
  }
  loaded.model = make(loaded.config, loaded.config.train.seq_length);
  checkpoint::load_params(found->folder, loaded.model.gpt->params());
  return loaded;
}

int run_generate(GenerateArguments arguments) {
  generate::check(arguments.sampling);
  const trainer::CheckpointConfig source{.load = arguments.model};
  const auto hf = trainer::hf_folder(source);
  if (hf && arguments.tokens.empty()) {
    raise<ConfigError>("{} has a tokenizer of its own, which pentatron does not read\n  try: "
                       "--tokens 1,2,3 with numbers of its vocabulary",
                       arguments.model);
  }
  LoadedModel loaded = hf ? load_hf(*hf, arguments) : load_saved(arguments);
  arguments.sampling.context = loaded.config.train.seq_length;
  if (!arguments.tokens.empty()) {
    bool first = true;
    generate::generate(loaded.model, arguments.tokens, arguments.sampling, [&](int64_t token) {
      fmt::print("{}{}", first ? "" : " ", token);
      std::fflush(stdout);
      first = false;
    });
    fmt::print("\n");
    return 0;
  }
  const auto tokenizer = data::make_tokenizer(loaded.config.tokenizer);
  if (tokenizer->vocab_size() > loaded.config.model.vocab_size) {
    raise<ConfigError>("model.vocab_size={} of {} is smaller than the {} tokens of "
                       "tokenizer.type={}\n  try: --tokens 1,2,3",
                       loaded.config.model.vocab_size, arguments.model, tokenizer->vocab_size(),
                       tokenizer->name());
  }
  std::vector<int32_t> encoded;
  tokenizer->encode(arguments.prompt, encoded);
  std::vector<int64_t> prompt(encoded.begin(), encoded.end());
  prompt.insert(prompt.begin(), tokenizer->eod());
  arguments.sampling.stop_token = tokenizer->eod();
  arguments.sampling.num_tokens = tokenizer->vocab_size();
  fmt::print("{}", for_terminal(arguments.prompt));
  data::StreamDecoder stream(*tokenizer);
  generate::generate(loaded.model, prompt, arguments.sampling, [&](int64_t token) {
    fmt::print("{}", for_terminal(stream.push(token)));
    std::fflush(stdout);
  });
  fmt::print("{}\n", for_terminal(stream.finish()));
  return 0;
}

} // namespace

void add_generate(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* verb = program.add_subcommand("generate", "let a trained model write");
  verb->add_option("model", arguments->model,
                   "the folder given as checkpoint.save when training, one iter_ folder of it, or "
                   "hf:DIR for a Hugging Face model")
      ->required();
  verb->add_option("config", arguments->config, "device=..., train.num_threads=..., dtype=...");
  CLI::Option* prompt = verb->add_option("--prompt", arguments->prompt, "text to continue");
  verb->add_option("--tokens", arguments->tokens,
                   "token numbers to continue, with commas between; the answer is numbers too")
      ->allow_extra_args(false)
      ->delimiter(',')
      ->excludes(prompt);
  generate::SamplingOptions& sampling = arguments->sampling;
  verb->add_option("--max-tokens", sampling.max_tokens, "length of the text")
      ->capture_default_str();
  verb->add_option("--temperature", sampling.temperature, "0: always the likeliest token")
      ->capture_default_str();
  verb->add_option("--top-k", sampling.top_k, "choose among the k likeliest tokens; 0: all")
      ->capture_default_str();
  verb->add_option("--top-p", sampling.top_p,
                   "choose among the likeliest tokens of this probability together")
      ->capture_default_str();
  verb->add_option("--seed", sampling.seed, "another seed, another text")->capture_default_str();
  verb->footer("examples:\n"
               "  pentatron generate runs/quickstart/checkpoints --prompt \"It is a truth\"\n"
               "  pentatron generate hf:DIR --tokens 1,2,3 --temperature 0");
  verb->callback(
      [arguments, &chosen] { chosen = [arguments] { return run_generate(*arguments); }; });
}

} // namespace pentatron::cli

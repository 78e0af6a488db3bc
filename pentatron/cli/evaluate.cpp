#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/cli/commands.h"
#include "pentatron/trainer/evaluate_hf.h"
#include "pentatron/trainer/kernel_choice.h"
#include "pentatron/trainer/metrics/train_log.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::cli {

namespace {

struct EvaluateArguments {
  std::string model, batches, logits_out, grads_out;
  std::vector<std::string> config;
};

int evaluate(const EvaluateArguments& arguments) {
  const trainer::Config config = with_runtime_keys(arguments.config, {});
  trainer::set_compute_threads(config.train.num_threads);
  trainer::choose_kernels_quietly(config, trainer::choose_device(config.device), {});
  const double loss = trainer::evaluate_hf({.model = arguments.model,
                                            .batches = arguments.batches,
                                            .logits_out = arguments.logits_out,
                                            .grads_out = arguments.grads_out,
                                            .dtype = config.dtype,
                                            .device = config.device,
                                            .num_threads = config.train.num_threads});
  fmt::print("{{\"loss\":{}}}\n", trainer::exact_text(loss));
  return 0;
}

} // namespace

void add_evaluate(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<EvaluateArguments>();
  CLI::App* verb = program.add_subcommand(
      "evaluate", "loss, logits and gradients of a trained model on one batch");
  verb->add_option("--hf,--model", arguments->model,
                   "a Hugging Face folder, a folder given as checkpoint.save or one checkpoint in "
                   "it, or a .gguf file")
      ->required();
  verb->add_option("--batches", arguments->batches,
                   "Safetensors file with input_ids [batch, sequence] int64")
      ->required();
  verb->add_option("--logits-out", arguments->logits_out,
                   "write logits [batch, sequence, vocabulary] in fp32");
  verb->add_option("--grads-out", arguments->grads_out,
                   "write gradients under Hugging Face's names");
  verb->add_option("config", arguments->config,
                   "dtype=fp64|fp32|bf16, device=..., train.num_threads=...");
  verb->footer("Prints one JSON line: {\"loss\": mean next-token cross-entropy}.\n"
               "example: pentatron evaluate --hf DIR --batches batch.safetensors --grads-out "
               "grads.safetensors dtype=fp64");
  verb->callback([arguments, &chosen] { chosen = [arguments] { return evaluate(*arguments); }; });
}

} // namespace pentatron::cli

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
      "evaluate", "compute the loss, logits and gradients of a model on one batch");
  verb->add_option("--hf,--model", arguments->model,
                   "model: a Hugging Face folder, ORG/NAME of a downloaded Hugging Face model, a "
                   "run's checkpoint folder (checkpoint.save), one checkpoint in it, or a .gguf "
                   "file")
      ->required();
  verb->add_option("--batches", arguments->batches,
                   "Safetensors file with a tensor input_ids, int64 [batch, sequence]")
      ->required();
  verb->add_option("--logits-out", arguments->logits_out,
                   "write the logits to this Safetensors file, fp32 [batch, sequence, vocabulary]");
  verb->add_option("--grads-out", arguments->grads_out,
                   "write the gradients to this Safetensors file, with Hugging Face names");
  verb->add_option("config", arguments->config,
                   "key=value settings: dtype, device, kernels, train.num_threads");
  verb->footer("Prints one JSON line: {\"loss\": mean next-token cross-entropy}.\n"
               "example: pentatron evaluate --hf DIR --batches batch.safetensors --grads-out "
               "grads.safetensors dtype=fp64");
  verb->callback([arguments, &chosen] { chosen = [arguments] { return evaluate(*arguments); }; });
}

} // namespace pentatron::cli

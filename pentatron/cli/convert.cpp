#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/gguf.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/base/progress.h"
#include "pentatron/checkpoint/convert.h"
#include "pentatron/cli/commands.h"
#include "pentatron/cli/loaded_model.h"
#include "pentatron/data/tokenizer/gguf_metadata.h"
#include "pentatron/data/tokenizer/gguf_tokenizer.h"
#include "pentatron/trainer/model_tokenizer.h"

namespace pentatron::cli {

namespace {

struct ConvertArguments {
  std::string source, target, format;
  checkpoint::ConvertOptions options;
};

/// The configuration that a checkpoint of these weights begins with.
std::string config_for(const checkpoint::ModelSource& source, const std::string& dtype) {
  const checkpoint::ModelFacts& facts = source.facts();
  trainer::Config config;
  if (!facts.saved_config.empty()) {
    config::Violations ignored; // of other rooms, by another version of the program
    config::apply_yaml(config, facts.saved_config, "", ignored);
    config.checkpoint = {};
  } else {
    config.train.seq_length = facts.context;
    if (facts.tokenizer.kind == checkpoint::TokenizerPlace::Kind::kNone) {
      config.tokenizer.type = data::TokenizerType::kNull; // numbers are all that is known
      config.tokenizer.vocab_size = facts.config.vocab_size;
    }
  }
  config.model = facts.config;
  config.dtype =
      precision_of(dtype.empty() ? source.dtype() : checkpoint::weight_dtype_from_name(dtype));
  return config::to_yaml(config);
}

using Place = checkpoint::TokenizerPlace;

/// The tokenizer's files, or file, of the model; empty if there is none that is a file.
std::filesystem::path tokenizer_path(const checkpoint::ModelFacts& facts) {
  if (facts.tokenizer.kind != Place::Kind::kConfig) return facts.tokenizer.path;
  trainer::Config saved;
  config::Violations ignored;
  config::apply_yaml(saved, facts.saved_config, "", ignored);
  return saved.tokenizer.path;
}

/// What a GGUF file says of the tokenizer; without one the file serves programs that bring token
/// numbers.
GgufMetadata metadata_of_tokenizer(const checkpoint::ModelFacts& facts) {
  const std::filesystem::path path = tokenizer_path(facts);
  std::string why = "the model has no tokenizer";
  try {
    if (!path.empty())
      return data::tokenizer::gguf_tokenizer_metadata(path, facts.config.vocab_size);
  } catch (const DataError& error) {
    why = error.what();
  }
  log::warning("the GGUF file is written without a tokenizer: {}", why);
  return {};
}

/// The tokenizer inside a GGUF file as the files of a Hugging Face folder.
std::map<std::string, std::string> files_of_gguf(const std::filesystem::path& path) {
  std::map<std::string, std::string> files;
  const GgufFile file(path);
  const GgufKeys& keys = file.metadata();
  try {
    files["tokenizer.json"] = dump_json(data::tokenizer::gguf_as_tokenizer_json(keys), 2) + "\n";
  } catch (const DataError& error) {
    log::warning("the tokenizer in {} is not converted: {}", path.string(), error.what());
    return {};
  }
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"})
    if (const std::string token = data::tokenizer::gguf_named_token(keys, name); !token.empty())
      config[name] = token;
  if (const auto text = data::tokenizer::gguf_chat_template(keys)) config["chat_template"] = *text;
  files["tokenizer_config.json"] = dump_json(config, 2) + "\n";
  return files;
}

checkpoint::ModelFormat format_from_name(const std::string& name) {
  for (const auto format : {checkpoint::ModelFormat::kPentatron,
                            checkpoint::ModelFormat::kHuggingFace, checkpoint::ModelFormat::kGguf})
    if (name == checkpoint::name_of(format)) return format;
  raise<ConfigError>("--format {} is not a known format\n  try: pentatron, hf or gguf", name);
}

int run_convert(ConvertArguments& a) {
  checkpoint::ConvertOptions& options = a.options;
  options.format = format_from_name(a.format);
  const auto source = checkpoint::open_model(a.source);
  if (options.format == checkpoint::ModelFormat::kPentatron)
    options.config_yaml = config_for(*source, options.dtype);
  if (options.format == checkpoint::ModelFormat::kGguf) {
    options.tokenizer = metadata_of_tokenizer(source->facts());
  } else if (source->facts().tokenizer.kind == Place::Kind::kGguf) {
    options.files = files_of_gguf(source->facts().path);
  } else if (options.format == checkpoint::ModelFormat::kHuggingFace) {
    options.files = trainer::made_tokenizer_files(source->facts());
  }
  Progress progress("converting", 0, {.unit = Progress::Unit::kBytes});
  options.progress = [&](uint64_t done, uint64_t total) {
    progress.set_total(static_cast<int64_t>(total));
    progress.update(static_cast<int64_t>(done));
  };
  const checkpoint::ConvertReport report = checkpoint::convert_model(*source, a.target, options);
  progress.clear();
  fmt::print("{}: {} tensors, {} in {} {}, from {}\n", a.target, report.tensors,
             format_bytes(static_cast<double>(report.bytes)), report.files,
             report.files == 1 ? "file" : "files", checkpoint::name_of(source->format()));
  return 0;
}

} // namespace

void add_convert(CLI::App& program, Action& chosen) {
  auto a = std::make_shared<ConvertArguments>();
  CLI::App* verb = program.add_subcommand(
      "convert", "convert a model between the formats pentatron, hf (Hugging Face) and gguf");
  verb->add_option(
          "source", a->source,
          "model to convert: a Hugging Face folder, a run's checkpoint folder (checkpoint.save), "
          "one checkpoint in it, or a .gguf file; the format is detected")
      ->required();
  verb->add_option("target", a->target, "output folder, or output file for gguf")->required();
  verb->add_option("--format", a->format,
                   "output format; pentatron: a checkpoint to train from; hf: a Hugging Face "
                   "folder; gguf: a file for llama.cpp and compatible programs")
      ->required();
  verb->add_option(
      "--dtype", a->options.dtype,
      "data type of the output: fp32, bf16, fp16, or q8_0 (gguf only); default: unchanged");
  verb->add_option("--max-shard-size", a->options.max_shard_bytes,
                   "maximum size of an output file; larger models are split into several files; "
                   "default: 5GB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true));
  verb->add_flag("--force", a->options.force, "replace an existing output");
  verb->footer("examples:\n"
               "  pentatron convert runs/mine/checkpoints mine-hf --format hf\n"
               "  pentatron convert Qwen3-0.6B qwen --format pentatron\n"
               "  pentatron convert mine-hf mine.gguf --format gguf --dtype q8_0");
  verb->callback([a, &chosen] { chosen = [a] { return run_convert(*a); }; });
}

} // namespace pentatron::cli

#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/gguf.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/base/paths.h"
#include "pentatron/base/progress.h"
#include "pentatron/checkpoint/convert.h"
#include "pentatron/checkpoint/read_model.h"
#include "pentatron/checkpoint/upcycle.h"
#include "pentatron/checkpoint/without_mtp.h"
#include "pentatron/cli/commands.h"
#include "pentatron/cli/loaded_model.h"
#include "pentatron/cli/sample_text.h"
#include "pentatron/cli/text_documents.h"
#include "pentatron/data/tokenizer/gguf_metadata.h"
#include "pentatron/data/tokenizer/gguf_tokenizer.h"
#include "pentatron/models/model_config.h"
#include "pentatron/trainer/kernel_choice.h"
#include "pentatron/trainer/metrics/train_log.h"
#include "pentatron/trainer/model_tokenizer.h"
#include "pentatron/trainer/runtime.h"
#include "pentatron/trainer/score_text.h"

namespace pentatron::cli {

namespace {

struct ConvertArguments {
  std::string source, adapter, target, format, quantize, text_key = "text", max_shard_size;
  std::vector<std::string> text_files;
  checkpoint::ConvertOptions options;
  checkpoint::UpcycleOptions upcycle; ///< without experts: not
  bool without_mtp = false;
  bool average = false; ///< of the running mean of the weights
};

/// The model that was asked for: with experts, without layers.
class Changed {
 public:
  Changed(checkpoint::ModelSource& model, const ConvertArguments& a) : model_(&model) {
    const auto change = [&](std::unique_ptr<checkpoint::ModelSource> made) {
      made_.push_back(std::move(made));
      model_ = made_.back().get();
    };
    if (a.without_mtp) {
      if (model.config().mtp_num_layers == 0)
        raise<ConfigError>("--without-mtp: the model has no layers of multi-token prediction\n  "
                           "try: remove --without-mtp");
      change(checkpoint::without_mtp(*model_));
    }
    if (a.upcycle.experts > 0) change(checkpoint::upcycled(*model_, a.upcycle));
  }
  checkpoint::ModelSource& operator*() const { return *model_; }

 private:
  checkpoint::ModelSource* model_;
  std::vector<std::unique_ptr<checkpoint::ModelSource>> made_;
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
/// What a GGUF file says of the tokenizer; without one the file serves programs that bring token
/// numbers, and `why` says why.
GgufMetadata metadata_of_tokenizer(const checkpoint::ModelFacts& facts, const std::string& target,
                                   std::string& why) {
  const std::filesystem::path path = trainer::tokenizer_path(facts);
  why = "the model has no tokenizer";
  try {
    if (!path.empty())
      return data::tokenizer::gguf_tokenizer_metadata(path, facts.config.vocab_size);
    if (const auto made = trainer::made_tokenizer_files(facts); made.contains("tokenizer.json")) {
      const AtomicDirectory aside(target + ".tokenizer"); // removed at the end
      for (const auto& [name, text] : made) write_file_atomically(aside.path() / name, text);
      return data::tokenizer::gguf_tokenizer_metadata(aside.path(), facts.config.vocab_size);
    }
  } catch (const DataError& error) {
    why = error.what();
  }
  return {};
}

/// The tokenizer inside a GGUF file as the files of a Hugging Face folder.
std::map<std::string, std::string> files_of_gguf(const std::filesystem::path& path) {
  const GgufFile file(path);
  try {
    return data::tokenizer::gguf_tokenizer_files(file.metadata());
  } catch (const DataError& error) {
    log::warning("the tokenizer in {} is not converted: {}", path.string(), error.what());
    return {};
  }
}

checkpoint::ModelFormat format_from_name(const std::string& name) {
  for (const auto format : {checkpoint::ModelFormat::kPentatron,
                            checkpoint::ModelFormat::kHuggingFace, checkpoint::ModelFormat::kGguf})
    if (name == checkpoint::name_of(format)) return format;
  raise<ConfigError>("--format {} is not a known format\n  try: pentatron, hf or gguf", name);
}

/// --quantize is a GGUF file of that type, and so is a target with that ending.
void complete(ConvertArguments& a) {
  if (!a.quantize.empty()) {
    if (!a.options.dtype.empty())
      raise<ConfigError>(
          "--quantize {} and --dtype {} both name the type of the output\n  try: only "
          "--quantize {}",
          a.quantize, a.options.dtype, a.quantize);
    if (!a.format.empty() && a.format != "gguf")
      raise<ConfigError>("--quantize {} writes a GGUF file, not --format {}\n  try: --format gguf",
                         a.quantize, a.format);
    a.format = "gguf";
    a.options.dtype = a.quantize;
  }
  if (a.upcycle.experts > 0 && !a.quantize.empty())
    raise<ConfigError>("--experts {} creates a model for training, but --quantize {} creates a "
                       "model for inference\n  try: --format pentatron",
                       a.upcycle.experts, a.quantize);
  if (!a.text_files.empty() && a.quantize.empty())
    raise<ConfigError>("--text-file {} has no effect without --quantize\n  try: --quantize q8_0",
                       a.text_files[0]);
  if (a.format.empty() && a.target.ends_with(".gguf")) a.format = "gguf";
  if (a.format.empty())
    throw ConfigError("--format is not given\n  try: --format hf, --format gguf or --format "
                      "pentatron");
  a.options.format = format_from_name(a.format);
  if (a.max_shard_size.empty()) return;
  if (a.options.format == checkpoint::ModelFormat::kGguf)
    raise<ConfigError>("--max-shard-size {} has no effect on a GGUF model, which is one file\n  "
                       "try: remove --max-shard-size",
                       a.max_shard_size);
  a.options.max_shard_bytes = parse_bytes(a.max_shard_size).value();
}

/// What quantisation costs: the perplexity of a text before and after.
class QuantisationCost {
 public:
  /// Measures the model as it is.
  explicit QuantisationCost(const ConvertArguments& a)
      : files_(a.text_files), text_key_(a.text_key) {
    const OpenedModel opened{
        .where = a.source, .source = checkpoint::open_model(a.source), .config = {}};
    tokenizer_ = open_tokenizer_of(opened);
    if (tokenizer_ == nullptr) {
      log::warning("the perplexity is not measured, because {} has no tokenizer", a.source);
      return;
    }
    trainer::set_compute_threads(0);
    trainer::choose_kernels_quietly({}, trainer::choose_device(trainer::DeviceKind::kAuto), {});
    before_ = score(a.source, opened.source->facts().path);
  }

  /// Measures what was written, and prints both.
  void print(const std::string& target) const {
    if (tokenizer_ == nullptr) return;
    const double before = trainer::perplexity(before_.loss());
    const double after = trainer::perplexity(score(target, target).loss());
    fmt::print("perplexity {:.4f} before, {:.4f} after quantization ({:+.2f} %), on {} of {}\n",
               before, after, 100 * (after / before - 1), counted(before_.tokens, "token"),
               files_.empty() ? "the built-in text" : fmt::format("{}", fmt::join(files_, ", ")));
  }

 private:
  trainer::TextScore score(const std::string& where, const std::filesystem::path& opened) const {
    std::optional<trainer::TextScorer> scorer;
    checkpoint::read_model(where, opened, {}, [&](checkpoint::ModelSource& source) {
      const int64_t context = std::min<int64_t>(kContext, source.facts().context);
      scorer.emplace(source, *tokenizer_, trainer::TextScoring{.context = context});
    });
    const auto add = [&](std::string_view text, const std::function<void(double)>& done) {
      scorer->add(text, done);
    };
    if (files_.empty())
      add(kSampleText, {});
    else
      for_each_document(files_, "--text-file", text_key_, add);
    const trainer::TextScore score = scorer->finish();
    if (score.tokens == 0)
      throw DataError("the text has no token to predict\n  try: --text-file with a longer text");
    return score;
  }

  static constexpr int64_t kContext = 512; ///< tokens: enough to compare, and fast
  const std::vector<std::string>& files_;
  const std::string& text_key_;
  std::shared_ptr<const data::Tokenizer> tokenizer_;
  trainer::TextScore before_;
};

int run_convert(ConvertArguments& a) {
  complete(a);
  a.source = a.average ? checkpoint::averaged(a.source) : with_adapter(a.source, a.adapter);
  checkpoint::ConvertOptions& options = a.options;
  const auto source = checkpoint::open_model(a.source);
  require_output(a.target, "the target");
  if (options.format == checkpoint::ModelFormat::kPentatron)
    options.config_yaml = config_for(*Changed(*source, a), options.dtype);
  std::string no_tokenizer;
  if (options.format == checkpoint::ModelFormat::kGguf) {
    checkpoint::check_target(*source, a.target, options);
    options.tokenizer = metadata_of_tokenizer(source->facts(), a.target, no_tokenizer);
  } else if (source->facts().tokenizer.kind == Place::Kind::kGguf) {
    options.files = files_of_gguf(source->facts().path);
  } else if (options.format == checkpoint::ModelFormat::kHuggingFace) {
    options.files = trainer::made_tokenizer_files(source->facts());
  }
  std::optional<QuantisationCost> cost;
  if (!a.quantize.empty()) cost.emplace(a);
  Progress progress("converting", 0, {.unit = Progress::Unit::kBytes});
  options.progress = [&](uint64_t done, uint64_t total) {
    progress.set_total(static_cast<int64_t>(total));
    progress.update(static_cast<int64_t>(done));
  };
  checkpoint::ConvertReport report;
  checkpoint::read_model(a.source, source->facts().path, {}, [&](checkpoint::ModelSource& model) {
    report = checkpoint::convert_model(*Changed(model, a), a.target, options);
  });
  progress.clear();
  if (options.format == checkpoint::ModelFormat::kGguf && !a.without_mtp &&
      source->config().mtp_num_layers > 0)
    log::warning("the GGUF file does not have the layers of multi-token prediction, which only "
                 "training uses\n  try: --without-mtp to convert without this warning");
  if (options.format == checkpoint::ModelFormat::kGguf && options.tokenizer.empty())
    log::warning("the GGUF file is written without a tokenizer: {}", no_tokenizer);
  if (const std::vector<std::string>& unused = source->facts().unused; !unused.empty())
    log::warning("{} has weights that the model of its config.json does not use and that "
                 "are left out: {}",
                 a.source, fmt::join(unused, ", "));
  fmt::print("{}: {}, {} in {}, from {}\n", a.target,
             counted(static_cast<int64_t>(report.tensors), "tensor"),
             format_bytes(static_cast<double>(report.bytes)),
             counted(static_cast<int64_t>(report.files), "file"),
             checkpoint::name_of(source->format()));
  if (cost) cost->print(a.target);
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
  verb->add_option("--adapter", a->adapter, kAdapterHelp);
  verb->add_flag("--ema", a->average,
                 "convert the running mean of the weights instead of the weights, for a run with "
                 "optimizer.ema_decay")
      ->excludes("--adapter");
  verb->add_option("--format", a->format,
                   "output format; pentatron: a checkpoint to train from; hf: a Hugging Face "
                   "folder; gguf: a file for llama.cpp and compatible programs; default: gguf if "
                   "the target ends in .gguf")
      ->type_name("TEXT:{pentatron,hf,gguf}"); // completed, and checked with the paths
  verb->add_option("--dtype", a->options.dtype,
                   "data type of the output; q8_0 and q4_k only with gguf; default: unchanged")
      ->type_name("TEXT:{fp32,bf16,fp16,q8_0,q4_k}");
  verb->add_option(
          "--quantize", a->quantize,
          "write a GGUF file with weights of 8.5 bits (q8_0) or about 4.9 bits (q4_k), and "
          "print the perplexity of a text before and after")
      ->check(CLI::IsMember({"q8_0", "q4_k"}));
  verb->add_option("--text-file", a->text_files,
                   "with --quantize: file or folder of text to measure the perplexity on; repeat "
                   "the option for several; default: a built-in text in English")
      ->allow_extra_args(false);
  verb->add_option("--text-key", a->text_key,
                   "with --text-file: the field of the JSON objects, or the Parquet column, that "
                   "contains the text")
      ->needs("--text-file")
      ->capture_default_str();
  verb->add_option("--experts", a->upcycle.experts,
                   "turn a dense model into a mixture of experts (upcycling): each layer gets this "
                   "many copies of its MLP and a new router")
      ->check(CLI::Range(int64_t{2}, models::kMostExperts));
  verb->add_option("--experts-topk", a->upcycle.top_k,
                   "with --experts: number of experts that process each token")
      ->check(CLI::PositiveNumber)
      ->needs("--experts")
      ->capture_default_str();
  verb->add_flag("--without-mtp", a->without_mtp,
                 "leave out the layers of multi-token prediction, which only training uses");
  verb->add_option("--max-shard-size", a->max_shard_size,
                   "maximum size of an output file; larger models are split into several files; "
                   "default: 5GB")
      ->check(CLI::Validator(
          [](const std::string& text) {
            return parse_bytes(text).value_or(0) > 0 ? std::string() : text + " is not a size";
          },
          "SIZE"));
  verb->add_flag("--overwrite", a->options.overwrite, "replace an existing model");
  verb->footer("examples:\n"
               "  pentatron convert runs/mine/checkpoints mine-hf --format hf\n"
               "  pentatron convert Qwen3-0.6B qwen --format pentatron\n"
               "  pentatron convert Qwen3-0.6B merged --adapter my-adapter --format hf\n"
               "  pentatron convert mine-hf mine-moe --format pentatron --experts 8\n"
               "  pentatron convert mine-hf mine.gguf --quantize q8_0 --text-file held_out.txt");
  verb->callback([a, &chosen] { chosen = [a] { return run_convert(*a); }; });
}

} // namespace pentatron::cli

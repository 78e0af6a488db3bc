#include "pentatron/checkpoint/convert.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/paths.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/gguf/gguf_export.h"
#include "pentatron/checkpoint/hf/families/family.h"
#include "pentatron/checkpoint/hf/hf_export.h"
#include "pentatron/checkpoint/model_stream.h"
#include "pentatron/checkpoint/sharded/checkpoint_writer.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/checkpoint/sharded/shard_writer.h"
#include "pentatron/checkpoint/source_facts.h"
#include "pentatron/checkpoint/without_mtp.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

/// Bytes done of all, told to the caller.
class ConvertProgress {
 public:
  ConvertProgress(const ConvertOptions& options, uint64_t total)
      : options_(options), total_(total) {}
  void add(uint64_t bytes) {
    done_ += bytes;
    if (options_.progress) options_.progress(done_, total_);
  }

 private:
  const ConvertOptions& options_;
  uint64_t done_ = 0, total_ = 0;
};

std::optional<SafeDtype> asked_dtype(const ConvertOptions& options) {
  if (options.dtype.empty()) return std::nullopt;
  return weight_dtype_from_name(options.dtype);
}

/// Buffers are not rounded to a type of weights: transformers keeps them in fp32, too.
SafeDtype buffer_dtype(std::optional<SafeDtype> asked, SafeDtype stored) {
  const SafeDtype type = asked.value_or(stored);
  return type == SafeDtype::kF64 ? type : asked ? SafeDtype::kF32 : stored;
}

const fs::path* companion(const ModelSource& source, const std::string& name) {
  for (const fs::path& path : source.facts().companions)
    if (path.filename() == name) return &path;
  return nullptr;
}

std::string read_text(const fs::path& path) {
  return std::string(MappedFile(path).text());
}

/// The small files that go along, by name.
std::map<std::string, std::string> companion_texts(const ModelSource& source,
                                                   const ConvertOptions& options) {
  std::map<std::string, std::string> texts = options.files;
  for (const fs::path& path : source.facts().companions)
    texts.emplace(path.filename().string(), read_text(path));
  return texts;
}

/// The model as Hugging Face sees it: what came from there as it was, if it still describes the
/// model.
struct HfView {
  HfModel model;
  Json config;
  std::string text; ///< of config.json
};

HfExport made_config(const ModelFacts& facts) {
  try {
    return make_hf_config(facts.config, facts.family);
  } catch (const ConfigError& error) {
    bool helps = facts.config.mtp_num_layers > 0;
    try {
      if (helps) make_hf_config(facts.config.without_mtp(), facts.family);
    } catch (const ConfigError&) {
      helps = false;
    }
    raise<ConfigError>("{}\n  try: {}--format pentatron", parts_of(error.what()).sentence,
                       helps ? "--without-mtp, or " : "");
  }
}

/// The tensors decide how many layers of multi-token prediction there are; of files without them,
/// config.json keeps what it says.
void fit_depths(const ModelFacts& facts, HfView& view) {
  const Family& family = *find_family(view.model.family);
  const int64_t depths = facts.config.mtp_num_layers;
  if (family.depths_key == nullptr || (depths == 0 && !facts.mtp_left_out)) return;
  view.model.config.mtp_num_layers = depths;
  if (view.config.value(family.depths_key, Json()) == Json(depths)) return;
  view.config[family.depths_key] = depths;
  view.text = dump_json(view.config, 2) + "\n";
}

HfView view_as_hf(const ModelSource& source, std::optional<SafeDtype> dtype) {
  const ModelFacts& facts = source.facts();
  if (const fs::path* const file = companion(source, "config.json")) {
    HfView view;
    view.config = read_json(*file);
    view.text = read_text(*file);
    view.model = parse_hf_config(view.config, file->string());
    fit_depths(facts, view);
    if (find_family(view.model.family)->tensors_decide_tying)
      view.model.config.untie_embeddings_and_output_weights =
          facts.config.untie_embeddings_and_output_weights;
    if (same_model(view.model.config, facts.config)) {
      if (!dtype && facts.trained) dtype = source.dtype();
      // Weights that were quantised are written as numbers.
      if (view.config.erase("quantization_config") > 0)
        view.text = dump_json(view.config, 2) + "\n";
      if (!dtype) return view;
      bool named = false;
      for (const char* key : {"dtype", "torch_dtype"})
        if (view.config.contains(key)) view.config[key] = torch_name_of(*dtype), named = true;
      if (!named) view.config["torch_dtype"] = torch_name_of(*dtype);
      view.text = dump_json(view.config, 2) + "\n";
      return view;
    }
  }
  HfExport made = made_config(facts);
  add_hf_details(made.config, facts.generation, dtype.value_or(source.dtype()));
  HfView view;
  view.model.family = made.family;
  view.model.config = facts.config;
  view.text = dump_json(made.config, 2) + "\n";
  view.config = std::move(made.config);
  return view;
}

/// One tensor of the output under Hugging Face's name.
struct HfTensor {
  WeightMapEntry entry;
  std::string name; ///< in the files
  SafeDtype dtype = SafeDtype::kF32;
  uint64_t bytes = 0;
};

std::vector<HfTensor> hf_tensors(const ModelSource& source, const HfModel& model,
                                 std::optional<SafeDtype> dtype, HfNames names = HfNames::kFiles) {
  const Json& hf = source.facts().hf;
  const auto detail = [&](const char* what, const std::string& name) -> std::string {
    if (!hf.contains(what) || !hf[what].contains(name) || !hf[what][name].is_string()) return {};
    return hf[what][name].get<std::string>();
  };
  std::vector<HfTensor> tensors;
  for (WeightMapEntry& entry : weight_map(model, names)) {
    HfTensor tensor;
    tensor.name = detail("names", entry.hf);
    tensor.dtype = source.facts().tensors.at(entry.param).dtype;
    if (tensor.name.empty()) tensor.name = entry.hf;
    if (const std::string stored = detail("dtypes", entry.hf); !stored.empty())
      tensor.dtype = safe_dtype_from_name(stored);
    tensor.dtype = entry.buffer ? buffer_dtype(dtype, tensor.dtype) : dtype.value_or(tensor.dtype);
    tensor.bytes = static_cast<uint64_t>(numel(entry.shape)) * size_of(tensor.dtype);
    tensor.entry = std::move(entry);
    tensors.push_back(std::move(tensor));
  }
  if (names != HfNames::kFiles || !hf.value("copies", true)) return tensors;
  for (auto& [name, original] : hf_copies(model)) {
    const auto found = std::ranges::find(tensors, original,
                                         [](const HfTensor& tensor) { return tensor.entry.hf; });
    PT_DCHECK(found != tensors.end());
    HfTensor copy = *found;
    copy.name = std::move(name);
    tensors.push_back(std::move(copy));
  }
  return tensors;
}

uint64_t total_bytes(const std::vector<HfTensor>& tensors) {
  uint64_t total = 0;
  for (const HfTensor& tensor : tensors) total += tensor.bytes;
  return total;
}

void write_hf_shard(ModelSource& source, const fs::path& file,
                    const std::vector<const HfTensor*>& tensors, ConvertProgress& progress) {
  std::vector<SafeTensorSpec> specs;
  for (const HfTensor* tensor : tensors)
    specs.push_back({tensor->name, tensor->dtype, tensor->entry.hf_shape()});
  SafetensorsWriter writer(file, std::move(specs), {{"format", "pt"}});
  for (const HfTensor* tensor : tensors) {
    uint64_t at = 0;
    stream_entry(source, tensor->entry, tensor->dtype, [&](std::span<const std::byte> bytes) {
      writer.write(tensor->name, bytes, at);
      at += bytes.size();
      progress.add(bytes.size());
    });
  }
  writer.finish();
}

void write_generation_config(const ModelSource& source, const fs::path& folder) {
  const GenerationDefaults& known = source.facts().generation;
  if (known.eos.empty() && !known.bos) return;
  Json json = Json::object();
  if (known.bos) json["bos_token_id"] = *known.bos;
  if (known.pad) json["pad_token_id"] = *known.pad;
  if (!known.eos.empty())
    json["eos_token_id"] = known.eos.size() == 1 ? Json(known.eos[0]) : Json(known.eos);
  write_file_atomically(folder / "generation_config.json", dump_json(json, 2) + "\n");
}

ConvertReport write_checkpoint(ModelSource& source, const fs::path& dir,
                               const ConvertOptions& options) {
  const ModelFacts& facts = source.facts();
  const std::optional<SafeDtype> dtype = asked_dtype(options);
  std::vector<std::string> names;
  std::vector<uint64_t> bytes;
  ConvertReport report;
  const models::ParamSpecs buffers = models::buffer_specs(facts.config);
  const auto type_of = [&](const std::string& name) {
    const SafeDtype stored = facts.tensors.at(name).dtype;
    return buffers.contains(name) ? buffer_dtype(dtype, stored) : dtype.value_or(stored);
  };
  for (const auto& [name, info] : facts.tensors) {
    names.push_back(name);
    bytes.push_back(static_cast<uint64_t>(numel(info.shape)) * size_of(type_of(name)));
    report.bytes += bytes.back();
  }
  ConvertProgress progress(options, report.bytes);
  CheckpointWriter writer(dir, 0);
  const auto groups = group_by_size(bytes, options.max_shard_bytes);
  std::vector<std::string> descriptions;
  for (size_t i = 0; i < groups.size(); ++i) {
    std::vector<EntrySpec> entries;
    for (const size_t t : groups[i]) {
      const std::vector<int64_t>& shape = facts.tensors.at(names[t]).shape;
      entries.push_back({names[t], type_of(names[t]), shape, {whole_box(shape)}});
    }
    ShardFileWriter file(
        writer.path(),
        shard_name("model", static_cast<int64_t>(i), static_cast<int64_t>(groups.size())),
        std::move(entries));
    for (const size_t t : groups[i])
      stream_param(source, names[t], type_of(names[t]), [&](std::span<const std::byte> part) {
        file.write(names[t], part);
        progress.add(part.size());
      });
    descriptions.push_back(file.finish());
  }
  CheckpointInfo info{.state = Json::object(), .config_yaml = options.config_yaml};
  if (!facts.generation.eos.empty()) info.state[kEod] = facts.generation.eos[0];
  if (!facts.family.empty()) {
    info.state["huggingface"] = facts.hf;
    info.state["huggingface"]["family"] = facts.family;
    if (dtype) info.state["huggingface"].erase("dtypes");
  }
  for (const auto& [name, text] : companion_texts(source, options)) {
    const bool of_model = name == "config.json" || name == "generation_config.json";
    info.attachments[fmt::format("{}/{}", of_model ? kCompanionFolder : kTokenizerFolder, name)] =
        text;
  }
  writer.commit(descriptions, info);
  report.tensors = names.size();
  report.files = groups.size();
  return report;
}

/// config.json with sizes that it leaves to its family.
Json with_sizes(const HfView& view) {
  const models::ModelConfig& c = view.model.config;
  Json json = view.config;
  if (!json.contains("num_hidden_layers")) return json; // GPT-2
  const auto add = [&](const char* key, int64_t value) {
    if (!json.contains(key)) json[key] = value;
  };
  add("num_key_value_heads", c.query_groups());
  add("max_position_embeddings", c.max_position_embeddings);
  if (c.head_size() != c.hidden_size / c.num_attention_heads) add("head_dim", c.head_size());
  return json;
}

ConvertReport write_as_gguf(ModelSource& source, const fs::path& target,
                            const ConvertOptions& options) {
  const HfView view = view_as_hf(source, std::nullopt);
  const SafeDtype stored = source.dtype();
  const std::string type = !options.dtype.empty()       ? options.dtype
                           : stored == SafeDtype::kBF16 ? "bf16"
                           : stored == SafeDtype::kF16  ? "fp16"
                                                        : "fp32";
  GgufExport gguf{.type = gguf_type_from_name(
                      type.starts_with("fp") ? fmt::format("f{}", type.substr(2)) : type),
                  .name = target.stem().string(),
                  .tokenizer = options.tokenizer};
  const std::vector<HfTensor> tensors =
      hf_tensors(source, view.model, std::nullopt, HfNames::kStacks);
  ConvertProgress progress(options, total_bytes(tensors));
  std::vector<GgufSource> sources;
  for (const HfTensor& tensor : tensors) {
    sources.push_back(
        {.name = tensor.entry.hf,
         .shape = tensor.entry.hf_shape(),
         .dtype = tensor.dtype,
         .read = [&](std::span<std::byte> target_bytes) {
           size_t at = 0;
           stream_entry(source, tensor.entry, tensor.dtype, [&](std::span<const std::byte> bytes) {
             std::ranges::copy(bytes, target_bytes.begin() + static_cast<int64_t>(at));
             at += bytes.size();
           });
           progress.add(target_bytes.size());
         }});
  }
  try {
    write_gguf(target, with_sizes(view), sources, gguf);
  } catch (const ConfigError& error) {
    const bool is_hf = source.format() == ModelFormat::kHuggingFace; // that is what it has been
    if (is_hf || !parts_of(error.what()).remedy.empty()) throw;
    const bool quantised = options.dtype == "q8_0" || options.dtype == "q4_k";
    raise<ConfigError>("{}\n  try: --format hf{}", error.what(),
                       quantised ? " with another type than " + options.dtype : "");
  }
  return {.bytes = fs::file_size(target), .tensors = tensors.size(), .files = 1};
}

bool is_tokenizer(std::string_view name) {
  return name == "tokenizer.json" || name == "vocab.json" || name == "vocab.txt" ||
         name.ends_with(".model") || name.ends_with(".tiktoken");
}

/// The files of weights that the index of a Hugging Face folder names.
std::set<std::string> indexed_files(const fs::path& model) {
  std::set<std::string> names;
  try {
    const Json index = read_json(model / "model.safetensors.index.json");
    for (const auto& [tensor, file] : index.at("weight_map").items()) names.insert(file);
  } catch (const std::exception&) { // there is none, or it is no index
  }
  return names;
}

/// An entry of the folder that is no file of a model, as exports write them; empty: there is none.
std::string foreign_file(const fs::path& model) {
  const std::set<std::string> indexed = indexed_files(model);
  static const std::set<std::string, std::less<>> kNames = {"latest", "lock", "manifest.json"};
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(model, error)) {
    const std::string name = entry.path().filename().string();
    const bool step = entry.is_directory(error) && name.starts_with("step_");
    if (!step && !kNames.contains(name) && !is_exported_name(name) && !indexed.contains(name) &&
        !(is_tokenizer(name) && entry.is_regular_file(error)))
      return name;
  }
  return {};
}

/// Throws if a tokenizer is in `target`, which a model without one would replace.
void keep_tokenizer(const ModelSource& source, const fs::path& target,
                    const ConvertOptions& options) {
  for (const auto& [name, text] : companion_texts(source, options))
    if (is_tokenizer(name)) return;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(target, error))
    if (const std::string name = entry.path().filename(); is_tokenizer(name))
      raise<ConfigError>("{} has a tokenizer ({}), which would be removed: {} has none\n  try: "
                         "another target",
                         target.string(), name, source.facts().path.string());
}

} // namespace

void check_target(const ModelSource& source, const fs::path& target,
                  const ConvertOptions& options) {
  std::error_code error;
  const fs::path& from = source.facts().path;
  if (options.format != ModelFormat::kGguf && contains_path(from, target) &&
      !contains_path(target, from) && fs::is_directory(from, error))
    raise<ConfigError>("{} is in the source, {}\n  try: another target", target.string(),
                       from.string());
  const fs::path parent = fs::absolute(target).parent_path();
  if (iteration_of(target.filename().string()) &&
      (fs::exists(parent / kLatestName, error) || fs::exists(parent / "run.lock", error)))
    raise<ConfigError>(
        "{} has the name of a checkpoint of the training run in {}\n  try: another target",
        target.string(), parent.string());
  if (!fs::exists(fs::symlink_status(target, error))) return;
  if (fs::exists(target / "run.lock", error))
    raise<ConfigError>("{} is the folder of a training run, and --overwrite replaces only models\n"
                       "  try: another target",
                       target.string());
  if (contains_path(target, from))
    raise<ConfigError>("{} contains the source, {}\n  try: another target", target.string(),
                       from.string());
  try {
    const bool empty = fs::is_directory(target, error) && fs::is_empty(target, error);
    if (!empty &&
        (recognise_model(target) == ModelFormat::kGguf) == fs::is_directory(target, error))
      raise<DataError>("a folder, not a file");
  } catch (const DataError&) {
    raise<ConfigError>("{} exists and is not a model, and --overwrite replaces only models\n  try: "
                       "another target",
                       target.string());
  }
  if (!options.overwrite)
    raise<ConfigError>("{} exists\n  try: another target, or --overwrite to replace it",
                       target.string());
  if (const std::string other = fs::is_directory(target, error) ? foreign_file(target) : "";
      !other.empty())
    raise<ConfigError>("{} contains {}, which is no file of a model, and --overwrite replaces only "
                       "models\n  try: another target",
                       target.string(), other);
}

bool is_exported_name(std::string_view name) {
  constexpr std::string_view kBegin = "model", kEnd = ".safetensors";
  if (name == "config.json" || name == "model.safetensors.index.json" ||
      std::ranges::find(kCompanionFiles, name) != std::end(kCompanionFiles))
    return true;
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return false;
  name = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
  return name.empty() || // or "-00001-of-00003"
         (name.size() == 15 && name.starts_with('-') && name.substr(6, 4) == "-of-");
}

SafeDtype weight_dtype_from_name(const std::string& name) {
  if (name == "fp64") return SafeDtype::kF64;
  if (name == "fp32") return SafeDtype::kF32;
  if (name == "bf16") return SafeDtype::kBF16;
  if (name == "fp16") return SafeDtype::kF16;
  raise<ConfigError>(
      "--dtype {} is not supported by this format\n  try: fp32, bf16 or fp16{}", name,
      name == "q8_0" || name == "q4_k" ? fmt::format("; {} only with --format gguf", name) : "");
}

ConvertReport write_hf_folder(ModelSource& source, const fs::path& folder,
                              const ConvertOptions& options) {
  const std::optional<SafeDtype> dtype = asked_dtype(options);
  const HfView view = view_as_hf(source, dtype);
  const std::vector<HfTensor> tensors = hf_tensors(source, view.model, dtype);
  std::vector<uint64_t> bytes;
  for (const HfTensor& tensor : tensors) bytes.push_back(tensor.bytes);
  const auto groups = group_by_size(bytes, options.max_shard_bytes);
  ConvertProgress progress(options, total_bytes(tensors));
  Json index = {{"metadata", {{"total_size", total_bytes(tensors)}}},
                {"weight_map", Json::object()}};
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string name =
        groups.size() == 1 ? "model.safetensors"
                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, groups.size());
    std::vector<const HfTensor*> members;
    for (const size_t t : groups[i]) {
      members.push_back(&tensors[t]);
      index["weight_map"][tensors[t].name] = name;
    }
    write_hf_shard(source, folder / name, members, progress);
  }
  if (groups.size() > 1)
    write_file_atomically(folder / "model.safetensors.index.json", dump_json(index, 2) + "\n");
  write_file_atomically(folder / "config.json", view.text);
  if (companion(source, "generation_config.json") == nullptr)
    write_generation_config(source, folder);
  for (const auto& [name, text] : companion_texts(source, options))
    if (name != "config.json") write_file_atomically(folder / name, text);
  return {.bytes = total_bytes(tensors), .tensors = tensors.size(), .files = groups.size()};
}

ConvertReport convert_model(ModelSource& source, const fs::path& place,
                            const ConvertOptions& options) {
  const fs::path given = place.has_filename() ? place : place.parent_path(); // "DIR/"
  check_target(source, given, options);
  const fs::path target = behind_links(given);
  if (target != given) check_target(source, target, options);
  if (options.max_shard_bytes == 0)
    raise<ConfigError>("--max-shard-size is 0, which is too small for any tensor");
  std::error_code error;
  const fs::path parent = fs::absolute(target).parent_path();
  fs::create_directories(parent, error);
  if (error) raise<ConfigError>("cannot create {}: {}", parent.string(), error.message());
  if (options.format == ModelFormat::kGguf) // which has no place for what training alone needs
    return write_as_gguf(*without_mtp(source), target, options);
  if (options.format == ModelFormat::kHuggingFace) keep_tokenizer(source, target, options);
  AtomicDirectory aside(target);
  const ConvertReport report = options.format == ModelFormat::kPentatron
                                   ? write_checkpoint(source, aside.path(), options)
                                   : write_hf_folder(source, aside.path(), options);
  aside.commit(options.overwrite ? Existing::kReplace : Existing::kRefuse);
  return report;
}

} // namespace pentatron::checkpoint

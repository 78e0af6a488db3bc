#include "pentatron/checkpoint/adapters/adapter_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/json.h"
#include "pentatron/base/naming.h"
#include "pentatron/base/own_files.h"
#include "pentatron/base/sha256.h"
#include "pentatron/checkpoint/sharded/attachments.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/checkpoint/sharded/reader.h"
#include "pentatron/checkpoint/source_facts.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/config/config.h"
#include "pentatron/models/model.h"
#include "pentatron/models/parts.h"
#include "pentatron/models/word_table.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

/// What is wanted of a run's configuration.
struct SavedAdapterRun {
  models::ModelConfig model;
  AdapterSettings peft;
  static constexpr auto fields() {
    return std::tuple{config::field("model", &SavedAdapterRun::model, "the model"),
                      config::field("peft", &SavedAdapterRun::peft, "its adapters")};
  }
};

/// model_type of the config.json that a checkpoint keeps; empty: none.
std::string family_in(CheckpointReader& reader) {
  const std::string name = std::string(kCompanionFolder) + "/config.json";
  if (!reader.attachments().contains(name)) return {};
  return json_get_or<std::string>(parse_json(reader.read_attachment(name), name), "model_type", "",
                                  name);
}

/// The whole tensor, of its master copy where the values were rounded from one.
at::Tensor whole_tensor(CheckpointReader& reader, const std::string& name) {
  const std::string master = name + "/master";
  const std::string& from = reader.contains(master) ? master : name;
  const TensorInfo info = reader.info(from);
  const at::Tensor tensor = at::empty(info.shape, at::TensorOptions(scalar_type(info.dtype)));
  reader.read(from, Box{std::vector<int64_t>(info.shape.size(), 0), info.shape},
              {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
  return tensor;
}

SavedAdapterRun run_in(const CheckpointReader& reader) {
  SavedAdapterRun saved;
  config::Violations ignored; // of the other sections
  config::apply_yaml(saved, reader.manifest().config_yaml, "", ignored);
  return saved;
}

Adapter adapter_in(CheckpointReader& reader, const SavedAdapterRun& saved,
                   const std::function<void()>& progress = {}) {
  config::Violations violations;
  Adapter adapter = adapter_parts(saved.peft, saved.model, family_in(reader), violations);
  violations.throw_if_any();
  adapter.origin.saved_config = reader.manifest().config_yaml;
  const auto read = [&](const std::string& name) {
    adapter.tensors[name] = whole_tensor(reader, name);
    if (progress) progress();
  };
  for (const WholeParam& param : adapter.whole) read(param.name);
  for (const AdaptedModule& one : adapter.modules) {
    const auto add = [&](const char* what, const std::string& part) {
      const std::string name = nn::adapter_name(one.module.weight, what, part);
      if (!adapter.tensors.contains(name)) read(name);
    };
    add("lora_A", "");
    add("lora_B", one.module.part);
    if (saved.peft.type == AdapterType::kDora) add("lora_magnitude", one.module.part);
  }
  return adapter;
}

/// One checkpoint of adapters: `where` itself, or the newest of a run.
std::optional<fs::path> checkpoint_of(const fs::path& where) {
  if (is_file(where / kManifestName)) return where;
  if (!latest_name(where) && saved_in(where).empty()) return std::nullopt;
  const auto found = newest_checkpoint(where, VerifyScope::kWeightsStructure);
  return found ? std::optional(found->folder) : std::nullopt;
}

/// The adapters of a checkpoint; throws if it has the weights of a model.
AdapterBase base_of(CheckpointReader& reader) {
  if (!reader.attachments().contains(kAdapterBase))
    raise<CheckpointError>(
        "{} contains a whole model and no adapter\n  try: pass it as the model, without --adapter",
        reader.folder().string());
  return adapter_base_from_json(reader.read_attachment(kAdapterBase), reader.folder().string());
}

/// As PEFT names it; empty: another.
std::string task_of(const models::ModelConfig& config) {
  switch (models::model_spec(config).generates) {
  case models::Generates::kContinuation:
    return "CAUSAL_LM";
  case models::Generates::kAnswer:
    return "SEQ_2_SEQ_LM";
  default:
    return {};
  }
}

/// W + s B A of rows [row, row + rows) of a module's weight, in fp64.
at::Tensor summed_rows(ModelSource& base, const Adapter& adapter, const AdaptedModule& one,
                       int64_t expert, int64_t row, int64_t rows) {
  const int64_t columns = one.module.columns, of_part = row - one.module.first_row;
  const at::Tensor weight = at::empty({rows, columns}, at::kDouble);
  if (expert < 0)
    base.read(one.module.values, Box{{row, 0}, {rows, columns}}, weight);
  else
    base.read(one.module.values, Box{{expert, row, 0}, {1, rows, columns}}, weight.unsqueeze(0));
  const auto part = [&](const char* what, const std::string& name) {
    const at::Tensor all =
        adapter.tensors.at(nn::adapter_name(one.module.weight, what, name)).to(at::kDouble);
    return expert < 0 ? all : all.select(0, expert);
  };
  const at::Tensor a = part("lora_A", "").narrow(0, one.first, one.rank);
  const at::Tensor b = part("lora_B", one.module.part).narrow(0, of_part, rows);
  return weight.addmm_(b, a, 1, one.scale);
}

/// Calls do_rows(row, rows) for rows [begin, end), so many that fp64 copies of them stay small.
template <class F> void in_steps(int64_t columns, int64_t begin, int64_t end, const F& do_rows) {
  constexpr int64_t kElements = int64_t{4} << 20;
  const int64_t step = std::max<int64_t>(1, kElements / columns);
  for (int64_t row = begin; row < end; row += step) do_rows(row, std::min(step, end - row));
}

std::string magnitude_of(const AdaptedModule& one) {
  return nn::adapter_name(one.module.weight, "lora_magnitude", one.module.part);
}

class MergedSource final : public ModelSource {
 public:
  MergedSource(std::unique_ptr<ModelSource> base, Adapter adapter, fs::path path)
      : ModelSource(base->facts()), base_(std::move(base)), adapter_(std::move(adapter)) {
    facts_.path = std::move(path);
    for (const AdaptedModule& one : adapter_.modules) by_weight_[one.module.weight].push_back(&one);
    facts_.trained = true;
    facts_.adapter = adapter_.origin;
    untie();
  }

  void read(const std::string& param, const Box& box, const at::Tensor& target) override {
    if (const auto own = adapter_.tensors.find(param); own != adapter_.tensors.end()) {
      at::Tensor values = own->second; // of a module that was trained whole
      for (size_t d = 0; d < box.size.size(); ++d)
        values = values.narrow(static_cast<int64_t>(d), box.offset[d], box.size[d]);
      target.copy_(values);
      return;
    }
    base_->read(untied_ && param == models::kOutputWeight ? models::kWordTable : param, box,
                target);
    const auto found = by_weight_.find(param);
    if (found == by_weight_.end()) return;
    for (const AdaptedModule* const one : found->second) {
      if (one->module.experts == 0) {
        merge(*one, -1, box, target);
        continue;
      }
      Box of_expert{{box.offset.begin() + 1, box.offset.end()},
                    {box.size.begin() + 1, box.size.end()}};
      for (int64_t e = 0; e < box.size[0]; ++e)
        merge(*one, box.offset[0] + e, of_expert, target.select(0, e));
    }
  }

 private:
  /// The output layer and the embedding are no longer equal if one of them has an adapter.
  void untie() {
    const auto changes = [](const AdaptedModule& one) {
      return one.module.use == nn::AdaptedUse::kEmbedding ||
             one.module.use == nn::AdaptedUse::kOutput;
    };
    const auto table = facts_.tensors.find(models::kWordTable);
    untied_ = !facts_.config.untie_embeddings_and_output_weights &&
              std::ranges::any_of(adapter_.modules, changes) && table != facts_.tensors.end() &&
              models::has_output_layer(facts_.config);
    if (!untied_) return;
    facts_.config.untie_embeddings_and_output_weights = true;
    facts_.tensors.emplace(models::kOutputWeight, table->second);
  }

  /// A box of the matrix of an expert, or of the only one.
  void merge(const AdaptedModule& one, int64_t expert, const Box& box, const at::Tensor& target) {
    const int64_t begin = std::max(box.offset[0], one.module.first_row);
    const int64_t end =
        std::min(box.offset[0] + box.size[0], one.module.first_row + one.module.rows);
    in_steps(one.module.columns, begin, end, [&](int64_t row, int64_t rows) {
      target.narrow(0, row - box.offset[0], rows)
          .copy_(merged_rows(one, expert, row, rows).narrow(1, box.offset[1], box.size[1]));
    });
  }

  at::Tensor merged_rows(const AdaptedModule& one, int64_t expert, int64_t row, int64_t rows) {
    const at::Tensor weight = summed_rows(*base_, adapter_, one, expert, row, rows);
    if (adapter_.settings.type == AdapterType::kDora) {
      const at::Tensor m = adapter_.tensors.at(magnitude_of(one)).to(at::kDouble);
      const at::Tensor norms = weight.square().sum(1).sqrt_();
      norms.masked_fill_(norms == 0, 1);
      weight.mul_((m.narrow(0, row - one.module.first_row, rows) / norms).unsqueeze(1));
    }
    return weight;
  }

  std::unique_ptr<ModelSource> base_;
  Adapter adapter_;
  std::map<std::string, std::vector<const AdaptedModule*>> by_weight_;
  bool untied_ = false; ///< the base's output layer is its embedding
};

/// As PEFT does: the output layer has the embedding's matrices, whatever its own rank is, and the
/// scale of its own rank and alpha.
void tie_adapters(Adapter& adapter) {
  const auto of = [&](nn::AdaptedUse use) {
    return std::ranges::find_if(adapter.modules,
                                [&](const AdaptedModule& one) { return one.module.use == use; });
  };
  const auto words = of(nn::AdaptedUse::kEmbedding), output = of(nn::AdaptedUse::kOutput);
  if (words == adapter.modules.end() || output == adapter.modules.end()) return;
  output->rank = words->rank;
  const auto rank = static_cast<double>(output->rank);
  output->alpha = output->scale * (adapter.settings.use_rslora ? std::sqrt(rank) : rank);
}

} // namespace

namespace {

/// Without "hf:".
fs::path path_in(const std::string& model) {
  return after_hf_prefix(model).value_or(model);
}
bool is_there(const std::string& model) {
  std::error_code error;
  return fs::exists(path_in(model), error);
}

} // namespace

std::string place_of(const AdapterBase& base) {
  const bool moved = !base.path.empty() && !is_there(base.model);
  return moved && is_there(base.path) ? base.path : base.model;
}

AdapterBase adapter_base(const std::string& where, ModelSource& model) {
  AdapterBase base{.model = where, .digest = model_digest(model)};
  if (is_there(where)) {
    const fs::path path = path_in(where);
    base.path = where.substr(0, where.size() - path.string().size()) +
                fs::absolute(path).lexically_normal().string();
  }
  return base;
}

std::string to_json(const AdapterBase& base) {
  Json json = {{"model", base.model}, {"digest", base.digest}};
  if (!base.path.empty()) json["path"] = base.path;
  return dump_json(json, 1) + "\n";
}

AdapterBase adapter_base_from_json(std::string_view text, std::string_view where) {
  const Json json = parse_json(text, where);
  return {.model = json_get<std::string>(json, "model", where),
          .digest = json_get<std::string>(json, "digest", where),
          .path = json_get_or<std::string>(json, "path", "", where)};
}

std::string model_digest(ModelSource& model) {
  std::string all;
  for (const auto& [name, info] : model.facts().tensors) {
    constexpr int64_t kRows = 5; // spread over the tensor
    const int64_t rows = info.shape.empty() ? 1 : info.shape[0];
    std::string content = name + shape_text(info.shape);
    for (int64_t i = 0; i < std::min(kRows, rows); ++i) {
      Box box{std::vector<int64_t>(info.shape.size(), 0), info.shape};
      const bool whole = info.shape.size() < 2 || rows <= kRows;
      if (!whole) {
        box.offset[0] = (rows - 1) * i / (kRows - 1);
        box.size[0] = 1;
      }
      if (box.size.size() == 3) box.size[1] = std::min<int64_t>(box.size[1], kRows);
      const at::Tensor values = at::empty(box.size, at::kFloat);
      model.read(name, box, values);
      content.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
      if (whole) break;
    }
    all += sha256(content);
  }
  return sha256(all);
}

void check_base(ModelSource& model, const AdapterBase& base, const std::string& where) {
  if (const std::string digest = model_digest(model); digest != base.digest)
    raise<CheckpointError>("{} is not the model that the adapters in {} belong to (digest {} "
                           "instead of {})\n  try: the model that the run started from{}",
                           model.facts().path.string(), where, digest.substr(0, 12),
                           base.digest.substr(0, 12), base.model.empty() ? "" : ", " + base.model);
}

Adapter read_adapter(const fs::path& where, ModelSource& base) {
  std::error_code error;
  if (!fs::is_directory(where, error))
    raise<DataError>("{} is not a folder\n  try: the folder of an adapter", where.string());
  if (!fs::exists(where / kPeftConfig, error)) {
    if (const auto checkpoint = checkpoint_of(where)) {
      CheckpointReader reader(*checkpoint);
      check_base(base, base_of(reader), checkpoint->string());
      return adapter_in(reader, run_in(reader));
    }
  }
  const AdapterSettings settings = read_peft_settings(where);
  check_saved_modules(where, settings, base.config(), base.facts().family);
  config::Violations violations;
  Adapter adapter = adapter_parts(settings, base.config(), base.facts().family, violations, "");
  if (!violations.empty())
    raise<CheckpointError>(
        "{} is not an adapter for {}: {}\n  try: the model that it was trained for, or an adapter "
        "of these modules",
        where.string(), base.facts().path.string(), violations.list().front().cause);
  adapter.origin.folder = where;
  for (const AdaptedModule& one : adapter.modules)
    if (one.rank < 1 || !std::isfinite(one.scale))
      raise<ConfigError>("{}: the adapter of {} has rank {} and scale {}, which is not an adapter\n"
                         "  try: an adapter with r of at least 1",
                         where.string(), one.module.hf, one.rank, one.scale);
  if (adapter.settings.type == AdapterType::kDora)
    for (const AdaptedModule& one : adapter.modules)
      if (one.module.experts > 0 || one.module.use == nn::AdaptedUse::kEmbedding) {
        const char* const what = one.module.experts > 0 ? "experts" : "the embedding";
        raise<ConfigError>("{} is a DoRA adapter of {} ({}), which is not supported\n  try: a LoRA "
                           "adapter of {}",
                           where.string(), what, one.module.hf, what);
      }
  if (!base.config().untie_embeddings_and_output_weights && ties_adapters(where))
    tie_adapters(adapter);
  read_peft_tensors(where, adapter);
  check_copies(where, adapter, base);
  return adapter;
}

void check_copies(const fs::path& where, Adapter& adapter, ModelSource& base) {
  for (const BaseCopy& copy : adapter.copies)
    in_steps(copy.values.size(1), 0, copy.values.size(0), [&](int64_t row, int64_t rows) {
      const at::Tensor values = copy.values.narrow(0, row, rows);
      const at::Tensor own = at::empty(values.sizes(), at::kDouble);
      base.read(copy.param, Box{{row, 0}, values.sizes().vec()}, own);
      if (!at::equal(own.to(values.scalar_type()), values) &&
          !at::equal(own, values.to(at::kDouble)))
        refuse_copy(where, copy);
    });
  adapter.copies.clear();
}

void divide_by_row_norms(Adapter& adapter, ModelSource& base) {
  if (adapter.settings.type != AdapterType::kDora) return;
  for (const AdaptedModule& one : adapter.modules) {
    at::Tensor& magnitudes = adapter.tensors.at(magnitude_of(one));
    magnitudes = magnitudes.to(at::kDouble, false, true); // a copy
    const int64_t first = one.module.first_row;
    in_steps(one.module.columns, first, first + one.module.rows, [&](int64_t row, int64_t rows) {
      const at::Tensor norms =
          summed_rows(base, adapter, one, -1, row, rows).square_().sum(1).sqrt_();
      magnitudes.narrow(0, row - first, rows).div_(norms.masked_fill_(norms == 0, 1));
    });
  }
}

std::unique_ptr<ModelSource> open_adapted(const std::string& where, ModelPurpose purpose) {
  const size_t mark = where.find(kWithAdapter);
  if (mark != std::string::npos) {
    std::unique_ptr<ModelSource> base = open_model(where.substr(0, mark), purpose);
    const std::string from = where.substr(mark + kWithAdapter.size());
    Adapter adapter = naming(
        "--adapter ", from, [&] { return read_adapter(from, *base); }, "the folder of an adapter");
    return std::make_unique<MergedSource>(std::move(base), std::move(adapter), where);
  }
  CheckpointReader reader(where);
  const AdapterBase named = base_of(reader);
  if (named.model.empty())
    raise<CheckpointError>("{} contains only adapters, for initial weights that were not saved\n  "
                           "try: a run with checkpoint.load",
                           where);
  std::unique_ptr<ModelSource> base;
  try {
    base = open_model(place_of(named));
  } catch (const Error& error) {
    raise<CheckpointError>("{} contains only adapters, and their model cannot be read: {}\n  try: "
                           "--adapter {} with the model",
                           where, parts_of(error.what()).sentence, where);
  }
  check_base(*base, named, where);
  return std::make_unique<MergedSource>(std::move(base), adapter_in(reader, run_in(reader)), where);
}

bool holds_adapters(const fs::path& checkpoint) {
  return read_manifest(checkpoint).attachments.contains(kAdapterBase);
}

namespace {

/// What a user put beside the adapter that is about to be replaced.
void carry_over(const fs::path& from, const fs::path& to,
                const std::map<std::string, std::string>& written) {
  const auto is_own = [&](const std::string& name) {
    return name == kPeftConfig || name == kPeftTensors || written.contains(name);
  };
  for (const std::string& name : foreign_files(from, is_own)) {
    std::error_code error;
    const bool is_empty_folder = fs::is_directory(fs::symlink_status(from / name, error));
    fs::create_directories(is_empty_folder ? to / name : (to / name).parent_path(), error);
    if (!error && !is_empty_folder)
      fs::copy(from / name, to / name, fs::copy_options::copy_symlinks, error);
    if (error)
      raise<CheckpointError>("cannot copy {}: {}", (from / name).string(), error.message());
  }
}

} // namespace

void write_peft_of(const fs::path& checkpoint, const fs::path& target,
                   const std::map<std::string, std::string>& files,
                   const std::function<void()>& progress) {
  CheckpointReader reader(checkpoint);
  const AdapterBase base = base_of(reader);
  const SavedAdapterRun saved = run_in(reader);
  const Adapter adapter = adapter_in(reader, saved, progress);
  AtomicDirectory aside(target);
  const std::string model = base.model.starts_with("hf:") ? base.model.substr(3) : base.model;
  write_peft(aside.path(), adapter, linear_modules(saved.model, family_in(reader)), model,
             task_of(saved.model));
  for (const auto& [name, content] : files) write_file_atomically(aside.path() / name, content);
  carry_over(target, aside.path(), files);
  aside.commit(Existing::kReplace);
}

} // namespace pentatron::checkpoint

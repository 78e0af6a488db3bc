/// A Hugging Face architecture: its config.json in both directions, and the names of its tensors.
/// One file per architecture defines one Family; nothing else asks for the name of an architecture.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/checkpoint/hf/families/config_reader.h"
#include "pentatron/checkpoint/hf/weight_map.h"
#include "pentatron/models/model_config.h"

namespace pentatron::checkpoint {

/// Names of tensors, in the order of transformers' named_parameters().
class TensorNames {
 public:
  struct Entry {
    std::string hf, param, part;
    bool transposed = false;
    bool alternating = false; ///< rows of the parameter's parts alternate
    int64_t expert = -1;      ///< the tensor is of one expert; -1: of all
  };
  explicit TensorNames(HfNames kind = HfNames::kFiles) : kind_(kind) {}
  HfNames kind() const { return kind_; }

  /// The tensor `hf` is the part `part` (empty: all) of parameter `param`.
  void add(std::string hf, std::string param, std::string part = "", bool transposed = false) {
    entries_.push_back({std::move(hf), std::move(param), std::move(part), transposed});
  }
  /// A part of one expert.
  void add_expert(std::string hf, std::string param, std::string part, int64_t expert) {
    entries_.push_back({std::move(hf), std::move(param), std::move(part), false, false, expert});
  }
  /// The parameter, whose parts alternate row by row.
  void add_alternating(std::string hf, std::string param, bool transposed = false) {
    entries_.push_back({std::move(hf), std::move(param), "", transposed, true});
  }
  /// `hf`.weight is that of `own`.weight; with `bias` also the bias.
  void add_module(const std::string& hf, const std::string& own, bool bias = false,
                  const std::string& part = "") {
    add(hf + ".weight", own + ".weight", part);
    if (bias) add(hf + ".bias", own + ".bias", part);
  }
  std::vector<Entry> take() { return std::move(entries_); }

 private:
  HfNames kind_;
  std::vector<Entry> entries_;
};

/// Whether the files have a tensor of that name.
using TensorLookup = std::function<bool(std::string_view)>;

struct Family {
  std::string_view model_type; ///< as config.json has it
  models::ModelType type = models::ModelType::kGpt;
  std::string (*architecture)(const models::ModelConfig& c); ///< class of transformers
  /// Takes over or refuses what changes the model's numbers, and ignores nothing of it. Throws
  /// DataError for a value of the wrong type, ConfigError for a feature that is not supported.
  models::ModelConfig (*read)(const ConfigReader& in);
  /// Writes config.json except model_type and architectures. Settings that config.json cannot
  /// express are left out; make_hf_config() detects them by reading the result.
  Json (*write)(const models::ModelConfig& c);
  void (*names)(const models::ModelConfig& c, TensorNames& out);
  /// How names of tensors begin that files of a model without a head may shorten by this much;
  /// empty: no file does.
  std::string_view base_prefix = "model.";
  /// How older files end names: {as now, as then}.
  std::vector<std::pair<std::string_view, std::string_view>> older_endings = {};
  /// Other names of keys of config.json, as in transformers' attribute_map: {other, own}.
  std::vector<std::pair<const char*, const char*>> aliases = {};
  /// What a config.json without pad_token_id means, -1 for no padding; none: transformers gives the
  /// row of the padding gradients like any other.
  std::optional<int64_t> padding_token = {};
  /// Why transformers loads no model of this kind; empty if it does. May be null.
  std::string (*obstacle)(const models::ModelConfig& c) = nullptr;
  /// Settles what config.json does not say but the tensors do. May be null.
  void (*fit)(const TensorLookup& has, models::ModelConfig& c) = nullptr;
  /// Tensors of files that are not parameters of the model: tables, heads of another task. May be
  /// null.
  bool (*is_extra)(std::string_view name, const models::ModelConfig& c) = nullptr;
  /// tie_word_embeddings says nothing of the output layer: weights that are equal are tied.
  bool tensors_decide_tying = false;
  /// The key of config.json with the number of layers of multi-token prediction, which the tensors
  /// decide whatever it says. Null: the family has none.
  const char* depths_key = nullptr;
  bool reads_quantised = false; ///< looks at quantization_config itself
  /// Copies of tensors that files have for such layers: their names and those of the originals. May
  /// be null.
  std::vector<std::pair<std::string, std::string>> (*copies)(const models::ModelConfig& c) =
      nullptr;
  /// Of a second copy of a tensor, the name of the first; empty for other tensors. May be null.
  std::string (*original_of)(std::string_view name, const models::ModelConfig& c) = nullptr;
};

/// The names that files of the family may have for a tensor, its own first.
std::vector<std::string> spellings(const Family& family, const std::string& name);

/// In the order in which an export tries them.
std::span<const Family> families();
/// Null: it is not supported.
const Family* find_family(std::string_view model_type);
/// "llama, mistral and gpt2".
std::string family_list();

} // namespace pentatron::checkpoint

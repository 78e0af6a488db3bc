/// A trained adapter, from PEFT's files or from a run's checkpoint, and models with one merged into
/// their weights.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pentatron/checkpoint/adapters/peft_files.h"
#include "pentatron/checkpoint/model_source.h"

namespace pentatron::checkpoint {

/// The model that adapters belong to, as a run's checkpoint names it.
struct AdapterBase {
  std::string model;     ///< as open_model() takes it; empty: initial values of the run's seed
  std::string digest;    ///< model_digest() of it
  std::string path = {}; ///< the same with an absolute path, of a model on disk
};
/// Where to look for the model: as it was named, or else at its path.
std::string place_of(const AdapterBase& base);
/// The base of a run that starts from the model `where`.
AdapterBase adapter_base(const std::string& where, ModelSource& model);
/// Its name in a checkpoint, which has it if it holds adapters alone.
inline constexpr const char* kAdapterBase = "adapter_base.json";
std::string to_json(const AdapterBase& base);
AdapterBase adapter_base_from_json(std::string_view text, std::string_view where);

/// SHA-256 over the names, shapes and some rows of all tensors: equal for the same weights in any
/// files and in any type that represents them exactly.
std::string model_digest(ModelSource& model);
/// Throws CheckpointError if the model is not the one that the adapters of `where` belong to.
void check_base(ModelSource& model, const AdapterBase& base, const std::string& where);

/// Reads the adapter in a PEFT folder, a run's checkpoint folder, or one checkpoint. Throws the
/// errors of read_peft_settings() and read_peft_tensors(); CheckpointError if a checkpoint belongs
/// to another base, ConfigError for DoRA of experts and embeddings.
Adapter read_adapter(const std::filesystem::path& where, ModelSource& base);

/// Throws CheckpointError if a copy of a weight that the PEFT folder has beside the adapter is not
/// that of the model, and forgets the copies. Equal is what one type rounds to the other.
void check_copies(const std::filesystem::path& where, Adapter& adapter, ModelSource& base);

/// Prepares an adapter for rows of a pass that take it one by one (nn::VariantRows): DoRA's
/// magnitudes m become m / ||W + s B A||, in fp64. Reads the adapted weights of `base`.
void divide_by_row_norms(Adapter& adapter, ModelSource& base);

/// "MODEL with adapter DIR", which open_model() takes as the model with the adapter merged into it:
/// W + s B A in place of W (DoRA: its rows scaled), computed in fp64 while it is read, and what was
/// trained whole in place of the model's.
inline constexpr std::string_view kWithAdapter = " with adapter ";
/// Opens such a model, or a checkpoint that contains only adapters, whose base is the model from
/// which its run started.
std::unique_ptr<ModelSource> open_adapted(const std::string& where,
                                          ModelPurpose purpose = ModelPurpose::kAll);
/// Whether a checkpoint contains only adapters.
bool holds_adapters(const std::filesystem::path& checkpoint);

/// Writes the adapters of a checkpoint as the PEFT folder `target`, which appears only when it is
/// complete, with further files by name. Calls `progress` after each tensor that it has read.
void write_peft_of(const std::filesystem::path& checkpoint, const std::filesystem::path& target,
                   const std::map<std::string, std::string>& files = {},
                   const std::function<void()>& progress = {});

} // namespace pentatron::checkpoint

#include "pentatron/checkpoint/train_state.h"

#include <ATen/ATen.h>

#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/state_folder.h"
#include "pentatron/checkpoint/tensor_io.h"

namespace pentatron::checkpoint {

namespace {

namespace fs = std::filesystem;

void copy_into(const at::Tensor& target, const SafeTensor& source, const std::string& name) {
  if (source.shape != target.sizes().vec() || scalar_type(source.dtype) != target.scalar_type()) {
    raise<CheckpointError>("{} is {} [{}] in the checkpoint and {} [{}] in the run", name,
                           name_of(source.dtype), fmt::join(source.shape, ", "),
                           c10::toString(target.scalar_type()), fmt::join(target.sizes(), ", "));
  }
  at::Tensor destination = target;
  destination.copy_(to_tensor(source, /*borrow=*/true));
}

/// Copies every tensor of the file to its target, and insists on a one-to-one match.
void fill(const fs::path& file, const std::map<std::string, at::Tensor>& targets) {
  const SafetensorsFile source(file);
  for (const auto& [name, tensor] : source.tensors()) {
    if (!targets.contains(name))
      raise<CheckpointError>("{}: {} is not part of the model of this run", file.string(), name);
  }
  for (const auto& [name, target] : targets) {
    const SafeTensor* tensor = source.find(name);
    if (tensor == nullptr) raise<CheckpointError>("{}: {} is missing", file.string(), name);
    copy_into(target, *tensor, name);
  }
}

[[noreturn]] void raise_not_whole(const std::string& name) {
  raise<CheckpointError>("this rank holds only a part of {}, and checkpoints of sharded state "
                         "cannot be written or read yet\n  try: ddp.zero_stage=0",
                         name);
}

std::map<std::string, at::Tensor> model_tensors(nn::ParamList& params) {
  std::map<std::string, at::Tensor> tensors;
  for (const nn::Param& param : params) {
    if (!param.value().defined()) raise_not_whole(param.name());
    tensors[param.name()] = param.value();
  }
  return tensors;
}

std::map<std::string, at::Tensor> optimizer_tensors(nn::ParamList& params,
                                                    optim::Optimizer& optimizer) {
  std::map<std::string, at::Tensor> tensors;
  std::set<std::string> kinds;
  optimizer.for_each_state(
      [&](const nn::Param& param, int64_t begin, const std::string& what, const at::Tensor& piece) {
        if (begin != 0 || piece.numel() != param.numel()) raise_not_whole(param.name());
        tensors[param.name() + "/" + what] = piece.view(param.shape());
        kinds.insert(what);
      });
  for (const nn::Param& param : params) {
    for (const std::string& what : kinds) {
      if (!tensors.contains(param.name() + "/" + what)) raise_not_whole(param.name());
    }
  }
  return tensors;
}

} // namespace

fs::path save_train_state(const fs::path& dir, const TrainState& state, nn::ParamList& params,
                          optim::Optimizer& optimizer, int64_t keep) {
  const fs::path target = dir / folder_name(state.iteration);
  AtomicDirectory folder(target);
  write_tensors(folder.path() / "model.safetensors", model_tensors(params));
  write_tensors(folder.path() / "optimizer.safetensors", optimizer_tensors(params, optimizer));
  write_state(folder.path(), {{"iteration", state.iteration},
                              {"consumed_samples", state.consumed_samples},
                              {"optimizer_steps", optimizer.steps()},
                              {"skipped_iterations", state.skipped_iterations},
                              {"nan_iterations", state.nan_iterations},
                              {"config", state.config_yaml}});
  folder.commit(AtomicDirectory::Existing::kReplace);
  write_file_atomically(dir / "latest", folder_name(state.iteration) + "\n");
  prune(dir, state.iteration, keep);
  return target;
}

TrainState load_train_state(const fs::path& folder, nn::ParamList& params,
                            optim::Optimizer& optimizer) {
  const Json json = read_state(folder);
  const std::string where = (folder / "state.json").string();
  load_params(folder, params);
  optimizer.adopt_values();
  fill(folder / "optimizer.safetensors", optimizer_tensors(params, optimizer));
  optimizer.set_steps(json_get<int64_t>(json, "optimizer_steps", where));
  return {.iteration = json_get<int64_t>(json, "iteration", where),
          .consumed_samples = json_get<int64_t>(json, "consumed_samples", where),
          .skipped_iterations = json_get<int64_t>(json, "skipped_iterations", where),
          .nan_iterations = json_get<int64_t>(json, "nan_iterations", where),
          .config_yaml = json_get<std::string>(json, "config", where)};
}

void load_params(const fs::path& folder, nn::ParamList& params) {
  fill(folder / "model.safetensors", model_tensors(params));
}

std::string saved_config(const fs::path& folder) {
  return json_get<std::string>(read_state(folder), "config", (folder / "state.json").string());
}

} // namespace pentatron::checkpoint

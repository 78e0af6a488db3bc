#include "pentatron/checkpoint/train_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/tensor_io.h"

namespace pentatron::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kFormat = 1;
constexpr const char* kLatest = "latest";

std::string folder_name(int64_t iteration) {
  return fmt::format("iter_{:07d}", iteration);
}

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

std::map<std::string, at::Tensor> model_tensors(nn::ParamList& params) {
  std::map<std::string, at::Tensor> tensors;
  for (const nn::Param& param : params) tensors[param.name()] = param.value();
  return tensors;
}

std::map<std::string, at::Tensor> optimizer_tensors(optim::Optimizer& optimizer) {
  std::map<std::string, at::Tensor> tensors;
  optimizer.for_each_state(
      [&](const nn::Param& param, const std::string& what, const at::Tensor& tensor) {
        tensors[param.name() + "/" + what] = tensor;
      });
  return tensors;
}

/// Removes the oldest complete folders beyond `keep`.
void prune(const fs::path& dir, int64_t keep) {
  if (keep <= 0) return;
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && name.starts_with("iter_") && name.find(".tmp") == std::string::npos)
      names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  for (size_t i = 0; i + static_cast<size_t>(keep) < names.size(); ++i)
    fs::remove_all(dir / names[i]);
}

Json read_state(const fs::path& folder) {
  const Json state = read_json(folder / "state.json");
  const int64_t format = json_get<int64_t>(state, "format", (folder / "state.json").string());
  if (format != kFormat) {
    raise<CheckpointError>("{} has format {}, this program reads {}", folder.string(), format,
                           kFormat);
  }
  return state;
}

} // namespace

fs::path save_train_state(const fs::path& dir, const TrainState& state, nn::ParamList& params,
                          optim::Optimizer& optimizer, int64_t keep) {
  fs::create_directories(dir);
  const fs::path target = dir / folder_name(state.iteration);
  if (!fs::exists(target)) {
    AtomicDirectory folder(target);
    write_tensors(folder.path() / "model.safetensors", model_tensors(params));
    write_tensors(folder.path() / "optimizer.safetensors", optimizer_tensors(optimizer));
    const Json json = {{"format", kFormat},
                       {"iteration", state.iteration},
                       {"consumed_samples", state.consumed_samples},
                       {"optimizer_steps", optimizer.steps()},
                       {"skipped_iterations", state.skipped_iterations},
                       {"nan_iterations", state.nan_iterations},
                       {"config", state.config_yaml}};
    write_file_atomically(folder.path() / "state.json", dump_json(json, 2) + "\n");
    folder.commit();
  }
  write_file_atomically(dir / kLatest, folder_name(state.iteration) + "\n");
  prune(dir, keep);
  return target;
}

std::optional<fs::path> latest_train_state(const fs::path& dir) {
  std::ifstream in(dir / kLatest);
  if (!in) return std::nullopt;
  std::string name;
  std::getline(in, name);
  const bool plain = name.starts_with("iter_") && name.find('/') == std::string::npos;
  if (!plain || !fs::is_directory(dir / name)) {
    raise<CheckpointError>("{} names \"{}\", which is not a checkpoint there\n  try: write the "
                           "name of one of its iter_ folders into it",
                           (dir / kLatest).string(), name);
  }
  return dir / name;
}

TrainState load_train_state(const fs::path& folder, nn::ParamList& params,
                            optim::Optimizer& optimizer) {
  const Json json = read_state(folder);
  const std::string where = (folder / "state.json").string();
  load_params(folder, params);
  optimizer.adopt_values();
  fill(folder / "optimizer.safetensors", optimizer_tensors(optimizer));
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

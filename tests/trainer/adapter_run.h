/// What tests of runs with adapters have in common.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {

/// Runs with adapters beside a tiny Llama.
class AdapterRun : public testing::Test {
 protected:
  Config config(std::vector<std::string> more, const std::string& load = "hf:") const {
    const std::filesystem::path data =
        std::filesystem::path(PENTATRON_TEST_DATA) / "peft_curves/llama/batches.safetensors";
    std::vector<std::string> keys = {"checkpoint.load=" +
                                         (load == "hf:" ? "hf:" + base.string() : load),
                                     "logger.dir=" + (scratch / ("log" + std::to_string(++runs))),
                                     "logger.log_interval=1",
                                     "logger.peak_tflops=1",
                                     "dataset.type=batches",
                                     "dataset.path=" + data.string(),
                                     "train.train_iters=6",
                                     "train.micro_batch_size=2",
                                     "train.global_batch_size=4",
                                     "kernels=order",
                                     "peft.type=lora",
                                     "peft.r=4",
                                     "dtype=fp64"};
    keys.insert(keys.end(), more.begin(), more.end());
    return load_config(std::nullopt, keys, {}, 1);
  }
  std::string error(std::vector<std::string> more, const std::string& load = "hf:") const {
    return message_of([&] { test::run(config(std::move(more), load)); });
  }

  std::string save(const char* name = "ck") const { return "checkpoint.save=" + (scratch / name); }

  mutable int runs = 0;
  test::Scratch scratch;
  std::filesystem::path base = std::filesystem::path(PENTATRON_TEST_DATA) / "hf_tiny/llama";
};

/// Changes the adapter_config.json of an adapter.
inline void change_settings(const std::filesystem::path& adapter,
                            const std::function<void(Json&)>& change) {
  const std::filesystem::path file = adapter / "adapter_config.json";
  Json fields = read_json(file);
  change(fields);
  std::filesystem::remove(file); // it may be read-only
  std::ofstream(file) << fields.dump();
}
inline void change_settings(const std::filesystem::path& adapter, const char* field, Json value) {
  change_settings(adapter, [&](Json& fields) { fields[field] = std::move(value); });
}

/// The tensors of an adapter in PEFT's files, and others in their place.
inline std::map<std::string, at::Tensor> tensors_of(const std::filesystem::path& adapter) {
  std::map<std::string, at::Tensor> tensors;
  const SafetensorsFile file(adapter / "adapter_model.safetensors");
  for (const auto& [name, entry] : file.tensors())
    tensors[name] = checkpoint::to_tensor(entry).clone();
  return tensors;
}
inline void replace_tensors(const std::filesystem::path& adapter,
                            const std::map<std::string, at::Tensor>& tensors) {
  std::filesystem::remove(adapter / "adapter_model.safetensors"); // it may be read-only
  checkpoint::write_tensors(adapter / "adapter_model.safetensors", tensors);
}

/// Of a run, by name.
inline std::map<std::string, at::Tensor> adapters_of(const test::Trace& trace) {
  std::map<std::string, at::Tensor> adapters;
  for (const auto& [name, weight] : trace.weights)
    if (name.find(".lora_") != std::string::npos) adapters[name] = weight;
  return adapters;
}

} // namespace pentatron::trainer

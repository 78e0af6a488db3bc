// Runs with adapters: what they hold, how they resume, and what they refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <set>

#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/adapters/adapter_source.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/trainer/check_run.h"
#include "pentatron/trainer/memory_plan.h"
#include "tests/trainer/adapter_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(AdapterRun, BeginsAsTheBaseAndLeavesIt) {
  const test::Trace start = test::run(config({"train.train_iters=0"}));
  const test::Trace run = test::run(config({}));
  ASSERT_EQ(adapters_of(run).size(), 22u); // A of 4 weights, B of 7 parts, in 2 layers
  for (const auto& [name, weight] : run.weights) {
    const bool adapter = name.find(".lora_") != std::string::npos;
    EXPECT_EQ(at::equal(weight, start.weights.at(name)), !adapter) << name;
  }
  for (const auto& [name, weight] : adapters_of(start)) {
    if (name.find(".lora_B") != std::string::npos) {
      EXPECT_EQ(weight.abs().max().item<double>(), 0) << name;
      continue;
    }
    const double bound = 1 / std::sqrt(static_cast<double>(weight.size(1)));
    EXPECT_LE(weight.abs().max().item<double>(), bound) << name;
    EXPECT_NEAR(weight.std().item<double>(), bound / std::sqrt(3.0), 0.1 * bound) << name;
    EXPECT_NEAR(weight.mean().item<double>(), 0, 0.1 * bound) << name;
  }
  const test::Trace plain =
      test::run(config({"peft.target_modules=[q_proj]", "train.train_iters=1"}));
  EXPECT_EQ(plain.steps[0]["loss"], run.steps[0]["loss"]) << "B is zero";
}

TEST_F(AdapterRun, KeepsAdaptersAloneInCheckpoints) {
  test::run(config({"peft.type=dora", save()}));
  const checkpoint::Manifest manifest =
      checkpoint::read_manifest(fs::path(scratch / "ck") / "step_00000006");
  EXPECT_FALSE(manifest.tensors.empty());
  for (const auto& [name, info] : manifest.tensors)
    EXPECT_NE(name.find(".lora_"), std::string::npos) << name;
}

TEST_F(AdapterRun, ResumesBesideTheBaseThatItBeganWith) {
  const test::Trace whole = test::run(config(
      {"checkpoint.save=" + (scratch / "whole"), "peft.dropout=0.1", "train.eval_interval=0"}));
  test::run(config({"train.exit_interval=3", "peft.dropout=0.1", save()}));
  const std::string ck = scratch / "ck";
  const fs::path moved = scratch / "moved";
  fs::copy(base, moved);
  for (const std::string& where : {std::string(), moved.string()}) {
    test::Trace second = test::run(config(
        {"peft.dropout=0.1", "peft.base=" + where, "checkpoint.save=" + (scratch / "to")}, ck));
    ASSERT_EQ(second.report.iterations, 6);
    for (const auto& [name, weight] : whole.weights)
      EXPECT_TRUE(at::equal(second.weights.at(name), weight)) << name << " " << where;
    fs::remove_all(scratch / "to");
  }
  EXPECT_NO_THROW(check_run(config({"peft.dropout=0.1"}, ck), 1));
  const fs::path first = base;
  base = moved;
  test::run(config({"train.exit_interval=3", "peft.dropout=0.1", save("gone")}));
  fs::rename(moved, scratch / "away");
  base = first;
  const auto dry_run = [&](std::vector<std::string> keys, const char* from) {
    keys.emplace_back("peft.dropout=0.1");
    return message_of([&] { check_run(config(keys, scratch / from), 1); });
  };
  for (const std::string& text :
       {error({"peft.dropout=0.1"}, scratch / "gone"), dry_run({}, "gone")})
    EXPECT_THAT(text, AllOf(HasSubstr(moved.string() + ", which cannot be read"),
                            HasSubstr("\n  try: peft.base=DIR")));
  EXPECT_THAT(dry_run({"peft.base=nowhere"}, "ck"), HasSubstr("peft.base=nowhere does not exist"));
  const fs::path other = fs::path(PENTATRON_TEST_DATA) / "hf_tiny/llama3_rope_scaling_tied";
  EXPECT_THAT(
      error({"peft.dropout=0.1", "peft.base=" + other.string()}, ck),
      AllOf(HasSubstr("is not the model that the adapters"),
            HasSubstr("\n  try: the model that the run started from, hf:" + base.string())));
  EXPECT_THAT(error({"peft.dropout=0.1", "peft.r=8"}, ck),
              AllOf(HasSubstr("was trained with peft.r=4, but this run has peft.r=8"),
                    HasSubstr("try: peft.r=4")));
}

TEST_F(AdapterRun, IsMergedIntoWhatARunStartsFrom) {
  test::run(config({save()}));
  const test::Trace merged = test::run(
      config({"peft.type=none", "peft.r=8", "train.train_iters=1", "checkpoint.finetune=true"},
             scratch / "ck"));
  const test::Trace further =
      test::run(config({"train.train_iters=7", "checkpoint.load=" + (scratch / "ck")}));
  EXPECT_NEAR(merged.steps[0]["loss"].get<double>(),
              test::run(config({"train.train_iters=1", "checkpoint.finetune=true"}, scratch / "ck"))
                  .steps[0]["loss"]
                  .get<double>(),
              1e-12);
  EXPECT_EQ(further.report.iterations, 7);
}

TEST_F(AdapterRun, BIsUpdatedByItsOwnLearningRate) {
  const std::vector<std::string> once = {"optimizer.optimizer=sgd", "train.train_iters=1",
                                         "optimizer.weight_decay=0"};
  const auto run = [&](const std::string& ratio) {
    std::vector<std::string> keys = once;
    keys.push_back("peft.lora_plus_ratio=" + ratio);
    return adapters_of(test::run(config(keys)));
  };
  const auto plain = run("1"), fast = run("8");
  for (const auto& [name, weight] : plain) {
    const bool b = name.find(".lora_B") != std::string::npos;
    EXPECT_TRUE(at::allclose(fast.at(name), b ? weight * 8 : weight, 1e-12, 1e-15)) << name;
  }
}

/// As peft's create_loraplus_optimizer, whose group of B has everything that is 1-D.
TEST_F(AdapterRun, MagnitudesAreUpdatedAsB) {
  const auto run = [&](const std::string& ratio, const std::string& iters) {
    return adapters_of(test::run(
        config({"optimizer.optimizer=sgd", "train.train_iters=" + iters, "optimizer.weight_decay=0",
                "peft.type=dora", "peft.lora_plus_ratio=" + ratio})));
  };
  const auto start = run("1", "0"), plain = run("1", "1"), fast = run("8", "1");
  size_t magnitudes = 0;
  for (const auto& [name, weight] : plain) {
    if (name.find(".lora_magnitude") == std::string::npos) continue;
    const at::Tensor step = weight - start.at(name);
    EXPECT_GT(step.abs().max().item<double>(), 0) << name;
    EXPECT_TRUE(at::allclose(fast.at(name) - start.at(name), step * 8, 1e-9, 1e-14)) << name;
    ++magnitudes;
  }
  EXPECT_GT(magnitudes, 0u);
}

TEST_F(AdapterRun, TrainsInBf16BesideABaseThatNeedsItsBytesAlone) {
  const Config adapters = config({"dtype=bf16", "optimizer.lr=1e-2"}), full = [&] {
    Config c = adapters;
    c.peft = {};
    return c;
  }();
  const test::Trace run = test::run(adapters);
  EXPECT_LT(run.steps.back()["loss"], run.steps.front()["loss"]);
  const MemoryPlan small = plan_memory(adapters, 1), large = plan_memory(full, 1);
  EXPECT_EQ(small.frozen_parameters, large.parameters);
  const double trained = small.parameters - small.frozen_parameters;
  const double padding = 2 * (192 - 131) * 48; // rows of the embedding and the output layer
  EXPECT_EQ(small.rank.weights, 2 * (small.parameters + padding));
  EXPECT_EQ(small.rank.gradients, 4 * trained);
  EXPECT_EQ(small.rank.optimizer, 12 * trained);
}

TEST_F(AdapterRun, RefusesWhatItCannotDo) {
  for (const auto& [key, part] : std::vector<std::pair<std::string, std::string>>{
           {"peft.target_modules=[q_prj]", "matches no module of the model that takes adapters"},
           {"peft.target_modules=[]", "chooses no module"},
           {"peft.rank_pattern=[\"q_proj\"]", "is not NAME=RANK"},
           {"peft.rank_pattern=[\"norm=4\"]", "matches no module of the model"},
           {"peft.alpha_pattern=[\"q_proj=4\",\"*.0.*=8\"]",
            "try: peft.alpha_pattern=[\"*.0.*=8\",\"q_proj=4\"]"},
           {"peft.modules_to_save=[lm_hed,norm]", "try: peft.modules_to_save=[lm_head,norm]"},
           {"peft.modules_to_save=[q_proj]", "chooses model.layers.0.self_attn.q_proj without "
                                             "k_proj and v_proj, but they are one parameter"},
           {"peft.modules_to_save=[\"*_proj\"]", "contains all that peft.target_modules chooses"},
           {"peft.base=elsewhere", "has no effect on a run that does not resume"},
           {"train.freeze=[\"embedding.*\"]", "train.freeze has no effect with peft.type=lora"},
           {"peft.type=none", "has no effect without peft.type"}})
    EXPECT_THAT(error({key}), AllOf(HasSubstr(part), HasSubstr("try: "))) << key;
  EXPECT_EQ(error({"peft.rank_pattern=[\"*.0.*=2\",\"q_proj=4\"]"}), "") << "the first counts";
  EXPECT_THAT(error({"peft.type=dora", "peft.dropout=0.1"}),
              HasSubstr("peft.dropout=0.1 is not supported with peft.type=dora"));
  EXPECT_THAT(error({"peft.type=dora", "peft.target_modules=[embed_tokens]"}),
              AllOf(HasSubstr("is not supported for embeddings (model.embed_tokens in"),
                    HasSubstr("try: peft.type=lora")));
}

TEST_F(AdapterRun, RefusesFieldsOfPeftThatChangeTheNumbers) {
  const fs::path adapter = scratch / "adapter";
  fs::copy(fs::path(PENTATRON_TEST_DATA) / "peft_curves/llama", adapter);
  const Json plain = read_json(adapter / "adapter_config.json");
  for (const auto& [key, value, part] : std::vector<std::tuple<std::string, Json, std::string>>{
           {"peft_type", "IA3", "peft_type=IA3 is not supported"},
           {"bias", "all", "bias=\"all\""},
           {"modules_to_save", "lm_head", "is \"lm_head\", but must be a list"},
           {"lora_bias", true, "lora_bias=true"},
           {"init_lora_weights", "pissa", "init_lora_weights=\"pissa\""},
           {"rank_pattern", {{"q.*(", 4}}, "is not a regular expression"},
           {"rank_pattern", {{"q_.*", 5}}, "q_proj.lora_A.weight has shape [4, 48]"},
           {"a_new_field", 3, "a_new_field=3"},
           {"r", 5, "has shape [4, 48] instead of [5, 48]"}}) {
    change_settings(adapter, [&](Json& fields) {
      fields = plain;
      fields[key] = value;
    });
    const std::string message = message_of([&] {
      const std::vector<std::string> keys = {"checkpoint.load=hf:" + base.string(),
                                             "peft.load=" + adapter.string(),
                                             "dataset.type=batches",
                                             "dataset.path=" +
                                                 (adapter / "batches.safetensors").string(),
                                             "train.train_iters=1",
                                             "kernels=order",
                                             "logger.peak_tflops=1"};
      test::run(load_config(std::nullopt, keys, {}, 1));
    });
    EXPECT_THAT(message, HasSubstr(part)) << key;
  }
}

TEST_F(AdapterRun, ModulesToSaveTrainWholeAndStandInCheckpoints) {
  const std::vector<std::string> keys = {"peft.target_modules=[q_proj]",
                                         "peft.modules_to_save=[lm_head,model.norm]"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), keys.begin(), keys.end());
    return more;
  };
  const std::set<std::string> whole = {"output.weight", "final_norm.weight"};
  const test::Trace start = test::run(config(with({"train.train_iters=0"})));
  const test::Trace run = test::run(config(with({save(), "checkpoint.export_hf=true"})));
  size_t found = 0;
  for (const auto& [name, weight] : run.weights) {
    const bool trained = name.find(".lora_") != std::string::npos || whole.contains(name);
    EXPECT_EQ(at::equal(weight, start.weights.at(name)), !trained) << name;
    found += whole.contains(name) ? 1 : 0;
  }
  EXPECT_EQ(found, whole.size());
  const checkpoint::Manifest manifest =
      checkpoint::read_manifest(fs::path(scratch / "ck") / "step_00000006");
  for (const auto& [name, info] : manifest.tensors)
    EXPECT_TRUE(name.find(".lora_") != std::string::npos ||
                whole.contains(name.substr(0, name.find('/'))))
        << name;
  EXPECT_TRUE(manifest.tensors.contains("output.weight"));
  // Resumed half-way, and begun from PEFT's files.
  test::run(config(with({"train.exit_interval=3", save("half")})));
  const test::Trace second =
      test::run(config(with({"checkpoint.save=" + (scratch / "to")}), scratch / "half"));
  for (const auto& [name, weight] : run.weights)
    EXPECT_TRUE(at::equal(second.weights.at(name), weight)) << name;
  const test::Trace loaded =
      test::run(config({"train.train_iters=0", "peft.load=" + (scratch / "ck") + "/adapter"}));
  for (const std::string& name : whole)
    EXPECT_TRUE(at::allclose(loaded.weights.at(name), run.weights.at(name), 1e-6, 1e-7)) << name;
}

TEST_F(AdapterRun, OneOfTwoCopiesOfATiedWeightIsRefused) {
  const fs::path data = PENTATRON_TEST_DATA, adapter = scratch / "adapter";
  fs::copy(data / "peft_curves/llama_tied_modules", adapter);
  const auto model = checkpoint::open_model((data / "hf_tiny/llama3_rope_scaling_tied").string());
  EXPECT_EQ(checkpoint::read_adapter(adapter, *model).whole.size(), 1u);
  change_settings(adapter, "ensure_weight_tying", false);
  EXPECT_THAT(message_of([&] { checkpoint::read_adapter(adapter, *model); }),
              AllOf(HasSubstr("without ensure_weight_tying"), HasSubstr("\n  try: ")));
  for (const Json& saved : {Json({"lm_head"}), Json({"lm_head", "embed_tokens"})}) {
    change_settings(adapter, "modules_to_save", saved);
    EXPECT_THAT(message_of([&] { checkpoint::read_adapter(adapter, *model); }),
                HasSubstr("modules_to_save has lm_head without ensure_weight_tying"));
    base = data / "hf_tiny/llama3_rope_scaling_tied";
    EXPECT_THAT(error({"peft.load=" + adapter.string()}),
                HasSubstr("modules_to_save has lm_head without ensure_weight_tying"));
  }
}

TEST_F(AdapterRun, TiedWeightsThatPeftCannotTrainAreRefused) {
  const fs::path models = base.parent_path();
  base = models / "gpt2"; // PEFT does not tie what has another name
  EXPECT_THAT(error({"peft.modules_to_save=[wte,ln_f]"}),
              AllOf(HasSubstr("which is the output layer, too"),
                    HasSubstr("\n  try: peft.modules_to_save=[ln_f]")));
  EXPECT_THAT(error({"peft.modules_to_save=[lm_head,ln_f]"}),
              AllOf(HasSubstr("whose output layer is its embedding"),
                    HasSubstr("\n  try: peft.modules_to_save=[ln_f]")));
  base = models / "llama3_rope_scaling_tied";
  for (const char* names : {"lm_head", "lm_head,embed_tokens"})
    EXPECT_THAT(error({fmt::format("peft.modules_to_save=[{}]", names)}),
                AllOf(HasSubstr("whose output layer is its embedding"),
                      HasSubstr("\n  try: peft.modules_to_save=[embed_tokens]")));
  for (const char* name : {"t5", "t5_untied"}) {
    base = models / name;
    EXPECT_THAT(error({"peft.modules_to_save=[shared]"}),
                HasSubstr("contains shared, which encoder and decoder share"));
  }
}

/// The depths of multi-token prediction, which PEFT's models lack, read the embedding, too.
TEST_F(AdapterRun, WhatOtherDepthsReadIsNotTied) {
  base = base.parent_path() / "deepseek_v3_mtp";
  const std::vector<std::string> mock = {"dataset.type=mock",
                                         "dataset.path=", "train.seq_length=16"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), mock.begin(), mock.end());
    return more;
  };
  const test::Trace run = test::run(config(
      with({"peft.modules_to_save=[embed_tokens,lm_head]", save(), "checkpoint.export_hf=true"})));
  const fs::path adapter = fs::path(scratch / "ck") / "adapter";
  EXPECT_EQ(read_json(adapter / "adapter_config.json")["ensure_weight_tying"], Json(false));
  const SafetensorsFile file(adapter / "adapter_model.safetensors");
  const std::map<std::string, std::string> names = {
      {"embedding.word.weight", "base_model.model.model.embed_tokens.weight"},
      {"output.weight", "base_model.model.lm_head.weight"}};
  const test::Trace loaded =
      test::run(config(with({"train.train_iters=0", "peft.load=" + adapter.string()})));
  for (const auto& [own, hf] : names) {
    const at::Tensor& weight = run.weights.at(own);
    EXPECT_TRUE(at::allclose(checkpoint::to_tensor(file.at(hf)).to(at::kDouble),
                             weight.narrow(0, 0, 67), 1e-6, 1e-7))
        << own;
    EXPECT_TRUE(at::allclose(loaded.weights.at(own), weight, 1e-6, 1e-7)) << own;
  }
}

/// A name chooses all that is in the module, as in PEFT, which wraps it.
TEST_F(AdapterRun, ModulesTrainWholeWithAllThatTheyContain) {
  const auto parts = [&](const char* name, const std::string& module) {
    const auto model = checkpoint::open_model((base.parent_path() / name).string());
    config::Violations violations;
    checkpoint::Adapter adapter = checkpoint::adapter_parts(
        {.type = checkpoint::AdapterType::kLora, .modules_to_save = {module}}, model->config(),
        model->facts().family, violations);
    EXPECT_TRUE(violations.empty());
    return adapter;
  };
  const auto saved = [&](const char* name, const std::string& module) {
    return checkpoint::names_of_modules(parts(name, module).whole);
  };
  EXPECT_THAT(saved("roberta_classification", "classifier"),
              testing::UnorderedElementsAre("classifier.dense", "classifier.out_proj"));
  EXPECT_THAT(saved("llama", "layers.1.mlp"),
              testing::UnorderedElementsAre("model.layers.1.mlp.gate_proj",
                                            "model.layers.1.mlp.up_proj",
                                            "model.layers.1.mlp.down_proj"));
  // Whose own parameters are its sinks.
  EXPECT_THAT(saved("gpt_oss", "layers.0.self_attn"),
              testing::ElementsAre("model.layers.0.self_attn"));
  std::set<std::string> tensors;
  const checkpoint::Adapter adapter = parts("gpt_oss", "layers.0.self_attn");
  for (const checkpoint::WholeParam& param : adapter.whole)
    for (const checkpoint::WeightMapEntry& entry : param.tensors) tensors.insert(entry.hf);
  for (const char* name : {"sinks", "q_proj.weight", "k_proj.bias", "o_proj.weight"})
    EXPECT_TRUE(tensors.contains("model.layers.0.self_attn." + std::string(name))) << name;
  for (const checkpoint::AdaptedModule& one : adapter.modules)
    EXPECT_FALSE(one.module.hf.starts_with("model.layers.0.self_attn")) << one.module.hf;
  EXPECT_FALSE(adapter.modules.empty());
}

TEST_F(AdapterRun, ModulesOfPeftContainOthers) {
  test::run(config({"train.train_iters=1", "peft.modules_to_save=[layers.1.mlp]", save(),
                    "checkpoint.export_hf=true"}));
  const fs::path adapter = fs::path(scratch / "ck") / "adapter";
  const auto model = checkpoint::open_model(base.string());
  const checkpoint::Adapter listed = checkpoint::read_adapter(adapter, *model);
  change_settings(adapter, "modules_to_save", {"1.mlp"});
  const checkpoint::Adapter whole = checkpoint::read_adapter(adapter, *model);
  ASSERT_EQ(whole.whole.size(), 2u);
  for (const auto& [name, tensor] : listed.tensors)
    EXPECT_TRUE(at::equal(whole.tensors.at(name), tensor)) << name;
  fs::rename(adapter / "adapter_model.safetensors", adapter / "adapter_model.bin");
  EXPECT_THAT(message_of([&] { checkpoint::read_adapter(adapter, *model); }),
              HasSubstr("has its tensors in adapter_model.bin"));
}

/// The values are not the user's, who cannot set others.
TEST_F(AdapterRun, TellsWhichFileHasAnImpossibleValue) {
  const fs::path data = PENTATRON_TEST_DATA, adapter = scratch / "adapter";
  fs::copy(data / "peft_curves/llama", adapter);
  const auto begin = [&] { config({"peft.type=lora", "peft.load=" + adapter.string()}); };
  change_settings(adapter, "r", 0);
  EXPECT_THAT(message_of(begin),
              AllOf(HasSubstr("is not an adapter for this model: peft.r=0"),
                    HasSubstr("(in its adapter_config.json)"),
                    HasSubstr("try: peft.load=DIR with an adapter for this model")));
  change_settings(adapter, [](Json& fields) {
    fields["r"] = 4;
    fields["target_modules"] = {"c_attn"};
  });
  EXPECT_THAT(message_of(begin),
              AllOf(HasSubstr("model: peft.target_modules contains \"c_attn\""),
                    HasSubstr("try: peft.load=DIR with an adapter for this model")));
}

/// A run that is checked without being started, see check_run().
TEST_F(AdapterRun, IsCheckedWithItsTensors) {
  const fs::path data = PENTATRON_TEST_DATA, adapter = scratch / "adapter";
  fs::copy(data / "peft_curves/llama", adapter);
  const Config run = config({"peft.load=" + adapter.string()});
  EXPECT_NO_THROW(check_run(run, 1));
  fs::remove(adapter / "adapter_model.safetensors");
  fs::copy_file(data / "peft_curves/llama_dora/adapter_model.safetensors",
                adapter / "adapter_model.safetensors");
  EXPECT_THAT(message_of([&] { check_run(run, 1); }),
              AllOf(HasSubstr("peft.load="), HasSubstr("is not part of the model"),
                    HasSubstr("try: peft.load=DIR with an adapter for this model")));
}

/// As the user named it, or where it was.
TEST_F(AdapterRun, FindsItsBaseFromAnotherFolder) {
  const fs::path here = fs::current_path();
  fs::copy(base, scratch / "base");
  fs::current_path(scratch / "");
  base = "base";
  const test::Trace first = test::run(config({save()}));
  fs::create_directory(scratch / "elsewhere");
  fs::current_path(scratch / "elsewhere");
  EXPECT_NO_THROW(checkpoint::open_model(scratch / "ck"));
  EXPECT_NO_THROW(test::run(config({"train.train_iters=7"}, scratch / "ck")));
  fs::current_path(here);
}

/// PEFT makes none, so the file is changed.
TEST_F(AdapterRun, RefusesDoraOfExperts) {
  const fs::path data = PENTATRON_TEST_DATA, adapter = scratch / "adapter";
  fs::copy(data / "peft_curves/mixtral_experts", adapter);
  change_settings(adapter, "use_dora", true);
  const auto model = checkpoint::open_model((data / "hf_tiny/mixtral").string());
  EXPECT_THAT(message_of([&] { checkpoint::read_adapter(adapter, *model); }),
              AllOf(HasSubstr("is a DoRA adapter of experts"),
                    HasSubstr("try: a LoRA adapter of experts")));
}

TEST_F(AdapterRun, DividesMagnitudesByTheNormsOfRows) {
  const fs::path data = PENTATRON_TEST_DATA;
  const std::string folder = (data / "peft_curves/llama_dora").string();
  const std::string llama = (data / "hf_tiny/llama").string();
  const auto model = checkpoint::open_model(llama);
  checkpoint::Adapter adapter = checkpoint::read_adapter(folder, *model);
  const checkpoint::Adapter whole = adapter;
  checkpoint::divide_by_row_norms(adapter, *model);
  const auto merged =
      checkpoint::open_model(llama + std::string(checkpoint::kWithAdapter) + folder);
  ASSERT_FALSE(adapter.modules.empty());
  for (const checkpoint::AdaptedModule& one : adapter.modules) {
    const checkpoint::LinearModule& module = one.module;
    const auto tensor = [&](const checkpoint::Adapter& of, const char* what, const std::string& p) {
      return of.tensors.at(nn::adapter_name(module.weight, what, p)).to(at::kDouble);
    };
    const auto values = [&](checkpoint::ModelSource& source) {
      const at::Tensor all = at::empty({module.rows, module.columns}, at::kDouble);
      source.read(module.weight,
                  checkpoint::Box{{module.first_row, 0}, {module.rows, module.columns}}, all);
      return all;
    };
    const at::Tensor sum =
        values(*model) +
        one.scale * tensor(adapter, "lora_B", module.part)
                        .mm(tensor(adapter, "lora_A", "").narrow(0, one.first, one.rank));
    const at::Tensor factor = tensor(adapter, "lora_magnitude", module.part);
    EXPECT_FALSE(at::allclose(factor, tensor(whole, "lora_magnitude", module.part)));
    EXPECT_TRUE(at::allclose(factor.unsqueeze(1) * sum, values(*merged), 1e-12, 1e-12))
        << module.hf;
  }
}

TEST_F(AdapterRun, TakesABaseInEightBits) {
  const test::Trace plain = test::run(config({})),
                    int8 = test::run(config({"peft.base_dtype=int8"}));
  for (size_t i = 0; i < plain.steps.size(); ++i) {
    const auto loss = [&](const test::Trace& run) { return run.steps[i]["loss"].get<double>(); };
    EXPECT_NE(loss(int8), loss(plain));
    EXPECT_NEAR(loss(int8), loss(plain), 0.01 * loss(plain));
  }
  test::run(config({save(), "peft.base_dtype=int8", "train.exit_interval=3"}));
  const test::Trace rest = test::run(config({save(), "peft.base_dtype=int8"}, "auto"));
  for (const auto& [name, weight] : int8.weights)
    EXPECT_TRUE(at::equal(rest.weights.at(name), weight)) << name << " is quantised alike again";
  EXPECT_THAT(error({"peft.base_dtype=int8", "ddp.zero_stage=3"}),
              AllOf(HasSubstr("not supported with ddp.zero_stage=3"), HasSubstr("try: ddp")));
  EXPECT_THAT(error({"peft.base_dtype=int8", "peft.type=none"}),
              HasSubstr("peft.base_dtype has no effect without peft.type"));
  const auto weights = [&](const char* dtype) {
    const Config big =
        load_config(std::nullopt,
                    {"model.preset=llama2_7b", "peft.type=lora", "peft.r=16", "dtype=bf16",
                     "train.seq_length=64", std::string("peft.base_dtype=") + dtype,
                     "train.check_memory=false"},
                    {}, 1);
    return plan_memory(big, 1).rank.weights;
  };
  EXPECT_NEAR(weights("int8") / weights("model"), 0.55, 0.02);
}

} // namespace
} // namespace pentatron::trainer

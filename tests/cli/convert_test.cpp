// `pentatron convert` and what uses its results, as a user runs them.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "tests/cli/letter_model.h"
#include "tests/cli/program_folder.h"
#include "tests/support/files.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kFromScratch =
    "train model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 dataset.type=mock "
    "train.seq_length=16 train.micro_batch_size=1 train.global_batch_size=2 train.num_threads=1 "
    "checkpoint.export_hf=true checkpoint.save=a logger.dir=logs ";

class ConvertVerb : public test::ProgramFolder {
 protected:
  std::string run(const std::string& arguments, int expected_status = 0) const {
    return ProgramFolder::run(arguments + " 2>&1", expected_status);
  }
  const std::string model = PENTATRON_TEST_DATA "/hf_tiny/llama";
};

TEST_F(ConvertVerb, SaysWhatItWroteAndRefusesWhatIsThere) {
  EXPECT_THAT(run("convert '" + model + "' ours --format pentatron"),
              AllOf(HasSubstr("ours: 15 tensors"), HasSubstr("from hf")));
  EXPECT_THAT(run("checkpoint verify ours"), HasSubstr("all checksums match"));
  EXPECT_THAT(run("convert ours sharded --format hf --max-shard-size 30KB"),
              AllOf(HasSubstr("10 files"), HasSubstr("from pentatron")));
  EXPECT_TRUE(fs::exists(folder / "sharded/model.safetensors.index.json"));
  EXPECT_THAT(run("convert ours sharded --format hf", 2),
              AllOf(HasSubstr("sharded exists"), HasSubstr("try:")));
  EXPECT_THAT(run("convert sharded model.gguf --format gguf"), HasSubstr("21 tensors"));
  EXPECT_THAT(run("convert sharded named.gguf"), HasSubstr("21 tensors"));
  EXPECT_THAT(run("convert sharded folder", 2), HasSubstr("--format is not given"));
  EXPECT_THAT(run("convert model.gguf again --format pentatron"), HasSubstr("from gguf"));
  EXPECT_THAT(run("convert ours x --format onnx", 2), HasSubstr("try: pentatron, hf or gguf"));
  EXPECT_THAT(run("convert none x --format hf", 1), HasSubstr("none does not exist"));
  EXPECT_FALSE(fs::exists(folder / "x"));
}

TEST_F(ConvertVerb, OverwritesAModelAndNothingBesideIt) {
  test::make_letter_model(folder / "mine");
  run("convert mine target --format hf");
  const std::string again = "convert mine target --format hf --overwrite";
  fs::copy_file(folder / "mine/expected.safetensors", folder / "target/hidden.safetensors");
  EXPECT_THAT(run(again, 2), HasSubstr("target contains hidden.safetensors, which is no file of a "
                                       "model"));
  fs::remove(folder / "target/hidden.safetensors");
  run(again);
  EXPECT_THAT(run("convert '" + model + "' target --format hf --overwrite", 2),
              HasSubstr("target has a tokenizer (tokenizer.json), which would be removed: "));
  EXPECT_TRUE(fs::exists(folder / "target/tokenizer.json"));
  run("convert '" + model + "' bare --format hf");
  for (const char* name : {"sentencepiece.bpe.model", "qwen.tiktoken"}) {
    std::ofstream(folder / "bare" / name) << "x";
    EXPECT_THAT(run("convert '" + model + "' bare --format hf --overwrite", 2),
                HasSubstr(std::string("bare has a tokenizer (") + name));
    fs::remove(folder / "bare" / name);
  }
  // Weights of other names belong to a model if its index names them.
  run("convert mine target --format hf --overwrite --max-shard-size 30KB");
  fs::rename(folder / "target/model-00001-of-00010.safetensors", folder / "target/a.safetensors");
  EXPECT_THAT(run(again, 2), HasSubstr("target contains a.safetensors"));
  Json index = read_json(folder / "target/model.safetensors.index.json");
  for (auto& [tensor, file] : index["weight_map"].items())
    if (file == "model-00001-of-00010.safetensors") file = "a.safetensors";
  std::ofstream(folder / "target/model.safetensors.index.json") << index;
  run(again);
}

TEST_F(ConvertVerb, ReplacesWhatALinkNames) {
  run("convert '" + model + "' disk/model --format hf");
  fs::create_directory_symlink("disk/model", folder / "link");
  fs::remove(folder / "disk/model/config.json");
  fs::copy_file(model + "/config.json", folder / "disk/model/config.json");
  run("convert '" + model + "' link --format hf --max-shard-size 30KB --overwrite");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_TRUE(fs::exists(folder / "disk/model/model.safetensors.index.json"));
}

TEST_F(ConvertVerb, NamesWeightsOfAnotherTask) {
  const std::string bert = PENTATRON_TEST_DATA "/hf_tiny/bert";
  fs::copy(bert, folder / "bert");
  Json config = read_json(folder / "bert/config.json");
  config["architectures"] = {"BertForMaskedLM"};
  std::ofstream(folder / "bert/config.json") << config;
  EXPECT_THAT(run("convert bert masked --format hf"),
              AllOf(HasSubstr("are left out: "), HasSubstr("bert.pooler.dense.weight"),
                    HasSubstr("cls.seq_relationship.weight")));
  EXPECT_THAT(run("convert '" + bert + "' whole --format hf"), Not(HasSubstr("left out")));
}

/// The number behind `words` in a text.
double number_after(const std::string& text, const std::string& words) {
  const size_t at = text.find(words);
  return at == std::string::npos ? std::nan("") : std::stod(text.substr(at + words.size()));
}

TEST_F(ConvertVerb, QuantisesAndPrintsThePerplexityThatItCosts) {
  test::make_letter_model(folder / "model");
  std::ofstream(folder / "text.txt") << "thequickbrownfoxjumpsoverthelazydog";
  const std::string out = run("convert model m.gguf --quantize q8_0 --text-file text.txt");
  EXPECT_THAT(out, AllOf(HasSubstr("m.gguf: 21 tensors"), HasSubstr("on 35 tokens of text.txt")));
  const double before = number_after(out, "perplexity "), after = number_after(out, "before, ");
  const auto measured = [&](const std::string& of) {
    const std::string said = ProgramFolder::run("evaluate " + of + " --file text.txt 2>/dev/null");
    return parse_json(said, "result")["perplexity"].get<double>();
  };
  EXPECT_NEAR(before, measured("model"), 1e-4);
  EXPECT_NEAR(after, measured("m.gguf"), 1e-4);
  EXPECT_NE(before, after);
  EXPECT_NEAR(after, before, 0.05 * before);
  EXPECT_THAT(run("convert model b.gguf --quantize q8_0"), HasSubstr("of the built-in text"));
  // Without a tokenizer there is nothing to measure.
  EXPECT_THAT(run("convert '" + this->model + "' c.gguf --quantize q8_0"),
              AllOf(HasSubstr("no tokenizer"), HasSubstr("c.gguf: 21 tensors")));
  EXPECT_TRUE(fs::exists(folder / "c.gguf"));
}

/// Every expert is a copy, and the weights of a token's experts sum to 1.
TEST_F(ConvertVerb, AModelWithNewExpertsComputesWhatTheDenseOneDoes) {
  const auto loss = [&](const std::string& of) {
    const std::string said = ProgramFolder::run("evaluate " + of + " --batches '" + model +
                                                "/expected.safetensors' dtype=fp64 2>/dev/null");
    return parse_json(said, "result")["loss"].get<double>();
  };
  EXPECT_THAT(run("convert '" + model + "' moe --format hf --experts 4"), HasSubstr("from hf"));
  EXPECT_EQ(read_json(folder / "moe/config.json")["model_type"], "mixtral");
  run("convert '" + model + "' ours --format pentatron --experts 6 --experts-topk 3");
  const double dense = loss("'" + model + "'");
  EXPECT_NEAR(loss("moe"), dense, 1e-9); // in the files of both are fp32 numbers
  EXPECT_NEAR(loss("ours"), dense, 1e-9);
  EXPECT_THAT(run("convert moe more --format hf --experts 8", 2), HasSubstr("has 4 experts"));
  EXPECT_THAT(run("convert '" + model + "' x --format hf --experts 2 --experts-topk 3", 2),
              HasSubstr("--experts-topk 3 is more than --experts 2"));
  const std::string bert = PENTATRON_TEST_DATA "/hf_tiny/bert";
  EXPECT_THAT(run("convert '" + bert + "' x --format hf --experts 2", 2),
              HasSubstr("a model of type bert cannot have experts"));
}

TEST_F(ConvertVerb, OfQ4KIsReadBack) {
  run("train model.num_layers=2 model.hidden_size=256 model.num_attention_heads=4 "
      "model.ffn_hidden_size=512 model.vocab_size=320 dataset.type=mock train.seq_length=16 "
      "train.micro_batch_size=1 train.global_batch_size=1 train.num_threads=1 "
      "train.train_iters=1 checkpoint.save=wide logger.peak_tflops=1");
  run("convert wide wide-hf --format hf");
  test::add_letter_tokenizer(folder / "wide-hf");
  std::ofstream(folder / "text.txt") << "thequickbrownfoxjumpsoverthelazydog";
  const std::string out = run("convert wide-hf wide.gguf --quantize q4_k --text-file text.txt");
  const double before = number_after(out, "perplexity "), after = number_after(out, "before, ");
  EXPECT_NE(before, after);
  EXPECT_NEAR(after, before, 0.05 * before);
  EXPECT_LT(fs::file_size(folder / "wide.gguf"),
            fs::file_size(folder / "wide-hf/model.safetensors") / 5);
}

TEST_F(ConvertVerb, QuantizeSaysWhatItDoesNotTake) {
  EXPECT_THAT(run("convert '" + model + "' x --quantize q8_0 --dtype bf16", 2),
              HasSubstr("try: only --quantize q8_0"));
  EXPECT_THAT(run("convert '" + model + "' x --quantize q8_0 --format hf", 2),
              HasSubstr("try: --format gguf"));
  EXPECT_THAT(run("convert '" + model + "' x --format hf --text-file a", 2),
              HasSubstr("no effect without --quantize"));
  EXPECT_THAT(run("convert '" + model + "' x", 2), HasSubstr("--format is not given"));
  EXPECT_THAT(run("convert '" + model + "' x --quantize q3_k", 2), HasSubstr("--quantize"));
  test::make_letter_model(folder / "model");
  EXPECT_THAT(run("convert model x.gguf --quantize q8_0 --text-file none.txt", 1),
              AllOf(HasSubstr("--text-file none.txt does not exist"), Not(HasSubstr("dataset."))));
  EXPECT_FALSE(fs::exists(folder / "x.gguf")) << "the text is read first";
  std::ofstream(folder / "body.jsonl") << R"({"body":"abcdefgh"})"
                                       << "\n";
  EXPECT_THAT(run("convert model x.gguf --quantize q8_0 --text-file body.jsonl", 1),
              AllOf(HasSubstr("try: --text-key body"), Not(HasSubstr("dataset."))));
  EXPECT_THAT(run("convert model x.gguf --quantize q8_0 --text-file body.jsonl --text-key body"),
              HasSubstr("on 8 tokens of body.jsonl"));
  EXPECT_THAT(run("convert model y.gguf --quantize q8_0 --text-key body", 2),
              HasSubstr("--text-file"));
}

TEST_F(ConvertVerb, TrainingStartsFromEveryFormatAndExports) {
  run("convert '" + model + "' ours --format pentatron");
  run("convert ours model.gguf --format gguf");
  const std::string keys =
      " dataset.type=mock train.train_iters=1 train.seq_length=16 train.micro_batch_size=1 "
      "train.global_batch_size=2 train.num_threads=1 checkpoint.export_hf=true ";
  run("train --hf '" + model + "'" + keys + "checkpoint.save=a logger.dir=la");
  run("train checkpoint.load=model.gguf" + keys + "checkpoint.save=b logger.dir=lb");
  run("train checkpoint.load=ours" + keys + "checkpoint.save=c logger.dir=lc");
  run("train --ranks 2 parallel.tensor_model_parallel_size=2 ddp.zero_stage=3 "
      "checkpoint.load=model.gguf" +
      keys + "checkpoint.save=d logger.dir=ld");
  run("convert a e --format hf");
  const auto weights = [&](const char* of) {
    return content_of(folder / of / "model.safetensors");
  };
  const std::string first = weights("a/hf/step_00000001");
  EXPECT_GT(first.size(), 200'000u);
  for (const char* other : {"b/hf/step_00000001", "c/hf/step_00000001", "e"})
    EXPECT_TRUE(first == weights(other)) << other; // the same step from the same weights
  EXPECT_EQ(first.size(), weights("d/hf/step_00000001").size());
}

TEST_F(ConvertVerb, ExportsAreMadeBesideTheRun) {
  const std::string keys = kFromScratch +
                           "train.train_iters=3 checkpoint.async_save=true checkpoint.keep=1 "
                           "checkpoint.save_interval=1 ";
  EXPECT_THAT(run(keys),
              AllOf(HasSubstr("exported a/hf/step_00000001"),
                    HasSubstr("exported a/hf/step_00000003"), Not(HasSubstr("not exported"))));
  run("convert a b --format hf");
  for (const char* file : {"model.safetensors", "config.json"})
    EXPECT_TRUE(content_of(folder / "a/hf/step_00000003" / file) ==
                content_of(folder / "b" / file));
  EXPECT_FALSE(fs::exists(folder / "a/hf/step_00000001")); // its checkpoint is gone
  const auto put_a_file_in_the_way = [&] {
    fs::remove_all(folder / "a");
    fs::remove_all(folder / "logs");
    fs::create_directories(folder / "a");
    std::ofstream(folder / "a/hf") << "a file in the way";
  };
  put_a_file_in_the_way();
  EXPECT_THAT(run(keys, 1), HasSubstr("the export of iteration 1 was not saved"));
  put_a_file_in_the_way();
  const std::string out = run(keys + "checkpoint.on_error=continue", 1),
                    last = "the export of iteration 3 was not saved";
  EXPECT_THAT(out, AllOf(HasSubstr("error: the export of iteration 2 was not saved"),
                         HasSubstr("error: the run has ended, but " + last)));
  EXPECT_EQ(out.find(last), out.rfind(last)) << "told once";
  EXPECT_THAT(content_of(folder / "logs/run.json"),
              HasSubstr("\"exit_reason\": \"error: the run has ended, but " + last));
  const std::string remedy = "convert a/step_00000003 a/hf/step_00000003 --format hf";
  EXPECT_THAT(out, HasSubstr("try: pentatron " + remedy));
  fs::remove(folder / "a/hf");
  run(remedy);
  EXPECT_TRUE(fs::exists(folder / "a/hf/step_00000003/model.safetensors"));
}

#ifdef PENTATRON_IO_SHIM // sanitizers bring a preloaded library of their own
TEST_F(ConvertVerb, StepsGoOnBesideASlowExportAndTheNextSaveWaits) {
  const std::string saves = (folder / "a").string();
  const std::string out = ProgramFolder::run(
      kFromScratch +
          "train.train_iters=2000 checkpoint.async_save=true checkpoint.keep=1 "
          "checkpoint.save_interval=1000 logger.log_interval=1 checkpoint.save='" +
          saves + "' 2>&1",
      0, "LD_PRELOAD='" PENTATRON_IO_SHIM "' IO_SHIM_ROOT='" + saves + "/hf' IO_SHIM_MODE=slow ");
  const size_t saved = out.find("saved " + saves + "/step_00001000"),
               exported = out.find("exported " + saves + "/hf/step_00001000"),
               next = out.find("checkpoint of iteration 2000 queued");
  ASSERT_TRUE(saved < exported && exported != std::string::npos && next != std::string::npos)
      << out;
  EXPECT_LT(out.find("\niteration ", saved), exported) << "no step was made beside it\n" << out;
  EXPECT_LT(exported, next) << "the next save may have removed what was read\n" << out;
}
#endif

TEST_F(ConvertVerb, AModelThatBeganHereKnowsWhatEndsItsTexts) {
  run(kFromScratch + "train.train_iters=1");
  run("convert a b --format pentatron");
  run("convert b c --format hf");
  for (const char* of : {"a/hf/step_00000001", "c"})
    for (const char* file : {"config.json", "generation_config.json"})
      EXPECT_EQ(read_json(folder / of / file)["eos_token_id"], 256)
          << of << " " << file; // of bytes
  fs::remove_all(folder / "a");
  fs::remove_all(folder / "logs");
  run(kFromScratch + "train.train_iters=1 model.vocab_size=64"); // of which the end is none
  EXPECT_TRUE(read_json(folder / "a/hf/step_00000001/config.json")["eos_token_id"].is_null());
}

} // namespace
} // namespace pentatron

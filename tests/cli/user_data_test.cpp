// Data, tokenizers and models of the Hugging Face cache as a user meets them.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "tests/cli/program_folder.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const fs::path kTestData = PENTATRON_TEST_DATA;

class UserData : public test::ProgramFolder {
 protected:
  UserData() {
    for (int i = 0; i < 300; ++i)
      lines_ +=
          R"({"body": "the loss falls slowly, then it rises )" + std::to_string(i * i) + "\"}\n";
    write("text.jsonl", lines_);
  }
  void write(const fs::path& name, const std::string& text) const {
    fs::create_directories((folder / name).parent_path());
    std::ofstream(folder / name, std::ios::binary) << text;
  }
  std::string call(const std::string& arguments, int status = 0,
                   const std::string& before = "") const {
    return run(arguments + " 2>&1", status, before);
  }
  static std::string tiny(const std::string& more) {
    return "train dataset.path=text.jsonl dataset.text_key=body train.seq_length=16 "
           "train.micro_batch_size=2 train.global_batch_size=2 train.num_threads=1 "
           "logger.peak_tflops=1 logger.tensorboard=false kernels=order " +
           more;
  }
  static std::string from_scratch(const std::string& more) {
    return tiny("model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 " + more);
  }
  std::string text_of(const fs::path& file) const { return content_of(folder / file); }
  std::string lines_;
};

TEST_F(UserData, TheTokenizerOfAModelIsItsDefault) {
  call("tokenize --train-bpe 300 --input text.jsonl --json-keys body --output tok/");
  EXPECT_EQ(parse_json(text_of("tok/tokenizer_config.json"), "it")["eos_token"], "<|endoftext|>");
  // The vocabulary is the tokenizer's where none is given.
  EXPECT_THAT(call(from_scratch("tokenizer.path=tok train.train_iters=2 checkpoint.save=a "
                                "checkpoint.export_hf=true logger.dir=la")),
              AllOf(HasSubstr("tokenizer: huggingface, 300 tokens, from tok"),
                    HasSubstr("\n  training    28"), HasSubstr(" epochs in this run"),
                    HasSubstr("\n  validation  1")));
  EXPECT_THAT(call("config show checkpoint.load=a | grep -A9 ^tokenizer"), HasSubstr("path: tok"));
  EXPECT_THAT(call(from_scratch("tokenizer.path=tok model.vocab_size=299 logger.dir=l"), 2),
              AllOf(HasSubstr("model.vocab_size=299"), HasSubstr("300 tokens")));
  const fs::path hf = "a/hf/step_00000002";
  EXPECT_EQ(text_of(hf / "tokenizer.json"), text_of("tok/tokenizer.json"));
  call("convert " + hf.string() + " model.gguf --format gguf");
  write("in.jsonl", "{\"text\": \"the loss rises<|endoftext|>slowly 12\"}\n");
  call("convert " + hf.string() + " weights --format pentatron");
  fs::remove_all(folder / "tok");
  int i = 0;
  for (const std::string& load :
       {std::string("--hf ") + hf.string(), "checkpoint.load=hf:" + hf.string(),
        std::string("checkpoint.load=model.gguf"), std::string("checkpoint.load=weights")}) {
    const std::string out = "b" + std::to_string(++i);
    EXPECT_THAT(call(tiny(load + " train.train_iters=1 checkpoint.export_hf=true checkpoint.save=" +
                          out + " logger.dir=l" + out)),
                AllOf(HasSubstr("300 tokens, from "), Not(HasSubstr("bytes, "))));
    const std::string exported = out + "/hf/step_00000001";
    if (load.find("gguf") == std::string::npos) {
      EXPECT_EQ(text_of(exported + "/tokenizer.json"), text_of(hf / "tokenizer.json"));
    } else {
      EXPECT_EQ(run("tokenize --tokenizer " + exported + " < in.jsonl"),
                run("tokenize --tokenizer " + hf.string() + " < in.jsonl"));
    }
  }
  // A run from a GGUF file has the tokenizer itself: it needs neither the file nor its folder.
  fs::remove(folder / "model.gguf");
  fs::create_directory(folder / "elsewhere");
  for (const std::string command :
       {"generate ../b3 --prompt It --max-new-tokens 2",
        "generate ../b3/hf/step_00000001 --prompt It --max-new-tokens 2",
        "evaluate ../b3 --text 'It is a truth'", "convert ../b3 again.gguf --format gguf"})
    EXPECT_THAT(call(command, 0, "cd elsewhere && "), Not(HasSubstr("without a tokenizer")));
  EXPECT_THAT(call(from_scratch("model.num_query_groups=2 model.kv_channels=16 "
                                "model.ffn_hidden_size=128 checkpoint.load=b3 train.train_iters=2 "
                                "logger.dir=lr")),
              AllOf(HasSubstr("resumed"), Not(HasSubstr("has changed"))));
  // The runs of checkpoints continue with theirs, and see the same samples.
  EXPECT_THAT(call(from_scratch("checkpoint.load=a train.train_iters=3 logger.dir=lc")),
              AllOf(HasSubstr("300 tokens, from a/step_00000002/tokenizer"), HasSubstr("resumed"),
                    Not(HasSubstr("data settings have changed"))));
  EXPECT_THAT(call(from_scratch("checkpoint.load=a checkpoint.finetune=true train.train_iters=1 "
                                "logger.dir=ld")),
              HasSubstr("300 tokens, from a/step_00000002/tokenizer"));
  // A checkpoint is a tokenizer's folder for the commands on files too.
  for (const char* of : {"a", "a/step_00000002", "weights"})
    EXPECT_THAT(call(std::string("preprocess --input text.jsonl --json-keys body --tokenizer ") +
                     of + " --output c --overwrite"),
                HasSubstr("300 documents"));
}

TEST_F(UserData, BytesIsATokenizerWhereverOneIsNamed) {
  write("in.jsonl", "{\"text\": \"ab\"}\n");
  write("ids.jsonl", "{\"ids\": [97, 98]}\n");
  EXPECT_EQ(run("tokenize --tokenizer bytes < in.jsonl"), "{\"ids\":[97,98]}\n");
  EXPECT_EQ(run("tokenize --tokenizer bytes --decode < ids.jsonl"), "{\"text\":\"ab\"}\n");
  EXPECT_THAT(call("tokenize --tokenizer bytes --pattern gpt2 < in.jsonl", 2),
              HasSubstr("--pattern gpt2 has no effect with --tokenizer bytes"));
  EXPECT_THAT(call(from_scratch("tokenizer.path=bytes train.train_iters=1 checkpoint.save=a "
                                "logger.dir=la")),
              HasSubstr("tokenizer: bytes, 257 tokens"));
  EXPECT_THAT(text_of("la/config.yaml"), AllOf(HasSubstr("type: bytes"), HasSubstr("path: \"\"")));
  EXPECT_THAT(call("generate a --prompt ab --max-new-tokens 2"), HasSubstr("ab"));
  EXPECT_THAT(call(from_scratch("tokenizer.type=gpt2 tokenizer.path=bytes"), 1),
              HasSubstr("bytes does not exist"));
}

TEST_F(UserData, AModelWithoutATokenizerSaysSo) {
  const std::string llama = (kTestData / "hf_tiny/llama").string();
  EXPECT_THAT(call(tiny("--hf '" + llama + "' train.train_iters=1 logger.dir=l"), 2),
              AllOf(HasSubstr("comes without a tokenizer"), HasSubstr("131"), HasSubstr("257"),
                    HasSubstr("try: tokenizer.path=")));
  // One that cannot be read is an error where text is read, and no reason to stop elsewhere.
  fs::copy(llama, folder / "broken");
  write("broken/tokenizer.json", "{\"model\": {\"type\": \"Unknown\"}}");
  EXPECT_THAT(call(tiny("--hf broken train.train_iters=1 logger.dir=l"), 1),
              HasSubstr("broken/tokenizer.json"));
  call(tiny("--hf broken train.train_iters=1 dataset.type=mock dataset.path= logger.dir=l"));
}

TEST_F(UserData, ARunStartsFromOneModel) {
  const std::string llama = (kTestData / "hf_tiny/llama").string();
  fs::copy(llama, folder / "other");
  EXPECT_THAT(
      call("train --hf '" + llama + "' dataset.type=mock checkpoint.load=hf:other", 2),
      AllOf(HasSubstr("--hf " + llama + " and checkpoint.load="), HasSubstr("both name a model")));
  write("load.yaml", "checkpoint: {load: 'hf:other'}\n");
  EXPECT_THAT(call("train load.yaml --hf '" + llama + "' dataset.type=mock", 2),
              HasSubstr("both name a model"));
  for (const char* command : {"evaluate other --text a", "generate other --tokens 1", "chat other"})
    EXPECT_THAT(call(std::string(command) + " checkpoint.load=hf:other", 2),
                HasSubstr("has no effect here"));
}

/// The command that starts a run from a model resumes it too.
TEST_F(UserData, ARunUsesAllLayersOfItsModelAndTellsOtherSettings) {
  const std::string llama = "--hf '" + (kTestData / "hf_tiny/llama").string() +
                            "' dataset.type=mock train.train_iters=1 train.seq_length=8 "
                            "train.micro_batch_size=1 train.global_batch_size=1 "
                            "train.num_threads=1 logger.peak_tflops=1 ";
  for (const char* more : {"logger.dir=l1", "--dry-run"})
    EXPECT_THAT(call("train " + llama + "model.num_layers=1 " + more, 2),
                HasSubstr("model.num_layers=1 does not match the model in"))
        << more;
  call("train " + llama + "model.num_layers=1 checkpoint.strictness=log_unexpected logger.dir=l2");
  EXPECT_THAT(call("train " + llama + "model.rotary_base=77 --dry-run"),
              HasSubstr("were trained with model.rotary_base=10000.0 instead of 77.0"));
  EXPECT_THAT(call("train " + llama + "--dry-run"), Not(HasSubstr("were trained with")));
}

TEST_F(UserData, CheckpointsAreNotSavedIntoAModel) {
  fs::copy(kTestData / "hf_tiny/llama", folder / "model");
  for (const char* start : {"--hf model ", ""})
    EXPECT_THAT(call("train " + std::string(start) +
                         "dataset.type=mock train.train_iters=1 train.seq_length=8 "
                         "train.micro_batch_size=1 train.global_batch_size=1 logger.peak_tflops=1 "
                         "checkpoint.save=model logger.dir=l",
                     2),
                AllOf(HasSubstr("contains a model"), HasSubstr("checkpoint.save=model-2")));
  EXPECT_FALSE(fs::exists(folder / "model/latest"));
}

TEST_F(UserData, RunsKeepApartFromModelsAndCheckpoints) {
  fs::copy(kTestData / "hf_tiny/llama", folder / "model");
  const std::string run = from_scratch("train.train_iters=2 logger.dir=l ");
  call(run + "checkpoint.save=s");
  const std::string latest = text_of("s/latest"), config = text_of("model/config.json");
  EXPECT_THAT(
      call(from_scratch("train.train_iters=2 checkpoint.save=t logger.dir=model"), 2),
      AllOf(HasSubstr("logger.dir=model contains a model"), HasSubstr("logger.dir=model-2")));
  EXPECT_FALSE(fs::exists(folder / "model/metrics.jsonl"));
  EXPECT_THAT(call(from_scratch("train.train_iters=2 logger.dir=" + std::string(300, 'x')), 2),
              AllOf(HasSubstr("File name too long"), HasSubstr("try: another logger.dir"),
                    Not(HasSubstr("run.lock"))));
  for (const char* inside : {"s/step_00000002", "s/step_00000002/more/and_more"})
    EXPECT_THAT(call(from_scratch("train.train_iters=2 logger.dir=m checkpoint.save=" +
                                  std::string(inside)),
                     2),
                HasSubstr("is in a checkpoint"));
  for (const char* target : {"s/step_00000099 --format pentatron", "s/step_00000002 --format hf"})
    EXPECT_THAT(call("convert model " + std::string(target), 2),
                HasSubstr("has the name of a checkpoint of the training run in"));
  EXPECT_THAT(call("convert model model/inside --format hf", 2), HasSubstr("is in the source"));
  EXPECT_EQ(text_of("s/latest"), latest);
  EXPECT_EQ(text_of("model/config.json"), config);
  call("checkpoint verify s");
}

TEST_F(UserData, OutputsDoNotReplaceInputs) {
  write("p_skipped.jsonl", lines_);
  write("text.txt", "it rises\n");
  const std::string preprocess =
      "preprocess --json-keys body --tokenizer bytes --overwrite --input ";
  EXPECT_THAT(call(preprocess + "p_skipped.jsonl --output p", 2),
              AllOf(HasSubstr("p_skipped.jsonl is both an input and an output"),
                    HasSubstr("--output p-2")));
  EXPECT_EQ(text_of("p_skipped.jsonl"), lines_);
  call(preprocess + "text.jsonl --output c");
  EXPECT_THAT(call(preprocess + "c_body_document.bin --output d", 1),
              HasSubstr("is part of a corpus of token ids, not text"));
  EXPECT_TRUE(fs::exists(folder / "c_body_document.bin"));
  // The tokenizer of a model is not one of its own.
  call("tokenize --train-bpe 300 --input text.txt --output model/");
  write("model/config.json", "{}");
  const std::string before = text_of("model/tokenizer.json");
  EXPECT_THAT(call("tokenize --train-bpe 280 --input text.txt --output model --overwrite", 2),
              HasSubstr("is the tokenizer of the model in model"));
  fs::create_symlink("model/tokenizer.json", folder / "link.json"); // nor under another name
  EXPECT_THAT(call("tokenize --train-bpe 280 --input text.txt --output link.json --overwrite", 2),
              HasSubstr("is the tokenizer of the model in "));
  EXPECT_EQ(text_of("model/tokenizer.json"), before);
}

TEST_F(UserData, SizesOfAnImportedModelAreItsOwn) {
  fs::copy(kTestData / "hf_tiny/llama", folder / "model");
  write("other.yaml", "model:\n  hidden_size: 16\n  num_layers: 1\n  num_attention_heads: 2\n");
  const std::string train = "train --hf model dataset.type=mock train.seq_length=8 "
                            "train.global_batch_size=1 train.micro_batch_size=1 --dry-run ";
  EXPECT_THAT(call(train + "other.yaml", 2),
              AllOf(HasSubstr("other.yaml:2: model.hidden_size=16 does not match the model in "
                              "checkpoint.load=hf:model, which has"),
                    Not(HasSubstr("num_query_groups"))));
  EXPECT_THAT(call(train + "model.num_layers=1", 2),
              HasSubstr("or checkpoint.strictness=log_unexpected to keep its first 1"));
  call(train + "model.num_layers=1 checkpoint.strictness=log_unexpected");
}

TEST_F(UserData, ARunFromAModelIsResumedByItsOwnCommand) {
  const std::string start =
      "train --hf '" + (kTestData / "hf_tiny/llama").string() +
      "' dataset.type=mock train.seq_length=16 train.micro_batch_size=1 "
      "train.global_batch_size=2 kernels=order checkpoint.save=s logger.dir=l ";
  EXPECT_THAT(call(start + "checkpoint.load=auto train.train_iters=1"),
              Not(HasSubstr("resumed from")));
  EXPECT_THAT(call(start + "checkpoint.load=auto train.train_iters=2"),
              HasSubstr("resumed from s/step_00000001"));
  EXPECT_THAT(call(start + "checkpoint.load=s train.train_iters=3"),
              HasSubstr("resumed from s/step_00000002"));
  // And no other model's.
  fs::copy(kTestData / "hf_tiny/llama", folder / "other");
  std::string others = start;
  others.replace(others.find("--hf '") + 6, (kTestData / "hf_tiny/llama").string().size(), "other");
  for (const char* load : {"auto", "s"})
    EXPECT_THAT(call(others + "train.train_iters=4 checkpoint.load=" + load, 2),
                AllOf(HasSubstr("not from --hf other"), HasSubstr("\n  try: remove --hf")));
  EXPECT_THAT(call(others + "checkpoint.load=s checkpoint.finetune=true", 2),
              HasSubstr("both name a model"));
  call(from_scratch("checkpoint.save=own logger.dir=lo train.train_iters=1"));
  EXPECT_THAT(call(others + "checkpoint.load=own", 2), HasSubstr("started from new weights"));
}

TEST_F(UserData, AByteLevelModelExportsATokenizer) {
  call(from_scratch(
      "train.train_iters=1 checkpoint.save=a checkpoint.export_hf=true logger.dir=la"));
  call("convert a b --format hf");
  const fs::path exported = "a/hf/step_00000001";
  EXPECT_EQ(text_of(exported / "tokenizer.json"), text_of("b/tokenizer.json"));
  EXPECT_EQ(parse_json(text_of("b/tokenizer_config.json"), "it")["eos_token"], "<|endoftext|>");
  std::string every; // that UTF-8 can contain
  for (int c = 1; c < 0x800; ++c) {
    if (c < 0x80) {
      every += static_cast<char>(c);
    } else {
      every += static_cast<char>(0xC0 | (c >> 6));
      every += static_cast<char>(0x80 | (c & 0x3F));
    }
  }
  every += "  two  spaces\n\n\xF0\x9F\x98\x80\xE2\x82\xAC";
  write("in.jsonl", dump_json(Json{{"text", every}}) + "\n");
  const Json ids = parse_json(run("tokenize --tokenizer b < in.jsonl"), "output")["ids"];
  ASSERT_EQ(ids.size(), every.size());
  for (size_t i = 0; i < every.size(); ++i)
    ASSERT_EQ(ids[i].get<int>(), static_cast<unsigned char>(every[i])) << i;
  write("ids.jsonl", dump_json(Json{{"ids", ids}}) + "\n");
  EXPECT_EQ(parse_json(run("tokenize --decode --tokenizer b < ids.jsonl"), "output")["text"],
            every);
  EXPECT_THAT(call(tiny("--hf b train.train_iters=1 logger.dir=lb")),
              HasSubstr("tokenizer: huggingface, 257 tokens, from b"));
  for (const char* from : {"a", "b"}) { // a checkpoint, a Hugging Face folder
    const std::string gguf = std::string(from) + ".gguf";
    EXPECT_THAT(call("convert " + std::string(from) + " " + gguf + " --format gguf"),
                Not(HasSubstr("without a tokenizer")));
    EXPECT_EQ(parse_json(run("tokenize --tokenizer " + gguf + " < in.jsonl"), "output")["ids"],
              ids);
  }
  // Of random tokens nothing is known, so no tokenizer is made up.
  call(from_scratch("dataset.type=mock dataset.path= train.train_iters=1 checkpoint.save=m "
                    "checkpoint.export_hf=true logger.dir=lm"));
  EXPECT_FALSE(fs::exists(folder / "m/hf/step_00000001/tokenizer.json"));
}

TEST_F(UserData, ModelsAreFoundByNameInTheHuggingFaceCache) {
  const fs::path model = folder / "hub/models--Some-Org--tiny";
  fs::create_directories(model / "blobs");
  fs::create_directories(model / "snapshots/0123abcd");
  write("hub/models--Some-Org--tiny/refs/main", "0123abcd");
  for (const auto& entry : fs::directory_iterator(kTestData / "hf_tiny/llama")) {
    const std::string name = entry.path().filename();
    fs::copy_file(entry.path(), model / "blobs" / ("b" + name));
    fs::create_symlink("../../blobs/b" + name, model / "snapshots/0123abcd" / name);
  }
  const std::string cache = "HF_HUB_CACHE=$PWD/hub ";
  const std::string batches =
      " --batches '" + (kTestData / "hf_tiny/llama/expected.safetensors").string() + "'";
  EXPECT_THAT(call("evaluate --hf Some-Org/tiny" + batches, 0, cache), HasSubstr("\"loss\""));
  call("generate Some-Org/tiny --tokens 1,2 --max-new-tokens 2", 0, cache);
  call("generate hf:Some-Org/tiny --tokens 1,2 --max-new-tokens 2", 0, cache);
  call("convert Some-Org/tiny out --format hf", 0, cache);
  const std::string made = text_of("out/model.safetensors"),
                    original = content_of(kTestData / "hf_tiny/llama/model.safetensors");
  constexpr size_t kTensorBytes = 235'584; // the headers are padded differently
  EXPECT_TRUE(made.substr(made.size() - kTensorBytes) ==
              original.substr(original.size() - kTensorBytes));
  int runs = 0;
  for (const char* load : {"--hf Some-Org/tiny", "checkpoint.load=hf:Some-Org/tiny"})
    call(tiny(std::string(load) +
              " dataset.type=mock dataset.path= train.train_iters=1 logger.dir=l" +
              std::to_string(++runs)),
         0, cache);
  // Of another one config.json is there alone, as after a download that was interrupted.
  fs::create_directories(folder / "hub/models--Some-Org--part/snapshots/1");
  write("hub/models--Some-Org--part/refs/main", "1");
  fs::copy_file(kTestData / "hf_tiny/llama/config.json",
                folder / "hub/models--Some-Org--part/snapshots/1/config.json");
  const auto part_says = [&](int status, const std::string& what) {
    for (const char* command :
         {"evaluate --hf Some-Org/part --text ab", "generate Some-Org/part --prompt ab",
          "chat hf:Some-Org/part",
          "train --hf Some-Org/part dataset.path=text.jsonl dataset.text_key=body"})
      EXPECT_THAT(call(command, status, cache),
                  AllOf(HasSubstr(what), HasSubstr("\n  try: hf download Some-Org/part\n")))
          << command;
  };
  part_says(1, "contains neither model.safetensors nor");
  write("hub/models--Some-Org--part/snapshots/1/model.safetensors.index.json",
        R"({"weight_map": {"a": "model-00001-of-00002.safetensors"}})");
  part_says(1, "model-00001-of-00002.safetensors");
  fs::remove(folder / "hub/models--Some-Org--part/snapshots/1/model.safetensors.index.json");
  fs::copy_file(kTestData / "hf_tiny/llama/model.safetensors",
                folder / "hub/models--Some-Org--part/snapshots/1/model.safetensors");
  part_says(2, "tokenizer");
  for (const char* command :
       {"evaluate --hf Some-Org/other --batches x", "generate Some-Org/other --tokens 1",
        "chat hf:Some-Org/other", "convert Some-Org/other out2 --format hf",
        "train --hf Some-Org/other dataset.type=mock",
        "preprocess --input text.jsonl --output c "
        "--tokenizer Some-Org/other"})
    EXPECT_THAT(call(command, 1, cache), AllOf(HasSubstr("Some-Org/other does not exist"),
                                               HasSubstr("try: hf download Some-Org/other")))
        << command;
}

TEST_F(UserData, TrainingWithoutADocumentIsAnError) {
  write("empty.txt", "");
  const std::string keys = "dataset.text_key=text train.train_iters=1 ";
  EXPECT_THAT(call(from_scratch(keys), 1),
              AllOf(HasSubstr("text.jsonl: line 1 has no key \"text\"; its only key is \"body\""),
                    HasSubstr("try: dataset.text_key=body"), Not(HasSubstr("on_bad_input"))));
  EXPECT_THAT(call(from_scratch(keys + "dataset.on_bad_input=skip"), 1),
              AllOf(HasSubstr("contains no documents (300 skipped"),
                    HasSubstr("try: dataset.text_key=body")));
  EXPECT_THAT(call(from_scratch("dataset.path=empty.txt train.train_iters=1"), 1),
              AllOf(HasSubstr("empty.txt is empty"), Not(HasSubstr("on_bad_input"))));
  EXPECT_FALSE(fs::exists(folder / "runs"));
}

TEST_F(UserData, TrainingListsWhatItSkips) {
  write("text.jsonl", lines_ + "{broken\n" + lines_ + "{\"id\": 7}\n");
  EXPECT_THAT(call(from_scratch("train.train_iters=1 logger.dir=l"), 1),
              AllOf(HasSubstr("text.jsonl: line 301 is not a JSON object"),
                    HasSubstr("try: dataset.on_bad_input=skip")));
  EXPECT_THAT(call(from_scratch("train.train_iters=1 logger.dir=l dataset.on_bad_input=skip")),
              HasSubstr("all skipped input is listed in l/skipped.jsonl"));
  EXPECT_EQ(
      text_of("l/skipped.jsonl"),
      "{\"file\":\"text.jsonl\",\"line\":301,\"reason\":\"is not a JSON object\"}\n"
      "{\"file\":\"text.jsonl\",\"line\":602,\"reason\":\"has no key \\\"body\\\"; its only key "
      "is \\\"id\\\"\"}\n");
}

TEST_F(UserData, PreprocessNamesItsOwnOptions) {
  EXPECT_THAT(call("preprocess --input none.txt --tokenizer bytes --output c", 1),
              AllOf(HasSubstr("--input none.txt does not exist"), Not(HasSubstr("dataset.path"))));
  EXPECT_THAT(call("preprocess --input text.jsonl --tokenizer bytes --output ''", 2),
              HasSubstr("--output is empty"));
  const std::string out =
      call("preprocess --input text.jsonl --tokenizer bytes --json-keys body --output c");
  EXPECT_THAT(out, AllOf(HasSubstr("c_body_document: 300 documents"),
                         HasSubstr("with dataset.split=95,5,0: ")));
  EXPECT_THAT(call("preprocess --input text.jsonl --tokenizer bytes --output c", 1),
              AllOf(HasSubstr("--input text.jsonl contains no documents"),
                    HasSubstr("try: --json-keys body")));
  call("corpus verify c_body_document");
}

TEST_F(UserData, OfTwoTokenizersForOneFolderOneIsWritten) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += fmt::format("the loss {} falls, then it rises\n", i);
  write("words.txt", text);
  const std::string train = "tokenize --input words.txt --output race/ --train-bpe ";
  const std::string statuses =
      run(train + "300 > a 2>&1 & cd '" + folder.string() + "'; '" PENTATRON_PROGRAM "' " + train +
          "310 > b 2>&1; second=$?; wait $!; echo $? $second");
  EXPECT_THAT(statuses, testing::AnyOf("0 2\n", "2 0\n"));
  const bool first = statuses == "0 2\n";
  EXPECT_THAT(text_of(first ? "b" : "a"), HasSubstr("race/tokenizer.json exists"));
  EXPECT_EQ(parse_json(text_of("race/tokenizer.json"), "it")["model"]["vocab"].size(),
            first ? 300u : 310u);
}

TEST_F(UserData, TokenizersAreTrainedOnFilesOfEveryKind) {
  std::string array = "[";
  for (const char c : lines_) c == '\n' ? array += ',' : array += c;
  array.back() = ']';
  write("a.json", array);
  std::string text; // the lines as text
  std::istringstream in(lines_);
  for (std::string line; std::getline(in, line);)
    text += parse_json(line, "it")["body"].get<std::string>();
  call("tokenize --train-bpe 280 --input text.jsonl --json-keys body --output one.json");
  call("tokenize --train-bpe 280 --input a.json --json-keys body --output two.json");
  call("tokenize --train-bpe 280 --json-keys body --output three.json < a.json");
  run("tokenize --train-bpe 280 --json-keys body --input z.jsonl.gz --output four.json", 0,
      "gzip -c text.jsonl > z.jsonl.gz && ");
  for (const char* other : {"two.json", "three.json", "four.json"})
    EXPECT_EQ(text_of("one.json"), text_of(other)) << other;
  EXPECT_FALSE(fs::exists(folder / "tokenizer_config.json")) << "beside tokenizer.json only";
  EXPECT_THAT(call("tokenize --train-bpe 280 --input text.jsonl --output x.json", 1),
              HasSubstr("text.jsonl: line 1: the JSON object has no key \"text\"; its only key is "
                        "\"body\"\n  try: --json-keys body\n"));
  EXPECT_FALSE(fs::exists(folder / "x.json"));
  const std::string out =
      call("tokenize --train-bpe 100000 --input text.jsonl --json-keys body --output all.json");
  EXPECT_THAT(out, HasSubstr("warning: --train-bpe 100000 is more than this text needs: with "));
  const std::string size = out.substr(out.find("try: --train-bpe ") + 17);
  EXPECT_THAT(call("tokenize --input text.jsonl --json-keys body --output same.json --train-bpe " +
                   size.substr(0, size.find(','))),
              Not(HasSubstr("warning")));
  EXPECT_EQ(text_of("all.json"), text_of("same.json"));
  std::ofstream(folder / "nothing.txt").flush();
  EXPECT_THAT(call("tokenize --train-bpe 280 --input nothing.txt --output x.json", 1),
              HasSubstr("--input nothing.txt contains no text"));
}

TEST_F(UserData, APatternIsRefusedByATokenizerThatHasItsOwn) {
  const std::string kinds = PENTATRON_TEST_DATA "/tokenizers/";
  write("a.jsonl", lines_);
  call("tokenize --train-bpe 280 --input a.jsonl --json-keys body --output trained/");
  for (const std::string& path :
       {kinds + "gpt2.json", kinds + "spm_unigram.model", std::string("trained")}) {
    EXPECT_THAT(run("tokenize --tokenizer " + path + " --pattern gpt2 2>&1 < /dev/null", 2),
                AllOf(HasSubstr("error: --pattern gpt2 has no effect on "),
                      HasSubstr("\n  try: remove --pattern\n")))
        << path;
    EXPECT_THAT(call("train dataset.path=a.jsonl dataset.text_key=body model.vocab_size=60000 "
                     "tokenizer.pattern=gpt2 --dry-run tokenizer.path=" +
                         path,
                     2),
                AllOf(HasSubstr("error: tokenizer.pattern=gpt2 has no effect on "),
                      HasSubstr("\n  try: remove tokenizer.pattern\n")))
        << path;
  }
  run("tokenize --tokenizer " + kinds + "cl100k_small.tiktoken --pattern gpt2 < /dev/null");
}

} // namespace
} // namespace pentatron

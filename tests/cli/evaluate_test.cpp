// `pentatron evaluate` on texts, and weights that turn out to be corrupted while they are read.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <numbers>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "pentatron/base/safetensors.h"
#include "tests/cli/letter_model.h"
#include "tests/cli/program_folder.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Evaluating : public test::ProgramFolder {
 protected:
  void SetUp() override { test::make_letter_model(folder / "model"); }

  Json evaluate(const std::string& arguments) const {
    return parse_json(run("evaluate " + arguments + " dtype=fp64 2>/dev/null"), arguments);
  }
  std::string error_of(const std::string& arguments, int status) const {
    return run("evaluate " + arguments + " 2>&1", status);
  }
  /// The negative log-likelihood of `text[1..]` after `text[0]`; '~' stands for the end of a
  /// document.
  double nll(const std::string& text) const {
    std::vector<int64_t> ids;
    for (const char c : text) ids.push_back(c == '~' ? 94 : c - 33);
    const auto count = static_cast<int64_t>(ids.size());
    SafetensorsWriter writer(folder / "batch.safetensors",
                             {{"input_ids", SafeDtype::kI64, {1, count}}}, {});
    writer.write("input_ids", std::as_bytes(std::span(ids)));
    writer.finish();
    const Json result = evaluate("--hf model --batches batch.safetensors");
    return result["loss"].get<double>() * static_cast<double>(count - 1);
  }
};

TEST_F(Evaluating, BatchesWithoutLabelsPrintNoLoss) {
  const std::vector<int64_t> ids = {1, 2, 3, 4}, labels(4, -100);
  SafetensorsWriter writer(
      folder / "batch.safetensors",
      {{"input_ids", SafeDtype::kI64, {1, 4}}, {"labels", SafeDtype::kI64, {1, 4}}}, {});
  writer.write("input_ids", std::as_bytes(std::span(ids)));
  writer.write("labels", std::as_bytes(std::span(labels)));
  writer.finish();
  const std::string call = "evaluate model --batches batch.safetensors ";
  EXPECT_EQ(run(call + "--logits-out l.safetensors 2>/dev/null"), "{\"loss\":null}\n");
  EXPECT_TRUE(std::filesystem::exists(folder / "l.safetensors"));
  EXPECT_THAT(
      run(call + "--hidden-out h.safetensors 2>&1"),
      HasSubstr("no loss is computed, because all labels of batch.safetensors are ignored"));
  EXPECT_THAT(run(call + "2>&1", 1), HasSubstr("gives no loss"));
  EXPECT_THAT(run("evaluate model --text ab --hidden-out t.safetensors 2>&1"),
              Not(HasSubstr("no loss")));
}

TEST_F(Evaluating, BatchesNameTheLabelsThatTheyLack) {
  const std::vector<int64_t> ids = {1, 2, 3, 4};
  SafetensorsWriter bare(folder / "bare.safetensors", {{"input_ids", SafeDtype::kI64, {1, 4}}}, {});
  bare.write("input_ids", std::as_bytes(std::span(ids)));
  bare.finish();
  const std::string models = PENTATRON_TEST_DATA "/hf_tiny/",
                    batch = " --batches bare.safetensors --hidden-out h.safetensors --overwrite ";
  EXPECT_THAT(run("evaluate " + models + "bert" + batch + "2>&1"),
              AllOf(HasSubstr("no loss is computed, because bare.safetensors does not contain "
                              "labels and next_sentence_label\n"),
                    HasSubstr("{\"loss\":null}\n")));
  EXPECT_THAT(run("evaluate " + models + "bert_model" + batch + "2>&1"),
              Not(HasSubstr("no loss"))); // no output layer, so none is expected
}

TEST_F(Evaluating, TakesTheTokenizerOfBytesByItsName) {
  EXPECT_THAT(run("evaluate model --text AB tokenizer.path=bytes"), HasSubstr("\"tokens\":1"));
  EXPECT_THAT(run("evaluate model --text AB tokenizer.path=bytes tokenizer.type=bytes 2>&1", 2),
              HasSubstr("try: remove tokenizer.type"));
}

void expect_score(const Json& got, double nll, int64_t tokens, int64_t bytes, int64_t documents) {
  const double loss = nll / static_cast<double>(tokens);
  EXPECT_NEAR(got["loss"].get<double>(), loss, 1e-12 * loss);
  EXPECT_NEAR(got["perplexity"].get<double>(), std::exp(loss), 1e-9 * std::exp(loss));
  const double bits = nll / std::numbers::ln2 / static_cast<double>(bytes);
  EXPECT_NEAR(got["bits_per_byte"].get<double>(), bits, 1e-12 * bits);
  EXPECT_EQ(got["tokens"], tokens);
  EXPECT_EQ(got["bytes"], bytes);
  EXPECT_EQ(got["documents"], documents);
}

TEST_F(Evaluating, ATextIsPredictedFromTheEndOfADocument) {
  const double expected = nll("~abcdefgh");
  for (const char* model : {"model", "--hf model", "--model hf:model"})
    expect_score(evaluate(std::string(model) + " --text abcdefgh"), expected, 8, 8, 1);
  run("convert model mine --format pentatron 2>/dev/null");
  run("convert model m.gguf --format gguf 2>/dev/null");
  for (const char* model : {"mine", "mine/step_00000000", "m.gguf"})
    EXPECT_NEAR(evaluate(std::string(model) + " --text abcdefgh")["loss"].get<double>(),
                expected / 8, 1e-6)
        << model;
}

TEST_F(Evaluating, LongTextsAreCutIntoWindowsThatPredictEveryTokenOnce) {
  expect_score(evaluate("model --text abcdefghij --context 4"),
               nll("~abcd") + nll("defgh") + (nll("fghij") - nll("fgh")), 10, 10, 1);
  expect_score(evaluate("model --text abcdef --context 4 --stride 2"),
               nll("~abcd") + (nll("bcdef") - nll("bcd")), 6, 6, 1);
  const double loss = evaluate("model --text abcdefghij")["loss"];
  EXPECT_NEAR(evaluate("model --text abcdefghij --stride 1")["loss"].get<double>(), loss, 1e-12);
  EXPECT_THAT(error_of("model --text ab --context 4 --stride 5", 2),
              AllOf(HasSubstr("--stride 5"), HasSubstr("try: --stride 2")));
  EXPECT_THAT(error_of("model --text ab --context 1000000", 2),
              AllOf(HasSubstr("--context 1000000"), HasSubstr("try: --context ")));
}

TEST_F(Evaluating, FilesAndFoldersAreDocumentsOfTheirOwn) {
  fs::create_directory(folder / "texts");
  std::ofstream(folder / "texts/one.txt") << "abcd";
  std::ofstream(folder / "texts/two.jsonl") << R"({"text":"xyz"})"
                                            << "\n"
                                            << R"({"text":"efgh"})"
                                            << "\n";
  std::ofstream(folder / "other.jsonl") << R"({"body":"ij"})"
                                        << "\n";
  const double three = nll("~abcd") + nll("~xyz") + nll("~efgh");
  expect_score(evaluate("model --file texts"), three, 11, 11, 3);
  expect_score(evaluate("model --file texts/two.jsonl --file texts/one.txt"), three, 11, 11, 3);
  expect_score(evaluate("model --file other.jsonl --text-key body"), nll("~ij"), 2, 2, 1);
}

TEST_F(Evaluating, ErrorsOfFilesNameTheOptionsOfEvaluate) {
  std::ofstream(folder / "other.jsonl") << R"({"body":"ij"})"
                                        << "\n";
  std::ofstream(folder / "mixed.jsonl") << R"({"text":"ij"})"
                                        << "\n"
                                        << R"({"body":"ij"})"
                                        << "\n";
  std::ofstream(folder / "empty.txt").flush();
  const auto says = [&](const std::string& file, const std::string& words) {
    EXPECT_THAT(error_of("model --file " + file, 1),
                AllOf(HasSubstr(words), HasSubstr("try: "), Not(HasSubstr("dataset."))));
  };
  says("none.txt", "--file none.txt does not exist");
  says("other.jsonl", "try: --text-key body");
  says("mixed.jsonl", "try: a copy of the file without this line");
  says("empty.txt", "try: another file");
}

TEST_F(Evaluating, WithoutAStartTokenTheFirstTokenDoesNotCount) {
  Json tokenizer = read_json(folder / "model/tokenizer.json");
  tokenizer["added_tokens"] = Json::array();
  std::ofstream(folder / "model/tokenizer.json") << tokenizer;
  std::ofstream(folder / "model/tokenizer_config.json") << "{}";
  expect_score(evaluate("model --text abcdefgh"), nll("abcdefgh"), 7, 7, 1);
  // The space is no token, so that the bytes of the first token are not those of the text.
  const Json unknown = evaluate("model --text ' abc'");
  EXPECT_TRUE(unknown["bits_per_byte"].is_null());
  EXPECT_TRUE(unknown["bytes"].is_null());
  EXPECT_EQ(unknown["tokens"], 2);
}

TEST_F(Evaluating, TheHelpNamesEveryKindOfFile) {
  for (const char* verb : {"evaluate", "tokenize"})
    EXPECT_THAT(run(verb + std::string(" --help")),
                AllOf(HasSubstr("array"), HasSubstr(".parquet")));
}

TEST_F(Evaluating, TakesOneModelAndOneInput) {
  EXPECT_THAT(error_of("", 2), AllOf(HasSubstr("needs a model"), HasSubstr("try: ")));
  EXPECT_THAT(error_of("model", 2), HasSubstr("one of --batches, --text, --file and --tasks"));
  EXPECT_THAT(error_of("model --text a --file b", 2),
              AllOf(HasSubstr("--text and --file are given"), HasSubstr("try: only --file")));
  EXPECT_THAT(error_of("model --batches a --text b", 2), HasSubstr("--batches and --text"));
  EXPECT_THAT(error_of("model --hf other --text a", 2), HasSubstr("both name a model"));
  EXPECT_THAT(error_of("model --text a --grads-out g", 2), HasSubstr("--grads-out"));
  EXPECT_THAT(error_of("model --text a train.train_iters=3", 2), HasSubstr("train.train_iters=3"));
  EXPECT_THAT(error_of("'" PENTATRON_TEST_DATA "/hf_tiny/llama' --text a", 2),
              AllOf(HasSubstr("has no tokenizer"), HasSubstr("try: tokenizer.path=")));
  EXPECT_THAT(error_of("model --text a --overwrite", 2), HasSubstr("without an output file"));
  EXPECT_THAT(error_of("model --tasks a.yaml --out nowhere/scores", 2),
              AllOf(HasSubstr("--out nowhere/scores is not a file in an existing folder"),
                    HasSubstr("try: --out scores.json")));
}

TEST_F(Evaluating, TakesATokenizerFromElsewhere) {
  const std::string bare = "'" PENTATRON_TEST_DATA "/hf_tiny/llama'";
  EXPECT_EQ(run("evaluate " + bare + " --text abab tokenizer.path=model"),
            run("evaluate model --text abab"));
  EXPECT_THAT(error_of("model --batches batch.safetensors tokenizer.path=model", 2),
              HasSubstr("tokenizer.path=model has no effect here"));
}

TEST_F(Evaluating, WindowsMayBeAsLongAsDynamicPositionsAllow) {
  const std::string command = "evaluate '" PENTATRON_TEST_DATA
                              "/hf_tiny/llama_dynamic' tokenizer.path=model --text abab --context ";
  run(command + "60 2>/dev/null"); // 2.5 times the positions of the model
  EXPECT_THAT(run(command + "61 2>&1", 2),
              AllOf(HasSubstr("the model's context of 60 tokens"), HasSubstr("try: --context 60")));
}

TEST_F(Evaluating, WhatIsOddAboutATaskIsToldOnce) {
  std::ofstream(folder / "task.jsonl") << R"({"word": "a", "next": "b"})"
                                       << "\n"
                                       << R"({"word": "b", "next": "c"})"
                                       << "\n";
  std::ofstream(folder / "task.yaml") << "task: letters\ndataset_path: json\n"
                                         "dataset_kwargs: {data_files: {test: task.jsonl}}\n"
                                         "test_split: test\noutput_type: loglikelihood\n"
                                         "doc_to_text: '{{word}}'\ndoc_to_text: wrd\n"
                                         "doc_to_target: next\nnum_fewshot: 1\n";
  for (const char* ranks : {"", "--ranks 2 ", "--ranks 2 --backend sockets "}) {
    const std::string told = run("evaluate model --tasks task.yaml " + std::string(ranks) + "2>&1");
    for (const char* what : {"the key doc_to_text appears twice", "wrd is not a column",
                             "its examples come from the split that is scored"}) {
      const size_t first = told.find(what);
      EXPECT_NE(first, told.npos) << ranks << told;
      EXPECT_EQ(told.find(what, first + 1), told.npos) << ranks << told;
    }
  }
}

/// An encoder without heads has no loss.
TEST_F(Evaluating, HiddenStatesOfATextNeedNoHead) {
  fs::copy(fs::path(PENTATRON_TEST_DATA) / "hf_tiny/bert_model", folder / "plain");
  Json vocabulary = Json::object();
  for (int i = 64; i < 127; ++i) vocabulary[std::string(1, static_cast<char>(i))] = i - 64;
  std::ofstream(folder / "plain/tokenizer.json")
      << Json{{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}},
              {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
              {"decoder", {{"type", "ByteLevel"}}}};
  run("evaluate plain --text abab --hidden-out hidden.safetensors 2>/dev/null");
  const SafetensorsFile hidden(folder / "hidden.safetensors");
  EXPECT_THAT(hidden.at("last_hidden_state").shape, testing::ElementsAre(1, 4, testing::Gt(1)));
}

/// A decoder without its output layer gives nothing else.
TEST_F(Evaluating, HiddenStatesOfADecoderNeedNoOutputLayer) {
  const fs::path whole = fs::path(PENTATRON_TEST_DATA) / "hf_tiny/llama";
  fs::create_directory(folder / "body");
  Json config = read_json(whole / "config.json");
  config["architectures"] = {"LlamaModel"};
  std::ofstream(folder / "body/config.json") << config;
  const SafetensorsFile file(whole / "model.safetensors");
  SafeTensors tensors;
  for (const auto& [name, tensor] : file.tensors())
    if (name != "lm_head.weight") tensors.emplace(name, tensor);
  write_safetensors(folder / "body/model.safetensors", tensors);
  const std::string batches = " --batches '" + (whole / "expected.safetensors").string() + "'";
  EXPECT_EQ(run("evaluate --hf body" + batches + " --hidden-out hidden.safetensors 2>/dev/null"),
            "");
  const SafetensorsFile hidden(folder / "hidden.safetensors");
  EXPECT_THAT(hidden.at("last_hidden_state").shape, testing::ElementsAre(2, 40, 48));
  EXPECT_THAT(error_of("--hf body" + batches, 1),
              AllOf(HasSubstr("lm_head.weight is missing"), HasSubstr("--hidden-out hidden")));
  // That of the class alone is not enough.
  fs::copy_file(whole / "model.safetensors", folder / "body/model.safetensors",
                fs::copy_options::overwrite_existing);
  for (const char* more : {"", " --overwrite --hidden-out hidden.safetensors"})
    EXPECT_THAT(run("evaluate --hf body" + batches + more + " 2>/dev/null"),
                HasSubstr("{\"loss\":"));
}

/// With and without its hidden states, also where the embedding could be the output layer.
TEST_F(Evaluating, AModelNamedWithoutAHeadHasNoLoss) {
  const fs::path whole = fs::path(PENTATRON_TEST_DATA) / "hf_tiny/gpt2";
  const std::string batches = " --batches '" + (whole / "expected.safetensors").string() + "'";
  fs::copy(whole, folder / "body");
  Json config = read_json(whole / "config.json");
  for (const auto& [name, loss] : {std::pair{"GPT2Model", false}, {"GPT2DoubleHeadsModel", true}}) {
    config["architectures"] = {name};
    fs::remove(folder / "body/config.json");
    std::ofstream(folder / "body/config.json") << config;
    for (const char* out : {"--logits-out", "--hidden-out"}) {
      fs::remove(folder / "out.safetensors");
      const std::string printed =
          run("evaluate --hf body" + batches + " " + out + " out.safetensors 2>/dev/null");
      EXPECT_EQ(printed.starts_with("{\"loss\":"), loss) << name << out << printed;
      EXPECT_EQ(printed.empty(), !loss) << name << out << printed;
    }
  }
}

TEST_F(Evaluating, TellsFilesThatCountTwiceAndThoseLeftOut) {
  fs::create_directory(folder / "texts");
  std::ofstream(folder / "texts/a.txt") << "abab";
  std::ofstream(folder / "texts/picture.png") << "x";
  const std::string once = run("evaluate model --file texts 2>&1");
  EXPECT_THAT(once, HasSubstr("skipped 1 file of unsupported types"));
  const std::string twice = run("evaluate model --file texts --file texts/../texts/a.txt 2>&1");
  EXPECT_THAT(twice, HasSubstr("is given twice"));
  EXPECT_THAT(twice, HasSubstr("\"documents\":2"));
}

class Labelled : public test::ProgramFolder {
 protected:
  void SetUp() override {
    std::string lines;
    for (int i = 0; i < 24; ++i)
      lines +=
          fmt::format(R"({{"text": "text {}", "mood": "{}"}})", i, i % 3 == 0 ? "sad" : "glad") +
          "\n";
    std::ofstream(folder / "train.jsonl") << lines;
    run("train model.type=bert model.head=classification model.num_layers=1 model.hidden_size=32 "
        "model.num_attention_heads=2 dataset.train_data_path=train.jsonl dataset.label_key=mood "
        "train.seq_length=16 train.micro_batch_size=4 train.global_batch_size=4 "
        "train.train_iters=30 "
        "optimizer.lr=1e-2 train.num_threads=1 logger.peak_tflops=1 checkpoint.save=ck "
        "2>/dev/null");
  }
};

TEST_F(Labelled, FilesAreScoredByTheNamesOfTheModel) {
  const auto scores = [&](const std::string& lines, const std::string& arguments = "ck") {
    if (!lines.empty()) std::ofstream(folder / "other.jsonl") << lines << "\n";
    return parse_json(run("evaluate " + arguments + " --file " +
                          (lines.empty() ? "train.jsonl" : "other.jsonl") + " 2>/dev/null"),
                      arguments);
  };
  const Json all = scores("");
  EXPECT_EQ(all["samples"], 24);
  EXPECT_GE(all["accuracy"].get<double>(), 16.0 / 24); // that of the more frequent class
  // Data of sad texts alone do not tell that glad is 0.
  const Json sad = scores(R"({"text": "text 3", "mood": "sad"})");
  EXPECT_EQ(sad["samples"], 1);
  EXPECT_EQ(sad, scores(R"({"text": "text 3", "mood": 1})"));
  EXPECT_NE(sad, scores(R"({"text": "text 3", "mood": 0})"));
  run("convert ck hf --format hf 2>/dev/null");
  const Json exported = scores(R"({"text": "text 3", "feeling": "sad"})", "hf --label-key feeling");
  EXPECT_NEAR(exported["loss"].get<double>(), sad["loss"].get<double>(), 1e-5);
}

TEST_F(Labelled, FilesOfGlueAreScoredAsTheyAre) {
  const auto scores = [&](const std::string& name, const std::string& content,
                          const std::string& options) {
    std::ofstream(folder / name) << content;
    return parse_json(run("evaluate ck --file " + name + " " + options + " 2>/dev/null"), name);
  };
  const Json pairs = scores("a.jsonl",
                            R"({"text": "text 3", "text_pair": "\"b", "mood": "sad"})"
                            "\n"
                            R"({"text": "text 4", "text_pair": "c", "mood": "glad"})"
                            "\n",
                            "");
  EXPECT_EQ(pairs["samples"], 2);
  EXPECT_EQ(pairs,
            scores("mrpc.tsv",
                   "Quality\t#1 ID\t#1 String\t#2 String\n1\t7\ttext 3\t\"b\n0\t8\ttext 4\tc\n",
                   "--text-key '#1 String' --text-pair-key '#2 String' --label-key Quality"));
  EXPECT_EQ(scores("b.jsonl", R"({"text": "text 3", "mood": "sad"})", ""),
            scores("cola.tsv", "gj04\tsad\t*\ttext 3\n", "--text-key 4 --label-key 2"));
}

TEST_F(Labelled, ErrorsNameTheOptionsOfEvaluate) {
  EXPECT_THAT(run("evaluate ck --file none.jsonl 2>&1", 1),
              HasSubstr("--file none.jsonl does not exist"));
  EXPECT_THAT(run("evaluate ck --file train.jsonl --label-key score 2>&1", 1),
              HasSubstr("try: --label-key mood"));
  EXPECT_THAT(run("evaluate ck --file train.jsonl --text-key body 2>&1", 1),
              HasSubstr("try: --text-key text"));
  EXPECT_THAT(run("evaluate ck --text ab 2>&1", 2), HasSubstr("--file FILE.jsonl with labels"));
  EXPECT_THAT(run("evaluate ck --file train.jsonl --stride 4 2>&1", 2),
              HasSubstr("try: remove --stride"));
  std::ofstream(folder / "bored.jsonl") << R"({"text": "a", "mood": "bored"})"
                                        << "\n";
  EXPECT_THAT(run("evaluate ck --file bored.jsonl 2>&1", 1),
              HasSubstr("not one of the classes of the model: glad, sad"));
  EXPECT_THAT(run("evaluate ck --batches train.jsonl 2>&1", 1),
              AllOf(HasSubstr("--batches train.jsonl is not a Safetensors file"),
                    HasSubstr("--file train.jsonl")));
  test::make_letter_model(folder / "model");
  EXPECT_THAT(run("evaluate model --file train.jsonl --label-key mood 2>&1", 2),
              HasSubstr("--label-key mood has no effect on model"));
}

TEST_F(Labelled, TheContextIsThatOfTheExport) {
  run("train model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 "
      "model.max_position_embeddings=48 dataset.path=train.jsonl dataset.split=1 "
      "train.seq_length=16 train.micro_batch_size=1 train.global_batch_size=2 "
      "train.num_threads=1 logger.peak_tflops=1 train.train_iters=3 checkpoint.save=gpt "
      "2>/dev/null");
  run("convert gpt gpt_hf --format hf 2>/dev/null");
  std::ofstream(folder / "long.txt") << std::string(200, 'a');
  for (const std::string arguments : {"", " --context 48", " --context 32", " --stride 8"})
    EXPECT_EQ(run("evaluate gpt --file long.txt" + arguments + " 2>/dev/null"),
              run("evaluate gpt_hf --file long.txt" + arguments + " 2>/dev/null"))
        << arguments;
  EXPECT_THAT(run("evaluate gpt --file long.txt --context 49 2>&1", 2),
              HasSubstr("the model's context of 48 tokens"));
}

class CorruptedWeights : public test::ProgramFolder {
 protected:
  void SetUp() override {
    run("train model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 "
        "dataset.type=mock train.seq_length=16 train.micro_batch_size=1 train.global_batch_size=2 "
        "train.num_threads=1 logger.peak_tflops=1 train.train_iters=2 checkpoint.save=ck "
        "checkpoint.save_interval=1 2>/dev/null");
    damage("ck/step_00000002");
  }
  /// Changes one byte of the weights, which no size and no header shows.
  void damage(const char* checkpoint) const {
    for (const auto& entry : fs::directory_iterator(folder / checkpoint)) {
      if (!entry.path().filename().string().starts_with("model_")) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(-9, std::ios::end);
      const int byte = file.get();
      file.seekp(-9, std::ios::end);
      file.put(static_cast<char>(byte ^ 0x40));
    }
  }
  std::string read_all() const {
    std::string out;
    for (const char* command :
         {"generate ck --prompt ab --max-new-tokens 2", "evaluate ck --text abcd",
          "generate ck --prompt ab --max-new-tokens 2 --ranks 2 "
          "parallel.tensor_model_parallel_size=2",
          "convert ck out --format hf --overwrite"})
      out += run(command + std::string(" 2>&1"));
    return out;
  }
};

TEST_F(CorruptedWeights, AreFoundByReadingAndThePreviousCheckpointIsUsed) {
  const std::string out = read_all();
  size_t warnings = 0;
  for (size_t at = 0; (at = out.find("using ck/step_00000001 instead", at)) != std::string::npos;
       ++at)
    ++warnings;
  EXPECT_EQ(warnings, 4u) << "once for each command\n" << out;
  run("convert ck/step_00000001 first --format hf 2>/dev/null");
  EXPECT_TRUE(content_of(folder / "out/model.safetensors") ==
              content_of(folder / "first/model.safetensors"));
}

TEST_F(CorruptedWeights, AreAnErrorWhereNothingElseIsMeant) {
  EXPECT_THAT(run("generate ck/step_00000002 --prompt ab 2>&1", 1), HasSubstr("corrupted"));
  damage("ck/step_00000001");
  EXPECT_THAT(run("generate ck --prompt ab 2>&1", 1), HasSubstr("no intact checkpoint"));
  EXPECT_THAT(run("convert ck out --format hf 2>&1", 1), HasSubstr("no intact checkpoint"));
  EXPECT_FALSE(fs::exists(folder / "out"));
}

} // namespace
} // namespace pentatron

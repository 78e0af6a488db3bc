// The verbs that make corpora and look at them, as a user runs them.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/data/config.h"
#include "tests/cli/program_folder.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const fs::path kCorpusData = PENTATRON_TEST_DATA;

class CorpusVerbs : public test::ProgramFolder {
 protected:
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
  }
  std::string read(const std::string& name) {
    std::ifstream in(folder / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST_F(CorpusVerbs, TrainingOnACorpusEqualsTrainingOnItsText) {
  std::string lines;
  for (int i = 0; i < 200; ++i)
    lines += R"({"text": "line )" + std::to_string(i * i) + R"( of some text"})" + "\n";
  write("text.jsonl", lines + "{broken\n");
  EXPECT_THAT(run("preprocess --input text.jsonl --tokenizer bytes --output corpus --append-eod "
                  "--workers 2 2>&1"),
              HasSubstr("text.jsonl: line 201 is not a JSON object"));
  const std::string tiny =
      "train model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 "
      "train.seq_length=16 train.micro_batch_size=2 train.global_batch_size=2 train.train_iters=3 "
      "train.num_threads=1 logger.peak_tflops=1 logger.log_interval=1 ";
  run(tiny + "dataset.path=text.jsonl dataset.on_bad_input=skip logger.dir=direct 2>&1");
  run(tiny + "dataset.type=indexed dataset.path=corpus_text_document logger.dir=indexed 2>&1");
  const auto losses = [&](const std::string& run_folder) {
    std::ifstream in(folder / run_folder / "metrics.jsonl");
    std::vector<double> all;
    for (std::string line; std::getline(in, line);)
      all.push_back(parse_json(line, "metrics")["loss"].get<double>());
    return all;
  };
  EXPECT_EQ(losses("direct").size(), 3u);
  EXPECT_EQ(losses("direct"), losses("indexed"));
}

TEST_F(CorpusVerbs, SentencesAreWrittenAsSequences) {
  write("text.jsonl", "{\"text\": \"One here. Two there! Three\"}\n{\"text\": \"Four\"}\n");
  EXPECT_THAT(run("preprocess --input text.jsonl --tokenizer bytes --output s --split-sentences "
                  "2>&1"),
              HasSubstr("s_text_sentence\n"));
  const Json summary = parse_json(run("corpus inspect s_text_sentence"), "summary");
  EXPECT_EQ(summary["sequences"], 4);
  EXPECT_EQ(summary["documents"], 2);
  EXPECT_THAT(run("corpus verify s_text_sentence 2>&1"), HasSubstr("s_text_sentence"));
}

TEST_F(CorpusVerbs, InspectPrintsMegatronsSamples) {
  const Json expected = read_json(kCorpusData / "megatron/expected_blends.json")[0];
  for (const auto& [part, flag, size] :
       {std::tuple{"train", "train", 0}, {"validation", "valid", 1}, {"test", "test", 2}}) {
    const Json& tokens = expected["parts"][part]["tokens"];
    std::string indices;
    for (const auto& [n, unused] : tokens.items()) indices += (indices.empty() ? "" : ",") + n;
    const std::string out =
        run("inspect samples --prefix " + (kCorpusData / "megatron/corpus_a").string() +
            " --order megatron --sequence-length 16 --num-samples " +
            expected["sizes"][static_cast<size_t>(size)].dump() + " --seed 77 --split 80,15,5 " +
            "--part " + flag + " --index " + indices);
    std::istringstream stream(out);
    for (const auto& [n, sample] : tokens.items()) {
      std::string line;
      ASSERT_TRUE(std::getline(stream, line));
      EXPECT_EQ(parse_json(line, "output"), (Json{{"index", std::stoll(n)}, {"tokens", sample}}));
    }
  }
  const Json megatron = read_json(kCorpusData / "megatron/expected.json");
  for (const Json& blend : megatron.at("blend")) {
    std::string weights;
    for (const Json& w : blend["weights"]) {
      if (!weights.empty()) weights += ',';
      weights += w.dump();
    }
    const Json out = parse_json(
        run("inspect blend --weights " + weights + " --size " + blend["size"].dump()), "output");
    EXPECT_EQ(out["dataset_index"], blend["dataset_index"]);
    EXPECT_EQ(out["dataset_sample_index"], blend["dataset_sample_index"]);
  }
}

TEST_F(CorpusVerbs, CorporaAreMergedSplitAndVerified) {
  const std::string a = (kCorpusData / "megatron/corpus_a").string();
  const Json merged =
      parse_json(run("corpus merge " + a + " " + a + ".bin --output both"), "output");
  EXPECT_EQ(merged["documents"], 122);
  EXPECT_EQ(merged["tokens"], 2 * 1608);
  run("corpus split both --shares 1,1 --output part");
  for (const char* ending : {".bin", ".idx"}) {
    std::ifstream in(a + ending, std::ios::binary);
    const std::string whole{std::istreambuf_iterator<char>(in), {}};
    EXPECT_EQ(read(std::string("part_0") + ending), whole);
    EXPECT_EQ(read(std::string("part_1") + ending), whole);
  }
  EXPECT_EQ(parse_json(run("corpus verify part_0"), "output")["highest_token"], 49989);
  EXPECT_THAT(run("corpus verify part_0 --vocab-size 100 2>&1", 1),
              HasSubstr("outside the vocabulary of 100"));
  EXPECT_THAT(run("corpus merge part_0 " + (kCorpusData / "megatron/corpus_b").string() +
                      " --output x 2>&1",
                  1),
              HasSubstr("so they cannot be merged"));
  EXPECT_THAT(run("corpus merge part_0 part_1 --output part_0 --overwrite 2>&1", 2),
              HasSubstr("both an input and the output"));
  EXPECT_THAT(run("corpus merge part_0 part_1 --output '' 2>&1", 2), HasSubstr("is empty"));
  for (const auto& [output, instead] : {std::pair{"some/", "some/corpus"},
                                        {".", "corpus"},
                                        {"some/..", "some/corpus"},
                                        {"' '", "corpus"}})
    EXPECT_THAT(run(std::string("corpus split both --shares 1,1 --output ") + output + " 2>&1", 2),
                AllOf(HasSubstr("does not end in the name of a corpus"),
                      HasSubstr(std::string("try: --output ") + instead + "\n")))
        << output;
  // All parts or none: the second would replace something else.
  fs::create_directories(folder / "whole_1.bin/mine");
  EXPECT_THAT(run("corpus split both --shares 1,1 --output whole --overwrite 2>&1", 2),
              HasSubstr("whole_1.bin exists and is not part of an intact corpus"));
  EXPECT_FALSE(fs::exists(folder / "whole_0.bin"));
  EXPECT_FALSE(fs::exists(folder / "whole_0.idx"));
  for (const auto& entry : fs::directory_iterator(folder))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
  EXPECT_THAT(run("corpus split part_0 --shares 1,999,1 --output empty 2>&1", 2),
              HasSubstr("leaves part 0 without documents: part_0 has 61"));
  EXPECT_FALSE(fs::exists(folder / "empty_1.bin"));
  fs::resize_file(folder / "both.bin", 100);
  EXPECT_THAT(run("corpus inspect both 2>&1", 1), HasSubstr("both.bin has 100 bytes"));
}

TEST_F(CorpusVerbs, StandardInputIsPreprocessedAndDecodedAgain) {
  run("preprocess --input - --tokenizer bytes --output o --append-eod 2>&1", 0,
      R"(printf '{"text":"hello"}\n{"text":"w\\u00f6"}\n' | )");
  const std::string out = run(
      "inspect samples --prefix o_text_document --sequence-length 10 --split 1 --index 0 --text "
      "--tokenizer bytes 2>&1",
      2);
  EXPECT_THAT(out, HasSubstr("but one sample needs 11"));
  EXPECT_EQ(parse_json(run("inspect samples --prefix o_text_document --sequence-length 8 --order "
                           "stable --split 1 --index 0 --text --tokenizer bytes"),
                       "output")["text"],
            "hellow\xC3\xB6"); // 9 of the 10 tokens; the end of a document is no text
}

/// Where the template prints a date, the remedy that the error names works.
TEST_F(CorpusVerbs, InspectTakesSettingsOfExamples) {
  fs::create_directory(folder / "dated");
  fs::copy(fs::path(PENTATRON_TEST_DATA) / "tokenizers/gpt2.json", folder / "dated/tokenizer.json");
  std::ofstream(folder / "dated/chat_template.jinja")
      << "{{ strftime_now('%d %b %Y') }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% "
         "endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
  std::ofstream(folder / "talk.jsonl")
      << R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})";
  const std::string samples =
      "inspect samples --sft talk.jsonl --tokenizer dated --text --index 0 ";
  const std::string error = run(samples + "2>&1", 1);
  EXPECT_THAT(error, HasSubstr("none is given\n  try: dataset.chat_date=2025-01-31"));
  EXPECT_EQ(parse_json(run(samples + error.substr(error.find("dataset.chat_date"), 28)),
                       "output")["text"],
            "31 Jan 2025<user>a<assistant>b");
  EXPECT_THAT(run(samples + "dataset.chat_date=2025-02-31 2>&1", 2), HasSubstr("is not a date"));
  EXPECT_THAT(run(samples + "dataset.pack=false 2>&1", 2),
              HasSubstr("takes no setting dataset.pack=false"));
  EXPECT_THAT(run("inspect samples --prefix a --index 0 dataset.text_key=b 2>&1", 2),
              HasSubstr("is a setting for --sft"));
  EXPECT_THAT(run("inspect samples --prefix a --index 0 1 2>&1", 2),
              HasSubstr("takes no argument 1\n  try: several samples separated by commas"));
}

/// `text` with the first thing in braces behind each masked token in its place.
std::string restored(const std::string& marked) {
  std::string text;
  for (size_t at = 0; at < marked.size();) {
    const size_t open = marked.find('{', at), close = marked.find('}', at);
    if (open == std::string::npos) return text + marked.substr(at);
    const std::string target = marked.substr(open + 1, close - open - 1);
    // As many tokens as bytes: [MASK], or a byte.
    size_t begin = open;
    for (size_t i = 0; i < target.size(); ++i)
      begin -= marked.substr(0, begin).ends_with("[MASK]") ? 6 : 1;
    text += marked.substr(at, begin - at) + target;
    at = close + 1;
  }
  return text;
}

TEST_F(CorpusVerbs, InspectShowsSamplesOfBert) {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += fmt::format("{{\"text\": \"Alpha {} is here. Beta {} is there.\"}}\n", i, i);
  write("text.jsonl", lines);
  write("run.yaml", "model: {type: bert, num_layers: 2}\n"
                    "dataset: {type: bert, path: text.jsonl, bert_binary_head: sentence_order}\n"
                    "train: {seq_length: 64, train_iters: 5}\n");
  bool swapped = false, in_order = false;
  std::istringstream out(run("inspect samples run.yaml --index 0,1,2,3,4,5,6,7 --text"));
  int64_t index = 0;
  for (std::string line; std::getline(out, line); ++index) {
    const Json sample = parse_json(line, "output");
    EXPECT_EQ(sample.at("index"), index);
    const size_t tokens = sample.at("tokens").size();
    ASSERT_EQ(sample.at("learned").size(), tokens);
    ASSERT_EQ(sample.at("token_types").size(), tokens);
    EXPECT_LE(tokens, 64u);
    EXPECT_EQ(sample.at("tokens")[0], 258) << "[CLS] of bytes";
    const auto learned = sample.at("learned").get<std::vector<int>>();
    EXPECT_EQ(std::ssize(sample.at("targets")), std::ranges::count(learned, 1));
    EXPECT_GT(std::ranges::count(learned, 1), 0);
    const auto text = sample.at("text").get<std::string>();
    EXPECT_THAT(text, AllOf(StartsWith("[CLS]"), testing::EndsWith("[SEP]")));
    const bool odd = sample.at("next_sentence_label") == 1;
    EXPECT_EQ(sample.at("pair"), odd ? "swapped" : "in order");
    const std::string whole = restored(sample.at("marked_text").get<std::string>());
    if (whole.find("Alpha") == std::string::npos || whole.find("Beta") == std::string::npos)
      continue; // shorter
    EXPECT_EQ(whole.find("Alpha") > whole.find("Beta"), odd) << whole;
    (odd ? swapped : in_order) = true;
  }
  EXPECT_EQ(index, 8);
  EXPECT_TRUE(swapped && in_order);
  // Settings say the same, also of one text.
  const std::string single =
      "inspect samples dataset.type=bert dataset.path=text.jsonl dataset.bert_binary_head=none "
      "--index 3 ";
  EXPECT_EQ(run(single + "train.seq_length=64 tokenizer.path=bytes"),
            run(single + "--sequence-length 64 --tokenizer bytes"));
  EXPECT_FALSE(parse_json(run(single), "output").contains("pair"));
  // Other parts of a run's settings may be there, and mistakes in those of the data are told.
  EXPECT_EQ(run(single + "train.seq_length=64"),
            run(single + "train.seq_length=64 model.num_layers=3"));
  EXPECT_THAT(run(single + "model.nmu_layers=3 2>&1", 2),
              HasSubstr("model.nmu_layers is not a key\n  try: model.num_layers\n"));
  EXPECT_THAT(run(single + "lr=3 2>&1", 2), HasSubstr("lr is not a key\n  try: optimizer.lr\n"));
  EXPECT_THAT(run(single + "optimizer=1 2>&1", 2), HasSubstr("optimizer is not a key"));
  EXPECT_EQ(run(single + "'optimizer={lr: 1}'"), run(single));
  write("section.yaml", "optimzer:\n  lr: 1\ndataset:\n  path: text.jsonl\n  type: bert\n");
  EXPECT_THAT(run("inspect samples section.yaml --index 0 2>&1", 2),
              HasSubstr("section.yaml:1: optimzer is not a key\n  try: optimizer\n"));
  write("wrong.yaml", "dataset: text.jsonl\n");
  EXPECT_THAT(run("inspect samples wrong.yaml dataset.type=bert --index 0 2>&1", 2),
              HasSubstr("dataset"));
  EXPECT_THAT(run(single + "dataset.order=megatron 2>&1", 2),
              HasSubstr("try: dataset.order=stable"));
}

TEST_F(CorpusVerbs, InspectShowsSamplesOfT5) {
  std::string text;
  for (int i = 0; i < 99; ++i) text += fmt::format("Sentence {} of a text. ", i);
  write("text.txt", text);
  const std::string samples =
      "inspect samples dataset.type=t5 dataset.path=text.txt train.seq_length=64 ";
  const Json sample = parse_json(run(samples + "--index 2 --text"), "output");
  EXPECT_EQ(sample.at("input").size(), 64u);
  EXPECT_EQ(sample.at("target")[0], 258) << "<extra_id_0> of bytes";
  // Target and input together are a piece of the text.
  std::string whole = sample.at("input_text"), target = sample.at("target_text");
  int spans = 0;
  for (;; ++spans) {
    const std::string mark = fmt::format("<extra_id_{}>", spans);
    if (whole.find(mark) == std::string::npos) break;
    ASSERT_THAT(target, StartsWith(mark));
    const size_t end =
        std::min(target.find(fmt::format("<extra_id_{}>", spans + 1)), target.find("<|end"));
    whole.replace(whole.find(mark), mark.size(), target.substr(mark.size(), end - mark.size()));
    target.erase(0, std::min(end, target.size()));
  }
  EXPECT_GT(spans, 1);
  whole.resize(std::min(whole.find("<|end"), whole.size()));
  EXPECT_THAT(text, HasSubstr(whole));

  EXPECT_THAT(run(samples + "--index 0 --seed 3 2>&1", 2), HasSubstr("try: dataset.seed=3"));
  EXPECT_THAT(run(samples + "--index 0 --order megatron 2>&1", 2),
              HasSubstr("try: remove --order"));
  EXPECT_THAT(run(samples + "--index 0 --part test 2>&1", 2), HasSubstr("try: --part train"));
  EXPECT_THAT(run("inspect samples dataset.path=text.txt --index 0 2>&1", 2),
              HasSubstr("does not read settings with dataset.type=text\n  try: "));
  EXPECT_THAT(run(samples + "dataset.mask_prb=0.2 --index 0 2>&1", 2),
              HasSubstr("try: dataset.mask_prob"));
}

TEST_F(CorpusVerbs, InspectTakesTheOrderOfARunAndSaysWhichItIs) {
  const std::string samples = "inspect samples --prefix " +
                              (kCorpusData / "megatron/corpus_a").string() +
                              " --sequence-length 16 --index 0,3,7";
  const std::string by_default{config::to_string(data::DatasetConfig{}.order)};
  EXPECT_EQ(run(samples), run(samples + " --order " + by_default));
  EXPECT_NE(run(samples), run(samples + " --order megatron")) << "the orders differ";
  for (const std::string order : {"stable", "megatron"})
    EXPECT_THAT(run(samples + " --order " + order + " 2>&1"),
                HasSubstr("samples in the order " + order));
  EXPECT_THAT(run(samples + " --num-samples 20 2>&1", 2), HasSubstr("try: --order megatron"));
  const std::string out = run(samples + ",9000 --order megatron --part train 2>&1", 2);
  EXPECT_THAT(out, AllOf(StartsWith("error: --index 9000 does not exist: the train part of "),
                         HasSubstr("counted from 0\n  try: --index ")))
      << "nothing is printed before";
  run(samples + " --order megatron --part train " + out.substr(out.find("try: ") + 5));
}

} // namespace
} // namespace pentatron

// The verbs that make corpora and look at them, as a user runs them.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

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

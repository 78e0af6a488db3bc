// Parquet files, which pentatron-parquet reads for the commands. Only what says how to get it runs
// without that program. The files were made by tests/data/parquet/make.py.
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "tests/cli/program_folder.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kParquet = fs::path(PENTATRON_TEST_DATA) / "parquet";

class Parquet : public test::ProgramFolder {
 protected:
  void SetUp() override {
    if (!fs::exists(fs::path(PENTATRON_PROGRAM).parent_path() / "pentatron-parquet"))
      GTEST_SKIP() << "pentatron-parquet is not built: scripts/parquet.sh";
    fs::copy(kParquet, folder / "in");
  }
  std::string call(const std::string& arguments, int status = 0) const {
    return run(arguments + " 2>&1", status);
  }
  std::string preprocess(const std::string& more, int status = 0) const {
    return call("preprocess --tokenizer bytes " + more, status);
  }
  /// The rows as make.py has them, as JSON Lines.
  std::string lines(int rows) const {
    std::string all;
    for (int i = 0; i < rows; ++i) {
      Json row = {{"title", "title " + std::to_string(i % 3)},
                  {"large", "large " + std::to_string(i)}};
      if (i != 7)
        row["text"] = i == 9 ? ""
                             : "Document " + std::to_string(i) + ": the \"loss\" falls\n\tby " +
                                   std::to_string(i * i) + " \xC3\xA9 \xF0\x9F\x98\x80 \\";
      all += dump_json(row) + "\n";
    }
    return all;
  }
  std::string both(const std::string& prefix) const {
    return content_of(folder / (prefix + ".bin")) + content_of(folder / (prefix + ".idx"));
  }
};

TEST_F(Parquet, RowsAreDocumentsLikeLines) {
  std::ofstream(folder / "lines.jsonl") << lines(500);
  std::ofstream(folder / "forty.jsonl") << lines(40);
  EXPECT_THAT(preprocess("--input in/texts.parquet --output a"),
              HasSubstr("in/texts.parquet: line 8 has no key \"text\""));
  preprocess("--input lines.jsonl --output b");
  EXPECT_TRUE(both("a_text_document") == both("b_text_document"));
  preprocess("--input in/snappy.parquet --output c");
  preprocess("--input forty.jsonl --output d");
  EXPECT_TRUE(both("c_text_document") == both("d_text_document"));
  // Several columns: of dictionaries and of large strings too.
  preprocess("--input in/texts.parquet --json-keys title,large --output e");
  preprocess("--input lines.jsonl --json-keys title,large --output f");
  EXPECT_TRUE(both("e_title_document") == both("f_title_document"));
  EXPECT_TRUE(both("e_large_document") == both("f_large_document"));
}

TEST_F(Parquet, TrainsOnFilesAndFolders) {
  for (const char* other : {"in/cut.parquet", "in/labelled.parquet", "in/chats.parquet"})
    fs::remove(folder / other);
  std::ofstream(folder / "lines.jsonl") << lines(40) << lines(500);
  const std::string tiny =
      "train model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 "
      "train.seq_length=16 train.micro_batch_size=2 train.global_batch_size=2 "
      "train.num_threads=1 train.train_iters=2 logger.peak_tflops=1 "
      "logger.tensorboard=false kernels=order ";
  call(tiny + "dataset.path=in dataset.text_key=large logger.dir=a");
  call(tiny + "dataset.path=lines.jsonl dataset.text_key=large logger.dir=b");
  const auto losses = [&](const char* of) {
    std::ifstream in(folder / of / "metrics.jsonl");
    std::vector<double> all;
    for (std::string line; std::getline(in, line);)
      all.push_back(parse_json(line, "metrics")["loss"].get<double>());
    return all;
  };
  EXPECT_EQ(losses("a").size(), 2u);
  EXPECT_EQ(losses("a"), losses("b"));
  call("tokenize --train-bpe 280 --input in/texts.parquet --json-keys large --output one.json");
  std::ofstream(folder / "lines.jsonl") << lines(500);
  call("tokenize --train-bpe 280 --input lines.jsonl --json-keys large --output two.json");
  EXPECT_EQ(content_of(folder / "one.json"), content_of(folder / "two.json"));
}

TEST_F(Parquet, OtherColumnsMayBeNumbersOrMissing) {
  const std::string lines =
      R"({"text": "one", "flag": true, "score": 0.1, "label": 2, "list": [1], "wide": 1099511627776, )"
      R"("single": 0.5, "text_pair": "a"})"
      "\n"
      R"({"text": "two", "flag": false, "score": -2, "label": 0, "list": [2], "wide": -1, )"
      R"("single": 1})"
      "\n"
      R"({"text": "three", "score": 1e-7, "list": [3], "wide": 0, "single": 3, "text_pair": "c"})"
      "\n";
  const std::string reader = fs::path(PENTATRON_PROGRAM).parent_path() / "pentatron-parquet";
  const std::string command = "'" + reader + "' '" + (folder / "in/labelled.parquet").string() +
                              "' text --more flag score label list none wide single text_pair > '" +
                              (folder / "rows").string() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(content_of(folder / "rows"), lines);
}

TEST_F(Parquet, ListsAndStructsAreConversationsAndTokens) {
  std::ofstream(folder / "chats.jsonl")
      << R"({"messages": [{"role": "user", "content": "Hi \"you\"", "seen": true}, )"
      << R"({"role": "assistant", "content": "Yes\n"}], "tools": [{"name": "f", "sizes": [[1], [2, 3]]}], )"
      << R"("ids": [72, 105], "scores": {"a": 0.5}})"
      << "\n"
      << R"({"messages": [{"role": "user", "content": "\u00e9"}, )"
      << R"({"role": "assistant", "content": "No", "seen": false}], "ids": []})"
      << "\n";
  const std::string reader = fs::path(PENTATRON_PROGRAM).parent_path() / "pentatron-parquet";
  const std::string command = "'" + reader + "' '" + (folder / "in/chats.parquet").string() +
                              "' --more messages tools ids scores > '" +
                              (folder / "rows").string() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::ifstream rows(folder / "rows"), lines(folder / "chats.jsonl");
  for (std::string row, line; std::getline(lines, line);) {
    ASSERT_TRUE(std::getline(rows, row));
    EXPECT_EQ(parse_json(row, "row"), parse_json(line, "line"));
  }
  const auto samples = [&](const std::string& file) {
    return call("inspect samples --tokenizer bytes --index 0,1 --sequence-length 64 --sft " + file);
  };
  std::string of_rows = samples("in/chats.parquet");
  const std::string name = "in/chats.parquet"; // stands in a warning
  ASSERT_NE(of_rows.find(name), std::string::npos);
  EXPECT_EQ(of_rows.replace(of_rows.find(name), name.size(), "chats.jsonl"),
            samples("chats.jsonl"));
  preprocess("--input in/chats.parquet --json-keys ids --output a");
  preprocess("--input chats.jsonl --json-keys ids --output b");
  EXPECT_TRUE(both("a_ids_document") == both("b_ids_document"));
}

TEST_F(Parquet, ErrorsNameColumnsAndDamage) {
  EXPECT_THAT(preprocess("--input in/texts.parquet --json-keys content --output a", 1),
              AllOf(HasSubstr("has no key \"content\""),
                    HasSubstr("\"text\", \"title\", \"large\""),
                    HasSubstr("try: --json-keys text")));
  EXPECT_THAT(preprocess("--input in/texts.parquet --json-keys id --output a", 1),
              HasSubstr("has no key \"id\""))
      << "a column without text";
  EXPECT_THAT(preprocess("--input in/cut.parquet --output a --on-bad-input error", 1),
              HasSubstr("in/cut.parquet is not a valid Parquet file"));
  std::ofstream(folder / "in/-x.parquet") << "no parquet at all";
  EXPECT_THAT(call("preprocess --tokenizer bytes --input=in/-x.parquet --output a", 1),
              HasSubstr("is not a valid Parquet file"));
}

TEST(ParquetReader, ThatIsMissingIsToldWithTheCommandThatBuildsIt) {
  const TemporaryFolder folder;
  fs::copy_file(PENTATRON_PROGRAM, folder.path() / "pentatron");
  const std::string command = "cd '" + folder.path().string() +
                              "' && ./pentatron preprocess --tokenizer bytes --output a --input '" +
                              (kParquet / "texts.parquet").string() + "' 2> said";
  EXPECT_NE(std::system(command.c_str()), 0);
  EXPECT_THAT(content_of(folder.path() / "said"),
              AllOf(HasSubstr("pentatron-parquet"), HasSubstr("try: scripts/parquet.sh")));
}

} // namespace
} // namespace pentatron

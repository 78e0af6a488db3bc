#include <csignal>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/run_lock.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/indexed/indexed_dataset.h"
#include "pentatron/data/indexed/indexed_writer.h"
#include "pentatron/data/preprocess/preprocess.h"
#include "tests/data/data_files.h"

namespace pentatron::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Preprocess : public testing::Test {
 protected:
  PreprocessOptions options(std::vector<std::string> inputs,
                            const std::string& name = "out") const {
    return {.inputs = std::move(inputs), .tokenizer = make_tokenizer({}), .output = at(name)};
  }
  std::string at(const std::string& name) const { return folder.string() + "/" + name; }
  /// The documents as text; tokens that are the end of a document as '$'.
  static std::vector<std::string> documents(const std::string& prefix) {
    const IndexedDataset data(prefix);
    std::vector<std::string> all;
    for (int64_t d = 0; d < data.num_documents(); ++d) {
      const int64_t begin = data.document_begin(d), end = data.document_begin(d + 1);
      std::vector<int64_t> tokens(static_cast<size_t>(end - begin));
      data.read_tokens(begin, end - begin, tokens.data());
      std::string& text = all.emplace_back();
      for (const int64_t token : tokens) text += token == 256 ? '$' : static_cast<char>(token);
    }
    return all;
  }
  static std::string both(const std::string& prefix) {
    return content_of(prefix + ".bin") + "|" + content_of(prefix + ".idx");
  }
  /// Lines of JSON with documents of many lengths, some empty, some bad.
  static std::string corpus(int lines, unsigned seed) {
    std::mt19937 random(seed);
    std::string text;
    for (int i = 0; i < lines; ++i) {
      if (random() % 97 == 0) {
        text += "{\"text\": 3}\n";
        continue;
      }
      std::string document;
      for (unsigned n = random() % 4 == 0 ? 0 : random() % 2000; n > 0; --n)
        document += static_cast<char>('a' + random() % 26);
      text += "{\"id\": " + std::to_string(i) + ", \"text\": \"" + document + "\"}\n";
    }
    return text;
  }
  TemporaryFolder folder;
};

TEST_F(Preprocess, WritesDocumentsInOrderAndKeepsEmptyOnes) {
  const std::string input =
      folder.write("a.jsonl", "{\"text\": \"one\"}\n\n{\"text\": \"\"}\r\n{\"text\": \"\\u00e9\"}");
  PreprocessOptions o = options({input});
  EXPECT_EQ(preprocess(o).prefixes, std::vector<std::string>{at("out_text_document")});
  EXPECT_THAT(documents(at("out_text_document")), ElementsAre("one", "", "\xC3\xA9"));
  o.append_eod = true;
  o.overwrite = true;
  const PreprocessResult result = preprocess(o);
  EXPECT_THAT(documents(at("out_text_document")), ElementsAre("one$", "", "\xC3\xA9$"));
  EXPECT_EQ(result.report.documents, 2);
  EXPECT_EQ(result.report.empty_documents, 1);
  EXPECT_EQ(result.report.tokens, 7);
  const IndexedDataset data(at("out_text_document"));
  EXPECT_EQ(data.dtype(), IndexedDtype::kU16);
  EXPECT_EQ(data.num_sequences(), 2); // an empty document has none
  EXPECT_FALSE(std::filesystem::exists(at("out.partial")));
}

TEST_F(Preprocess, SentencesAreSequencesOfTheirDocument) {
  const std::string input = folder.write(
      "a.jsonl",
      "{\"text\": \"One here. Two there\\u3002Three\", \"more\": \"\"}\n"
      "{\"text\": \" \", \"more\": \"A. B\"}\n{\"text\": \"Four! \", \"more\": \"C\"}\n");
  PreprocessOptions o = options({input, folder.write("b.txt", "Five. Six.")});
  o.split_sentences = true;
  o.json_keys = {"text", "more"};
  const auto sentences = [&](const std::string& prefix) {
    const IndexedDataset data(prefix);
    std::vector<std::string> all;
    for (int64_t i = 0; i < data.num_sequences(); ++i) {
      const auto sequence = data.sequence(i);
      std::vector<int64_t> tokens(static_cast<size_t>(sequence.length));
      data.read_tokens(sequence.first_token, sequence.length, tokens.data());
      std::string& text = all.emplace_back();
      for (const int64_t token : tokens) text += token == 256 ? '$' : static_cast<char>(token);
    }
    return all;
  };
  EXPECT_THAT(preprocess(o).prefixes,
              ElementsAre(at("out_text_sentence"), at("out_more_sentence")));
  EXPECT_THAT(sentences(at("out_text_sentence")),
              ElementsAre("One here.", " Two there\u3002", "Three", "Four!", "Five.", " Six."));
  EXPECT_THAT(documents(at("out_text_sentence")),
              ElementsAre("One here. Two there\u3002Three", "", "Four!", "Five. Six."));
  EXPECT_THAT(documents(at("out_more_sentence")), ElementsAre("", "A. B", "C", ""));
  o.append_eod = true; // belongs to the last sentence
  o.overwrite = true;
  const PreprocessResult result = preprocess(o);
  EXPECT_THAT(sentences(at("out_text_sentence")),
              ElementsAre("One here.", " Two there\u3002", "Three$", "Four!$", "Five.", " Six.$"));
  EXPECT_EQ(result.report.documents, 4);
  EXPECT_FALSE(std::filesystem::exists(at("out.partial")));
}

TEST_F(Preprocess, SentencesDoNotDependOnWorkersOrKills) {
  std::string lines;
  for (int i = 0; i < 6000; ++i)
    lines += "{\"text\": \"" + std::string(static_cast<size_t>(i % 700), 'a') + ". B c! D\"}\n";
  PreprocessOptions o = options({folder.write("a.jsonl", lines)});
  o.split_sentences = true;
  preprocess(o);
  const std::string expected = both(at("out_text_sentence"));
  struct Stop {};
  o.output = at("killed");
  o.save_bytes = 1;
  o.workers = 3;
  o.progress = [](const PreprocessProgress&) { throw Stop{}; };
  EXPECT_THROW(preprocess(o), Stop);
  EXPECT_FALSE(std::filesystem::exists(at("killed_text_sentence.idx")));
  o.progress = {};
  o.split_sentences = false;
  EXPECT_THAT(error_of([&] { preprocess(o); }),
              HasSubstr("holds partial output made with other files"));
  o.split_sentences = true;
  EXPECT_TRUE(preprocess(o).resumed);
  EXPECT_TRUE(both(at("killed_text_sentence")) == expected);
}

TEST_F(Preprocess, ReadsFoldersArchivesTextAndSeveralKeys) {
  folder.write("in/1.txt", "\xEF\xBB\xBFplain\ntext");
  folder.write("in/2.jsonl.gz", gzip("{\"text\": \"zipped\"}\n"));
  folder.write("in/3.jsonl.zst", zstd("{\"text\": \"z\"}\n{\"text\": \"std\"}\n"));
  folder.write("in/4.other", "ignored");
  PreprocessResult result = preprocess(options({at("in")}));
  EXPECT_THAT(documents(at("out_text_document")), ElementsAre("plain\ntext", "zipped", "z", "std"));
  EXPECT_EQ(result.report.ignored_files, 1);
  EXPECT_EQ(result.report.files, 3);
  PreprocessOptions two = options({folder.write(
      "k.jsonl", "{\"q\": \"a\", \"r\": \"bc\"}\n{\"q\": \"d\"}\n{\"r\": \"\", \"q\": \"e\"}\n")});
  two.json_keys = {"q", "r"};
  result = preprocess(two);
  EXPECT_THAT(documents(at("out_q_document")), ElementsAre("a", "e"));
  EXPECT_THAT(documents(at("out_r_document")), ElementsAre("bc", ""));
  EXPECT_EQ(result.report.skipped(BadInput::kMissingKey), 1);
}

TEST_F(Preprocess, AKeyWithASlashIsPartOfAFilesName) {
  PreprocessOptions o = options({folder.write("a.jsonl", "{\"a/b\": \"x\", \"a_b\": \"y\"}\n")});
  o.json_keys = {"a/b"};
  EXPECT_EQ(preprocess(o).prefixes, (std::vector<std::string>{at("out_a_b_document")}));
  o.json_keys = {"a/b", "a_b"};
  EXPECT_THAT(error_of<ConfigError>([&] { preprocess(o); }),
              AllOf(HasSubstr("--json-keys a/b,a_b names a corpus twice"),
                    HasSubstr("try: --json-keys a/b")));
}

TEST_F(Preprocess, AnOutputInUseNamesWhoHasIt) {
  std::filesystem::create_directories(at("out.partial"));
  RunLock other;
  EXPECT_FALSE(other.take(at("out.partial"), /*create=*/true));
  const PreprocessOptions o = options({folder.write("a.txt", "text")});
  EXPECT_THAT(error_of<DataError>([&] { preprocess(o); }),
              AllOf(HasSubstr(fmt::format("out.partial is in use by process {} on ", ::getpid())),
                    HasSubstr("try: another --output")));
}

TEST_F(Preprocess, WaitsForOneThatIsAboutToEnd) {
  std::filesystem::create_directories(at("out.partial"));
  auto other = std::make_optional<RunLock>();
  EXPECT_FALSE(other->take(at("out.partial"), /*create=*/true));
  std::thread ending([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    std::filesystem::remove_all(at("out.partial"));
    other.reset();
  });
  preprocess(options({folder.write("a.txt", "text")}));
  ending.join();
  EXPECT_EQ(documents(at("out_text_document")), std::vector<std::string>{"text"});
}

TEST_F(Preprocess, ListsOfTokenIdsAreDocuments) {
  PreprocessOptions ids = options({folder.write(
      "k.jsonl", "{\"ids\": [97, 98]}\n{\"ids\": []}\n{\"ids\": \"text\"}\n{\"ids\": [1000]}\n")});
  ids.json_keys = {"ids"};
  ids.append_eod = true;
  const PreprocessResult result = preprocess(ids);
  EXPECT_THAT(documents(at("out_ids_document")), ElementsAre("ab$", "", "text$"));
  EXPECT_EQ(result.report.documents, 2);
  EXPECT_EQ(result.report.empty_documents, 1);
  EXPECT_EQ(result.report.skipped(BadInput::kMissingKey), 1);
}

TEST_F(Preprocess, BadLinesAreCountedAndLocated) {
  const std::string good = "{\"text\": \"good\"}\n";
  const std::string input = folder.write(
      "a.jsonl", good + "{bad\n" + good + "{\"text\": \"\xFF\"}\n{\"other\": 1}\n{\"text\": \"" +
                     std::string(100, 'x') + "\"}\n" + good);
  PreprocessOptions o = options({input});
  o.max_document_bytes = 64;
  const PreprocessResult result = preprocess(o);
  EXPECT_THAT(documents(at("out_text_document")), ElementsAre("good", "good", "good"));
  EXPECT_EQ(result.report.total_skipped(), 4);
  EXPECT_THAT(result.report.to_string(),
              AllOf(HasSubstr("line 2 is not a JSON object"), HasSubstr("line 4 is not UTF-8"),
                    HasSubstr("line 5 has no key"), HasSubstr("line 6 has 112 bytes")));
  o.on_bad_input = OnBadInput::kError;
  o.output = at("other");
  EXPECT_THAT(error_of([&] { preprocess(o); }),
              AllOf(HasSubstr("a.jsonl: line"), HasSubstr("--on-bad-input skip")));
  o.on_bad_input = OnBadInput::kSkip; // what the error proposes works
  o.overwrite = true;
  EXPECT_EQ(preprocess(o).report.documents, 3);
  const std::string cut = gzip(std::string(100'000, '\n') + good + good).substr(0, 60);
  EXPECT_EQ(preprocess(options({input, folder.write("cut.jsonl.gz", cut)}, "cut"))
                .report.skipped(BadInput::kBrokenFile),
            1);
  EXPECT_THAT(error_of([&] { preprocess(options({at("none")}, "x")); }), HasSubstr("none"));
}

TEST_F(Preprocess, EverySkippedLineIsListed) {
  std::string lines;
  for (int i = 1; i <= 5000; ++i)
    lines += i % 100 == 0 ? "{\"other\": 1}\n" : "{\"text\": \"" + std::string(400, 'x') + "\"}\n";
  const std::string input = folder.write("a.jsonl", lines);
  const std::string empty = folder.write("b.txt", "");
  PreprocessOptions o = options({input, empty});
  o.workers = 3;
  o.save_bytes = 100'000;
  const PreprocessResult result = preprocess(o);
  EXPECT_EQ(result.skip_list, at("out_skipped.jsonl"));
  std::vector<std::string> expected;
  for (int i = 100; i <= 5000; i += 100)
    expected.push_back(SkippedInput{
        .file = input, .number = i, .reason = "has no key \"text\"; its only key is \"other\""}
                           .to_json());
  expected.push_back(skipped_file(empty, "is empty").to_json());
  std::istringstream list(content_of(at("out_skipped.jsonl")));
  std::vector<std::string> listed;
  for (std::string line; std::getline(list, line);) listed.push_back(line);
  EXPECT_EQ(listed, expected);
  // A later call without any leaves no list of an earlier one.
  PreprocessOptions later = options({folder.write("c.txt", "text")});
  later.overwrite = true;
  EXPECT_TRUE(preprocess(later).skip_list.empty());
  EXPECT_FALSE(std::filesystem::exists(at("out_skipped.jsonl")));
}

TEST_F(Preprocess, WithoutADocumentNothingIsWritten) {
  preprocess(options({folder.write("good.txt", "a good corpus")}));
  const std::string good = both(at("out_text_document"));
  const std::string none = "contains no documents";
  using Case = std::pair<std::string, std::vector<std::string>>;
  for (const auto& [input, texts] : std::vector<Case>{
           {folder.write("a.jsonl", "{\"id\": 1, \"content\": \"x\"}\n{\"content\": \"y\"}\n"),
            {none, "2 skipped", "a.jsonl: line 1 has no key \"text\"",
             "its keys are \"content\", \"id\"", "try: --json-keys content"}},
           {folder.write("b.jsonl", ""), {none, "b.jsonl is empty"}},
           {folder.write("c.jsonl", "\n\n"), {none, "the input is empty"}},
           {folder.write("d.jsonl", "{\"text\": \"\"}\n"), {none, "1 empty document"}},
           {folder.write("e.jsonl", "not json\n"), {none, "e.jsonl: line 1 is not a JSON object"}},
           {folder.write("f.json", "[]"), {none, "f.json is an empty array"}}}) {
    for (const OnBadInput policy : {OnBadInput::kSkip, OnBadInput::kError}) {
      PreprocessOptions o = options({input});
      o.on_bad_input = policy;
      o.overwrite = true;
      const std::string error = error_of<DataError>([&] { preprocess(o); });
      for (const std::string& text : texts)
        if (policy == OnBadInput::kSkip) {
          EXPECT_THAT(error, HasSubstr(text));
        }
      EXPECT_THAT(error, Not(HasSubstr("on-bad-input"))) << "would leave out everything";
      EXPECT_TRUE(good == both(at("out_text_document"))) << input;
      EXPECT_FALSE(std::filesystem::exists(at("out.partial"))) << input;
      EXPECT_FALSE(std::filesystem::exists(at("out_skipped.jsonl"))) << input;
    }
  }
  for (const char* output : {"", "some/"}) {
    PreprocessOptions o = options({at("good.txt")});
    o.output = output;
    EXPECT_THAT(error_of<ConfigError>([&] { preprocess(o); }), HasSubstr("try: --output"));
  }
  EXPECT_THAT(error_of([&] { preprocess(options({at("none.jsonl")})); }),
              HasSubstr("--input " + at("none.jsonl") + " does not exist"));
}

TEST_F(Preprocess, ReadsAnArrayLikeLines) {
  const std::string lines = corpus(3000, 8);
  std::string array = "[\n";
  for (const char c : lines) c == '\n' ? array += ",\n" : array += c;
  array.replace(array.size() - 2, 2, "\n]\n");
  const PreprocessResult expected = preprocess(options({folder.write("a.jsonl", lines)}, "lines"));
  PreprocessOptions o = options({folder.write("a.json.gz", gzip(array))}, "array");
  o.save_bytes = 100'000;
  const PreprocessResult result = preprocess(o);
  EXPECT_TRUE(both(at("lines_text_document")) == both(at("array_text_document")));
  EXPECT_EQ(result.report.total_skipped(), expected.report.total_skipped());
}

TEST_F(Preprocess, TheOutputDoesNotDependOnTheNumberOfWorkers) {
  const std::string input = folder.write("a.jsonl", corpus(6000, 1));
  std::string first;
  for (const int workers : {1, 2, 5}) {
    PreprocessOptions o = options({input});
    o.workers = workers;
    o.append_eod = true;
    o.overwrite = true;
    preprocess(o);
    if (first.empty()) first = both(at("out_text_document"));
    EXPECT_TRUE(first == both(at("out_text_document"))) << workers;
  }
  // And is what a loop over the lines writes.
  IndexedWriter writer(at("loop"), {});
  const auto tokenizer = make_tokenizer({});
  for (const std::string& text : documents(at("out_text_document"))) {
    std::vector<int32_t> tokens;
    for (const char c : text) tokens.push_back(c == '$' ? 256 : c);
    if (!tokens.empty()) writer.add_sequence(tokens);
    writer.end_document();
  }
  writer.commit();
  EXPECT_TRUE(first == both(at("loop")));
}

TEST_F(Preprocess, GoesOnAfterBeingKilledAnywhereSlow) {
  const std::vector<std::string> inputs = {folder.write("a.jsonl", corpus(3000, 2)),
                                           folder.write("b.txt", std::string(50'000, 'b')),
                                           folder.write("c.jsonl.zst", zstd(corpus(2000, 3)))};
  PreprocessOptions whole = options(inputs, "whole");
  whole.json_keys = {"text"};
  const std::string expected_report = preprocess(whole).report.to_string();
  PreprocessOptions parts = options(inputs, "parts");
  parts.save_bytes = 200'000;
  parts.workers = 2;
  std::mt19937 random(4);
  int killed = 0, resumed = 0;
  for (int round = 0; round < 30; ++round) {
    std::filesystem::remove(at("parts_text_document.idx"));
    std::filesystem::remove(at("parts_text_document.bin"));
    std::filesystem::remove(at("parts_skipped.jsonl"));
    while (true) {
      const pid_t child = ::fork();
      if (child == 0) {
        try {
          preprocess(parts);
        } catch (const ConfigError&) { // it was killed after its last file
          ::_exit(0);
        } catch (const Error&) {
          ::_exit(3);
        }
        ::_exit(0);
      }
      ::usleep(static_cast<useconds_t>(random() % 40'000));
      ::kill(child, SIGKILL);
      int status = 0;
      ::waitpid(child, &status, 0);
      if (WIFEXITED(status)) {
        ASSERT_EQ(WEXITSTATUS(status), 0);
        break;
      }
      ++killed;
      resumed += std::filesystem::exists(at("parts.partial/state.json"));
      const bool complete = std::filesystem::exists(at("parts_text_document.idx")) &&
                            !std::filesystem::exists(at("parts.partial/state.json"));
      if (!complete && random() % 3 == 0) { // and one that is left alone
        EXPECT_EQ(preprocess(parts).report.to_string(), expected_report);
        break;
      }
    }
    ASSERT_TRUE(both(at("whole_text_document")) == both(at("parts_text_document"))) << round;
    ASSERT_FALSE(std::filesystem::exists(at("parts.partial")));
  }
  EXPECT_GT(killed, 20);
  EXPECT_GT(resumed, 10);
}

TEST_F(Preprocess, ResumesOnlyWhatIsItsOwn) {
  const std::string input = folder.write("a.jsonl", corpus(2000, 5));
  PreprocessOptions o = options({input});
  o.save_bytes = 1;
  struct Stop {};
  o.progress = [](const PreprocessProgress&) { throw Stop{}; };
  EXPECT_THROW(preprocess(o), Stop);
  o.progress = {};
  ASSERT_TRUE(std::filesystem::exists(at("out.partial/state.json")));
  o.append_eod = true;
  EXPECT_THAT(error_of([&] { preprocess(o); }),
              HasSubstr("holds partial output made with other files"));
  o.append_eod = false;
  EXPECT_TRUE(preprocess(o).resumed);
  EXPECT_THAT(error_of<ConfigError>([&] { preprocess(o); }), HasSubstr("--overwrite"));
  o.overwrite = true;
  EXPECT_FALSE(preprocess(o).resumed);
}

TEST_F(Preprocess, ExistingOutputsStay) {
  const std::string input = folder.write("a.txt", "text");
  for (const char* name : {"out_text_document.bin", "out_text_document.idx", "out_skipped.jsonl"}) {
    folder.write(name, "mine\n");
    EXPECT_THAT(error_of<ConfigError>([&] { preprocess(options({input})); }),
                AllOf(HasSubstr(name), HasSubstr("exists"), HasSubstr("another --output")));
    EXPECT_EQ(content_of(at(name)), "mine\n");
    EXPECT_FALSE(std::filesystem::exists(at("out.partial")));
    std::filesystem::remove(at(name));
  }
}

TEST_F(Preprocess, ADamagedOutputIsReplacedAfterWhatTheErrorTells) {
  PreprocessOptions o = options({folder.write("a.txt", "text")});
  const std::string bin = at("out_text_document.bin"), idx = at("out_text_document.idx");
  preprocess(o);
  const std::string whole = content_of(bin), index = content_of(idx);
  struct Damage {
    std::optional<std::string> bin, idx; // none: the file is lost
  };
  for (const Damage& damage : {Damage{whole, {}}, Damage{{}, index}, Damage{whole, ""},
                               Damage{whole.substr(1), index}, Damage{whole, index.substr(9)}}) {
    std::string removal = "rm";
    for (const auto& [file, content] : {std::pair{bin, damage.bin}, {idx, damage.idx}}) {
      std::filesystem::remove(file);
      if (!content) continue;
      std::ofstream(file, std::ios::binary) << *content;
      removal += " " + file;
    }
    for (const bool overwrite : {false, true}) {
      o.overwrite = overwrite;
      EXPECT_THAT(error_of<ConfigError>([&] { preprocess(o); }),
                  AllOf(HasSubstr("is not part of an intact corpus"), Not(HasSubstr("--overwrite")),
                        HasSubstr("\n  try: another --output, or " + removal + " if")));
    }
    EXPECT_EQ(content_of(bin), damage.bin.value_or(""));
    EXPECT_EQ(content_of(idx), damage.idx.value_or(""));
    o.overwrite = false;
    ASSERT_EQ(std::system(removal.c_str()), 0);
    preprocess(o);
    EXPECT_EQ(content_of(bin), whole);
  }
}

TEST_F(Preprocess, ABrokenFileLeavesWhatWasDoneToAnotherCall) {
  const std::string whole = gzip(corpus(40, 6));
  const std::string cut = folder.write("b.jsonl.gz", whole.substr(0, whole.size() / 2));
  PreprocessOptions o = options({folder.write("good.txt", "good"), cut});
  o.on_bad_input = OnBadInput::kError;
  const auto refused = [&] { return error_of<DataError>([&] { preprocess(o); }); };
  EXPECT_THAT(refused(), AllOf(HasSubstr("b.jsonl.gz"), HasSubstr("which resumes"),
                               HasSubstr("--on-bad-input skip")));
  EXPECT_TRUE(std::filesystem::exists(at("out.partial/state.json")));
  EXPECT_THAT(refused(), HasSubstr("b.jsonl.gz"));
  EXPECT_TRUE(std::filesystem::exists(at("out.partial/state.json")));
  o.on_bad_input = OnBadInput::kSkip; // what the error proposes works
  const PreprocessResult result = preprocess(o);
  EXPECT_TRUE(result.resumed);
  EXPECT_EQ(result.report.skipped(BadInput::kBrokenFile), 1);
  EXPECT_FALSE(std::filesystem::exists(at("out.partial")));
  const std::string resumed = both(at("out_text_document"));
  o.overwrite = true;
  preprocess(o);
  EXPECT_TRUE(resumed == both(at("out_text_document")));
}

TEST_F(Preprocess, ProgressSaysHowFastAndHowLong) {
  EXPECT_EQ(to_string({.disk_bytes = 25,
                       .total_bytes = 100,
                       .text_bytes = 20'000'000,
                       .documents = 4000,
                       .tokens = 6'000'000,
                       .seconds = 2}),
            "25.0 % | 10.0 MB/s | 2.00K docs/s | 3.00M tokens/s | ETA 6.00s");
  EXPECT_THAT(to_string({.text_bytes = 20'000'000, .bad = 7, .seconds = 2}),
              AllOf(HasSubstr("7 bad"), ::testing::Not(HasSubstr("ETA"))));
}

} // namespace
} // namespace pentatron::data

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/data/corpus.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/objectives/sentences.h"
#include "pentatron/data/split_sentences.h"
#include "tests/data/data_files.h"

namespace pentatron::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SplitSentences, CutsWhereTheRuleSays) {
  EXPECT_THAT(split_sentences(""), IsEmpty());
  EXPECT_THAT(split_sentences(" \n\n "), IsEmpty());
  EXPECT_THAT(split_sentences("One. Two! Three?  Four"),
              ElementsAre("One.", "Two!", "Three?", "Four"));
  EXPECT_THAT(split_sentences("\"Stop.\" He did. (So?) Yes"),
              ElementsAre("\"Stop.\"", "He did.", "(So?)", "Yes"));
  EXPECT_THAT(split_sentences("Mr. Smith and J. Doe paid 3.50 e.g. here. Then"),
              ElementsAre("Mr. Smith and J. Doe paid 3.50 e.g. here.", "Then"));
  EXPECT_THAT(split_sentences("a title\n\n  a line\nthat goes on\n \nend"),
              ElementsAre("a title", "a line\nthat goes on", "end"));
  EXPECT_THAT(split_sentences("\u65e5\u3002\u672c\uff01\u5b57"),
              ElementsAre("\u65e5\u3002", "\u672c\uff01", "\u5b57"));
  EXPECT_THAT(split_sentences("Wait\u2026 What?"), ElementsAre("Wait\u2026", "What?"));
}

TEST(CorpusSentences, AreThoseOfEachDocument) {
  const TemporaryFolder folder;
  folder.write("a.jsonl",
               "{\"text\": \"Ab. Cd\\u3002Ef\"}\n{\"text\": \"  \"}\n{\"text\": \"Gh\"}\n");
  const DatasetConfig config{.path = folder.string()};
  const auto corpus =
      std::make_shared<const Corpus>(config, make_tokenizer({}), Corpus::Cut::kSentences);
  const CorpusSentences sentences(corpus);
  const auto text = [&](int64_t i) {
    std::vector<int64_t> tokens(static_cast<size_t>(sentences.length(i)));
    sentences.read(i, 0, sentences.length(i), tokens.data());
    return ByteTokenizer().decode(tokens);
  };
  ASSERT_EQ(sentences.num_sentences(), 4);
  EXPECT_EQ(text(0), "Ab.");
  EXPECT_EQ(text(1), " Cd\u3002"); // white space separates it from the one before
  EXPECT_EQ(text(2), "Ef");
  EXPECT_EQ(text(3), "Gh");
  const int64_t documents = sentences.num_documents();
  EXPECT_EQ(sentences.document_begin(1), 3);
  EXPECT_EQ(sentences.document_begin(documents), 4);
  EXPECT_EQ(sentences_in(*corpus, {0, 4}), (StreamRange{0, 2}));
  EXPECT_EQ(sentences_in(*corpus, {3, corpus->size_tokens()}), (StreamRange{1, 4}));
}

} // namespace
} // namespace pentatron::data

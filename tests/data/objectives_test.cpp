#include <map>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/data/batch.h"
#include "pentatron/data/objectives/bert_dataset.h"
#include "pentatron/data/objectives/chat_dataset.h"
#include "pentatron/data/objectives/masking.h"
#include "pentatron/data/objectives/open_chat_template.h"
#include "pentatron/data/objectives/t5_dataset.h"
#include "tests/data/data_files.h"
#include "tests/data/token_batches.h"

namespace pentatron::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- masking -----------------------------------------------------------------------------------

constexpr int64_t kMask = 900;

/// Tokens from 500 on continue the word before them; token 1 is special.
MaskOptions mask_options() {
  return {.rate = 0.15,
          .mask_token = kMask,
          .vocab_size = 900,
          .continues_word = [](int64_t t) { return t >= 500; },
          .is_special = [](int64_t t) { return t == 1; }};
}

TEST(MaskWords, TakesWholeWordsAndTheShareAsked) {
  const Stream stream(3, "test");
  int64_t masked_tokens = 0, all_tokens = 0, as_mask = 0, as_random = 0, kept = 0;
  for (uint64_t n = 0; n < 300; ++n) {
    std::vector<int64_t> tokens{1};
    for (uint64_t i = 0; i < 120; ++i)
      tokens.push_back(2 + static_cast<int64_t>(Stream(5, "tokens").below(898, n, i)));
    tokens.push_back(1);
    const std::vector<int64_t> before = tokens;
    Draws draws(stream, n);
    const auto masked = mask_words(tokens, mask_options(), draws);
    std::set<int64_t> places;
    for (const MaskedToken& m : masked) {
      EXPECT_EQ(m.label, before[static_cast<size_t>(m.position)]);
      EXPECT_NE(m.label, 1);
      places.insert(m.position);
      const int64_t now = tokens[static_cast<size_t>(m.position)];
      ++(now == kMask ? as_mask : now == m.label ? kept : as_random);
    }
    EXPECT_EQ(places.size(), masked.size());
    for (int64_t i = 1; i < 121; ++i) {
      if (!places.contains(i)) {
        EXPECT_EQ(tokens[static_cast<size_t>(i)], before[static_cast<size_t>(i)]);
      }
      // A token that continues a word is masked exactly if the one before it is.
      if (i > 1 && before[static_cast<size_t>(i)] >= 500) {
        EXPECT_EQ(places.contains(i), places.contains(i - 1));
      }
    }
    EXPECT_LE(masked.size(), 18u); // round(120 * 0.15)
    masked_tokens += static_cast<int64_t>(masked.size());
    all_tokens += 120;
  }
  EXPECT_NEAR(static_cast<double>(masked_tokens) / static_cast<double>(all_tokens), 0.15, 0.005);
  const auto share = [&](int64_t k) {
    return static_cast<double>(k) / static_cast<double>(masked_tokens);
  };
  EXPECT_NEAR(share(as_mask), 0.8, 0.02);
  EXPECT_NEAR(share(as_random), 0.1, 0.02);
  EXPECT_NEAR(share(kept), 0.1, 0.02);
}

TEST(RandomPartition, GivesEveryPartitionEquallyOften) {
  const Stream stream(1, "test");
  std::map<std::vector<int64_t>, int> seen;
  for (uint64_t n = 0; n < 10'000; ++n) {
    Draws draws(stream, n);
    const std::vector<int64_t> parts = random_partition(5, 3, draws);
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), 5);
    ++seen[parts];
  }
  EXPECT_EQ(seen.size(), 6u); // 4 choose 2
  for (const auto& [parts, count] : seen) EXPECT_NEAR(count, 10'000 / 6, 150);
}

TEST(NoiseSpans, HaveTheDensityAndTextBetweenThem) {
  const Stream stream(2, "test");
  for (const int64_t length : {2, 3, 5, 20, 568}) {
    for (uint64_t n = 0; n < 50; ++n) {
      Draws draws(stream, n);
      int64_t noise = 0, at = 0;
      for (const Span& span : noise_spans(length, 0.15, 3, draws)) {
        EXPECT_GT(span.begin, at - (at == 0 ? 0 : 1));
        EXPECT_GT(span.begin, 0);
        EXPECT_GT(span.end, span.begin);
        EXPECT_LE(span.end, length);
        noise += span.end - span.begin;
        at = span.end + 1;
      }
      EXPECT_EQ(noise, std::max<int64_t>(1, std::llround(static_cast<double>(length) * 0.15)));
    }
  }
  EXPECT_TRUE([&] {
    Draws draws(stream, 0);
    return noise_spans(1, 0.15, 3, draws);
  }()
                  .empty());
}

// --- T5 ------------------------------------------------------------------------------------------

class CountingDataset final : public TokenDataset {
 public:
  explicit CountingDataset(int64_t s) : s_(s) {}
  int64_t sequence_length() const override { return s_; }
  void sample(int64_t n, int64_t* tokens) const override {
    for (int64_t i = 0; i <= s_; ++i) tokens[i] = 10 + (n * 1000 + i) % 30'000;
  }

 private:
  int64_t s_;
};

T5Dataset::Options t5_options() {
  T5Dataset::Options options{.input_length = 512,
                             .target_length = 114,
                             .eos_token = 1,
                             .pad_token = 0,
                             .start_token = 2,
                             .seed = 7};
  for (int64_t i = 0; i < 100; ++i) options.sentinels.push_back(40'099 - i);
  return options;
}

TEST(T5Dataset, RawLengthIsThatOfThePaper) {
  // T5's own choice: 568 raw tokens for inputs of 512 and targets of 114.
  EXPECT_EQ(T5Dataset::raw_length(t5_options()), 568);
}

TEST(T5Dataset, InputAndTargetTogetherAreTheText) {
  const T5Dataset t5(std::make_shared<CountingDataset>(567), t5_options());
  std::set<std::vector<int64_t>> inputs;
  for (int64_t n = 0; n < 40; ++n) {
    const T5Sample s = t5.sample(n);
    inputs.insert(s.encoder_tokens);
    ASSERT_EQ(s.encoder_tokens.size(), 512u);
    ASSERT_EQ(s.labels.size(), 114u);
    // Spans by sentinel, from the target.
    std::map<int64_t, std::vector<int64_t>> spans;
    int64_t sentinel = 0;
    for (size_t i = 0; i < s.labels.size() && s.loss_mask[i]; ++i) {
      if (s.labels[i] >= 40'000) {
        sentinel = s.labels[i];
        EXPECT_EQ(sentinel, 40'099 - static_cast<int64_t>(spans.size()));
        spans[sentinel];
      } else {
        spans[sentinel].push_back(s.labels[i]);
      }
      EXPECT_EQ(s.decoder_tokens[i], i == 0 ? 2 : s.labels[i - 1]);
    }
    EXPECT_EQ(spans[sentinel].back(), 1);
    spans[sentinel].pop_back();
    std::vector<int64_t> text;
    for (size_t i = 0; i < 512 && s.encoder_padding[i]; ++i) {
      const int64_t token = s.encoder_tokens[i];
      if (token >= 40'000) {
        text.insert(text.end(), spans[token].begin(), spans[token].end());
      } else {
        text.push_back(token);
      }
    }
    EXPECT_EQ(text.back(), 1);
    text.pop_back();
    std::vector<int64_t> raw(568);
    CountingDataset(567).sample(n, raw.data());
    EXPECT_EQ(text, raw);
    EXPECT_EQ(t5.sample(n).encoder_tokens, s.encoder_tokens);
  }
  EXPECT_EQ(inputs.size(), 40u);
}

TEST(T5Dataset, TooFewSentinelsOrTokensAreErrors) {
  T5Dataset::Options options = t5_options();
  EXPECT_THROW(T5Dataset(std::make_shared<CountingDataset>(500), options), ConfigError);
  options.sentinels.resize(10);
  EXPECT_THROW(T5Dataset(std::make_shared<CountingDataset>(567), options), ConfigError);
}

// --- BERT ----------------------------------------------------------------------------------------

/// Document d has d % 4 + 1 sentences of 5 to 14 tokens, each token 100 * d + sentence.
class SomeSentences final : public Sentences {
 public:
  explicit SomeSentences(int64_t documents) {
    for (int64_t d = 0; d < documents; ++d) {
      begins_.push_back(static_cast<int64_t>(texts_.size()));
      for (int64_t k = 0; k <= d % 4; ++k)
        texts_.emplace_back(5 + (d * 7 + k * 3) % 10, 100 * (d + 1) + k);
    }
    begins_.push_back(static_cast<int64_t>(texts_.size()));
  }
  int64_t num_documents() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t document_begin(int64_t d) const override { return begins_[static_cast<size_t>(d)]; }
  void read(int64_t i, std::vector<int64_t>& tokens) const override {
    tokens = texts_[static_cast<size_t>(i)];
  }
  int64_t length(int64_t i) const override {
    return static_cast<int64_t>(texts_[static_cast<size_t>(i)].size());
  }

 private:
  std::vector<int64_t> begins_;
  std::vector<std::vector<int64_t>> texts_;
};

TEST(BertDataset, PairsTextsOfOneOrTwoDocuments) {
  const BertDataset bert(std::make_shared<SomeSentences>(50),
                         {.sequence_length = 40,
                          .seed = 1,
                          .cls_token = 1,
                          .sep_token = 2,
                          .pad_token = 0,
                          .mask = {.mask_token = 3, .vocab_size = 6000}});
  EXPECT_EQ(bert.samples_per_epoch(), 50);
  int random = 0, pairs = 0;
  std::map<int64_t, int> first_document;
  for (int64_t n = 0; n < 400; ++n) {
    const BertSample s = bert.sample(n);
    std::vector<int64_t> text = s.tokens;
    int64_t masked = 0;
    for (size_t i = 0; i < 40; ++i) {
      EXPECT_EQ(s.loss_mask[i] != 0, s.labels[i] >= 0);
      masked += s.loss_mask[i];
      if (s.loss_mask[i]) text[i] = s.labels[i];
    }
    EXPECT_GE(masked, 1);
    ASSERT_EQ(text[0], 1);
    const auto sep = std::find(text.begin(), text.end(), 2);
    const auto end = std::find(sep + 1, text.end(), 2);
    ASSERT_TRUE(end != text.end());
    const auto document = [](int64_t token) { return token / 100; };
    for (auto it = text.begin() + 1; it != sep; ++it) EXPECT_EQ(document(*it), document(text[1]));
    for (auto it = sep + 1; it != end; ++it) EXPECT_EQ(document(*it), document(sep[1]));
    ASSERT_GT(end - sep, 1);
    EXPECT_EQ(document(text[1]) != document(sep[1]), s.is_random);
    for (auto it = end + 1; it != text.end(); ++it) EXPECT_EQ(*it, 0);
    for (int64_t i = 0; i < 40; ++i) {
      EXPECT_EQ(s.padding[static_cast<size_t>(i)], i <= end - text.begin());
      EXPECT_EQ(s.types[static_cast<size_t>(i)], i > sep - text.begin() && i <= end - text.begin());
    }
    random += s.is_random;
    ++pairs;
    if (n < 50) ++first_document[document(text[1])];
    EXPECT_EQ(bert.sample(n).tokens, s.tokens);
  }
  EXPECT_EQ(first_document.size(), 50u); // each document once an epoch
  // One in four documents has one sentence; pieces of the others that are one sentence add to it.
  EXPECT_GT(random, pairs / 2);
  EXPECT_LT(random, pairs * 85 / 100);
}

// --- conversations -----------------------------------------------------------------------------

class ChatTest : public testing::Test {
 protected:
  const std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer({});
  TemporaryFolder folder;

  /// Of one batch of one sample, what has a loss, as text ('$' for the end).
  static std::string learned(const TokenDataset& dataset, int64_t n,
                             const TokenSamples::Options& options = {}) {
    const int64_t ids[] = {n};
    const Batch batch = token_batch(dataset, ids, options);
    std::string text;
    for (const int64_t label : batch.ints("labels")) {
      if (label != -100) text += label == 256 ? '$' : static_cast<char>(label);
    }
    return text;
  }
};

TEST_F(ChatTest, OnlyAnswersHaveALoss) {
  const Json messages =
      Json::parse(R"([{"role":"system","content":"S"},{"role":"user","content":"Q"},
    {"role":"assistant","content":"A1"},{"role":"user","content":"R"},{"role":"assistant","content":"A2"}])");
  const ChatTokens chat = tokenize_chat(messages, chatml, *tokenizer);
  std::string all, answers;
  for (size_t i = 0; i < chat.tokens.size(); ++i) {
    all += static_cast<char>(chat.tokens[i]);
    if (chat.is_answer[i]) answers += static_cast<char>(chat.tokens[i]);
  }
  EXPECT_EQ(all, chatml(messages, false));
  EXPECT_EQ(answers, "A1<|im_end|>\nA2<|im_end|>\n");
  const ChatTemplate last_only = [](const Json& m, bool) {
    return m.empty() ? "" : m.back()["content"].get<std::string>();
  };
  EXPECT_THROW(tokenize_chat(messages, last_only, *tokenizer), DataError);
  EXPECT_THROW(tokenize_chat(Json::array(), chatml, *tokenizer), DataError);
}

TEST_F(ChatTest, TheTemplateOfATokenizerIsUsed) {
  const std::string path = folder.write(
      "tokenizer/tokenizer_config.json",
      R"({"eos_token": "</s>", "chat_template": "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"})");
  const ChatTemplate chat = open_chat_template(folder.path() / "tokenizer");
  const Json messages =
      Json::parse(R"([{"role":"user","content":"Q"},{"role":"assistant","content":"A"}])");
  EXPECT_EQ(chat(messages, false), "[user]Q</s>[assistant]A</s>");
  EXPECT_EQ(chat(messages, true), "[user]Q</s>[assistant]A</s>[assistant]");
  const ChatTokens tokens = tokenize_chat(messages, chat, *tokenizer);
  std::string answers;
  for (size_t i = 0; i < tokens.tokens.size(); ++i) {
    if (tokens.is_answer[i]) answers += static_cast<char>(tokens.tokens[i]);
  }
  EXPECT_EQ(answers, "A</s>");
  EXPECT_EQ(open_chat_template(folder.path() / "none")(messages, false), chatml(messages, false));
}

TEST_F(ChatTest, ConversationsArePackedByAnIndex) {
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    const std::string answer(static_cast<size_t>(1 + i), static_cast<char>('a' + i % 26));
    lines += i % 2 == 0
                 ? R"({"messages":[{"role":"user","content":"Q"},{"role":"assistant","content":")" +
                       answer + "\"}]}\n"
                 : R"({"conversations":[{"from":"human","value":"Q"},{"from":"gpt","value":")" +
                       answer + "\"}]}\n";
  }
  const std::string file = folder.write("chat.jsonl", lines);
  const ChatTemplate plain = [](const Json& messages, bool prompt) {
    std::string text;
    for (const Json& m : messages)
      text.append(m["role"] == "user" ? "?" : "!")
          .append(m["content"].get<std::string>())
          .append(".");
    return text + (prompt ? "!" : "");
  };
  for (const bool pack : {false, true}) {
    const ChatDataset chats({file}, tokenizer, plain,
                            {.sequence_length = 63, .seed = 1, .pack = pack});
    EXPECT_EQ(chats.num_conversations(), 40);
    EXPECT_EQ(chats.cut_conversations(), 0);
    if (!pack) {
      EXPECT_EQ(chats.samples_per_epoch(), 40);
    } else {
      EXPECT_LT(chats.samples_per_epoch(), 32);
    }
    std::multiset<std::string> answers, expected;
    for (int64_t n = 0; n < chats.samples_per_epoch(); ++n) {
      std::string text = learned(chats, n);
      for (size_t end = text.find('$'); end != std::string::npos; end = text.find('$')) {
        answers.insert(text.substr(0, end));
        text.erase(0, end + 1);
      }
      EXPECT_EQ(text, "");
      EXPECT_EQ(learned(chats, n + chats.samples_per_epoch()).empty(), false);
    }
    for (int i = 0; i < 40; ++i)
      expected.insert(std::string(static_cast<size_t>(1 + i), static_cast<char>('a' + i % 26)) +
                      ".");
    EXPECT_EQ(answers, expected);
  }
}

TEST_F(ChatTest, LongAndBadLinesAreCounted) {
  const std::string good =
      R"({"messages":[{"role":"user","content":"Q"},{"role":"assistant","content":"A"}]})";
  const auto line = [](const std::string& question, const std::string& answer) {
    Json messages = Json::array();
    messages.push_back({{"role", "user"}, {"content", question}});
    messages.push_back({{"role", "assistant"}, {"content", answer}});
    return Json{{"messages", messages}}.dump();
  };
  const std::string long_question = line(std::string(300, 'q'), "A");
  const std::string long_answer = line("Q", std::string(300, 'a'));
  const std::string file =
      folder.write("chat.jsonl", good + "\n{\"messages\": 3}\n" + long_question + "\n\n" +
                                     long_answer + "\n{\"text\": \"x\"}\n{\n");
  ChatDataset::Options options{.sequence_length = 128, .on_bad_input = OnBadInput::kSkip};
  const ChatDataset chats({file}, tokenizer, chatml, options);
  EXPECT_EQ(chats.num_conversations(), 2);
  EXPECT_EQ(chats.cut_conversations(), 2);
  EXPECT_EQ(chats.left_out(), 1);
  EXPECT_EQ(chats.report().total_skipped(), 3);
  EXPECT_THAT(chats.report().to_string(), HasSubstr("chat.jsonl: line 2"));
  options.on_bad_input = OnBadInput::kError;
  EXPECT_THROW(ChatDataset({file}, tokenizer, chatml, options), DataError);
}

TEST_F(ChatTest, ReadsAnArrayLikeLinesAndRefusesParquet) {
  const std::string good =
      R"({"messages":[{"role":"user","content":"Q"},{"role":"assistant","content":"A"}]})";
  const std::string file = folder.write("chat.json", "[" + good + ",\n3, " + good + ", ");
  ChatDataset::Options options{.sequence_length = 128, .on_bad_input = OnBadInput::kSkip};
  const ChatDataset chats({file}, tokenizer, chatml, options);
  EXPECT_EQ(chats.num_conversations(), 2);
  EXPECT_THAT(chats.report().to_string(),
              AllOf(HasSubstr("chat.json: element 2 is not a conversation"),
                    HasSubstr("is not a valid JSON array")));
  const std::string parquet = folder.write("chat.parquet", "PAR1");
  EXPECT_THAT(error_of<DataError>([&] { ChatDataset({parquet}, tokenizer, chatml, options); }),
              AllOf(HasSubstr("chat.parquet is a Parquet file"), HasSubstr("try: JSON Lines")));
}

} // namespace
} // namespace pentatron::data

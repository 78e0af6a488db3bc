#include "pentatron/data/sft/sft_dataset.h"

#include <algorithm>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/data/batch.h"
#include "pentatron/data/tokenizer/open.h"
#include "tests/data/data_files.h"
#include "tests/data/sft_examples.h"
#include "tests/support/log_capture.h"

namespace pentatron::data {
namespace {

using namespace testing;

const std::filesystem::path kData = PENTATRON_TEST_DATA;

/// Tokens and masks of conversations as transformers gives them; the README beside the file has the
/// origin.
TEST(SftTokens, AndMasksAreThoseOfTransformers) {
  std::ifstream file(kData / "sft/expected.json");
  const OrderedJson expected = OrderedJson::parse(file);
  std::map<std::string, std::shared_ptr<const Tokenizer>> tokenizers;
  int cases = 0;
  for (const OrderedJson& one : expected["cases"]) {
    const std::string name = one["tokenizer"], form = one["template"], talk = one["name"];
    SCOPED_TRACE(name + " " + form + " " + talk);
    auto& tokenizer = tokenizers[name];
    if (tokenizer == nullptr)
      tokenizer = tokenizer::open_tokenizer({.path = (kData / "tokenizers" / name).string()});
    const OrderedJson& ends = expected["tokenizers"][name];
    const RenderChat render = render_by(std::make_shared<const tokenizer::ChatTemplate>(
                                            expected["templates"][form].get<std::string>()),
                                        {{"bos_token", ends[0]}, {"eos_token", ends[1]}});
    OrderedJson record = {{"messages", expected["conversations"][talk]}};
    if (talk.starts_with("tools")) record["tools"] = expected["tools"];
    const TaughtText text = teach_record(record.dump(), render, *tokenizer);
    EXPECT_EQ(text.tokens, one["ids"].get<std::vector<int32_t>>());
    EXPECT_EQ(text.taught, one["mask"].get<std::vector<uint8_t>>());
    ++cases;
  }
  EXPECT_GT(cases, 200);
}

/// A conversation with tools as OpenAI's API has it: parts of text, no content beside calls, and
/// arguments as text; tools as many files have them.
OrderedJson as_openai(OrderedJson record) {
  for (OrderedJson& message : record["messages"]) {
    if (message["content"].is_null() || message["content"] == "")
      message["content"] = nullptr;
    else
      message["content"] = {{{"type", "text"}, {"text", message["content"]}}};
    if (message.contains("tool_calls"))
      for (OrderedJson& call : message["tool_calls"])
        call["function"]["arguments"] = call["function"]["arguments"].dump();
  }
  record["tools"] = record["tools"].dump();
  return record;
}

TEST(SftTokens, OfOpenaisFormAreThoseOfTransformersForObjects) {
  std::ifstream file(kData / "sft/expected.json");
  const OrderedJson expected = OrderedJson::parse(file);
  int cases = 0;
  for (const OrderedJson& one : expected["cases"]) {
    const std::string name = one["tokenizer"], talk = one["name"];
    if (!talk.starts_with("tools")) continue;
    SCOPED_TRACE(name + " " + talk);
    const auto tokenizer =
        tokenizer::open_tokenizer({.path = (kData / "tokenizers" / name).string()});
    const RenderChat render =
        render_by(std::make_shared<const tokenizer::ChatTemplate>(
                      expected["templates"][one["template"]].get<std::string>()),
                  {{"bos_token", expected["tokenizers"][name][0]}});
    const OrderedJson record =
        as_openai({{"messages", expected["conversations"][talk]}, {"tools", expected["tools"]}});
    const TaughtText text = teach_record(record.dump(), render, *tokenizer);
    EXPECT_EQ(text.tokens, one["ids"].get<std::vector<int32_t>>());
    EXPECT_EQ(text.taught, one["mask"].get<std::vector<uint8_t>>());
    ++cases;
  }
  EXPECT_GT(cases, 8);
}

/// Where the tokenizer's post-processor puts tokens before a text, so does training; what it puts
/// behind is the end of the document alone.
TEST(SftTokens, OfTextsBeginAsTransformersBeginsThem) {
  std::ifstream file(kData / "sft/expected.json");
  const OrderedJson expected = OrderedJson::parse(file);
  std::set<bool> begun;
  for (const OrderedJson& one : expected["texts"]) {
    const std::string name = one["tokenizer"], prompt = one["prompt"],
                      completion = one["completion"];
    SCOPED_TRACE(name + " " + prompt + "|" + completion);
    const auto tokenizer =
        tokenizer::open_tokenizer({.path = (kData / "tokenizers" / name).string()});
    auto ids = one["ids"].get<std::vector<int32_t>>();
    const auto record = [&](const OrderedJson& members) {
      return teach_record(members.dump(), {}, *tokenizer);
    };
    const TaughtText text = record({{"prompt", prompt}, {"completion", completion}});
    EXPECT_EQ(text.tokens, ids);
    EXPECT_EQ(text.taught, one["mask"].get<std::vector<uint8_t>>());
    EXPECT_EQ(record({{"text", prompt + completion}}).tokens, ids);
    ids.pop_back();
    EXPECT_EQ(encode_begun(prompt + completion, *tokenizer), ids);
    EXPECT_EQ(prompt_of_record(OrderedJson{{"text", prompt + completion}}.dump(), {}, *tokenizer),
              ids);
    begun.insert(text.tokens[0] == 1 && !completion.starts_with("<s>"));
  }
  EXPECT_EQ(begun.size(), 2u) << "with and without";
}

class SftTest : public testing::Test {
 protected:
  const ByteTokenizer tokenizer;
  TemporaryFolder folder;

  /// The bytes that are learned, '$' for the end of a document.
  std::string learned(const std::string& record, const RenderChat& render = {}) const {
    const TaughtText text = teach_record(record, render, tokenizer);
    std::string bytes;
    for (size_t i = 0; i < text.tokens.size(); ++i)
      if (text.taught[i] != 0)
        bytes += text.tokens[i] == 256 ? '$' : static_cast<char>(text.tokens[i]);
    return bytes;
  }
  TaughtTexts read(const std::string& lines, int64_t length,
                   OnBadInput bad = OnBadInput::kError) const {
    DatasetConfig config;
    config.on_bad_input = bad;
    return {{folder.write("taught.jsonl", lines)},
            config,
            tokenizer,
            {.vocab_size = 257, .sequence_length = length}};
  }
};

TEST_F(SftTest, EveryFormOfRecordTeachesItsAnswer) {
  EXPECT_EQ(learned(talk("Q", "A")), "A<|im_end|>\n");
  EXPECT_EQ(
      learned(
          R"({"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]})"),
      "A<|im_end|>\n");
  EXPECT_EQ(learned(R"({"conversations": [{"role": "user", "content": "Q"},)"
                    R"( {"role": "assistant", "content": "A"}]})"),
            "A<|im_end|>\n");
  EXPECT_EQ(learned(R"({"prompt": "Q ", "completion": "A"})"), "A$");
  EXPECT_EQ(learned(R"({"prompt": [{"role": "user", "content": "Q"}],)"
                    R"( "completion": [{"role": "assistant", "content": "A"}]})"),
            "A<|im_end|>\n");
  EXPECT_EQ(learned(R"({"instruction": "Q", "input": "I", "output": "A"})"), "A$");
  EXPECT_EQ(learned(R"({"text": "all"})"), "all$");
  const RenderChat short_form =
      render_by(std::make_shared<const tokenizer::ChatTemplate>(
                    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}.{% endfor %}{% if "
                    "add_generation_prompt %}a:{% endif %}"),
                OrderedJson::object());
  EXPECT_EQ(learned(R"({"instruction": "Q", "input": "I", "output": "A"})", short_form), "A.");
  const TaughtText text =
      teach_record(R"({"instruction": "Q", "input": "I", "output": "A"})", short_form, tokenizer);
  EXPECT_EQ(tokenizer.decode(std::vector<int64_t>(text.tokens.begin(), text.tokens.end())),
            "u:Q\n\nI.a:A.");
}

TEST_F(SftTest, OfPromptAndCompletionTheCompletionIsLearned) {
  const std::string prompt = R"({"prompt": [{"role": "user", "content": "Q"},)"
                             R"( {"role": "assistant", "content": "A"},)"
                             R"( {"role": "user", "content": "R"}])",
                    record = prompt + R"(, "completion": [{"role": "assistant", "content": "B"},)"
                                      R"( {"role": "user", "content": "S"},)"
                                      R"( {"role": "assistant", "content": "C"}]})";
  const RenderChat marked = render_by(
      std::make_shared<const tokenizer::ChatTemplate>(
          "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{% generation "
          "%}{{ m.content }}.{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"),
      OrderedJson::object());
  EXPECT_EQ(learned(record), "B<|im_end|>\nC<|im_end|>\n");
  EXPECT_EQ(learned(record, marked), "B.C.");
  for (const std::string& asked : {record, prompt + "}"}) {
    const std::vector<int32_t> tokens = prompt_of_record(asked, marked, tokenizer);
    EXPECT_EQ(tokenizer.decode(std::vector<int64_t>(tokens.begin(), tokens.end())), "u:Qa:A.u:R");
  }
}

/// Marks may stand around other messages, or around several at once.
TEST_F(SftTest, MarksOfAnotherNumberAreCountedInThePrompt) {
  const std::string record = R"({"prompt": [{"role": "tool", "content": "T"},)"
                             R"( {"role": "assistant", "content": "A"},)"
                             R"( {"role": "user", "content": "R"}],)"
                             R"( "completion": [{"role": "assistant", "content": "B"}]})";
  const RenderChat marked = render_by(
      std::make_shared<const tokenizer::ChatTemplate>(
          "{% for m in messages %}{% if m.role != 'user' %}{% generation %}{{ m.content }}.{% "
          "endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"),
      OrderedJson::object());
  EXPECT_EQ(learned(record, marked), "B.");
}

/// The prompt alone, which such a template refuses, is not written for its own sake.
TEST_F(SftTest, APromptNeedNotBeAConversation) {
  const std::string record = R"({"prompt": [{"role": "user", "content": "Q"},)"
                             R"( {"role": "assistant", "content": "A"}],)"
                             R"( "completion": [{"role": "user", "content": "R"},)"
                             R"( {"role": "assistant", "content": "B"}]})";
  const RenderChat strict = render_by(
      std::make_shared<const tokenizer::ChatTemplate>(
          "{% if messages | length < 4 %}{{ raise_exception('too short') }}{% endif %}{% for m in "
          "messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}.{% "
          "endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"),
      OrderedJson::object());
  EXPECT_EQ(learned(record, strict), "B.");
}

TEST_F(SftTest, PromptAndCompletionMayHaveTools) {
  const RenderChat shown = render_by(std::make_shared<const tokenizer::ChatTemplate>(
                                         "{{ tools[0].name }}|{% for m in messages %}{{ m.role[0] "
                                         "}}:{{ m.content }}.{% endfor %}{% "
                                         "if add_generation_prompt %}a:{% endif %}"),
                                     OrderedJson::object());
  const std::string record = R"({"tools": [{"name": "clock"}],)"
                             R"( "prompt": [{"role": "user", "content": "Q"}],)"
                             R"( "completion": [{"role": "assistant", "content": "A"}]})";
  const TaughtText text = teach_record(record, shown, tokenizer);
  EXPECT_EQ(tokenizer.decode(std::vector<int64_t>(text.tokens.begin(), text.tokens.end())),
            "clock|u:Q.a:A.");
  EXPECT_EQ(learned(record, shown), "A.");
}

TEST_F(SftTest, ToolsThatChatmlLeavesOutAreTold) {
  const std::string plain =
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})";
  std::string tools = plain;
  tools.insert(1, R"("tools":[{"type":"function"}],)");
  const test::LogCapture log(false);
  read(plain, 128);
  EXPECT_EQ(log.text(), "");
  read(tools + "\n" + plain, 128);
  EXPECT_THAT(log.text(), testing::HasSubstr("one example has tools or tool calls"));
}

/// SmolLM2's and older templates write the contents of messages alone.
TEST_F(SftTest, ToolCallsThatATemplateLeavesOutAreTold) {
  const std::string talk =
      R"({"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"type":)"
      R"("function","function":{"name":"f","arguments":{}}}]},{"role":"tool","content":"7"},)"
      R"({"role":"assistant","content":"b"})";
  const auto brief = [](const char* more) {
    return render_by(std::make_shared<const tokenizer::ChatTemplate>(
                         "{% for m in messages %}{{ m.role[0] }}:{{ m.content or '' }}" +
                         std::string(more) + ".{% endfor %}"),
                     OrderedJson::object(), std::nullopt);
  };
  const auto learned = [&](const RenderChat& render, const std::string& before = "") {
    const TaughtText taught =
        teach_record("{" + before + R"("messages":[)" + talk + "]}", render, tokenizer);
    std::string bytes = taught.without_tools ? "lost: " : "";
    for (size_t i = 0; i < taught.tokens.size(); ++i)
      if (taught.taught[i] != 0) bytes += static_cast<char>(taught.tokens[i]);
    return bytes;
  };
  EXPECT_EQ(learned(brief("")), "lost: a:.a:b.");
  const RenderChat writes =
      brief("{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}");
  EXPECT_EQ(learned(writes), "a:f.a:b.");
  EXPECT_EQ(learned(writes, R"("tools":[{"type":"function"}],)"), "lost: a:f.a:b.");
  for (const char* none : {"[]", "null"}) { // as data sets have them whose columns are fixed
    const TaughtText taught =
        teach_record(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":)"
                     R"("b","tool_calls":)" +
                         std::string(none) + "}]}",
                     brief(""), tokenizer);
    EXPECT_FALSE(taught.without_tools) << none;
  }
  // ChatML, where a content of null is empty.
  EXPECT_EQ(learned({}), "lost: <|im_end|>\nb<|im_end|>\n");
}

TEST_F(SftTest, OlderCallsRefusalsAndRejectedAnswers) {
  const auto learned = [&](const std::string& record) {
    const TaughtText taught = teach_record(record, {}, tokenizer);
    std::string bytes;
    for (size_t i = 0; i < taught.tokens.size(); ++i)
      if (taught.taught[i] != 0) bytes += static_cast<char>(taught.tokens[i]);
    return bytes;
  };
  EXPECT_EQ(learned(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":)"
                    R"(null,"refusal":"no"}]})"),
            "no<|im_end|>\n");
  EXPECT_EQ(learned(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":)"
                    R"(null,"function_call":{"name":"f","arguments":"{}"}},{"role":"function",)"
                    R"("name":"f","content":"7"},{"role":"assistant","content":"b"}]})"),
            "<|im_end|>\nb<|im_end|>\n");
  EXPECT_EQ(learned(R"({"messages":null,"prompt":"a","completion":"b","label":true})"),
            std::string("b\0", 2)); // and the end of the document
  EXPECT_THAT(
      error_of<DataError>([&] { learned(R"({"prompt":"a","completion":"b","label":false})"); }),
      HasSubstr("its label is false"));
  // LLaMA-Factory's.
  for (const char* record :
       {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"label":)"
        R"(false})",
        R"({"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}],"kto_tag":)"
        R"(false})",
        R"({"instruction":"a","output":"b","kto_tag":false})"})
    EXPECT_THAT(error_of<DataError>([&] { learned(record); }), HasSubstr("is false, which marks"));
  EXPECT_EQ(learned(R"({"text":"ab","label":false})"), std::string("ab\0", 3));
}

TEST_F(SftTest, RecordsThatTeachNothingAreErrors) {
  const auto message = [&](const std::string& record) {
    return error_of<DataError>([&] { teach_record(record, {}, tokenizer); });
  };
  EXPECT_THAT(message("{}"), HasSubstr("none of messages, conversations, prompt and completion"));
  EXPECT_THAT(message("[]"), HasSubstr("not an object"));
  EXPECT_THAT(message(R"({"messages": []})"), HasSubstr("its messages are empty"));
  EXPECT_THAT(message(R"({"messages": [3]})"), HasSubstr("no role"));
  EXPECT_THAT(message(R"({"messages": [{"role": "user"}]})"), HasSubstr("no text \"content\""));
  EXPECT_THAT(message(R"({"conversations": [{"from": "gpt"}]})"), HasSubstr("from and value"));
  EXPECT_THAT(message(R"({"conversations": [{"from": "bard", "value": "x"}]})"),
              HasSubstr("is from bard"));
  EXPECT_THAT(message(R"({"prompt": [{"role": "user", "content": "Q"}], "completion": "A"})"),
              HasSubstr("of prompt and completion one is a list of messages"));
  EXPECT_THAT(message(R"({"prompt": [{"role": "user", "content": "Q"}], "completion": []})"),
              HasSubstr("its messages are empty"));
  EXPECT_THAT(message(R"({"text": "x")"), HasSubstr("the example"));
  const RenderChat numbers =
      render_by(std::make_shared<const tokenizer::ChatTemplate>("{{ messages[0].n }}"),
                OrderedJson::object());
  EXPECT_THAT(error_of<DataError>([&] {
                teach_record(R"({"messages": [{"role": "user", "n": 9223372036854775808}]})",
                             numbers, tokenizer);
              }),
              HasSubstr("the integer 9223372036854775808 is too large"));
  const RenderChat forgetful =
      render_by(std::make_shared<const tokenizer::ChatTemplate>("{{ messages[-1].content }}"),
                OrderedJson::object());
  EXPECT_THAT(error_of<DataError>([&] { teach_record(talk("Q", "A"), forgetful, tokenizer); }),
              HasSubstr("changes earlier text"));
}

TEST_F(SftTest, SamplesArePackedAndEveryExampleIsADocument) {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines +=
        fmt::format(R"({{"prompt": "{}?", "completion": "{}"}})", i,
                    std::string(static_cast<size_t>(1 + i % 26), static_cast<char>('a' + i % 26))) +
        "\n";
  const auto texts = std::make_shared<const TaughtTexts>(read(lines, 64));
  ASSERT_EQ(texts->size(), 40);
  for (const bool pack : {false, true}) {
    const SftDataset samples(texts, {0, 40},
                             {.sequence_length = 64, .order = {.seed = 3}, .pack = pack});
    EXPECT_TRUE(pack ? samples.samples_per_epoch() < 20 : samples.samples_per_epoch() == 40);
    std::multiset<std::string> seen, expected;
    for (int i = 0; i < 40; ++i)
      expected.insert(
          std::string(static_cast<size_t>(1 + i % 26), static_cast<char>('a' + i % 26)) + "$");
    for (int64_t n = 0; n < samples.samples_per_epoch(); ++n) {
      const int64_t ids[] = {n};
      const Batch batch = make_batch(samples, ids);
      const StreamShape& stream = batch.stream("tokens");
      for (size_t d = 0; d + 1 < stream.cu_seqlens.size(); ++d) {
        std::string answer;
        for (int64_t i = stream.cu_seqlens[d]; i < stream.cu_seqlens[d + 1]; ++i) {
          const auto at = static_cast<size_t>(i);
          EXPECT_EQ(stream.position_ids[at], i - stream.cu_seqlens[d]);
          const int64_t label = batch.ints("labels")[at];
          if (label == -100) continue;
          answer += label == 256 ? '$' : static_cast<char>(label);
          if (i + 1 < stream.cu_seqlens[d + 1]) {
            EXPECT_EQ(batch.ints("input_ids")[at + 1], label);
          }
        }
        if (!answer.empty()) seen.insert(answer);
      }
    }
    EXPECT_EQ(seen, expected); // each once an epoch, by its own document alone
  }
}

TEST_F(SftTest, AnExampleMayFillASampleToItsLastLabel) {
  const TaughtTexts texts = read(R"({"prompt": "ab", "completion": "cd"})", 4);
  EXPECT_EQ(texts.length(0), 5);
  EXPECT_THAT(texts.incomplete(), IsEmpty());
  const SftDataset samples(std::make_shared<const TaughtTexts>(texts), {0, 1},
                           {.sequence_length = 4});
  const int64_t ids[] = {0};
  const Batch batch = make_batch(samples, ids);
  EXPECT_THAT(batch.ints("input_ids"), ElementsAre('a', 'b', 'c', 'd'));
  EXPECT_THAT(batch.ints("labels"), ElementsAre(-100, 'c', 'd', 256));
}

TEST_F(SftTest, LongAndBadLinesAreCounted) {
  const std::string lines = talk("Q", "A") + "\n{\"messages\": 3}\n" +
                            talk(std::string(300, 'q'), "A") + "\n\n" +
                            talk("Q", std::string(300, 'a')) + "\n{\"other\": \"x\"}\n{\n";
  const TaughtTexts texts = read(lines, 128, OnBadInput::kSkip);
  EXPECT_EQ(texts.size(), 2);
  EXPECT_THAT(texts.incomplete(),
              ElementsAre("1 example cut to 129 tokens",
                          "1 example left out, because no answer begins in the first 128 tokens"));
  EXPECT_EQ(texts.report().total_skipped(), 3);
  EXPECT_THAT(
      texts.report().to_string(),
      AllOf(HasSubstr("taught.jsonl: line 2 is not a training example: its messages are not "
                      "a list"),
            HasSubstr("its only key is \"other\"")));
  EXPECT_THROW(read(lines, 128), DataError);
  EXPECT_THAT(error_of<ConfigError>([&] { read(talk(std::string(300, 'q'), "A"), 128); }),
              HasSubstr("begins after train.seq_length=128 tokens\n  try: train.seq_length=3"));
}

TEST_F(SftTest, OtherFilesAreRefused) {
  const std::string file = folder.write("a.txt", "Q");
  EXPECT_THAT(error_of<DataError>([&] {
                TaughtTexts({file}, {}, tokenizer, {.vocab_size = 257, .sequence_length = 8});
              }),
              HasSubstr("dataset.type=sft reads JSON objects\n  try: JSON Lines"));
}

TEST_F(SftTest, PartsAreCutOrHaveFilesOfTheirOwn) {
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += talk("Q", std::to_string(i)) + "\n";
  DatasetConfig config;
  config.type = DatasetType::kSft;
  config.path = folder.write("all.jsonl", lines);
  config.split = "80,20,0";
  const DatasetContext context{.sequence_length = 64,
                               .vocab_size = 257,
                               .tokenizer = std::make_shared<const ByteTokenizer>()};
  Datasets sets = open_datasets(config, context);
  EXPECT_EQ(sets.train_size.documents, 16);
  EXPECT_EQ(sets.validation_size.documents, 4);
  EXPECT_TRUE(sets.validation->size().has_value());
  EXPECT_EQ(sets.test, nullptr);
  EXPECT_THAT(sets.summary, AllOf(HasSubstr("are trained on"), HasSubstr("written as ChatML")));
  config.train_data_path = config.path;
  config.valid_data_path = folder.write("valid.jsonl", talk("Q", "A"));
  config.path.clear();
  sets = open_datasets(config, context);
  EXPECT_EQ(sets.train_size.documents, 20);
  EXPECT_EQ(sets.validation_size.documents, 1);
  DatasetContext small = context;
  small.vocab_size = 256;
  EXPECT_THAT(error_of<ConfigError>([&] { open_datasets(config, small); }),
              HasSubstr("try: model.vocab_size=257"));
}

TEST_F(SftTest, APromptIsWhatTheModelGoesOnFrom) {
  const auto prompt = [&](const std::string& record, const RenderChat& render = {}) {
    const std::vector<int32_t> tokens = prompt_of_record(record, render, tokenizer);
    return tokenizer.decode(std::vector<int64_t>(tokens.begin(), tokens.end()));
  };
  const std::string question = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(prompt(talk("Q", "A")), question);
  EXPECT_EQ(prompt(R"({"messages": [{"role": "user", "content": "Q"}]})"), question);
  EXPECT_EQ(prompt(R"({"conversations": [{"from": "human", "value": "Q"}]})"), question);
  EXPECT_EQ(prompt(R"({"prompt": "Q ", "completion": "A"})"), "Q ");
  EXPECT_EQ(prompt(R"({"prompt": "Q "})"), "Q ");
  EXPECT_EQ(prompt(R"({"text": "all"})"), "all");
  const RenderChat short_form =
      render_by(std::make_shared<const tokenizer::ChatTemplate>(
                    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}.{% endfor %}{% if "
                    "add_generation_prompt %}a:{% endif %}"),
                OrderedJson::object());
  EXPECT_EQ(prompt(talk("Q", "A"), short_form), "u:Q.a:");
  EXPECT_EQ(prompt(R"({"instruction": "Q", "input": "I"})", short_form), "u:Q\n\nI.a:");
  // What is taught begins where the prompt ends.
  const TaughtText text = teach_record(talk("Q", "A"), short_form, tokenizer);
  EXPECT_EQ(std::ranges::find(text.taught, 1) - text.taught.begin(),
            std::ssize(prompt(talk("Q", "A"), short_form)));
}

TEST_F(SftTest, AnEncoderReadsThePromptAndTheDecoderLearnsTheAnswer) {
  const TaughtText pair = teach_pair(R"({"prompt": "ab", "completion": "xyz"})", tokenizer, 256);
  EXPECT_THAT(pair.tokens, ElementsAre('a', 'b', 256, 'x', 'y', 'z', 256));
  EXPECT_THAT(pair.taught, ElementsAre(0, 0, 0, 1, 1, 1, 1));
  EXPECT_THAT(error_of<DataError>([&] { teach_pair(talk("Q", "A"), tokenizer, 256); }),
              AllOf(HasSubstr("it is a conversation, and a model with an encoder has no chat"),
                    HasSubstr("try: objects with prompt and completion as text, or instruction")));
  for (const char* record : {R"({"text": "a"})", R"({"prompt": "", "completion": "a"})"})
    EXPECT_THAT(error_of<DataError>([&] { teach_pair(record, tokenizer, 256); }),
                AllOf(HasSubstr("it has no prompt"), HasSubstr("try: objects with prompt and "
                                                               "completion as text, or")));
  EXPECT_THAT(error_of<DataError>([&] { teach_pair(R"({"question": "a"})", tokenizer, 256); }),
              AllOf(HasSubstr("it has none of prompt and completion as text, or instruction"),
                    Not(HasSubstr("messages"))));
  const auto begun =
      tokenizer::open_tokenizer({.path = (kData / "tokenizers/mistral.json").string()});
  const TaughtText after_begin = teach_pair(R"({"prompt": "a", "completion": "a"})", *begun, 2);
  EXPECT_THAT(after_begin.tokens, ElementsAre(1, 412, 2, 412, 2));
  EXPECT_THAT(after_begin.taught, ElementsAre(0, 0, 0, 1, 1));
  const std::string lines = R"({"prompt": "ab", "completion": "xyz"})"
                            "\n"
                            R"({"prompt": "abcdefgh", "completion": "uvwxyz"})";
  const auto texts = std::make_shared<const TaughtTexts>(
      std::vector<std::string>{folder.write("pairs.jsonl", lines)}, DatasetConfig(), tokenizer,
      TaughtTexts::Options{
          .vocab_size = 258, .sequence_length = 5, .target_length = 4, .end_token = 256});
  EXPECT_THAT(texts->incomplete(), ElementsAre("1 example cut to 5 and 4 tokens"));
  EXPECT_EQ(texts->num_taught(), 8);
  const TaughtPairs samples(
      texts, {1, 2}, {.input_length = 5, .target_length = 4, .pad_token = 257, .start_token = 257});
  const int64_t ids[] = {0};
  const Batch batch = make_batch(samples, ids);
  EXPECT_THAT(batch.ints("input_ids"), ElementsAre('a', 'b', 'c', 'd', 256)) << "ends with the end";
  EXPECT_THAT(batch.ints("labels"), ElementsAre('u', 'v', 'w', 'x'));
  EXPECT_THAT(batch.ints("decoder_input_ids"), ElementsAre(257, 'u', 'v', 'w'));
  const TaughtPairs first(
      texts, {0, 1}, {.input_length = 5, .target_length = 4, .pad_token = 257, .start_token = 257});
  const Batch padded = make_batch(first, ids);
  EXPECT_THAT(padded.ints("input_ids"), ElementsAre('a', 'b', 256, 257, 257));
  EXPECT_THAT(padded.ints("labels"), ElementsAre('x', 'y', 'z', 256));
}

TEST(LengthOrder, GroupsBlocksFromTheLongest) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 2500; ++i) lengths.push_back(i * 37 % 101);
  const LengthOrder grouped(lengths, {.seed = 5, .grouped = true, .ends = true});
  const LengthOrder random(lengths, {.seed = 5, .ends = true});
  std::set<size_t> seen;
  int64_t same = 0;
  for (int64_t n = 0; n < 2500; ++n) {
    const size_t i = grouped.at(n);
    seen.insert(i);
    same += i == random.at(n) ? 1 : 0;
    if (n % LengthOrder::kBlock != 0) {
      EXPECT_LE(lengths[i], lengths[grouped.at(n - 1)]) << n;
    }
  }
  EXPECT_EQ(seen.size(), 2500u) << "each once an epoch";
  EXPECT_LT(same, 100);
  EXPECT_NE(lengths[grouped.at(1023)], lengths[grouped.at(1024)]) << "a new block begins";
  EXPECT_THROW(grouped.at(2500), DataError);
}

} // namespace
} // namespace pentatron::data

#include "pentatron/data/sft/read_example.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/data/sft/sft_dataset.h"
#include "pentatron/data/tokenizer/chat_messages.h"
#include "tests/data/data_files.h"

namespace pentatron::data {
namespace {

using namespace testing;

RenderChat render_with(const char* source) {
  return render_by(std::make_shared<const tokenizer::ChatTemplate>(source), OrderedJson::object());
}

/// "s:be.u:Q.a:A." and the names of the tools before.
RenderChat brief() {
  return render_with("{% for t in tools or [] %}{{ t.name }}|{% endfor %}{% for m in messages %}"
                     "{{ m.role[0] }}:{{ m.content }}.{% endfor %}{% if add_generation_prompt "
                     "%}a:{% endif %}");
}

class ExampleTest : public testing::Test {
 protected:
  const ByteTokenizer tokenizer;

  std::string text(const std::string& record, const RenderChat& render = brief()) const {
    const TaughtText taught = teach_record(record, render, tokenizer);
    return tokenizer.decode(std::vector<int64_t>(taught.tokens.begin(), taught.tokens.end()));
  }
  std::string learned(const std::string& record, const RenderChat& render = brief()) const {
    const TaughtText taught = teach_record(record, render, tokenizer);
    std::string bytes;
    for (size_t i = 0; i < taught.tokens.size(); ++i)
      if (taught.taught[i] != 0) bytes += static_cast<char>(taught.tokens[i]);
    return bytes;
  }
  std::string refused(const std::string& record, const RenderChat& render = brief()) const {
    return error_of<DataError>([&] { teach_record(record, render, tokenizer); });
  }
};

constexpr const char* kTalk =
    R"("messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]})";

TEST_F(ExampleTest, ToolsMayBeTheTextOfTheirList) {
  const std::string talk = kTalk;
  EXPECT_EQ(text(R"({"tools": [{"name": "clock"}, {"name": "map"}], )" + talk),
            "clock|map|u:Q.a:A.");
  EXPECT_EQ(text(R"({"tools": "[{\"name\": \"clock\"}, {\"name\": \"map\"}]", )" + talk),
            "clock|map|u:Q.a:A.");
  for (const char* none : {"null", "[]", R"("")", R"(" ")", R"("[]")", R"("null")"})
    EXPECT_EQ(text(fmt::format(R"({{"tools": {}, )", none) + talk), "u:Q.a:A.") << none;
  for (const char* bad : {"3", R"({"name": "clock"})", R"(["clock"])", R"("{\"name\": 1}")"})
    EXPECT_THAT(refused(fmt::format(R"({{"tools": {}, )", bad) + talk),
                HasSubstr("its tools are not a list of objects"))
        << bad;
  EXPECT_THAT(refused(R"({"tools": "a clock", )" + talk), HasSubstr("tools"));
}

TEST_F(ExampleTest, ToolsThatAreNoListAreABadLine) {
  const TemporaryFolder folder;
  const std::string talk = kTalk;
  DatasetConfig config;
  const std::string file = folder.write("tools.jsonl", R"({"tools": "[]", )" + talk + "\n" +
                                                           R"({"tools": "clock", )" + talk + "\n");
  const auto read = [&] {
    return TaughtTexts({file}, config, tokenizer, {.vocab_size = 257, .sequence_length = 99});
  };
  EXPECT_THAT(error_of<DataError>(read), HasSubstr("line 2 is not a training example: tools"));
  config.on_bad_input = OnBadInput::kSkip;
  EXPECT_EQ(read().size(), 1);
}

TEST_F(ExampleTest, AnswersOfWeightZeroAreNotLearned) {
  const auto talk = [](const std::string& first, const std::string& second) {
    return R"({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A")" +
           first + R"(}, {"role": "user", "content": "R"}, {"role": "assistant", "content": "B")" +
           second + "}]}";
  };
  EXPECT_EQ(learned(talk("", "")), "A.B.");
  EXPECT_EQ(learned(talk(R"(, "weight": 0)", "")), "B.");
  EXPECT_EQ(learned(talk(R"(, "weight": 1)", R"(, "weight": 0.0)")), "A.");
  EXPECT_EQ(learned(talk(R"(, "weight": null)", R"(, "weight": 1)")), "A.B.");
  EXPECT_EQ(text(talk(R"(, "weight": 0)", "")), text(talk("", "")));
  for (const char* bad : {"0.5", "-1", "2", "true", R"("0")"})
    EXPECT_THAT(refused(talk(fmt::format(R"(, "weight": {})", bad), "")),
                AllOf(HasSubstr("weight="), HasSubstr("neither 0 (not learned) nor 1")))
        << bad;
  const auto of_user = [](int weight) {
    return fmt::format(R"({{"messages": [{{"role": "user", "content": "Q", "weight": {}}},)"
                       R"( {{"role": "assistant", "content": "A"}}]}})",
                       weight);
  };
  EXPECT_EQ(learned(of_user(0)), "A.");
  EXPECT_THAT(refused(of_user(1)), HasSubstr("of the role user has weight=1"));
  EXPECT_EQ(learned(R"({"conversations": [{"from": "gpt", "value": "A", "weight": 0},)"
                    R"( {"from": "human", "value": "Q"}, {"from": "gpt", "value": "B"}]})"),
            "B.");
  EXPECT_EQ(learned(R"({"prompt": [{"role": "user", "content": "Q"}], "completion": [{"role":)"
                    R"( "assistant", "content": "A", "weight": 0}, {"role": "user", "content":)"
                    R"( "R"}, {"role": "assistant", "content": "B"}]})"),
            "B.");
}

/// Marks around other messages are learned as before.
TEST_F(ExampleTest, AWeightSkipsTheMarksOfItsMessageAlone) {
  const RenderChat marked = render_with(
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}{% generation "
      "%}{{ m.content }}.{% endgeneration %}{% endif %}{% endfor %}");
  EXPECT_EQ(learned(R"({"messages": [{"role": "tool", "content": "T"}, {"role": "assistant",)"
                    R"( "content": "A", "weight": 0}, {"role": "user", "content": "Q"},)"
                    R"( {"role": "assistant", "content": "B"}, {"role": "tool", "content": "U"}]})",
                    marked),
            "T.B.U.");
}

TEST_F(ExampleTest, SystemBesideAConversationIsItsSystemMessage) {
  const std::string talk = kTalk;
  EXPECT_EQ(text(R"({"system": "be", )" + talk), "s:be.u:Q.a:A.");
  EXPECT_EQ(text(R"({"system": "", )" + talk), "u:Q.a:A.");
  EXPECT_EQ(learned(R"({"system": "be", )" + talk), "A.");
  EXPECT_EQ(text(R"({"system": "be", "conversations": [{"from": "human", "value": "Q"},)"
                 R"( {"from": "gpt", "value": "A"}]})"),
            "s:be.u:Q.a:A.");
  const std::string own =
      R"("conversations": [{"from": "system", "value": "be"}, {"from": "human", "value": "Q"}, )"
      R"({"from": "gpt", "value": "A"}]})";
  EXPECT_EQ(text(R"({"system": "be", )" + own), "s:be.u:Q.a:A.");
  EXPECT_THAT(refused(R"({"system": "do", )" + own),
              HasSubstr("a system prompt in its messages and another one in system"));
  EXPECT_THAT(refused(R"({"system": 3, )" + talk), HasSubstr("its system is not text"));
  const std::string parts = R"({"system": "be", "prompt": [{"role": "user", "content": "Q"},)"
                            R"( {"role": "assistant", "content": "A"}], "completion":)"
                            R"( [{"role": "assistant", "content": "B"}]})";
  EXPECT_EQ(text(parts), "s:be.u:Q.a:A.a:B.");
  EXPECT_EQ(learned(parts), "B.");
  const std::vector<int32_t> prompt = prompt_of_record(parts, brief(), tokenizer);
  EXPECT_EQ(tokenizer.decode(std::vector<int64_t>(prompt.begin(), prompt.end())),
            "s:be.u:Q.a:A.a:");
  EXPECT_THAT(refused(R"({"history": [["P", "O"]], )" + talk),
              HasSubstr("it has history, for which a conversation has no place"));
}

/// LLaMA-Factory's turns.
TEST_F(ExampleTest, FunctionCallsAndObservationsAreToolCallsAndTheirResults) {
  const RenderChat form = render_with(
      "{% for m in messages %}{{ m.role[0] }}:{% if m.tool_calls %}{% for c in m.tool_calls %}"
      "{{ c.function.name }}({{ c.function.arguments.place }}){% endfor %}{% else %}{{ m.content }}"
      "{% endif %}.{% endfor %}");
  const auto of_calls = [](const std::string& value) {
    return R"({"conversations": [{"from": "human", "value": "Q"}, {"from": "function_call",)"
           R"( "value": ")" +
           value + R"("}, {"from": "observation", "value": "7"}, {"from": "gpt", "value": "A"}]})";
  };
  const std::string call = R"({\"name\": \"sky\", \"arguments\": {\"place\": \"Ur\"}})";
  EXPECT_EQ(text(of_calls(call), form), "u:Q.a:sky(Ur).t:7.a:A.");
  EXPECT_EQ(learned(of_calls(call), form), "a:sky(Ur).a:A.");
  EXPECT_EQ(text(of_calls("[" + call + ", " + call + "]"), form), "u:Q.a:sky(Ur)sky(Ur).t:7.a:A.");
  // OpenAI's text instead of an object.
  EXPECT_EQ(text(of_calls(R"({\"name\": \"sky\", \"arguments\": \"{\\\"place\\\": \\\"Ur\\\"}\"})"),
                 form),
            "u:Q.a:sky(Ur).t:7.a:A.");
  for (const char* value : {"sky", "[]", "3", R"({\"name\": \"sky\"})", R"([{\"arguments\": {}}])"})
    EXPECT_THAT(refused(of_calls(value)),
                HasSubstr("a turn from function_call is not the JSON of calls"))
        << value;
  EXPECT_THAT(refused(R"({"conversations": [{"from": "bard", "value": "Q"}]})"),
              HasSubstr("from bard, not from human, gpt, system, tool, function_call or"));
}

TEST_F(ExampleTest, AlpacaJoinsPartsThatHaveText) {
  EXPECT_EQ(text(R"({"instruction": "Q", "input": "I", "output": "A"})"), "u:Q\n\nI.a:A.");
  EXPECT_EQ(text(R"({"instruction": "Q", "input": "", "output": "A"})"), "u:Q.a:A.");
  EXPECT_EQ(text(R"({"instruction": "", "input": "I", "output": "A"})"), "u:I.a:A.");
}

TEST_F(ExampleTest, AlpacaMayHaveSystemHistoryAndTools) {
  const std::string last = R"("instruction": "Q", "input": "I", "output": "A"})";
  EXPECT_EQ(text(R"({"system": "be", "history": [["P", "O"], ["N", "M"]], )" + last),
            "s:be.u:P.a:O.u:N.a:M.u:Q\n\nI.a:A.");
  EXPECT_EQ(learned(R"({"history": [["P", "O"], ["N", "M"]], )" + last), "O.M.A.");
  EXPECT_EQ(text(R"({"system": "", "history": [], )" + last), "u:Q\n\nI.a:A.");
  EXPECT_EQ(text(R"({"system": null, "history": null, )" + last), "u:Q\n\nI.a:A.");
  EXPECT_EQ(text(R"({"tools": "[{\"name\": \"clock\"}]", )" + last), "clock|u:Q\n\nI.a:A.");
  for (const char* bad : {R"("P")", R"(["P", "O"])", R"([["P"]])", R"([["P", 3]])"})
    EXPECT_THAT(refused(fmt::format(R"({{"history": {}, )", bad) + last),
                HasSubstr("its history is not a list of [question, answer]"))
        << bad;
}

TEST_F(ExampleTest, TextsWithoutAPlaceForSystemOrHistoryAreRefused) {
  const std::string alpaca = R"("instruction": "Q", "output": "A"})",
                    plain = R"("prompt": "Q", "completion": "A"})";
  EXPECT_EQ(learned(R"({"system": "", "history": [], )" + alpaca, {}), std::string("A\0", 2));
  EXPECT_THAT(refused(R"({"system": "be", )" + alpaca, {}),
              HasSubstr("it has system, for which Alpaca's prompt has no place\n  try: its text "
                        "within instruction"));
  EXPECT_THAT(refused(R"({"history": [["P", "O"]], )" + alpaca, {}),
              HasSubstr("it has history, for which Alpaca's prompt has no place"));
  EXPECT_THAT(refused(R"({"system": "be", )" + plain),
              HasSubstr("it has system, for which a prompt as text has no place"));
  const std::string tools = R"({"tools": "[{\"name\": \"clock\"}]", )";
  EXPECT_THAT(refused(tools + plain), HasSubstr("it has tools, for which a prompt as text"));
  EXPECT_THAT(refused(tools + alpaca, {}), HasSubstr("it has tools, for which Alpaca's prompt"));
  EXPECT_EQ(learned(R"({"tools": "[]", )" + alpaca, {}), std::string("A\0", 2));
  EXPECT_THAT(refused(R"({"input": ["x"], )" + alpaca), HasSubstr("its input is not text"));
  EXPECT_THAT(
      error_of<DataError>([&] { teach_pair(R"({"system": "be", )" + alpaca, tokenizer, 256); }),
      HasSubstr("it has system, for which Alpaca's prompt has no place"));
}

TEST_F(ExampleTest, PicturesAndSoundsAreRefused) {
  const std::string talk = kTalk;
  for (const char* media : {R"("images": ["a.png"])", R"("image": "a.png")", R"("videos": ["a"])",
                            R"("audios": ["a.wav"])"})
    EXPECT_THAT(refused(fmt::format("{{{}, ", media) + talk),
                HasSubstr("but the model only reads text"))
        << media;
  EXPECT_THAT(refused(R"({"images": ["a.png"], "instruction": "Q", "output": "A"})"),
              HasSubstr("it has images"));
  for (const char* none : {R"("images": [])", R"("images": null)", R"("image": "")"})
    EXPECT_EQ(text(fmt::format("{{{}, ", none) + talk), "u:Q.a:A.") << none;
  // What is no part of the example.
  EXPECT_EQ(text(R"({"image": "of the dish", "instruction": "Q", "output": "A"})"), "u:Q.a:A.");
  EXPECT_NO_THROW(text(R"({"images": ["a.png"], "text": "A"})"));
}

} // namespace
} // namespace pentatron::data

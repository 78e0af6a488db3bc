// What a request may say.
#include "pentatron/serve/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"

namespace pentatron::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const RequestLimits kLimits{.max_texts = 12, .max_choices = 4, .vocab_size = 100};

CompletionRequest completion(const std::string& body) {
  return parse_request(body, Endpoint::kCompletions, kLimits);
}
CompletionRequest chat(const std::string& more) {
  return parse_request(R"({"messages":[{"role":"user","content":"hi"}])" + more + "}",
                       Endpoint::kChat, kLimits);
}

struct Refused {
  int status = 0;
  std::string message, param;
};
Refused refused(const std::string& body, Endpoint endpoint = Endpoint::kCompletions) {
  try {
    parse_request(body, endpoint, kLimits);
  } catch (const ApiError& error) {
    return {error.status(), error.what(), error.param()};
  }
  return {};
}

TEST(ParseRequest, TakesEveryFormOfPrompt) {
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(std::get<std::string>(completion(R"({"prompt":"ab"})").prompts.at(0)), "ab");
  EXPECT_EQ(std::get<std::string>(completion(R"({"prompt":["a",""]})").prompts.at(1)), "");
  EXPECT_EQ(std::get<Ids>(completion(R"({"prompt":[1,99]})").prompts.at(0)), Ids({1, 99}));
  const CompletionRequest two = completion(R"({"prompt":[[1],[2,3]]})");
  ASSERT_EQ(two.prompts.size(), 2u);
  EXPECT_EQ(std::get<Ids>(two.prompts[1]), Ids({2, 3}));
  for (const char* body : {"{}", R"({"prompt":3})", R"({"prompt":[]})", R"({"prompt":[[]]})",
                           R"({"prompt":[100]})", R"({"prompt":[-1]})", R"({"prompt":[1.5]})",
                           R"({"prompt":[{}]})", R"({"prompt":null})", R"({"prompt":[1,"a"]})",
                           R"({"prompt":["a","a","a","a","a","a","a","a","a","a","a","a","a"]})"}) {
    const Refused error = refused(body);
    EXPECT_EQ(error.status, 400) << body;
    EXPECT_EQ(error.param, "prompt") << body;
  }
}

TEST(ParseRequest, HasOpenAisDefaults) {
  const CompletionRequest text = completion(R"({"prompt":"a"})");
  EXPECT_EQ(text.max_tokens, 16);
  EXPECT_EQ(text.sampling.temperature, 1);
  EXPECT_EQ(text.sampling.top_p, 1);
  EXPECT_EQ(text.sampling.top_k, 0);
  EXPECT_EQ(text.n, 1);
  EXPECT_FALSE(text.stream || text.echo || text.seed || text.logprobs);
  EXPECT_FALSE(chat("").max_tokens.has_value());
  EXPECT_NO_THROW(chat(R"(,"verbosity":"medium","parallel_tool_calls":false)")) << "of OpenAI";
}

TEST(ParseRequest, TakesEveryField) {
  const CompletionRequest r = completion(
      R"({"model":"m","prompt":"a","max_tokens":0,"temperature":0,"top_p":0.5,"n":2,"best_of":3,
          "stop":["x","y"],"seed":-1,"logprobs":5,"echo":true,"user":"u","top_k":-1,"min_p":0.1,
          "repetition_penalty":1.5,"presence_penalty":0,"frequency_penalty":0.0,"logit_bias":{},
          "ignore_eos":true,"suffix":null})");
  EXPECT_EQ(r.model, "m");
  EXPECT_EQ(r.max_tokens, 0);
  EXPECT_EQ(r.sampling.temperature, 0);
  EXPECT_EQ(r.sampling.top_k, 0);
  EXPECT_EQ(r.sampling.min_p, 0.1);
  EXPECT_EQ(r.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(r.best_of, 3);
  EXPECT_THAT(r.stops, ElementsAre("x", "y"));
  EXPECT_EQ(r.seed, ~uint64_t{0});
  EXPECT_EQ(r.logprobs, 5);
  EXPECT_TRUE(r.echo && r.ignore_eos);
  EXPECT_THAT(completion(R"({"prompt":"a","stop":"x"})").stops, ElementsAre("x"));
  const CompletionRequest c =
      chat(R"(,"max_completion_tokens":7,"logprobs":true,"top_logprobs":3,"stream":true,
              "stream_options":{"include_usage":true},"response_format":{"type":"text"})");
  EXPECT_EQ(c.max_tokens, 7);
  EXPECT_EQ(c.logprobs, 3);
  EXPECT_TRUE(c.stream && c.include_usage);
}

TEST(ParseRequest, RefusesFieldsByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("temperature":-1)", "temperature"},
      {R"("temperature":"1")", "temperature"},
      {R"("top_p":1.5)", "top_p"},
      {R"("n":0)", "n"},
      {R"("n":5)", "n"},
      {R"("n":2,"best_of":1)", "best_of"},
      {R"("best_of":2,"stream":true)", "best_of"},
      {R"("max_tokens":-1)", "max_tokens"},
      {R"("max_tokens":1.5)", "max_tokens"},
      {R"("max_tokens":18446744073709551615)", "max_tokens"},
      {R"("max_tokens":3,"max_completion_tokens":4)", "max_completion_tokens"},
      {R"("logprobs":21)", "logprobs"},
      {R"("presence_penalty":0.5)", "presence_penalty"},
      {R"("logit_bias":{"5":1})", "logit_bias"},
      {R"("suffix":"x")", "suffix"},
      {R"("stop":3)", "stop"},
      {R"("stop":[3])", "stop"},
      {R"("stream":1)", "stream"},
      {R"("stream_options":{})", "stream_options"},
      {R"("temprature":1)", "temprature"},
      {R"("messages":[])", "messages"}};
  for (const auto& [field, param] : cases) {
    const Refused error = refused(R"({"prompt":"a",)" + field + "}");
    EXPECT_EQ(error.status, 400) << field;
    EXPECT_EQ(error.param, param) << field << ": " << error.message;
    EXPECT_THAT(error.message, HasSubstr(param));
  }
  for (const auto& [field, param] : std::vector<std::pair<std::string, std::string>>{
           {R"("top_logprobs":3)", "top_logprobs"},
           {R"("logprobs":3)", "logprobs"},
           {R"("max_tokens":0)", "max_tokens"},
           {R"("response_format":{"type":"json_object"})", "response_format"},
           {R"("tool_choice":"required")", "tool_choice"},
           {R"("tools":[{"type":"web_search"}])", "tools"},
           {R"("reasoning_effort":"low")", "reasoning_effort"},
           {R"("echo":true)", "echo"},
           {R"("add_generation_prompt":1)", "add_generation_prompt"},
           {R"("chat_template_kwargs":[])", "chat_template_kwargs"}})
    EXPECT_EQ(
        refused(R"({"messages":[{"role":"user","content":"a"}],)" + field + "}", Endpoint::kChat)
            .param,
        param)
        << field;
}

TEST(ParseRequest, RefusesWhatIsNoJsonObject) {
  for (const std::string& body :
       std::vector<std::string>{"", "{", "[]", "3", "{\"prompt\":\"\xff\"}", R"({"a":1,"a":2})",
                                std::string(100, '[') + std::string(100, ']')})
    EXPECT_EQ(refused(body).status, 400) << body;
}

TEST(ParseRequest, GivesMessagesAsTemplatesTakeThem) {
  const CompletionRequest r = parse_request(
      R"({"messages":[{"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
          {"role":"assistant","content":null,"tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\"z\":1,\"a\":2}"}}]},
          {"role":"tool","tool_call_id":"1","content":"3"}],
          "tools":[{"type":"function","function":{"name":"f","b":1,"a":2}}],"tool_choice":"auto",
          "chat_template_kwargs":{"enable_thinking":false}})",
      Endpoint::kChat, kLimits);
  const auto& messages = r.variables["messages"];
  EXPECT_EQ(messages[0]["role"], "system");
  EXPECT_EQ(messages[0]["content"], "ab");
  EXPECT_TRUE(messages[1]["content"].is_null()) << "beside tool calls";
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["arguments"], R"({"z":1,"a":2})");
  EXPECT_EQ(r.variables["tools"][0]["function"].dump(), R"({"name":"f","b":1,"a":2})");
  EXPECT_EQ(r.variables["enable_thinking"], false);
  for (const char* messages_text :
       {"3", "[]", "[3]", "[{}]", R"([{"role":"user"}])", R"([{"role":"king","content":"a"}])",
        R"([{"role":"user","content":3}])",
        R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])"})
    EXPECT_THAT(refused("{\"messages\":" + std::string(messages_text) + "}", Endpoint::kChat).param,
                HasSubstr("messages"))
        << messages_text;
}

TEST(ParseRequest, GivesOlderFormsOfMessagesAsTrainingDoes) {
  const CompletionRequest r = parse_request(
      R"({"messages":[{"role":"user","content":"a"},
          {"role":"assistant","function_call":{"name":"f","arguments":"{}"}},
          {"role":"function","name":"f","content":"7"},
          {"role":"assistant","refusal":"no"}]})",
      Endpoint::kChat, kLimits);
  const auto& messages = r.variables["messages"];
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_FALSE(messages[1].contains("function_call"));
  EXPECT_EQ(messages[2]["role"], "tool");
  EXPECT_EQ(messages[3]["content"], "no");
}

/// vLLM refuses or ignores them.
TEST(ParseRequest, RefusesVariablesOfTheTemplateThatItSetsItself) {
  for (const char* name : {"messages", "tools", "add_generation_prompt", "continue_final_message",
                           "bos_token", "eos_token", "chat_template", "tokenize"}) {
    const Refused error =
        refused(R"({"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{")" +
                    std::string(name) + R"(":true}})",
                Endpoint::kChat);
    EXPECT_EQ(error.status, 400) << name;
    EXPECT_EQ(error.param, "chat_template_kwargs");
    EXPECT_THAT(error.message, HasSubstr(name));
  }
}

TEST(ParseRequest, EndsThePromptAsVllmDoes) {
  const auto talk = [](const std::string& last, const std::string& more) {
    return R"({"messages":[{"role":"user","content":"a"},)" + last + "]" + more + "}";
  };
  const std::string answer = R"({"role":"assistant","content":"b"})";
  const auto parsed = [&](const std::string& more) {
    return parse_request(talk(answer, more), Endpoint::kChat, kLimits);
  };
  EXPECT_TRUE(parsed("").add_generation_prompt);
  EXPECT_FALSE(parsed("").continue_final_message);
  EXPECT_FALSE(parsed(R"(,"add_generation_prompt":false)").add_generation_prompt);
  EXPECT_TRUE(parsed(R"(,"continue_final_message":true)").continue_final_message);
  EXPECT_FALSE(parsed(R"(,"continue_final_message":true)").add_generation_prompt);
  const std::string go_on = R"(,"continue_final_message":true)";
  for (const std::string& body :
       {talk(answer, go_on + R"(,"add_generation_prompt":true)"),
        talk(R"({"role":"user","content":"b"})", go_on),
        talk(R"({"role":"assistant","content":"b","tool_calls":[{"type":"function"}]})", go_on),
        talk(R"({"role":"assistant","content":null,"tool_calls":[{"type":"function"}]})", go_on)})
    EXPECT_EQ(refused(body, Endpoint::kChat).param, "continue_final_message") << body;
}

TEST(ParseRequest, TellsHowATextWithoutPromptBegins) {
  EXPECT_THAT(refused("{}").message, HasSubstr("an empty string"));
}

} // namespace
} // namespace pentatron::serve

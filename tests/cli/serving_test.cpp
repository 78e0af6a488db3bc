// The verb serve as a user runs it: requests over a real socket.
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "tests/cli/served_program.h"
#include "tests/serve/http/client.h"

namespace pentatron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using test::Reply;

class Serving : public test::ServedProgram {
 protected:
  void SetUp() override { test::make_letter_model(folder / "model"); }
};

const Json kMessages = Json::array({{{"role", "user"}, {"content", "hi"}}});

TEST_F(Serving, GivesTheTextsOfGenerate) {
  const test::Result generated =
      run({"generate", "model", "--prompt", "abc", "--max-new-tokens", "12", "--json",
           "--temperature", "0.7", "--top-p", "1", "--seed", "7", "kernels=order"});
  const std::string expected = parse_json(generated.out, "line")["text"];
  start_server();
  const Json request = {{"prompt", "abc"}, {"max_tokens", 12}, {"temperature", 0.7}, {"seed", 7}};
  const Reply reply = complete(request);
  EXPECT_EQ(reply.status, 200) << reply.text;
  const Json body = reply.body();
  EXPECT_EQ(body["choices"][0]["text"], expected);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "model");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 12);
  // As token ids, streamed, several prompts, and cut at a string.
  Json ids = request;
  ids["prompt"] = {64, 65, 66};
  EXPECT_EQ(complete(ids).body()["choices"][0]["text"], expected);
  Json streamed = request;
  streamed["stream"] = true;
  streamed["stream_options"] = {{"include_usage", true}};
  const Reply stream = complete(streamed);
  EXPECT_THAT(stream.head, HasSubstr("text/event-stream"));
  EXPECT_THAT(stream.text, HasSubstr("data: [DONE]\n\n"));
  std::string text;
  const std::vector<Json> pieces = events(stream.text);
  for (const Json& piece : pieces)
    for (const Json& choice : piece["choices"]) text += choice["text"].get<std::string>();
  EXPECT_EQ(text, expected);
  EXPECT_EQ(pieces.back()["usage"]["completion_tokens"], 12);
  EXPECT_EQ(pieces[pieces.size() - 2]["choices"][0]["finish_reason"], "length");
  Json two = request;
  two["prompt"] = {"xyz", "abc"};
  two["temperature"] = 0;
  const Json both = complete(two).body();
  two["prompt"] = "abc";
  EXPECT_EQ(both["choices"][1]["text"], complete(two).body()["choices"][0]["text"]);
  EXPECT_EQ(both["choices"][1]["index"], 1);
  Json cut = request;
  cut["stop"] = expected.substr(4, 2);
  const Json shorter = complete(cut).body();
  EXPECT_EQ(shorter["choices"][0]["text"],
            expected.substr(0, expected.find(expected.substr(4, 2))));
  EXPECT_EQ(shorter["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(stop().status, 0);
}

TEST_F(Serving, KeepsKeysAndValuesInFp8) {
  const auto generated = [&](const std::string& type) {
    return parse_json(
        run({"generate", "model", "--prompt", "abcdefgh", "--max-new-tokens", "12", "--json",
             "--logprobs", "--temperature", "0", "--kv-cache-dtype", type, "kernels=order"})
            .out,
        "line");
  };
  const Json exact = generated("auto"), rounded = generated("fp8");
  EXPECT_NE(exact["logprobs"], rounded["logprobs"]);
  start_server({"--kv-cache-dtype", "fp8", "--cache-tokens", "4096"});
  const Json request = {{"prompt", "abcdefgh"}, {"max_tokens", 12}, {"temperature", 0}};
  EXPECT_EQ(complete(request).body()["choices"][0]["text"], rounded["text"]);
  const std::string small = content_of(folder / "err");
  EXPECT_EQ(stop().status, 0);
  start_server({"--cache-tokens", "4096"});
  EXPECT_EQ(complete(request).body()["choices"][0]["text"], exact["text"]);
  std::smatch mine, theirs;
  const std::regex cache("4,096 tokens in ([^\n]*)");
  const std::string large = content_of(folder / "err");
  ASSERT_TRUE(std::regex_search(small, mine, cache)) << small;
  ASSERT_TRUE(std::regex_search(large, theirs, cache)) << large;
  EXPECT_NE(mine[1], theirs[1]) << "a page takes fewer bytes";
}

TEST_F(Serving, ScoresPromptsAndTexts) {
  start_server();
  const Json body = complete({{"prompt", "abcd"},
                              {"max_tokens", 1},
                              {"temperature", 0},
                              {"echo", true},
                              {"logprobs", 2}})
                        .body();
  const Json& choice = body["choices"][0];
  const Json& logprobs = choice["logprobs"];
  EXPECT_THAT(choice["text"].get<std::string>(), StartsWith("abcd"));
  ASSERT_EQ(logprobs["tokens"].size(), 5u) << body;
  EXPECT_EQ(logprobs["tokens"][1], "b");
  EXPECT_EQ(logprobs["token_logprobs"][0], Json());
  EXPECT_EQ(logprobs["top_logprobs"][0], Json());
  EXPECT_EQ(logprobs["text_offset"], Json({0, 1, 2, 3, 4}));
  EXPECT_EQ(logprobs["top_logprobs"][4].size(), 2u) << "greedy: the token is among them";
  // A score does not depend on how much is asked for.
  const Json again =
      complete({{"prompt", "abcd"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 0}})
          .body()["choices"][0]["logprobs"];
  ASSERT_EQ(again["tokens"].size(), 4u);
  for (int i = 1; i < 4; ++i)
    EXPECT_NEAR(again["token_logprobs"][i].get<double>(),
                logprobs["token_logprobs"][i].get<double>(), 1e-5);
  const Json talk = chat({{"messages", kMessages},
                          {"max_tokens", 3},
                          {"ignore_eos", true}, // a word that ends the text may be drawn
                          {"logprobs", true},
                          {"top_logprobs", 2}})
                        .body();
  const Json& content = talk["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 3u) << talk;
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(content[0]["bytes"].size(), 1u);
}

TEST_F(Serving, ChatsAsTheTemplateSays) {
  const test::Result generated =
      run({"generate", "model", "--prompt", "(u)hi(a)", "--max-new-tokens", "9", "--json",
           "--temperature", "0", "kernels=order"});
  const std::string expected = parse_json(generated.out, "line")["text"];
  start_server({"--name", "mine"});
  Json request = {
      {"model", "mine"}, {"messages", kMessages}, {"max_completion_tokens", 9}, {"temperature", 0}};
  const Json body = chat(request).body();
  EXPECT_EQ(body["choices"][0]["message"]["content"], expected);
  EXPECT_EQ(body["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(body["object"], "chat.completion");
  request["stream"] = true;
  request["n"] = 2;
  const std::vector<Json> pieces = events(chat(request).text);
  std::vector<std::string> texts(2);
  EXPECT_EQ(pieces.at(0)["choices"][0]["delta"]["role"], "assistant");
  for (const Json& piece : pieces) {
    EXPECT_EQ(piece["object"], "chat.completion.chunk");
    const Json& choice = piece["choices"].at(0);
    texts.at(choice["index"]) += choice["delta"].value("content", "");
  }
  EXPECT_EQ(texts[0], expected);
  EXPECT_EQ(texts[1], expected);
}

TEST_F(Serving, RefusesInOpenAisForm) {
  start_server({"--max-tokens", "50", "--max-queue", "2"});
  struct Case {
    std::string path, body;
    int status;
    std::string param;
  };
  const std::vector<Case> cases = {
      {"/v1/completions", "{", 400, ""},
      {"/v1/completions", R"({"prompt":"a","model":"gpt-4"})", 404, "model"},
      {"/v1/completions", R"({"prompt":"a","max_tokens":51})", 400, "max_tokens"},
      {"/v1/completions", R"({"prompt":[96]})", 400, "prompt"},
      {"/v1/completions", R"({"prompt":["a","b","c"]})", 400,
       "prompt"}, // for which no queue has room
      {"/v1/completions", "{\"prompt\":\"" + std::string(3000, 'a') + "\"}", 400, "prompt"},
      {"/v1/completions", R"({"prompt":"a","logit_bias":{"1":2}})", 400, "logit_bias"},
      {"/v1/chat/completions", R"({"messages":[]})", 400, "messages"},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"nn":2})", 400, "nn"},
      {"/v1/embeddings", "{}", 404, ""}};
  for (const Case& one : cases) {
    const Reply reply = ask("POST", one.path, one.body);
    EXPECT_EQ(reply.status, one.status) << one.body << reply.text;
    const Json error = reply.body()["error"];
    EXPECT_EQ(error["param"], one.param.empty() ? Json() : Json(one.param)) << reply.text;
    EXPECT_EQ(error["type"], "invalid_request_error");
  }
  EXPECT_EQ(ask("GET", "/v1/completions").status, 405);
  EXPECT_EQ(ask("POST", "/").status, 405);
  EXPECT_EQ(ask("GET", "/v1/models", "", "Origin: http://evil.example\r\n").status, 403);
  EXPECT_EQ(ask("GET", "/none").status, 404);
}

TEST_F(Serving, TellsHowItIs) {
  start_server();
  const Json models = ask("GET", "/v1/models").body();
  EXPECT_EQ(models["data"][0]["id"], "model");
  EXPECT_EQ(ask("GET", "/v1/models/model").body()["object"], "model");
  EXPECT_EQ(ask("GET", "/health").status, 200);
  EXPECT_EQ(ask("GET", "/readyz").status, 200);
  complete({{"prompt", "abc"}, {"max_tokens", 4}, {"ignore_eos", true}});
  const Reply metrics = ask("GET", "/metrics");
  EXPECT_THAT(metrics.text,
              AllOf(HasSubstr("\npentatron_generated_tokens_total 4\n"),
                    HasSubstr("pentatron_http_requests_total{path=\"/v1/completions\",status="
                              "\"200\"} 1\n"),
                    HasSubstr("pentatron_time_to_first_token_seconds_count 1\n")));
  const Reply page = ask("GET", "/");
  EXPECT_THAT(page.head, AllOf(HasSubstr("text/html"), HasSubstr("Content-Security-Policy: "
                                                                 "default-src 'none'")));
  EXPECT_THAT(page.text, AllOf(HasSubstr("</html>"), Not(HasSubstr("@NONCE@")),
                               Not(HasSubstr("http://")), Not(HasSubstr("https://"))));
}

TEST_F(Serving, StopsWhenItIsTold) {
  start_server();
  test::RawClient running(port);
  const std::string body = R"({"prompt":"abc","max_tokens":60,"stream":true,"ignore_eos":true})";
  running.send(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                           "application/json\r\nContent-Length: {}\r\n\r\n{}",
                           body.size(), body));
  running.read_until("data: {");
  const test::Result result = stop(SIGINT);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(running.read_all(), HasSubstr("data: [DONE]"));
}

TEST_F(Serving, TellsThatItStops) {
  start_server({"--max-batch", "1", "--stop-timeout", "60"});
  test::RawClient running(port), idle(port);
  Json request = {{"max_tokens", 200}, {"stream", true}, {"ignore_eos", true}};
  request["prompt"] = std::vector<std::string>(100, "abc"); // one after another
  const std::string body = dump_json(request);
  running.send(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                           "application/json\r\nContent-Length: {}\r\n\r\n{}",
                           body.size(), body));
  running.read_until("data: {");
  signal(SIGTERM);
  EXPECT_TRUE(within(10, [&] { return ask("GET", "/readyz").status == 503; }));
  EXPECT_EQ(ask("GET", "/health").status, 503);
  EXPECT_EQ(ask("GET", "/livez").status, 200);
  const Reply refused = complete({{"prompt", "abc"}});
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.body()["error"]["message"], "the server is stopping");
  running.leave(); // nothing else runs
  const test::Result result = finish();
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(idle.read_all(), "");
}

TEST_F(Serving, AsksForItsToken) {
  std::ofstream(folder / "token") << "0123456789abcdef0123\n";
  ::chmod((folder / "token").c_str(), 0600);
  start_server({"--listen", "127.0.0.1", "--token-file", "token"});
  EXPECT_EQ(ask("GET", "/v1/models").status, 401);
  EXPECT_EQ(ask("GET", "/metrics").status, 401);
  EXPECT_EQ(ask("GET", "/health").status, 200);
  EXPECT_EQ(ask("GET", "/v1/models", "", "Authorization: Bearer 0123456789abcdef0123\r\n").status,
            200);
}

TEST_F(Serving, NeedsNoTokenForThisMachine) {
  start_server({"--listen", "127.0.0.1"});
  EXPECT_EQ(ask("GET", "/v1/models").status, 200);
  EXPECT_EQ(stop().status, 0);
  std::ofstream(folder / "empty");
  EXPECT_THAT(run({"serve", "model", "--token-file", "empty"}).err,
              HasSubstr("--token-file empty must contain one line"));
}

/// Latents in pages, windows, sinks, an encoder; prompts of less than a page, and of more.
TEST_F(Serving, GivesTheTextsOfGenerateForEveryFamily) {
  for (const std::string family : {"deepseek_v3", "gpt_oss", "gemma3_text", "t5"}) {
    const double temperature = family == "t5" ? 1 : 0; // its likeliest token is always the same
    std::filesystem::remove_all(folder / "model");
    test::make_letter_model(folder / "model", family);
    std::map<std::string, std::string> expected;
    for (const std::string& prompt : {std::string("abc"), std::string(70, 'q'), std::string("xyz")})
      expected[prompt] =
          parse_json(run({"generate", "model", "--prompt", prompt, "--json", "--temperature",
                          fmt::format("{}", temperature), "--top-p", "1", "--seed", "7",
                          "--ignore-eos", "--max-new-tokens", "20", "kernels=order"})
                         .out,
                     "line")["text"];
    std::vector<std::string> ranks;
    if (family == "deepseek_v3")
      ranks = {"--ranks", "2", "parallel.tensor_model_parallel_size=2",
               "parallel.expert_model_parallel_size=2", "parallel.expert_tensor_parallel_size=1"};
    for (const std::vector<std::string>& more : {std::vector<std::string>{}, ranks}) {
      start_server(more);
      for (int again = 0; again < 2; ++again) { // the second time pages are taken over
        Json request = {{"max_tokens", 20}, {"temperature", temperature}, {"ignore_eos", true}};
        if (temperature > 0) request["seed"] = 7;
        for (const auto& [prompt, text] : expected) {
          request["prompt"] = prompt;
          EXPECT_EQ(complete(request).body()["choices"][0]["text"], text) << family << prompt;
        }
      }
      EXPECT_EQ(stop().status, 0);
      if (ranks.empty()) break;
    }
  }
}

TEST_F(Serving, ServesOnRanks) {
  const test::Result generated = run({"generate", "model", "--prompt", "abc", "--max-new-tokens",
                                      "12", "--json", "--temperature", "0", "kernels=order"});
  const std::string expected = parse_json(generated.out, "line")["text"];
  start_server({"--ranks", "2", "--backend", "sockets", "parallel.pipeline_model_parallel_size=2"});
  EXPECT_EQ(complete({{"prompt", "abc"}, {"max_tokens", 12}, {"temperature", 0}})
                .body()["choices"][0]["text"],
            expected);
  const test::Result result = stop();
  EXPECT_EQ(result.status, 0) << result.err;
}

} // namespace
} // namespace pentatron

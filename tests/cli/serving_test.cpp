// The verb serve as a user runs it: requests over a real socket.
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "tests/cli/letter_model.h"
#include "tests/cli/started_program.h"
#include "tests/serve/http/client.h"

namespace pentatron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Reply {
  int status = 0;
  std::string head, text;
  Json body() const { return parse_json(text, "body"); }
};

class Serving : public test::StartedProgram {
 protected:
  void SetUp() override { test::make_letter_model(folder / "model"); }
  void TearDown() override {
    if (child_ > 0) stop();
  }
  void start_server(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"serve", "model",         "--port",
                                          "0",     "kernels=order", "train.num_threads=1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::filesystem::remove(folder / "out"); // of an earlier server
    child_ = start(arguments);
    std::smatch match;
    std::string out;
    ASSERT_TRUE(within(30, [&] {
      out = content_of(folder / "out");
      return std::regex_search(out, match, std::regex("http://[^ ]*:([0-9]+)\n"));
    })) << content_of(folder / "err");
    port = static_cast<uint16_t>(std::stoi(match[1]));
  }
  test::Result stop(int number = SIGTERM) {
    ::kill(child_, number);
    const test::Result result = finish(child_);
    child_ = -1;
    return result;
  }
  Reply ask(const std::string& method, const std::string& path, const std::string& body = "",
            const std::string& headers = "") const {
    test::RawClient client(port);
    client.send(fmt::format("{} {} HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\n"
                            "Content-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}",
                            method, path, port, body.size(), headers, body));
    const std::string all = client.read_all(20);
    Reply reply;
    const size_t end = all.find("\r\n\r\n");
    if (end == std::string::npos) return reply;
    reply.status = std::stoi(all.substr(9, 3));
    reply.head = all.substr(0, end + 2);
    reply.text = all.substr(end + 4);
    return reply;
  }
  Reply complete(const Json& request) const {
    return ask("POST", "/v1/completions", dump_json(request));
  }
  Reply chat(const Json& request) const {
    return ask("POST", "/v1/chat/completions", dump_json(request));
  }
  /// The events of a streamed answer.
  static std::vector<Json> events(const std::string& text) {
    std::vector<Json> all;
    for (size_t at = text.find("data: {"); at != std::string::npos; at = text.find("data: {", at)) {
      const size_t end = text.find("\n\n", at);
      all.push_back(parse_json(text.substr(at + 6, end - at - 6), "event"));
      at = end;
    }
    return all;
  }

  uint16_t port = 0;

 private:
  pid_t child_ = -1;
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
  const Json talk =
      chat({{"messages", kMessages}, {"max_tokens", 3}, {"logprobs", true}, {"top_logprobs", 2}})
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
  start_server({"--max-tokens", "50"});
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
  complete({{"prompt", "abc"}, {"max_tokens", 4}});
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

TEST_F(Serving, ServesAdaptersBesideTheirBase) {
  const auto train = [&](const std::string& name, const std::string& seed) {
    const test::Result trained =
        run({"train", "--hf", "model", "train.seq_length=16", "train.micro_batch_size=1",
             "train.global_batch_size=2", "train.train_iters=4", "dataset.type=mock",
             "optimizer.lr=0.05", "peft.type=lora", "seed=" + seed, "checkpoint.save=" + name,
             "checkpoint.export_hf=true", "train.num_threads=1", "logger.peak_tflops=1",
             "kernels=order"});
    ASSERT_EQ(trained.status, 0) << trained.err;
  };
  train("one", "1");
  train("two", "2");
  const auto generated = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"generate",  "model",        "--prompt",
                                          "abcabcabc", "--json",       "--temperature",
                                          "0",         "--ignore-eos", "--max-new-tokens",
                                          "20",        "kernels=order"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return parse_json(run(arguments).out, "line")["text"].get<std::string>();
  };
  const std::map<std::string, std::string> expected = {
      {"model", generated({})},
      {"one", generated({"--adapter", "one"})},
      {"two", generated({"--adapter", "two/adapter"})}};
  EXPECT_NE(expected.at("one"), expected.at("model"));
  EXPECT_NE(expected.at("one"), expected.at("two"));
  for (const std::vector<std::string>& ranks :
       {std::vector<std::string>{}, {"--ranks", "2", "parallel.tensor_model_parallel_size=2"}}) {
    std::vector<std::string> arguments = {"--adapter", "one=one", "--adapter", "two=two/adapter"};
    arguments.insert(arguments.end(), ranks.begin(), ranks.end());
    start_server(arguments);
    EXPECT_EQ(ask("GET", "/v1/models").body()["data"].size(), 3u);
    // All at the same time: their rows are in the same passes.
    std::vector<std::pair<std::string, std::unique_ptr<test::RawClient>>> clients;
    for (int i = 0; i < 2; ++i) {
      for (const auto& [name, text] : expected) {
        clients.emplace_back(name, std::make_unique<test::RawClient>(port));
        const std::string body = dump_json({{"model", name},
                                            {"prompt", "abcabcabc"},
                                            {"max_tokens", 20},
                                            {"temperature", 0},
                                            {"ignore_eos", true}});
        clients.back().second->send(
            fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                        "application/json\r\nContent-Length: {}\r\n\r\n{}",
                        body.size(), body));
      }
    }
    for (const auto& [name, client] : clients) {
      const std::string answer = client->read_answer();
      const Json body = parse_json(answer.substr(answer.find("\r\n\r\n") + 4), "body");
      EXPECT_EQ(body["choices"][0]["text"], expected.at(name)) << name;
      EXPECT_EQ(body["model"], name);
    }
    EXPECT_EQ(stop().status, 0);
  }
}

TEST_F(Serving, RefusesAdaptersThatRowsCannotTake) {
  const test::Result trained = run(
      {"train", "--hf", "model", "train.seq_length=16", "train.micro_batch_size=1",
       "train.global_batch_size=1", "train.train_iters=1", "dataset.type=mock", "peft.type=dora",
       "checkpoint.save=scaled", "train.num_threads=1", "logger.peak_tflops=1", "kernels=order"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const test::Result refused = run({"serve", "model", "--adapter", "a=scaled"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("--adapter a=scaled is of type dora"),
                                 HasSubstr("try: pentatron convert with --adapter")));
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

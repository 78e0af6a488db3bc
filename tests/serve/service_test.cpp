// The routes over a real socket; passes are made by the test.
#include "pentatron/serve/service.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "pentatron/data/tokenizer/hugging_face.h"
#include "tests/serve/http/client.h"
#include "tests/serve/tiny_server.h"

namespace pentatron::serve {
namespace {

using test::RawClient;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Serves : public ::testing::Test {
 protected:
  explicit Serves(std::shared_ptr<const data::Tokenizer> own = nullptr)
      : tokenizer(own ? std::move(own) : std::make_shared<data::ByteTokenizer>()) {
    server.start();
  }

  static std::string request(const std::string& method, const std::string& path,
                             const std::string& body = "") {
    return fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       "Content-Length: {}\r\n\r\n{}",
                       method, path, body.size(), body);
  }
  std::string once(const std::string& bytes) const {
    RawClient client(server.port());
    client.send(bytes);
    return client.read_answer();
  }

  parallelize::RankModel model = test::tiny_served_model(test::tiny_served_config());
  RankedSession session{model, {.texts = 2, .pages = 20}, comm::Group()};
  Metrics metrics;
  Scheduler scheduler{session, {.texts = 2, .pass_tokens = 50}, metrics};
  std::shared_ptr<const data::Tokenizer> tokenizer;
  Service service{{.models = {"org/tiny"},
                   .chats = {{}},
                   .context = test::kServedContext,
                   .num_tokens = std::min<int64_t>(61, tokenizer->vocab_size()),
                   .limits = {.vocab_size = 61}},
                  *tokenizer,
                  scheduler,
                  metrics};
  http::Server server{
      {}, {.handle = [this](http::Request request, std::shared_ptr<http::Exchange> exchange) {
        service.handle(std::move(request), exchange);
      }}};
};

const std::string kStream = R"({"prompt":[1,2,3],"max_tokens":20,"stream":true,"ignore_eos":true})";

TEST_F(Serves, TellsThatItStopsUntilItsStreamsHaveEnded) {
  RawClient idle(server.port()), old(server.port()), running(server.port());
  old.send(request("GET", "/health"));
  EXPECT_THAT(old.read_answer(), StartsWith("HTTP/1.1 200 "));
  running.send(request("POST", "/v1/completions", kStream));
  while (!scheduler.step()) { // until it has come
  }
  EXPECT_THAT(running.read_until("data: {"), StartsWith("HTTP/1.1 200 "));

  service.stop();
  server.begin_stop();
  const auto stopping = AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("\r\nConnection: close\r\n"),
                              HasSubstr(R"("type":"server_error")"));
  for (const char* path : {"/health", "/readyz"})
    EXPECT_THAT(once(request("GET", path)), stopping) << path;
  for (const char* path : {"/livez", "/metrics", "/v1/models"})
    EXPECT_THAT(once(request("GET", path)), StartsWith("HTTP/1.1 200 ")) << path;
  for (const char* path : {"/v1/completions", "/v1/chat/completions"})
    EXPECT_THAT(once(request("POST", path, kStream)), stopping) << path;
  old.send(request("GET", "/health"));
  EXPECT_THAT(old.read_answer(), stopping);

  while (scheduler.step()) {
  }
  EXPECT_THAT(running.read_until("[DONE]"), EndsWith("data: [DONE]"));
  server.stop(60);
  EXPECT_EQ(idle.read_all(), "") << "closed";
}

TEST_F(Serves, HeadAsGetWithoutContent) {
  RawClient client(server.port());
  for (const char* path : {"/", "/health", "/livez", "/readyz", "/v1/models", "/v1/models/org/tiny",
                           "/v1/models/none", "/none"}) {
    std::string expected = once(request("GET", path));
    const size_t end = expected.find("\r\n\r\n") + 4;
    EXPECT_GT(expected.size(), end);
    client.send(request("HEAD", path));
    const std::string head = client.read_until("\r\n\r\n");
    const auto line = [](const std::string& text, const char* name) {
      const size_t at = text.find(name);
      return text.substr(at, text.find('\r', at) - at);
    };
    for (const char* name : {"HTTP/1.1", "Content-Length: ", "Content-Type: "})
      EXPECT_EQ(line(head, name), line(expected, name)) << path;
  }
  client.send(request("HEAD", "/metrics"));
  EXPECT_THAT(client.read_until("\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    client.send(request("HEAD", path));
    EXPECT_THAT(client.read_until("\r\n\r\n"),
                AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("\r\nAllow: POST\r\n")));
  }
  client.send(request("PUT", "/health"));
  EXPECT_THAT(client.read_answer(),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("\r\nAllow: GET, HEAD\r\n")));
}

TEST_F(Serves, ModelsByEncodedNames) {
  for (const char* path : {"/v1/models/org/tiny", "/v1/models/org%2Ftiny",
                           "/v1/models/%6frg%2ftiny", "http://localhost/v1/models/org%2Ftiny"})
    EXPECT_THAT(once(request("GET", path)),
                AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr(R"("id":"org/tiny")")))
        << path;
  EXPECT_THAT(once(request("GET", "/v1/models/org%252Ftiny")), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(once(request("GET", "/v1/models/%0d%0aX:%20%ff")), StartsWith("HTTP/1.1 404 "));
}

TEST_F(Serves, NoCompressedBodies) {
  const auto answer = [&](const char* encoding) {
    return once(
        fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                    "application/json\r\nContent-Encoding: {}\r\nContent-Length: 2\r\n\r\n{{}}",
                    encoding));
  };
  EXPECT_THAT(answer("gzip"),
              AllOf(StartsWith("HTTP/1.1 415 "), HasSubstr("Content-Encoding gzip")));
  EXPECT_THAT(answer("identity"), StartsWith("HTTP/1.1 400 ")) << "it has no prompt";
}

TEST_F(Serves, JsonOfAnyMediaTypeThatIsJson) {
  const auto status_of = [&](const std::string& type) {
    const std::string body = R"({"prompt":[]})";
    return once(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: {}"
                            "\r\nContent-Length: {}\r\n\r\n{}",
                            type, body.size(), body))
        .substr(9, 3);
  };
  for (const char* type : {"application/json", "Application/JSON", "application/json;charset=utf-8",
                           "application/json ; charset=utf-8"})
    EXPECT_EQ(status_of(type), "400") << type << ": the prompt is empty";
  for (const char* type : {"application/jsonfoo", "text/json", "application/jso"})
    EXPECT_EQ(status_of(type), "415") << type;
}

/// Letters, and a special token.
std::shared_ptr<const data::Tokenizer> letters() {
  Json json = parse_json(R"({"model": {"type": "BPE", "vocab": {}, "merges": []},
                             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
                             "decoder": {"type": "ByteLevel"},
                             "added_tokens": [{"id": 26, "content": "<|im|>", "special": true}]})",
                         "a tokenizer");
  for (int i = 0; i < 26; ++i)
    json["model"]["vocab"][std::string(1, static_cast<char>('a' + i))] = i;
  return data::tokenizer::make_hugging_face(json, {});
}

class ServesText : public Serves {
 protected:
  ServesText() : Serves(letters()) {}
};

TEST_F(ServesText, TellsWhereTokensAreInAnEchoedPromptWithSpecialOnes) {
  for (const char* prompt : {R"("<|im|>ab<|im|>c")", "[26,0,1,26,2]"}) {
    RawClient client(server.port());
    client.send(request("POST", "/v1/completions",
                        fmt::format(R"({{"prompt":{},"max_tokens":1,"temperature":0,"echo":true,)"
                                    R"("logprobs":1,"ignore_eos":true}})",
                                    prompt)));
    while (!scheduler.step()) { // until it has come
    }
    while (scheduler.step()) {
    }
    const std::string answer = client.read_answer();
    ASSERT_THAT(answer, StartsWith("HTTP/1.1 200 "));
    const Json choice =
        parse_json(answer.substr(answer.find("\r\n\r\n") + 4), "the answer")["choices"][0];
    const auto text = choice["text"].get<std::string>();
    const Json& logprobs = choice["logprobs"];
    ASSERT_EQ(logprobs["tokens"].size(), 6u) << answer;
    const bool written = text.starts_with("<|im|>"); // ids are shown without special tokens
    EXPECT_EQ(written, prompt[0] == '"');
    for (size_t i = 0; i < 6; ++i) {
      const auto token = logprobs["tokens"][i].get<std::string>();
      if (!written && token == "<|im|>") continue;
      const auto offset = logprobs["text_offset"][i].get<size_t>();
      if (i == 5) continue; // new
      EXPECT_EQ(text.substr(offset, token.size()), token) << i << " of " << text;
    }
    EXPECT_EQ(logprobs["text_offset"][5], written ? 15 : 3) << text;
  }
}

} // namespace
} // namespace pentatron::serve

// The verbs generate and chat as a user runs them.
#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "tests/cli/letter_model.h"
#include "tests/cli/program_folder.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const fs::path kModelData = PENTATRON_TEST_DATA;

class Generating : public test::ProgramFolder {
 protected:
  std::vector<Json> lines(const std::string& arguments) const {
    std::vector<Json> result;
    std::istringstream in(run(arguments + " 2>/dev/null"));
    for (std::string line; std::getline(in, line);) result.push_back(parse_json(line, "line"));
    return result;
  }
};

TEST_F(Generating, IsTheSameOnRanksOfEveryKind) {
  const std::string base = "generate '" + (kModelData / "hf_tiny/llama").string() +
                           "' --tokens 5,1,2 --max-new-tokens 9 --json --logprobs --seed 3 "
                           "dtype=fp64 ";
  const Json expected = lines(base).at(0);
  EXPECT_EQ(expected["prompt_ids"], Json({5, 1, 2}));
  EXPECT_EQ(expected["ids"].size(), 9u);
  EXPECT_EQ(expected["logprobs"].size(), 9u);
  EXPECT_EQ(expected["finish"], "length");
  for (const char* more : {"--ranks 2 parallel.tensor_model_parallel_size=2",
                           "--ranks 2 --backend sockets parallel.pipeline_model_parallel_size=2"})
    EXPECT_EQ(lines(base + more).at(0)["ids"], expected["ids"]) << more;
}

TEST_F(Generating, SettingsOfRanksThatTheModelHasNoUseForAreRefused) {
  const std::string base =
      "generate '" + (kModelData / "hf_tiny/llama").string() + "' --tokens 5,1,2 ";
  const std::string key = "parallel.expert_model_parallel_size";
  EXPECT_THAT(run(base + "--ranks 2 " + key + "=2 2>&1", 2),
              HasSubstr(key + "=2 has no effect on a model without experts\n  try: "
                              "parallel.tensor_model_parallel_size=2 instead"));
  EXPECT_THAT(run(base + key + "=2 2>&1", 2), HasSubstr("try: remove " + key));
  run(base + key + "=1 --max-new-tokens 1 2>/dev/null");
  EXPECT_THAT(run(base + "--ranks 2 ep=2 2>&1", 2), HasSubstr("ep is not a key\n  try: " + key));
}

TEST_F(Generating, WritesTextsSideBySideAndStopsAtStrings) {
  test::make_letter_model(folder / "model");
  std::ofstream(folder / "prompts.jsonl") << Json{{"prompt", "abc"}} << "\n\n"
                                          << Json{{"prompt", "xyz!"}} << "\n";
  const std::string base = "generate model --max-new-tokens 12 --json --seed 7 ";
  const std::vector<Json> two = lines(base + "--prompts prompts.jsonl");
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0]["prompt_ids"], Json({64, 65, 66}));
  EXPECT_EQ(two[1]["prompt"], "xyz!");
  EXPECT_EQ(lines(base + "--prompt abc --prompt 'xyz!' --batch-size 1"), two);
  const std::string text = two[0]["text"];
  ASSERT_GT(text.size(), 4u);
  std::ofstream(folder / "stop") << text.substr(2, 2);
  const Json cut = lines(base + "--prompt abc --stop \"$(cat stop)\"").at(0);
  EXPECT_EQ(cut["text"], text.substr(0, text.find(text.substr(2, 2))));
  EXPECT_EQ(cut["finish"], "stop_string");
  // What is shown on a terminal is the prompt and the same text.
  const std::string shown =
      run("generate model --max-new-tokens 12 --seed 7 --prompt abc 2>/dev/null");
  EXPECT_EQ(shown, "abc" + text + "\n");
}

TEST_F(Generating, ByAnEncoderIsRefused) {
  for (const char* model : {"hf_tiny/bert_masked_lm", "hf_tiny/bert_model"})
    EXPECT_THAT(run("generate '" + (kModelData / model).string() + "' --tokens 1,2 2>&1", 2),
                AllOf(HasSubstr("is a model of type bert, which does not generate text"),
                      HasSubstr("try: pentatron evaluate")))
        << model;
}

TEST_F(Generating, WithSentinelsThatTheTokenizerLacks) {
  std::ofstream(folder / "text.txt")
      << std::string(20, 'x') + "It is a truth universally. " << std::string(400, 'y');
  run("train model.type=t5 model.num_layers=1 model.hidden_size=16 model.num_attention_heads=2 "
      "dataset.type=t5 dataset.path=text.txt dataset.split=1 train.seq_length=32 "
      "train.micro_batch_size=2 train.global_batch_size=2 train.train_iters=2 logger.dir=log "
      "checkpoint.save=t5");
  const Json line = lines("generate t5 --prompt 'ab <extra_id_1>c' --max-new-tokens 40 --seed 4 "
                          "--ignore-eos --json")
                        .at(0);
  // Bytes, the end of a text (256), padding (257), then the sentinels.
  EXPECT_EQ(line["prompt_ids"], Json({'a', 'b', ' ', 259, 'c', 256}));
  const std::vector<int64_t> ids = line["ids"];
  const bool drawn = std::ranges::any_of(ids, [](int64_t id) { return id >= 258; });
  EXPECT_EQ(drawn, line["text"].get<std::string>().find("<extra_id_") != std::string::npos) << line;
  EXPECT_TRUE(drawn) << line;
}

TEST_F(Generating, ATalkIsALineATurn) {
  test::make_letter_model(folder / "model");
  const std::string out =
      run("chat model --max-new-tokens 3 --seed 7 2>/dev/null", 0, "printf 'hi\\n\\nyo\\n' | ");
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 2) << out;
  EXPECT_THAT(run("chat '" + (kModelData / "hf_tiny/llama").string() + "' 2>&1", 2),
              HasSubstr("has no tokenizer"));
  fs::remove(folder / "model/tokenizer_config.json");
  EXPECT_THAT(run("chat model 2>&1", 2), HasSubstr("has no chat template"));
  EXPECT_THAT(run("chat model --backend sockets --ranks 2 2>&1", 2), HasSubstr("standard input"));
}

// The files of a tokenizer may lie apart from the weights.
TEST_F(Generating, TakesATokenizerFromElsewhere) {
  test::make_letter_model(folder / "model");
  fs::copy(kModelData / "hf_tiny/llama", folder / "bare");
  const std::string sampling = " --max-new-tokens 5 --prompt abc --json 2>/dev/null";
  const std::string own = run("generate model" + sampling);
  EXPECT_EQ(run("generate bare tokenizer.path=model" + sampling), own);
  EXPECT_EQ(run("generate bare tokenizer.path=model/tokenizer.json" + sampling), own);
  EXPECT_THAT(run("generate bare --prompt a 2>&1", 2), HasSubstr("try: tokenizer.path="));
  EXPECT_THAT(run("generate bare --tokens 1 tokenizer.path=model 2>&1", 2),
              HasSubstr("tokenizer.path=model has no effect with --tokens"));
  const std::string talk = " --max-new-tokens 3 2>/dev/null";
  EXPECT_EQ(run("chat bare tokenizer.path=model" + talk, 0, "printf 'hi\\n' | "),
            run("chat model" + talk, 0, "printf 'hi\\n' | "));
  // One of another model, with more tokens than the weights have.
  const std::string other = std::string(PENTATRON_TEST_DATA) + "/tokenizers/gpt2.json";
  EXPECT_THAT(run("generate bare --prompt 'the house of the' tokenizer.path=" + other + " 2>&1", 1),
              AllOf(HasSubstr("the tokenizer has 500 tokens, but the model has only the first 131"),
                    HasSubstr("is not in the model's vocabulary of 131")));
}

TEST_F(Generating, AModelTrainedOnMessagesWithoutATemplateChats) {
  std::ofstream file(folder / "talks.jsonl");
  for (int i = 0; i < 40; ++i)
    file << R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]})"
         << "\n";
  file.close();
  run("train model.num_layers=1 model.hidden_size=64 model.num_attention_heads=2 "
      "dataset.type=sft dataset.path=talks.jsonl dataset.split=100,0,0 train.seq_length=128 "
      "train.micro_batch_size=2 train.global_batch_size=2 train.train_iters=120 optimizer.lr=0.01 "
      "train.num_threads=1 logger.peak_tflops=1 logger.tensorboard=false kernels=order "
      "checkpoint.save=talker checkpoint.export_hf=true 2>&1");
  // What the messages were written as, and the end of an answer is no part of it.
  const std::string chat = " --max-new-tokens 60 --temperature 0 2>/dev/null";
  EXPECT_EQ(run("chat talker" + chat, 0, "echo hi | "), "yo\n");
  EXPECT_EQ(run("chat talker/hf/step_00000120" + chat, 0, "echo hi | "), "yo\n");
}

TEST_F(Generating, MaxNewTokensIsExactlyWhatIsWritten) {
  test::make_letter_model(folder / "model");
  const Json line =
      lines("generate model --prompt abc --max-new-tokens 20 --ignore-eos --json").at(0);
  EXPECT_EQ(line["ids"].size(), 20u);
  EXPECT_EQ(line["finish"], "length");
  EXPECT_THAT(run("generate model --prompt abc --max-new-tokens 20 --ignore-eos 2>&1 >/dev/null"),
              HasSubstr("3 prompt tokens in "));
  EXPECT_THAT(run("generate model --prompt abc --max-new-tokens 20 --ignore-eos 2>&1 >/dev/null"),
              HasSubstr(", 20 new tokens at "));
}

TEST_F(Generating, APromptThatIsLongerThanTheContextIsTold) {
  test::make_letter_model(folder / "model");
  const std::string command = "generate model --max-new-tokens 2 --temperature 0 --prompt ";
  EXPECT_THAT(run(command + std::string(3000, 'a') + " 2>&1"),
              HasSubstr("more than the model's context of "));
  EXPECT_THAT(run(command + "aa 2>&1"), Not(HasSubstr("context")));
}

TEST_F(Generating, ATextThatOutgrowsTheContextIsToldOnce) {
  const std::string command =
      "generate '" + (kModelData / "hf_tiny/llama").string() + "' --tokens 1,2 --ignore-eos ";
  const std::string told = "the text became longer than the model's context of 256: ";
  EXPECT_THAT(run(command + "--max-new-tokens 256 2>&1"), HasSubstr(told));
  EXPECT_THAT(run(command + "--max-new-tokens 255 2>&1"), Not(HasSubstr("context")));
}

/// Of a model whose positions depend on it; the oracle is transformers 5.23 in fp64.
TEST_F(Generating, TheContextMayBeShorterThanTheModels) {
  const std::string command = "generate '" + (kModelData / "hf_tiny/phi3_longrope").string() +
                              "' --tokens 5,1,2,9 --max-new-tokens 6 --temperature 0 --json "
                              "--logprobs dtype=fp64 ";
  const Json text = lines(command + "train.seq_length=32").at(0);
  EXPECT_EQ(text["ids"], Json({9, 13, 31, 24, 61, 10}));
  const std::vector<double> expected = {-2.749431, -2.773741, -2.542337,
                                        -2.467753, -2.292145, -2.330541};
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(text["logprobs"].at(i).get<double>(), expected[i], 1e-6);
  EXPECT_NE(lines(command).at(0)["logprobs"], text["logprobs"]);
  EXPECT_THAT(run(command + "train.seq_length=97 2>&1", 2),
              AllOf(HasSubstr("train.seq_length=97 is more than the 96 tokens"),
                    HasSubstr("try: train.seq_length=96")));
}

TEST_F(Generating, AnEmptyPipeIsNoPrompt) {
  test::make_letter_model(folder / "model");
  for (const char* empty : {": | ", "echo | "})
    EXPECT_THAT(
        run("generate model --max-new-tokens 2 2>&1", 1, empty),
        AllOf(HasSubstr("error: standard input has no prompt"), HasSubstr("try: --prompt TEXT")));
}

TEST_F(Generating, PromptsComeFromAPipeAndFromFiles) {
  test::make_letter_model(folder / "model");
  const std::string base = "generate model --max-new-tokens 8 --json --seed 7 2>/dev/null ";
  const std::string expected = run(base + "--prompt abc");
  EXPECT_EQ(run(base, 0, "echo abc | "), expected);
  EXPECT_EQ(run(base + "< text", 0, "echo abc > text; "), expected);
  EXPECT_EQ(run(base + "--ranks 2 parallel.tensor_model_parallel_size=2", 0, "echo abc | "),
            expected);
  EXPECT_EQ(run(base + "--prompt abc", 0, "echo xyz | "), expected) << "what is given comes first";
  EXPECT_EQ(run(base, 0, "printf 'ab\\nc' | ").find(R"("prompt":"ab\nc")") == std::string::npos,
            false);
  std::ofstream(folder / "lines.txt") << "abc\n\nxyz!\n";
  std::ofstream(folder / "lines.jsonl") << R"({"prompt":"abc"})"
                                        << "\n"
                                        << R"({"prompt":"xyz!"})"
                                        << "\n";
  const std::string both = run(base + "--prompt abc --prompt 'xyz!'");
  EXPECT_EQ(run(base + "--prompt-file lines.txt"), both);
  EXPECT_EQ(run(base + "--prompt-file lines.jsonl"), both);
  std::ofstream(folder / "mixed.jsonl") << R"({"prompt":"abc"})"
                                        << "\nxyz\n";
  std::ofstream(folder / "empty.txt") << "\n\n";
  EXPECT_THAT(run("generate model --prompt-file mixed.jsonl 2>&1", 1), HasSubstr("line 2"));
  EXPECT_THAT(run("generate model --prompt abc --max-new-tokens 1 2>&1", 0, "echo abc | "),
              Not(HasSubstr("standard input")));
  EXPECT_THAT(run("generate model --max-new-tokens 1 2>&1", 0, "echo abc | "),
              HasSubstr("reading the prompt from standard input"));
  EXPECT_THAT(run("generate model --prompt-file empty.txt 2>&1", 1),
              HasSubstr("contains no prompt"));
  EXPECT_THAT(run("generate model --ranks 2 --backend sockets "
                  "parallel.tensor_model_parallel_size=2 2>&1",
                  2, "echo abc | "),
              HasSubstr("--prompt-file"));
}

TEST_F(Generating, SettingsOfTheModelThatAreNotUsedAreNamedOnce) {
  test::make_letter_model(folder / "model");
  const std::string call = "generate model --prompt ab --max-new-tokens 2 ";
  EXPECT_THAT(run(call + "2>&1"), Not(HasSubstr("not used")));
  std::ofstream(folder / "model/generation_config.json")
      << R"({"repetition_penalty": 1.1, "min_new_tokens": 4, "num_beams": 1, "top_k": 5,
             "stop_strings": ["a b", "c"]})";
  const std::string said = "warning: settings in generation_config.json that are not used: "
                           "repetition_penalty=1.1, min_new_tokens=4, "
                           "stop_strings=[\"a b\",\"c\"]\n";
  for (const std::string& command :
       {call, call + "--ranks 2 --backend sockets parallel.tensor_model_parallel_size=2 "}) {
    const std::string out = run(command + "2>&1");
    EXPECT_THAT(out, HasSubstr(said));
    EXPECT_EQ(out.find("not used"), out.rfind("not used")) << out;
  }
  EXPECT_THAT(run("chat model --max-new-tokens 2 2>&1", 0, "echo a | "), HasSubstr(said));
  const std::string remedy = "--repetition-penalty 1.1 --stop 'a b' --stop c";
  EXPECT_THAT(run(call + "2>&1"), HasSubstr(said + "  try: " + remedy + "\n"));
  EXPECT_THAT(run(call + remedy + " 2>&1"),
              AllOf(HasSubstr("that are not used: min_new_tokens=4\n"), Not(HasSubstr("try:"))));
}

TEST_F(Generating, AJsonFileOfPromptsMayBeAnArray) {
  test::make_letter_model(folder / "model");
  const std::string base = "generate model --max-new-tokens 8 --json --seed 7 ";
  const std::string expected = run(base + "--prompt abc --prompt 'xyz!' 2>/dev/null");
  const auto with = [&](const std::string& text, int status = 0) {
    std::ofstream(folder / "a.json") << text;
    return run(base + "--prompt-file a.json" + (status == 0 ? " 2>/dev/null" : " 2>&1"), status);
  };
  EXPECT_EQ(with(R"(["abc", "xyz!"])"), expected);
  EXPECT_EQ(with("\xEF\xBB\xBF [\n {\"prompt\": \"abc\", \"id\": 7},\n\"xyz!\"\n]\n"), expected);
  EXPECT_EQ(with("{\"prompt\": \"abc\"}\n{\"prompt\": \"xyz!\"}\n"), expected) << "JSON Lines";
  EXPECT_THAT(with(R"(["abc", 5])", 1),
              HasSubstr("a.json: element 2 is neither a string nor an object with a string "
                        "`prompt`"));
  EXPECT_THAT(with(R"([{"text": "abc"}])", 1), HasSubstr("a.json: element 1 is neither"));
  EXPECT_THAT(with(R"(["abc")", 1), HasSubstr("a.json is not a valid JSON array"));
  EXPECT_THAT(with("[]", 1), HasSubstr("a.json contains no prompt"));
  // A text that begins with a bracket is a prompt.
  std::ofstream(folder / "a.txt") << "[abc]\n";
  EXPECT_THAT(run(base + "--prompt-file a.txt 2>/dev/null"), HasSubstr(R"("prompt":"[abc]")"));
}

TEST_F(Generating, AnObjectOnSeveralLinesIsNoListOfPrompts) {
  test::make_letter_model(folder / "model");
  for (const char* name : {"a.json", "a.jsonl", "a.txt"})
    for (const char* text :
         {"{\n  \"prompt\": \"abc\"\n}\n", "{ \"id\": 5,\n\"prompt\": \"abc\" }\n"}) {
      std::ofstream(folder / name) << text;
      EXPECT_THAT(run(std::string("generate model --prompt-file ") + name + " 2>&1", 1),
                  AllOf(HasSubstr(": line 1 begins a JSON object that ends on a later line"),
                        HasSubstr("one object per line")))
          << text;
    }
  // A text that begins with a brace is a prompt.
  std::ofstream(folder / "a.txt") << "{\nabc\n";
  EXPECT_THAT(run("generate model --json --max-new-tokens 1 --prompt-file a.txt 2>/dev/null"),
              HasSubstr(R"("prompt":"{")"));
}

TEST_F(Generating, AFirstLineThatIsNotQuiteJsonIsNoPrompt) {
  test::make_letter_model(folder / "model");
  const std::string base = "generate model --max-new-tokens 8 --json --seed 7 ";
  const std::string object = R"({"prompt":"abc"})", broken = R"({"prompt":"abc")";
  const std::string expected = run(base + "--prompt abc 2>/dev/null");
  for (const char* name : {"a.jsonl", "a.txt"}) {
    const std::string file = std::string("--prompt-file ") + name;
    std::ofstream(folder / name) << "\xEF\xBB\xBF" << object << "\n";
    EXPECT_EQ(run(base + file + " 2>/dev/null"), expected) << name;
    std::ofstream(folder / name) << "\n" << broken << "\n" << object << "\n";
    EXPECT_THAT(run(base + file + " 2>&1", 1), HasSubstr("line 2 is not a JSON object"));
  }
  std::ofstream(folder / "a.jsonl") << broken << "\n";
  EXPECT_THAT(run(base + "--prompt-file a.jsonl 2>&1", 1), HasSubstr("line 1 is not a JSON"));
  std::ofstream(folder / "a.txt") << "\xEF\xBB\xBF"
                                  << "abc\n";
  EXPECT_EQ(run(base + "--prompt-file a.txt 2>/dev/null"), expected);
  std::ofstream(folder / "a.txt") << "{a\n{b\n";
  EXPECT_THAT(run(base + "--prompt-file a.txt 2>/dev/null"), HasSubstr(R"("prompt":"{a")"));
}

TEST_F(Generating, ChatSendsOneSlashOfTwo) {
  test::make_letter_model(folder / "model");
  run("chat model --max-new-tokens 3 --seed 7 2>/dev/null", 0,
      "printf '  //hm\\n/save a.json\\n' | ");
  EXPECT_EQ(read_json(folder / "a.json")["messages"][0]["content"], "/hm");
}

TEST_F(Generating, ChatObeysCommands) {
  test::make_letter_model(folder / "model");
  const std::string out =
      run("chat model --max-new-tokens 3 --seed 7 --system be 2>told", 0,
          "printf 'hi\\n/help\\n/save a.json\\n/save a.json\\n/save\\n/dance\\n/reset "
          "now\\n/reset\\n/save b.json\\n//hm\\n/save c.json\\n/exit\\nno\\n' | ");
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 2) << out;
  const Json first = read_json(folder / "a.json")["messages"];
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0], Json({{"role", "system"}, {"content", "be"}}));
  EXPECT_EQ(first[1], Json({{"role", "user"}, {"content", "hi"}}));
  EXPECT_EQ(first[2]["content"], out.substr(0, out.find('\n')));
  EXPECT_EQ(read_json(folder / "b.json")["messages"].size(), 1u) << "the system message stays";
  EXPECT_EQ(read_json(folder / "c.json")["messages"][1]["content"], "/hm");
  const std::string told = content_of(folder / "told");
  for (const char* text :
       {"/reset      clear", "saved 3 messages to a.json", "a.json already exists",
        "try: /save a-2.json", "/save needs the name of a file", "/dance is not a command of chat",
        "try: /help", "/reset takes no argument", "conversation cleared"})
    EXPECT_THAT(told, HasSubstr(text));
}

TEST_F(Generating, CtrlCStopsTheAnswerAndNotTheChat) {
  test::make_letter_model(folder / "model");
  std::ofstream(folder / "run.sh")
      << R"(mkfifo in
")" PENTATRON_PROGRAM
         R"(" chat model --temperature 0 --max-new-tokens 1000000000 "$@" < in > out 2> err &
chat=$!
exec 3> in
for attempt in 1 2 3 4 5; do # on a busy machine an answer may end before the signal comes
  size=$(wc -c < out)
  echo '!!' >&3
  for i in $(seq 600); do [ $(wc -c < out) -gt $((size + 300)) ] && break; sleep 0.05; done
  kill -INT $chat
  for i in $(seq 100); do grep -q stopped err && break 2; sleep 0.05; done
  echo /reset >&3
done
echo '/save talk.json' >&3
exec 3>&-
wait $chat
)";
  for (const char* ranks : {"", "--ranks 2 parallel.tensor_model_parallel_size=2"}) {
    const std::string command =
        "cd '" + folder.string() + "' && rm -f in out err talk.json && timeout 120 bash run.sh ";
    EXPECT_EQ(std::system((command + ranks).c_str()), 0) << content_of(folder / "err");
    EXPECT_THAT(content_of(folder / "err"), HasSubstr("(stopped)"));
    const Json messages = read_json(folder / "talk.json")["messages"];
    ASSERT_EQ(messages.size(), 2u);
    EXPECT_GT(messages[1]["content"].get<std::string>().size(), 200u);
  }
}

TEST_F(Generating, AFileThatShrinksUnderTheModelIsToldInASentence) {
  test::make_letter_model(folder / "model");
  run("convert model mine --format pentatron 2>/dev/null");
  EXPECT_EQ(lines("generate mine --prompt abc --max-new-tokens 9 --json --seed 3"),
            lines("generate model --prompt abc --max-new-tokens 9 --json --seed 3"));
  run("chat mine --max-new-tokens 3 >answer 2>told", 1,
      "{ printf 'hi\\n'; for i in $(seq 600); do [ -s answer ] && break; sleep 0.1; done; "
      "truncate -s 4096 mine/*/model_*.safetensors; printf 'hi\\n'; } | ");
  EXPECT_THAT(content_of(folder / "told"), HasSubstr("error: a file was truncated"));
}

} // namespace
} // namespace pentatron

// `pentatron finetune` and the commands that it names at its end, as a user runs them.
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/letter_model.h"
#include "tests/cli/program_folder.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

using FinetuneVerb = test::ProgramFolder;

/// The adapters know how their messages were written, the model does not.
TEST_F(FinetuneVerb, AdaptersOfAModelWithoutAChatTemplateAnswerAsTheyWereTaught) {
  test::make_letter_model(folder / "plain");
  std::ofstream(folder / "plain/tokenizer_config.json") << R"({"eos_token": "<e>"})";
  std::ofstream(folder / "talk.jsonl")
      << R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]})"
      << "\n";
  EXPECT_THAT(run("chat plain 2>&1", 2), HasSubstr("plain has no chat template"));
  run("finetune plain talk.jsonl --out tuned --epochs 1 checkpoint.export_hf=true "
      "train.num_threads=1 logger.peak_tflops=1 kernels=order 2>&1");
  for (const char* model : {"tuned/checkpoints", "plain --adapter tuned/checkpoints",
                            "plain --adapter tuned/checkpoints/adapter"})
    run(std::string("chat ") + model + " --max-new-tokens 2 2>&1", 0, "echo hi | ");
  run("convert tuned/checkpoints merged --format hf 2>&1");
  for (const char* file : {"tuned/checkpoints/adapter", "merged"})
    EXPECT_THAT(content_of(folder / file / "chat_template.jinja"), HasSubstr("<|im_start|>"));
  // A template that lies with PEFT's files is that of the adapter.
  std::ofstream(folder / "tuned/checkpoints/adapter/chat_template.jinja") << "{{ nothing.at.all }}";
  EXPECT_THAT(run("chat plain --adapter tuned/checkpoints/adapter --max-new-tokens 2 2>&1", 1,
                  "echo hi | "),
              HasSubstr("nothing"));
  run("convert plain again --adapter tuned/checkpoints/adapter --format hf 2>&1");
  EXPECT_EQ(content_of(folder / "again/chat_template.jinja"), "{{ nothing.at.all }}");
}

} // namespace
} // namespace pentatron

// Text, numbers, messages, and threads for input and output.
#include <atomic>
#include <cstdio>
#include <limits>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/io_thread.h"
#include "pentatron/base/log.h"
#include "pentatron/base/nearest.h"
#include "pentatron/base/text.h"
#include "tests/support/files.h"
#include "tests/support/log_capture.h"

namespace pentatron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EditDistance, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("hidden", "hiddne"), 1u);
  EXPECT_EQ(edit_distance("a", "b"), 1u);
}

TEST(Nearest, GivesTheClosestOrNothing) {
  const std::vector<std::string> names = {"num_layers", "hidden_size", "rope"};
  EXPECT_EQ(nearest("num_layer", names), "num_layers");
  EXPECT_EQ(nearest("hiden_size", names), "hidden_size");
  EXPECT_EQ(nearest("xyz_abc_def", names), "");
  EXPECT_EQ(nearest("x", {}), "");
  const std::vector<std::string> options = {"--tokens", "--max-new-tokens", "--min-p"};
  EXPECT_EQ(nearest("--max-tokens", options), "--max-new-tokens"); // has all its words
  EXPECT_EQ(nearest("--new_tokens", options), "--max-new-tokens");
  EXPECT_EQ(nearest("--token", options), "--tokens");
}

TEST(Nearest, ComparesWithTheLengthOfTheName) {
  const std::vector<std::string> sections = {"model", "ddp", "dist", "dtype"};
  EXPECT_EQ(nearest("a", sections), "");
  EXPECT_EQ(nearest("dd", sections), "ddp");
  EXPECT_EQ(nearest("dpd", sections), "ddp");
  EXPECT_EQ(nearest("xyz", sections), "");
  EXPECT_EQ(nearest("modle", sections), "model");
  EXPECT_EQ(nearest("", sections), "");
  const std::vector<std::string> devices = {"cuda", "cpu"};
  EXPECT_EQ(nearest("gpu", devices), "");
  EXPECT_EQ(nearest("tpu", devices), "");
}

TEST(Nearest, IgnoresCaseAndSeparatorsAndKnowsBeginnings) {
  const std::vector<std::string> names = {"optimizer", "train_data_path", "train", "cosine"};
  EXPECT_EQ(nearest("Train-Data-Path", names), "train_data_path");
  EXPECT_EQ(nearest("optim", names), "optimizer");
  EXPECT_EQ(nearest("train_data", names), "train_data_path");
  EXPECT_EQ(nearest("cosine_decay", names), "cosine");
  const std::vector<std::string> models = {"llama1_7b", "llama2_7b"};
  EXPECT_EQ(nearest("lama2_7b", models), "llama2_7b") << "one edit is nearer than an equal end";
}

TEST(Nearest, KnowsOtherWords) {
  const std::vector<std::string> devices = {"auto", "cpu", "cuda"};
  EXPECT_EQ(nearest("gpu", devices), "auto") << "which works without one too";
  EXPECT_EQ(nearest("cuda:0", devices), "cuda");
  const std::vector<std::string> types = {"fp64", "fp32", "bf16"};
  EXPECT_EQ(nearest("bfloat16", types), "bf16");
  EXPECT_EQ(nearest("fp16", types), "bf16");
  EXPECT_EQ(nearest("half", types), "bf16");
  EXPECT_EQ(nearest("half", std::vector<std::string>{"bf16", "fp16"}), "fp16");
  EXPECT_EQ(nearest("float16", std::vector<std::string>{"bf16", "fp16"}), "fp16");
  EXPECT_EQ(nearest("float32", types), "fp32");
  EXPECT_EQ(nearest("fp8", types), "");
}

TEST(Utf8, AcceptsWellFormedAndNothingElse) {
  for (const char* good : {"", "abc", "\u00e9", "\u20ac", "\U0001F600", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                          "\xF8\x88\x80\x80\x80", "\xE2\x82", "a\xFF"}) {
    EXPECT_FALSE(is_utf8(bad));
  }
}

TEST(Text, SplitsTrimsAndCutsBetweenCharacters) {
  EXPECT_THAT(split("a,,b", ','), ElementsAre("a", "", "b"));
  EXPECT_THAT(split("", ','), ElementsAre(""));
  EXPECT_EQ(trim(" \t a b\n"), "a b");
  EXPECT_EQ(trim("  "), "");
  EXPECT_EQ(excerpt("abc\n\xff", 60), "abc??");
  EXPECT_EQ(excerpt("\u20ac\u20ac", 4), "\u20ac...");
}

TEST(Text, FoldsBelowTheSecondColumn) {
  EXPECT_EQ(fold_lines("one two\nthree", 80), "one two\nthree");
  EXPECT_EQ(fold_lines("one two three four", 9), "one two\nthree\nfour");
  EXPECT_EQ(fold_lines("  --a     one two three\n\nx", 21),
            "  --a     one two\n          three\n\nx");
  EXPECT_EQ(fold_lines("  pentatron train a b c", 10), "  pentatron train a b c");
  EXPECT_EQ(fold_lines("error: one two\n  try: three four", 14),
            "error: one two\n  try: three\n       four");
  EXPECT_EQ(fold_lines("  try: pentatron train a b c", 10), "  try: pentatron train a b c");
  EXPECT_EQ(fold_lines("  try: pip install a b c", 10), "  try: pip install a b c");
  EXPECT_EQ(fold_lines("  try: ulimit -n 65536", 10), "  try: ulimit -n 65536");
  EXPECT_EQ(fold_lines("pip needs more", 10), "pip needs\nmore") << "a sentence";
  EXPECT_EQ(fold_lines("aaaaaaaaaaaa bb", 5), "aaaaaaaaaaaa\nbb");
  EXPECT_EQ(fold_lines("  aaaaaaaaaaaa", 5), "  aaaaaaaaaaaa");
  EXPECT_EQ(fold_lines("", 5), "");
  EXPECT_EQ(fold_lines("\n", 5), "\n");
  for (size_t columns = 1; columns < 40; ++columns) { // nothing but blanks and lines changes
    std::string folded = fold_lines("  --name TEXT    a few words that say what it is  ", columns);
    std::erase_if(folded, [](char c) { return c == ' ' || c == '\n'; });
    EXPECT_EQ(folded, "--nameTEXTafewwordsthatsaywhatitis");
  }
}

TEST(Format, DurationsBytesAndCounts) {
  EXPECT_EQ(format_duration(0.447), "0.45s");
  EXPECT_EQ(format_duration(0), "0.00s");
  EXPECT_EQ(format_duration(0.0004), "0.40ms");
  EXPECT_EQ(format_duration(0.0453), "45.3ms");
  EXPECT_EQ(format_duration(0.09994), "99.9ms");
  EXPECT_EQ(format_duration(0.09996), "0.10s");
  EXPECT_EQ(format_duration(12.34), "12.3s");
  EXPECT_EQ(format_duration(59.96), "1m 00s");
  EXPECT_EQ(format_duration(123), "2m 03s");
  EXPECT_EQ(format_duration(3723), "1h 02m 03s");
  EXPECT_EQ(format_duration(3 * 86400 + 4 * 3600 + 5 * 60), "3d 04h 05m");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  for (const auto& [text, bytes] : {std::pair{"0", 0.0},
                                    {"4096", 4096.0},
                                    {"500MB", 5e8},
                                    {"1.5 GiB", 1.5 * (1 << 30)},
                                    {"30kb", 3e4},
                                    {"2k", 2e3},
                                    {"3T", 3e12},
                                    {"7B", 7.0},
                                    {"2KiB", 2048.0}})
    EXPECT_EQ(static_cast<double>(parse_bytes(text).value_or(1)), bytes) << text;
  for (const char* text : {"", "-5GB", "-5", "10XB", "GB", "1e99", "5GBB", "nan", "5 G B x", "+5",
                           "99999999999999999999", "5iB"})
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  EXPECT_EQ(format_bytes(3.25 * (1 << 30)), "3.2 GiB");
  EXPECT_EQ(format_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1234), "1.23K");
  EXPECT_EQ(format_count(124439808), "124M");
  EXPECT_EQ(format_count(6738415616), "6.74B");
  EXPECT_EQ(format_count(999999), "1.00M");
  EXPECT_EQ(format_si(3.214e12), "3.21 T");
  EXPECT_EQ(format_grouped(-1234567), "-1,234,567");
  EXPECT_EQ(format_grouped(123), "123");
  EXPECT_EQ(format_grouped(1234), "1,234");
  EXPECT_EQ(format_grouped(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
  EXPECT_DOUBLE_EQ(eta_s(25, 100, 10), 30);
  EXPECT_LT(eta_s(0, 100, 10), 0);
  EXPECT_EQ(utc_timestamp().size(), 20u);
}

TEST(Format, NounsHaveTheNumberOfTheirCount) {
  EXPECT_EQ(counted(0, "file"), "0 files");
  EXPECT_EQ(counted(1, "file"), "1 file");
  EXPECT_EQ(counted(-1, "file"), "-1 files");
  EXPECT_EQ(counted(2, "corpus", "corpora"), "2 corpora");
  EXPECT_EQ(counted(1, "corpus", "corpora"), "1 corpus");
  EXPECT_EQ(noun_for(1, "line"), "line");
}

TEST(Errors, AMessageIsASentenceAndARemedy) {
  const std::string message = "a is 1\n  try: a=2, or b=3";
  EXPECT_EQ(parts_of(message).sentence, "a is 1");
  EXPECT_EQ(parts_of(message).remedy, "a=2, or b=3");
  EXPECT_EQ(parts_of("a is 1").sentence, "a is 1");
  EXPECT_EQ(parts_of("a is 1").remedy, "");
}

TEST(Log, WritesLevelsPrefixesAndNoControlCharacters) {
  const test::LogCapture capture(false);
  log::info("loss {:.2f}", 1.234);
  log::warning("odd \033[31m text\x07");
  log::set_progress("10%");
  std::thread([] {
    log::set_thread_prefix("rank 3");
    log::error("lost");
  }).join();
  EXPECT_EQ(capture.text(), "loss 1.23\nwarning: odd ?[31m text?\nrank 3: error: lost\n");
}

TEST(Log, ASharedWarningIsInEveryFileAndOnOneConsole) {
  const test::LogCapture capture(false);
  for (const bool console : {true, false}) {
    std::thread([console] {
      std::FILE* const file = std::tmpfile();
      log::set_thread_prefix(console ? "" : "rank 1");
      log::set_thread_output(file, console);
      log::shared_warning("step {} is skipped", 7);
      log::warning("own");
      EXPECT_EQ(std::ftell(file), console ? 40 : 56) << "both lines";
      std::fclose(file);
    }).join();
  }
  EXPECT_EQ(capture.text(), "warning: step 7 is skipped\nwarning: own\nrank 1: warning: own\n");
}

TEST(Log, KeepsTheProgressLineLastOnATerminal) {
  const test::LogCapture capture(true);
  log::set_progress("10%");
  log::info("a");
  log::set_progress("");
  log::info("b");
  EXPECT_EQ(capture.text(), "\r\033[K10%\r\033[Ka\n10%\r\033[K\r\033[Kb\n");
}

TEST(Log, LinesOfSeveralThreadsStayWhole) {
  const test::LogCapture capture(false);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 50; ++i) log::info("0123456789");
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string expected;
  for (int i = 0; i < 200; ++i) expected += "0123456789\n";
  EXPECT_EQ(capture.text(), expected);
}

TEST(BoundedQueue, KeepsOrderAndBlocksTheProducer) {
  BoundedQueue<int> queue(2);
  std::thread producer([&] {
    for (int i = 0; i < 1000; ++i) {
      if (!queue.push(i)) return;
    }
    queue.close();
  });
  int expected = 0;
  while (const auto item = queue.pop()) {
    EXPECT_EQ(*item, expected++);
    EXPECT_LE(queue.size(), 2u);
  }
  EXPECT_EQ(expected, 1000);
  producer.join();
}

TEST(BoundedQueue, CarriesAFailureBehindTheLastItem) {
  BoundedQueue<int> queue(4);
  queue.push(1);
  queue.close(std::make_exception_ptr(DataError("broken file")));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(message_of([&] { queue.pop(); }), "broken file");
  EXPECT_FALSE(queue.push(2));
}

TEST(BoundedQueue, CancelWakesBothSides) {
  BoundedQueue<int> full(1);
  full.push(1);
  std::thread producer([&] { EXPECT_FALSE(full.push(2)); });
  BoundedQueue<int> empty(1);
  std::thread consumer([&] { EXPECT_EQ(empty.pop(), std::nullopt); });
  full.cancel();
  empty.cancel();
  producer.join();
  consumer.join();
  EXPECT_EQ(full.size(), 0u);
}

TEST(IoThreads, RunsJobsInOrderAndFinishes) {
  IoThreads io(1, 2);
  std::vector<int> done;
  for (int i = 0; i < 100; ++i) io.submit([&done, i] { done.push_back(i); });
  io.finish();
  ASSERT_EQ(done.size(), 100u);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  io.finish();
}

TEST(IoThreads, FinishThrowsTheFirstFailureOnceAndGoesOn) {
  IoThreads io(2);
  std::atomic<int> ran{0};
  io.submit([] { throw DataError("disk full"); });
  EXPECT_EQ(message_of([&] { io.finish(); }), "disk full");
  io.submit([&] { ++ran; });
  io.finish();
  EXPECT_EQ(ran, 1);
}

TEST(IoThreads, StopsWithJobsLeftAndReleasesThem) {
  const auto held = std::make_shared<int>(1);
  {
    IoThreads io(1, 100);
    for (int i = 0; i < 100; ++i) {
      io.submit([held] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
    }
  }
  EXPECT_EQ(held.use_count(), 1);
}

} // namespace
} // namespace pentatron

// Which entry runs: classes, choices, measured times, and the file that keeps them.
#include "pentatron/kernels/selection/cache.h"

#include <cstdlib>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/kernels/attention/attention.h"
#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/gemm/gemm.h"
#include "pentatron/kernels/norm/norm.h"
#include "pentatron/kernels/quantize/recipe.h"
#include "pentatron/kernels/selection/agree.h"
#include "pentatron/kernels/selection/report.h"
#include "tests/kernels/array.h"
#include "tests/support/files.h"

namespace pentatron::kernels {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

/// List order again at the end of a test.
struct Choosing : ::testing::Test {
  ~Choosing() override { clear_selection(); }
};

constexpr OpClass kNormFloat = op_class(Op::kNormForward, DType::kFloat32);

TEST(OpClasses, HaveNamesOfTheirOwn) {
  std::set<std::string> names;
  std::set<size_t> indices;
  for (const OpClass c : all_op_classes()) {
    EXPECT_TRUE(names.insert(class_name(c)).second) << class_name(c);
    EXPECT_TRUE(indices.insert(c.index()).second) << class_name(c);
    ASSERT_TRUE(find_op_class(class_name(c))) << class_name(c);
    EXPECT_EQ(find_op_class(class_name(c))->index(), c.index());
  }
  EXPECT_EQ(find_op_class("gemm float32"), std::nullopt);
}

TEST(OpClasses, OfProductsCountWeightsAndNoTokens) {
  const auto name_of = [](bool ta, bool tb, int64_t n, int64_t k) {
    return class_name(gemm_class(DType::kBFloat16, DType::kFloat32, ta, tb, n, k));
  };
  EXPECT_EQ(name_of(false, true, 512, 513), "gemm bfloat16-float32 nt n<=512 k>512");
  EXPECT_EQ(name_of(false, false, 513, 512), "gemm bfloat16-float32 nn n>512 k<=512");
  // A weight gradient sums over tokens: any number of them is one class.
  EXPECT_EQ(name_of(true, false, 64, 1), "gemm bfloat16-float32 tn n<=512");
  EXPECT_EQ(name_of(true, false, 64, 1), name_of(true, false, 64, 100'000));
}

TEST(OpClasses, OfQuantizationCountTheRecipe) {
  EXPECT_EQ(class_name(quantize_class(DType::kBFloat16, QuantRecipe::kNvfp4Square)),
            "quantize bfloat16 nvfp4_16x16");
  EXPECT_EQ(element_type(quantize_class(DType::kFloat16, QuantRecipe::kMxfp8)), DType::kFloat16);
  EXPECT_EQ(recipe_of(quantize_class(DType::kFloat16, QuantRecipe::kMxfp8)), QuantRecipe::kMxfp8);
}

TEST(OpClasses, EveryOneHasAnExampleThatRuns) {
  ProbeMemory memory;
  for (const OpClass c : all_op_classes()) {
    const Probe probe = make_probe(c, memory, 32);
    ASSERT_FALSE(probe.entries.empty()) << class_name(c);
    EXPECT_GT(probe.work, 0) << class_name(c);
    for (const int i : probe.candidates()) probe.entries[static_cast<size_t>(i)].run();
  }
}

TEST(SelectionText, ReadsWhatItWrites) {
  Selection selection;
  selection.set(kNormFloat, "avx2");
  selection.set(op_class(Op::kCast, DType::kFloat64), "reference");
  const std::string text = selection.text();
  EXPECT_EQ(Selection::parse(text, "test"), selection);
  EXPECT_THAT(text, HasSubstr("\n \"norm_forward float32\": \"avx2\""));
  for (const char* bad : {"", "[]", "{\"a\": 1}", "{\"a\": \"b\"", "{\"a\": \"b\", \"a\": \"c\"}"})
    EXPECT_THROW(Selection::parse(bad, "test"), DataError) << bad;
}

TEST_F(Choosing, TheNamedEntryRuns) {
  const auto args = NormForward{.rows = 1, .cols = 1};
  const auto runs = [&] {
    return find_entry(kNormFloat, norm_forward_entries(), args, Context{})->name;
  };
  const std::string_view first = runs();
  for (const auto& entry : testing::entries_for(norm_forward_entries(), args)) {
    Selection selection;
    selection.set(kNormFloat, entry.name);
    use_selection(selection);
    EXPECT_EQ(runs(), entry.name);
    EXPECT_EQ(find_entry(op_class(Op::kNormForward, DType::kBFloat16), norm_forward_entries(), args,
                         Context{})
                  ->name,
              first)
        << "another class keeps list order";
  }
  clear_selection();
  EXPECT_EQ(runs(), first);
}

TEST_F(Choosing, DecidesWhatAProductComputes) {
  // The reference sums in another order than vectors do.
  constexpr int64_t kSize = 96;
  const testing::Array a = testing::Array::random(DType::kFloat32, kSize * kSize, 1);
  const testing::Array b = testing::Array::random(DType::kFloat32, kSize * kSize, 2);
  const auto product = [&] {
    testing::Array c(DType::kFloat32, kSize * kSize);
    gemm({.m = kSize,
          .n = kSize,
          .k = kSize,
          .a = a.data(),
          .lda = kSize,
          .b = b.data(),
          .ldb = kSize,
          .c = c.data(),
          .ldc = kSize});
    return c;
  };
  const testing::Array before = product();
  Selection selection;
  selection.set(gemm_class(DType::kFloat32, DType::kFloat32, false, false, kSize, kSize),
                "reference");
  use_selection(selection);
  const testing::Array chosen = product();
  clear_selection();
  EXPECT_TRUE(product().same_bits(before));
  if (gemm_supported({.m = 1, .n = 1, .k = 1})) {
    EXPECT_FALSE(chosen.same_bits(before));
  }
  testing::expect_close(chosen, before, 1e-5, 1e-4);
}

TEST_F(Choosing, AnEntryThatIsNotThereIsToldAndListOrderRuns) {
  Selection selection;
  selection.set(kNormFloat, "avx4096");
  EXPECT_THAT(unusable_choices(selection),
              ElementsAre("norm_forward float32: this program has no entry avx4096"));
  use_selection(selection);
  EXPECT_EQ(chosen_position(kNormFloat), -1);
  const Selection unknown(Selection::Choices{{"fft float32", "avx2"}});
  EXPECT_THAT(unusable_choices(unknown),
              ElementsAre("fft float32: this program has no such class"));
  use_selection(unknown); // harmless
}

TEST_F(Choosing, AnEntryThatRefusesIsToldWithItsReason) {
  // fp64 has no vectors on any machine.
  Selection selection;
  const OpClass c = op_class(Op::kRope, DType::kFloat64);
  selection.set(c, "avx2");
#if defined(__x86_64__)
  EXPECT_THAT(unusable_choices(selection),
              ElementsAre("rope float64: avx2 cannot run here: does not support float64"));
#endif
  use_selection(selection);
  EXPECT_EQ(chosen_position(c), -1);
}

/// Callers go to LibTorch, as they did on the machine where the reference was the only entry.
TEST_F(Choosing, TheReferenceOfAttentionIsNoSupport) {
  const AttentionShape shape{.heads = 1, .kv_heads = 1, .head_size = 8};
  if (!attention_supported(shape)) GTEST_SKIP() << "the reference is the only entry here";
  Selection selection;
  selection.set(attention_class(Op::kAttentionForward, DType::kFloat32, 8), "reference");
  use_selection(selection);
  EXPECT_FALSE(attention_supported(shape));
  EXPECT_TRUE(attention_supported({.heads = 1, .kv_heads = 1, .head_size = 65}))
      << "another class keeps list order";
}

TEST(AskedClasses, AreThoseOfTheCallsMeanwhile) {
  const auto args = NormForward{.rows = 1, .cols = 1};
  const auto call = [&](DType dtype) {
    find_entry(op_class(Op::kNormForward, dtype), norm_forward_entries(), args, Context{});
  };
  call(DType::kFloat64);
  {
    const AskedClasses asked;
    EXPECT_THAT(asked.all(), IsEmpty());
    call(DType::kBFloat16);
    call(DType::kFloat32);
    call(DType::kFloat32);
    EXPECT_THAT(asked.all(), ElementsAre(kNormFloat, op_class(Op::kNormForward, DType::kBFloat16)));
  }
  call(DType::kFloat64);
  EXPECT_THAT(AskedClasses().all(), IsEmpty());
}

TEST(ChooseFastest, NeedsAClearWinOverTheFirst) {
  const auto choose = [](std::vector<double> seconds) {
    std::vector<Measurement::Time> times;
    for (const double s : seconds) times.push_back({.entry = "", .seconds = s});
    return choose_fastest(times);
  };
  EXPECT_EQ(choose({1.0}), 0u);
  EXPECT_EQ(choose({1.0, 0.98}), 0u);
  EXPECT_EQ(choose({1.0, 0.96}), 1u);
  EXPECT_EQ(choose({1.0, 0.9, 0.5}), 2u);
  EXPECT_EQ(choose({0.5, 1.0, 0.9}), 0u);
}

TEST(ChooseFastest, NeedsALargeWinToGiveUpEqualResultsInABatch) {
  const auto choose = [](double first, double per_token, double other) {
    const std::vector<Measurement::Time> times{
        {.entry = "", .seconds = first},
        {.entry = "", .seconds = per_token},
        {.entry = "", .seconds = other, .needed = kLargeWin}};
    return choose_fastest(times);
  };
  EXPECT_EQ(choose(1, 0.95, 0.85), 1u);
  EXPECT_EQ(choose(1, 1.1, 0.85), 0u);
  EXPECT_EQ(choose(1, 0.95, 0.75), 2u);
}

/// A clock that other programs cannot disturb.
TimedRun undisturbed(const std::function<void()>& run) {
  TimedRun timed = RunTimer()(run);
  timed.disturbed = false;
  return timed;
}

/// Measures as little as possible.
constexpr double kNoTime = 0;
MeasureOptions quick() {
  return {.left_out = {Op::kGemm, Op::kAttentionForward, Op::kAttentionBackward},
          .rows = 4,
          .seconds_per_class = kNoTime,
          .patience_s = 1e9,
          .time = undisturbed};
}

TEST(CompleteSelection, NamesEveryClassAskedForAndKeepsWhatIsThere) {
  Selection selection;
  selection.set(kNormFloat, "reference");
  const Completion completion = complete_selection(selection, quick());
  EXPECT_EQ(completion.unmeasured, 0u);
  EXPECT_EQ(selection.find(kNormFloat), "reference");
  for (const Measurement& m : completion.measured) {
    EXPECT_NE(m.op_class, kNormFloat);
    EXPECT_GT(m.times.size(), 1u);
    EXPECT_EQ(selection.find(m.op_class), m.times[m.chosen].entry);
  }
  EXPECT_EQ(selection.find(op_class(Op::kRope, DType::kFloat64)), "reference") << "the only one";
  EXPECT_THAT(unusable_choices(selection), IsEmpty());
  EXPECT_THAT(complete_selection(selection, quick()).measured, IsEmpty());
  if (cpu_features().avx2) {
    EXPECT_THAT(departures(selection), Contains(std::pair(kNormFloat, std::string("reference"))));
  }
}

TEST(CompleteSelection, MeasuresWhatIsAskedForOnly) {
  const auto classes = [](std::vector<DType> types, std::vector<Op> left_out) {
    std::set<std::string> names;
    MeasureOptions options = quick();
    options.types = std::move(types);
    options.left_out = std::move(left_out);
    options.rows = 1;
    options.single_candidates = true;
    for (const Measurement& m : measure(all_op_classes(), options))
      names.insert(class_name(m.op_class));
    return names;
  };
  const auto narrow = classes({DType::kFloat32}, {Op::kLion});
  EXPECT_TRUE(narrow.contains("gemm float32 nt n<=512 k>512"));
  EXPECT_FALSE(narrow.contains("gemm bfloat16 nt n<=512 k>512"));
  EXPECT_TRUE(narrow.contains("norm_forward float32"));
  EXPECT_FALSE(narrow.contains("norm_forward bfloat16"));
  EXPECT_TRUE(narrow.contains("adamw float32"));
  EXPECT_FALSE(narrow.contains("lion float32"));
  EXPECT_TRUE(narrow.contains("quantize float32 tensorwise_e4m3"));
  EXPECT_FALSE(narrow.contains("quantize bfloat16 tensorwise_e4m3"));
  EXPECT_TRUE(narrow.contains("hadamard float32"));
  EXPECT_TRUE(classes({DType::kFloat16}, {}).contains("gemm float16 nt n<=512 k>512"));
  EXPECT_TRUE(classes({DType::kBFloat16}, {}).contains("gemm bfloat16-float32 tn n>512"));
}

/// Of each class the first candidate's runs all end in `disturbed_s`, the others' in `clean_s`;
/// the first's are disturbed.
MeasureOptions beside_other_programs(double disturbed_s, double clean_s, double busy_s) {
  MeasureOptions options = quick();
  options.patience_per_class_s = kNoTime;
  // The clock does not see which entry runs: turns are taken in list order.
  options.time = [=, turn = 0](const std::function<void()>& run) mutable {
    run();
    const bool first = turn++ % 2 == 0;
    return TimedRun{.seconds = first ? disturbed_s : clean_s, .busy_s = busy_s, .disturbed = first};
  };
  return options;
}

/// A class with two candidates that quick() measures.
std::optional<OpClass> class_of_two() {
  for (const OpClass c : all_op_classes())
    if (!is_left_out(c, quick()) && describe_probe(c).candidates().size() == 2) return c;
  return std::nullopt;
}

TEST(Measure, ADisturbedRunDecidesNothing) {
  const std::optional<OpClass> c = class_of_two();
  if (!c) GTEST_SKIP() << "no operator has two entries on this processor";
  const auto one = [&](double disturbed_s, double clean_s, double busy_s) {
    MeasureOptions options = beside_other_programs(disturbed_s, clean_s, busy_s);
    options.types = {element_type(*c)};
    options.left_out = {};
    return measure({*c}, options).at(0);
  };
  const Measurement lost = one(/*disturbed_s=*/9, /*clean_s=*/1, /*busy_s=*/0.5);
  EXPECT_TRUE(lost.disturbed) << "the first may be the faster";
  const double busy = 2.0 * num_threads();
  EXPECT_FALSE(one(9, 1, busy).disturbed) << "its processor time alone shows that it is slower";
}

/// Beside other programs a run may be late though nothing was seen to disturb it: here the first
/// four of the first entry. It has more processor time than it needs, so that shows nothing.
TEST(Measure, FewRunsBesideOtherProgramsDecideNothing) {
  const std::optional<OpClass> c = class_of_two();
  if (!c) GTEST_SKIP() << "no operator has two entries on this processor";
  const auto measured = [&](double patience_s) {
    MeasureOptions options = quick();
    options.patience_per_class_s = patience_s;
    options.types = {element_type(*c)};
    options.left_out = {};
    options.time = [turn = 0](const std::function<void()>& run) mutable {
      run();
      const int round = turn / 2;
      const bool first = turn++ % 2 == 0;
      return TimedRun{.seconds = !first      ? 2.0
                                 : round < 5 ? 9.0
                                             : 1.0,
                      .busy_s = 0.5,
                      .disturbed = first && round == 0};
    };
    return measure({*c}, options).at(0);
  };
  EXPECT_TRUE(measured(kNoTime).disturbed);
  const Measurement patient = measured(1e9);
  EXPECT_FALSE(patient.disturbed);
  EXPECT_EQ(patient.chosen, 0u) << "its fifth undisturbed run was the fastest of all";
}

TEST(Measure, TellsOfItsProgress) {
  if (!class_of_two()) GTEST_SKIP() << "no operator has two entries on this processor";
  MeasureOptions options = quick();
  size_t told = 0;
  options.progress = [&] { ++told; };
  const size_t measured = measure(all_op_classes(), options).size();
  EXPECT_GT(measured, 0u);
  EXPECT_GE(told, 6 * measured) << "two entries, three runs each";
}

TEST(CompleteSelection, LeavesADisturbedClassOpenForTheNextStart) {
  const std::optional<OpClass> c = class_of_two();
  if (!c) GTEST_SKIP() << "no operator has two entries on this processor";
  MeasureOptions options = quick();
  options.types = {element_type(*c)};
  options.patience_per_class_s = kNoTime;
  options.time = [](const std::function<void()>&) {
    return TimedRun{.seconds = 1, .busy_s = 1, .disturbed = true};
  };
  Selection selection;
  const Completion busy = complete_selection(selection, options);
  EXPECT_EQ(busy.unmeasured, busy.measured.size());
  EXPECT_EQ(selection.find(*c), "");
  options.patience_s = -1; // nothing is begun
  EXPECT_EQ(complete_selection(selection, options).unmeasured, busy.unmeasured);
  options.patience_s = 1e9;
  options.time = undisturbed;
  EXPECT_EQ(complete_selection(selection, options).unmeasured, 0u);
  EXPECT_NE(selection.find(*c), "");
}

TEST(Agree, KeepsWhatAllRanksCanRun) {
  const RunnableEntries all = runnable_entries();
  const Selection chosen = find_selection({}, quick()).selection;
  const Agreement same = agree(chosen, {all, all});
  EXPECT_EQ(same.selection, chosen);
  EXPECT_THAT(same.replaced, IsEmpty());
  EXPECT_EQ(parse_runnable_entries(to_text(all)), all);
  EXPECT_THROW(parse_runnable_entries("[1]"), DataError);
}

TEST(Agree, TakesAnEntryThatAllRanksCanRunAndSaysSo) {
  const RunnableEntries large = {{"a", {"amx", "avx512", "avx2", "reference"}},
                                 {"b", {"avx512", "reference"}},
                                 {"c", {"amx"}}};
  const RunnableEntries small = {{"a", {"avx2", "reference"}}, {"b", {"reference"}}, {"c", {}}};
  const Selection chosen(Selection::Choices{{"a", "amx"}, {"c", "amx"}});
  const Agreement agreed = agree(chosen, {large, large, small});
  // Without a choice for b the ranks' lists would begin with different entries.
  EXPECT_EQ(agreed.selection, Selection(Selection::Choices{{"a", "avx2"}, {"b", "reference"}}));
  EXPECT_THAT(
      agreed.replaced,
      ElementsAre(Pair("a", "a: rank 2 cannot run amx, so all ranks run avx2"),
                  Pair("c", "c: rank 2 cannot run amx, so all ranks run what their lists say")));
}

TEST(WithListOrder, NamesTheFirstThatAllRanksCanRunWhereNothingIsChosen) {
  const RunnableEntries large = {{"adamw float32", {"avx512", "avx2", "reference"}},
                                 {"lion float32", {"avx512", "reference"}},
                                 {"norm_forward bfloat16", {"avx512", "reference"}},
                                 {"norm_forward float32", {"avx512", "avx2", "reference"}},
                                 {"rope float32", {"avx512"}}};
  const RunnableEntries small = {{"adamw float32", {"avx2", "reference"}},
                                 {"lion float32", {"reference"}},
                                 {"norm_forward bfloat16", {"reference"}},
                                 {"norm_forward float32", {"avx2", "reference"}},
                                 {"rope float32", {"avx2"}}};
  const Selection chosen(Selection::Choices{{"adamw float32", "reference"}});
  const MeasureOptions options{.types = {DType::kFloat32}, .left_out = {Op::kLion}};
  EXPECT_EQ(with_list_order(chosen, {large, small}, options),
            Selection(Selection::Choices{{"adamw float32", "reference"},
                                         {"norm_forward float32", "avx2"}}));
  EXPECT_EQ(with_list_order(chosen, {large}, options),
            Selection(Selection::Choices{{"adamw float32", "reference"},
                                         {"norm_forward float32", "avx512"},
                                         {"rope float32", "avx512"}}));
}

Measurement measured(const char* name, std::vector<Measurement::Time> times) {
  return {
      .op_class = *find_op_class(name), .times = std::move(times), .work = 1e9, .unit = "FLOP/s"};
}

TEST(SelectionTable, ShowsRatesAndWhatElseCouldRun) {
  const std::vector<Measurement> times = {
      measured("gemm float32 nt n<=512 k<=512",
               {{.entry = "avx512", .seconds = 0.01}, {.entry = "mkl", .seconds = 0.005}}),
      measured("gemm float32 nt n<=512 k>512",
               {{.entry = "avx512", .seconds = 0.02}, {.entry = "mkl", .seconds = 0.004}}),
      measured("gemm float32 tn n<=512", {{.entry = "avx512", .seconds = 0.01}})};
  const Selection selection(
      {{"gemm float32 nt n<=512 k<=512", "mkl"}, {"gemm float32 nt n<=512 k>512", "mkl"}});
  const std::string table = selection_table(selection, times);
  EXPECT_THAT(table, ::testing::ContainsRegex(
                         "\ngemm float32 nt +mkl +200 - 250 GFLOP/s +avx512 0.2 - 0.5x\n"));
  EXPECT_THAT(table, ::testing::ContainsRegex("\ngemm float32 tn +avx512 +100 GFLOP/s"));
}

TEST(SelectionTable, NamesAnEntryThatNoMeasurementChooses) {
  const std::vector<Measurement> times = {
      measured("gemm float32 tn n<=512", {{.entry = "avx512", .seconds = 0.01}})};
  const Selection selection(Selection::Choices{{"gemm float32 tn n<=512", "reference"}});
  EXPECT_THAT(selection_table(selection, times),
              ::testing::ContainsRegex("\ngemm float32 tn +reference +not measured"));
  EXPECT_THAT(slow_choices(selection, times),
              ElementsAre("gemm float32 tn n<=512 uses reference, which no measurement chooses"));
}

TEST(SelectionTable, MarksWhatOtherProgramsDisturbed) {
  std::vector<Measurement> times = {
      measured("gemm float32 tn n<=512", {{.entry = "avx512", .seconds = 0.01}})};
  EXPECT_THAT(selection_table({}, times), ::testing::Not(HasSubstr("disturbed")));
  times[0].disturbed = true;
  EXPECT_THAT(selection_table({}, times), HasSubstr("disturbed by other programs"));
}

/// The entry that list order takes.
std::string first_of(const char* name) {
  const Probe probe = describe_probe(*find_op_class(name));
  return std::string(probe.entries.at(static_cast<size_t>(probe.first())).name);
}

TEST(SelectionTable, DescribesWhatDepartsFromListOrder) {
  Selection selection;
  EXPECT_EQ(describe_departures(selection), "");
  for (const OpClass c : all_op_classes())
    if (c.op == Op::kGemm && class_name(c).starts_with("gemm float32 nt"))
      selection.set(c, "reference");
  if (!gemm_supported({.m = 1, .n = 1, .k = 1})) GTEST_SKIP() << "the reference comes first here";
  EXPECT_EQ(describe_departures(selection), "gemm float32 nt by reference");
  EXPECT_EQ(describe_departures(selection, {.types = {DType::kBFloat16}}), "");
  selection.set(*find_op_class("gemm float32 nt n<=512 k>512"),
                first_of("gemm float32 nt n<=512 k>512"));
  EXPECT_EQ(describe_departures(selection), "gemm float32 nt by reference (3 of 4 sizes)");
}

TEST(SelectionTable, TellsChoicesThatAreSlowNow) {
  const std::vector<Measurement> times = {
      measured("gemm float32 nt n<=512 k<=512",
               {{.entry = "avx512", .seconds = 0.01}, {.entry = "mkl", .seconds = 0.05}}),
      measured("gemm float32 nt n<=512 k>512",
               {{.entry = "avx512", .seconds = 0.01}, {.entry = "mkl", .seconds = 0.014}})};
  const Selection selection(
      {{"gemm float32 nt n<=512 k<=512", "mkl"}, {"gemm float32 nt n<=512 k>512", "mkl"}});
  EXPECT_THAT(
      slow_choices(selection, times),
      ElementsAre("gemm float32 nt n<=512 k<=512 uses mkl, but avx512 is 5.0 times as fast"));
}

struct SelectionCache : ::testing::Test {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "deep" / "kernels.json";

  void write(const std::string& text) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
};

TEST_F(SelectionCache, KeepsWhatWasMeasured) {
  const FoundSelection first = find_selection(file, quick());
  EXPECT_TRUE(fs::exists(file));
  const FoundSelection second = find_selection(file, quick());
  EXPECT_THAT(second.measured, IsEmpty());
  EXPECT_EQ(second.selection, first.selection);
}

TEST_F(SelectionCache, WinsOverWhatWouldBeMeasured) {
  Selection selection = find_selection({}, quick()).selection;
  selection.set(kNormFloat, "reference");
  write(selection.text());
  EXPECT_EQ(find_selection(file, quick()).selection.find(kNormFloat), "reference");
}

TEST_F(SelectionCache, MeasuresAgainWhereTheFileIsOfNoUse) {
  const Selection good = find_selection({}, quick()).selection;
  Selection elsewhere = good;
  elsewhere.set(kNormFloat, "avx4096");
  for (const std::string& text :
       {std::string(), std::string("{\"norm_forward"), std::string(1000, '\0'), elsewhere.text()}) {
    write(text);
    const FoundSelection found = find_selection(file, quick());
    EXPECT_THAT(unusable_choices(found.selection), IsEmpty());
    EXPECT_EQ(found.selection.choices().size(), good.choices().size());
    EXPECT_EQ(find_selection(file, quick()).selection, found.selection) << "and keeps it";
  }
}

TEST_F(SelectionCache, DoesWithoutAFolderToWriteIn) {
  std::ofstream(folder.path() / "deep") << "a file where a folder should be";
  EXPECT_FALSE(find_selection(file, quick()).selection.choices().empty());
}

/// Sets a variable of the environment for one test; null unsets it.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Environment() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(SelectionCacheFile, LiesInTheCacheFolderOfTheUser) {
  const Environment home("HOME", "/users/somebody");
  {
    const Environment xdg("XDG_CACHE_HOME", "/cache");
    EXPECT_EQ(selection_cache_file("").parent_path(), "/cache/pentatron");
  }
  const Environment xdg("XDG_CACHE_HOME", "relative"); // which its specification forbids
  EXPECT_EQ(selection_cache_file("").parent_path(), "/users/somebody/.cache/pentatron");
  const Environment none("HOME", nullptr);
  EXPECT_EQ(selection_cache_file(""), "");
}

TEST(SelectionCacheFile, IsAnotherForOtherVersionsAndThreads) {
  const Environment home("HOME", "/users/somebody");
  const fs::path file = selection_cache_file("1");
  EXPECT_EQ(selection_cache_file("1"), file);
  EXPECT_NE(selection_cache_file("2"), file);
  const int threads = num_threads();
  testing::with_threads(threads + 1, [&] { EXPECT_NE(selection_cache_file("1"), file); });
}

TEST(SelectionCacheFile, TheNewestOnesStay) {
  const TemporaryFolder folder;
  const auto name = [&](int i) { return folder.path() / fmt::format("kernels-{}.json", i); };
  for (int i = 0; i < 30; ++i) {
    std::ofstream(name(i)) << "{}";
    fs::last_write_time(name(i), fs::file_time_type::clock::now() - std::chrono::hours(i + 1));
  }
  std::ofstream(folder.path() / "kernels.txt") << "mine";
  const fs::path own = folder.path() / "kernels-own.json";
  find_selection(own, quick());
  EXPECT_TRUE(fs::exists(own));
  for (int i = 0; i < 30; ++i) EXPECT_EQ(fs::exists(name(i)), i < 15) << i;
  EXPECT_TRUE(fs::exists(folder.path() / "kernels.txt"));
}

} // namespace
} // namespace pentatron::kernels

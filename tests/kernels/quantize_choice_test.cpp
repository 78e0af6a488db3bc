// Which entry of the operators of low precision runs.
#include <gmock/gmock.h>

#include "pentatron/kernels/quantize/hadamard.h"
#include "pentatron/kernels/quantize/quantize.h"
#include "pentatron/kernels/selection/cache.h"
#include "pentatron/kernels/selection/report.h"
#include "tests/kernels/array.h"
#include "tests/support/files.h"

namespace pentatron::kernels {
namespace {

using namespace testing;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// List order again at the end of a test.
struct QuantizeChoice : ::testing::Test {
  ~QuantizeChoice() override { clear_selection(); }
};

constexpr int64_t kRowsOfChoice = 16, kColumnsOfChoice = 200;

/// All entries give the same bits, so another result has to tell them apart: that of operands which
/// overlap as contracts forbid. It shows how much an entry reads before it writes.
Array overlapped(int64_t shift, const std::function<void(const void* x, void* y)>& run) {
  Array memory = Array::random(DType::kFloat32, kRowsOfChoice * kColumnsOfChoice + shift, 1);
  run(memory.at(0), memory.at(shift));
  return memory;
}

/// `call` runs each entry that is chosen for `own`, and the first if others are chosen for all
/// classes but `own`. `args(x, y)` are arguments of that class.
template <class Args, class MakeArgs>
void expect_that_choices_run(OpClass own, std::span<const Entry<Args>> all, int64_t shift,
                             MakeArgs&& args, void (*call)(const Args&, const Context&)) {
  const auto result_of = [&](void (*run)(const Args&, const Context&)) {
    return overlapped(shift, [&](const void* x, void* y) { run(args(x, y), {}); });
  };
  const std::vector<Entry<Args>> entries = entries_for(all, Args(args(nullptr, nullptr)));
  const Array first = result_of(entries.at(0).run);
  for (size_t i = 0; i < entries.size(); ++i) {
    const Array expected = result_of(entries[i].run);
    EXPECT_EQ(expected.same_bits(first), i == 0) << "or this test could not fail";
    Selection chosen, elsewhere;
    chosen.set(own, entries[i].name);
    for (const OpClass c : all_op_classes())
      if (c != own) elsewhere.set(c, entries[i].name);
    use_selection(chosen);
    EXPECT_TRUE(result_of(call).same_bits(expected)) << class_name(own) << ' ' << entries[i].name;
    use_selection(elsewhere);
    EXPECT_TRUE(result_of(call).same_bits(first)) << class_name(own) << ' ' << entries[i].name;
  }
}

TEST_F(QuantizeChoice, OfEachRecipeRuns) {
  for (size_t number = 0; number < kRecipes.size(); ++number)
    for (const bool along_rows : {false, true}) {
      const auto recipe = static_cast<QuantRecipe>(number);
      SCOPED_TRACE(along_rows);
      expect_that_choices_run(
          quantize_class(DType::kFloat32, recipe), quantize_entries(), 16,
          [&](const void* x, void* y) {
            return Quantize{.recipe = recipe,
                            .dtype = DType::kFloat32,
                            .rows = kRowsOfChoice,
                            .cols = kColumnsOfChoice,
                            .along_rows = along_rows,
                            .x = x,
                            .values = y,
                            .values_dtype = DType::kBFloat16};
          },
          quantize);
    }
}

TEST_F(QuantizeChoice, OfHadamardRuns) {
  for (const bool inverse : {false, true})
    expect_that_choices_run(
        op_class(Op::kHadamard, DType::kFloat32), hadamard_entries(), 1,
        [&](const void* x, void* y) {
          return Hadamard{.rows = kRowsOfChoice,
                          .cols = kColumnsOfChoice,
                          .x = x,
                          .out = y,
                          .inverse = inverse};
        },
        hadamard);
}

TEST_F(QuantizeChoice, IsMeasuredKeptAndShown) {
  std::vector<OpClass> classes = {op_class(Op::kHadamard, DType::kFloat32)};
  for (size_t number = 0; number < kRecipes.size(); ++number)
    classes.push_back(quantize_class(DType::kFloat32, static_cast<QuantRecipe>(number)));
  if (describe_probe(classes[0]).candidates().size() != 2)
    GTEST_SKIP() << "needs a processor with AVX-512";

  // Of each class the first entry takes longer than the second.
  MeasureOptions options{.types = {DType::kFloat32}, .rows = 20, .seconds_per_class = 0};
  for (int op = 0; op < kNumOps; ++op)
    if (static_cast<Op>(op) != Op::kQuantize && static_cast<Op>(op) != Op::kHadamard)
      options.left_out.push_back(static_cast<Op>(op));
  options.time = [turn = 0](const std::function<void()>& run) mutable {
    run();
    return TimedRun{.seconds = turn++ % 2 == 0 ? 2.0 : 1.0};
  };
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "kernels.json";
  const FoundSelection found = find_selection(file, options);
  EXPECT_EQ(found.unmeasured, 0u);
  EXPECT_EQ(found.measured.size(), classes.size());
  use_selection(found.selection);
  const std::string table = selection_table(found.selection, found.measured),
                    told = describe_departures(found.selection, options), text = content_of(file);
  for (const OpClass c : classes) {
    EXPECT_EQ(chosen_position(c), 1) << class_name(c);
    EXPECT_THAT(text, HasSubstr("\"" + class_name(c) + "\": \"avx2\""));
    EXPECT_THAT(table, ContainsRegex("\n" + class_name(c) + " +avx2 +[0-9.]+ GB/s +avx512 0.5x\n"));
    EXPECT_THAT(told, HasSubstr(class_name(c) + " by avx2"));
  }
  EXPECT_THAT(find_selection(file, options).measured, IsEmpty());
  EXPECT_EQ(find_selection(file, options).selection, found.selection);
}

} // namespace
} // namespace pentatron::kernels

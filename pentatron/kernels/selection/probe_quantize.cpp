// Examples of the operators of low precision, as a linear layer calls them.
#include "pentatron/kernels/quantize/hadamard.h"
#include "pentatron/kernels/quantize/quantize.h"
#include "pentatron/kernels/selection/probe_detail.h"

namespace pentatron::kernels::selection_detail {

namespace {

constexpr int64_t kFeatures = 1024;
constexpr float kAmax = 2; ///< of the numbers in ProbeMemory
constexpr Stochastic kByChance = {.key = {1, 2}};

} // namespace

void probe_quantize(Probe& probe, Arguments& arguments) {
  const DType dtype = element_type(probe.op_class);
  const DType values = dtype == DType::kFloat64 ? dtype : DType::kBFloat16;
  const int64_t n = arguments.rows() * kFeatures;
  // An operand is needed with blocks along its columns and along its rows. The largest number of a
  // tensor is given, since the entries share the search for it.
  const Quantize along_columns = {.recipe = recipe_of(probe.op_class),
                                  .dtype = dtype,
                                  .rows = arguments.rows(),
                                  .cols = kFeatures,
                                  .x = arguments.input(dtype, n),
                                  .amax = &kAmax,
                                  .values = arguments.output(values, n),
                                  .values_dtype = values};
  Quantize along_rows = along_columns;
  along_rows.along_rows = true;
  // Gradients are rounded by chance, inputs are not: one of each.
  if (along_rows.recipe == QuantRecipe::kNvfp4) along_rows.stochastic = &kByChance;
  probe.work = 2 * (bytes(dtype, n) + bytes(values, n));
  for (const Entry<Quantize>& entry : quantize_entries())
    probe.entries.push_back({entry.name, entry.refuse(along_columns, {}), [=, run = entry.run] {
                               run(along_columns, {});
                               run(along_rows, {});
                             }});
}

void probe_hadamard(Probe& probe, Arguments& arguments) {
  const DType dtype = element_type(probe.op_class), acc = acc_dtype(dtype);
  const int64_t rows = arguments.rows(), n = hadamard_rows(rows) * kFeatures;
  probe.work = bytes(dtype, rows * kFeatures) + bytes(acc, n);
  add_entries(probe, hadamard_entries(),
              Hadamard{.dtype = dtype,
                       .rows = rows,
                       .cols = kFeatures,
                       .x = arguments.input(dtype, n),
                       .out = arguments.output(acc, n)});
}

} // namespace pentatron::kernels::selection_detail

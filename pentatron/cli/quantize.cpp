#include "pentatron/kernels/quantize/quantize.h"

#include <CLI/CLI.hpp>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/base/naming.h"
#include "pentatron/base/paths.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/cli/commands.h"
#include "pentatron/kernels/common/scalar.h"

namespace pentatron::cli {

namespace {

using namespace kernels;

struct QuantizeArguments {
  std::string recipe, in, out;
  bool overwrite = false;
};

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const RecipeTraits& recipe : kRecipes) names.emplace_back(recipe.name);
  return names;
}

/// Of one of recipe_names().
QuantRecipe recipe_of(const std::string& name) {
  size_t number = 0;
  while (kRecipes[number].name != name) ++number;
  return static_cast<QuantRecipe>(number);
}

DType type_of(const SafeTensor& x, const std::string& file) {
  switch (x.dtype) {
  case SafeDtype::kF64:
    return DType::kFloat64;
  case SafeDtype::kF32:
    return DType::kFloat32;
  case SafeDtype::kF16:
    return DType::kFloat16;
  case SafeDtype::kBF16:
    return DType::kBFloat16;
  default:
    raise<DataError>("--in {}: tensor x is {}, but only F64, F32, F16 and BF16 can be quantized\n  "
                     "try: x as F32",
                     file, name_of(x.dtype));
  }
}

template <class T>
SafeTensor tensor_of(SafeDtype dtype, std::vector<int64_t> shape, const std::vector<T>& data) {
  return {dtype, std::move(shape), std::as_bytes(std::span(data))};
}

int quantize_file(const QuantizeArguments& a) {
  if (!a.overwrite)
    refuse_existing(std::array{std::filesystem::path(a.out)}, "--out");
  else
    check_replaced(a.out, std::array{std::filesystem::path(a.in)}, "--out", "a quantized tensor",
                   [](const std::filesystem::path& file) {
                     try {
                       return SafetensorsFile(file).find("dequantized") != nullptr;
                     } catch (const Error&) {
                       return false;
                     }
                   });
  const QuantRecipe recipe = recipe_of(a.recipe);
  const RecipeTraits& how = traits(recipe);
  constexpr const char* kWanted = "a Safetensors file with a tensor x [rows, columns]";
  const auto file = naming(
      "--in ", a.in, [&] { return std::make_unique<SafetensorsFile>(a.in); }, kWanted);
  const SafeTensor& x = naming(
      "--in ", a.in, [&]() -> const SafeTensor& { return file->at("x"); }, kWanted);
  if (x.shape.size() != 2)
    raise<DataError>("--in {}: tensor x has the shape [{}], but blocks need two dimensions\n  "
                     "try: x reshaped to [rows, columns]",
                     a.in, fmt::join(x.shape, ", "));
  const int64_t rows = x.shape[0], cols = x.shape[1];
  const DType dtype = type_of(x, a.in);
  std::vector<std::byte> aligned(x.data.begin(), x.data.end());

  const int64_t scale_count = scale_rows(recipe, rows) * scale_cols(recipe, cols);
  std::vector<uint8_t> codes(static_cast<size_t>(code_bytes(recipe, rows, cols)));
  std::vector<float> scales(static_cast<size_t>(scale_count)),
      values(static_cast<size_t>(rows * cols));
  std::vector<uint8_t> scale_bytes(static_cast<size_t>(scale_count));
  const bool bytes = how.scale == ScaleFormat::kE8M0 || how.scale == ScaleFormat::kE4M3;
  void* const scale_data = bytes ? static_cast<void*>(scale_bytes.data()) : scales.data();
  std::vector<float> global(1, 1.0f);
  quantize({.recipe = recipe,
            .dtype = dtype,
            .rows = rows,
            .cols = cols,
            .x = aligned.data(),
            .codes = codes.data(),
            .scales = scale_data,
            .tensor_scale = global.data()});
  dequantize({.recipe = recipe,
              .rows = rows,
              .cols = cols,
              .codes = codes.data(),
              .scales = scale_data,
              .tensor_scale = global[0],
              .values = values.data()});

  const std::vector<int64_t> scale_shape = {scale_rows(recipe, rows), scale_cols(recipe, cols)};
  SafeTensors out;
  out["data"] = tensor_of(SafeDtype::kU8, {rows, code_bytes(recipe, 1, cols)}, codes);
  out["scale"] = bytes ? tensor_of(SafeDtype::kU8, scale_shape, scale_bytes)
                       : tensor_of(SafeDtype::kF32, scale_shape, scales);
  out["dequantized"] = tensor_of(SafeDtype::kF32, {rows, cols}, values);
  if (how.two_levels()) out["global_scale"] = tensor_of(SafeDtype::kF32, {1}, global);
  naming(
      "--out ", a.out, [&] { write_safetensors(a.out, out); }, "a file in another folder");

  long double error = 0, size = 0; // squares of fp64 numbers may be out of its range
  int64_t without = 0;             ///< elements that are not finite, before or after
  for (size_t i = 0; i < values.size(); ++i) {
    const double given = load_as_double(aligned.data(), dtype, static_cast<int64_t>(i));
    const double difference = values[i] - given;
    if (!std::isfinite(difference)) {
      ++without;
      continue;
    }
    error += static_cast<long double>(difference) * difference;
    size += static_cast<long double>(given) * given;
  }
  const bool none = without > 0 && without == rows * cols;
  const double relative = none        ? std::nan("")
                          : error > 0 ? static_cast<double>(std::sqrt(error / size))
                                      : 0;
  fmt::print("{{\"recipe\":\"{}\",\"shape\":[{},{}],\"bytes\":{},\"relative_error\":{}}}\n",
             how.name, rows, cols,
             codes.size() + static_cast<size_t>(scale_count) * (bytes ? 1 : 4) +
                 (how.two_levels() ? 4 : 0),
             std::isfinite(relative) ? fmt::format("{:.6g}", relative) : "null");
  if (without > 0)
    log::warning(
        "{} of {} are NaN or infinite, before or after quantization; relative_error does not "
        "count them",
        without, counted(rows * cols, "element"));
  return 0;
}

} // namespace

void add_quantize(CLI::App& program, Action& chosen) {
  auto a = std::make_shared<QuantizeArguments>();
  CLI::App* verb = program.get_subcommand("inspect")->add_subcommand(
      "quantize", "write the codes, scales and values of a tensor in low precision");
  verb->add_option("--recipe", a->recipe, "quantization recipe")
      ->check(CLI::IsMember(recipe_names()))
      ->required();
  verb->add_option("--in", a->in,
                   "Safetensors file with the tensor x [rows, cols]; other tensors are ignored")
      ->required();
  verb->add_option(
          "--out", a->out,
          "Safetensors file to write: data, scale, dequantized, and for NVFP4 global_scale")
      ->required();
  verb->add_flag("--overwrite", a->overwrite, "replace the output file");
  verb->footer("example: pentatron inspect quantize --recipe mxfp8_1x32 --in weights.safetensors "
               "--out quantized.safetensors");
  verb->callback([a, &chosen] { chosen = [a] { return quantize_file(*a); }; });
}

} // namespace pentatron::cli

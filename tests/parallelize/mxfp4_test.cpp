// MXFP4 weights in the files of GPT-OSS.
#include <ATen/ATen.h>

#include <cmath>
#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "pentatron/checkpoint/convert.h"
#include "pentatron/checkpoint/hf/hf_config.h"
#include "pentatron/checkpoint/hf/hf_export.h"
#include "pentatron/checkpoint/hf/mxfp4.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/parallelize/load_model.h"
#include "tests/parallelize/saved_config.h"
#include "tests/support/files.h"
#include "tests/support/ranks.h"

namespace pentatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kModel = fs::path(PENTATRON_TEST_DATA) / "hf_tiny/gpt_oss_mxfp4";

SafeTensor bytes_of(const at::Tensor& tensor) {
  return {.dtype = SafeDtype::kU8,
          .shape = tensor.sizes().vec(),
          .data = {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}};
}

TEST(Mxfp4, EveryCodeWithEveryScaleIsItsValue) {
  const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const at::Tensor blocks = at::empty({1, 256, 1, 16}, at::kByte),
                   scales = at::arange(256, at::kByte).view({1, 256, 1});
  for (int64_t i = 0; i < 16; ++i) // first numbers 0 to 15, second ones 15 to 0
    blocks.select(3, i).fill_(i + 16 * (15 - i));
  const at::Tensor values = dequantize_mxfp4(bytes_of(blocks), bytes_of(scales));
  ASSERT_EQ(values.scalar_type(), at::kBFloat16);
  ASSERT_EQ(values.sizes().vec(), (std::vector<int64_t>{1, 256, 32}));
  const at::Tensor exact = values.to(at::kDouble);
  for (int64_t scale = 0; scale < 255; ++scale)
    for (int64_t i = 0; i < 32; ++i) {
      const int64_t code = i % 2 == 0 ? i / 2 : 15 - i / 2;
      const double value =
          (code < 8 ? 1 : -1) * std::ldexp(magnitudes[code % 8], static_cast<int>(scale) - 127);
      const double got = exact[0][scale][i].item<double>();
      // 6 x 2^127 is more than bf16 holds.
      EXPECT_EQ(got, std::abs(value) > 3.4e38 ? std::copysign(INFINITY, value) : value)
          << scale << " " << i;
    }
}

class Mxfp4Model : public testing::Test {
 protected:
  Mxfp4Model() {
    fs::copy_file(kModel / "config.json", folder / "config.json");
    const SafetensorsFile file(kModel / "model.safetensors");
    for (const auto& [name, entry] : file.tensors()) tensors[name] = to_tensor(entry).clone();
  }
  std::string open_error() {
    write_tensors(folder / "model.safetensors", tensors);
    return error_of([&] { open_model(folder.string()); });
  }
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path();
  std::map<std::string, at::Tensor> tensors;
  const std::string down = "model.layers.1.mlp.experts.down_proj";
};

TEST_F(Mxfp4Model, RefusesWhatDoesNotFit) {
  const std::map<std::string, at::Tensor> whole = tensors;
  const at::Tensor blocks = whole.at(down + "_blocks"), scales = whole.at(down + "_scales");
  write_tensors(folder / "model.safetensors", tensors);
  EXPECT_NO_THROW(open_model(folder.string()));
  tensors.erase(down + "_scales");
  EXPECT_THAT(open_error(), HasSubstr(down + "_scales"));
  tensors[down + "_scales"] = scales.narrow(0, 0, 3).contiguous();
  EXPECT_THAT(open_error(), AllOf(HasSubstr(down), HasSubstr("[3, 64, 1] instead of [4, 64, 1]")));
  tensors[down + "_scales"] = scales.to(at::kFloat);
  EXPECT_THAT(open_error(), HasSubstr("scales are of type F32 instead of U8"));
  tensors = whole;
  tensors[down + "_blocks"] = blocks.narrow(3, 0, 8).contiguous();
  EXPECT_THAT(open_error(), HasSubstr("[4, 64, 1, 8] instead of [4, 64, 1, 16]"));
  tensors.erase(down + "_blocks");
  EXPECT_THAT(open_error(), HasSubstr(down + "_blocks"));
  tensors.erase(down + "_scales");
  EXPECT_THAT(open_error(), HasSubstr(down));
  tensors = whole;
  tensors[down] = at::zeros({4, 32, 64}); // twice
  EXPECT_THAT(open_error(), HasSubstr(down + "_blocks"));
}

TEST_F(Mxfp4Model, IsExportedInBf16WithTheSameValues) {
  const auto source = open_model(kModel.string());
  EXPECT_EQ(source->facts().tensors.at("layers.0.mlp.experts.fc1.weight").dtype, SafeDtype::kBF16);
  convert_model(
      *source, folder / "plain",
      {.format = ModelFormat::kHuggingFace, .config_yaml = test::yaml_of(source->config())});
  EXPECT_FALSE(read_json(folder / "plain/config.json").contains("quantization_config"));
  const SafetensorsFolder plain(folder / "plain");
  const at::Tensor got = to_tensor(plain.at(down));
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  const at::Tensor wanted = dequantize_mxfp4(bytes_of(tensors.at(down + "_blocks")),
                                             bytes_of(tensors.at(down + "_scales")));
  EXPECT_TRUE(at::equal(got, wanted.transpose(1, 2)));
  const at::Tensor gate_up = to_tensor(plain.at("model.layers.0.mlp.experts.gate_up_proj"));
  EXPECT_EQ(gate_up.sizes().vec(), (std::vector<int64_t>{4, 64, 64}));
  EXPECT_TRUE(same_model(read_hf_config(folder / "plain").config, read_hf_config(kModel).config));
}

TEST_F(Mxfp4Model, RefusesOtherQuantisations) {
  Json config = read_json(kModel / "config.json");
  config["quantization_config"]["quant_method"] = "awq";
  EXPECT_THAT(error_of([&] { parse_hf_config(config, "config.json"); }),
              HasSubstr("quantization_config with quant_method=awq is not supported"));
  config.erase("quantization_config");
  config["swiglu_alpha"] = 2;
  EXPECT_THAT(error_of([&] { parse_hf_config(config, "config.json"); }),
              HasSubstr("swiglu_alpha=2 is not supported"));
}

} // namespace
} // namespace pentatron::checkpoint

// What inspect quantize says about a tensor is JSON, whatever the numbers.
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "pentatron/base/safetensors.h"
#include "tests/cli/program_folder.h"

namespace pentatron {
namespace {

class Quantize : public test::ProgramFolder {
 protected:
  Json error_of(const std::vector<double>& x, const std::string& recipe) const {
    write_safetensors(folder / "x.safetensors", SafeTensors{{"x",
                                                             {SafeDtype::kF64,
                                                              {1, static_cast<int64_t>(x.size())},
                                                              std::as_bytes(std::span(x))}}});
    const std::string out = run("inspect quantize --recipe " + recipe +
                                " --in x.safetensors --out q.safetensors --overwrite 2>/dev/null");
    return parse_json(out, "inspect quantize").at("relative_error");
  }
};

TEST_F(Quantize, TheErrorOfNumbersWhoseSquaresAreOutOfRangeIsANumber) {
  const std::vector<double> numbers = {1, 0.3, -0.7, 0.01};
  for (const std::string recipe :
       {"tensorwise_e4m3", "blockwise_1x128", "mxfp8_1x32", "nvfp4_1x16"}) {
    SCOPED_TRACE(recipe);
    const double usual = error_of(numbers, recipe).get<double>();
    EXPECT_GT(usual, 1e-4);
    EXPECT_LT(usual, 0.2);
    // Numbers of fp64 that fp32 has not become zero, which is all of the error.
    for (const double size : {1e-162, 1e-200, 1e-308}) {
      std::vector<double> small = numbers;
      for (double& x : small) x *= size;
      EXPECT_NEAR(error_of(small, recipe).get<double>(), 1, 1e-6) << size;
    }
    const double most = std::numeric_limits<double>::max();
    const Json large = error_of({1, most, -most / 3, 1e308}, recipe);
    // What fp32 does not hold becomes infinite and does not count; 1 is quantized to 0 or to 1.
    if (!large.is_null()) {
      EXPECT_LE(large.get<double>(), 1) << large;
    }
    EXPECT_EQ(error_of({0, 0}, recipe).get<double>(), 0);
    EXPECT_TRUE(error_of({std::nan(""), std::nan("")}, recipe).is_null());
  }
}

} // namespace
} // namespace pentatron

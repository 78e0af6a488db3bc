#include "pentatron/kernels/optimizer/narrow.h"

#include <algorithm>
#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/kernels/quantize/formats.h"
#include "tests/kernels/array.h"

namespace pentatron::kernels {
namespace {

using namespace testing;

constexpr NarrowType kTypes[] = {NarrowType::kBFloat16, NarrowType::kFloat16, NarrowType::kE4M3};
constexpr uint64_t kStep = (uint64_t{1} << 33) + 7;

/// What a code without a sign stands for.
double number_of(NarrowType type, uint32_t code) {
  switch (type) {
  case NarrowType::kBFloat16:
    return to_acc(bf16{static_cast<uint16_t>(code)});
  case NarrowType::kFloat16:
    return to_acc(fp16{static_cast<uint16_t>(code)});
  case NarrowType::kE4M3:
    break;
  }
  return value_of(kE4M3, static_cast<uint8_t>(code));
}
uint32_t largest_code(NarrowType type) {
  return type == NarrowType::kBFloat16 ? 0x7F7F : type == NarrowType::kFloat16 ? 0x7BFF : 0x7E;
}
uint32_t sign_of(NarrowType type) {
  return type == NarrowType::kE4M3 ? 0x80 : 0x8000;
}

/// Codes of a type, with memory that a GPU reaches.
struct Codes {
  Codes(NarrowType of, int64_t n)
      : type(of), size(n), memory(DType::kBFloat16, of == NarrowType::kE4M3 ? (n + 1) / 2 : n) {}
  uint32_t operator[](int64_t i) const {
    return type == NarrowType::kE4M3 ? static_cast<const uint8_t*>(memory.data())[i]
                                     : static_cast<const uint16_t*>(memory.data())[i];
  }
  double number(int64_t i) const {
    const uint32_t code = (*this)[i], sign = code & sign_of(type);
    return (sign != 0 ? -1 : 1) * number_of(type, code ^ sign);
  }
  NarrowType type;
  int64_t size;
  Array memory;
};

RoundByChanceArgs arguments(const Array& x, Codes& codes) {
  return {.dtype = x.dtype(),
          .type = codes.type,
          .cols = x.size(),
          .stride = x.size(),
          .value = x.data(),
          .stored = codes.memory.data(),
          .key = Stream(5, "rounding").key(),
          .step = kStep,
          .first = 1000};
}

uint32_t word_of(int64_t element) {
  const auto g = static_cast<uint64_t>(element);
  return Stream(5, "rounding").bits(g / 64 * 16 + g % 16, kStep)[g % 64 / 16];
}

/// The largest code whose number is at most `size`.
uint32_t code_below(NarrowType type, double size) {
  uint32_t low = 0, high = largest_code(type) + 1;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (number_of(type, middle) <= size ? low : high) = middle;
  }
  return low;
}

/// Numbers of all sizes, most of them within the range of the type.
Array numbers(DType dtype, NarrowType type, int64_t n, bool positive) {
  Array x = Array::random(DType::kFloat32, n, 3), y(dtype, n);
  const double bits = type == NarrowType::kBFloat16 ? 270 : type == NarrowType::kFloat16 ? 50 : 30;
  const double most = std::log2(number_of(type, largest_code(type)));
  y.fill([&](int64_t i) {
    const double size =
        std::exp2(most - 3 - bits * static_cast<double>(i) / static_cast<double>(n));
    const double number = static_cast<float>(x[i] * size);
    return positive ? std::abs(number) : number;
  });
  return y;
}

TEST(RoundByChance, TakesTheUpperNeighbourForItsShareOfTheWords) {
  const int64_t n = 3001;
  for (const NarrowType type : kTypes)
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      const Array x = numbers(dtype, type, n, false);
      Codes codes(type, n);
      RoundByChanceArgs a = arguments(x, codes);
      a.scale = 0.5;
      for (const auto& e : entries_for(round_by_chance_entries(), a)) {
        e.run(a, {});
        int64_t up = 0;
        for (int64_t i = 0; i < n; ++i) {
          const double size = std::abs(static_cast<float>(x[i] * 0.5));
          const uint32_t below = code_below(type, size), largest = largest_code(type);
          uint32_t expected = below;
          if (below < largest) {
            const double low = number_of(type, below), high = number_of(type, below + 1);
            const double share = std::floor((size - low) / (high - low) * 0x1p32);
            if (word_of(1000 + i) < share) ++expected, ++up;
          }
          ASSERT_EQ(codes[i], expected | (std::signbit(x[i]) ? sign_of(type) : 0))
              << e.name << " " << x[i] << " " << static_cast<int>(type);
        }
        EXPECT_GT(up, n / 10);
      }
    }
}

TEST(RoundByChance, OfRootsTakesTheShareOfTheSquares) {
  const int64_t n = 3001;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    Array x = numbers(dtype, NarrowType::kE4M3, n, true);
    for (int64_t i = 0; i < n; ++i) x.set(i, static_cast<float>(x[i] * x[i] * 64));
    Codes codes(NarrowType::kE4M3, n);
    RoundByChanceArgs a = arguments(x, codes);
    a.scale = 0.25;
    a.root = true;
    for (const auto& e : entries_for(round_by_chance_entries(), a)) {
      e.run(a, {});
      for (int64_t i = 0; i < n; ++i) {
        const double square = x[i] / 16;
        const uint32_t below = code_below(NarrowType::kE4M3, std::sqrt(square));
        uint32_t expected = below;
        if (below < largest_code(NarrowType::kE4M3)) {
          const double low = number_of(NarrowType::kE4M3, below),
                       high = number_of(NarrowType::kE4M3, below + 1);
          const auto share = static_cast<float>((square - low * low) / (high * high - low * low));
          if (static_cast<float>(word_of(1000 + i) >> 8) * 0x1p-24f < share) ++expected;
        }
        ASSERT_EQ(codes[i], expected) << e.name << " " << x[i];
      }
    }
  }
}

/// What is stored has the number, or the square, as its mean; nothing but the two neighbours
/// occurs.
TEST(RoundByChance, IsExactOnAverage) {
  const int64_t n = int64_t{1} << 20;
  for (const bool root : {false, true})
    for (const NarrowType type : kTypes) {
      if (root && type != NarrowType::kE4M3) continue;
      const double least = number_of(type, 1), most = number_of(type, largest_code(type));
      for (const double number :
           {1.37, 0.013, 0.3 * least, 1.45 * least, 5.001 * least, 0.977 * most, 1.002 * 0.25}) {
        const auto value = static_cast<float>(root ? number * number : number);
        const Array x(DType::kFloat32, n, value);
        Codes codes(type, n);
        RoundByChanceArgs a = arguments(x, codes);
        a.root = root;
        round_by_chance(a);
        const uint32_t below = code_below(type, root ? std::sqrt(value) : value);
        int64_t up = 0;
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_TRUE(codes[i] == below || codes[i] == below + 1) << number;
          up += codes[i] - below;
        }
        double low = number_of(type, below), high = number_of(type, below + 1);
        if (root) low *= low, high *= high;
        const double share = (value - low) / (high - low);
        const double noise = std::sqrt(share * (1 - share) / static_cast<double>(n));
        EXPECT_NEAR(static_cast<double>(up) / static_cast<double>(n), share, 4 * noise)
            << number << " " << static_cast<int>(type) << root;
        EXPECT_GT(up, 0) << number;
        EXPECT_LT(up, n) << number;
      }
    }
}

TEST(RoundByChance, OfPartsOfAMatrixIsThatOfTheWhole) {
  const int64_t rows = 37, cols = 150;
  for (const NarrowType type : kTypes) {
    const Array x = numbers(DType::kFloat32, type, rows * cols, true);
    Codes whole(type, rows * cols);
    const RoundByChanceArgs a = arguments(x, whole);
    reference_of(round_by_chance_entries()).run(a, {});
    const int64_t width = type == NarrowType::kE4M3 ? 1 : 2;
    for (const auto& e : entries_for(round_by_chance_entries(), a))
      for (const int64_t part : {1, 17, 64, 149}) {
        Codes cut(type, rows * cols);
        for (int64_t c = 0; c < cols; c += part) {
          RoundByChanceArgs b = arguments(x, cut);
          b.rows = rows;
          b.cols = std::min(part, cols - c);
          b.stride = b.first_step = cols;
          b.value = static_cast<const float*>(x.data()) + c;
          b.stored = static_cast<std::byte*>(cut.memory.data()) + width * c;
          b.first += c;
          e.run(b, {});
        }
        EXPECT_TRUE(cut.memory.same_bits(whole.memory)) << e.name << " " << part;
      }
  }
}

TEST(RoundByChance, KeepsZerosAndWhatIsNoNumber) {
  const double tiny = std::numeric_limits<float>::denorm_min();
  for (const NarrowType type : kTypes)
    for (const bool positive : {false, true})
      for (const bool root : {false, true}) {
        if (root && type != NarrowType::kE4M3) continue;
        const bool saturates = type != NarrowType::kBFloat16;
        const uint32_t largest = largest_code(type), sign = sign_of(type);
        const Array x = Array::of(DType::kFloat32,
                                  {0.0, kNaN, kInf, 3.4e38, tiny, -0.0, -kInf, -3.4e38, -tiny});
        Codes codes(type, x.size());
        RoundByChanceArgs a = arguments(x, codes);
        a.root = root;
        a.positive = positive;
        for (const auto& e : entries_for(round_by_chance_entries(), a)) {
          e.run(a, {});
          EXPECT_EQ(codes[0], 0u) << e.name;
          EXPECT_TRUE(std::isnan(codes.number(1))) << e.name;
          EXPECT_EQ(codes[2], largest + (saturates ? 0 : 1)) << e.name;
          EXPECT_EQ(codes[3], largest) << e.name << ": no number becomes infinite";
          EXPECT_EQ(codes[4], positive ? 1u : 0u) << e.name;
          if (root) continue;
          EXPECT_EQ(codes[5], sign) << e.name;
          EXPECT_EQ(codes[6], (largest + (saturates ? 0 : 1)) | sign) << e.name;
          EXPECT_EQ(codes[7], largest | sign) << e.name;
          EXPECT_EQ(codes[8], sign) << e.name;
        }
      }
}

TEST(RoundByChance, DrawsAnewInEachStepAndForEachKey) {
  const Array x(DType::kFloat32, 1000, 1.3);
  Codes first(NarrowType::kE4M3, 1000), again = first, next = first, other = first;
  round_by_chance(arguments(x, first));
  round_by_chance(arguments(x, again));
  EXPECT_TRUE(first.memory.same_bits(again.memory));
  RoundByChanceArgs a = arguments(x, next);
  ++a.step;
  round_by_chance(a);
  EXPECT_FALSE(first.memory.same_bits(next.memory));
  a = arguments(x, other);
  ++a.key[1];
  round_by_chance(a);
  EXPECT_FALSE(first.memory.same_bits(other.memory));
}

TEST(RoundByChance, RefusesWhatItDoesNotKnow) {
  Array x(DType::kBFloat16, 4);
  Codes codes(NarrowType::kFloat16, 4);
  EXPECT_THROW(round_by_chance(arguments(x, codes)), ShapeError);
  Array y(DType::kFloat32, 4);
  RoundByChanceArgs a = arguments(y, codes);
  a.root = true;
  EXPECT_THROW(round_by_chance(a), ShapeError);
}

} // namespace
} // namespace pentatron::kernels

// The tensor types of ggml, and the dequantisation of their blocks.

#include "ggml_types.h"

#include <c10/util/Half.h>

#include <array>
#include <cstring>

namespace redco::ggml {

namespace {

// The blocks of 32 elements of ggml-common.h: scales are float16; the low nibbles are elements 0 to
// 15 and the high ones 16 to 31.
constexpr int64_t block_size = 32;

float half_at(const std::byte* source) {
  uint16_t bits = 0;
  std::memcpy(&bits, source, sizeof(bits));
  return float(c10::Half(bits, c10::Half::from_bits()));
}

// x = q * scale
void dequantize_q8_0(const std::byte* source, float* target, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; ++block) {
    const std::byte* bytes = source + block * 34;
    float scale = half_at(bytes);
    for (int64_t i = 0; i < block_size; ++i)
      target[block * block_size + i] = float(int8_t(bytes[2 + i])) * scale;
  }
}

// x = (q - offset) * scale + least, with the nibbles after `head` bytes.
template <int64_t head, class Value>
void dequantize_nibbles(const std::byte* source, float* target, int64_t begin, int64_t end,
                        const Value& make_value) {
  for (int64_t block = begin; block < end; ++block) {
    const std::byte* bytes = source + block * (head + block_size / 2);
    auto value = make_value(bytes);
    float* out = target + block * block_size;
    for (int64_t i = 0; i < block_size / 2; ++i) {
      auto pair = unsigned(bytes[head + i]);
      out[i] = value(int(pair & 15));
      out[i + block_size / 2] = value(int(pair >> 4));
    }
  }
}

// x = (q - 8) * scale
void dequantize_q4_0(const std::byte* source, float* target, int64_t begin, int64_t end) {
  dequantize_nibbles<2>(source, target, begin, end, [](const std::byte* bytes) {
    return [scale = half_at(bytes)](int q) { return float(q - 8) * scale; };
  });
}

// x = q * scale + least
void dequantize_q4_1(const std::byte* source, float* target, int64_t begin, int64_t end) {
  dequantize_nibbles<4>(source, target, begin, end, [](const std::byte* bytes) {
    return [scale = half_at(bytes), least = half_at(bytes + 2)](int q) {
      return float(q) * scale + least;
    };
  });
}

constexpr Type types[] = {
    {0, "F32", at::kFloat, 1, 4, nullptr},
    {1, "F16", at::kHalf, 1, 2, nullptr},
    {30, "BF16", at::kBFloat16, 1, 2, nullptr},
    {8, "Q8_0", at::kFloat, block_size, 34, dequantize_q8_0},
    {2, "Q4_0", at::kFloat, block_size, 18, dequantize_q4_0},
    {3, "Q4_1", at::kFloat, block_size, 20, dequantize_q4_1},
};

// All types of ggml by number; removed ones have no name.
constexpr std::array names = {"F32",   "F16",   "Q4_0",    "Q4_1",   "",        "",      "Q5_0",
                              "Q5_1",  "Q8_0",  "Q8_1",    "Q2_K",   "Q3_K",    "Q4_K",  "Q5_K",
                              "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL",
                              "IQ3_S", "IQ2_S", "IQ4_XS",  "I8",     "I16",     "I32",   "I64",
                              "F64",   "IQ1_M", "BF16",    "",       "",        "",      "TQ1_0",
                              "TQ2_0", "",      "",        "",       "MXFP4"};

}  // namespace

const Type* find_type(uint32_t number) {
  for (const Type& type : types)
    if (type.number == number) return &type;
  return nullptr;
}

std::string type_name(uint32_t number) {
  if (number < names.size() && *names[number] != '\0') return names[number];
  return "number " + std::to_string(number);
}

std::string known_types() {
  std::string text;
  for (const Type& type : types) text += std::string(text.empty() ? "" : ", ") + type.name;
  return text;
}

}  // namespace redco::ggml

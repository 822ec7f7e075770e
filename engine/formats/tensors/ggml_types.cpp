// The tensor types of ggml.

#include "ggml_types.h"

#include <redco/quantized.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

namespace redco::ggml {

namespace {

// Plain elements.
constexpr Type plain[] = {
    {0, "F32", at::kFloat, 1, 4}, {1, "F16", at::kHalf, 1, 2}, {30, "BF16", at::kBFloat16, 1, 2}};

// All types of ggml by number; removed ones have no name.
constexpr std::array names = {"F32",   "F16",   "Q4_0",    "Q4_1",   "",        "",      "Q5_0",
                              "Q5_1",  "Q8_0",  "Q8_1",    "Q2_K",   "Q3_K",    "Q4_K",  "Q5_K",
                              "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL",
                              "IQ3_S", "IQ2_S", "IQ4_XS",  "I8",     "I16",     "I32",   "I64",
                              "F64",   "IQ1_M", "BF16",    "",       "",        "",      "TQ1_0",
                              "TQ2_0", "",      "",        "",       "MXFP4"};

}  // namespace

std::optional<Type> find_type(uint32_t number) {
  for (const Type& type : plain)
    if (type.number == number) return type;
  const BlockType* block = find_ggml_block_type(number);
  if (block == nullptr) return std::nullopt;
  return Type{number, names[number], at::kFloat, block->size, block->bytes, block->name};
}

std::optional<Type> find_type_by_name(const std::string& name) {
  for (uint32_t number = 0; number < names.size(); ++number) {
    const auto equals = [](char a, char b) { return a == std::tolower(b); };
    if (!name.empty() && std::ranges::equal(name, std::string_view(names[number]), equals))
      return find_type(number);
  }
  return std::nullopt;
}

std::string type_name(uint32_t number) {
  if (number < names.size() && *names[number] != '\0') return names[number];
  return "number " + std::to_string(number);
}

std::string known_types() {
  std::string text;
  for (uint32_t number = 0; number < names.size(); ++number)
    if (auto type = find_type(number)) text += (text.empty() ? "" : ", ") + std::string(type->name);
  return text;
}

}  // namespace redco::ggml

// The names and limits of the safetensors format, shared by reader and writer.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>

namespace redco::safetensors {

/// The limits of the reference implementation (a header) and of LibTorch (dimensions).
constexpr uint64_t max_header = 100'000'000;
constexpr size_t max_dimensions = 64;
inline const std::string metadata_key = "__metadata__";

/// File names as in Hugging Face: "model.safetensors", or for the first of three files
/// "model-00001-of-00003.safetensors", and "model.safetensors.index.json".
inline std::string file_name(const std::string& stem, size_t index = 0, size_t count = 1) {
  char part[64] = "";
  if (count > 1) std::snprintf(part, sizeof(part), "-%05zu-of-%05zu", index + 1, count);
  return stem + part + ".safetensors";
}
inline std::string index_name(const std::string& stem) { return file_name(stem) + ".index.json"; }

/// The files of a model folder.
inline const std::string single_file = file_name("model");
inline const std::string index_file = index_name("model");

struct DtypeName {
  at::ScalarType dtype;
  const char* name;
};

/// In the order in which the reference implementation writes them, widest first, so that every
/// tensor is aligned for its dtype.
constexpr DtypeName dtypes[] = {
    {at::kUInt64, "U64"},
    {at::kLong, "I64"},
    {at::kDouble, "F64"},
    {at::kFloat, "F32"},
    {at::kUInt32, "U32"},
    {at::kInt, "I32"},
    {at::kBFloat16, "BF16"},
    {at::kHalf, "F16"},
    {at::kUInt16, "U16"},
    {at::kShort, "I16"},
    {at::kFloat8_e5m2fnuz, "F8_E5M2FNUZ"},
    {at::kFloat8_e4m3fnuz, "F8_E4M3FNUZ"},
    {at::kFloat8_e8m0fnu, "F8_E8M0"},
    {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kFloat8_e5m2, "F8_E5M2"},
    {at::kChar, "I8"},
    {at::kByte, "U8"},
    {at::kBool, "BOOL"},
};

inline const DtypeName* find_dtype(at::ScalarType dtype) {
  return std::find_if(std::begin(dtypes), std::end(dtypes),
                      [&](const DtypeName& known) { return known.dtype == dtype; });
}

inline const DtypeName* find_dtype(const std::string& name) {
  return std::find_if(std::begin(dtypes), std::end(dtypes),
                      [&](const DtypeName& known) { return known.name == name; });
}

}  // namespace redco::safetensors

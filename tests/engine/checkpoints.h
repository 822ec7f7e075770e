// Helpers of the tests of checkpoints.
#pragma once

#include "files.h"

#include <redco/json.h>
#include <redco/mesh.h>
#include <redco/tree.h>

#include <ATen/ops/equal.h>
#include <doctest/doctest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <memory>
#include <string>

inline const std::shared_ptr<const redco::Mesh>& one_process() {
  static const std::shared_ptr<const redco::Mesh> mesh = redco::Mesh::make({});
  return mesh;
}

/// Fails unless both trees have the same leaves: tensors in dtype, shape and every bit.
inline void check_equal(const redco::Tree& actual, const redco::Tree& expected,
                        const std::string& path = "") {
  using redco::Tree;
  INFO("at ", path);
  REQUIRE(std::string(actual.kind()) == expected.kind());
  if (expected.is_tensor()) {
    CHECK((actual.tensor().scalar_type() == expected.tensor().scalar_type()));
    REQUIRE(actual.tensor().sizes() == expected.tensor().sizes());
    CHECK(at::equal(actual.tensor(), expected.tensor()));
  } else if (expected.is<Tree::List>()) {
    const auto &list = actual.as<Tree::List>(), &other = expected.as<Tree::List>();
    REQUIRE(list.size() == other.size());
    for (size_t i = 0; i < list.size(); ++i)
      check_equal(list[i], other[i], path + "." + std::to_string(i + 1));
  } else if (expected.is<Tree::Dict>()) {
    const auto &dict = actual.as<Tree::Dict>(), &other = expected.as<Tree::Dict>();
    REQUIRE(dict.size() == other.size());
    for (const auto& [key, value] : other) check_equal(actual.at(key), value, path + "." + key);
  } else if (expected.is<bool>()) {
    CHECK(actual.as<bool>() == expected.as<bool>());
  } else if (expected.is<int64_t>()) {
    CHECK(actual.as<int64_t>() == expected.as<int64_t>());
  } else if (expected.is<double>()) {
    CHECK(actual.as<double>() == expected.as<double>());
  } else if (expected.is<std::string>()) {
    CHECK(actual.as<std::string>() == expected.as<std::string>());
  }
}

inline std::string xxh3_of(const std::string& bytes) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(bytes.data(), bytes.size())));
  return text;
}

/// info.json with the sum that fits this object.
inline std::string sealed(std::string object) {
  object.resize(object.rfind('}'));
  return object + ",\n  \"xxh3\": \"" + xxh3_of(object + "\n}") + "\"\n}\n";
}

/// Makes the sums in info.json fit the files as they are now.
inline void sum_again(const std::string& folder) {
  std::string path = folder + "/info.json";
  redco::Tree info = redco::tree_from_json("", read_bytes(path));
  for (auto& [name, sum] : info["files"].as<redco::Tree::Dict>()) {
    std::string bytes = read_bytes(folder + "/" + name);
    sum["bytes"] = int64_t(bytes.size());
    sum["xxh3"] = xxh3_of(bytes);
  }
  info.as<redco::Tree::Dict>().erase("xxh3");
  write_bytes(path, sealed(redco::json_from_tree("", info)));
}

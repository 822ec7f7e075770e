#pragma once

#include "parquet_schema.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace redco::io {

/// Bytes that may still be used.
class MemoryBudget {
 public:
  explicit MemoryBudget(int64_t bytes) : all_(bytes), left_(bytes) {}
  /// Throws Error, beginning with `where`, if less is left.
  void take(const std::string& where, int64_t count, int64_t width = 1);
  void give_back(int64_t bytes) { left_ += bytes; }
  int64_t used() const { return all_ - left_; }

 private:
  int64_t all_, left_;
};

/// The decoded values of a leaf in a row group.
struct ParquetColumn {
  std::vector<uint8_t> definitions, repetitions;  ///< empty where the leaf's maximum is 0
  /// The level at which each row starts, and the value; empty where these are the row's number.
  std::vector<uint32_t> level_starts, value_starts;
  int64_t n_levels = 0, n_values = 0;
  std::string numbers;                  ///< of fixed size; booleans are bytes
  std::vector<std::string_view> texts;  ///< parts of `pages`
  std::vector<std::string> pages;

  bool has_value(int64_t level, const ParquetLeaf& leaf) const {
    return definitions.empty() || definitions[size_t(level)] == leaf.max_definition;
  }
};

/// Decodes the values of a leaf: `bytes` are those of its chunk, with `n_values` levels in `n_rows`
/// rows. Throws Error, beginning with `where`, if they are damaged.
ParquetColumn decode_parquet_column(const std::string& where, std::string_view bytes,
                                    const ParquetChunk& chunk, const ParquetLeaf& leaf,
                                    int64_t n_rows, MemoryBudget& budget);

}  // namespace redco::io

#pragma once

#include <redco/tree.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace redco::io {

// The names and numbers are those of
// https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift.

enum class ParquetType : uint8_t {
  boolean = 0,
  int32 = 1,
  int64 = 2,
  int96 = 3,
  float32 = 4,
  float64 = 5,
  bytes = 6,
  fixed_bytes = 7,
};

/// A column of values.
struct ParquetLeaf {
  std::string path;  ///< dotted, for errors
  ParquetType type = ParquetType::boolean;
  size_t width = 0;  ///< of a value in bytes; 0 for those of different lengths
  bool is_unsigned = false, is_float16 = false;
  std::string unread = {};  ///< a type that is not supported, or ""
  int max_definition = 0, max_repetition = 0;
};

/// A value, struct or list of the schema. Levels are those of Dremel's encoding: a value of a leaf
/// comes with its definition level, how many of the optional and repeated nodes on its path are
/// there, and its repetition level, the list in which it is not the first element.
struct ParquetNode {
  enum Kind : uint8_t { value, structure, list };

  std::string name;
  Kind kind = value;
  int definition = 0;          ///< the level from which on the node is not null
  int element_definition = 0;  ///< of a list: the level from which on it has an element
  int repetition = 0;          ///< of a list: the level of its second and later elements
  size_t first_leaf = 0, end_leaf = 0;
  std::vector<ParquetNode> children;  ///< of a list: its element
};

/// The values of a leaf in a row group.
struct ParquetChunk {
  int64_t codec = 0, n_values = 0, offset = 0, n_bytes = 0;
};

struct ParquetRowGroup {
  int64_t first_row = 0, n_rows = 0;
  std::vector<ParquetChunk> chunks;  ///< by leaf
};

struct ParquetMetadata {
  std::vector<ParquetNode> columns;
  std::vector<ParquetLeaf> leaves;
  std::vector<ParquetRowGroup> row_groups;
  std::map<std::string, std::string> texts;
};

/// Reads a file's metadata. `file_size` bounds the places of the chunks. Throws Error, beginning
/// with `where`, if they are damaged.
ParquetMetadata read_parquet_metadata(const std::string& where, std::string_view bytes,
                                      int64_t file_size);

}  // namespace redco::io

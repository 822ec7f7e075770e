#pragma once

#include <redco/export.h>
#include <redco/tree.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace redco {

/// A Parquet file whose rows are read on demand. Thread-safe. Errors name the file and the column.
///
/// A row is a dictionary of the columns: numbers, booleans and strings (bytes), dictionaries for
/// structs, lists. A list of numbers is a tensor: integers are int64, others have their own type.
/// Dates and times are the integers that are stored. A null is left out; in a list it is none.
///
/// It reads what pyarrow, Polars and DuckDB write by default: the encodings PLAIN, RLE and
/// dictionaries; no compression, Snappy, gzip and Zstandard. Decimals, 96-bit times and encrypted
/// files raise Error.
class REDCO_API ParquetFile {
 public:
  /// Reads the metadata. `columns` selects columns of the first level. At most `max_memory` bytes
  /// of decoded row groups are held; those used last stay.
  explicit ParquetFile(const std::string& path,
                       const std::optional<std::vector<std::string>>& columns = {},
                       int64_t max_memory = int64_t{1} << 32);
  ParquetFile(ParquetFile&&) noexcept;
  ~ParquetFile();

  int64_t size() const;  ///< the number of rows

  /// The selected columns, in the file's order.
  std::vector<std::string> columns() const;

  /// Texts of the writer, by key. Hugging Face datasets describes the columns under "huggingface".
  const std::map<std::string, std::string>& metadata() const;

  /// Reads row `i`, from 0. Throws Error for a damaged file.
  Tree row(int64_t i) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace redco

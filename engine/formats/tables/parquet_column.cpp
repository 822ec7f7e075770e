// The values of a column of a Parquet file: pages of levels and values.

#include "parquet_column.h"

#include "../../io/decompress.h"
#include "thrift.h"

#include <redco/error.h>

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

namespace redco::io {

namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

enum PageType : int64_t { data_page = 0, dictionary_page = 2, data_page_v2 = 3 };
enum Encoding : int64_t { plain = 0, plain_dictionary = 2, rle = 3, rle_dictionary = 8 };

const char* name_of(int64_t encoding) {
  switch (encoding) {
    case 4:
      return "BIT_PACKED";
    case 5:
      return "DELTA_BINARY_PACKED";
    case 6:
      return "DELTA_LENGTH_BYTE_ARRAY";
    case 7:
      return "DELTA_BYTE_ARRAY";
    case 9:
      return "BYTE_STREAM_SPLIT";
    default:
      return "unknown";
  }
}

struct PageHeader {
  int64_t type = -1, size = -1, compressed_size = -1, n_values = -1, encoding = -1;
  std::optional<uint32_t> crc;
  int64_t definition_encoding = rle, repetition_encoding = rle;
  int64_t definition_bytes = 0, repetition_bytes = 0;  // of version 2
  bool is_compressed = true;
};

// The fields of the three kinds of pages.
void read_page_field(ThriftReader& in, PageHeader& page, int64_t kind, int64_t field) {
  bool is_v2 = kind == 8;
  if (field == 1) page.n_values = in.read_integer();
  if (field == (is_v2 ? 4 : 2)) page.encoding = in.read_integer();
  if (kind == 5 && field == 3) page.definition_encoding = in.read_integer();
  if (kind == 5 && field == 4) page.repetition_encoding = in.read_integer();
  if (is_v2 && field == 5) page.definition_bytes = in.read_integer();
  if (is_v2 && field == 6) page.repetition_bytes = in.read_integer();
  if (is_v2 && field == 7) page.is_compressed = in.read_boolean();
}

PageHeader read_page_header(const std::string& where, std::string_view& bytes) {
  PageHeader page;
  ThriftReader in(where, bytes);
  in.read_struct([&](int64_t number) {
    switch (number) {
      case 1:
        page.type = in.read_integer();
        break;
      case 2:
        page.size = in.read_integer();
        break;
      case 3:
        page.compressed_size = in.read_integer();
        break;
      case 4:
        page.crc = uint32_t(in.read_integer());
        break;
      case 5:
      case 7:
      case 8:
        in.read_struct([&](int64_t field) { read_page_field(in, page, number, field); });
        break;
      default:
        break;
    }
  });
  bytes.remove_prefix(in.position());
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  require(page.size >= 0 && page.size <= most && page.compressed_size >= 0 &&
              page.compressed_size <= int64_t(bytes.size()),
          where, "a page is longer than its column: it is cut short or damaged");
  return page;
}

// Reads numbers of `width` bits in runs, each of one repeated number or of packed numbers
// ("RLE/Bit-Packing Hybrid" in Encodings.md of parquet-format).
template <class Take>
void read_runs(const std::string& where, std::string_view bytes, int width, int64_t count,
               Take take) {
  size_t at = 0;
  auto check = [&](bool is_right) { require(is_right, where, "a page's runs are damaged"); };
  while (count > 0) {
    uint64_t head = 0;
    for (int shift = 0;; shift += 7) {
      check(at < bytes.size() && shift < 35);
      auto byte = uint8_t(bytes[at++]);
      head |= uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    size_t left = bytes.size() - at;
    if ((head & 1) == 0) {
      auto n = std::min(int64_t(head >> 1), count);
      size_t n_bytes = size_t(width + 7) / 8;
      check(n_bytes <= left);
      uint32_t value = 0;
      std::memcpy(&value, bytes.data() + at, n_bytes);
      at += n_bytes;
      for (int64_t i = 0; i < n; ++i) take(value);
      count -= n;
      continue;
    }
    auto n = std::min(int64_t(head >> 1) * 8, count);
    check(size_t(n * width + 7) / 8 <= left);
    uint64_t held = 0, mask = (uint64_t{1} << width) - 1;
    int n_held = 0;
    size_t next = at;
    for (int64_t i = 0; i < n; ++i) {
      for (; n_held < width; n_held += 8) held |= uint64_t(uint8_t(bytes[next++])) << n_held;
      take(uint32_t(held & mask));
      held >>= width;
      n_held -= width;
    }
    at += std::min<uint64_t>((head >> 1) * uint64_t(width), left);
    count -= n;
  }
}

// Removes a part from the front of `bytes` and returns it. Without `length`, the length precedes
// the part.
std::string_view take_part(const std::string& where, std::string_view& bytes,
                           std::optional<int64_t> length = {}) {
  if (!length) {
    require(bytes.size() >= 4, where, "a page is cut short");
    uint32_t stored = 0;
    std::memcpy(&stored, bytes.data(), 4);
    bytes.remove_prefix(4);
    length = stored;
  }
  require(*length >= 0 && *length <= int64_t(bytes.size()), where, "a page is cut short");
  std::string_view part = bytes.substr(0, size_t(*length));
  bytes.remove_prefix(size_t(*length));
  return part;
}

class Decoder {
 public:
  Decoder(const std::string& where, const ParquetChunk& chunk, const ParquetLeaf& leaf,
          MemoryBudget& budget)
      : where_(where), chunk_(chunk), leaf_(leaf), budget_(budget) {}

  ParquetColumn read(std::string_view bytes, int64_t n_rows) {
    while (column_.n_levels < chunk_.n_values) {
      PageHeader page = read_page_header(where_, bytes);
      std::string_view body = bytes.substr(0, size_t(page.compressed_size));
      bytes.remove_prefix(body.size());
      if (page.crc) {
        auto sum = uint32_t(crc32_z(0, reinterpret_cast<const Bytef*>(body.data()), body.size()));
        require(sum == *page.crc, where_, "a page's CRC-32 is ", sum, ", expected ", *page.crc,
                ": the file is damaged");
      }
      if (page.type == dictionary_page)
        read_dictionary(page, body);
      else if (page.type == data_page || page.type == data_page_v2)
        read_data(page, body);
    }
    require(column_.n_levels == chunk_.n_values, where_, "its pages have more values than stated");
    find_rows(n_rows);
    return std::move(column_);
  }

 private:
  // Decompresses the bytes of a page, and keeps them until `drop_numbers` or, for texts, as long as
  // the column lives.
  std::string_view keep(std::string_view stored, int64_t size, bool is_compressed) {
    budget_.take(where_, size);
    auto n = size_t(size);
    std::string bytes;
    // Some writers store nothing for a page without bytes, not even an empty compressed block.
    switch (is_compressed && !stored.empty() ? chunk_.codec : 0) {
      case 0:
        require(stored.size() == n, where_, "a page has ", stored.size(), " bytes, expected ", n);
        bytes = stored;
        break;
      case 1:
        bytes = decompress_snappy(where_, stored, n);
        break;
      case 2:
        bytes = decompress_gzip(where_, stored, n);
        break;
      case 6:
        bytes = decompress_zstd(where_, stored, n);
        break;
      default:
        fail(where_, "its compression is method ", chunk_.codec,
             " (LZO 3, Brotli 4, LZ4 5 or 7), which is not supported, only Snappy, gzip and "
             "Zstandard: write the file again");
    }
    // The bytes must not move when the list grows, as those of a short string would.
    if (bytes.size() < 64) bytes.reserve(64);
    column_.pages.push_back(std::move(bytes));
    return {column_.pages.back().data(), n};
  }

  // Texts are parts of the pages; numbers are copied.
  void drop_numbers() {
    if (is_text()) return;
    for (const std::string& page : column_.pages) budget_.give_back(int64_t(page.size()));
    column_.pages.clear();
  }

  bool is_text() const {
    return leaf_.type == ParquetType::bytes ||
           (leaf_.type == ParquetType::fixed_bytes && !leaf_.is_float16);
  }

  // Appends `n` values in the encoding PLAIN.
  void read_plain(std::string_view bytes, int64_t n, std::string& numbers,
                  std::vector<std::string_view>& texts) {
    budget_.take(where_, n, is_text() ? int64_t(sizeof(std::string_view)) : int64_t(leaf_.width));
    if (leaf_.type == ParquetType::boolean) {
      require(n <= int64_t(bytes.size()) * 8, where_, "a page is cut short");
      for (int64_t i = 0; i < n; ++i)
        numbers.push_back(char(uint8_t(bytes[size_t(i) / 8]) >> (i % 8) & 1));
    } else if (is_text()) {
      std::optional<int64_t> width;
      if (leaf_.width != 0) width = int64_t(leaf_.width);
      for (int64_t i = 0; i < n; ++i) texts.push_back(take_part(where_, bytes, width));
    } else {
      require(n <= int64_t(bytes.size() / leaf_.width), where_, "a page is cut short");
      numbers.append(bytes.substr(0, size_t(n) * leaf_.width));
    }
  }

  void read_dictionary(const PageHeader& page, std::string_view body) {
    require(!has_dictionary_ && page.n_values >= 0, where_, "it has two dictionaries");
    require(page.encoding == plain || page.encoding == plain_dictionary, where_,
            "the encoding of its dictionary is ", name_of(page.encoding));
    has_dictionary_ = true;
    read_plain(keep(body, page.size, true), page.n_values, dictionary_numbers_, dictionary_texts_);
    drop_numbers();
  }

  void read_data(const PageHeader& page, std::string_view body) {
    int64_t left = chunk_.n_values - column_.n_levels;
    require(page.n_values >= 0 && page.n_values <= left, where_,
            "its pages have more values than stated");
    require(page.definition_encoding == rle && page.repetition_encoding == rle, where_,
            "its levels have the encoding BIT_PACKED, which is not supported");
    bool is_v2 = page.type == data_page_v2;
    std::string_view rest;
    std::optional<int64_t> repetition_bytes, definition_bytes;
    std::string_view levels;
    if (is_v2) {  // its levels are not compressed
      repetition_bytes = page.repetition_bytes;
      definition_bytes = page.definition_bytes;
      int64_t n = page.repetition_bytes + page.definition_bytes;
      require(page.repetition_bytes >= 0 && page.definition_bytes >= 0 && n <= page.size, where_,
              "a page is cut short");
      levels = take_part(where_, body, n);
      rest = keep(body, page.size - n, page.is_compressed);
    } else {
      rest = keep(body, page.size, true);
    }
    std::string_view& source = is_v2 ? levels : rest;
    read_levels(source, repetition_bytes, leaf_.max_repetition, page.n_values, column_.repetitions);
    read_levels(source, definition_bytes, leaf_.max_definition, page.n_values, column_.definitions);
    int64_t n_values = page.n_values;
    if (leaf_.max_definition > 0)
      n_values = std::count(column_.definitions.end() - page.n_values, column_.definitions.end(),
                            uint8_t(leaf_.max_definition));
    column_.n_levels += page.n_values;
    column_.n_values += n_values;
    read_values(page.encoding, rest, n_values);
    drop_numbers();
  }

  void read_levels(std::string_view& bytes, std::optional<int64_t> length, int max, int64_t n,
                   std::vector<uint8_t>& levels) {
    if (max == 0) return;
    budget_.take(where_, n);
    std::string_view part = take_part(where_, bytes, length);
    read_runs(where_, part, std::bit_width(unsigned(max)), n, [&](uint32_t level) {
      require(level <= uint32_t(max), where_, "a level is ", level, ", expected at most ", max);
      levels.push_back(uint8_t(level));
    });
  }

  void read_values(int64_t encoding, std::string_view bytes, int64_t n) {
    if (encoding == plain) {
      read_plain(bytes, n, column_.numbers, column_.texts);
    } else if (encoding == plain_dictionary || encoding == rle_dictionary) {
      read_indices(bytes, n);
    } else if (encoding == rle && leaf_.type == ParquetType::boolean) {
      budget_.take(where_, n);
      read_runs(where_, take_part(where_, bytes), 1, n,
                [&](uint32_t value) { column_.numbers.push_back(char(value)); });
    } else {
      fail(where_, "its encoding is ", name_of(encoding),
           ", which is not supported, only PLAIN and dictionaries: write the file again");
    }
  }

  void read_indices(std::string_view bytes, int64_t n) {
    if (n == 0) return;
    require(has_dictionary_, where_, "it has no dictionary");
    require(!bytes.empty(), where_, "a page is cut short");
    int width = uint8_t(bytes[0]);
    require(width <= 32, where_, "its dictionary has indices of ", width, " bits");
    bytes.remove_prefix(1);
    auto check = [&](size_t index, size_t size) {
      require(index < size, where_, "the index ", index, " is beyond the end of its dictionary of ",
              size);
    };
    if (is_text()) {
      budget_.take(where_, n, sizeof(std::string_view));
      read_runs(where_, bytes, width, n, [&](uint32_t index) {
        check(index, dictionary_texts_.size());
        column_.texts.push_back(dictionary_texts_[index]);
      });
      return;
    }
    budget_.take(where_, n, int64_t(leaf_.width));
    size_t size = dictionary_numbers_.size() / leaf_.width;
    read_runs(where_, bytes, width, n, [&](uint32_t index) {
      check(index, size);
      column_.numbers.append(dictionary_numbers_, index * leaf_.width, leaf_.width);
    });
  }

  // Where each row starts.
  void find_rows(int64_t n_rows) {
    if (leaf_.max_definition == 0) {  // and no list
      require(column_.n_levels == n_rows, where_, "it has ", column_.n_levels, " values in ",
              n_rows, " rows");
      return;
    }
    bool has_lists = leaf_.max_repetition > 0;
    require(n_rows <= column_.n_levels, where_, "it has ", column_.n_levels, " values in ", n_rows,
            " rows");
    budget_.take(where_, n_rows, has_lists ? 8 : 4);
    uint32_t value = 0;
    for (int64_t level = 0; level < column_.n_levels; ++level) {
      bool is_start = !has_lists || column_.repetitions[size_t(level)] == 0;
      require(level > 0 || is_start, where_, "its first row starts inside a list");
      if (is_start) column_.value_starts.push_back(value);
      if (is_start && has_lists) column_.level_starts.push_back(uint32_t(level));
      if (column_.has_value(level, leaf_)) ++value;
    }
    require(int64_t(column_.value_starts.size()) == n_rows, where_, "it has ",
            column_.value_starts.size(), " rows, expected ", n_rows);
  }

  const std::string& where_;
  const ParquetChunk& chunk_;
  const ParquetLeaf& leaf_;
  MemoryBudget& budget_;
  ParquetColumn column_;
  bool has_dictionary_ = false;
  std::string dictionary_numbers_;
  std::vector<std::string_view> dictionary_texts_;
};

}  // namespace

void MemoryBudget::take(const std::string& where, int64_t count, int64_t width) {
  require(count <= left_ / width, where, "its row groups need more than the ", all_,
          " bytes of max_memory: raise it, or write smaller row groups");
  left_ -= count * width;
}

ParquetColumn decode_parquet_column(const std::string& where, std::string_view bytes,
                                    const ParquetChunk& chunk, const ParquetLeaf& leaf,
                                    int64_t n_rows, MemoryBudget& budget) {
  require(leaf.unread.empty(), where, "it has ", leaf.unread,
          ", which are not supported: select other columns");
  constexpr int64_t most = std::numeric_limits<uint32_t>::max();
  require(chunk.n_values <= most, where, "a row group has more than ", most, " values");
  return Decoder(where, chunk, leaf, budget).read(bytes, n_rows);
}

}  // namespace redco::io

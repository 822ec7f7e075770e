// Reads GGUF files.

#include <redco/gguf.h>

#include "../../io/input_file.h"
#include "../../io/strict_json.h"
#include "ggml_types.h"
#include "gguf_format.h"
#include "mapped_tensor.h"

#include <redco/error.h>
#include <redco/quantized.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

namespace redco {

using namespace gguf;
using namespace io;

namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// Limits memory: a value takes many times its file size in memory. The largest vocabularies have a
// million values.
constexpr uint64_t max_metadata_values = 1 << 24;
constexpr int max_list_depth = 8;
constexpr uint32_t max_ggml_dimensions = 4;  // as in ggml

// The minimum bytes of a value, by type.
constexpr size_t least_value_bytes[n_value_types] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

// Reads the bytes before the data in order.
class GgufReader {
 public:
  GgufReader(const std::string& path, const std::byte* bytes, size_t size)
      : path_(path), where_(path + ": "), bytes_(bytes), size_(size) {}

  size_t position() const { return position_; }

  template <class T>
  T number(const char* what) {
    T value{};
    std::memcpy(&value, take(sizeof(T), what), sizeof(T));
    return value;
  }

  // A count of items of at least `least_bytes` each, which must fit into the rest of the file.
  uint64_t count(const char* what, size_t least_bytes) {
    auto count = number<uint64_t>(what);
    require(count <= (size_ - position_) / least_bytes, where_, what, " is ", count,
            ", more than fit into the ", size_ - position_, " bytes that follow");
    return count;
  }

  std::string string(const char* what) {
    uint64_t length = count(what, 1);
    return {reinterpret_cast<const char*>(take(length, what)), length};
  }

  Tree value(const std::string& key) {
    where_ = path_ + ": key " + in_quotes(key) + ": ";
    Tree result = value(number<uint32_t>("the type of the value"), 0);
    where_ = path_ + ": ";
    return result;
  }

 private:
  const std::byte* take(size_t size, const char* what) {
    require(size <= size_ - position_, where_, "the file ends within ", what,
            ": it is cut short or not GGUF");
    const std::byte* begin = bytes_ + position_;
    position_ += size;
    return begin;
  }

  template <class T>
  Tree integer() {
    auto value = number<T>("a number");
    if constexpr (std::is_same_v<T, uint64_t>)
      require(value <= uint64_t{std::numeric_limits<int64_t>::max()}, where_, "the integer ", value,
              " is beyond 2^63-1");
    return int64_t(value);
  }

  Tree value(uint32_t type, int depth) {
    require(++n_values_ <= max_metadata_values, where_, "more than ", max_metadata_values,
            " values in the metadata");
    switch (type) {
      case kUint8:
        return integer<uint8_t>();
      case kInt8:
        return integer<int8_t>();
      case kUint16:
        return integer<uint16_t>();
      case kInt16:
        return integer<int16_t>();
      case kUint32:
        return integer<uint32_t>();
      case kInt32:
        return integer<int32_t>();
      case kUint64:
        return integer<uint64_t>();
      case kInt64:
        return integer<int64_t>();
      case kFloat32:
        return double{number<float>("a number")};
      case kFloat64:
        return number<double>("a number");
      case kString:
        return string("a string");
      case kBool: {
        auto byte = number<uint8_t>("a boolean");
        require(byte <= 1, where_, "the boolean is ", int{byte}, ", expected 0 or 1");
        return byte == 1;
      }
      case kArray:
        return list(depth + 1);
      default:
        fail(where_, "unknown type of value ", type, ", expected 0 to ", n_value_types - 1);
    }
  }

  Tree list(int depth) {
    require(depth <= max_list_depth, where_, "lists nested deeper than ", max_list_depth,
            " levels");
    auto type = number<uint32_t>("the type of a list");
    require(type < n_value_types, where_, "unknown type of list ", type, ", expected 0 to ",
            n_value_types - 1);
    uint64_t length = count("the length of a list", least_value_bytes[type]);
    require(length <= max_metadata_values, where_, "a list of ", length,
            " values, expected at most ", max_metadata_values);
    Tree::List values;
    values.reserve(length);
    for (uint64_t i = 0; i < length; ++i) values.push_back(value(type, depth));
    return values;
  }

  std::string path_;
  std::string where_;  ///< the prefix of errors
  const std::byte* bytes_;
  size_t size_;
  size_t position_ = 0;
  uint64_t n_values_ = 0;
};

bool align(uint64_t& offset, uint64_t alignment) {
  if (__builtin_add_overflow(offset, alignment - 1, &offset)) return false;
  offset -= offset % alignment;
  return true;
}

// The bytes of a tensor of `sizes`, in PyTorch's order.
uint64_t bytes_of(const std::string& where, const ggml::Type& type,
                  const std::vector<int64_t>& sizes) {
  int64_t last = sizes.empty() ? 1 : sizes.back();
  require(last % type.block_size == 0, where, "the last dimension is ", last,
          ", expected a multiple of ", type.block_size, ", the block of ", type.name);
  // Checks overflow for float32, the larger type. Zeros are skipped, since strides are products of
  // the other sizes.
  int64_t widest = 4;
  bool is_empty = false;
  for (int64_t size : sizes) {
    require(!__builtin_mul_overflow(widest, std::max<int64_t>(size, 1), &widest), where,
            "the sizes have a product beyond 2^63-1");
    is_empty = is_empty || size == 0;
  }
  return is_empty ? 0 : uint64_t(widest / 4 / type.block_size * type.block_bytes);
}

}  // namespace

GgufFile::GgufFile(const std::string& path) : path_(path) {
  InputFile file(path, "a GGUF file");
  require(file.size() >= 24, path, ": the file has ", file.size(),
          " bytes, expected at least the 24 of GGUF's header");
  std::shared_ptr<std::byte> mapping = file.map();
  size_t begin = parse(mapping.get(), file.size());
  data_ = std::shared_ptr<std::byte>(mapping, mapping.get() + begin);
}

size_t GgufFile::parse(const std::byte* bytes, size_t size) {
  require(std::memcmp(bytes, "GGUF", 4) == 0, path_, ": the file does not begin with GGUF");
  GgufReader reader(path_, bytes, size);
  reader.number<uint32_t>("the magic");
  auto version = reader.number<uint32_t>("the version");
  require(version == 2 || version == 3, path_, ": GGUF version ", version, ", expected 2 or 3",
          version > 0xFFFF ? "; the file is big-endian, which is not read" : "");
  auto n_tensors = reader.count("the number of tensors", 24);
  auto n_keys = reader.count("the number of keys", 13);

  for (uint64_t i = 0; i < n_keys; ++i) {
    std::string key = reader.string("a key");
    Tree value = reader.value(key);
    bool is_new = metadata_.emplace(key, std::move(value)).second;
    require(is_new, path_, ": the key ", in_quotes(key), " is there twice, expected once");
  }
  uint64_t alignment = default_alignment;
  if (auto given = metadata_.find("general.alignment"); given != metadata_.end()) {
    const Tree& value = given->second;
    require(value.is<int64_t>() && value.as<int64_t>() > 0 &&
                std::has_single_bit(uint64_t(value.as<int64_t>())),
            path_, ": general.alignment is not a power of two");
    alignment = uint64_t(value.as<int64_t>());
  }

  uint64_t end = 0;  // of the tensors so far
  for (uint64_t i = 0; i < n_tensors; ++i) {
    std::string name = reader.string("the name of a tensor");
    std::string where = path_ + ": tensor " + in_quotes(name) + ": ";
    auto n_dims = reader.number<uint32_t>("the number of dimensions");
    require(n_dims <= max_ggml_dimensions, where, n_dims, " dimensions, expected at most ",
            max_ggml_dimensions);
    Entry entry{0, std::vector<int64_t>(n_dims), 0};
    for (uint32_t dim = n_dims; dim-- > 0;) {
      auto length = reader.number<uint64_t>("the size of a dimension");
      require(length <= uint64_t{std::numeric_limits<int64_t>::max()}, where, "a dimension has ",
              length, " elements, expected at most 2^63-1");
      entry.shape[dim] = int64_t(length);
    }
    entry.type = reader.number<uint32_t>("the type of a tensor");
    const std::optional<ggml::Type> type = ggml::find_type(entry.type);
    require(type.has_value(), where, "the type ", ggml::type_name(entry.type),
            " is not read, expected one of ", ggml::known_types(),
            "; llama-quantize of llama.cpp makes such files");
    auto offset = reader.number<uint64_t>("the offset of a tensor");
    require(offset == end, where, "begins at byte ", offset, " of the data, expected ", end,
            ", the next multiple of ", alignment, " after the tensor before");
    entry.begin = offset;
    require(!__builtin_add_overflow(end, bytes_of(where, *type, entry.shape), &end) &&
                align(end, alignment),
            where, "ends beyond 2^64 bytes");
    require(entries_.emplace(name, std::move(entry)).second, where,
            "is there twice, expected once");
  }

  uint64_t begin = reader.position();
  require(align(begin, alignment) && (n_tensors == 0 || begin <= size), path_,
          ": the file ends before the data");
  if (n_tensors == 0) return std::min<uint64_t>(begin, size);
  uint64_t data_size = size - begin;
  // The last tensor may lack its padding.
  for (const auto& [name, entry] : entries_) {
    const std::optional<ggml::Type> type = ggml::find_type(entry.type);
    uint64_t bytes_there = data_size - std::min<uint64_t>(entry.begin, data_size);
    uint64_t expected = bytes_of("", *type, entry.shape);
    require(expected <= bytes_there, path_, ": tensor ", in_quotes(name), ": has ", expected,
            " bytes from byte ", entry.begin, " of the data, which has ", data_size,
            ": the file is cut short");
  }
  require(data_size <= end, path_, ": the data has ", data_size, " bytes, expected at most ", end,
          ", where the last tensor ends");
  return begin;
}

std::vector<std::string> GgufFile::keys() const {
  std::vector<std::string> names;
  for (const auto& [name, _] : entries_) names.push_back(name);
  return names;
}

const GgufFile::Entry& GgufFile::entry(const std::string& name) const {
  auto found = entries_.find(name);
  if (found != entries_.end()) return found->second;
  std::string near = nearest(name, keys());
  fail(path_, ": no tensor ", in_quotes(name), " among the ", entries_.size(), " of this file",
       near.empty() ? "" : "; the nearest is " + in_quotes(near));
}

at::ScalarType GgufFile::dtype(const std::string& name) const {
  return ggml::find_type(entry(name).type)->dtype;
}

at::Tensor GgufFile::tensor(const std::string& name) const {
  if (quantized_type(name) != nullptr) return dequantize(blocks(name), quantized_type(name));
  const Entry& found = entry(name);
  const ggml::Type type = *ggml::find_type(found.type);
  std::byte* begin = data_.get() + found.begin;
  bool is_aligned = reinterpret_cast<uintptr_t>(begin) % c10::elementSize(type.dtype) == 0;
  if (is_aligned) return mapped_tensor(data_, begin, found.shape, type.dtype);
  at::Tensor result = at::empty(found.shape, type.dtype);
  if (result.nbytes() > 0) std::memcpy(result.mutable_data_ptr(), begin, result.nbytes());
  return result;
}

const char* GgufFile::quantized_type(const std::string& name) const {
  return ggml::find_type(entry(name).type)->quantized;
}

at::Tensor GgufFile::blocks(const std::string& name) const {
  const Entry& found = entry(name);
  const ggml::Type type = *ggml::find_type(found.type);
  require(type.quantized != nullptr, path_, ": tensor ", in_quotes(name), " is ", type.name,
          ", which is not quantized");
  std::vector<int64_t> shape = found.shape;
  shape.back() /= type.block_size;
  shape.push_back(type.block_bytes);
  return mapped_tensor(data_, data_.get() + found.begin, shape, at::kByte);
}

}  // namespace redco

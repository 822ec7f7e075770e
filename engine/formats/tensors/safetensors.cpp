// Reads safetensors files.

#include <redco/safetensors.h>

#include "../../io/input_file.h"
#include "../../io/strict_json.h"
#include "mapped_tensor.h"
#include "safetensors_format.h"
#include "torch_file.h"

#include <redco/error.h>

#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

namespace redco {

using namespace io;

namespace {

using nlohmann::json;
using namespace safetensors;

static_assert(std::endian::native == std::endian::little,
              "the data of the format is little-endian");

// Reads an integer from 0 to the largest int64; returns false for any other value.
bool get_size(const json& value, int64_t& size) {
  if (!value.is_number_unsigned()) return false;
  auto number = value.get<uint64_t>();
  if (number > uint64_t(std::numeric_limits<int64_t>::max())) return false;
  size = int64_t(number);
  return true;
}

std::vector<int64_t> get_sizes(const std::string& where, const char* field, const json& list) {
  require(list.is_array(), where, field, " is ", excerpt(list.dump()), ", expected a list");
  std::vector<int64_t> sizes(list.size());
  for (size_t i = 0; i < sizes.size(); ++i)
    if (!get_size(list[i], sizes[i]))
      fail(where, field, " has ", excerpt(list[i].dump()), " at ", i,
           ", expected an integer from 0 to 2^63-1");
  return sizes;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  InputFile file(path, "a safetensors file");
  uint64_t file_size = file.size();
  uint64_t header_size = 0;
  require(file_size >= sizeof(header_size), path, ": the file has ", file_size,
          " bytes, expected at least the 8 of the header's length");
  file.read(&header_size, sizeof(header_size), 0);
  require(header_size >= 2, path, ": the header's length is ", header_size,
          " bytes, expected at least the 2 of {}");
  require(!TorchFile::is_one(header_size), path,
          ": this file was written by PyTorch's torch.save, expected safetensors");
  constexpr uint64_t version_ = 0x206e6f6973726576;  // "version "
  require(header_size != version_, path,
          ": a pointer of Git LFS, without the weights: `git lfs pull` fetches them");
  require(header_size <= max_header, path, ": the header's length is ", header_size,
          " bytes, expected at most ", max_header, "; this is not a safetensors file");
  uint64_t begin = sizeof(header_size) + header_size;
  require(begin <= file_size, path, ": the header's length is ", header_size, " bytes, but only ",
          file_size - sizeof(header_size), " follow: the file is cut short");
  std::string header(header_size, '\0');
  file.read(header.data(), header.size(), sizeof(header_size));
  parse_header(header, file_size - begin);

  data_begin_ = begin;
  std::shared_ptr<std::byte> mapping = file.map();
  data_ = std::shared_ptr<std::byte>(mapping, mapping.get() + begin);
}

void SafetensorsFile::parse_header(std::string_view header, size_t data_size) {
  require(header.front() == '{', path_, ": the header starts with byte ",
          int{static_cast<unsigned char>(header.front())}, ", expected 123, which is '{'");

  auto add_metadata = [&](const json& values) {
    if (!values.is_object())
      fail(path_, ": ", metadata_key, " is ", excerpt(values.dump()),
           ", expected an object of strings");
    for (const auto& [key, value] : values.items()) {
      if (!value.is_string())
        fail(path_, ": ", metadata_key, " has ", excerpt(value.dump()), " under ", in_quotes(key),
             ", expected a string");
      metadata_[key] = value.get<std::string>();
    }
  };
  auto add_tensor = [&](const std::string& name, const json& info) {
    std::string where = path_ + ": tensor " + in_quotes(name) + ": ";
    require(info.is_object(), where, "is ", excerpt(info.dump()),
            ", expected an object with dtype, shape and data_offsets");
    for (const char* field : {"dtype", "shape", "data_offsets"})
      require(info.contains(field), where, "the field ", field, " is missing");

    const json& dtype_name = info["dtype"];
    require(dtype_name.is_string(), where, "dtype is ", excerpt(dtype_name.dump()),
            ", expected a string");
    const DtypeName* dtype = find_dtype(dtype_name.get<std::string>());
    if (dtype == std::end(dtypes)) {
      std::string names;
      for (const DtypeName& known : dtypes) names += std::string(" ") + known.name;
      fail(where, "unknown dtype ", in_quotes(dtype_name.get<std::string>()), ", expected one of",
           names);
    }

    Entry entry{dtype->dtype, get_sizes(where, "shape", info["shape"]), 0, 0};
    // Zeros are skipped in the product: strides are products of the other sizes.
    auto item_size = int64_t(c10::elementSize(entry.dtype));
    int64_t widest = item_size;
    bool empty = false;
    for (int64_t size : entry.shape) {
      require(!__builtin_mul_overflow(widest, std::max<int64_t>(size, 1), &widest), where, "shape ",
              excerpt(info["shape"].dump()), " has more than 2^63-1 bytes");
      empty = empty || size == 0;
    }
    auto expected = size_t(empty ? 0 : widest);

    std::vector<int64_t> offsets = get_sizes(where, "data_offsets", info["data_offsets"]);
    require(offsets.size() == 2, where, "data_offsets has ", offsets.size(),
            " numbers, expected 2: begin and end");
    entry.begin = size_t(offsets[0]);
    entry.end = size_t(offsets[1]);
    require(entry.begin <= entry.end, where, "begins at byte ", entry.begin, " and ends at byte ",
            entry.end, ", expected the end after the beginning");
    require(entry.end <= data_size, where, "ends at byte ", entry.end, " of the data, which has ",
            data_size, " bytes: the file is cut short or its offsets are wrong");
    require(entry.end - entry.begin == expected, where, "has ", entry.end - entry.begin,
            " bytes, expected ", expected, " for ", dtype->name, " ",
            excerpt(info["shape"].dump()));
    entries_.emplace(name, std::move(entry));
  };

  // Each tensor is dropped from the document once it is read, so that memory stays near the
  // header's size.
  std::string name;
  size_t length = 0;
  auto take = [&](int depth, json::parse_event_t event, json& value) {
    using Event = json::parse_event_t;
    if (event == Event::array_start) length = 0;
    if (event == Event::value && depth == 3)
      require(++length <= max_dimensions, path_, ": tensor ", in_quotes(name),
              ": a list of more than ", max_dimensions,
              " numbers, expected at most as many dimensions");
    if (depth != 1) return true;
    if (event == Event::key) name = value.get<std::string>();
    require(event != Event::array_start, path_, ": ", in_quotes(name),
            " is a list, expected an object");
    if (event != Event::value && event != Event::object_end) return true;
    name == metadata_key ? add_metadata(value) : add_tensor(name, value);
    return false;
  };
  parse_json(path_ + ": the header: ", header, 3, take);

  std::vector<std::tuple<size_t, size_t, const std::string*>> order;
  for (const auto& [key, entry] : entries_) order.emplace_back(entry.begin, entry.end, &key);
  std::sort(order.begin(), order.end());
  size_t end = 0;
  for (const auto& [entry_begin, entry_end, key] : order) {
    require(entry_begin == end, path_, ": tensor ", in_quotes(*key), " begins at byte ",
            entry_begin, " of the data, expected ", end, ", where the one before ends: ",
            entry_begin < end ? "they overlap" : "there is a hole");
    end = entry_end;
  }
  require(end == data_size, path_, ": the data has ", data_size, " bytes, expected ", end,
          ", where the last tensor ends");
}

std::vector<std::string> SafetensorsFile::keys() const {
  std::vector<std::string> names;
  for (const auto& [name, _] : entries_) names.push_back(name);
  return names;
}

const SafetensorsFile::Entry& SafetensorsFile::entry(const std::string& name) const {
  auto found = entries_.find(name);
  if (found != entries_.end()) return found->second;
  std::string near = nearest(name, keys());
  fail(path_, ": no tensor ", in_quotes(name), " among the ", entries_.size(), " of this file",
       near.empty() ? "" : "; the nearest is " + in_quotes(near));
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const Entry& found = entry(name);
  std::byte* begin = data_.get() + found.begin;
  size_t size = found.end - found.begin;
  if (found.dtype == at::kBool) {
    const std::byte* wrong =
        std::find_if(begin, begin + size, [](std::byte value) { return value > std::byte{1}; });
    if (wrong != begin + size)
      fail(path_, ": tensor ", in_quotes(name), ": the boolean at ", wrong - begin, " is ",
           int(*wrong), ", expected 0 or 1");
  }
  if (reinterpret_cast<uintptr_t>(begin) % c10::elementSize(found.dtype) == 0)
    return mapped_tensor(data_, begin, found.shape, found.dtype);
  at::Tensor copy = at::empty(found.shape, found.dtype);
  if (size > 0) std::memcpy(copy.mutable_data_ptr(), begin, size);
  return copy;
}

}  // namespace redco

// GGUF files, written here byte by byte.
#include <redco/gguf.h>

#include "files.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <c10/util/Half.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

using redco::GgufFile;
using redco::Tree;

namespace {

template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}
std::string u32(uint64_t value) { return raw(uint32_t(value)); }
std::string u64(uint64_t value) { return raw(value); }
std::string text(const std::string& value) { return u64(value.size()) + value; }

enum : uint32_t { f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q8_0 = 8, bf16 = 30 };

std::string head(uint64_t n_tensors, uint64_t n_keys, uint32_t version = 3) {
  return "GGUF" + u32(version) + u64(n_tensors) + u64(n_keys);
}
std::string pair(const std::string& key, uint32_t type, const std::string& value) {
  return text(key) + u32(type) + value;
}
// Dimensions in the file's order.
std::string tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                   uint64_t offset) {
  std::string all = text(name) + u32(dims.size());
  for (uint64_t dim : dims) all += u64(dim);
  return all + u32(type) + u64(offset);
}
std::string padded(std::string bytes, size_t alignment = 32) {
  bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
  return bytes;
}
std::string half(float value) { return raw(c10::Half(value).x); }

}  // namespace

TEST_CASE("metadata of every type") {
  Folder folder;
  double infinity = std::numeric_limits<double>::infinity();
  std::string strings = u32(8) + u64(3) + text("a") + text("") + text("\xFF");
  std::string nested = u32(9) + u64(2) + u32(0) + u64(2) + "\1\2" + u32(7) + u64(1) + "\1";
  const std::vector<std::tuple<uint32_t, std::string, Tree>> values = {
      {0, raw<uint8_t>(255), 255},
      {1, raw<int8_t>(-128), -128},
      {2, raw<uint16_t>(65535), 65535},
      {3, raw<int16_t>(-32768), -32768},
      {4, raw<uint32_t>(4294967295), int64_t{4294967295}},
      {5, raw<int32_t>(-5), -5},
      {6, raw<float>(0.1f), double{0.1f}},
      {7, std::string(1, '\0'), false},
      {7, "\1", true},
      {8, text("текст"), "текст"},
      {9, strings, Tree::List{"a", "", "\xFF"}},
      {9, nested, Tree::List{Tree::List{1, 2}, Tree::List{true}}},
      {9, u32(6) + u64(0), Tree::List{}},
      {10, u64(9223372036854775807u), std::numeric_limits<int64_t>::max()},
      {11, raw<int64_t>(-1), -1},
      {12, raw(-infinity), -infinity},
  };
  std::string bytes = head(0, values.size(), 2);
  for (size_t i = 0; i < values.size(); ++i)
    bytes += pair("key." + std::to_string(i), std::get<0>(values[i]), std::get<1>(values[i]));
  write_bytes(folder / "a.gguf", bytes);
  GgufFile file(folder / "a.gguf");
  CHECK(file.keys().empty());
  CHECK(file.metadata().size() == values.size());
  std::function<void(const Tree&, const Tree&)> check = [&](const Tree& given, const Tree& wanted) {
    REQUIRE(std::string(given.kind()) == wanted.kind());
    if (wanted.is<int64_t>()) CHECK(given.as<int64_t>() == wanted.as<int64_t>());
    if (wanted.is<double>()) CHECK(given.as<double>() == wanted.as<double>());
    if (wanted.is<bool>()) CHECK(given.as<bool>() == wanted.as<bool>());
    if (wanted.is<std::string>()) CHECK(given.as<std::string>() == wanted.as<std::string>());
    if (!wanted.is<Tree::List>()) return;
    REQUIRE(given.as<Tree::List>().size() == wanted.as<Tree::List>().size());
    for (size_t i = 0; i < wanted.as<Tree::List>().size(); ++i)
      check(given.as<Tree::List>()[i], wanted.as<Tree::List>()[i]);
  };
  for (size_t i = 0; i < values.size(); ++i) {
    CAPTURE(i);
    check(file.metadata().at("key." + std::to_string(i)), std::get<2>(values[i]));
  }
}

TEST_CASE("plain tensors are mapped, in PyTorch's order of dimensions") {
  Folder folder;
  std::string first, data;
  for (int i = 0; i < 6; ++i) first += raw(float(i));
  for (const std::string& part :
       {first, half(1.5f) + half(-2), raw<uint16_t>(0x3FC0), raw<float>(7), std::string()})
    data += padded(part, 64);
  std::string infos = tensor("matrix", {3, 2}, f32, 0) + tensor("half", {2}, f16, 64) +
                      tensor("bfloat", {1, 1, 1}, bf16, 128) + tensor("scalar", {}, f32, 192) +
                      tensor("empty", {4, 0}, f32, 256);
  std::string start = head(5, 1) + pair("general.alignment", 4, u32(64)) + infos;
  write_bytes(folder / "a.gguf", padded(start, 64) + data);
  at::Tensor matrix, again;
  {
    GgufFile file(folder / "a.gguf");
    CHECK(file.keys() == std::vector<std::string>{"bfloat", "empty", "half", "matrix", "scalar"});
    matrix = file.tensor("matrix");
    again = file.tensor("matrix");
    CHECK(matrix.sizes() == at::IntArrayRef({2, 3}));
    CHECK(file.tensor("half")[1].item<float>() == -2);
    CHECK((file.dtype("half") == at::kHalf));
    CHECK(file.tensor("bfloat").item<float>() == 1.5f);
    CHECK(file.tensor("bfloat").dim() == 3);
    CHECK(file.tensor("scalar").dim() == 0);
    CHECK(file.tensor("scalar").item<float>() == 7);
    CHECK(file.tensor("empty").sizes() == at::IntArrayRef({0, 4}));
    check_contains(message_of([&] { file.tensor("matrx"); }), "the nearest is 'matrix'");
  }
  CHECK(matrix.const_data_ptr() == again.const_data_ptr());
  for (int64_t i = 0; i < 6; ++i) CHECK(matrix[i / 3][i % 3].item<float>() == float(i));
}

TEST_CASE("quantised tensors are what the formulas say") {
  Folder folder;
  constexpr int64_t blocks = 6, size = 32;
  std::string q4_0_data, q4_1_data, q8_0_data;
  at::Tensor wanted_4_0 = at::empty({blocks * size}), wanted_4_1 = at::empty({blocks * size}),
             wanted_8_0 = at::empty({blocks * size});
  uint32_t state = 1;
  auto random = [&] { return uint8_t((state = state * 1664525 + 1013904223) >> 24); };
  for (int64_t block = 0; block < blocks; ++block) {
    float scale = c10::Half(0.37f * float(block) - 0.9f), least = c10::Half(-1.3f + float(block));
    q4_0_data += half(scale);
    q4_1_data += half(scale) + half(least);
    q8_0_data += half(scale);
    std::vector<uint8_t> nibbles(size);
    for (int64_t i = 0; i < size; ++i) {
      nibbles[size_t(i)] = random() % 16;
      auto byte = int8_t(random());
      q8_0_data += char(byte);
      float q = nibbles[size_t(i)];
      wanted_4_0[block * size + i] = (q - 8) * scale;
      wanted_4_1[block * size + i] = q * scale + least;
      wanted_8_0[block * size + i] = float(byte) * scale;
    }
    for (size_t i = 0; i < size / 2; ++i) {
      auto both = char(nibbles[i] | nibbles[i + size / 2] << 4);
      q4_0_data += both;
      q4_1_data += both;
    }
  }
  std::string data;
  std::string infos;
  for (const auto& [name, type, bytes] : {std::tuple("q4_0", q4_0, q4_0_data),
                                          {"q4_1", q4_1, q4_1_data},
                                          {"q8_0", q8_0, q8_0_data}}) {
    infos += tensor(name, {64, 3}, type, data.size());
    data = padded(data + bytes);
  }
  write_bytes(folder / "a.gguf", padded(head(3, 0) + infos) + data);
  GgufFile file(folder / "a.gguf");
  for (const auto& [name, wanted] :
       {std::pair("q4_0", wanted_4_0), {"q4_1", wanted_4_1}, {"q8_0", wanted_8_0}}) {
    CAPTURE(std::string(name));
    CHECK((file.dtype(name) == at::kFloat));
    CHECK(file.shape(name) == std::vector<int64_t>{3, 64});
    CHECK(at::equal(file.tensor(name), wanted.view({3, 64})));
  }
}

namespace {

struct Malformed {
  std::string bytes;
  const char* message;
};

// One tensor "t" of 8 float32 and its data.
std::string one(const std::string& info, size_t data_size = 32) {
  return padded(head(1, 0) + info) + std::string(data_size, '\1');
}
std::string key_of(uint32_t type, const std::string& value) {
  return head(0, 1) + pair("k", type, value);
}

std::string nested_lists(int depth) {
  std::string all;
  for (int i = 0; i < depth; ++i) all += u32(9) + u64(1);
  return all + u32(0) + u64(0);
}

const uint64_t huge = ~uint64_t{0};

const Malformed malformed[] = {
    {"", "the file has 0 bytes"},
    {std::string(23, 'G'), "the file has 23 bytes"},
    {"GGML" + head(0, 0).substr(4), "does not begin with GGUF"},
    {head(0, 0, 1), "GGUF version 1, expected 2 or 3"},
    {head(0, 0, 4), "GGUF version 4"},
    {head(0, 0, 0x03000000), "the file is big-endian"},
    {head(1, 0), "the number of tensors is 1, more than fit"},
    {head(huge, 0), "the number of tensors is 18446744073709551615, more than fit"},
    {head(0, huge), "the number of keys is 18446744073709551615, more than fit"},
    {head(0, 1) + u64(huge) + std::string(20, 'k'), "a key is 18446744073709551615, more than fit"},
    {head(0, 1) + text("key") + "ab", "key 'key': the file ends within the type of the value"},
    {key_of(13, "........"), "key 'k': unknown type of value 13, expected 0 to 12"},
    {key_of(10, u64(huge)), "key 'k': the integer 18446744073709551615 is beyond 2^63-1"},
    {key_of(7, "\2"), "key 'k': the boolean is 2, expected 0 or 1"},
    {key_of(12, "1234567"), "key 'k': the file ends within a number"},
    {key_of(8, u64(4) + "abc"), "key 'k': a string is 4, more than fit into the 3 bytes"},
    {key_of(9, u32(13) + u64(0)), "key 'k': unknown type of list 13"},
    {key_of(9, u32(0) + u64(huge)), "key 'k': the length of a list is 18446744073709551615"},
    {key_of(9, u32(4) + u64(2) + "1234567"), "the length of a list is 2, more than fit"},
    {key_of(9, u32(8) + u64(1) + u64(huge)), "key 'k': a string is 18446744073709551615"},
    {key_of(9, nested_lists(100'000)), "lists nested deeper than 8 levels"},
    {head(0, 2) + pair("k", 0, "1") + pair("k", 0, "1"), "the key 'k' is there twice"},
    {head(0, 1) + pair("general.alignment", 4, u32(0)), "general.alignment is not a power of two"},
    {head(0, 1) + pair("general.alignment", 4, u32(24)), "general.alignment is not a power of two"},
    {head(0, 1) + pair("general.alignment", 8, text("x")),
     "general.alignment is not a power of two"},
    {one(tensor("t", {8, 1, 1, 1, 1}, f32, 0)), "tensor 't': 5 dimensions, expected at most 4"},
    {one(text("t") + u32(0xFFFFFFFF)), "tensor 't': 4294967295 dimensions"},
    {one(tensor("t", {huge}, f32, 0)), "a dimension has 18446744073709551615 elements"},
    {one(tensor("t", {1ull << 62, 2}, f32, 0)), "the sizes have a product beyond 2^63-1"},
    {one(tensor("t", {1ull << 40, 1ull << 40, 0}, f32, 0)), "a product beyond 2^63-1"},
    {one(tensor("t", {8}, 16, 0)), "tensor 't': the type IQ2_XXS is not read, expected one of F32"},
    {one(tensor("t", {8}, 4, 0)), "the type number 4 is not read"},
    {one(tensor("t", {8}, 0xFFFFFFFF, 0)), "the type number 4294967295 is not read"},
    {one(tensor("t", {8}, q8_0, 0)), "the last dimension is 8, expected a multiple of 32"},
    {one(tensor("t", {8}, f32, 32)), "begins at byte 32 of the data, expected 0"},
    {one(tensor("t", {9}, f32, 0)),
     "tensor 't': has 36 bytes from byte 0 of the data, which has 32: the file is cut short"},
    {one(tensor("t", {1ull << 60}, f32, 0)), "the file is cut short"},
    {one(tensor("t", {8}, f32, 0), 33), "the data has 33 bytes, expected at most 32"},
    {head(1, 0) + tensor("t", {8}, f32, 0), "the file ends before the data"},
    {padded(head(2, 0) + tensor("t", {8}, f32, 0) + tensor("t", {8}, f32, 32)) +
         std::string(64, '\1'),
     "tensor 't': is there twice"},
    {padded(head(2, 0) + tensor("t", {8}, f32, 0) + tensor("u", {8}, f32, 0)) +
         std::string(64, '\1'),
     "tensor 'u': begins at byte 0 of the data, expected 32"},
};

}  // namespace

TEST_CASE("a malformed file is an Error that says what is wrong") {
  Folder folder;
  for (const Malformed& bad : malformed) {
    CAPTURE(std::string(bad.message));
    write_bytes(folder / "bad.gguf", bad.bytes);
    std::string message = message_of([&] { GgufFile file(folder / "bad.gguf"); });
    check_contains(message, bad.message);
    check_contains(message, folder / "bad.gguf");
  }
  check_contains(message_of([&] { GgufFile file(folder.path); }), "a folder, expected a GGUF file");
}

TEST_CASE("every file cut short is an Error, save for the padding of its end") {
  Folder folder;
  std::string whole = head(1, 1) + pair("k", 8, text("value")) + tensor("t", {3}, f32, 0);
  whole = padded(whole) + std::string(12, '\1');
  for (size_t size = 0; size <= whole.size() + 20; ++size) {
    std::string bytes = whole;
    bytes.resize(size);
    write_bytes(folder / "a.gguf", bytes);
    CAPTURE(size);
    bool is_good = message_of([&] { GgufFile file(folder / "a.gguf"); }) == "no error";
    CHECK(is_good == (size >= whole.size()));
  }
}

#include <redco/error.h>
#include <redco/safetensors.h>

#include "files.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>

namespace fs = std::filesystem;
using redco::SafetensorsFile;
using redco::Tree;

namespace {

using Tensors = std::map<std::string, at::Tensor>;

// A file of this header, with its right length, and this much data.
std::string file_of(const std::string& header, size_t data_size = 0) {
  uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header +
         std::string(data_size, '\1');
}

std::string bytes_of(const at::Tensor& tensor) {
  at::Tensor whole = tensor.contiguous();
  return {static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()};
}

void check_same(const at::Tensor& given, const at::Tensor& expected) {
  CHECK((given.scalar_type() == expected.scalar_type()));
  CHECK(given.sizes() == expected.sizes());
  CHECK(given.is_contiguous());
  CHECK(bytes_of(given) == bytes_of(expected));
}

// 6 elements of a dtype with different bytes, which as booleans are 0 and 1.
at::Tensor sample(at::ScalarType dtype) {
  at::Tensor tensor = at::empty({2, 3}, dtype);
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i)
    bytes[i] = static_cast<unsigned char>(dtype == at::kBool ? i % 2 : 3 + 7 * i);
  return tensor;
}

const std::pair<at::ScalarType, const char*> dtypes[] = {
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

}  // namespace

TEST_CASE("every dtype comes back, as a matrix, transposed, empty and without dimensions") {
  Folder folder;
  for (const auto& [dtype, name] : dtypes) {
    CAPTURE(std::string(name));
    at::Tensor matrix = sample(dtype);
    Tensors tensors{{"matrix", matrix},
                    {"transposed", matrix.t()},
                    {"column", matrix.select(1, 1)},
                    {"empty", at::empty({0, 3}, dtype)},
                    {"scalar", matrix.select(0, 1).select(0, 2)}};
    redco::save_safetensors(folder / "a.safetensors", tensors);
    check_contains(read_bytes(folder / "a.safetensors"),
                   std::string("\"dtype\":\"") + name + "\",\"shape\":[2,3]");
    SafetensorsFile file(folder / "a.safetensors");
    for (const auto& [key, tensor] : tensors) {
      CAPTURE(key);
      check_same(file.tensor(key), tensor);
    }
    CHECK(file.shape("empty") == std::vector<int64_t>{0, 3});
    CHECK(file.shape("scalar").empty());
    CHECK((file.dtype("transposed") == dtype));
  }
}

TEST_CASE("the bytes of a file: metadata, widest dtype first then names, padded header") {
  Folder folder;
  redco::save_safetensors(folder / "a",
                          {{"b", at::full({1}, 1.0f)},
                           {"a", at::full({2}, 2.0f)},
                           {"z", at::full({}, 258, at::kLong)},
                           {"c", at::full({1}, 7, at::kByte)}},
                          {{"format", "pt"}});
  std::string bytes = read_bytes(folder / "a");
  std::string header = R"({"__metadata__":{"format":"pt"},)"
                       R"("z":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                       R"("a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
                       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[16,20]},)"
                       R"("c":{"dtype":"U8","shape":[1],"data_offsets":[20,21]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  CHECK(bytes.substr(0, 8 + header.size()) == file_of(header));
  CHECK(bytes.substr(8 + header.size()) ==
        std::string("\2\1\0\0\0\0\0\0\0\0\0\x40\0\0\0\x40\0\0\x80\x3f\7", 21));
  SafetensorsFile file(folder / "a");
  CHECK(file.keys() == std::vector<std::string>{"a", "b", "c", "z"});
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
}

TEST_CASE("the data begins at a multiple of 8 bytes, whatever the header's length") {
  Folder folder;
  for (size_t extra = 0; extra < 8; ++extra) {
    redco::save_safetensors(folder / "a", {{std::string(extra, 'n'), at::zeros({1})}});
    CHECK(static_cast<unsigned char>(read_bytes(folder / "a")[0]) % 8 == 0);
    CHECK(fs::file_size(folder / "a") % 8 == 4);
  }
}

TEST_CASE("a file without tensors, names in other alphabets and with quotes") {
  Folder folder;
  redco::save_safetensors(folder / "a", {});
  CHECK(SafetensorsFile(folder / "a").keys().empty());
  Tensors tensors{{"", at::zeros({1})},
                  {"слой.вес", at::zeros({1})},
                  {"重み🙂", at::zeros({1})},
                  {"a\"b\\c\n\x01", at::zeros({1})}};
  redco::save_safetensors(folder / "a", tensors, {{"ключ", "\"値\"\t"}});
  SafetensorsFile file(folder / "a");
  CHECK(file.keys().size() == 4);
  for (const auto& [name, _] : tensors) CHECK(file.contains(name));
  CHECK(file.metadata().at("ключ") == "\"値\"\t");
}

TEST_CASE("misaligned data is copied, aligned data is not") {
  Folder folder;
  // The format asks for no padding of the header, so its data may begin at any byte.
  std::string info = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  for (size_t padding : {0, 1, 2, 3}) {
    std::string header = "{\"a\":" + info + "}" + std::string(padding, ' ');
    write_bytes(folder / "a", file_of(header, 4));
    SafetensorsFile file(folder / "a");
    at::Tensor tensor = file.tensor("a");
    CHECK(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 4 == 0);
    CHECK(bytes_of(tensor) == "\1\1\1\1");
    bool aligned = header.size() % 4 == 0;
    CHECK((file.tensor("a").const_data_ptr() == tensor.const_data_ptr()) == aligned);
  }
}

TEST_CASE("writing to a loaded tensor leaves the file, and the tensor outlives the file's object") {
  Folder folder;
  redco::save_safetensors(folder / "a", {{"a", at::arange(4, at::kFloat)}});
  std::string before = read_bytes(folder / "a");
  at::Tensor tensor = SafetensorsFile(folder / "a").tensor("a");
  tensor.add_(1);
  CHECK(at::equal(tensor, at::arange(1, 5, at::kFloat)));
  CHECK(read_bytes(folder / "a") == before);

  // Saving over the file that a tensor lies in.
  at::Tensor again = SafetensorsFile(folder / "a").tensor("a");
  redco::save_safetensors(folder / "a", {{"a", again.flip(0)}});
  CHECK(at::equal(again, at::arange(4, at::kFloat)));
  CHECK(at::equal(SafetensorsFile(folder / "a").tensor("a"), at::arange(4, at::kFloat).flip(0)));
}

TEST_CASE("what was written into a tensor is there as long as a tensor of its name is") {
  Folder folder;
  const at::Tensor saved = at::arange(1 << 16, at::kFloat);
  redco::save_safetensors(folder / "a", {{"a", saved}, {"b", saved}});
  SafetensorsFile file(folder / "a");
  at::Tensor a = file.tensor("a"), view = file.tensor("b").slice(0, 1, 5);
  file.tensor("a").add_(1);
  view.zero_();
  CHECK(at::equal(a, saved + 1));
  CHECK(view.sum().item<float>() == 0);
  a.reset();
  view.reset();
  // The first and the last page may have bytes of others.
  CHECK(at::equal(file.tensor("a").slice(0, 1024, -1024), saved.slice(0, 1024, -1024)));
}

TEST_CASE("a tensor that is not there is answered with the nearest name") {
  Folder folder;
  redco::save_safetensors(folder / "a", {{"layer.weight", at::zeros({1})}});
  SafetensorsFile file(folder / "a");
  auto text = [&](const std::string& name) { return message_of([&] { file.tensor(name); }); };
  CHECK(text("layer.wieght") == (folder / "a") +
                                    ": no tensor 'layer.wieght' among the 1 of this "
                                    "file; the nearest is 'layer.weight'");
  check_contains(message_of([&] { file.shape("x"); }), "no tensor 'x' among the 1 of this file");
}

namespace {

struct Malformed {
  const char* what;
  std::string bytes;
  const char* message;
};

// A header of one tensor "a" with this content, and 8 bytes of data.
std::string one(const std::string& info) { return file_of("{\"a\":" + info + "}", 8); }

std::string info(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

std::string two(const std::string& first, const std::string& second, size_t data_size = 8) {
  return file_of("{\"a\":" + info("U8", "[4]", first) + ",\"b\":" + info("U8", "[4]", second) + "}",
                 data_size);
}

std::string length_only(uint64_t length, const std::string& rest) {
  return std::string(reinterpret_cast<const char*>(&length), 8) + rest;
}

std::string repeated(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

const Malformed malformed_header[] = {
    {"empty file", "", "the file has 0 bytes, expected at least the 8"},
    {"seven bytes", "1234567", "the file has 7 bytes, expected at least the 8"},
    {"length 0", length_only(0, "{}"), "the header's length is 0 bytes"},
    {"length 1", length_only(1, "{}"), "the header's length is 1 bytes"},
    {"length past the end", length_only(64, "{}"), "only 2 follow: the file is cut short"},
    {"length past the limit", length_only(100'000'001, "{}"), "expected at most 100000000"},
    {"largest length", length_only(~uint64_t{0}, "{}"), "length is 18446744073709551615 bytes"},
    {"a list", file_of("[]"), "the header starts with byte 91, expected 123"},
    {"leading blank", file_of(" {}"), "the header starts with byte 32"},
    {"byte order mark", file_of("\xEF\xBB\xBF{}"), "the header starts with byte 239"},
    {"unclosed object", file_of("{\"a\":"), "not valid JSON"},
    {"text after the object", file_of("{}{}"), "not valid JSON"},
    {"zero bytes after the object", file_of(std::string("{}\0\0", 4)), "not valid JSON"},
    {"name that is not UTF-8", file_of("{\"\xFF\":1}"), "not valid JSON"},
    {"trailing comma", file_of("{\"__metadata__\":{},}"), "not valid JSON"},
    {"number too large", one("1e999"), "not valid JSON"},
    {"very long token", file_of("{\"" + std::string(100'000, 'x')), "not valid JSON"},
    {"tensor twice",
     file_of("{\"a\":" + info("U8", "[0]", "[0,0]") + ",\"a\":" + info("U8", "[0]", "[0,0]") + "}"),
     "the key 'a' is there twice"},
    {"metadata twice", file_of(R"({"__metadata__":{},"__metadata__":{}})"),
     "the key '__metadata__' is there twice"},
    {"metadata key twice", file_of(R"({"__metadata__":{"k":"1","k":"2"}})"),
     "the key 'k' is there twice"},
    {"field twice", one(R"({"dtype":"U8","dtype":"I8","shape":[8],"data_offsets":[0,8]})"),
     "the key 'dtype' is there twice"},
    {"tensor is a number", one("5"), "tensor 'a': is 5, expected an object"},
    {"tensor is null", one("null"), "tensor 'a': is null, expected an object"},
    {"tensor is a list", one("[1]"), "'a' is a list, expected an object"},
    {"no dtype", one(R"({"shape":[8],"data_offsets":[0,8]})"), "the field dtype is missing"},
    {"no shape", one(R"({"dtype":"U8","data_offsets":[0,8]})"), "the field shape is missing"},
    {"no offsets", one(R"({"dtype":"U8","shape":[8]})"), "the field data_offsets is missing"},
    {"unknown dtype", one(info("F31", "[2]", "[0,8]")), "unknown dtype 'F31', expected one of U64"},
    {"dtype in small letters", one(info("f32", "[2]", "[0,8]")), "unknown dtype 'f32'"},
    {"complex dtype", one(info("C64", "[1]", "[0,8]")), "unknown dtype 'C64'"},
    {"dtype is a number", one(R"({"dtype":1,"shape":[8],"data_offsets":[0,8]})"),
     "dtype is 1, expected a string"},
    {"shape is a number", one(info("U8", "8", "[0,8]")), "shape is 8, expected a list"},
    {"negative size", one(info("U8", "[-8]", "[0,8]")), "shape has -8 at 0, expected an integer"},
    {"fraction", one(info("U8", "[1,8.0]", "[0,8]")), "shape has 8.0 at 1, expected an integer"},
    {"size as text", one(info("U8", "[\"8\"]", "[0,8]")), "shape has \"8\" at 0"},
    {"size of 2^63", one(info("U8", "[9223372036854775808]", "[0,8]")),
     "shape has 9223372036854775808 at 0"},
    {"size past 64 bits", one(info("U8", "[99999999999999999999]", "[0,8]")),
     "expected an integer"},
    {"product past 63 bits", one(info("U8", "[4294967296,4294967296]", "[0,8]")),
     "has more than 2^63-1 bytes"},
    {"bytes past 63 bits", one(info("F64", "[4611686018427387904]", "[0,8]")),
     "has more than 2^63-1 bytes"},
    {"zero hides the product", one(info("U8", "[0,4294967296,4294967296]", "[0,0]")),
     "has more than 2^63-1 bytes"},
    {"65 dimensions", one(info("U8", "[1" + repeated(",1", 64) + "]", "[0,1]")),
     "a list of more than 64 numbers"},
    {"size does not match", one(info("F32", "[3]", "[0,8]")),
     "has 8 bytes, expected 12 for F32 [3]"},
    {"begin after end", one(info("U8", "[8]", "[8,0]")), "begins at byte 8 and ends at byte 0"},
    {"negative offset", one(info("U8", "[8]", "[-8,0]")), "data_offsets has -8 at 0"},
    {"one offset", one(info("U8", "[8]", "[8]")), "data_offsets has 1 numbers, expected 2"},
    {"three offsets", one(info("U8", "[8]", "[0,8,8]")), "data_offsets has 3 numbers"},
    {"offsets are an object", one(info("U8", "[8]", "{}")), "data_offsets is {}, expected a list"},
    {"data cut short", one(info("U8", "[9]", "[0,9]")),
     "ends at byte 9 of the data, which has 8 bytes: the file is cut short"},
    {"overlap", two("[0,4]", "[2,6]", 6),
     "tensor 'b' begins at byte 2 of the data, expected 4, where the one before ends: they "
     "overlap"},
    {"the same bytes twice", two("[0,4]", "[0,4]", 4), "they overlap"},
    {"hole", two("[0,4]", "[5,9]", 9), "tensor 'b' begins at byte 5 of the data, expected 4"},
    {"hole in front", two("[1,5]", "[5,9]", 9), "tensor 'a' begins at byte 1 of the data"},
    {"bytes after the data", two("[0,4]", "[4,8]", 9), "the data has 9 bytes, expected 8"},
    {"data without tensors", file_of("{}", 1), "the data has 1 bytes, expected 0"},
    {"metadata is text", file_of(R"({"__metadata__":"x"})"), "expected an object of strings"},
    {"metadata is null", file_of(R"({"__metadata__":null})"), "expected an object of strings"},
    {"number in the metadata", file_of(R"({"__metadata__":{"k":1}})"),
     "__metadata__ has 1 under 'k', expected a string"},
    {"object in the metadata", file_of(R"({"__metadata__":{"k":{}}})"),
     "__metadata__ has {} under 'k', expected a string"},
    {"deep lists", one(repeated("[", 1'000'000)), "'a' is a list"},
    {"deep lists in a field", one("{\"shape\":" + repeated("[", 1'000'000)),
     "nested deeper than the 3 levels expected"},
    {"list in the shape", one(info("U8", "[[8]]", "[0,8]")),
     "nested deeper than the 3 levels expected"},
    {"deep objects", file_of(repeated("{\"a\":", 1'000'000)),
     "nested deeper than the 3 levels expected"},
};

}  // namespace

TEST_CASE("a malformed file is an Error that says what is wrong, soon and in little memory") {
#ifdef __SANITIZE_ADDRESS__
  constexpr double longest = 1;
#else
  constexpr double longest = 0.1;
#endif
  Folder folder;
  for (const Malformed& malformed : malformed_header) {
    CAPTURE(std::string(malformed.what));
    write_bytes(folder / "bad", malformed.bytes);
    size_t memory = peak_memory();
    std::clock_t start = std::clock();
    std::string text = message_of([&] { SafetensorsFile file(folder / "bad"); });
    CHECK(double(std::clock() - start) / CLOCKS_PER_SEC < longest);
    CHECK(peak_memory() - memory < 64 << 20);
    check_contains(text, malformed.message);
    check_contains(text, folder / "bad");
    CHECK(text.size() < 600);
  }
}

TEST_CASE("every file cut short is an Error") {
  Folder folder;
  redco::save_safetensors(folder / "a", {{"a", at::zeros({3})}, {"b", at::zeros({2}, at::kLong)}});
  std::string whole = read_bytes(folder / "a");
  for (size_t size = 0; size < whole.size(); ++size) {
    write_bytes(folder / "a", whole.substr(0, size));
    CHECK(message_of([&] { SafetensorsFile file(folder / "a"); }) != "no error");
  }
}

TEST_CASE("a boolean that is neither 0 nor 1 is found when the tensor is used") {
  Folder folder;
  write_bytes(folder / "a", file_of("{\"a\":" + info("BOOL", "[2]", "[0,2]") + "}") + "\1\2");
  SafetensorsFile file(folder / "a");
  check_contains(message_of([&] { file.tensor("a"); }), "the boolean at 1 is 2, expected 0 or 1");
}

TEST_CASE("unknown fields of a tensor are passed over, blanks around the JSON allowed") {
  Folder folder;
  write_bytes(
      folder / "a",
      file_of("{ \"a\" : {\"dtype\":\"U8\",\"x\":{},\"shape\":[1],\"data_offsets\":[0,1]} }\n", 1));
  CHECK(SafetensorsFile(folder / "a").tensor("a").item<int>() == 1);
}

TEST_CASE("paths that are not files") {
  Folder folder;
  auto open_text = [](const std::string& path) {
    return message_of([&] { SafetensorsFile file(path); });
  };
  auto save_text = [](const std::string& path) {
    return message_of([&] { redco::save_safetensors(path, {}); });
  };
  CHECK(open_text(folder / "x") == "cannot open " + (folder / "x") + ": No such file or directory");
  check_contains(open_text(folder.path), ": a folder, expected a safetensors file");
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  check_contains(open_text(folder / "pipe"), ": a pipe or device, expected a safetensors file");

  check_contains(save_text(folder.path), ": there is a folder of this name");
  check_contains(save_text(folder / "pipe"), ": there is a device or other special file");
  check_contains(save_text(folder / "none/x"), "none/x: No such file or directory");
  check_contains(save_text(folder / "pipe/x"), "pipe/x: Not a directory");
  check_contains(save_text(""), "ends without a file name");
  CHECK(folder.count() == 1);
}

TEST_CASE("what the format cannot hold is refused by name and leaves nothing behind") {
  Folder folder;
  auto text = [&](const std::string& name, const at::Tensor& tensor,
                  const std::map<std::string, std::string>& metadata = {}) {
    return message_of([&] { redco::save_safetensors(folder / "a", {{name, tensor}}, metadata); });
  };
  at::Tensor zeros = at::zeros({2});
  check_contains(text("c", zeros.to(at::kComplexFloat)), "tensor 'c' has dtype ComplexFloat");
  check_contains(text("u", {}), "tensor 'u' is undefined");
  check_contains(text("s", zeros.to_sparse()), "tensor 's' is not dense");
  check_contains(text("m", zeros.to(at::kMeta)), "tensor 'm' is on the device meta");
  check_contains(text("__metadata__", zeros), "has the name the format reserves");
  check_contains(text("\xFF", zeros), "is not UTF-8");
  check_contains(text("a", zeros, {{"k", "\xC3"}}), "is not UTF-8");
  CHECK(folder.count() == 0);
}

namespace {

// Files of this process may not grow past `size` bytes: a write beyond it fails, as on a full disk.
struct FileSizeLimit {
  rlimit before;
  explicit FileSizeLimit(rlim_t size) {
    std::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    rlimit limit{size, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before); }
};

}  // namespace

TEST_CASE("a save that fails half-way leaves the earlier file and no temporary") {
  Folder folder;
  redco::save_safetensors(folder / "a", {{"a", at::zeros({3})}});
  std::string before = read_bytes(folder / "a");
  std::string text;
  {
    FileSizeLimit limit(10'000);
    text = message_of([&] {
      redco::save_safetensors(folder / "a", {{"a", at::zeros({100'000})}});
    });
  }
  CHECK(text == "cannot write " + (folder / "a") + ": File too large");
  CHECK(read_bytes(folder / "a") == before);
  CHECK(folder.count() == 1);
}

TEST_CASE("a long name, temporaries of a killed process and a link do not disturb a save") {
  Folder folder;
  std::string name(255, 'n');
  redco::save_safetensors(folder / name, {});
  CHECK(fs::exists(folder / name));
  fs::create_symlink(name, folder / "link");
  redco::save_safetensors(folder / "link", {{"a", at::zeros({1})}});
  CHECK_FALSE(fs::is_symlink(folder / "link"));
  CHECK(SafetensorsFile(folder / name).keys().empty());
  CHECK(folder.count() == 2);

  for (int i = 0; i < 500; ++i)
    write_bytes(folder / (".a." + std::to_string(getpid()) + "-" + std::to_string(i) + ".redco"),
                "left");
  redco::save_safetensors(folder / "a", {{"a", at::zeros({1})}});
  CHECK(SafetensorsFile(folder / "a").contains("a"));
  CHECK(folder.count() == 503);
}

namespace {

void check_same_tree(const Tree& given, const Tree& expected) {
  REQUIRE(std::string(given.kind()) == expected.kind());
  if (expected.is_tensor()) check_same(given.tensor(), expected.tensor());
  if (expected.is<bool>()) CHECK(given.as<bool>() == expected.as<bool>());
  if (expected.is<int64_t>()) CHECK(given.as<int64_t>() == expected.as<int64_t>());
  if (expected.is<std::string>()) CHECK(given.as<std::string>() == expected.as<std::string>());
  if (expected.is<double>()) {
    double a = given.as<double>();
    double b = expected.as<double>();
    CHECK(((std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof(a)) == 0));
  }
  if (expected.is<Tree::List>()) {
    REQUIRE(given.as<Tree::List>().size() == expected.as<Tree::List>().size());
    for (size_t i = 0; i < expected.as<Tree::List>().size(); ++i)
      check_same_tree(given.as<Tree::List>()[i], expected.as<Tree::List>()[i]);
  }
  if (expected.is<Tree::Dict>()) {
    REQUIRE(given.as<Tree::Dict>().size() == expected.as<Tree::Dict>().size());
    for (const auto& [key, child] : expected.as<Tree::Dict>()) {
      CAPTURE(key);
      check_same_tree(given.at(key), child);
    }
  }
}

void check_round_trip(const Folder& folder, const Tree& tree) {
  redco::save_tree(folder / "tree", tree);
  check_same_tree(redco::load_tree(folder / "tree"), tree);
}

Tree nested(int depth, Tree leaf) {
  for (int i = 0; i < depth; ++i) leaf = Tree::List{leaf};
  return leaf;
}

}  // namespace

TEST_CASE("a tree comes back in every key, kind and number") {
  Folder folder;
  auto number = [](double value) { return Tree(at::full({1}, value)); };
  Tree tree;
  tree["a.b"] = number(1);
  tree["a"]["b"] = number(2);
  tree["a"]["b#2"] = number(3);
  tree["a"]["1"] = number(4);
  tree["list"] = Tree::List{number(5), Tree::List{}, Tree::Dict{}, "text", Tree()};
  tree["dict"] = Tree::Dict{{"1", number(6)}, {"2", 2}};
  tree[""] = Tree::Dict{{"", number(7)}};
  tree["__metadata__"] = number(8);
  tree["tensor"] = Tree::Dict{{"list", Tree::Dict{{"dict", "number"}}}};
  tree["ключ 🙂\n"] = "\"値\"";
  tree["flags"] = Tree::List{true, false};
  tree["integers"] = Tree::List{0, -1, std::numeric_limits<int64_t>::max(),
                                std::numeric_limits<int64_t>::min(), int64_t{1} << 53};
  double infinity = std::numeric_limits<double>::infinity();
  tree["numbers"] = Tree::List{1.0, -0.0, 0.1, 1e300, 5e-324, infinity, -infinity, std::nan("")};
  check_round_trip(folder, tree);
  CHECK(SafetensorsFile(folder / "tree").keys() ==
        std::vector<std::string>{"__metadata__#2", "a.1", "a.b", "a.b#2", "a.b#3", "dict.1",
                                 "list.1", "tensor"});
}

TEST_CASE("trees of one leaf, of nothing and as deep as allowed") {
  Folder folder;
  check_round_trip(folder, Tree(at::zeros({2, 2})));
  CHECK(SafetensorsFile(folder / "tree").keys() == std::vector<std::string>{"tensor"});
  check_round_trip(folder, Tree());
  check_round_trip(folder, Tree::List{});
  check_round_trip(folder, Tree::Dict{});
  check_round_trip(folder, nested(500, at::zeros({1})));
  check_contains(message_of([&] { redco::save_tree(folder / "tree", nested(501, 1)); }),
                 "the tree is nested deeper than 500 levels");
  check_contains(message_of([&] { redco::save_tree(folder / "tree", Tree("\xFF")); }),
                 "is not UTF-8");
  check_contains(message_of([&] {
                   redco::save_tree(folder / "tree", Tree::Dict{{"\xFF", 1}});
                 }),
                 "is not UTF-8");
}

TEST_CASE("a tensor in two places is written once and is one tensor again") {
  Folder folder;
  at::Tensor tied = at::rand({3, 2});
  Tree tree;
  tree["embedding"] = tied;
  tree["head"] = tied.view({3, 2});
  tree["other"] = tied.view({2, 3});
  redco::save_tree(folder / "tree", tree);
  CHECK(SafetensorsFile(folder / "tree").keys() == std::vector<std::string>{"embedding", "other"});
  Tree loaded = redco::load_tree(folder / "tree");
  check_same_tree(loaded, tree);
  CHECK(loaded.at("embedding").tensor().is_same(loaded.at("head").tensor()));
}

TEST_CASE("a file without a description of a tree is a flat dictionary") {
  Folder folder;
  redco::save_safetensors(folder / "a", {{"a.b", at::zeros({1})}, {"c", at::zeros({2})}});
  Tree tree = redco::load_tree(folder / "a");
  CHECK(tree.as<Tree::Dict>().size() == 2);
  check_same(tree.at("a.b").tensor(), at::zeros({1}));
}

TEST_CASE("a wrong description of a tree is an Error") {
  Folder folder;
  const std::pair<std::string, const char*> cases[] = {
      {"", "not valid JSON"},
      {"{\"tensor\":\"a\"} x", "not valid JSON"},
      {"5", "no place for the tensor 'a'"},
      {R"({"tensor":"b"})", "the tensor 'b' is not in the file"},
      {R"({"dict":{"k":1,"k":{"tensor":"a"}}})", "the key 'k' is there twice"},
      {R"([{"tensor":"a"}])", "found [{\"tensor\":\"a\"}], expected a plain value"},
      {R"({"tensor":"a","list":[]})", "expected a plain value or an object with one of"},
      {R"({"tuple":[]})", "found {\"tuple\":[]}"},
      {R"({"list":{}})", "found {\"list\":{}}"},
      {R"({"number":"12"})", "found {\"number\":\"12\"}"},
      {"9223372036854775808", "the integer 9223372036854775808 is beyond 2^63-1"},
      {repeated("{\"list\":[", 1'000'000), "nested deeper than the 1002 levels expected"},
  };
  for (const auto& [description, message] : cases) {
    redco::save_safetensors(folder / "a", {{"a", at::zeros({1})}},
                            {{"redco.tree", R"({"format":1,"tree":)" + description + "}"}});
    std::string text = message_of([&] { redco::load_tree(folder / "a"); });
    check_contains(text, message);
    check_contains(text, folder / "a");
  }
}

TEST_CASE("files of the reference implementation: read, and written again to the same bytes") {
  const char* given = std::getenv("REDCO_CASES");
  fs::path cases =
      given != nullptr ? fs::path(given) : fs::path(TESTS_FOLDER) / "../../shared/cases";
  if (!fs::is_directory(cases)) {
    MESSAGE("skipped: no folder ", cases.string(), "; REDCO_CASES may name one");
    return;
  }
  Folder folder;
  size_t files = 0;
  for (const auto& item : fs::recursive_directory_iterator(cases)) {
    if (item.path().extension() != ".safetensors") continue;
    CAPTURE(item.path().string());
    SafetensorsFile file(item.path());
    Tensors tensors;
    for (const std::string& name : file.keys()) tensors[name] = file.tensor(name);
    redco::save_safetensors(folder / "again", tensors, file.metadata());
    CHECK((read_bytes(folder / "again") == read_bytes(item.path())));
    ++files;
  }
  CHECK(files > 0);
}

// Files of PyTorch's torch.save, made here by hand; beside PyTorch they are in tests/peers.
#include <redco/safetensors.h>
#include <redco/weights.h>

#include "files.h"
#include "zip_of.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <doctest/doctest.h>

#include <random>

using redco::load_tree;
using redco::Tree;
using redco::Weights;

namespace {

// ---- Pieces of pickles

std::string text(const std::string& value) {
  std::string bytes = "X";
  put(bytes, uint32_t(value.size()));
  return bytes + value;
}

std::string integer(int64_t value) {
  std::string bytes = "\x8a\x08";
  put(bytes, value);
  return bytes;
}

std::string tuple(const std::vector<int64_t>& values) {
  std::string bytes = "(";
  for (int64_t value : values) bytes += integer(value);
  return bytes + "t";
}

std::string storage(const std::string& key, int64_t n, const std::string& type = "Float") {
  return "(" + text("storage") + "ctorch\n" + type + "Storage\n" + text(key) + text("cpu") +
         integer(n) + "tQ";
}

std::string tensor(const std::string& stored, int64_t offset, const std::vector<int64_t>& sizes,
                   const std::vector<int64_t>& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + stored + integer(offset) + tuple(sizes) +
         tuple(strides) +
         "\x89"
         "ccollections\nOrderedDict\n)RtR";
}

std::string dict(const std::vector<Member>& entries) {
  std::string bytes = "}(";
  for (const auto& [key, value] : entries) bytes += text(key) + value;
  return bytes + "u";
}

std::string pickle(const std::string& value) { return "\x80\x02" + value + "."; }

// The bytes of a tensor.
std::string bytes_of(const at::Tensor& values) {
  return {static_cast<const char*>(values.const_data_ptr()), values.nbytes()};
}

const at::Tensor six = at::arange(6, at::kFloat);

std::string archive(const std::string& value, size_t alignment = 64) {
  return zip_of({{"archive/data.pkl", pickle(value)},
                 {"archive/byteorder", "little"},
                 {"archive/data/0", bytes_of(six)},
                 {"archive/data/1", std::string("\1\0\1", 3)},
                 {"archive/version", "3\n"}},
                alignment);
}

std::string legacy(const std::string& value, const std::vector<std::string>& keys) {
  std::string bytes("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
  bytes += pickle("M\xe9\x03") + pickle(dict({{"little_endian", "\x88"}})) + pickle(value);
  std::string list = "](";
  for (const std::string& key : keys) list += text(key);
  bytes += pickle(list + "e");
  for (size_t i = 0; i < keys.size(); ++i) {
    put(bytes, int64_t{6});
    bytes += bytes_of(six);
  }
  return bytes;
}

struct File {
  Folder folder;
  std::string path = folder / "pytorch_model.bin";

  Tree tree(const std::string& bytes) {
    write_bytes(path, bytes);
    return load_tree(path);
  }
  std::string error_of(const std::string& bytes) {
    return message_of([&] { tree(bytes); });
  }
};

const std::string matrix = tensor(storage("0", 6), 0, {2, 3}, {3, 1});

}  // namespace

TEST_CASE("torch.save: tensors are views of the mapped file, with their strides and storages") {
  File file;
  std::string value = dict({{"a", matrix},
                            {"t", tensor(storage("0", 6), 0, {3, 2}, {1, 3})},
                            {"last", tensor(storage("0", 6), 5, {}, {})},
                            {"many", tensor(storage("0", 6), 1, {1000, 2}, {0, 1})},
                            {"none", tensor(storage("0", 6), 6, {0, 4}, {4, 1})},
                            {"mask", tensor(storage("1", 3, "Bool"), 0, {3}, {1})}});
  for (const std::string& bytes : {archive(value), archive(value, 1)}) {
    Tree tree = file.tree(bytes);
    CHECK(at::equal(tree["a"].tensor(), six.view({2, 3})));
    CHECK(at::equal(tree["t"].tensor(), six.view({2, 3}).t()));
    CHECK(tree["t"].tensor().stride(0) == 1);
    CHECK(tree["last"].tensor().item<float>() == 5);
    CHECK(tree["many"].tensor().sum().item<float>() == 3000);
    CHECK(tree["none"].tensor().size(1) == 4);
    CHECK(tree["mask"].tensor().sum().item<int64_t>() == 2);
    tree["a"].tensor().fill_(7);
    CHECK(tree["last"].tensor().item<float>() == 7);
    CHECK(tree["a"].tensor().is_alias_of(tree["t"].tensor()));
    CHECK(at::equal(file.tree(bytes)["a"].tensor(), six.view({2, 3})));
  }
}

TEST_CASE("torch.save: weights are contiguous, and no two share memory") {
  File file;
  std::string value = dict({{"a", matrix},
                            {"b", matrix},
                            {"t", tensor(storage("0", 6), 0, {3, 2}, {1, 3})},
                            {"row", tensor(storage("0", 6), 0, {1, 2}, {9, 1})}});
  for (const std::string& bytes : {archive(value), archive(value, 1), legacy(value, {"0"})}) {
    write_bytes(file.path, bytes);
    Weights weights(file.folder.path);
    CHECK(weights.keys() == std::vector<std::string>{"a", "b", "row", "t"});
    CHECK(weights.shape("t") == std::vector<int64_t>{3, 2});
    CHECK((weights.dtype("t") == at::kFloat));
    CHECK(at::equal(weights.tensor("t"), six.view({2, 3}).t()));
    std::vector<at::Tensor> tensors;
    for (const std::string& name : weights.keys()) tensors.push_back(weights.tensor(name));
    for (at::Tensor& each : tensors) {
      CHECK(each.is_contiguous());
      CHECK(each.max().item<float>() < 6);  // nothing that was written to another
      each.fill_(9);
    }
  }
  // A view of the mapped file: what is written is there when it is asked for again.
  write_bytes(file.path, archive(dict({{"a", matrix}})));
  Weights weights(file.path);
  weights.tensor("a").fill_(9);
  CHECK(weights.tensor("a").max().item<float>() == 9);
  CHECK(Weights(file.path).tensor("a").max().item<float>() == 5);
}

TEST_CASE("torch.save: plain values, and the format before 1.6") {
  File file;
  std::string value = dict({{"step", "M\x10\x27"},
                            {"minus", "\x8a\x01\xff"},
                            {"rate", std::string("G\x3f\xe0\0\0\0\0\0\0", 9)},
                            {"on", "\x88"},
                            {"nothing", "N"},
                            {"list", "](" + text("x") + "K\1e"},
                            {"size", "ctorch\nSize\n(K\2K\3t\x85R"},
                            {"dtype", "ctorch\nbfloat16\n"}});
  for (const std::string& bytes : {archive(value), legacy(value, {})}) {
    Tree tree = file.tree(bytes);
    CHECK(tree["step"].as<int64_t>() == 10000);
    CHECK(tree["minus"].as<int64_t>() == -1);
    CHECK(tree["rate"].as<double>() == 0.5);
    CHECK(tree["on"].as<bool>());
    CHECK(tree["nothing"].is_none());
    CHECK(tree["list"].as<Tree::List>()[0].as<std::string>() == "x");
    CHECK(tree["size"].as<Tree::List>()[1].as<int64_t>() == 3);
    CHECK(tree["dtype"].as<std::string>() == "bfloat16");
    check_contains(message_of([&] { Weights weights(file.path); }),
                   {"pytorch_model.bin: 'step' is an integer, expected a tensor"});
  }
  CHECK(at::equal(file.tree(legacy(matrix, {"0"})).tensor(), six.view({2, 3})));
}

TEST_CASE("torch.save: functions are named and never run, damage and lies are refused") {
  File file;
  const std::pair<std::string, const char*> values[] = {
      {"cos\nsystem\n" + text("true") + "\x85R",
       "it needs 'os.system' of Python, which was not run"},
      {"c__builtin__\neval\n", "'__builtin__.eval'"},
      {"ctorch\nComplexFloatStorage\n", "'torch.ComplexFloatStorage'"},
      {"ctorch\nTensor\n)R", "it calls a class of tensors"},
      {tensor(storage("0", 6), 0, {2, 4}, {3, 1}), "a tensor reaches beyond its storage"},
      {tensor(storage("0", 6), 1, {2, 3}, {3, 1}), "a tensor reaches beyond its storage"},
      {tensor(storage("0", 6), 0, {int64_t{1} << 62}, {0}), "a tensor reaches beyond its storage"},
      {tensor(storage("0", 6), 0, {2, 3}, {-3, 1}), "a tensor reaches beyond its storage"},
      {tensor(storage("0", 6), -1, {2}, {1}), "a tensor has wrong dimensions"},
      {tensor(storage("0", 7), 0, {2}, {1}), "has 28 bytes by the pickle and 24 in the file"},
      {tensor(storage("0", int64_t{1} << 62), 0, {2}, {1}), "a storage has an impossible size"},
      {tensor(storage("9", 6), 0, {2}, {1}), "the file of the storage '9' is missing"},
      {"(" + matrix + tensor(storage("0", 3, "Double"), 0, {1}, {1}) + "t",
       "a storage has two sizes or types"},
      {storage("0", 6), "it has a storage that is in no tensor"},
      {"NQ", "a function has too few arguments"},
      {"]q" + std::string("\0h\0a", 4), "a value changes after it was put into another"},
      {std::string(300, ']') + std::string(299, 'a'), "its values nest too deep"},
      {"X\xff\xff\xff\xff"
       "a",
       "it is cut short"},
      {"}K\1K\1s", "a dictionary has an integer as a key"},
      {"}" + text("a") + "Ns" + text("a") + "Ns", "the key 'a' is there twice"},
  };
  size_t before = peak_memory();
  for (const auto& [value, message] : values) {
    CAPTURE(value);
    std::string error = file.error_of(archive(value));
    check_contains(error, {file.path, message});
    CHECK(message_of([&] { Weights weights(file.path); }) != "no error");
  }
  // Each list has the one before ten times.
  std::string bomb = "(]q" + std::string(1, '\0');
  for (char i = 0; i < 30; ++i) {
    bomb += "](";
    for (int k = 0; k < 10; ++k) bomb += std::string("h") + i;
    bomb += std::string("eq") + char(i + 1);
  }
  bomb += "l";
  check_contains(file.error_of(archive(bomb)), "its values repeat others too often");
  // Repeated elements cost nothing as a view; as weights they would be copied.
  std::string repeated = dict({{"a", tensor(storage("0", 6), 0, {int64_t{1} << 40}, {0})}});
  CHECK(file.tree(archive(repeated))["a"].tensor().numel() == int64_t{1} << 40);
  check_contains(message_of([&] { Weights weights(file.path); }), "more than the whole file");
  CHECK(peak_memory() - before < 32 << 20);

  auto with = [&](const Member& member) {
    return zip_of({{"archive/data.pkl", pickle(matrix)}, member});
  };
  check_contains(file.error_of(with({"archive/data/1", ""})), "storage '0' is missing");
  check_contains(file.error_of(with({"archive/constants.pkl", ""})), "it is TorchScript");
  check_contains(file.error_of(with({"archive/byteorder", "big"})), "byteorder is not 'little'");
  check_contains(file.error_of(with({"other/data/0", ""})), "not all in one folder");
  check_contains(file.error_of(zip_of({{"archive/x", ""}})), "there is no data.pkl in it");
  std::string mask = tensor(storage("1", 3, "Byte"), 0, {3}, {1});
  std::string wrong = archive(tensor(storage("0", 24, "Bool"), 0, {24}, {1}));
  check_contains(file.error_of(wrong), "a boolean is 128, expected 0 or 1");
  std::string old = legacy(matrix, {"0"});
  check_contains(file.error_of(old + "x"), "bytes follow the last storage");
  check_contains(file.error_of(old.substr(0, old.size() - 1)), "and 23 in the file");
  check_contains(file.error_of(legacy(matrix, {})), "a storage is not in the file");
  check_contains(file.error_of(legacy(matrix, {"0", "0"})), "or one twice");
  check_contains(file.error_of("\x80\x02}q.     "), "it does not begin as torch.save begins files");
}

TEST_CASE("torch.save: a damaged file is refused or read within its bounds") {
  File file;
  std::mt19937 random(3);
  const std::string value =
      dict({{"a", matrix}, {"m", tensor(storage("1", 3, "Bool"), 0, {3}, {1})}});
  const std::string old = legacy(value, {"0"});
  int n_read = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = i % 3 == 0 ? old : pickle(value);
    for (size_t n = 1 + random() % 3; n-- > 0;) bytes[random() % bytes.size()] = char(random());
    if (i % 3 != 0)
      bytes = zip_of({{"archive/data.pkl", bytes},
                      {"archive/data/0", bytes_of(six)},
                      {"archive/data/1", std::string(3, '\1')}});
    CAPTURE(i);
    write_bytes(file.path, bytes);
    if (message_of([&] { load_tree(file.path); }) != "no error") continue;
    ++n_read;
    for (const auto& [path, tensor] : redco::named_tensors(load_tree(file.path)))
      tensor.sum(at::kDouble).item<double>();
  }
  CHECK(n_read > 5);
}

TEST_CASE("safetensors with a header whose size has the bytes of a pickle are not torch.save's") {
  for (size_t size : {0x280, 0x380, 0x480, 0x580}) {
    std::string header = R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    header.resize(size, ' ');
    std::string bytes = bytes_of(at::full({1}, int64_t(size), at::kLong)) + header;
    Folder folder;
    std::string path = folder / "x.safetensors";
    write_bytes(path, bytes + bytes_of(at::full({1}, 2.5F)));
    CHECK(load_tree(path)["x"].as<at::Tensor>().item<float>() == 2.5F);
    CHECK(Weights(path).tensor("x").item<float>() == 2.5F);
  }
}

// At the end, since it sets the peak of memory.
TEST_CASE("torch.save: many small values are refused before they take much memory") {
  File file;
  std::string kept = "N";
  for (uint32_t i = 0; i < (1u << 22); ++i) {
    kept += "r";
    put(kept, i);
  }
  const std::pair<std::string, const char*> values[] = {
      {"(" + std::string(10 << 20, 'N') + "l", "it has more than 2097152 values"},
      {kept, "it has more than 2097152 values"},
      {std::string(10 << 20, '('), "its values nest too deep"},
  };
  size_t before = peak_memory();
  for (const auto& [value, message] : values)
    check_contains(file.error_of(archive(value)), {file.path, message});
  CHECK(peak_memory() - before < 400 << 20);
}

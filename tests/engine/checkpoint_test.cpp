// Checkpoints as folders: what comes back, what is refused, what names they take and leave.
#include <redco/checkpoint.h>
#include <redco/error.h>
#include <redco/json.h>
#include <redco/safetensors.h>
#include <redco/weights.h>

#include "checkpoints.h"
#include "files.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <set>

namespace fs = std::filesystem;
using redco::Checkpoint;
using redco::Tree;

namespace {

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& item : fs::directory_iterator(folder)) names.insert(item.path().filename());
  return names;
}

Checkpoint load(const std::string& folder, const redco::LoadCheckpointOptions& options = {}) {
  return redco::load_checkpoint(folder, one_process(), options);
}

void save(const std::string& folder, const Checkpoint& checkpoint,
          const redco::SaveCheckpointOptions& options = {}) {
  redco::CheckpointWriter(one_process()).save(folder, checkpoint, options);
}

void replace(std::string& text, const std::string& part, const std::string& by) {
  size_t at = text.find(part);
  REQUIRE(at != std::string::npos);
  text.replace(at, part.size(), by);
}

// Files by their names.
using Files = std::map<std::string, std::string>;

Files read_files(const std::string& folder) {
  Files files;
  for (const std::string& name : names_in(folder)) files[name] = read_bytes(folder + "/" + name);
  return files;
}

void write_files(const std::string& folder, const Files& files) {
  fs::remove_all(folder);
  fs::create_directory(folder);
  for (const auto& [name, bytes] : files) write_bytes(folder + "/" + name, bytes);
}

}  // namespace

TEST_CASE("a checkpoint comes back as it was: trees, plain values, dtypes, tied tensors") {
  Folder folder;
  at::Tensor tied = at::arange(6, at::kFloat).view({2, 3});
  Tree params;
  params["embed"] = tied;
  params["head"] = tied;
  params["layers"] = Tree::List{Tree::Dict{{"weight", at::arange(4, at::kDouble)}}, Tree()};
  params["a.b"] = at::ones({1});
  params["a"] = Tree::Dict{{"b", at::zeros({1})}, {"empty list", Tree::List{}}};
  for (auto dtype : {at::kBool, at::kByte, at::kShort, at::kLong, at::kHalf, at::kBFloat16})
    params["dtypes"][c10::toString(dtype)] = at::arange(2, at::kLong).to(dtype);
  params["strided"] = at::arange(6, at::kFloat).view({2, 3}).t();
  params["scalar"] = at::full({}, 3.5);
  params["nothing"] = at::empty({0, 7});
  params["plain"] = Tree::List{true, 12, 0.1, "text", std::numeric_limits<double>::infinity()};
  Tree info = Tree::Dict{{"step", 7}, {"metrics", Tree::Dict{{"loss", 0.25}}}, {"names", "öß"}};
  for (int64_t max_shard_size : {int64_t{1} << 30, int64_t{1}}) {
    CAPTURE(max_shard_size);
    save(folder / "deep/er/last", {params, Tree::Dict{{"count", at::ones({1})}}, info},
         {.max_shard_size = max_shard_size});
    Checkpoint loaded = load(folder / "deep/er/last");
    check_equal(loaded.params, params);
    check_equal(loaded.opt_state, Tree::Dict{{"count", at::ones({1})}});
    check_equal(loaded.info, info);
    CHECK(loaded.params.at("embed").tensor().is_same(loaded.params.at("head").tensor()));
    CHECK(!loaded.params.at("embed").tensor().is_alias_of(tied));
  }
  CHECK(names_in(folder / "deep/er") == std::set<std::string>{"last"});
}

TEST_CASE("frozen parameters are named, and found again in their files or among what is given") {
  Folder folder;
  at::Tensor large = at::arange(70'000, at::kFloat).view({7, 10'000}).t(),
             narrow = at::ones({3, 2});
  redco::save_safetensors(folder / "base.safetensors", {{"l", large.contiguous()}, {"n", narrow}});
  Tree params = Tree::Dict{{"large", large},
                           {"list", Tree::List{narrow.to(at::kBFloat16), at::zeros({2})}},
                           {"trained", at::full({2}, 5.)}};
  auto frozen = [&](const at::Tensor& tensor, const std::string& name) {
    return redco::FrozenTensor{.dtype = tensor.scalar_type(),
                               .sizes = tensor.sizes().vec(),
                               .xxh3 = redco::checksum_of(tensor, tensor.scalar_type()),
                               .source = {folder / "base.safetensors", name}};
  };
  Checkpoint checkpoint{.params = params, .info = Tree::Dict{{"step", 3}}};
  checkpoint.frozen = {{"large", frozen(large, "l")},
                       {"list.1", frozen(narrow.to(at::kBFloat16), "n")},
                       {"elsewhere", frozen(narrow, "n")}};
  const std::string ckpt = folder / "last";
  save(ckpt, checkpoint);
  CHECK(redco::SafetensorsFile(ckpt + "/params.safetensors").keys() ==
        std::vector<std::string>{"list.2", "trained"});
  Checkpoint loaded = load(ckpt);
  check_equal(loaded.params, params);
  check_equal(loaded.info, checkpoint.info);
  CHECK(redco::load_params_shape(ckpt).at("large").tensor().sizes() == large.sizes());
  CHECK((load(ckpt, {.float_dtype = at::kHalf}).params.at("large").tensor().scalar_type() ==
         at::kHalf));
  CHECK(load(ckpt, {.params = false}).params.is_none());

  Tree given = Tree::Dict{{"large", large.clone()}};
  loaded = load(ckpt, {.frozen = given});
  CHECK(loaded.params.at("large").tensor().is_same(given.at("large").tensor()));
  large[4][2] += 1;
  given = Tree::Dict{{"large", large}};
  CHECK_THROWS_WITH_AS(load(ckpt, {.frozen = given}),
                       doctest::Contains("the frozen parameter 'large' has other values in the"),
                       redco::Error);
  given = Tree::Dict{{"large", at::zeros({2})}};
  CHECK_THROWS_WITH_AS(load(ckpt, {.frozen = given}), doctest::Contains("[10000, 7] F32"),
                       redco::Error);
  fs::remove(folder / "base.safetensors");
  // The checkpoint is not damaged.
  try {
    load(ckpt);
    FAIL("nothing is wrong");
  } catch (const redco::DamagedCheckpoint&) {
    FAIL("it counts as damaged");
  } catch (const redco::Error& error) {
    CHECK(std::string(error.what()).find("only by name; 'large' was read from") !=
          std::string::npos);
  }
}

TEST_CASE("files: one, or several by their size; what they are called, and who can read them") {
  Folder folder;
  Tree params = Tree::Dict{
      {"a", at::ones({10})}, {"b", at::ones({10})}, {"c", at::ones({30})}, {"d", at::ones({10})}};
  save(folder / "one", {params, {}, Tree::Dict{}});
  CHECK(names_in(folder / "one") ==
        std::set<std::string>{"params.safetensors", "params.safetensors.index.json", "info.json"});
  CHECK(load(folder / "one").opt_state.is_none());
  save(folder / "several", {params, Tree::Dict{}, Tree::Dict{}}, {.max_shard_size = 100});
  CHECK(names_in(folder / "several") ==
        std::set<std::string>{"info.json", "params-00001-of-00003.safetensors",
                              "params-00002-of-00003.safetensors",
                              "params-00003-of-00003.safetensors", "params.safetensors.index.json",
                              "opt_state.safetensors", "opt_state.safetensors.index.json"});
  CHECK(load(folder / "several").opt_state.is<Tree::Dict>());
  for (const char* name : {"one", "several"}) {
    redco::Weights weights(folder / (std::string(name) + "/params.safetensors.index.json"));
    CHECK(weights.keys() == std::vector<std::string>{"a", "b", "c", "d"});
  }
  CHECK(redco::SafetensorsFile(folder / "one/params.safetensors").metadata() ==
        std::map<std::string, std::string>{{"format", "pt"}});
}

TEST_CASE("float_dtype and what is asked for") {
  Folder folder;
  Tree params = Tree::Dict{{"half", at::full({3}, 1.5, at::kHalf)},
                           {"number", at::arange(3)},
                           {"wide", at::full({2, 2}, 0.1, at::kDouble)}};
  save(folder / "a", {params, Tree::Dict{{"m", at::ones({2})}}, Tree::Dict{}},
       {.float_dtype = at::kBFloat16});
  Checkpoint loaded = load(folder / "a");
  CHECK((loaded.params.at("half").tensor().scalar_type() == at::kBFloat16));
  CHECK((loaded.params.at("number").tensor().scalar_type() == at::kLong));
  CHECK((loaded.opt_state.at("m").tensor().scalar_type() == at::kBFloat16));
  CHECK(loaded.params.at("wide").tensor()[0][0].item<double>() ==
        doctest::Approx(0.1).epsilon(.01));

  loaded = load(folder / "a", {.opt_state = false, .float_dtype = at::kFloat});
  CHECK(loaded.opt_state.is_none());
  CHECK((loaded.params.at("half").tensor().scalar_type() == at::kFloat));
  CHECK((loaded.params.at("number").tensor().scalar_type() == at::kLong));
  CHECK(load(folder / "a", {.params = false}).params.is_none());

  Tree shape = redco::load_params_shape(folder / "a");
  CHECK(shape.at("wide").tensor().is_meta());
  CHECK(shape.at("wide").tensor().sizes() == at::IntArrayRef({2, 2}));
  CHECK((shape.at("wide").tensor().scalar_type() == at::kBFloat16));
}

TEST_CASE("in the background, what is written is what there was") {
  Folder folder;
  redco::CheckpointWriter writer(one_process());
  at::Tensor weight = at::zeros({1000, 1000});
  for (int i = 0; i < 3; ++i) {
    weight.fill_(i);
    writer.save(folder / ("step_" + std::to_string(i)), {weight, {}, Tree::Dict{}},
                {.in_background = true});
    weight.fill_(-1);
  }
  writer.wait();
  for (int i = 0; i < 3; ++i)
    check_equal(load(folder / ("step_" + std::to_string(i))).params,
                at::full({1000, 1000}, double(i)));
}

TEST_CASE("whatever is damaged is named") {
  Folder folder;
  Tree params = Tree::Dict{{"w", at::arange(100, at::kFloat)}, {"x", at::ones({3})}};
  save(folder / "good", {params, Tree::Dict{{"m", at::ones({5})}}, Tree::Dict{{"step", 1}}},
       {.max_shard_size = 100});
  const Files good = read_files(folder / "good");
  REQUIRE(good.size() == 6);
  const std::string path = folder / "bad";
  auto error_of = [&](const Files& files) {
    write_files(path, files);
    return message_of([&] { load(path); });
  };
  CHECK(error_of(good) == "no error");

  for (const auto& [name, bytes] : good) {
    CAPTURE(name);
    bool is_info = name == "info.json";
    for (size_t size : {size_t{0}, size_t{1}, bytes.size() / 2, bytes.size() - 1}) {
      Files files = good;
      files[name].resize(size);
      std::string text = error_of(files);
      check_contains(text, path + "/" + name);
      if (!is_info) check_contains(text, "the checkpoint is not whole");
    }
    for (size_t at = 0; at < bytes.size(); at += bytes.size() / 7) {
      Files files = good;
      files[name][at] ^= 1;
      std::string text = error_of(files);
      check_contains(text, path + "/" + name);
      check_contains(text, is_info ? "damaged" : "the file is damaged");
    }
    Files files = good;
    files.erase(name);
    check_contains(error_of(files), is_info ? path + ": there is no info.json" : path + "/" + name);
    files["renamed"] = bytes;
    check_contains(error_of(files), is_info ? "so it is no checkpoint" : "No such file");
  }

  // A tensor more or less in a file, whose sum fits.
  for (bool is_more : {true, false}) {
    write_files(path, good);
    const std::string file = path + "/params-00002-of-00002.safetensors";
    std::map<std::string, at::Tensor> tensors;
    for (const std::string& name : redco::SafetensorsFile(file).keys())
      if (is_more) tensors[name] = redco::SafetensorsFile(file).tensor(name).clone();
    if (is_more) tensors["extra"] = at::ones({1});
    redco::save_safetensors(file, tensors);
    sum_again(path);
    check_contains(message_of([&] { load(path); }),
                   is_more ? "tensor 'extra' of the file 'params-00002-of-00002.safetensors' is "
                             "not listed"
                           : "but the file does not have it");
  }
  check_contains(message_of([&] { load(folder / "none"); }), "there is no such checkpoint");
  check_contains(message_of([&] { load(folder / "good/info.json"); }),
                 "there is no such checkpoint");
  check_contains(message_of([&] { redco::load_params_shape(folder / "none"); }),
                 "there is no such checkpoint");
}

TEST_CASE("no damaged info.json loads") {
  Folder folder;
  save(folder / "a", {Tree::Dict{{"w", at::ones({3})}},
                      {},
                      Tree::Dict{{"step", 1234}, {"seed", 42}, {"is_done", true}, {"loss", 0.5}}});
  const std::string path = folder / "a/info.json", good = read_bytes(path);
  redco::load_checkpoint_info(folder / "a");
  auto is_refused = [&](const std::string& text) {
    write_bytes(path, text);
    CAPTURE(text);
    CHECK_THROWS_AS(redco::load_checkpoint_info(folder / "a"), redco::DamagedCheckpoint);
  };
  for (size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; bit += 3) {
      std::string text = good;
      text[at] = char(text[at] ^ 1 << bit);
      is_refused(text);
    }
    is_refused(good.substr(0, at));
    is_refused(std::string(good).erase(at, 1));
    is_refused(std::string(good).insert(at, at % 2 == 0 ? " " : "0"));
    if (at > 0 && good[at] != good[at - 1]) {
      std::string text = good;
      std::swap(text[at], text[at - 1]);
      is_refused(text);
    }
  }
  is_refused(good + "\n");
  is_refused(good + good);
}

TEST_CASE("hostile texts are refused") {
  Folder folder;
  save(folder / "good", {Tree::Dict{{"w", at::ones({3})}}, {}, Tree::Dict{{"step", 1}}});
  const Files good = read_files(folder / "good");
  save(folder / "outside", {Tree::Dict{{"w", at::ones({3})}}, {}, Tree::Dict{}});
  const std::string path = folder / "bad", index = "params.safetensors.index.json";
  auto error_of = [&](const std::string& file, const std::string& text) {
    Files files = good;
    files[file] = text;
    write_files(path, files);
    if (file != "info.json") sum_again(path);
    std::string error = message_of([&] { load(path); });
    check_contains(error, path + "/" + file);
    return error;
  };

  std::string sum = R"({"bytes": 1, "xxh3": "0"})";
  const std::vector<std::pair<std::string, std::string>> infos = {
      {"[]", "does not end with its XXH3-64"},
      {"3", "does not end with its XXH3-64"},
      {"{}", "does not end with its XXH3-64"},
      {sealed(R"({"files": {}})"), "its field format is missing, expected 1"},
      {sealed(R"({"format": "1", "files": {}})"), "its field format is missing, expected 1"},
      {sealed(R"({"format": 1})"), "the field files is missing"},
      {sealed(R"({"format": 1, "files": []})"), "expected an object"},
      {sealed(R"({"format": 1, "files": null})"), "expected an object"},
      {sealed(R"({"format": 1, "files": {"../x": )" + sum + "}}"),
       "is not the name of a file in the same folder"},
      {sealed(R"({"format": 1, "files": {"/etc/passwd": )" + sum + "}}"),
       "is not the name of a file"},
      {sealed(R"({"format": 1, "files": {"..": )" + sum + "}}"), "is not the name of a file"},
      {sealed(R"({"format": 1, "files": {"": )" + sum + "}}"), "is not the name of a file"},
      {sealed(R"({"format": 1, "files": {"a": 3}})"), "'a' has no bytes and xxh3"},
      {sealed(R"({"format": 1, "files": {"a": {"bytes": 1}}})"), "'a' has no bytes and xxh3"},
      {sealed(R"({"format": 1, "files": {"a": {"bytes": "1", "xxh3": "0"}}})"),
       "'a' has no bytes and xxh3"},
      {sealed(R"({"format": 1, "files": {"a": {"bytes": 1, "xxh3": 0}}})"),
       "'a' has no bytes and xxh3"},
      {sealed(R"({"format": 1, "files": {"a": {"bytes": 1e99, "xxh3": "0"}}})"),
       "'a' has no bytes and xxh3"},
      {sealed(R"({"format": 1, "files": {}, "frozen": 3})"),
       "frozen: it is an integer, expected an object"},
      {sealed(R"({"format": 1, "files": {}, "frozen": {"a": 3}})"), "'a' has no dtype"},
      {sealed(R"({"format": 1, "files": {}, "frozen": {"a": {"dtype": "F33"}}})"),
       "the unknown dtype 'F33'"},
      {sealed(
           R"({"format": 1, "files": {}, "frozen": {"a": {"dtype": "F32", "xxh3": "0", "file": "f"}}})"),
       "'a' has no tensor"},
      {sealed(
           R"({"format": 1, "files": {}, "frozen": {"a": {"dtype": "F32", "xxh3": "0", "file": "f",)"
           R"( "tensor": "t"}}})"),
       "'a' has no shape"},
      {sealed(
           R"({"format": 1, "files": {}, "frozen": {"a": {"dtype": "F32", "xxh3": "0", "file": "f",)"
           R"( "tensor": "t", "shape": [-1]}}})"),
       "a shape with other values than sizes"},
      {sealed(R"({"format": 1, "files": {}, "files": {}})"), "twice"},
      {sealed("{\"files\": {}, \"a\": \"\xff\"}"), "UTF-8"},
      {"", "info.json"},
      {sealed(std::string(1'000'000, '[') + "}"), "levels"},
  };
  for (const auto& [text, message] : infos) {
    CAPTURE(text.substr(0, 200));
    check_contains(error_of("info.json", text), message);
  }
  Files files = good;
  files["info.json"] = sealed(R"({"format": 1, "files": {}})");
  write_files(path, files);
  check_contains(message_of([&] { load(path); }), path + ": there is no params in it");
  files["info.json"] =
      sealed(R"({"format": 1, "files": {"info.json": {"bytes": -1, "xxh3": "0"}}})");
  write_files(path, files);
  check_contains(message_of([&] { load(path); }), "expected -1");
  files = good;
  fs::remove_all(path);
  fs::create_directories(path + "/info.json");
  check_contains(message_of([&] { load(path); }), path + "/info.json");

  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += R"({\"list\":[)";
  const std::string tensor = R"({\"tensor\":\"w\"})";
  const std::vector<std::pair<std::string, std::string>> indices = {
      {"\"params.safetensors\"", "\"../outside/params.safetensors\""},
      {"\"params.safetensors\"", "\"/etc/passwd\""},
      {"\"params.safetensors\"", "\"none.safetensors\""},
      {"\"params.safetensors\"", "12"},
      {"\"weight_map\"", "\"weights\""},
      {"\"metadata\"", "\"data\""},
      {"\"redco.tree\"", "\"tree\""},
      {"\"redco.tree\": ", "\"redco.tree\": 3, \"text\": "},
      {tensor, R"({\"tensor\":\"v\"})"},
      {tensor, R"({\"list\":[]})"},
      {tensor, R"({\"tensor\":3})"},
      {tensor, R"({\"other\":3})"},
      {tensor, "{"},
      {tensor, deep},
  };
  for (const auto& [part, by] : indices) {
    CAPTURE(part);
    CAPTURE(by.substr(0, 200));
    std::string text = good.at(index);
    replace(text, part, by);
    error_of(index, text);
  }
}

TEST_CASE("what a save refuses, it leaves as it was") {
  Folder folder;
  write_bytes(folder / "file", "text");
  fs::create_directories(folder / "work/src");
  write_bytes(folder / "work/thesis.tex", "text");
  fs::create_directory(folder / "empty");
  Checkpoint checkpoint{Tree::Dict{{"w", at::ones({3})}}, {}, Tree::Dict{}};
  auto error_of = [&](const std::string& path, const redco::SaveCheckpointOptions& options = {}) {
    return message_of([&] { save(path, checkpoint, options); });
  };
  check_contains(error_of(folder / "file"), folder / "file: there is a file of this name");
  check_contains(error_of(folder / "work"), folder / "work: the folder holds other things");
  check_contains(error_of(folder / "work/"), folder / "work: the folder holds other things");
  check_contains(error_of(folder / "file/last"), "cannot write " + (folder / "file/last"));
  check_contains(error_of("/"), "the path ends without a name");
  check_contains(error_of("/proc/none/last"), "cannot write /proc/none/last");
  check_contains(error_of(folder / "a", {.also = {folder / "work"}}), "holds other things");
  check_contains(error_of(folder / "a", {.max_shard_size = 0}), "max_shard_size is 0");
  checkpoint.params["w"] = at::ones({1}, at::kComplexFloat);
  check_contains(error_of(folder / "a"), "'w'");
  checkpoint.params = Tree::Dict{{"\xff", at::ones({1})}};
  check_contains(error_of(folder / "a"), "UTF-8");
  checkpoint = {Tree::Dict{}, {}, Tree::Dict{{"x", at::ones({1})}}};
  check_contains(error_of(folder / "a"), "info");
  checkpoint.info = Tree::Dict{{"x", std::numeric_limits<double>::quiet_NaN()}};
  check_contains(error_of(folder / "a"), "info");
  CHECK(names_in(folder.path) == std::set<std::string>{"empty", "file", "work"});
  CHECK(names_in(folder / "work") == std::set<std::string>{"src", "thesis.tex"});

  checkpoint.info = Tree::Dict{};
  save(folder / "empty", checkpoint);
  save(folder / "trailing/", checkpoint);
  CHECK(names_in(folder.path) == std::set<std::string>{"empty", "file", "trailing", "work"});
}

TEST_CASE("other folders, the pointer, and how many stay") {
  Folder folder;
  auto step = [&](int64_t n, const redco::SaveCheckpointOptions& options) {
    save(folder / ("step_" + std::to_string(n)),
         {Tree::Dict{{"w", at::full({3}, double(n))}}, {}, Tree::Dict{{"step", n}}}, options);
  };
  auto step_in = [&](const std::string& name) {
    return load(folder / name).info.at("step").as<int64_t>();
  };
  redco::SaveCheckpointOptions options{.also = {folder / "min_loss", folder / "epoch_3"},
                                       .pointer = folder / "last_ckpt.txt",
                                       .keep_last_k = 2};
  step(9, options);
  CHECK(names_in(folder.path) ==
        std::set<std::string>{"epoch_3", "last_ckpt.txt", "min_loss", "step_9"});
  CHECK(read_bytes(folder / "last_ckpt.txt") == "step_9\n");
  CHECK(fs::hard_link_count(folder / "min_loss/params.safetensors") == 3);
  CHECK(step_in("min_loss") == 9);

  fs::create_directory(folder / "step_x");
  options.also = {folder / "min_loss"};
  for (int64_t n : {10, 11}) step(n, options);
  CHECK(names_in(folder.path) == std::set<std::string>{"epoch_3", "last_ckpt.txt", "min_loss",
                                                       "step_10", "step_11", "step_x"});
  CHECK(step_in("min_loss") == 11);
  CHECK(step_in("epoch_3") == 9);
  CHECK(read_bytes(folder / "last_ckpt.txt") == "step_11\n");
}

TEST_CASE("what a killed process left is removed, or gets its name back") {
  Folder folder;
  Checkpoint checkpoint{Tree::Dict{{"w", at::ones({3})}}, {}, Tree::Dict{{"step", 1}}};
  for (const char* name : {"a", "b"}) save(folder / name, checkpoint);
  fs::create_directory(folder / ".c.saving");
  write_bytes(folder / ".c.saving/params.safetensors", "half");
  fs::create_directory(folder / ".b.earlier");
  fs::rename(folder / "a", folder / ".a.earlier");
  write_bytes(folder / ".notes", "of the user");
  fs::create_directory(folder / ".git");
  CHECK(load(folder / "a").info.at("step").as<int64_t>() == 1);  // before anyone cleans
  CHECK(redco::load_params_shape(folder / "a").at("w").tensor().is_meta());
  redco::clean_checkpoints(folder.path);
  CHECK(names_in(folder.path) == std::set<std::string>{".git", ".notes", "a", "b"});
  CHECK(load(folder / "a").info.at("step").as<int64_t>() == 1);
  redco::clean_checkpoints(folder / "none");
}

// Model folders: one file or several with an index, read and written.
#include <redco/error.h>
#include <redco/sharding.h>
#include <redco/weights.h>

#include "files.h"
#include "processes.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <set>
#include <sstream>

namespace fs = std::filesystem;
using redco::Weights;

namespace {

using Tensors = std::map<std::string, at::Tensor>;

std::set<std::string> files_in(const Folder& folder) {
  std::set<std::string> names;
  for (const auto& item : fs::directory_iterator(folder.path)) names.insert(item.path().filename());
  return names;
}

// Tensors of 40 bytes, all elements `value`.
Tensors tensors_of(float value, const std::string& names = "abc") {
  Tensors tensors;
  for (char name : names) tensors[std::string(1, name)] = at::full({10}, value);
  return tensors;
}

void check_has(const Folder& folder, const Tensors& tensors) {
  Weights weights(folder.path);
  CHECK(weights.keys().size() == tensors.size());
  for (const auto& [name, tensor] : tensors) CHECK(at::equal(weights.tensor(name), tensor));
}

const std::string weights_index = "model.safetensors.index.json";

std::string index_text(const std::string& map) { return "{\"weight_map\":{" + map + "}}"; }

}  // namespace

TEST_CASE("a save of one file, of several and of one again; what is stale goes") {
  Folder folder;
  write_bytes(folder / "config.json", "{}");
  Tensors tensors = tensors_of(1, "abcd");
  redco::save_weights(folder.path, tensors);
  CHECK(files_in(folder) == std::set<std::string>{"config.json", "model.safetensors"});
  check_has(folder, tensors);
  CHECK(redco::SafetensorsFile(folder / "model.safetensors").metadata() ==
        std::map<std::string, std::string>{{"format", "pt"}});

  write_bytes(folder / ".model.safetensors.12-0.redco", "left by a killed process");
  redco::save_weights(folder.path, tensors, {.max_shard_size = 80, .metadata = {{"k", "v"}}});
  CHECK(files_in(folder) == std::set<std::string>{"config.json", weights_index,
                                                  "model-00001-of-00002.safetensors",
                                                  "model-00002-of-00002.safetensors"});
  CHECK(read_bytes(folder / weights_index) == R"({
  "metadata": {
    "total_size": 160
  },
  "weight_map": {
    "a": "model-00001-of-00002.safetensors",
    "b": "model-00001-of-00002.safetensors",
    "c": "model-00002-of-00002.safetensors",
    "d": "model-00002-of-00002.safetensors"
  }
}
)");
  check_has(folder, tensors);
  CHECK(redco::SafetensorsFile(folder / "model-00002-of-00002.safetensors").metadata() ==
        std::map<std::string, std::string>{{"format", "pt"}, {"k", "v"}});
  CHECK(Weights(folder / weights_index).keys() == std::vector<std::string>{"a", "b", "c", "d"});
  CHECK(Weights(folder / "model-00002-of-00002.safetensors").keys() ==
        std::vector<std::string>{"c", "d"});

  redco::save_weights(folder.path, tensors, {.max_shard_size = 40});
  CHECK(files_in(folder).size() == 6);
  check_has(folder, tensors);
  redco::save_weights(folder.path, tensors_of(2));
  CHECK(files_in(folder) == std::set<std::string>{"config.json", "model.safetensors"});
  check_has(folder, tensors_of(2));
}

TEST_CASE("a tensor above the limit has a file of its own, and the part it interrupts goes on") {
  Folder folder;
  Tensors tensors = tensors_of(1, "acd");
  tensors["b"] = at::zeros({100});
  redco::save_weights(folder / "new/folder", tensors, {.max_shard_size = 80});
  auto keys = [&](const std::string& name) {
    return redco::SafetensorsFile(folder / ("new/folder/" + name)).keys();
  };
  CHECK(keys("model-00001-of-00003.safetensors") == std::vector<std::string>{"b"});
  CHECK(keys("model-00002-of-00003.safetensors") == std::vector<std::string>{"a", "c"});
  CHECK(keys("model-00003-of-00003.safetensors") == std::vector<std::string>{"d"});
}

TEST_CASE("no tensors, a wrong limit and what cannot be written") {
  Folder folder;
  redco::save_weights(folder.path, {});
  CHECK(Weights(folder.path).keys().empty());
  check_contains(message_of([&] { redco::save_weights(folder.path, {}, {.max_shard_size = 0}); }),
                 "max_shard_size is 0, expected at least one byte");
  check_contains(message_of([&] {
                   redco::save_weights(folder.path, {{"x", at::zeros({1}, at::kComplexFloat)}});
                 }),
                 "tensor 'x' has dtype ComplexFloat");
  write_bytes(folder / "file", "");
  check_contains(message_of([&] { redco::save_weights(folder / "file/x", {}); }),
                 "cannot make the folder " + (folder / "file/x") + ": Not a directory");
}

TEST_CASE("an index that does not agree with its files is an Error") {
  Folder folder;
  redco::save_safetensors(folder / "1.safetensors", {{"a", at::zeros({1})}});
  redco::save_safetensors(folder / "2.safetensors", {{"b", at::zeros({1})}, {"c", at::zeros({1})}});
  const std::string a = R"("a":"1.safetensors",)", b = R"("b":"2.safetensors",)";
  const std::string good = index_text(a + b + R"("c":"2.safetensors")");
  const std::pair<std::string, const char*> cases[] = {
      {"", "not valid JSON"},
      {good + "x", "not valid JSON"},
      {"[]", "the index is [], expected an object with weight_map"},
      {"{}", "the field weight_map is missing"},
      {R"({"weight_map":[]})", "weight_map is not an object"},
      {R"({"metadata":1,"weight_map":{}})", "metadata is not an object"},
      {R"({"weight_map":{},"weight_map":{}})", "the key 'weight_map' is there twice"},
      {index_text(a + R"("a":"2.safetensors")"), "the key 'a' is there twice"},
      {index_text(R"("a":1)"), "tensor 'a': the file is 1, expected a string"},
      {index_text(R"("a":null)"), "tensor 'a': the file is null, expected a string"},
      {index_text(R"("a":"")"), "tensor 'a': the file '' is not the name of a file"},
      {index_text(R"("a":"..")"), "'..' is not the name of a file"},
      {index_text(R"("a":"../1.safetensors")"), "'../1.safetensors' is not the name of a file"},
      {index_text(R"("a":"/etc/passwd")"), "'/etc/passwd' is not the name of a file"},
      {index_text(R"("a":"x\\1.safetensors")"), "is not the name of a file"},
      {index_text(R"("a":"1.safetensors\u0000")"), "is not the name of a file"},
      {index_text(a + b + R"("c":"3.safetensors")"),
       "tensor 'c' is in '3.safetensors', but there is no such file"},
      {index_text(a + b + R"("c":"2.safetensors","d":"1.safetensors")"),
       "tensor 'd' is in '1.safetensors', but the file does not have it"},
      {index_text(a + R"("c":"2.safetensors")"),
       "tensor 'b' of the file '2.safetensors' is not listed"},
      {index_text(R"("a":"pytorch_model-00001-of-00002.bin")"), "there is no such file"},
      {std::string(1'000'000, '['), "nested deeper than the 8 levels"},
  };
  for (const auto& [text, message] : cases) {
    CAPTURE(text.substr(0, 200));
    write_bytes(folder / weights_index, text);
    std::string error = message_of([&] { Weights weights(folder.path); });
    check_contains(error, message);
    check_contains(error, folder.path);
  }
  write_bytes(folder / weights_index, good);
  CHECK(Weights(folder.path).keys() == std::vector<std::string>{"a", "b", "c"});
  check_contains(message_of([&] { Weights(folder.path).tensor("aa"); }),
                 "no tensor 'aa' among the 3; the nearest is 'a'");

  redco::save_safetensors(folder / "1.safetensors", {{"a", at::zeros({1})}, {"b", at::zeros({1})}});
  check_contains(message_of([&] { Weights weights(folder.path); }),
                 "tensor 'b' of the file '1.safetensors' is listed in '2.safetensors'");
  write_bytes(folder / "2.safetensors", "short");
  check_contains(message_of([&] { Weights weights(folder.path); }),
                 "2.safetensors: the file has 5 bytes");
}

TEST_CASE("a folder without weights, and safetensors before files of torch.save") {
  Folder folder;
  check_contains(message_of([&] { Weights weights(folder.path); }),
                 folder.path.string() + ": no weights in this folder");
  check_contains(message_of([&] { Weights weights(folder / "none"); }), "No such file");
  write_bytes(folder / "model.pt", "PK\3\4" + std::string(60, '\x7F'));
  check_contains(message_of([&] { Weights weights(folder.path); }), "; it has 'model.pt'");
  check_contains(message_of([&] { redco::SafetensorsFile file(folder / "model.pt"); }),
                 "model.pt: this file was written by PyTorch's torch.save, expected safetensors");
  check_contains(message_of([&] { Weights weights(folder / "model.pt"); }),
                 "model.pt: there is no end of a zip archive");
  write_bytes(folder / "pytorch_model.bin", "PK");
  check_contains(message_of([&] { Weights weights(folder.path); }), "pytorch_model.bin: ");
  redco::save_weights(folder.path, tensors_of(1));
  check_has(folder, tensors_of(1));
}

// The calls by which a save changes a folder, in place of libc's: the process dies at one of them.
namespace {
int calls_until_death = -1;
void maybe_die() {
  if (calls_until_death-- == 0) _exit(42);
}
}  // namespace
#define EXPORTED __attribute__((visibility("default")))
extern "C" EXPORTED int rename(const char* from, const char* to) {
  maybe_die();
  auto result = int(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
  maybe_die();
  return result;
}
extern "C" EXPORTED int link(const char* from, const char* to) noexcept {
  maybe_die();
  return int(syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
}
extern "C" EXPORTED int unlink(const char* path) noexcept {
  maybe_die();
  return int(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
extern "C" EXPORTED int fsync(int) {  // of a process that dies: nothing is lost
  maybe_die();
  return 0;
}

TEST_CASE("killed at any moment a save leaves the earlier weights or the new ones, whole") {
  // Bytes of a part before and after: one file, two parts and three, in all combinations.
  for (int64_t before : {1000, 80, 40})
    for (int64_t after : {1000, 80, 40}) {
      CAPTURE(before);
      CAPTURE(after);
      Folder folder;
      bool saw_old = false, saw_new = false;
      for (int moment = 0, status = 42; status == 42; ++moment) {
        CAPTURE(moment);
        redco::save_weights(folder.path, tensors_of(1), {.max_shard_size = before});
        for (int attempt = 0; attempt < 2; ++attempt) {  // the second finds what the first left
          pid_t child = fork();
          if (child == 0) {
            calls_until_death = moment;
            redco::save_weights(folder.path, tensors_of(2), {.max_shard_size = after});
            _exit(0);
          }
          REQUIRE(waitpid(child, &status, 0) == child);
          REQUIRE(WIFEXITED(status));
          status = WEXITSTATUS(status);
          float value = Weights(folder.path).tensor("a")[0].item<float>();
          check_has(folder, tensors_of(value));
          (value == 1 ? saw_old : saw_new) = true;
        }
      }
      CHECK(saw_old);
      CHECK(saw_new);
      CHECK(folder.count() == (after == 1000 ? 1 : after == 80 ? 3 : 4));
    }
}

TEST_CASE("sharded tensors are written by the first process, whole") {
  Folder folder;
  setenv("REDCO_TEST_SHARDED", folder.path.c_str(), 0);  // the folder of the first program
  in_processes({.n_processes = 2, .n_model_shards = 2}, [&](redco::Mesh& mesh) {
    std::shared_ptr<const redco::Mesh> shared(&mesh, [](const redco::Mesh*) {});
    std::string target = std::getenv("REDCO_TEST_SHARDED");
    Tensors tensors, whole;
    for (int i = 0; i < 5; ++i) {
      std::string name(1, char('a' + i));
      whole[name] = at::arange(64).to(i == 3 ? at::kHalf : at::kFloat).view({8, 8}) + i;
      redco::Placements placements;
      if (i < 4) placements[redco::Mesh::mp] = redco::Placement::shard(i % 2);
      tensors[name] = redco::shard(whole[name], shared, placements);
    }
    tensors["plain"] = whole["plain"] = at::arange(3);
    redco::save_weights(target, tensors, {.max_shard_size = 600}, shared);
    Weights weights(target);
    CHECK(weights.keys().size() == whole.size());
    for (const auto& [name, tensor] : whole) CHECK(at::equal(weights.tensor(name), tensor));

    // The first process cannot write: no process waits, all learn of it, the earlier weights stay.
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit none{mesh.processes().rank == 0 ? rlim_t{100} : RLIM_INFINITY, RLIM_INFINITY};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &none) == 0);
    for (auto save :
         {+[](const std::string&to, const Tensors&what,
              const std::shared_ptr<const redco::Mesh>&on) {
            redco::save_weights(to, what, {.max_shard_size = 600}, on);
          },
          +[](const std::string&to, const Tensors&what, const std::shared_ptr<const redco::Mesh>&) {
            redco::save_safetensors(to + "/single", what);
          }}) {
      std::string text = message_of([&] { save(target, tensors, shared); });
      check_contains(text, "File too large");
      check_contains(text, target);
    }
    none.rlim_cur = RLIM_INFINITY;
    REQUIRE(setrlimit(RLIMIT_FSIZE, &none) == 0);
    for (const auto& [name, tensor] : whole) CHECK(at::equal(Weights(target).tensor(name), tensor));
    std::string text =
        message_of([&] { redco::save_weights("/proc/none/x", tensors, {}, shared); });
    check_contains(text, "cannot make the folder /proc/none/x");
  });
}

namespace {

// Bytes of the mapping of `path` that this process has touched.
size_t resident(const std::string& path) {
  std::ifstream maps("/proc/self/smaps");
  size_t bytes = 0;
  bool is_ours = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ') && line.find(':') > line.find(' '))
      is_ours = line.size() > path.size() &&
                line.compare(line.size() - path.size(), path.size(), path) == 0;
    if (is_ours && line.compare(0, 4, "Rss:") == 0) bytes += std::stoul(line.substr(4)) * 1024;
  }
  return bytes;
}

}  // namespace

TEST_CASE("a process reads only its part of the file into a spread parameter") {
  Folder folder;
  constexpr int64_t rows = 8192, columns = 1024;  // 32 MB, 16 for each process
  redco::save_weights(folder.path,
                      {{"w", at::arange(rows * columns, at::kFloat).view({rows, columns})}});
  setenv("REDCO_TEST_SPREAD", folder.path.c_str(), 0);
  in_processes({.n_processes = 2, .n_model_shards = 2}, [&](redco::Mesh& mesh) {
    std::shared_ptr<const redco::Mesh> shared(&mesh, [](const redco::Mesh*) {});
    std::string file = std::string(std::getenv("REDCO_TEST_SPREAD")) + "/model.safetensors";
    Weights weights(file);
    CHECK(resident(file) < 1 << 20);
    for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      at::Tensor part = redco::empty_spread({rows, columns}, dtype, shared);
      REQUIRE(redco::is_sharded(part));
      size_t before = peak_memory();
      at::Tensor whole = weights.tensor("w");
      part.copy_(whole);
      at::Tensor local = redco::to_local(part);
      CHECK(local[0][0].item<float>() == float(mesh.processes().rank * rows / 2 * columns));
      CHECK(peak_memory() - before < (dtype == at::kFloat ? 36 << 20 : 12 << 20));
      CHECK(resident(file) >= 16 << 20);
      CHECK(resident(file) < 20 << 20);  // the system maps in pieces of up to 2 MB
      whole.reset();
      CHECK(resident(file) < 1 << 20);
    }
  });
}

TEST_CASE("a save brings together one tensor at a time") {
  Folder folder;
  setenv("REDCO_TEST_SAVED", folder.path.c_str(), 0);
  in_processes({.n_processes = 2, .n_model_shards = 2}, [&](redco::Mesh& mesh) {
    std::shared_ptr<const redco::Mesh> shared(&mesh, [](const redco::Mesh*) {});
    Tensors tensors;  // 16 of 8 MB, half of them on each process
    for (char name = 'a'; name < 'q'; ++name) {
      tensors[std::string(1, name)] = redco::empty_spread({2048, 1024}, at::kFloat, shared);
      tensors[std::string(1, name)].fill_(name);
    }
    std::string target = std::getenv("REDCO_TEST_SAVED");
    size_t before = peak_memory();
    redco::save_weights(target, tensors, {.max_shard_size = 50'000'000}, shared);
#ifndef __SANITIZE_ADDRESS__                   // which keeps freed memory for a while
    CHECK(peak_memory() - before < 64 << 20);  // of 128 MB
#endif
    CHECK(Weights(target).tensor("p")[2047][1023].item<float>() == 'p');
  });
}

// How kernels for GPUs are compiled, kept and launched, with a driver and a compiler that record
// what they are asked for.
#include "../../engine/kernels/cuda_kernels.h"
#include "../../engine/kernels/kept_code.h"
#include "../bindings/fake_cuda.h"

#include "fake_driver.h"
#include "files.h"

#include <redco/nn.h>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/Device.h>
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace fs = std::filesystem;
using redco::CudaKernels;
using redco::kept_code;
using redco::testing::fake_driver;

namespace {

const c10::Device first(c10::kCUDA, 0), second(c10::kCUDA, 1);

// A fresh cache folder. A second CudaKernels reads it as a second process would.
struct Cache {
  Folder folder;

  Cache() {
    redco::testing::fake_cuda();  // so that it is linked
    fake_driver() = {};
    setenv("XDG_CACHE_HOME", folder.path.c_str(), 1);
  }
  ~Cache() { unsetenv("XDG_CACHE_HOME"); }

  // Launches a kernel of the source, and returns how many sources have been compiled.
  int launched(const char* source, c10::Device device = first) const {
    CudaKernels(source).launch("kernel", device, {}, nullptr);
    REQUIRE_FALSE(fake_driver().launches.empty());
    CHECK(fake_driver().launches.back().code.ends_with(source));
    return fake_driver().n_compiled;
  }

  std::string only_file() const {
    std::vector<std::string> all;
    for (const auto& item : fs::directory_iterator(folder / "redco/kernels"))
      all.push_back(item.path());
    REQUIRE(all.size() == 1);
    return all[0];
  }
};

}  // namespace

TEST_CASE("code is made again for another source, compiler or GPU, and kept for the same") {
  const Cache cache;
  CHECK(cache.launched("first") == 1);
  CHECK(cache.launched("first") == 1);
  CHECK(cache.launched("other") == 2);
  fake_driver().minor_of_device[1] = 3;
  CHECK(cache.launched("first", second) == 3);
  CHECK(cache.launched("first", second) == 3);
  CHECK(fake_driver().launches.back().code.starts_with("--gpu-architecture=sm_93 "));
  fake_driver().nvrtc_minor = 2;
  CHECK(cache.launched("first") == 4);
  fake_driver().nvrtc_minor = 1;
  CHECK(cache.launched("first") == 4);
}

TEST_CASE("a damaged file of the cache costs a compilation, and is written again") {
  const Cache cache;
  CHECK(cache.launched("source") == 1);
  const std::string path = cache.only_file(), bytes = read_bytes(path);
  std::string changed = bytes;
  changed.back() ^= 1;
  int n = 1;
  for (const std::string& damaged : {std::string(), bytes.substr(0, 20),
                                     bytes.substr(0, bytes.size() - 1), changed, bytes + "x"}) {
    CAPTURE(damaged);
    write_bytes(path, damaged);
    CHECK(cache.launched("source") == ++n);
    CHECK(cache.only_file() == path);
    CHECK(read_bytes(path) == bytes);
    CHECK(cache.launched("source") == n);
  }
}

TEST_CASE("a cache that cannot be written costs the compilations") {
  const Cache cache;
  write_bytes(cache.folder / "redco", "a file");
  CHECK(cache.launched("source") == 1);
  CHECK(cache.launched("source") == 2);
  int n = 0;
  const auto make = [&n] { return std::to_string(++n); };
  CHECK(kept_code("", "key", make) == "1");
  CHECK(kept_code("", "key", make) == "2");
  fs::create_directories(cache.folder / "codes");
  CHECK(kept_code(cache.folder / "codes", "key", make) == "3");
  CHECK(kept_code(cache.folder / "codes", "key", make) == "3");
  fs::path file;
  for (const auto& item : fs::directory_iterator(cache.folder / "codes")) file = item.path();
  fs::remove(file);
  fs::create_directories(file / "in the way");
  CHECK(kept_code(cache.folder / "codes", "key", make) == "4");
}

TEST_CASE("a source that cannot be compiled: the compiler's words, and nothing is kept") {
  const Cache cache;
  fake_driver().fails_to_compile = true;
  check_contains(message_of([&] { cache.launched("source"); }), {"sm_90", "not so good"});
  fake_driver().fails_to_compile = false;
  CHECK(cache.launched("source") == 2);
}

TEST_CASE("a launch: its grid, and shared memory that must be asked for") {
  const Cache cache;
  CudaKernels kernels("source");
  kernels.launch("small", first, {.x = 5, .y = 3, .z = 2, .n_threads = 64, .shared_bytes = 49152},
                 nullptr);
  kernels.launch("large", first, {.x = 1 << 30, .n_threads = 1024, .shared_bytes = 49153}, nullptr);
  const auto& launches = fake_driver().launches;
  REQUIRE(launches.size() == 2);
  CHECK(launches[0].kernel == "small");
  CHECK(launches[0].blocks == std::array<unsigned, 3>{5, 3, 2});
  CHECK(launches[0].n_threads == 64);
  CHECK(launches[0].shared_bytes == 49152);
  CHECK(launches[0].most_shared == 0);
  CHECK(launches[1].kernel == "large");
  CHECK(launches[1].blocks == std::array<unsigned, 3>{1 << 30, 1, 1});
  CHECK(launches[1].shared_bytes == 49153);
  CHECK(launches[1].most_shared == 49153);
}

TEST_CASE("a thread that has called nothing of CUDA gets a context, once") {
  const Cache cache;
  CudaKernels kernels("source");
  kernels.launch("kernel", first, {}, nullptr);  // compiles it
  std::thread([&] {
    for (int i = 0; i < 2; ++i) kernels.launch("kernel", first, {}, nullptr);
    CHECK(fake_driver().n_contexts_made[std::this_thread::get_id()] == 1);
  }).join();
  for (const auto& launch : fake_driver().launches) CHECK(launch.has_context);
}

TEST_CASE(
    "attention within segments by flash attention, in 16 bits and unless it is switched off") {
  redco::testing::fake_cuda();
  fake_driver() = {};
  const auto is_flash = [](at::ScalarType dtype) {
    return redco::has_segment_attention(at::empty({2}, at::device(first).dtype(dtype)));
  };
  CHECK(is_flash(at::kBFloat16));
  CHECK(is_flash(at::kHalf));
  CHECK_FALSE(is_flash(at::kFloat));
  at::globalContext().setSDPUseFlash(false);
  CHECK_FALSE(is_flash(at::kBFloat16));
  at::globalContext().setSDPUseFlash(true);
}

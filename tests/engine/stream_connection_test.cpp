// How backends of devices connect and end, with fake devices, and what NCCL is told.
#include "../../engine/mesh/nccl.h"
#include "fake_device.h"
#include "files.h"
#include "processes.h"

#include <redco/group.h>
#include <redco/mesh.h>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <unistd.h>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

using redco::Mesh;
using redco::MeshOptions;
using redco::Processes;
using redco::ReduceOp;
using std::chrono::milliseconds;
using std::chrono::seconds;

using namespace redco::mesh;

TEST_CASE("backends are shut down when the scripts of all processes have ended") {
  static std::chrono::steady_clock::time_point end;  // no process may shut down earlier
  static size_t expected;
  for (bool fails : {false, true}) {
    CAPTURE(fails);
    in_bare_processes({.n_processes = 4}, [&](const Processes& processes) {
      fake::use_devices();
      expected = fails ? 0 : 3;
      // Called after the shutdown, which is registered later. Checks no longer count there.
      std::atexit([] {
        const auto times = fake::shutdowns();
        bool is_right = times.size() == expected;
        for (auto time : times) is_right &= time >= end;
        if (!is_right) _exit(3);
      });
      const MeshOptions options{
          .processes = processes, .n_model_shards = 2, .device_type = fake::type};
      auto mesh = Mesh::make(options);
      CHECK(fake::n_connected() == 3);  // dp, mp, world
      mesh = nullptr;
      mesh = Mesh::make(options);
      CHECK(fake::n_connected() == 3);
      const bool is_last = processes.rank == 3;
      at::Tensor x = at::ones({3}, at::device(mesh->device()));
      mesh->world().all_reduce(x, ReduceOp::sum);
      CHECK(x.cpu()[0].item<double>() == 4);
      if (is_last) std::this_thread::sleep_for(seconds(1));
      if (is_last && fails) redco::report_failure("train.lua:7: out of tea", 2);
      end = std::chrono::steady_clock::now() + milliseconds(is_last ? 0 : 800);
    });
  }
}

TEST_CASE("processes that do not connect, and NCCL's error for those of one GPU, with advice") {
  for (bool waits : {false, true}) {
    in_bare_processes(
        {.n_processes = 2, .time_limit = seconds(30)}, [&](const Processes& processes) {
          fake::use_devices();
          auto backend = device_backend(fake::type);
          backend.connect = [](const DeviceRequest&) -> Backend {
            TORCH_CHECK(false,
                        "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 19000");
          };
          if (waits)
            backend.connect = [](const DeviceRequest&) -> Backend {
              std::this_thread::sleep_for(seconds(60));
              return {};
            };
          set_device_backend(fake::type, backend);
          std::string error = message_of([&] {
            Mesh::make({.processes = processes, .device_type = fake::type, .timeout = seconds(2)});
          });
          if (waits)
            check_contains(error, {"the processes of group \"dp\" did not connect within 2 s",
                                   "NCCL_SOCKET_IFNAME", "NCCL_DEBUG=INFO"});
          else
            check_contains(error, {"the processes of group \"dp\" cannot connect", "Duplicate GPU",
                                   "REDCO_COLLECTIVES=gloo"});
        });
  }
}

TEST_CASE("variables of NCCL are set unless they have a value") {
  in_bare_processes({.n_processes = 1}, [](const Processes& given) {
    auto value = [](const char* name) {
      const char* set = std::getenv(name);
      return std::string(set == nullptr ? "none" : set);
    };
    Processes processes = given;
    processes.store_address = "127.0.0.1";
    const Folder folder;
    const std::string conf = folder / "nccl.conf";
    setenv("NCCL_CONF_FILE", conf.c_str(), 1);
    setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "7", 1);
    setenv("TORCH_NCCL_ENABLE_MONITORING", "1", 1);
    unsetenv("NCCL_SOCKET_IFNAME");
    write_bytes(conf, "NCCL_SOCKET_IFNAME=ib0\n");
    set_nccl_variables(processes);
    CHECK(value("NCCL_SOCKET_IFNAME") == "none");
    CHECK(value("TORCH_FR_BUFFER_SIZE") == "none");
    CHECK(value("TORCH_NCCL_ENABLE_MONITORING") == "1");
    CHECK(value("TORCH_NCCL_ASYNC_ERROR_HANDLING") == "2");

    write_bytes(conf, "NCCL_DEBUG=WARN\n");
    unsetenv("TORCH_NCCL_TRACE_BUFFER_SIZE");
    unsetenv("TORCH_NCCL_ENABLE_MONITORING");
    set_nccl_variables(processes);
    CHECK(value("NCCL_SOCKET_IFNAME") == "=lo");
    CHECK(value("TORCH_FR_BUFFER_SIZE") == "0");
    CHECK(value("TORCH_NCCL_ENABLE_MONITORING") == "0");

    setenv("NCCL_SOCKET_IFNAME", "eth7", 1);
    set_nccl_variables(processes);
    CHECK(value("NCCL_SOCKET_IFNAME") == "eth7");
  });
}

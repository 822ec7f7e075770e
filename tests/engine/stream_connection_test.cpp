// How backends of devices connect and end, with fake devices.
#include "fake_device.h"
#include "processes.h"

#include <redco/group.h>
#include <redco/mesh.h>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <unistd.h>
#include <chrono>
#include <cstdlib>
#include <thread>

using redco::Mesh;
using redco::MeshOptions;
using redco::Processes;
using redco::ReduceOp;
using std::chrono::milliseconds;
using std::chrono::seconds;

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

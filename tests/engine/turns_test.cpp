#include "processes.h"

#include <redco/detail/turns.h>
#include <redco/error.h>
#include <redco/mesh.h>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using redco::Group;
using redco::Mesh;
using redco::ReduceOp;

namespace {

using Clock = std::chrono::steady_clock;

// The processes of a run as Turns has them, on a mesh of two dimensions.
struct Player {
  explicit Player(const redco::Processes& processes)
      : rank(processes.rank),
        turns(processes),
        mesh(Mesh::make({.processes = processes, .n_model_shards = 2})) {}

  // What `body` threw; `is_fine` tells what all agree on.
  template <class Body>
  std::string play(bool is_fine, Body body) {
    has_to_leave = false;
    turns.begin([this] { has_to_leave = true; });
    std::string error;
    try {
      body();
    } catch (const std::exception& thrown) {
      error = thrown.what();
      cause = turns.fail(error).text;
    }
    auto from = Clock::now();
    CHECK(turns.end() == is_fine);
    CHECK(Clock::now() - from < std::chrono::seconds(5));
    return error;
  }

  void check_groups() {
    play(true, [this] {
      for (Group* group : {&mesh->world(), &mesh->group(Mesh::dp), &mesh->group(Mesh::mp)}) {
        at::Tensor sum = group->all_reduce(at::ones({3}), ReduceOp::sum);
        CHECK(at::equal(sum, at::full({3}, group->size())));
        CHECK(group->all_gather(at::full({1}, rank)).size(0) == group->size());
      }
    });
  }

  int64_t rank;
  redco::Turns turns;
  std::shared_ptr<Mesh> mesh;
  std::atomic<bool> has_to_leave = false;
  std::string cause;  // of the newest failure
};

}  // namespace

TEST_CASE("a turn that fails on one process is left by all, and the next ones go on") {
  in_bare_processes({.n_processes = 4}, [](const redco::Processes& processes) {
    Player player(processes);
    player.check_groups();
    Group& world = player.mesh->world();
    int64_t reconnects = player.mesh->reconnects();

    std::string error = player.play(false, [&] {
      if (player.rank == 1) redco::fail("astray");
      world.all_reduce(at::ones({2}), ReduceOp::sum);
    });
    CHECK(error.ends_with(player.rank == 1 ? "astray" : "because process 1 failed: astray"));
    CHECK(player.cause == "astray");
    CHECK(player.mesh->reconnects() == ++reconnects);
    player.check_groups();

    // Many on their way, over several groups, and dropped there.
    error = player.play(false, [&] {
      std::vector<std::unique_ptr<redco::Pending>> started;
      for (int i = 0; i < 8; ++i) {
        if (player.rank == 2 && i == 3) redco::fail("halfway");
        for (Group* group : {&world, &player.mesh->group(Mesh::dp), &player.mesh->group(Mesh::mp)})
          started.push_back(group->start_all_reduce(at::ones({1 << 16}), ReduceOp::sum));
      }
      for (auto& each : started) each->wait();
    });
    CHECK(player.cause == "halfway");
    player.check_groups();

    // One computes, and is asked to leave.
    player.play(false, [&] {
      if (player.rank == 0) redco::fail("early");
      while (player.rank == 3 && !player.has_to_leave) std::this_thread::yield();
    });
    player.check_groups();

    // Some have made one mesh more than the others.
    player.play(false, [&] {
      if (player.rank == 3) redco::fail("less");
      Mesh::make({.processes = processes});
    });
    player.play(true, [&] {
      auto another = Mesh::make({.processes = processes});
      CHECK(another->world().all_gather(at::ones({1})).size(0) == 4);
    });
    CHECK(player.mesh->reconnects() == reconnects + 3);
  });
}

TEST_CASE("process 0 gives out what all do; an interrupt while it waits ends what others do") {
  in_bare_processes({.n_processes = 4}, [](const redco::Processes& processes) {
    Player player(processes);
    for (const char* task : {"one", "", "three"}) {
      if (player.rank == 0)
        player.turns.give(task);
      else
        CHECK(player.turns.take() == task);
      player.play(true, [] {});
    }
    std::string error = player.play(false, [&] {
      if (player.rank == 0) redco::request_interrupt();
      while (player.rank == 2 && !player.has_to_leave) std::this_thread::yield();
      if (player.rank == 2) redco::fail("left");
    });
    if (player.rank == 2) CHECK(player.cause == "interrupted");
    CHECK_NOTHROW(redco::check_interrupt());
    if (player.rank == 0)
      player.turns.give(std::nullopt);
    else
      CHECK(player.turns.take() == std::nullopt);
  });
}

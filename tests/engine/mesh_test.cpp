#include "../../engine/mesh/imagined.h"
#include "files.h"
#include "processes.h"
#include "selection.h"

#include <redco/error.h>
#include <redco/mesh.h>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using redco::Group;
using redco::Mesh;
using redco::Processes;
using redco::ReduceOp;
using redco::mesh::make_imagined_mesh;

namespace {

// How often this thread has got the same event in a row without giving up its core, and the most of
// any thread.
thread_local int n_same = 0;
std::atomic<int> most_same;

// Every collective of the group on one type of numbers, with small whole values. The reductions
// and gathers are of tensors of 6 numbers, `n_times` over.
void check_collectives(Group& group, at::ScalarType type, int64_t n_times = 1) {
  CAPTURE(type);
  CAPTURE(n_times);
  int64_t n = group.size(), rank = group.rank();
  auto of_rank = [&](int64_t r) {
    return at::arange(6).view({2, 3}).add(r + 1).to(type).repeat({1, n_times});
  };
  auto equal = [&](const at::Tensor& a, const at::Tensor& b) {
    return a.scalar_type() == type && at::equal(a, b.to(type));
  };
  at::Tensor all = at::stack([&] {
    std::vector<at::Tensor> each;
    for (int64_t r = 0; r < n; ++r) each.push_back(of_rank(r));
    return each;
  }());
  CHECK(equal(group.all_gather(of_rank(rank)), all));

  at::Tensor sum = type == at::kBool ? all.any(0) : all.sum(0, false, type);
  at::Tensor mine = of_rank(rank);
  CHECK(group.all_reduce(mine, ReduceOp::sum).is_same(mine));
  CHECK(equal(mine, sum));
  // Row r of rank q is q * n + r.
  auto rows = [&](int64_t q) {
    return at::arange(n).add(q * n).view({n, 1, 1}).expand({n, 2, 1}).contiguous().to(type);
  };
  std::vector<at::Tensor> to_me;
  for (int64_t q = 0; q < n; ++q) to_me.push_back(rows(q)[rank]);
  at::Tensor arrived = at::stack(to_me);
  CHECK(equal(group.all_to_all(rows(rank)), arrived));
  CHECK(equal(group.reduce_scatter(rows(rank), ReduceOp::sum),
              type == at::kBool ? arrived.any(0) : arrived.sum(0, false, type)));
  if (at::isComplexType(type)) {
    if (n > 1) CHECK_THROWS_AS(group.all_reduce(of_rank(rank), ReduceOp::max), redco::Error);
    return;
  }
  CHECK(equal(group.all_reduce(of_rank(rank), ReduceOp::max), all.amax(0)));
  CHECK(equal(group.all_reduce(of_rank(rank), ReduceOp::min), all.amin(0)));
  CHECK(equal(group.reduce_scatter(rows(rank), ReduceOp::max), arrived.amax(0)));
  CHECK(equal(group.reduce_scatter(rows(rank), ReduceOp::min), arrived.amin(0)));
}

// Each rank has a NaN, infinities and numbers in another order; and one large number is added to by
// others that a sum in 16 bits would lose one by one.
void check_floats(Group& group, at::ScalarType type, int64_t n_times = 1) {
  CAPTURE(type);
  CAPTURE(n_times);
  int64_t n = group.size(), rank = group.rank();
  constexpr double inf = std::numeric_limits<double>::infinity(), nan = NAN;
  at::Tensor mine = at::tensor({nan, inf, -inf, -1.5, 0.25, -nan}, at::kDouble)
                        .to(type)
                        .roll(rank)
                        .repeat(n_times);
  at::Tensor rows = mine.expand({n, -1}).contiguous(), all = group.all_gather(mine);
  for (ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
    at::Tensor expected = op == ReduceOp::max ? all.amax(0) : all.amin(0);
    CHECK(at::allclose(group.all_reduce(mine.clone(), op), expected, 0, 0, true));
    CHECK(at::allclose(group.reduce_scatter(rows, op), expected, 0, 0, true));
  }
  double large = type == at::kHalf ? 4096 : 512;  // the last digit is 4 in 16 bits
  at::Tensor number = at::full({3 * n_times}, rank == 0 ? large : 1, at::kDouble).to(type);
  at::Tensor sum = at::full({3 * n_times}, large + double(n - 1), at::kDouble).to(type);
  CHECK(at::equal(group.all_reduce(number.clone(), ReduceOp::sum), sum));
  CHECK(at::equal(group.reduce_scatter(number.expand({n, -1}).contiguous(), ReduceOp::sum), sum));
  // One element, whatever its strides.
  at::Tensor one = number.as_strided({1, 1}, {7, 5});
  CHECK(group.all_gather(one).sizes() == at::IntArrayRef({n, 1, 1}));
}

constexpr at::ScalarType types[] = {at::kFloat, at::kDouble, at::kHalf,         at::kBFloat16,
                                    at::kLong,  at::kInt,    at::kShort,        at::kChar,
                                    at::kByte,  at::kBool,   at::kComplexFloat, at::kComplexDouble};

}  // namespace

// In place of the C library's, by which program/workarounds/event_wait.cpp waits and gives up the
// core.
extern "C" int sched_yield() noexcept {
  n_same = 0;
  return int(syscall(SYS_sched_yield));
}

extern "C" int epoll_pwait(int descriptor, epoll_event* events, int most, int timeout,
                           const sigset_t*) {
  thread_local epoll_event last{};
  const auto n = int(syscall(SYS_epoll_pwait, descriptor, events, most, timeout, nullptr, 8));
  const bool is_same =
      n > 0 && events[0].events == last.events && events[0].data.u64 == last.data.u64;
  n_same = is_same ? n_same + 1 : 0;
  most_same = std::max(most_same.load(), n_same);
  last = n > 0 ? events[0] : epoll_event{};
  return n;
}

TEST_CASE("one process answers at once, and is counted as nothing") {
  auto mesh = Mesh::make({});
  for (Group* group : {&mesh->group(Mesh::dp), &mesh->group(Mesh::mp), &mesh->world()}) {
    CHECK(group->size() == 1);
    CHECK(group->rank() == 0);
    for (auto type : types) check_collectives(*group, type);
    for (const auto& traffic : group->counters()) CHECK(traffic.count + traffic.bytes == 0);
  }
  CHECK_THROWS_AS(Mesh::make({.n_model_shards = 2}), redco::UsageError);
}

TEST_CASE("a mesh of GPUs is one, or tells what is missing") {
  std::string error = "none";
  try {
    auto mesh = Mesh::make({.device_type = c10::kCUDA});
    CHECK(mesh->device().is_cuda());
  } catch (const redco::Error& missing) {
    error = missing.what();
  }
  INFO(error);
  CHECK((error == "none" || error.find("device \"cuda\"") == 0));
}

TEST_CASE("every collective on every type, in two, three and four processes") {
  for (int64_t n : {2, 3, 4}) {
    in_processes({.n_processes = n}, [&](Mesh& mesh) {
      CHECK(mesh.size(Mesh::dp) == n);
      CHECK(mesh.size(Mesh::mp) == 1);
      CHECK(mesh.coordinate(Mesh::dp) == mesh.processes().rank);
      for (auto type : types) check_collectives(mesh.group(Mesh::dp), type);
      check_collectives(mesh.world(), at::kFloat);
      for (auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16})
        check_floats(mesh.world(), type);
    });
  }
  // Large tensors are reduced in another way.
  in_processes({.n_processes = 3}, [&](Mesh& mesh) {
    constexpr int64_t n_times = 22'000;
    for (auto type : types) check_collectives(mesh.world(), type, n_times);
    for (auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16})
      check_floats(mesh.world(), type, 2 * n_times);
  });
}

TEST_CASE("large sums of 16-bit floats: rounded once, sent in 16 bits, as imagined") {
  in_processes({.n_processes = 3}, [](Mesh& mesh) {
    Group& group = mesh.world();
    auto imagined_mesh = make_imagined_mesh({.zero = 3});
    Group& imagined = imagined_mesh->group(Mesh::dp);
    for (auto type : {at::kHalf, at::kBFloat16})
      for (int64_t numel : {420'000, 420'001}) {  // three parts, or with zeros at the end
        auto of_rank = [&](int64_t rank) {
          return at::sin(at::arange(numel) * double(rank + 1)).view({-1, 1}).to(type);
        };
        at::Tensor sum = of_rank(0).to(at::kFloat) + of_rank(1) + of_rank(2);
        at::Tensor mine = of_rank(group.rank());
        redco::Traffic before = group.counters()[Group::all_reduce_kind];
        CHECK(group.all_reduce(mine, ReduceOp::sum).is_same(mine));
        CHECK(at::equal(mine, sum.to(type)));
        redco::Traffic after = group.counters()[Group::all_reduce_kind];
        CHECK(after.count == before.count + 1);
        // Two parts of three, twice.
        int64_t bytes = 2 * 2 * ((numel + 2) / 3) * 2;
        CHECK(after.bytes == before.bytes + bytes);

        before = imagined.counters()[Group::all_reduce_kind];
        imagined.all_reduce(at::empty({numel}, at::device(at::kMeta).dtype(type)), ReduceOp::sum);
        CHECK(imagined.counters()[Group::all_reduce_kind].bytes == before.bytes + bytes);
        at::Tensor three = imagined.all_reduce(at::ones({numel}, type), ReduceOp::sum);
        CHECK(at::equal(three, at::full({numel}, 3, type)));
      }
  });
}

TEST_CASE("waiting for others is told in seconds") {
  in_processes({.n_processes = 2}, [](Mesh& mesh) {
    mesh.world().all_reduce(at::zeros({1}), ReduceOp::sum);
    double before = redco::seconds_in_collectives();
    if (mesh.processes().rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    mesh.world().all_reduce(at::zeros({1}), ReduceOp::sum);
    double waited = redco::seconds_in_collectives() - before;
    CHECK((mesh.processes().rank == 0) == (waited > 0.1));
  });
}

TEST_CASE("a grid: neighbouring ranks share a row of mp") {
  in_processes({.n_processes = 4, .n_model_shards = 2}, [](Mesh& mesh) {
    int64_t rank = mesh.processes().rank;
    CHECK(mesh.coordinate(Mesh::dp) == rank / 2);
    CHECK(mesh.coordinate(Mesh::mp) == rank % 2);
    auto members = [&](Group& group) {
      return group.all_gather(at::scalar_tensor(rank, at::kLong));
    };
    int64_t row = rank / 2 * 2, column = rank % 2;
    CHECK(at::equal(members(mesh.group(Mesh::mp)), at::tensor({row, row + 1})));
    CHECK(at::equal(members(mesh.group(Mesh::dp)), at::tensor({column, column + 2})));
    CHECK(at::equal(members(mesh.world()), at::arange(4)));
    check_collectives(mesh.group(Mesh::mp), at::kFloat);
    check_collectives(mesh.group(Mesh::dp), at::kFloat);
  });
}

TEST_CASE("groups of processes that share the state of ZeRO") {
  in_bare_processes({.n_processes = 4}, [](const redco::Processes& all) {
    int64_t rank = all.rank;
    auto members = [&](Group& group) {
      return group.all_gather(at::scalar_tensor(rank, at::kLong));
    };
    auto mesh = Mesh::make({.processes = all, .zero_group = 2});
    CHECK(mesh->size(Mesh::batch) == 4);
    CHECK(at::equal(members(mesh->group(Mesh::dp)), at::tensor({rank / 2 * 2, rank / 2 * 2 + 1})));
    CHECK(
        at::equal(members(mesh->group(Mesh::dp_replicate)), at::tensor({rank % 2, rank % 2 + 2})));
    check_collectives(mesh->group(Mesh::dp_replicate), at::kFloat);

    // As on two hosts of two processes.
    redco::Processes there = all;
    there.local_size = 2;
    there.local_rank = rank % 2;
    auto host = redco::zero_group_of_host;
    mesh = Mesh::make({.processes = there, .zero_group = host});
    CHECK(mesh->size(Mesh::dp) == 2);
    CHECK(mesh->size(Mesh::dp_replicate) == 2);
    mesh = Mesh::make({.processes = there, .n_model_shards = 2, .zero_group = host});
    CHECK(mesh->size(Mesh::dp) == 1);
    CHECK(mesh->size(Mesh::mp) == 2);
    CHECK(
        at::equal(members(mesh->group(Mesh::dp_replicate)), at::tensor({rank % 2, rank % 2 + 2})));

    auto refused = [](const redco::MeshOptions& options, const char* text) {
      CHECK_THROWS_WITH_AS(Mesh::make(options), doctest::Contains(text), redco::UsageError);
    };
    refused({.processes = all, .zero_group = 3},
            "zero_group = 3 must divide the number of data-parallel processes, 4");
    refused({.processes = all, .n_model_shards = 2, .zero_group = 4},
            "zero_group = 4 must divide the number of data-parallel processes, 2");
    refused({.processes = there, .n_model_shards = 4, .zero_group = host},
            "the 2 processes of a host cannot be divided into models of n_model_shards = 4");
    there.local_size = rank < 2 ? 2 : 1;
    there.local_rank = rank < 2 ? rank : 0;
    refused({.processes = there, .zero_group = host}, "all hosts must have the same number");
    there.local_size = 2;
    there.local_rank = rank / 2;
    if (rank == 1)
      refused({.processes = there, .zero_group = host}, "must have consecutive numbers");
  });
}

namespace {

// The TCP sockets that this process has open.
std::map<int, tcp_info> tcp_sockets() {
  std::map<int, tcp_info> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    tcp_info info = {};
    socklen_t size = sizeof(info);
    int descriptor = std::stoi(entry.path().filename());
    if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) == 0)
      sockets.emplace(descriptor, info);
  }
  return sockets;
}

// Bytes the kernel has sent through them.
int64_t bytes_sent() {
  int64_t sum = 0;
  for (const auto& [descriptor, info] : tcp_sockets())
    sum += int64_t(info.tcpi_bytes_sent - info.tcpi_bytes_retrans);
  return sum;
}

}  // namespace

TEST_CASE("the counters say what the kernel sends") {
  for (int64_t n : {2, 3}) {
    in_processes({.n_processes = n}, [&](Mesh& mesh) {
      Group& group = mesh.world();
      auto barrier = [&] { mesh.group(Mesh::dp).all_reduce(at::ones(1), ReduceOp::sum); };
      constexpr int64_t numbers = 4 * 1024 * 1024 / 6 * 6;  // 16 MB
      at::Tensor flat = at::ones(numbers), rows = at::ones({n, numbers / n});
      std::function<void()> run[Group::n_kinds] = {
          [&] { group.all_reduce(flat, ReduceOp::sum); },
          [&] { group.all_gather(flat); },
          [&] { group.reduce_scatter(rows, ReduceOp::sum); },
          [&] { group.all_to_all(rows); },
      };
      constexpr int64_t bytes = numbers * sizeof(float);
      const int64_t expected[Group::n_kinds] = {
          2 * bytes * (n - 1) / n,
          bytes * (n - 1),
          bytes / n * (n - 1),
          bytes / n * (n - 1),
      };
      for (int kind = 0; kind < Group::n_kinds; ++kind) {
        INFO(std::string(Group::name(Group::Kind(kind))));
        auto before = group.counters()[kind];
        int64_t from = bytes_sent();
        run[kind]();
        barrier();  // what was sent has come
        auto sent = double(bytes_sent() - from);
        barrier();  // before any process ends: Gloo closes the sockets to one that has ended
        auto after = group.counters()[kind];
        CHECK(after.count - before.count == 1);
        CHECK(after.bytes - before.bytes == expected[kind]);
        CHECK(sent / double(expected[kind]) == doctest::Approx(1).epsilon(0.01));
      }
    });
  }
}

TEST_CASE("what cannot be is told") {
  in_processes({.n_processes = 2}, [](Mesh& mesh) {
    Group& group = mesh.world();
    for (auto sizes : {std::vector<int64_t>{0}, {2, 0}, {0, 3}}) {
      at::Tensor empty = at::zeros(sizes);
      CHECK(group.all_reduce(empty, ReduceOp::sum).numel() == 0);
      CHECK(group.all_gather(empty).size(0) == 2);
    }
    CHECK(group.all_to_all(at::zeros({2, 0})).sizes() == at::IntArrayRef{2, 0});
    CHECK(group.reduce_scatter(at::zeros({2, 0, 3}), ReduceOp::sum).sizes() ==
          at::IntArrayRef{0, 3});
    CHECK(group.all_gather(at::scalar_tensor(1)).sizes() == at::IntArrayRef{2});
    CHECK_THROWS_WITH_AS(group.all_to_all(at::zeros({3, 2})),
                         doctest::Contains("dimension 0 must have 2 rows"), redco::Error);
    CHECK_THROWS_WITH_AS(group.all_reduce(at::zeros({3, 2}).t(), ReduceOp::sum),
                         doctest::Contains("contiguous"), redco::Error);
    CHECK_THROWS_WITH_AS(Mesh::make({.processes = mesh.processes(), .n_model_shards = 3}),
                         doctest::Contains("must divide the number of processes, 2"),
                         redco::UsageError);
  });
}

TEST_CASE("collectives overlap, and are waited for in any order") {
  in_processes({.n_processes = 2, .n_model_shards = 2}, [](Mesh& mesh) {
    std::vector<std::unique_ptr<redco::Pending>> pending;
    for (int i = 0; i < 50; ++i) {
      Group& group = i % 2 == 0 ? mesh.group(Mesh::mp) : mesh.world();
      pending.push_back(group.start_all_reduce(at::full({1 + i * 100}, i), ReduceOp::sum));
    }
    for (int i = 49; i >= 0; --i)
      CHECK(at::equal(pending[i]->wait(), at::full({1 + i * 100}, 2 * i)));
    auto dropped = mesh.world().start_all_reduce(at::ones(100000), ReduceOp::sum);
    dropped.reset();
    check_collectives(mesh.world(), at::kFloat);
  });
}

TEST_CASE("processes start and end again and again") {
  for (int i = 0; i < (runs_all() ? 40 : 4); ++i) {
    in_processes({.n_processes = 2, .n_model_shards = 1 + i % 2}, [&](Mesh& mesh) {
      mesh.world().all_reduce(at::ones(1000 * i), ReduceOp::sum);
      // A mesh that lives until the end, and one that is dropped while others work.
      static auto forever = Mesh::make({.processes = mesh.processes()});
      auto second = Mesh::make({.processes = mesh.processes(), .n_model_shards = 2});
      second->group(Mesh::mp).all_gather(at::ones(10));
      if (i % 4 == 3) std::exit(0);
    });
  }
}

TEST_CASE("a collective that one does not join ends with its name when the time is up") {
  in_bare_processes(
      {.n_processes = 3, .time_limit = std::chrono::seconds(30)}, [](const Processes& processes) {
        auto mesh = Mesh::make({.processes = processes, .timeout = std::chrono::seconds(3)});
        mesh->world().all_reduce(at::ones(1), ReduceOp::sum);
        if (processes.rank == 1) {
          std::this_thread::sleep_for(std::chrono::seconds(5));
          return;
        }
        std::string error = message_of([&] {
          mesh->world().all_reduce(at::ones({2, 3}), ReduceOp::sum);
        });
        check_contains(error, {"all_reduce of Float[2, 3] over group \"world\"", "within 3 s",
                               "process 1 has not started it"});
      });
}

TEST_CASE("a failure that is reported ends the others with its text") {
  in_processes({.n_processes = 3, .time_limit = std::chrono::seconds(30)}, [](Mesh& mesh) {
    if (mesh.processes().rank == 2) {
      redco::report_failure("train.lua:7: out of tea", 2);
      redco::report_failure("not the first");
      std::this_thread::sleep_for(std::chrono::seconds(2));
      return;
    }
    auto from = std::chrono::steady_clock::now();
    std::string error = message_of([&] { mesh.world().all_gather(at::ones(2)); });
    check_contains(error,
                   {"all_gather of Float[2]", "because process 2 failed: train.lua:7: out of tea"});
    CHECK(std::chrono::steady_clock::now() - from < std::chrono::seconds(2));
  });
}

TEST_CASE("a process that is killed or stopped ends the others within ten seconds, with its name") {
  // In the first case the connection breaks, in the second it only falls silent.
  for (int signal : {SIGKILL, SIGSTOP}) {
    in_processes(
        {.n_processes = 3, .time_limit = std::chrono::seconds(40), .victim = 1}, [&](Mesh& mesh) {
          Group& world = mesh.world();
          auto pid = world.all_gather(at::scalar_tensor(getpid(), at::kLong))[1].item<int64_t>();
          if (mesh.processes().rank == 1) {
            auto begun = world.start_all_reduce(at::ones(1 << 22), ReduceOp::sum);
            raise(signal);
          }
          auto from = std::chrono::steady_clock::now();
          std::string error = message_of([&] {
            for (int i = 0; i < 5; ++i) world.all_reduce(at::ones(1 << 22), ReduceOp::sum);
          });
          check_contains(error,
                         {"all_reduce of Float[4194304]", "because process 1 failed: no sign"});
          CHECK(std::chrono::steady_clock::now() - from < std::chrono::seconds(10));
          kill(static_cast<pid_t>(pid), SIGKILL);
        });
  }
}

TEST_CASE("a connection that is closed for writing raises an error and no signal") {
  in_processes({.n_processes = 2, .time_limit = std::chrono::seconds(30)}, [](Mesh& mesh) {
    // Of some meshes Gloo's thread sees the end of the connection first, and nothing is written.
    auto sockets_before = tcp_sockets();
    std::vector<std::shared_ptr<Mesh>> broken;
    for (int i = 0; i < 5; ++i) {
      broken.push_back(Mesh::make({.processes = mesh.processes()}));
      broken.back()->world().all_gather(at::ones(2));
    }
    mesh.world().all_reduce(at::ones(1), ReduceOp::sum);  // both have ended the gathers
    if (mesh.processes().rank == 0) {
      for (const auto& [descriptor, info] : tcp_sockets())
        if (!sockets_before.contains(descriptor)) shutdown(descriptor, SHUT_WR);
    }
    std::vector<std::unique_ptr<redco::Pending>> gathers;
    for (const auto& each : broken) gathers.push_back(each->world().start_all_gather(at::ones(2)));
    check_contains(message_of([&] { gathers[0]->wait(); }), {"all_gather of Float[2]"});
    sigset_t pending;
    sigpending(&pending);
    CHECK(sigismember(&pending, SIGPIPE) == 0);
  });
}

TEST_CASE("an interrupt ends the wait for the others") {
  in_processes({.n_processes = 2, .time_limit = std::chrono::seconds(30)}, [](Mesh& mesh) {
    if (mesh.processes().rank == 0) {
      redco::request_interrupt();
      CHECK_THROWS_AS(mesh.world().all_gather(at::ones(2)), redco::Interrupted);
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));
  });
}

TEST_CASE("both calls of processes that diverge are named") {
  struct Case {
    std::function<void(Mesh&)> call[2];
    std::string text[2];
  };
  auto reduce = [](Mesh& mesh) { mesh.world().all_reduce(at::ones(4), ReduceOp::sum); };
  const Case cases[] = {
      {{reduce, [](Mesh& mesh) { mesh.world().all_gather(at::ones(4)); }},
       {"all_reduce of Float[4] over group \"world\"",
        "all_gather of Float[4] over group \"world\""}},
      {{reduce, [](Mesh& mesh) { mesh.group(Mesh::mp).all_reduce(at::ones(4), ReduceOp::sum); }},
       {"all_reduce of Float[4] over group \"world\"", "all_reduce of Float[4] over group \"mp\""}},
      {{reduce, [](Mesh& mesh) { mesh.world().all_reduce(at::ones(5), ReduceOp::sum); }},
       {"all_reduce of Float[4] over group \"world\"",
        "all_reduce of Float[5] over group \"world\""}},
      {{reduce,
        [](Mesh& mesh) { mesh.world().all_reduce(at::ones(4, at::kDouble), ReduceOp::sum); }},
       {"all_reduce of Float[4] over group \"world\"",
        "all_reduce of Double[4] over group \"world\""}},
  };
  for (const Case& each : cases) {
    in_bare_processes({.n_processes = 2}, [&](const Processes& processes) {
      auto mesh = Mesh::make({.processes = processes, .n_model_shards = 2});
      mesh->group(Mesh::mp).all_reduce(at::ones(1), ReduceOp::sum);
      int64_t rank = processes.rank;
      redco::set_call_site(rank == 0 ? [] { return std::string("train.lua:10"); }
                                     : [] { return std::string("train.lua:11"); });
      std::string error = message_of([&] { each.call[rank](*mesh); });
      auto story = [&](int64_t r) {
        return "process " + std::to_string(r) + " calls " + each.text[r];
      };
      check_contains(error, {"the processes diverged", story(0) + " at train.lua:10",
                             story(1) + " at train.lua:11"});
    });
  }
}

// If nothing spins without it, Gloo has mended https://github.com/pytorch/gloo/issues/246, and
// program/workarounds/event_wait.cpp can go.
TEST_CASE("Gloo spins on an event that it cannot handle, unless event_wait gives up the core") {
  for (const char* without : {"event_wait", "none"}) {
    setenv("REDCO_WITHOUT", without, 1);  // the processes start with it
    in_processes({.n_processes = 4}, [&](Mesh& mesh) {
      at::Tensor numbers = at::ones(1 << 15);
      for (int i = 0; i < 300; ++i) mesh.world().all_reduce(numbers, ReduceOp::max);
      const at::Tensor most = mesh.world().all_reduce(at::tensor(int(most_same)), ReduceOp::max);
      if (without == std::string("none"))
        CHECK(most.item<int>() <= 1);
      else if (std::thread::hardware_concurrency() <= 4)
        CHECK(most.item<int>() >= 1000);
      else if (most.item<int>() < 1000)
        MESSAGE("not checked: with a core for each thread, Gloo spins too little to count");
    });
  }
  unsetenv("REDCO_WITHOUT");
}

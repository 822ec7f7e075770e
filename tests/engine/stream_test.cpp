// Collectives whose results come later, on a stream, as on GPUs: on fake devices.
#include "../../engine/mesh/device_wait.h"
#include "../../engine/train/measures/pending_metrics.h"
#include "fake_device.h"
#include "fake_streams.h"
#include "files.h"
#include "processes.h"

#include <redco/detail/thread_without_signals.h>
#include <redco/error.h>
#include <redco/group.h>
#include <redco/mesh.h>
#include <redco/nn.h>
#include <redco/random.h>
#include <redco/trainer.h>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <signal.h>
#include <unistd.h>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using redco::Group;
using redco::Mesh;
using redco::Processes;
using redco::ReduceOp;
using redco::Tree;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// Runs `body` in several processes, each with a fake device of its own.
void on_devices(const Layout& layout, const std::function<void(const std::shared_ptr<Mesh>&)>& body,
                milliseconds timeout = seconds(60)) {
  in_bare_processes(layout, [&](const Processes& processes) {
    fake::use_devices();
    body(Mesh::make({.processes = processes,
                     .n_model_shards = layout.n_model_shards,
                     .device_type = fake::type,
                     .timeout = timeout}));
  });
}

at::Tensor full(at::IntArrayRef sizes, double value, const Mesh& mesh,
                at::ScalarType dtype = at::kFloat) {
  return at::full(sizes, value, at::TensorOptions(dtype).device(mesh.device()));
}

double seconds_of(const std::function<void()>& body) {
  auto from = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
}

// The ways in which numbers get to the host.
struct Read {
  const char* name;
  std::function<void(const at::Tensor&)> read;
};
const Read reads[] = {
    {"item", [](const at::Tensor& x) { x.select(0, 0).item(); }},
    {"cpu", [](const at::Tensor& x) { x.cpu(); }},
    {"nonzero", [](const at::Tensor& x) { x.nonzero(); }},
    {"masked_select", [](const at::Tensor& x) { x.masked_select(x > 0); }},
    {"copy from pageable memory", [](const at::Tensor& x) { x.copy_(at::ones(x.sizes())); }},
    {"PendingMetrics",
     [](const at::Tensor& x) {
       redco::train::PendingMetrics(0, Tree::Dict{{"loss", x.select(0, 0)}}, false).read();
     }},
};

void check_collectives(const Mesh& mesh, at::ScalarType type) {
  CAPTURE(type);
  Group& group = mesh.world();
  int64_t n = group.size(), rank = group.rank();
  auto of_rank = [&](int64_t r) { return at::arange(6).view({2, 3}).add(r + 1).to(type); };
  auto mine = [&] { return of_rank(rank).to(mesh.device()); };
  auto equal = [&](const at::Tensor& a, const at::Tensor& b) {
    return a.device() == mesh.device() && a.scalar_type() == type && at::equal(a.cpu(), b.to(type));
  };
  std::vector<at::Tensor> each;
  for (int64_t r = 0; r < n; ++r) each.push_back(of_rank(r));
  at::Tensor all = at::stack(each), sum = type == at::kBool ? all.any(0) : all.sum(0, false, type);
  CHECK(equal(group.all_gather(mine()), all));
  at::Tensor reduced = mine();
  CHECK(group.all_reduce(reduced, ReduceOp::sum).is_same(reduced));
  CHECK(equal(reduced, sum));
  auto rows = [&](int64_t q) {
    return at::arange(n).add(q * n).view({n, 1}).expand({n, 2}).contiguous().to(type);
  };
  std::vector<at::Tensor> to_me;
  for (int64_t q = 0; q < n; ++q) to_me.push_back(rows(q)[rank]);
  at::Tensor arrived = at::stack(to_me), row = rows(rank).to(mesh.device());
  CHECK(equal(group.all_to_all(row), arrived));
  CHECK(equal(group.reduce_scatter(row, ReduceOp::sum),
              type == at::kBool ? arrived.any(0) : arrived.sum(0, false, type)));
  CHECK(equal(group.all_reduce(mine(), ReduceOp::max), all.amax(0)));
  CHECK(equal(group.reduce_scatter(row, ReduceOp::min), arrived.amin(0)));
}

constexpr at::ScalarType types[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,
                                    at::kInt,   at::kShort,  at::kByte, at::kBool};

}  // namespace

TEST_CASE("linear_cross_entropy: classes that fill no whole units of memory, as on the CPU") {
  on_devices({1, 1}, [](const std::shared_ptr<Mesh>& mesh) {
    for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      CAPTURE(type);
      at::Tensor x = at::sin(at::arange(60).to(at::kDouble)).view({12, 5});
      at::Tensor weight = at::cos(at::arange(65).to(at::kDouble)).view({13, 5});
      at::Tensor bias = at::arange(13).to(at::kDouble) / 13;
      at::Tensor labels = at::arange(12).masked_fill(at::arange(12).eq(3), -100);
      auto results = [&](c10::Device device) {
        std::vector<at::Tensor> given;
        for (const at::Tensor& tensor : {x, weight, bias})
          given.push_back(tensor.to(type).to(device).clone().requires_grad_());
        at::Tensor loss =
            redco::linear_cross_entropy(given[0], given[1], labels.to(device), -100, 0.1, given[2]);
        loss.backward();
        return std::vector{loss.detach().cpu(), given[0].grad().cpu(), given[1].grad().cpu(),
                           given[2].grad().cpu()};
      };
      auto expected = results(c10::kCPU), actual = results(mesh->device());
      for (size_t i = 0; i < expected.size(); ++i) {
        CAPTURE(i);
        CHECK(at::allclose(actual[i], expected[i], 1e-5, 1e-6));
      }
    }
  });
}

TEST_CASE("dropout draws its numbers again in backward: those of the CPU, which keeps them") {
  on_devices({1, 1}, [](const std::shared_ptr<Mesh>& mesh) {
    for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      CAPTURE(type);
      auto results = [&](c10::Device device) {
        at::Generator rng = redco::make_rng(5);
        redco::counter_generator(rng)->set_batch({3, 4});
        at::Tensor x = at::arange(1, 61).to(type).view({4, 15}).to(device).requires_grad_();
        redco::dropout(x, 0.5, rng);
        at::Tensor y = redco::dropout(x, 0.3, rng);
        redco::dropout(x, 0.5, rng);
        y.backward(x.detach());
        CHECK(redco::counter_generator(rng)->count() == 3);
        return std::vector{y.detach().cpu(), x.grad().cpu()};
      };
      auto expected = results(c10::kCPU), actual = results(mesh->device());
      for (size_t i = 0; i < 2; ++i) CHECK(at::equal(actual[i], expected[i]));
    }
  });
}

TEST_CASE("every collective on every type, on a stream") {
  for (int64_t n : {2, 3}) {
    on_devices({.n_processes = n}, [](const std::shared_ptr<Mesh>& mesh) {
      for (auto type : types) check_collectives(*mesh, type);
      CHECK(fake::n_blocked() == 0);
      CHECK(fake::freed_memory_is_intact());
    });
  }
}

TEST_CASE("large sums of 16-bit floats take two steps, and the host runs ahead of both") {
  on_devices({.n_processes = 3}, [](const std::shared_ptr<Mesh>& mesh) {
    constexpr int64_t numel = 400'001;
    at::Tensor x = full({numel}, mesh->world().rank() == 0 ? 512 : 1, *mesh, at::kBFloat16);
    auto x_now = x.clone();
    std::unique_ptr<redco::Pending> sum;
    {
      fake::Paused paused;
      sum = mesh->world().start_all_reduce(x_now, ReduceOp::sum);
      x = mesh->world().all_reduce(x.add(1), ReduceOp::sum);
    }
    CHECK(at::equal(sum->wait().cpu(), at::full({numel}, 514, at::kBFloat16)));
    CHECK(at::equal(x.cpu(), at::full({numel}, 517, at::kBFloat16)));
    CHECK(fake::n_blocked() == 0);
    CHECK(fake::freed_memory_is_intact());
    const auto& traffic = mesh->world().counters()[Group::all_reduce_kind];
    CHECK(traffic.count == 2);
    CHECK(traffic.bytes == 2 * (2 * 2 * ((numel + 2) / 3) * 2));
  });
}

TEST_CASE("each thread works on the device of its process") {
  on_devices({.n_processes = 2}, [](const std::shared_ptr<Mesh>& mesh) {
    c10::Device own(fake::type, static_cast<c10::DeviceIndex>(mesh->processes().rank));
    CHECK(mesh->device() == own);
    CHECK(fake::current_device() == own);
    CHECK(fake::connecting_device() == own);
    c10::Device of_thread(fake::type, 3);
    redco::thread_without_signals([&] { of_thread = fake::current_device(); }).join();
    CHECK(of_thread == own);
  });
}

TEST_CASE("the host runs ahead of collectives, and operators come in their order") {
  on_devices({.n_processes = 2}, [](const std::shared_ptr<Mesh>& mesh) {
    at::Tensor x = full({4}, 1, *mesh), gathered;
    {
      fake::Paused paused;
      for (int i = 0; i < 10; ++i) {
        mesh->world().all_reduce(x, ReduceOp::sum);
        x.add_(1);
        gathered = mesh->world().all_gather(x);
      }
    }
    // 1, 3, 7, 15 ...
    CHECK(x.select(0, 0).item<double>() == 2047);
    CHECK(at::equal(gathered.cpu(), at::full({2, 4}, 2047.f)));
    CHECK(fake::n_blocked() == 0);
  });
}

TEST_CASE("memory that a collective uses is not given away before it has ended") {
  on_devices({.n_processes = 2}, [](const std::shared_ptr<Mesh>& mesh) {
    Group& world = mesh->world();
    auto rank = double(world.rank());
    at::Tensor kept;
    {
      auto late = std::make_unique<fake::Paused>();
      if (world.rank() == 0) late.reset();  // rank 1's streams stand, rank 0 waits for them
      // The input is dropped at once; the call is dropped, waited for or not.
      for (int i = 0; i < 5; ++i) {
        world.start_all_gather(full({1000}, rank + 1, *mesh));
        world.start_all_reduce(full({1000}, rank + 1, *mesh, at::kBFloat16), ReduceOp::max);
        world.start_reduce_scatter(full({2, 1000}, rank + 1, *mesh), ReduceOp::sum);
        auto pending = world.start_all_to_all(full({2, 1000}, rank + 1, *mesh));
        kept = pending->wait();
      }
      std::this_thread::sleep_for(milliseconds(200));
    }
    CHECK(at::equal(kept.cpu(), at::stack({at::full({1000}, 1.f), at::full({1000}, 2.f)})));
    CHECK(fake::freed_memory_is_intact());
  });
}

TEST_CASE("results that are dropped are not held until their collectives end") {
  on_devices({.n_processes = 2}, [](const std::shared_ptr<Mesh>& mesh) {
    constexpr int64_t numbers = 100000, bytes = numbers * 4;
    at::Tensor x = full({numbers}, 1, *mesh);
    x.select(0, 0).item();
    int64_t before = fake::live_bytes();
    double sum = 0;
    for (int i = 0; i < 20; ++i) sum += mesh->world().all_gather(x).sum().item<double>();
    CHECK(sum == 20.0 * 2 * numbers);
    // One gathered tensor at most is still held: the newest collective's.
    CHECK(fake::live_bytes() - before <= 2 * bytes + 1000);
  });
}

TEST_CASE("a collective on a stream that one does not join ends a read of it in time") {
  on_devices(
      {.n_processes = 2, .time_limit = seconds(30)},
      [&](const std::shared_ptr<Mesh>& mesh) {
        if (mesh->processes().rank == 1) return std::this_thread::sleep_for(milliseconds(4500));
        at::Tensor x = full({3}, 1, *mesh);
        std::string error;
        double time = seconds_of(
            [&] { error = message_of([&] { mesh->world().all_reduce(x, ReduceOp::sum).cpu(); }); });
        check_contains(error, {"all_reduce of Float[3] over group \"world\"", "within 2 s",
                               "process 1 has not started it"});
        CHECK(time > 1.9);
        CHECK(time < 4);
        CHECK(fake::n_blocked() == 0);
        // A later read would be garbage. It is refused at once.
        for (const Read& way : reads) {
          CAPTURE(std::string(way.name));
          time = seconds_of([&] { error = message_of([&] { way.read(x); }); });
          check_contains(error, {"was aborted after an earlier error"});
          CHECK(time < 1.5);
        }
      },
      milliseconds(2000));
}

TEST_CASE("a failure that is reported ends each read with its text") {
  for (const Read& way : reads) {
    CAPTURE(std::string(way.name));
    on_devices({.n_processes = 2, .time_limit = seconds(30)},
               [&](const std::shared_ptr<Mesh>& mesh) {
                 if (mesh->processes().rank == 1) {
                   std::this_thread::sleep_for(milliseconds(300));
                   redco::report_failure("train.lua:7: out of tea", 2);
                   return std::this_thread::sleep_for(seconds(1));
                 }
                 at::Tensor x = full({3}, 1, *mesh);
                 std::string error;
                 double time = seconds_of([&] {
                   error = message_of([&] {
                     mesh->world().all_reduce(x, ReduceOp::sum);
                     way.read(x);
                   });
                 });
                 check_contains(error, {"all_reduce of Float[3]",
                                        "because process 1 failed: train.lua:7: out of tea"});
                 CHECK(time < 5);
                 CHECK(fake::n_blocked() == 0);
               });
  }
}

TEST_CASE("a process that is killed or stopped ends a read within ten seconds, with its name") {
  for (int signal : {SIGKILL, SIGSTOP}) {
    on_devices({.n_processes = 2, .time_limit = seconds(40), .victim = 1},
               [&](const std::shared_ptr<Mesh>& mesh) {
                 at::Tensor pids = full({1}, getpid(), *mesh, at::kLong);
                 auto pid = mesh->world().all_gather(pids).cpu()[1][0].item<int64_t>();
                 if (mesh->processes().rank == 1) raise(signal);
                 at::Tensor x = full({3}, 1, *mesh);
                 std::string error;
                 double time = seconds_of([&] {
                   error = message_of([&] {
                     mesh->world().all_reduce(x, ReduceOp::sum);
                     x.cpu();
                   });
                 });
                 check_contains(error, {"all_reduce of Float[3]", "process 1 failed: no sign"});
                 CHECK(time < 10);
                 kill(static_cast<pid_t>(pid), SIGKILL);
               });
  }
}

TEST_CASE("an interrupt ends a read") {
  on_devices({.n_processes = 2, .time_limit = seconds(30)}, [&](const std::shared_ptr<Mesh>& mesh) {
    if (mesh->processes().rank == 1) return std::this_thread::sleep_for(seconds(2));
    at::Tensor x = full({3}, 1, *mesh);
    mesh->world().all_reduce(x, ReduceOp::sum);
    std::thread asks([] {
      std::this_thread::sleep_for(milliseconds(300));
      redco::request_interrupt();
    });
    CHECK_THROWS_AS(x.cpu(), redco::Interrupted);
    asks.join();
    CHECK(fake::n_blocked() == 0);
  });
}

TEST_CASE("metrics are waited for alone, not with the step that follows") {
  on_devices({.n_processes = 2}, [](const std::shared_ptr<Mesh>& mesh) {
    at::Tensor x = full({1}, 3, *mesh);
    mesh->world().all_reduce(x, ReduceOp::sum);
    redco::train::PendingMetrics metrics(0, Tree::Dict{{"loss", x}}, false);
    if (mesh->processes().rank == 1) std::this_thread::sleep_for(seconds(3));
    at::Tensor y = full({1}, 3, *mesh);
    mesh->world().all_reduce(y, ReduceOp::sum);
    double time = seconds_of([&] { CHECK(metrics.read().at("loss") == 6); });
    CHECK(time < 2);
    CHECK(y.item<double>() == 6);
  });
}

TEST_CASE("processes that diverge on a stream are named") {
  on_devices({.n_processes = 2, .time_limit = seconds(30)}, [](const std::shared_ptr<Mesh>& mesh) {
    std::string error = message_of([&] {
      at::Tensor x = full({4}, 1, *mesh);
      if (mesh->processes().rank == 0)
        mesh->world().all_reduce(x, ReduceOp::sum).cpu();
      else
        mesh->world().all_gather(x).cpu();
    });
    check_contains(error, {"the processes diverged", "process 0 calls all_reduce of Float[4]",
                           "process 1 calls all_gather of Float[4]"});
  });
}

TEST_CASE("Gloo for devices: collectives are run on the host, and devices may be shared") {
  setenv(redco::collectives_variable, "gloo", 1);
  on_devices({.n_processes = 2}, [](const std::shared_ptr<Mesh>& mesh) {
    for (auto type : types) check_collectives(*mesh, type);
    const auto& traffic = mesh->world().counters()[Group::all_gather_kind];
    CHECK(traffic.count == std::size(types));
    CHECK(traffic.bytes > 0);
    // The host waits, and so its messages are those of the CPU.
    if (mesh->processes().rank == 0) redco::request_interrupt();
    if (mesh->processes().rank == 0)
      CHECK_THROWS_AS(mesh->world().all_gather(full({2}, 1, *mesh)), redco::Interrupted);
    std::this_thread::sleep_for(seconds(1));
  });
  setenv(redco::collectives_variable, "smoke", 1);
  fake::use_devices();
  CHECK_THROWS_WITH_AS(Mesh::make({.device_type = fake::type}),
                       "REDCO_COLLECTIVES = smoke: the collectives of GPUs run by \"nccl\" or "
                       "\"gloo\"",
                       redco::UsageError);
  unsetenv(redco::collectives_variable);
}

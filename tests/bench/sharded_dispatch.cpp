// Measures the time that a sharded tensor adds to an operator:
// build/release/tests/bench_sharded_dispatch
//
// One rank of a mesh of two whose collectives are never called: the operators below need none.

#include "../engine/thread_mesh.h"

#include <redco/sharding.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

namespace {

using namespace redco;
using Clock = std::chrono::steady_clock;

// Microseconds a call: the least of several rounds, for others use the machine too.
double time_of(const std::function<void()>& call) {
  constexpr int n_rounds = 20, n_calls = 2000;
  double least = 1e9;
  for (int round = 0; round < n_rounds; ++round) {
    auto start = Clock::now();
    for (int i = 0; i < n_calls; ++i) call();
    std::chrono::duration<double, std::micro> taken = Clock::now() - start;
    least = std::min(least, taken.count() / n_calls);
  }
  return least;
}

std::shared_ptr<const Mesh> mesh_of_two() {
  using namespace redco::testing;
  auto group = [](const char* name, int64_t size) {
    return std::make_unique<ThreadGroup>(name, 0, size, std::make_shared<Meeting>(size));
  };
  ThreadMesh::Groups groups;
  for (Mesh::Dim dim : Mesh::dims)
    groups.push_back(group(Mesh::facts[dim].name, dim == Mesh::mp ? 2 : 1));
  return std::make_shared<ThreadMesh>(0, std::move(groups), group("world", 2), nullptr);
}

}  // namespace

int main() {
  at::set_num_threads(1);
  at::NoGradGuard no_grad;
  std::shared_ptr<const Mesh> mesh = mesh_of_two();
  Placement whole, columns = Placement::shard(1), split = Placement::shard(0);
  auto on = [&](const at::Tensor& tensor, const Placement& placement) {
    return shard(tensor, mesh, {whole, {}, {}, {}, placement});
  };
  auto report = [](const char* name, const std::function<void()>& plain,
                   const std::function<void()>& sharded) {
    double a = time_of(plain), b = time_of(sharded);
    std::printf("%-28s plain %6.2f us   sharded %6.2f us   extra %5.2f us\n", name, a, b, b - a);
  };

  // The plain operators do what one rank does.
  at::Tensor four = at::ones({4}), eight = at::ones({8});
  at::Tensor four_whole = on(four, whole), eight_split = on(eight, split);
  report(
      "add of 4, whole", [&] { four.add(four); }, [&] { four_whole.add(four_whole); });
  report(
      "add of 4, split", [&] { four.add(four); }, [&] { eight_split.add(eight_split); });
  report(
      "add in place", [&] { four.add_(four); }, [&] { eight_split.add_(eight_split); });
  report(
      "relu", [&] { four.relu(); }, [&] { eight_split.relu(); });

  at::Tensor a = at::ones({64, 64}), half = at::ones({64, 32}), b = at::ones({64, 64});
  at::Tensor a_whole = on(a, whole), b_columns = on(b, columns);
  report(
      "mm by columns", [&] { a.mm(half); }, [&] { a_whole.mm(b_columns); });
  report(
      "view",
      [&] {
        half.view({8, 8, 32});
      },
      [&] {
        b_columns.view({8, 8, 64});
      });
  report(
      "transpose", [&] { half.t(); }, [&] { b_columns.t(); });

  std::vector<at::Tensor> list(100, four), sharded_list;
  for (int i = 0; i < 100; ++i) sharded_list.push_back(on(eight, split));
  report(
      "foreach mul of 100", [&] { at::_foreach_mul_(list, 1); },
      [&] { at::_foreach_mul_(sharded_list, 1); });
}

// Training on fake devices, whose streams the host runs ahead of, as on GPUs.
#include "../../engine/core/host_memory.h"
#include "fake_device.h"
#include "processes.h"

#include <redco/error.h>
#include <redco/sharding.h>
#include <redco/trainer.h>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

using redco::Dataset;
using redco::Loss;
using redco::Trainer;
using redco::Tree;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// y = x w + b on sixteen points.
Dataset points() {
  return {16, [](const std::vector<int64_t>& indices) -> Tree {
            at::Tensor x = at::tensor(indices).to(at::kFloat).reshape({-1, 1}) / 8 - 1;
            at::Tensor features = at::cat({x, x.square(), x.sin(), x.cos()}, 1);
            return Tree::Dict{{"x", features}, {"y", 2 * x + 0.5}};
          }};
}

Tree params() { return Tree::Dict{{"w", at::full({4, 8}, 0.3f)}, {"v", at::full({8, 1}, 0.1f)}}; }

Loss loss(const Tree& params, const Tree& batch) {
  at::Tensor hidden = at::matmul(batch.at("x").tensor(), params.at("w").tensor()).tanh();
  at::Tensor errors = at::matmul(hidden, params.at("v").tensor()) - batch.at("y").tensor();
  return {errors.square().mean()};
}

std::shared_ptr<redco::Deployer> deployer(std::optional<c10::DeviceType> device, int64_t zero = 0) {
  return std::make_shared<redco::Deployer>(redco::DeployerOptions{
      .seed = 42, .zero = zero, .zero_min_size = 1, .device = device, .verbose = false});
}

Trainer trainer(std::shared_ptr<redco::Deployer> deployer, redco::LossFn loss_fn) {
  return Trainer({.deployer = std::move(deployer),
                  .params = params(),
                  .loss_fn = std::move(loss_fn),
                  .optimizer = redco::adamw({.learning_rate = 0.05})});
}

Tree trained(const std::shared_ptr<redco::Deployer>& deployer) {
  Trainer own = trainer(deployer, [](at::Generator, const redco::TrainState&, const Tree& params,
                                     const Tree& batch, bool) { return loss(params, batch); });
  own.fit({.train_examples = points(), .per_device_batch_size = 4, .n_epochs = 5});
  return redco::map_tensors(own.state().params, [](const std::string&, const at::Tensor& tensor) {
    return redco::full(tensor.detach());
  });
}

}  // namespace

TEST_CASE("training on streams ends at the CPU's numbers, and the host never blocks on one") {
  in_bare_processes({.n_processes = 2}, [](const redco::Processes&) {
    fake::use_devices();
    Tree expected = trained(deployer(std::nullopt));
    for (int64_t zero : {0, 3}) {
      CAPTURE(zero);
      Tree found = trained(deployer(fake::type, zero));
      for (const char* name : {"w", "v"})
        CHECK(at::allclose(found.at(name).tensor().cpu(), expected.at(name).tensor(), 1e-4, 1e-5));
    }
    CHECK(fake::n_blocked() == 0);
    CHECK(fake::freed_memory_is_intact());
  });
}

TEST_CASE("a process that fails in a step is blamed, and not the loss") {
  in_bare_processes(
      {.n_processes = 2, .time_limit = seconds(30)}, [](const redco::Processes& processes) {
        fake::use_devices();
        auto n_steps = std::make_shared<int>(0);
        Trainer own = trainer(deployer(fake::type),
                              [=](at::Generator, const redco::TrainState&, const Tree& params,
                                  const Tree& batch, bool is_training) {
                                if (is_training && ++*n_steps == 6 && processes.rank == 1)
                                  redco::fail("out of tea");
                                return loss(params, batch);
                              });
        std::string error = "none";
        auto from = std::chrono::steady_clock::now();
        try {
          own.fit({.train_examples = points(), .per_device_batch_size = 4, .n_epochs = 3});
        } catch (const redco::Error& failure) {
          error = failure.what();
        }
        INFO(error);
        if (processes.rank == 1) {
          CHECK(error == "out of tea");
          redco::report_failure(error);
          return std::this_thread::sleep_for(seconds(2));
        }
        CHECK(error.find("because process 1 failed: out of tea") != std::string::npos);
        CHECK(std::chrono::steady_clock::now() - from < seconds(5));
        CHECK(fake::n_blocked() == 0);
      });
}

namespace {

int64_t host_bytes = 0;

struct HostBlock {
  void* memory;
  size_t bytes;
  c10::Device device;
};

// As the driver's: freed when the device has done its work.
c10::DataPtr allocate_on_host(size_t bytes, c10::Device device) {
  auto* block = new HostBlock{std::aligned_alloc(64, (bytes + 63) / 64 * 64), bytes, device};
  host_bytes += int64_t(bytes);
  auto free = [](void* context) {
    std::unique_ptr<HostBlock> freed(static_cast<HostBlock*>(context));
    c10::impl::VirtualGuardImpl(freed->device.type()).synchronizeDevice(freed->device.index());
    host_bytes -= int64_t(freed->bytes);
    std::free(freed->memory);
  };
  return {block->memory, block, free, device};
}

}  // namespace

TEST_CASE("optimizer states on the host: the same numbers, and less memory of the device") {
  in_bare_processes({.n_processes = 2}, [](const redco::Processes&) {
    fake::use_devices();
    const redco::WithHostMover mover([](const at::Tensor& tensor) {
      if (!redco::has_moved(tensor))
        redco::move_memory(tensor, allocate_on_host(tensor.storage().nbytes(), tensor.device()));
    });
    constexpr int64_t n = 512, bytes = n * n * 4;
    const Dataset rows = {16, [](const std::vector<int64_t>& indices) -> Tree {
                            at::Tensor x = at::tensor(indices).to(at::kFloat).reshape({-1, 1});
                            return Tree::Dict{{"x", at::sin(x * at::arange(n) / n)}};
                          }};
    for (int64_t zero : {0, 1, 3}) {
      for (const char* way : {"float32", "8 bits", "bfloat16"}) {
        CAPTURE(zero);
        CAPTURE(way);
        const bool is_8bit = way[0] == '8', is_cast = way[0] == 'b';
        auto run = [&](bool offloads, int64_t n_epochs, const redco::TrainState* from) {
          Tree params = from ? from->params : Tree::Dict{{"w", at::full({n, n}, 0.01f)}};
          if (from) params = Tree::Dict{{"w", redco::full(params.at("w").tensor().detach()).cpu()}};
          std::optional<Tree> state;
          if (from)
            state = redco::map_tensors(
                from->opt_state,
                [](const std::string&, const at::Tensor& t) { return redco::full(t).cpu(); });
          auto own = std::make_unique<Trainer>(redco::TrainerOptions{
              .deployer = deployer(fake::type, zero),
              .params = std::move(params),
              .loss_fn =
                  [](at::Generator, const redco::TrainState&, const Tree& params, const Tree& batch,
                     bool) {
                    at::Tensor x = batch.at("x").tensor();
                    return Loss{(at::matmul(x, params.at("w").tensor()) - x).square().mean()};
                  },
              .optimizer = is_8bit ? redco::adamw8bit({.learning_rate = 0.01})
                                   : redco::adamw({.learning_rate = 0.01}),
              .opt_state = std::move(state),
              .step = from ? from->step : 0,
              .compute_dtype = is_cast ? at::kBFloat16 : at::kFloat,
              .accumulate_grad_batches = 2,
              .offload_optimizer = offloads});
          own->fit({.train_examples = rows, .per_device_batch_size = 4, .n_epochs = n_epochs});
          return own;
        };
        auto values = [](const Trainer& trainer) {
          return redco::full(trainer.state().params.at("w").tensor().detach()).cpu();
        };
        auto live_bytes = [] {
          const c10::impl::VirtualGuardImpl devices(fake::type);
          devices.synchronizeDevice(devices.getDevice().index());
          return fake::live_bytes();
        };
        int64_t before = live_bytes();
        auto whole = run(false, 4, nullptr);
        const int64_t on_device = live_bytes() - before;
        before = live_bytes();
        auto offloaded = run(true, 4, nullptr);
        // Two moments and, if they are cast, the masters.
        const int64_t of_moments = 2 * (is_8bit ? bytes / 4 : bytes) / (zero == 0 ? 1 : 2),
                      of_masters = is_cast && zero < 3 ? bytes : 0,
                      expected = of_moments + of_masters;
        CHECK(host_bytes == expected);
        CHECK(on_device - (live_bytes() - before) == host_bytes);
        CHECK(at::equal(values(*whole), values(*offloaded)));
        auto further = run(true, 2, &offloaded->state());
        CHECK(host_bytes == 2 * expected);
        whole->fit({.train_examples = rows, .per_device_batch_size = 4, .n_epochs = 2});
        CHECK(at::equal(values(*whole), values(*further)));
        whole.reset(), offloaded.reset(), further.reset();
        CHECK(host_bytes == 0);
      }
    }
    CHECK(fake::freed_memory_is_intact());
  });
}

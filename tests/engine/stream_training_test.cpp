// Training on fake devices, whose streams the host runs ahead of, as on GPUs.
#include "fake_device.h"
#include "processes.h"

#include <redco/error.h>
#include <redco/sharding.h>
#include <redco/trainer.h>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <chrono>
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

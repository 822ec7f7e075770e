#include <redco/dataset.h>
#include <redco/deployer.h>
#include <redco/error.h>
#include <redco/schedule.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

using doctest::Approx;
using redco::Schedule;

TEST_CASE("a schedule is made from a number or a function") {
  Schedule number = 0.5;
  Schedule function = [](int64_t step) { return double(step) / 10; };
  CHECK(number(7) == 0.5);
  CHECK(function(7) == Approx(0.7));
  CHECK(redco::constant(3)(100) == 3);
  CHECK_FALSE(bool(Schedule()));
}

TEST_CASE("constant: up, then flat") {
  Schedule schedule = redco::constant_schedule(0.1, 1.1, 10);
  CHECK(schedule(0) == Approx(0.1));
  CHECK(schedule(5) == Approx(0.6));
  CHECK(schedule(10) == 1.1);
  CHECK(schedule(1000) == 1.1);
  CHECK(redco::constant_schedule(0, 3, 0)(0) == 3);
  CHECK_THROWS_AS(redco::constant_schedule(0, 1, -1), redco::Error);
}

TEST_CASE("linear: up, down, and flat after the end") {
  Schedule schedule = redco::linear_schedule(0.1, 1.1, 0.1, 10, 30);
  CHECK(schedule(0) == Approx(0.1));
  CHECK(schedule(5) == Approx(0.6));
  CHECK(schedule(10) == Approx(1.1));
  CHECK(schedule(20) == Approx(0.6));
  CHECK(schedule(29) == Approx(0.15));
  CHECK(schedule(30) == 0.1);
  CHECK(schedule(1000) == 0.1);
}

TEST_CASE("cosine: optax's formula with alpha = end / peak") {
  double peak = 2, end = 0.5, alpha = end / peak;
  Schedule schedule = redco::cosine_schedule(0, peak, end, 4, 20);
  CHECK(schedule(2) == Approx(1));
  for (int64_t step = 4; step <= 20; ++step) {
    double cosine = (1 + std::cos(std::numbers::pi * double(step - 4) / 16)) / 2;
    CHECK(schedule(step) == Approx(peak * ((1 - alpha) * cosine + alpha)));
  }
  CHECK(schedule(21) == end);
}

TEST_CASE("no warm-up, nothing but warm-up, and too much of it") {
  CHECK(redco::linear_schedule(0, 1, 0, 0, 10)(0) == 1);
  Schedule only_warmup = redco::cosine_schedule(0, 1, 0.2, 10, 10);
  CHECK(only_warmup(9) == Approx(0.9));
  CHECK(only_warmup(10) == 0.2);
  CHECK_THROWS_WITH_AS(redco::linear_schedule(0, 1, 0, 11, 10),
                       "linear_schedule: warmup_steps = 11 must be between 0 and total_steps = 10",
                       redco::Error);
}

TEST_CASE("D3: get_lr_schedule_fn counts optimizer steps, the smaller last batch included") {
  redco::Deployer deployer({.seed = 1});
  // 10 examples in global batches of 4 are 3 steps an epoch, 6 in all; the schedule ends there.
  redco::LrScheduleOptions options{
      .train_size = 10, .per_device_batch_size = 2, .n_epochs = 2, .learning_rate = 1};
  options.accumulate_grad_batches = 2;
  options.warmup_ratio = 1.0 / 3;
  for (const char* type : {"linear", "cosine"}) {
    options.schedule_type = type;
    Schedule schedule = deployer.get_lr_schedule_fn(options);
    CHECK(schedule(1) == Approx(0.5));
    CHECK(schedule(2) == Approx(1));
    CHECK(schedule(5) > 0);
    CHECK(schedule(6) == 0);
  }
  options.accumulate_grad_batches.reset();
  options.global_batch_size = 4;
  CHECK(deployer.get_lr_schedule_fn(options)(6) == 0);
  options.global_batch_size.reset();  // no accumulation: 5 steps an epoch
  CHECK(deployer.get_lr_schedule_fn(options)(9) > 0);
  CHECK(deployer.get_lr_schedule_fn(options)(10) == 0);
  options.warmup_steps = 4;  // takes precedence over the ratio
  CHECK(deployer.get_lr_schedule_fn(options)(4) == Approx(1));
  options.schedule_type = "step";
  CHECK_THROWS_WITH_AS(deployer.get_lr_schedule_fn(options),
                       "get_lr_schedule_fn: schedule_type = \"step\" is not known; there are "
                       "\"linear\" and \"cosine\"",
                       redco::Error);
  options.schedule_type = "linear";
  options.global_batch_size = 4;
  options.accumulate_grad_batches = 3;
  CHECK_THROWS_AS(deployer.get_lr_schedule_fn(options), redco::Error);
}

TEST_CASE("batch sizes that do not divide are refused with the nearest that do") {
  redco::Deployer deployer({.seed = 1});
  CHECK(deployer.get_local_global_micro_batch_size(8) == std::pair<int64_t, int64_t>(8, 8));
  CHECK(deployer.get_accumulate_grad_batches(32, 8) == 4);
  CHECK_THROWS_WITH_AS(deployer.get_accumulate_grad_batches(20, 8),
                       "global_batch_size = 20 must be a multiple of the micro-batch of all "
                       "devices, 8 (per_device_batch_size = 8 on 1 device); the nearest are 16 and "
                       "24",
                       redco::Error);
  CHECK_THROWS_AS(deployer.get_accumulate_grad_batches(20, 0), redco::Error);
  CHECK_THROWS_WITH_AS(redco::Deployer({.seed = 1, .n_model_shards = 2}),
                       doctest::Contains("n_model_shards = 2"), redco::Error);
}

TEST_CASE("gen_rng: the n-th generator depends on the seed and n alone") {
  redco::Deployer a({.seed = 5}), b({.seed = 5}), c({.seed = 6});
  uint64_t first = a.gen_rng().current_seed(), second = a.gen_rng().current_seed();
  CHECK(first != second);
  b.new_trainer_seed();
  CHECK(b.gen_rng().current_seed() == first);
  CHECK(c.gen_rng().current_seed() != first);
  c.set_rng_count(0);
  b.set_rng_count(1);
  CHECK(b.gen_rng().current_seed() == second);
}

TEST_CASE("epoch_order is the written-down permutation") {
  // From an independent implementation of the description in dataset.h.
  CHECK(redco::epoch_order(10, 42, 0) == std::vector<int64_t>{5, 1, 9, 6, 7, 2, 4, 0, 8, 3});
  CHECK(redco::epoch_order(10, 42, 1) == std::vector<int64_t>{8, 9, 1, 7, 6, 4, 3, 2, 0, 5});
  CHECK(redco::epoch_order(0, 42, 0).empty());
  CHECK(redco::epoch_order(1, 42, 0) == std::vector<int64_t>{0});
  auto order = redco::epoch_order(1000, 7, 3);
  std::sort(order.begin(), order.end());
  std::vector<int64_t> identity(1000);
  std::iota(identity.begin(), identity.end(), 0);
  CHECK(order == identity);
}

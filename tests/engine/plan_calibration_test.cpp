#include <redco/calibration.h>
#include "../../engine/plan/cluster/link_fit.h"
#include "../../engine/plan/cost/collective_cost.h"
#include "../../engine/plan/cost/cost_model.h"
#include "processes.h"

#include <redco/error.h>
#include <redco/mesh.h>

#include <doctest/doctest.h>

#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

using doctest::Approx;
using redco::ClusterSpec;
using redco::Group;
using redco::Mesh;
using redco::plan::CollectiveSample;
using redco::plan::fit_link;

namespace {

constexpr double gigabyte = 1e9;

double seconds(int64_t steps, int64_t bytes, double latency_us, double hop_us, double rate) {
  return 1e-6 * (latency_us + double(steps) * hop_us) + double(bytes) / rate;
}

// Samples of all kinds on 4 ranks with these costs; every other one is off by `noise`.
std::vector<CollectiveSample> samples(double latency_us, double hop_us, double rate,
                                      double noise = 0) {
  std::vector<CollectiveSample> all;
  double sign = 1;
  for (int64_t bytes = 1024; bytes <= 64 << 20; bytes *= 4)
    for (auto kind : {Group::all_reduce_kind, Group::all_gather_kind, Group::all_to_all_kind}) {
      int64_t steps = kind == Group::all_reduce_kind ? 6 : 3;
      double time = seconds(steps, bytes, latency_us, hop_us, rate);
      all.push_back({kind, 4, bytes, time * (1 + sign * noise)});
      sign = -sign;
    }
  return all;
}

}  // namespace

TEST_CASE("latency, hop and bandwidth are found again") {
  auto link = fit_link(samples(20, 3, 8 * gigabyte), 10 * gigabyte);
  CHECK(link.latency_us == Approx(20));
  CHECK(link.hop_us == Approx(3));
  CHECK(link.share == Approx(0.8));
  auto noisy = fit_link(samples(20, 3, 8 * gigabyte, 0.05), 10 * gigabyte);
  CHECK(noisy.latency_us + 3 * noisy.hop_us == Approx(29).epsilon(0.1));
  CHECK(noisy.share == Approx(0.8).epsilon(0.05));
}

TEST_CASE("no number is negative, and too few samples are refused") {
  // A time per byte alone, with less for larger messages: the best latency would be negative.
  std::vector<CollectiveSample> fast{{Group::all_gather_kind, 2, 1000, 1e-6},
                                     {Group::all_gather_kind, 2, 100'000, 1.2e-4}};
  auto link = fit_link(fast, gigabyte);
  CHECK(link.latency_us == 0);
  CHECK(link.hop_us == 0);
  CHECK(link.share > 0);
  // The longer, the faster: no time per byte.
  std::vector<CollectiveSample> odd{{Group::all_gather_kind, 2, 1000, 2e-6},
                                    {Group::all_gather_kind, 2, 100'000, 1e-6}};
  CHECK(fit_link(odd, gigabyte).share == 10);
  CHECK_THROWS_WITH_AS(fit_link({fast[0], fast[0]}, gigabyte),
                       "the times of a link need collectives of several sizes", redco::Error);
  CHECK_THROWS_AS(fit_link({}, gigabyte), redco::Error);
  fast[0].seconds = 0;
  CHECK_THROWS_AS(fit_link(fast, gigabyte), redco::Error);
}

TEST_CASE("a calibration of two processes is written and read back") {
  namespace fs = std::filesystem;
  // The other processes run this test case too, with this one's folder.
  const char* given = std::getenv("REDCO_CALIBRATION_TEST");
  const fs::path folder = given != nullptr ? fs::path(given)
                                           : fs::temp_directory_path() /
                                                 ("redco_calibration_" + std::to_string(getpid()));
  fs::create_directories(folder / "redco");
  setenv("REDCO_CALIBRATION_TEST", folder.c_str(), 1);
  setenv("XDG_CACHE_HOME", folder.c_str(), 1);
  CHECK(redco::plan::calibration_file() == folder / "redco" / "calibration.toml");
  in_processes({.n_processes = 2}, [&](Mesh& mesh) {
    ClusterSpec cluster = redco::plan::calibrate(mesh, {.seconds = 0.5});
    if (mesh.world().rank() != 0) return;
    CHECK(cluster.n_devices() == 2);
    REQUIRE(cluster.measured.collective.count("loopback") == 1);
    CHECK(cluster.measured.collective.at("loopback").share > 0);
    CHECK(cluster.measured.launch_us > 0);
    CHECK(cluster.measured.bandwidth > 0);
    for (redco::ProductKind kind : redco::product_kinds)
      if (kind != redco::ProductKind::biased_attention)  // of GPUs
        CHECK(cluster.measured.products.at(kind).at(c10::kFloat).points.size() >= 2);
    CHECK(cluster.notes().empty());
    CHECK(ClusterSpec::from_toml(cluster.to_toml(), "again") == cluster);
    std::ofstream(redco::plan::calibration_file()) << cluster.to_toml();
  });
  if (given != nullptr) return;
  // --here takes it, also for another number of processes.
  ClusterSpec here = redco::plan::here_calibrated(4);
  CHECK(here.n_devices() == 4);
  CHECK(here.measured.launch_us > 0);
  CHECK(here.device().memory * 4 == Approx(double(here.hosts[0].device.memory)));
  redco::plan::StepLog log;
  log.add(redco::plan::Operator{.name = "aten::mm", .flops = 1e9, .bytes_written = 1, .size = 512});
  CHECK(redco::plan::CostModel(here).simulate(log).total > 0);
  // Another machine's is not used.
  here.hosts[0].device.name = "another CPU";
  std::ofstream(redco::plan::calibration_file()) << here.to_toml();
  CHECK(redco::plan::here_calibrated(1).measured.is_empty());
  fs::remove_all(folder);
}

#include "../../engine/plan/cost/collective_cost.h"
#include "../../engine/plan/cost/cost_model.h"

#include <redco/error.h>

#include <doctest/doctest.h>

#include <string>

using doctest::Approx;
using redco::ClusterSpec;
using redco::Group;
using redco::Mesh;
using namespace redco::plan;

namespace {

constexpr auto data_dim = Mesh::dp;
constexpr auto model_dim = Mesh::dim_of(Mesh::model);

// 4 hosts of 8 devices with round numbers: 100 TFLOP/s, half of it reached; 1 TB/s, half reached;
// links of 100 GB/s in a host and 10 GB/s for each device between hosts.
const std::string round_numbers = R"(
[[hosts]]
count = 4
devices = 8
link = { name = "inside", bandwidth = "100 GB/s" }
[hosts.device]
kind = "tpu"
memory = "80 GiB"
bandwidth = "1 TB/s"
flops = { bfloat16 = 100e12, float32 = 10e12 }
[network]
link = { name = "between", bandwidth = "10 GB/s" }
[measured]
bandwidth = 0.5
launch_us = 10
matmul.bfloat16 = [[64, 0.25], [1024, 0.5]]
attention.float32 = [[512, 0.25]]
collective.inside = { latency_us = 20, hop_us = 1, share = 0.5 }
collective.between = { latency_us = 30, hop_us = 5, share = 1.0 }
)";

ClusterSpec cluster() { return ClusterSpec::from_toml(round_numbers, "test"); }

Operator product(double flops, int64_t size = 4096) {
  return {.name = "aten::mm",
          .flops = flops,
          .dtype = c10::kBFloat16,
          .bytes_written = 1,
          .size = size};
}

}  // namespace

TEST_CASE("operators: the longer of computing and reading, and a launch") {
  CostModel model(cluster());
  CHECK(model.seconds(product(1e12)) == Approx(0.02 + 10e-6));
  CHECK(model.seconds(product(1e12, 256)) == Approx(1e12 / 37.5e12 + 10e-6));
  CHECK(model.seconds(product(1e12, 64)) == Approx(0.04 + 10e-6));
  Operator attention = product(1e12);
  attention.kind = redco::ProductKind::attention;
  CHECK(model.seconds(attention) == Approx(0.02 / 0.7 + 10e-6));
  attention.dtype = c10::kFloat;
  attention.size = 512;  // measured
  CHECK(model.seconds(attention) == Approx(1e12 / 2.5e12 + 10e-6));
  Operator add{.name = "aten::add", .bytes_read = 3'000'000'000, .bytes_written = 2'000'000'000};
  CHECK(model.seconds(add) == Approx(0.01 + 10e-6));
  Operator skinny = product(1e9);
  skinny.bytes_read = 500'000'000;
  CHECK(model.seconds(skinny) == Approx(0.001 + 10e-6));
  CHECK(model.seconds(Operator{.name = "aten::view", .bytes_read = 100}) == 0);
  CHECK(model.model_flops_utilization(50e12, 2, c10::kBFloat16) == Approx(0.25));
}

TEST_CASE("memory of the host is read and written over its link, both ways at once") {
  CostModel model(cluster());
  Operator update{.name = "aten::_fused_adamw_",
                  .bytes_read = 3'000'000'000,
                  .bytes_written = 2'000'000'000,
                  .host_bytes_read = 500'000'000,
                  .host_bytes_written = 500'000'000};
  CHECK(model.seconds(update) == Approx(0.02 + 10e-6));  // at 25 GB/s
  update.host_bytes_read = 1'000'000'000;
  CHECK(model.seconds(update) == Approx(0.04 + 10e-6));
}

TEST_CASE("a CPU is its own host") {
  ClusterSpec spec = cluster();
  spec.hosts[0].device.kind = redco::DeviceFacts::cpu;  // 125 GB/s for each of 8, half reached
  const Operator add{.name = "aten::add", .bytes_read = 500'000'000, .bytes_written = 125'000'000};
  const Operator view{.name = "aten::view", .bytes_read = 1 << 30};
  CHECK(CostModel(spec).seconds(add) == Approx(0.01 + 8 * 10e-6));
  CHECK(CostModel(spec).seconds(view) == Approx(2 * 10e-6));
  StepLog log;
  log.add(add), log.add(view);
  CHECK(CostModel(spec).simulate(log).total == Approx(0.01 + 10 * 10e-6));
}

TEST_CASE("a GPU's step takes at least what its host needs to start the operators") {
  ClusterSpec spec = cluster();
  spec.hosts[0].device.kind = redco::DeviceFacts::gpu;
  CostModel model(spec);
  constexpr double kernel = 3e-6, launch = 20e-6, of_view = 5e-6;
  const Operator view{.name = "aten::view", .bytes_read = 100};
  CHECK(model.seconds(product(1e12)) == Approx(0.02 + kernel));
  CHECK(model.host_seconds(product(1e12)) == Approx(launch));
  CHECK(model.host_seconds(view) == Approx(of_view));
  Operator convolution = product(1e12);
  convolution.starts = 8;  // several kernels
  CHECK(model.host_seconds(convolution) == Approx(8 * launch));
  CHECK(CostModel(cluster()).host_seconds(view) == 0);  // no Lua runs beside it
  StepLog log;
  for (int i = 0; i < 10; ++i) log.add(product(1e6)), log.add(view);
  StepTime time = model.simulate(log);
  CHECK(time.total == Approx(10 * (launch + of_view)));
  CHECK(time.starting == Approx(time.total - time.compute));
  log.add(product(1e12));  // the host is ahead of it
  time = model.simulate(log);
  CHECK(time.starting == 0);
  CHECK(time.total == time.compute);
}

TEST_CASE("on a GPU operators read and write some bytes several times, or inside") {
  ClusterSpec spec = cluster();
  Operator cat{.name = "aten::cat",
               .bytes_read = 3'000'000'000,
               .bytes_written = 2'000'000'000,
               .passes = 2.4};
  CHECK(CostModel(spec).seconds(cat) == Approx(0.01 + 10e-6));
  spec.hosts[0].device.kind = redco::DeviceFacts::gpu;
  CHECK(CostModel(spec).seconds(cat) == Approx(2.4 * 0.01 + 3e-6));
  Operator loss = product(1e12);
  loss.bytes_inside = 5'000'000'000;
  CHECK(CostModel(spec).seconds(loss) == Approx(0.02 + 0.01 + 3e-6));
  Operator attention = product(1e12);
  attention.kind = redco::ProductKind::biased_attention;
  CHECK(CostModel(spec).seconds(attention) == Approx(0.02 / 0.15 + 3e-6));
}

TEST_CASE("the ranks of a group on each host") {
  ClusterSpec spec = cluster();
  auto place = [&](int64_t n, int64_t step) {
    return place_of({.n_ranks = n, .rank_step = step}, spec);
  };
  CHECK(place(1, 1) == GroupPlace{1, 1, 1});
  CHECK(place(8, 1) == GroupPlace{8, 1, 8});
  CHECK(place(2, 4) == GroupPlace{2, 1, 2});
  CHECK(place(4, 8) == GroupPlace{4, 4, 1});  // along the batch, beside model groups of 8
  CHECK(place(32, 1) == GroupPlace{32, 4, 8});
  CHECK(place(8, 4) == GroupPlace{8, 4, 2});
  CHECK(place(4, 3) == GroupPlace{4, 2, 3});  // 0, 3, 6 and 9
}

TEST_CASE("collectives in a host: latency + steps x hop + bytes / bandwidth") {
  ClusterSpec spec = cluster();
  Collective each{.kind = Group::all_reduce_kind, .n_ranks = 4, .bytes_sent = 1'000'000'000};
  CHECK(seconds_of(each, spec) == Approx(0.02 + 26e-6));  // 6 steps
  each.kind = Group::all_gather_kind;
  CHECK(seconds_of(each, spec) == Approx(0.02 + 23e-6));
  each.n_ranks = 1;
  CHECK(seconds_of(each, spec) == 0);
}

TEST_CASE("collectives between hosts use the cards of all ranks of the host") {
  ClusterSpec spec = cluster();
  Collective each{
      .kind = Group::all_gather_kind, .n_ranks = 4, .rank_step = 8, .bytes_sent = 1'000'000'000};
  CHECK(seconds_of(each, spec) == Approx(0.1 + 45e-6));  // one card: 3 steps of 5
  each.n_ranks = 8, each.rank_step = 4;
  CHECK(seconds_of(each, spec) == Approx(0.05 + 49e-6));  // two cards; 3 steps of 5, 4 of 1
  each.n_ranks = 32, each.rank_step = 1;
  CHECK(seconds_of(each, spec) == Approx(0.02 + 73e-6));  // 80 GB/s between, 50 inside
  // One card for a host: a group has its share.
  spec.network->is_per_host = true;
  CHECK(seconds_of(each, spec) == Approx(0.1 + 73e-6));
  each.n_ranks = 4, each.rank_step = 8;
  CHECK(seconds_of(each, spec) == Approx(0.8 + 45e-6));
  spec.network->is_per_host = false;
  spec.network->oversubscription = 4;
  CHECK(seconds_of(each, spec) == Approx(0.4 + 45e-6));
  // Rows of all-to-all: 24 of 31 cross, from one card each.
  spec.network->oversubscription = 1;
  each = {.kind = Group::all_to_all_kind, .n_ranks = 32, .bytes_sent = 3'100'000'000};
  CHECK(seconds_of(each, spec) == Approx(0.24 + 73e-6));
}

TEST_CASE("NCCL's protocols: small messages take LL, large ones Simple, long rings trees") {
  ClusterSpec spec = ClusterSpec::from_text("128x H100-80G:8, ib 400G");
  Collective each{.kind = Group::all_reduce_kind, .n_ranks = 8, .bytes_sent = 14};
  CHECK(seconds_of(each, spec) == Approx(1e-6 * (3.6 + 14 * 0.47)).epsilon(0.001));
  each.bytes_sent = 3'600'000'000;
  CHECK(seconds_of(each, spec) == Approx(0.01 + 1e-6 * (8.4 + 14 * 3.4)));
  // 1024 ranks on 128 hosts: 4.4 + 2 (7 x 0.52 + 7 x 5) us; a ring would take 4000.
  each = {.kind = Group::all_reduce_kind, .n_ranks = 1024, .bytes_sent = 8};
  CHECK(seconds_of(each, spec) == Approx(1e-6 * (4.4 + 2 * (3.64 + 35))).epsilon(0.001));
  each.kind = Group::all_gather_kind;
  CHECK(seconds_of(each, spec) ==
        Approx(1e-6 * (3.6 + 127 * 2.7 + (1023 - 127) * 1.8 * 0.47)).epsilon(0.001));
}

TEST_CASE("overlap follows from the starts and waits in the log") {
  CostModel model(cluster());
  // 30 ms of a collective of 1.4 GB (and 43 us), beside products of 20 ms.
  Collective gather{.kind = Group::all_gather_kind,
                    .dim = data_dim,
                    .n_ranks = 2,
                    .rank_step = 1,
                    .bytes_sent = 1'500'000'000};
  const double op = 0.02 + 10e-6, send = 0.03 + 21e-6;
  StepLog waits_at_once;
  waits_at_once.wait(waits_at_once.start(gather));
  waits_at_once.add(product(1e12));
  StepTime time = model.simulate(waits_at_once);
  CHECK(time.total == Approx(op + send));
  CHECK(time.exposed[data_dim] == Approx(send));
  CHECK(time.communication[data_dim] == Approx(send));

  StepLog overlaps;
  int64_t pending = overlaps.start(gather);
  overlaps.add(product(1e12));
  overlaps.wait(pending);
  overlaps.add(product(1e12));
  time = model.simulate(overlaps);
  CHECK(time.compute == Approx(2 * op));
  CHECK(time.total == Approx(send + op));
  CHECK(time.exposed[data_dim] == Approx(send - op));
  CHECK(time.total == Approx(time.compute + time.exposed_sum()));

  // Two collectives of one link follow each other; of different links they do not.
  StepLog same;
  int64_t first = same.start(gather), second = same.start(gather);
  same.wait(first), same.wait(second);
  CHECK(model.simulate(same).total == Approx(2 * send));
  Collective between{.kind = Group::all_gather_kind,
                     .dim = data_dim,
                     .n_ranks = 2,
                     .rank_step = 8,
                     .bytes_sent = 400'000'000};
  Collective inside = gather;
  inside.dim = model_dim;
  StepLog different;
  first = different.start(between), second = different.start(inside);
  different.wait(first), different.wait(second);
  CHECK(model.simulate(different).total == Approx(0.04 + 35e-6));

  // Nothing waits for the last one, but the step ends with it.
  StepLog left;
  left.start(gather);
  CHECK(model.simulate(left).total == Approx(send));
}

TEST_CASE("the step of more devices waits for a slower one") {
  StepLog log;
  log.add(product(1e12));
  log.wait(log.start({.kind = Group::all_reduce_kind, .dim = data_dim, .n_ranks = 8}));
  auto share = [&](int64_t n) {
    ClusterSpec spec = ClusterSpec::from_text("2x H100-80G:8, ib 400G").with_devices(n);
    StepTime time = CostModel(spec).simulate(log);
    CHECK(time.total == Approx(time.compute + time.exposed_sum() + time.straggling));
    return time.straggling / time.compute;
  };
  // The expected maximum of 8 and of 128 numbers is 1.42 and 2.60 standard deviations of 1.5 %.
  CHECK(share(8) == Approx(0.0214).epsilon(0.02));
  CHECK(share(128) == Approx(0.0388).epsilon(0.02));
  log.collectives.clear(), log.sequence.resize(1);
  CHECK(share(8) == 0);  // without collectives nothing waits
}

TEST_CASE("on a CPU without free cores nothing overlaps") {
  ClusterSpec spec = cluster();
  spec.hosts[0].device.kind = redco::DeviceFacts::cpu;
  spec.hosts[0].cores = 8;
  Collective gather{.kind = Group::all_gather_kind, .n_ranks = 2, .bytes_sent = 1'500'000'000};
  StepLog log;
  int64_t pending = log.start(gather);
  log.add(product(1e12));
  log.wait(pending);
  // An eighth of the host's rate for each process.
  const double op = 8 * 0.02 + 8 * 10e-6, send = 0.03 + 21e-6;
  CHECK(CostModel(spec).simulate(log).total == Approx(op + send));
  spec.hosts[0].cores = 16;
  CHECK(CostModel(spec).simulate(log).total == Approx(op));
}

TEST_CASE("notes and refusals of the cost model") {
  CostModel model(ClusterSpec::from_text("V100"));
  StepLog log;
  log.add(product(1e9));
  REQUIRE(model.notes(log).size() == 1);
  CHECK(model.notes(log)[0] ==
        "there is no figure for products of BFloat16 on V100-16G; they count as float32");
  StepLog wrong;
  wrong.collectives.push_back({});
  wrong.wait(0);
  CHECK_THROWS_WITH_AS(model.simulate(wrong), "the log waits for collective 0 before its start",
                       redco::Error);
  StepLog two_hosts;
  two_hosts.start({.n_ranks = 2, .bytes_sent = 1});
  CHECK_THROWS_WITH_AS(model.simulate(two_hosts),
                       "a group of 2 devices has 2 hosts, but the cluster has no network",
                       redco::Error);
}

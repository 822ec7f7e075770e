// The time of a step whose stages take turns.
#include "../../engine/plan/cost/pipeline_time.h"

#include <doctest/doctest.h>

#include <vector>

using doctest::Approx;
using redco::ClusterSpec;
using redco::Group;
using redco::Mesh;
using namespace redco::plan;

namespace {

// A launch takes 10 ms, so that an operator of little work takes as long.
ClusterSpec cluster() {
  return ClusterSpec::from_toml(R"(
[[hosts]]
count = 2
devices = 1
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
launch_us = 10000
matmul.bfloat16 = [[64, 0.25], [1024, 0.5]]
collective.between = { latency_us = 30, hop_us = 5, share = 1.0 }
)",
                                "test");
}

void add_operators(StepLog& log, int n) {
  for (int i = 0; i < n; ++i) log.add(Operator{.name = "aten::relu", .bytes_written = 1});
}

void add_pass(StepLog& log, bool is_backward, int n_operators) {
  const size_t begin = log.sequence.size();
  add_operators(log, n_operators);
  log.passes.push_back({is_backward, begin, log.sequence.size()});
}

}  // namespace

TEST_CASE("stages that are alike: each waits for n - 1 micro-batches") {
  const StageSeconds stage{.forward = 1, .backward = 2, .rest = 5};
  CHECK(pipeline_seconds({stage}, 1, 4) == Approx(4 * 3 + 5));
  CHECK(pipeline_seconds({stage, stage, stage}, 1, 1) == Approx(3 * 3 + 5));
  CHECK(pipeline_seconds({stage, stage, stage}, 1, 8) == Approx((8 + 2) * 3 + 5));
}

TEST_CASE("stages of several chunks wait less") {
  const StageSeconds stage{.forward = 1, .backward = 2, .rest = 5};  // of a chunk
  CHECK(pipeline_seconds({stage, stage, stage}, 2, 6) == Approx((2 * 6 + 2) * 3 + 5));
  CHECK(pipeline_seconds({stage, stage, stage}, 4, 7) == Approx((4 * 7 + 2) * 3 + 5));
}

TEST_CASE("the slowest stage decides, and the others once each") {
  const StageSeconds fast{.forward = 1, .backward = 2}, slow{.forward = 2, .backward = 4};
  // After two forward passes the slow stage waits until the last one has sent a gradient.
  CHECK(pipeline_seconds({fast, slow, fast}, 1, 6) == Approx(1 + 6 * 6 + 1 + 2));
  const StageSeconds updates{.forward = 1, .backward = 2, .rest = 100};
  CHECK(pipeline_seconds({fast, updates}, 1, 2) == Approx(1 + 2 * 3 + 100));
}

TEST_CASE("what is sent takes its time at the ends of the pipeline") {
  const StageSeconds stage{.forward = 1, .backward = 2, .to_next = 0.25, .to_previous = 0.5};
  CHECK(pipeline_seconds({stage, stage}, 1, 1) == Approx(2 * 3 + 0.25 + 0.5));
}

TEST_CASE("the passes of a log") {
  const CostModel cost(cluster());
  StepLog log;
  add_pass(log, false, 2);
  add_pass(log, false, 2);
  add_pass(log, true, 3);
  add_pass(log, true, 7);  // and reduces the gradients
  add_operators(log, 5);
  const StageSeconds seconds = stage_seconds(cost, log);
  CHECK(seconds.forward == Approx(0.02));
  CHECK(seconds.backward == Approx(0.03));
  CHECK(seconds.rest == Approx(0.04 + 0.05));
  CHECK(seconds.to_next == 0);
}

TEST_CASE("messages of a log") {
  const CostModel cost(cluster());
  constexpr Mesh::Dim stages = Mesh::dim_of(Mesh::pipeline);
  const Collective message{
      .kind = Group::all_to_all_kind, .dim = stages, .n_ranks = 2, .bytes_sent = 1 << 20};
  StepLog log;
  add_operators(log, 1);
  log.start(message);
  log.passes.push_back({false, 0, log.sequence.size()});
  add_pass(log, true, 1);
  const StageSeconds seconds = stage_seconds(cost, log);
  CHECK(seconds.to_next == Approx(cost.seconds(message)));
  CHECK(seconds.to_next > (1 << 20) / 10e9);
  CHECK(seconds.to_previous == 0);
}

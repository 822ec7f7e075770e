// The time of a step, simulated over its log.

#include "cost_model.h"

#include "collective_cost.h"

#include <redco/error.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace redco::plan {

namespace {

// The expected maximum of n numbers of a normal distribution, in standard deviations: the quantile
// (n - 0.375) / (n + 0.25) (Blom), by Winitzki's form of the inverse error function.
double expected_maximum(int64_t n) {
  if (n <= 1) return 0;
  const double x = 2 * (double(n) - 0.375) / (double(n) + 0.25) - 1;
  constexpr double a = 0.147, pi = 3.14159265358979;
  const double log = std::log(1 - x * x), half = 2 / (pi * a) + log / 2;
  return std::sqrt(2 * (std::sqrt(half * half - log / a) - half));
}

}  // namespace

double StepTime::exposed_sum() const {
  return std::accumulate(exposed.begin(), exposed.end(), 0.0);
}

CostModel::CostModel(ClusterSpec cluster)
    : cluster_(std::move(cluster)),
      device_(cluster_.device()),
      constants_(constants_of(device_.kind)),
      overlaps_(cluster_.overlaps_collectives()) {
  if (cluster_.measured.bandwidth) constants_.bandwidth_share = *cluster_.measured.bandwidth;
  if (cluster_.measured.launch_us) constants_.launch_us = *cluster_.measured.launch_us;
}

double CostModel::share_of_peak(const Operator& call) const {
  auto measured = [&](ProductKind kind) -> const Efficiency* {
    auto of_kind = cluster_.measured.products.find(kind);
    if (of_kind == cluster_.measured.products.end()) return nullptr;
    auto found = of_kind->second.find(call.dtype);
    return found == of_kind->second.end() ? nullptr : &found->second;
  };
  if (const Efficiency* own = measured(call.kind)) return own->at(double(call.size));
  const bool is_matmul = call.kind == ProductKind::matmul;
  const Efficiency* of_matmul = is_matmul ? nullptr : measured(ProductKind::matmul);
  const Efficiency& matmul = of_matmul ? *of_matmul : constants_.matmul;
  double share = is_matmul
                     ? matmul.at(double(call.size))
                     : matmul.points.back().second * (call.kind == ProductKind::biased_attention
                                                          ? constants_.biased_attention_share
                                                          : constants_.attention_share);
  return of_matmul ? share : share * device_.matmul_share;
}

double CostModel::seconds(const Operator& call) const {
  const bool is_cpu = device_.kind == DeviceFacts::cpu;
  const double starting = is_cpu
                              ? host_seconds(call)
                              : 1e-6 * (has_host() ? constants_.kernel_us : constants_.launch_us);
  if (call.is_view()) return is_cpu ? starting : 0;
  auto bytes = double(call.bytes_read + call.bytes_written);
  if (has_host()) bytes *= call.passes;
  const double rate = device_.bandwidth * constants_.bandwidth_share;
  double computing = 0;
  if (call.flops > 0)
    computing = call.flops / (device_.peak(call.dtype).flops * share_of_peak(call));
  // The link carries both directions at once.
  const double over_link =
      double(std::max(call.host_bytes_read, call.host_bytes_written)) / device_.host_bandwidth;
  return std::max({bytes / rate, computing, over_link}) + double(call.bytes_inside) / rate +
         starting;
}

double CostModel::host_seconds(const Operator& call) const {
  const HostLaunches& host = constants_.host;
  double n_launches = call.is_view() ? host.of_view : host.of_operator;
  if (has_host() && !call.is_view()) n_launches *= call.starts;
  return 1e-6 * constants_.launch_us * n_launches;
}

double CostModel::seconds(const Collective& collective) const {
  return seconds_of(collective, cluster_);
}

StepTime CostModel::simulate(const StepLog& log, std::vector<double>* times) const {
  // Keeps the costs, because a step has many collectives but few sizes.
  std::map<std::tuple<Group::Kind, int64_t, int64_t, int64_t>, double> costs;
  std::map<std::pair<int64_t, int64_t>, GroupPlace> places;
  std::vector<double> ends(log.collectives.size(), -1);
  StepTime time;
  double now = 0, in_host = 0, network = 0;  // when the streams become free
  double host = 0;                           // the time that a GPU's host takes in total
  for (auto [what, index] : log.sequence) {
    if (times != nullptr) times->push_back(now);
    if (what == StepLog::What::operator_call) {
      const Operator& call = log.operators.at(size_t(index));
      const double cost = seconds(call);
      host += host_seconds(call);
      time.compute += cost;
      now += cost;
      continue;
    }
    if (what == StepLog::What::allocation) continue;
    const Collective& each = log.collectives.at(size_t(index));
    size_t dim = each.dim.value_or(Mesh::n_dims);
    if (what == StepLog::What::collective_wait) {
      double end = ends.at(size_t(index));
      require(end >= 0, "the log waits for collective ", index, " before its start");
      time.exposed[dim] += std::max(0.0, end - now);
      now = std::max(now, end);
      continue;
    }
    auto [cost, is_new] =
        costs.try_emplace({each.kind, each.n_ranks, each.rank_step, each.bytes_sent});
    if (is_new) cost->second = seconds(each);
    time.communication[dim] += cost->second;
    if (!overlaps_) {
      now += cost->second;
      time.exposed[dim] += cost->second;
      ends[size_t(index)] = now;
      continue;
    }
    auto [place, is_first] = places.try_emplace({each.n_ranks, each.rank_step});
    if (is_first) place->second = place_of(each, cluster_);
    bool uses_network = place->second.n_hosts > 1;
    bool uses_host = place->second.ranks_of_host > 1;
    double start = now;
    if (uses_network) start = std::max(start, network);
    if (uses_host) start = std::max(start, in_host);
    double end = start + cost->second;
    if (uses_network) network = end;
    if (uses_host) in_host = end;
    ends[size_t(index)] = end;
  }
  // The step also waits for collectives that no operator waits for.
  for (size_t i = 0; i < ends.size(); ++i) {
    if (ends[i] <= now) continue;
    time.exposed[log.collectives[i].dim.value_or(Mesh::n_dims)] += ends[i] - now;
    now = ends[i];
  }
  if (!log.collectives.empty())
    time.straggling = time.compute * constants_.spread * expected_maximum(cluster_.n_devices());
  // The host of a GPU runs ahead of the GPU, by whole steps. It adds time only if it takes longer
  // than the GPU.
  time.starting = std::max(0.0, host - now);
  time.total = now + time.starting + time.straggling;
  return time;
}

double CostModel::model_flops_utilization(double model_flops, double seconds,
                                          c10::ScalarType dtype) const {
  return seconds > 0 ? model_flops / (seconds * device_.peak(dtype).flops) : 0;
}

std::vector<std::string> CostModel::notes(const StepLog& log) const {
  std::set<c10::ScalarType> unlisted;
  for (const Operator& call : log.operators)
    if (call.flops > 0 && !device_.peak(call.dtype).is_listed) unlisted.insert(call.dtype);
  std::vector<std::string> notes;
  for (c10::ScalarType dtype : unlisted)
    notes.push_back(std::string("there is no figure for products of ") + c10::toString(dtype) +
                    " on " + device_.name + "; they count as float32");
  return notes;
}

}  // namespace redco::plan

#pragma once

#include "../cluster/device_tables.h"
#include "../trace/step_log.h"

#include <redco/cluster.h>

#include <array>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace redco::plan {

/// The seconds of a step, on one device.
struct REDCO_API StepTime {
  double total = 0;
  double compute = 0;  ///< of the operators
  /// Of the collectives of each dimension, and of the world (the last), as if each ran alone.
  std::array<double, Mesh::n_dims + 1> communication = {};
  /// The part of these during which no operator runs.
  std::array<double, Mesh::n_dims + 1> exposed = {};
  double starting = 0;    ///< of a GPU that waits for its host to start operators
  double straggling = 0;  ///< of waiting for the slowest of the devices
  // total = compute + the sum of exposed + starting + straggling

  double exposed_sum() const;
};

/// Predicts the time of a step from its log.
class REDCO_API CostModel {
 public:
  explicit CostModel(ClusterSpec cluster);

  const ClusterSpec& cluster() const { return cluster_; }

  /// max(FLOPs / (peak x share of its kind and size), bytes / (bandwidth x share), bytes of the
  /// host in one direction / host_bandwidth) + bytes inside / (bandwidth x share) + launch; 0 for
  /// views. On a GPU some operators read and write their bytes several times, and the launch is
  /// that of a kernel, since the host works at the same time. On a CPU the launch is
  /// `host_seconds`, of views too.
  double seconds(const Operator& call) const;
  /// The time of the host to start an operator, which a CPU is itself; 0 for TPUs.
  double host_seconds(const Operator& call) const;
  /// See seconds_of(Collective), without other traffic.
  double seconds(const Collective& collective) const;

  /// Simulates the streams of a device: one computes, and each link has one. A collective begins
  /// when it was started, the operators before it have ended, and its links are free; what follows
  /// its wait begins when it has ended. If the processes have no cores left for collectives
  /// (overlaps_collectives), they run in the compute stream. Devices that are alike differ in speed
  /// by a few percent, and collectives make all wait for the slowest. `times`, unless null, gets
  /// the time at which the computing stream is when the host comes to each event.
  /// The host of a GPU starts operators while earlier ones run. A step takes at least as long as
  /// the host needs for all of them.
  StepTime simulate(const StepLog& log, std::vector<double>* times = nullptr) const;

  /// The share of the device's peak that a model reaches whose forward and backward pass need this
  /// many operations in a step of this device, without what is computed again.
  double model_flops_utilization(double model_flops, double seconds, c10::ScalarType dtype) const;

  /// Notes about the log for a reader: dtypes for which the table has no figure.
  std::vector<std::string> notes(const StepLog& log) const;

 private:
  bool has_host() const { return device_.kind == DeviceFacts::gpu; }
  double share_of_peak(const Operator& call) const;

  ClusterSpec cluster_;
  DeviceFacts device_;
  ModelConstants constants_;
  bool overlaps_;
};

}  // namespace redco::plan

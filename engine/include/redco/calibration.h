#pragma once

#include <redco/cluster.h>
#include <redco/mesh.h>

namespace redco::plan {

struct CalibrationOptions {
  double seconds = 10;  ///< of measuring; it takes about twice as long
};

/// Measures the devices of a run and the links between them: an MLP of 64 to 4096 rows, attention
/// and convolutions by dtype, additions to a large tensor, operators on 4 numbers with their
/// gradients, and all collectives of 1 KiB to 32 MiB over all processes; on GPUs also the memory of
/// the context and of a group. The slowest process counts. Every process of the
/// mesh must call it. The result describes the processes of one host, with [measured]; that of
/// process 0 is to be kept. For several hosts, the link measured is the network. Throws UsageError
/// for a GPU that the table lacks.
REDCO_API ClusterSpec calibrate(const Mesh& mesh, const CalibrationOptions& options = {});

/// Where --calibrate keeps what it measured on this machine, and --here finds it:
/// ~/.cache/redco/calibration.toml. "" without a home folder.
REDCO_API std::string calibration_file();

/// ClusterSpec::here with what was measured earlier, if that was on a device of the same name.
REDCO_API ClusterSpec here_calibrated(int64_t n_processes = 1);

}  // namespace redco::plan

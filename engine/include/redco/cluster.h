#pragma once

#include <redco/export.h>
#include <redco/product_kind.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redco {

/// The description of a cluster that `redco-lua plan` computes with: devices, links between them,
/// and what was measured on them. Bytes are bytes, bandwidths bytes per second in one direction,
/// rates operations per second, times seconds unless a name ends in `_us` (microseconds).

/// A kind of device.
struct DeviceFacts {
  enum Kind : uint8_t { gpu, tpu, cpu };
  std::string name = {};  ///< such as "H100-80G"
  Kind kind = gpu;
  int64_t memory = 0;
  double bandwidth = 0;          ///< of its memory
  double host_bandwidth = 25e9;  ///< of its link to the memory of the host, in one direction
  /// Peak operations per second of products of dense matrices, by dtype.
  std::map<c10::ScalarType, double> flops = {};
  double matmul_share = 0.75;  ///< of these peaks that large products reach
  double tf32 = 0;             ///< of float32 products in TF32, which LibTorch must be told to use
  std::string link = {};       ///< the usual link between the devices of one host

  /// The peak of products of a dtype. A dtype without a figure is computed as float32, and
  /// `is_listed` is false. Float32 is computed in TF32 if LibTorch is set to do so.
  struct Peak {
    double flops;
    bool is_listed;
  };
  REDCO_API Peak peak(c10::ScalarType dtype) const;
  bool operator==(const DeviceFacts&) const = default;
};

/// A link between devices of a host, or between hosts. A collective of n ranks takes
/// latency + steps x hop + bytes / bandwidth (NCCL, src/graph/tuning.cc).
struct LinkFacts {
  std::string name = {};
  double bandwidth = 0;  ///< in one direction, of one device or network card
  double share = 1;      ///< of the bandwidth that collectives reach
  double latency_us = 0;
  double hop_us = 0;
  /// The same for NCCL's protocol for small messages, LL, which reaches 1/4 of the bandwidth; 0 if
  /// the link has no such protocol.
  double small_latency_us = 0;
  double small_hop_us = 0;
  bool operator==(const LinkFacts&) const = default;
};

/// Hosts that are alike.
struct HostGroup {
  int64_t count = 1;
  int64_t devices = 1;  ///< of each host; the processes of a host without other devices than CPUs
  DeviceFacts device = {};    ///< of a CPU: the whole host, which its processes share
  LinkFacts link = {};        ///< between the devices of a host
  int64_t cores = 0;          ///< of each host; 0: unknown
  double price_per_hour = 0;  ///< of each host, in any currency; 0: unknown
  bool operator==(const HostGroup&) const = default;
};

/// The network between hosts.
struct NetworkFacts {
  LinkFacts link = {};
  bool is_per_host = false;     ///< whether the devices of a host share one card, or have one each
  double oversubscription = 1;  ///< how many times less than the cards the switches can carry
  bool operator==(const NetworkFacts&) const = default;
};

/// Memory of a device that no tensor has.
struct ReservedMemory {
  int64_t context = 0;    ///< of the driver and the libraries, once
  int64_t group = 0;      ///< of each group of the mesh that has more than one rank
  int64_t workspace = 0;  ///< of the matrix library
  bool operator==(const ReservedMemory&) const = default;
};

/// The share of a peak that is reached, as a function of a size. Between two points it is
/// interpolated over the logarithm of the size, and beyond them it is constant.
struct REDCO_API Efficiency {
  std::vector<std::pair<double, double>> points = {};  ///< size, share; sizes ascend
  double at(double size) const;
  bool operator==(const Efficiency&) const = default;
};

/// Measurements of a cluster. They are used in place of the built-in constants.
struct Measurements {
  /// The share of the dtype's peak. Sizes: of matmul the smallest of m, n and k, of attention the
  /// number of queries, of convolutions the smaller number of channels.
  std::map<ProductKind, std::map<c10::ScalarType, Efficiency>> products = {};
  std::optional<double> bandwidth = std::nullopt;  ///< share of the memory's
  std::optional<double> launch_us = std::nullopt;  ///< of one operator; on a GPU, of its host
  struct Link {
    double latency_us, hop_us, share;
    bool operator==(const Link&) const = default;
  };
  std::map<std::string, Link> collective = {};  ///< by the name of the link
  bool operator==(const Measurements&) const = default;
  bool is_empty() const { return *this == Measurements{}; }
};

struct REDCO_API ClusterSpec {
  std::vector<HostGroup> hosts = {};
  std::optional<NetworkFacts> network = std::nullopt;  ///< none if there is one host
  ReservedMemory reserve = {};
  Measurements measured = {};

  /// Reads a cluster.toml. Throws UsageError, which names the file and line, for text that is not
  /// TOML, unknown keys (with the nearest known one), values of a wrong type or range, unknown
  /// devices and links (with the nearest known one), and several hosts without a network; and
  /// UnknownFormat for a newer `format`. A file without it has format 1.
  static ClusterSpec read(const std::string& path);
  /// The same for the text of such a file; messages call it `name`.
  static ClusterSpec from_toml(std::string_view text, const std::string& name);
  /// Parses "2x H100-80G:8, ib 400G": hosts x device : devices of a host, and the network between
  /// hosts. Throws UsageError as `read` does.
  static ClusterSpec from_text(const std::string& text);
  /// This machine: its GPUs, or `n_processes` processes on its CPU, whose peaks are measured in
  /// about a second. Throws UsageError for a GPU that the table lacks.
  static ClusterSpec here(int64_t n_processes = 1);

  /// The text of a cluster.toml, which from_toml reads back.
  std::string to_toml() const;

  int64_t n_hosts() const;
  int64_t n_devices() const;
  /// "2 x 8 H100-80G (nvlink4, ib-400)"
  std::string text() const;
  /// The device that each process must do with: the least memory, bandwidth and rates of all hosts'
  /// devices. A CPU is divided among the processes of its host.
  DeviceFacts device() const;
  /// The devices of the host that has the fewest.
  int64_t devices_per_host() const;
  /// Whether the processes have cores left for collectives while they compute.
  bool overlaps_collectives() const;
  /// The price of all hosts for some seconds; none if a price is missing.
  std::optional<double> price(double seconds) const;
  /// Notes for a reader, such as "the hosts have several kinds of devices: ...".
  std::vector<std::string> notes() const;
  /// The same kind of cluster with n devices: fewer, or more of its hosts. Throws UsageError,
  /// which names the nearest possible numbers, if hosts would not be full.
  ClusterSpec with_devices(int64_t n) const;

  bool operator==(const ClusterSpec&) const = default;
};

/// Parses "80 GiB", "1.5 GB" or "512 MiB". Throws UsageError, which begins with `where`.
REDCO_API int64_t parse_bytes(const std::string& text, const std::string& where);

}  // namespace redco

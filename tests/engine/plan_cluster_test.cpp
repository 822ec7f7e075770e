#include "../../engine/plan/cluster/device_tables.h"

#include <redco/cluster.h>
#include <redco/error.h>

#include <doctest/doctest.h>

#include <string>

using doctest::Approx;
using redco::ClusterSpec;
using redco::DeviceFacts;
using redco::UsageError;

namespace {

constexpr int64_t gib = 1024 * 1024 * 1024;

std::string refusal(const std::string& toml) {
  try {
    ClusterSpec::from_toml(toml, "cluster.toml");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

std::string refused_servers(const std::string& text) {
  try {
    ClusterSpec::from_text(text);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("--servers: hosts x device : devices, and the network") {
  ClusterSpec cluster = ClusterSpec::from_text("2x H100-80G:8, ib 400G");
  CHECK(cluster.n_hosts() == 2);
  CHECK(cluster.n_devices() == 16);
  CHECK(cluster.text() == "2 x 8 H100-80G (nvlink4, ib-400)");
  CHECK(cluster.device().bandwidth == 3.35e12);
  CHECK(cluster.device().peak(c10::kBFloat16).flops == 989e12);
  CHECK(cluster.device().peak(c10::kFloat).flops == 67e12);
  CHECK(cluster.hosts[0].link.bandwidth == 450e9);
  CHECK(cluster.network->link.bandwidth == 50e9);
  CHECK(cluster.reserve.context == int64_t(0.68 * gib));

  CHECK(ClusterSpec::from_text("1080ti").text() == "1 1080Ti-11G");
  CHECK(ClusterSpec::from_text("A100").device().memory ==
        ClusterSpec::from_text("A100-40G").device().memory);
}

TEST_CASE("--servers: what is wrong, and the nearest name") {
  CHECK(refused_servers("2x H100-81G:8, ib 400G") ==
        "--servers \"2x H100-81G:8, ib 400G\": there is no device 'H100-81G'; did you mean "
        "'H100-80G'? A cluster.toml can describe others.");
  CHECK(contains(refused_servers("2x H100:8, ib 4000G"), "did you mean 'ib-400'?"));
  CHECK(contains(refused_servers("2x H100:8"),
                 "there are 2 hosts: add the network between them, such as \", ib 400G\""));
  CHECK(contains(refused_servers("ib 400G"), "there are no hosts"));
  CHECK(contains(refused_servers(""), "there are no hosts"));
  CHECK(contains(refused_servers("H100,,ib 400G"), "nothing between two commas"));
  CHECK(contains(refused_servers("0x H100"), "'0' hosts: expected a number from 1"));
  CHECK(contains(refused_servers("H100:many"), "'many' devices of a host"));
  CHECK(contains(refused_servers("2x H100:8, ib 400G, eth 25G"), "two networks"));
  CHECK(contains(refused_servers("9000000x H100:8, ib 400G"), "are more than 10000000"));
  CHECK(contains(refused_servers("toaster"), "there are: 1080Ti-11G, "));
}

TEST_CASE("cluster.toml: names, tables and what was measured") {
  ClusterSpec cluster = ClusterSpec::from_toml(R"(
hosts = [{ count = 2, devices = 8, device = "H100-80G", link = "nvlink4", cores = 96, price_per_hour = 24.0 }]
network = { link = "ib-400", per = "host", oversubscription = 2.0 }
reserve = { context = 0.5, group = "256 MiB" }
[measured]
matmul.bfloat16 = [[256, 0.31], [1024, 0.62], [4096, 0.78]]
attention.bfloat16 = [[128, 0.12]]
convolution.float32 = [[16, 0.5]]
bandwidth = 0.88
launch_us = 4.5
collective.nvlink4 = { latency_us = 6.6, hop_us = 0.6, share = 0.80 }
)",
                                               "cluster.toml");
  CHECK(cluster.n_devices() == 16);
  CHECK(cluster.network->is_per_host);
  CHECK(cluster.network->oversubscription == 2);
  CHECK(cluster.reserve.context == gib / 2);
  CHECK(cluster.reserve.group == gib / 4);
  CHECK(cluster.reserve.workspace == int64_t(0.03 * gib));
  CHECK(cluster.measured.bandwidth == 0.88);
  auto share = [&](redco::ProductKind kind, c10::ScalarType dtype, double size) {
    return cluster.measured.products.at(kind).at(dtype).at(size);
  };
  CHECK(share(redco::ProductKind::matmul, c10::kBFloat16, 1024) == 0.62);
  CHECK(share(redco::ProductKind::attention, c10::kBFloat16, 4096) == 0.12);
  CHECK(share(redco::ProductKind::convolution, c10::kFloat, 3) == 0.5);
  CHECK(cluster.measured.collective.at("nvlink4").share == 0.8);
  // Two hosts of 24 an hour for half an hour.
  CHECK(*cluster.price(1800) == Approx(24));
  CHECK(ClusterSpec::from_toml(cluster.to_toml(), "again") == cluster);

  ClusterSpec own = ClusterSpec::from_toml(R"(
[[hosts]]
devices = 4
device = { name = "own", memory = "24 GiB", bandwidth = "936 GB/s", flops = { bfloat16 = 71e12 } }
link = { bandwidth = "200 Gb/s" }
[[hosts]]
devices = 2
device = { like = "RTX-3090-24G", memory = "10 GiB" }
link = { like = "pcie4", share = 0.5 }
[network]
link = "eth-25"
)",
                                           "cluster.toml");
  CHECK(own.hosts[0].device.memory == 24 * gib);
  CHECK(own.hosts[0].device.peak(c10::kFloat).flops == 71e12);
  CHECK(own.hosts[0].link.bandwidth == 25e9);
  CHECK(own.hosts[1].device.bandwidth == 936e9);
  CHECK(own.hosts[1].link.bandwidth == 25e9);
  CHECK(own.hosts[1].link.share == 0.5);
  CHECK(own.device().memory == 10 * gib);
  CHECK_FALSE(own.price(1).has_value());
  CHECK(ClusterSpec::from_toml(own.to_toml(), "again") == own);
  REQUIRE(own.notes().size() == 3);
  CHECK(contains(own.notes()[0],
                 "several kinds of devices: own, RTX-3090-24G; the plan uses the "
                 "least memory"));
  CHECK(contains(own.notes()[1], "as if all had 2"));
}

TEST_CASE("cluster.toml: refusals name the file, the line, the key and the nearest one") {
  const std::string host = "hosts = [{ device = \"H100-80G\", devices = 8 }]\n";
  CHECK(refusal(host + "netwrok = 1\n") ==
        "cluster.toml:2: there is no key 'netwrok'; did you mean 'network'?");
  CHECK(refusal("hosts = [\n { device = \"H100-80G\",\n   device_count = 2 }]") != "");
  CHECK(contains(refusal("hosts = [{ device = \"H100-80G\", gpus = 2 }]"),
                 "cluster.toml:1: there is no key 'hosts.gpus'; there are: cores, count, "));
  CHECK(contains(refusal("\nhosts = [{ device = \"H10O-80G\" }]"),
                 "cluster.toml:2: there is no device 'H10O-80G'; did you mean 'H100-80G'?"));
  CHECK(contains(refusal("hosts = [{ device = \"H100-80G\", link = \"nvlnk4\" }]"),
                 "there is no link 'nvlnk4'; did you mean 'nvlink4'?"));
  CHECK(contains(refusal("hosts = [{ devices = 8 }]"), "the key 'hosts.device' is missing"));
  CHECK(contains(refusal("hosts = [{ device = 3 }]"), "expected a name or a table"));
  CHECK(contains(refusal("hosts = [{ device = { memory = \"24 GiB\" } }]"),
                 "'hosts.device' needs memory, bandwidth and flops, or like"));
  CHECK(contains(refusal("hosts = [{ device = { like = \"A100\", memory = \"24 Gb\" } }]"),
                 "'hosts.device.memory': expected bytes such as \"80 GiB\""));
  CHECK(contains(refusal("hosts = [{ device = { like = \"A100\", bandwidth = 900 } }]"),
                 "'hosts.device.bandwidth': expected a rate such as \"936 GB/s\""));
  CHECK(contains(refusal("hosts = [{ device = { like = \"A100\", flops = { bf16 = 1e12 } } }]"),
                 "there is no key 'hosts.device.flops.bf16'"));
  CHECK(contains(refusal("hosts = [{ device = \"A100\", count = 0 }]"),
                 "'hosts.count': expected a whole number from 1"));
  CHECK(contains(refusal("hosts = [{ device = \"A100\", count = true }]"),
                 "'hosts.count': expected a whole number"));
  CHECK(contains(refusal("hosts = [{ device = \"A100\", count = 2 }]"),
                 "there are 2 hosts: the key 'network' is missing"));
  CHECK(contains(refusal(host + "network = { per = \"host\" }"), "'network.link' is missing"));
  CHECK(contains(refusal(host + "network = { link = \"ib-400\", per = \"rack\" }"),
                 "'network.per': expected \"device\" or \"host\""));
  CHECK(contains(refusal(host + "reserve = { context = -1 }"), "'reserve.context': expected GiB"));
  CHECK(contains(refusal(host + "[measured]\nbandwidth = 0\n"),
                 "cluster.toml:3: 'measured.bandwidth': expected a share"));
  CHECK(contains(refusal(host + "[measured]\nmatmul.float32 = [[256, 0.3], [256, 0.4]]"),
                 "sizes that ascend"));
  CHECK(contains(refusal(host + "[measured]\nattention = 0.3"),
                 "'measured.attention': expected a table with a list for each dtype"));
  CHECK(contains(refusal(host + "[measured]\nmatmul.int8 = [[256, 0.3]]"),
                 "there is no key 'measured.matmul.int8'"));
  CHECK(contains(refusal("hosts = ["), "cluster.toml:1: not TOML: "));
  CHECK(contains(refusal(""), "the key 'hosts' is missing"));
  CHECK(contains(refusal("hosts = []"), "'hosts': expected a list of tables"));
  CHECK_THROWS_WITH_AS(ClusterSpec::read("/nowhere/cluster.toml"),
                       "cannot read the cluster file '/nowhere/cluster.toml'", UsageError);
}

TEST_CASE("bytes in text") {
  CHECK(redco::parse_bytes("80 GiB", "memory") == 80 * gib);
  CHECK(redco::parse_bytes("1.5GB", "memory") == 1'500'000'000);
  CHECK(redco::parse_bytes("512 B", "memory") == 512);
  for (const char* wrong : {"80", "GiB", "-1 GiB", "80 GiB/s", "80 Gb", "1e30 TiB", "nan GB"})
    CHECK_THROWS_AS(redco::parse_bytes(wrong, "memory"), UsageError);
}

TEST_CASE("the efficiency between and beyond measured sizes") {
  redco::Efficiency efficiency{{{256, 0.2}, {1024, 0.6}}};
  CHECK(efficiency.at(1) == 0.2);
  CHECK(efficiency.at(256) == 0.2);
  CHECK(efficiency.at(512) == Approx(0.4));  // half way between the logarithms
  CHECK(efficiency.at(1024) == 0.6);
  CHECK(efficiency.at(9999) == 0.6);
  CHECK(redco::Efficiency{}.at(7) == 1);
}

TEST_CASE("a cluster with another number of devices") {
  ClusterSpec cluster = ClusterSpec::from_text("2x H100-80G:8, ib 400G");
  cluster.hosts[0].price_per_hour = 16;
  CHECK(cluster.with_devices(4).text() == "4 H100-80G (nvlink4, ib-400)");
  CHECK(*cluster.with_devices(4).price(3600) == Approx(8));
  CHECK(cluster.with_devices(10'000).n_hosts() == 1250);
  CHECK_THROWS_WITH_AS(cluster.with_devices(12), "12 devices do not fill hosts of 8: use 8 or 16",
                       UsageError);
  CHECK_THROWS_AS(cluster.with_devices(0), UsageError);
  ClusterSpec one = ClusterSpec::from_text("H100-80G:8");
  CHECK_THROWS_WITH_AS(
      one.with_devices(16),
      "16 devices are 2 hosts: describe the network between them, such as \", ib 400G\"",
      UsageError);
  ClusterSpec mixed = ClusterSpec::from_text("1x H100-80G:8, 2x A100-80G:8, ib 400G");
  CHECK(mixed.with_devices(16).text() == "8 H100-80G + 8 A100-80G (nvlink4, nvlink3, ib-400)");
  CHECK_THROWS_AS(mixed.with_devices(12), UsageError);
  CHECK_THROWS_AS(mixed.with_devices(32), UsageError);
  CHECK(mixed.device().name == "A100-80G");
  CHECK(mixed.device().peak(c10::kBFloat16).flops == 312e12);
}

TEST_CASE("the processes of a host share its CPU") {
  ClusterSpec cluster = ClusterSpec::from_toml(
      "hosts = [{ devices = 4, cores = 4, device = { name = \"cpu\", kind = \"cpu\", memory = "
      "\"8 GiB\", bandwidth = \"40 GB/s\", flops = { float32 = 4e11 } }, link = \"loopback\" }]",
      "here");
  CHECK(cluster.device().memory == 2 * gib);
  CHECK(cluster.device().bandwidth == 10e9);
  CHECK(cluster.device().peak(c10::kFloat).flops == 1e11);
  CHECK(cluster.device().peak(c10::kBFloat16).flops == 1e11);
  CHECK_FALSE(cluster.device().peak(c10::kBFloat16).is_listed);
  CHECK_FALSE(cluster.overlaps_collectives());
  CHECK(cluster.with_devices(2).overlaps_collectives());
  CHECK(cluster.reserve.context == 0);
}

TEST_CASE("GPUs by the names that their drivers report") {
  using redco::plan::find_reported_device;
  CHECK(find_reported_device("NVIDIA H100 80GB HBM3", 79 * gib)->name == "H100-80G");
  CHECK(find_reported_device("NVIDIA H100 96GB HBM2e", 94 * gib)->name == "H100-96G");
  CHECK(find_reported_device("NVIDIA H100 PCIe", 79 * gib)->name == "H100-PCIE-80G");
  CHECK(find_reported_device("NVIDIA A100-SXM4-40GB", 39 * gib)->name == "A100-40G");
  CHECK(find_reported_device("NVIDIA GeForce RTX 4090", 24 * gib)->name == "RTX-4090-24G");
  CHECK_FALSE(find_reported_device("NVIDIA GeForce 256", gib).has_value());
}

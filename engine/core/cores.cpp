// Divides the cores of a host among the processes of a run.

#include <redco/detail/cores.h>

#include "require_usage.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>
#include <tuple>
#include <vector>

namespace redco {

namespace {

// "" if the variable is not set.
std::string given() {
  const char* value = std::getenv(cores_variable);
  return value == nullptr ? "" : value;
}

bool is_list(const std::string& value) { return !value.empty() && value != "all"; }

// Returns a number from Linux's topology of a hardware thread; 0 if Linux has none.
int64_t topology(int64_t number, const std::string& name) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(number) + "/topology/" + name);
  int64_t value = 0;
  file >> value;
  return file ? value : 0;
}

// The numbers of the hardware threads that this process may use, neighbours beside each other.
std::vector<int64_t> own_cores() {
  cpu_set_t own;
  if (sched_getaffinity(0, sizeof(own), &own) != 0) return {};  // more than 1024
  std::vector<std::tuple<int64_t, int64_t, int64_t>> cores;
  for (int64_t i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &own))
      cores.emplace_back(topology(i, "physical_package_id"), topology(i, "core_id"), i);
  std::sort(cores.begin(), cores.end());
  std::vector<int64_t> numbers;
  for (const auto& [package, core, number] : cores) numbers.push_back(number);
  return numbers;
}

}  // namespace

std::vector<std::string> divided_cores(int64_t n) {
  const std::vector<int64_t> cores = own_cores();
  const auto n_cores = int64_t(cores.size());
  if (given() == "all" || n_cores < n) return std::vector<std::string>(size_t(n), "all");
  std::vector<std::string> parts;
  for (int64_t part = 0; part < n; ++part) {
    std::string& text = parts.emplace_back();
    for (int64_t i = part * n_cores / n; i < (part + 1) * n_cores / n; ++i)
      text += (text.empty() ? "" : ",") + std::to_string(cores[size_t(i)]);
  }
  return parts;
}

void keep_to_cores() {
  const std::string value = given();
  if (!is_list(value)) return;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  std::istringstream numbers(value);
  for (std::string number; std::getline(numbers, number, ',');) {
    const bool is_number = !number.empty() && number.size() <= 4 &&
                           number.find_first_not_of("0123456789") == std::string::npos;
    require_usage(is_number && std::stoi(number) < CPU_SETSIZE, cores_variable,
                  ": expected numbers of cores such as 0,1, or all; got '", value, "'");
    CPU_SET(size_t(std::stoi(number)), &cores);
  }
  require_usage(sched_setaffinity(0, sizeof(cores), &cores) == 0, cores_variable, ": '", value,
                "' has no core that this process may use");
}

int64_t cores_per_process(int64_t local_size) {
  const auto cores = int64_t(std::thread::hardware_concurrency());
  return is_list(given()) ? cores : cores / local_size;
}

}  // namespace redco

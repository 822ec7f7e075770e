// How the speed changes with the number of devices.

#include "scaling.h"

#include "../core/require_usage.h"
#include "units.h"

#include <sstream>

namespace redco::plan {

std::vector<ScalingPoint> scaling_curve(
    const std::vector<int64_t>& n_devices, Scaling scaling, int64_t global_batch,
    const std::function<ScalingStep(int64_t n_devices, int64_t global_batch)>& plan) {
  std::vector<ScalingPoint> curve;
  double first_rate = 0;
  for (int64_t n : n_devices) {
    ScalingPoint point{.n_devices = n, .global_batch = global_batch};
    if (scaling == Scaling::weak) {
      int64_t first = n_devices.front();
      require_usage(global_batch * n % first == 0, "--scaling weak: a global batch of ",
                    global_batch, " on ", first, " devices is not a whole number on ", n);
      point.global_batch = global_batch * n / first;
    }
    point.step = plan(n, point.global_batch);
    if (point.step.seconds > 0) {
      point.examples_per_second = double(point.global_batch) / point.step.seconds;
      double rate = point.examples_per_second / double(n);
      if (first_rate == 0) first_rate = rate;
      point.efficiency = rate / first_rate;
    }
    curve.push_back(std::move(point));
  }
  return curve;
}

std::vector<int64_t> parse_device_numbers(const std::string& text) {
  constexpr int64_t most = 10'000'000, most_numbers = 1000;
  const std::string where = "--devices " + text + ": ";
  std::vector<int64_t> numbers;
  auto add = [&](int64_t number) {
    require_usage(numbers.empty() || number > numbers.back(), where, "the numbers must ascend");
    require_usage(int64_t(numbers.size()) < most_numbers, where, "these are over ", most_numbers,
                  " numbers");
    numbers.push_back(number);
  };
  bool continues = false;
  std::istringstream parts(text + ",");
  for (std::string part; std::getline(parts, part, ',');) {
    if (trimmed(part) == "...") {
      require_usage(numbers.size() >= 2 && !continues, where,
                    "... needs two numbers before it, and one after it");
      continues = true;
      continue;
    }
    auto number = whole_number(trimmed(part));
    require_usage(number && *number <= most, where,
                  "expected numbers from 1 to 10,000,000, such as 8,16,...,1024");
    if (continues) {
      int64_t b = numbers.back(), a = numbers[numbers.size() - 2];
      bool is_factor = b % a == 0;
      while (numbers.back() < *number)
        add(is_factor ? numbers.back() * (b / a) : numbers.back() + b - a);
      require_usage(numbers.back() == *number, where, "... does not reach ", *number, " from ", a,
                    " and ", b);
      continues = false;
    } else {
      add(*number);
    }
  }
  require_usage(!numbers.empty() && !continues, where, "... needs a number after it");
  return numbers;
}

}  // namespace redco::plan

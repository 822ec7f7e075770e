// Uses the installed engine as a stranger would, and fails if it answers wrongly.

#include <redco/error.h>
#include <redco/tree.h>
#include <redco/version.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <iostream>
#include <string>
#include <vector>

int main() {
  redco::Tree params;
  params["layer"]["weight"] = at::ones({2, 3});
  params["layer"]["bias"] = at::zeros({2});

  int64_t n_elements = 0;
  std::string paths;
  for (const auto& [path, tensor] : redco::named_tensors(params)) {
    n_elements += tensor.numel();
    paths += path + " ";
  }

  // An exception made in the library must be the program's own kind.
  std::string message;
  try {
    params.at("layer").at("wieght");
  } catch (const redco::Error& error) {
    message = error.what();
  }

  std::vector<std::string> names{"weight", "bias"};
  std::string meant = redco::nearest("wieght", names);

  std::cout << "redco " << REDCO_VERSION << ": " << paths << n_elements << " " << meant << "\n";
  return paths == "layer.bias layer.weight " && n_elements == 8 && meant == "weight" &&
                 message.find("wieght") != std::string::npos
             ? 0
             : 1;
}

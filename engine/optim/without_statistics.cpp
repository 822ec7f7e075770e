// without_statistics: an optimizer that leaves the running statistics of batch norms alone.

#include <redco/detail/without_statistics.h>

#include <redco/optim.h>
#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace redco {

namespace {

bool is_running_statistic(std::string_view name) {
  std::string_view last = name.substr(name.rfind('.') + 1);
  return last == "running_mean" || last == "running_var";
}

}  // namespace

std::shared_ptr<Optimizer> without_statistics(std::shared_ptr<Optimizer> optimizer,
                                              const Tree& params) {
  for (const auto& [name, param] : named_tensors(params))
    if (is_running_statistic(name) && param.is_floating_point() && optimizer->trains(name, param))
      return freeze(std::move(optimizer), [](const std::string& each, const at::Tensor&) {
        return is_running_statistic(each);
      });
  return optimizer;
}

}  // namespace redco

#pragma once

#include <redco/export.h>
#include <redco/optim.h>
#include <redco/tree.h>

#include <memory>

namespace redco {

/// The optimizer, which leaves the running statistics of batch norms in `params` alone: floats
/// whose names end in running_mean or running_var.
REDCO_API std::shared_ptr<Optimizer> without_statistics(std::shared_ptr<Optimizer> optimizer,
                                                        const Tree& params);

}  // namespace redco

#pragma once

#include <redco/export.h>
#include <redco/mesh.h>

#include <memory>
#include <string>
#include <vector>

namespace redco {

/// Returns whether any of the meshes has several processes.
REDCO_API bool has_several_processes(const std::vector<std::shared_ptr<const Mesh>>& meshes);

/// A readable report on sharding so far: collectives by group and kind, gathered operators with
/// advice on each, and how often plans were cached. It covers this process and thread and the
/// collectives of `meshes`. One line if there is one process.
REDCO_API std::string sharding_report(const std::vector<std::shared_ptr<const Mesh>>& meshes);

/// Suggests how to avoid gathering the arguments of an operator, such as "aten::cumsum". Code in
/// the text is in backquotes.
REDCO_API std::string advice(const std::string& op);

}  // namespace redco

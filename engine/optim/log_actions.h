#pragma once

#include <redco/optim.h>
#include <redco/tree.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace redco::train {

// Training actions in the log that the processes compare (mesh/spmd_log.h). A single process
// logs nothing.

/// Logs an action with a number, such as `trains on 8 examples`.
void log_action(const char* what, int64_t number, const char* unit);

/// Logs the paths, dtypes and shapes of a batch that every process has collated, its numbers,
/// and a sample of 64 values of each CPU tensor.
void log_batch(const Tree& batch);

/// Logs the names, dtypes and shapes of parameters.
void log_params(const std::vector<NamedTensor>& params);

/// Logs for which parameters something is done, such as `decays the weights of`.
void log_names(const char* what, const std::vector<std::string>& names);

/// The settings of an optimizer by name.
using Settings = std::vector<std::pair<std::string, double>>;

/// Logs the settings an optimizer is about to use, which are compared bit by bit.
void log_settings(const char* optimizer, const Settings& settings);

}  // namespace redco::train

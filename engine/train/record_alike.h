#pragma once

#include <redco/optim.h>
#include <redco/tree.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

namespace redco {

// What a training records of itself, for the processes to compare (mesh/spmd_log.h). One process
// alone records nothing.

/// `trains on 8 examples`
void record(const char* what, int64_t number, const char* unit);

/// The paths, types and shapes of a batch that every process has collated, its numbers, and a
/// sample of the values of its CPU tensors: 64 of each.
void record_batch(const Tree& batch);

/// The names, types and shapes of parameters.
void record_params(const std::vector<NamedTensor>& params);

/// The numbers an optimizer is about to use, compared bit by bit.
void record_settings(const char* optimizer,
                     std::initializer_list<std::pair<const char*, double>> settings);

}  // namespace redco

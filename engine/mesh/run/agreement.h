#pragma once

#include <redco/detail/text_of_process.h>
#include <redco/mesh.h>

#include <exception>
#include <string>

namespace redco::mesh {

/// The message of an exception.
std::string text_of(const std::exception_ptr& failure);

/// Throws on every process of the mesh if anything failed on any: its own failure on a process that
/// failed, the first one on the others. All processes call it. For one process the mesh may be
/// null.
void throw_together(const Mesh* mesh, const std::exception_ptr& failure);

/// Whether `says_so` is true on any process. All processes call it.
bool any_process(const Mesh& mesh, bool says_so);

}  // namespace redco::mesh

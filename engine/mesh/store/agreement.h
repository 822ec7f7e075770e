#pragma once

#include <redco/mesh.h>

#include <exception>
#include <string>

namespace redco {

/// What a failure says of itself.
std::string text_of(const std::exception_ptr& failure);

/// Throws on every process of the mesh, which all call it, if anything failed on any: on one that
/// failed its own failure, on the others that of the first of them. One process needs no mesh.
void throw_together(const Mesh* mesh, const std::exception_ptr& failure);

/// Whether any process, all of which call it, says so.
bool any_process(const Mesh& mesh, bool says_so);

/// The text of one process, on all of them; what the others give is not looked at.
std::string text_of_process(const Mesh& mesh, int64_t process, const std::string& text);

}  // namespace redco

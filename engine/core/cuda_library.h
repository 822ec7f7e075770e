#pragma once

#include <string>

namespace redco {

/// Returns a function of the library redco_cuda, which has the code that needs the headers of CUDA
/// and is built where these are. `user` is what needs it. Throws Error if it cannot be loaded.
void* function_of_cuda_library(const char* name, const std::string& user);

}  // namespace redco

#pragma once

#include <redco/export.h>

#include <string>

namespace redco {

/// Reads a TorchScript file and checks that LibTorch can load it safely. LibTorch trusts the
/// content of a file: a damaged one may end the process. The checks cover the zip archive with its
/// CRC-32s, the pickles in it (each tensor is within its storage, each storage within its file),
/// and the nesting of the code, which LibTorch's parser limits. Throws Error, which names the file
/// and the fault. The code itself is not checked: it runs when the file is loaded and called, and
/// can do anything an operator can.
REDCO_API std::string read_torchscript(const std::string& path);

}  // namespace redco

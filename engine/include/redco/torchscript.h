#pragma once

#include <redco/export.h>

#include <string>

namespace redco {

/// The bytes of a TorchScript file, once it is checked that LibTorch can read them. LibTorch trusts
/// what a file says of itself: a damaged one may end the process. Checked are the zip archive with
/// its CRC-32s, the pickles in it (each tensor lies inside of its storage, each storage inside of
/// its file), and that the code does not nest too deep for LibTorch's parser. Throws Error, which
/// names the file and what is wrong. The code itself is not checked: it runs when the file is
/// loaded and called, and can do what any operator can.
REDCO_API std::string read_torchscript(const std::string& path);

}  // namespace redco

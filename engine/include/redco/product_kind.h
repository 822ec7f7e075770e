#pragma once

#include <array>
#include <cstdint>

namespace redco {

/// Operators that multiply and add, which take most of the time of a step.
/// biased_attention: with a trained bias on a GPU, where cuDNN's and flash attention have no
/// kernel.
enum class ProductKind : uint8_t { matmul, attention, biased_attention, convolution };
inline constexpr std::array product_kinds = {ProductKind::matmul, ProductKind::attention,
                                             ProductKind::biased_attention,
                                             ProductKind::convolution};

}  // namespace redco

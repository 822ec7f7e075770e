#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace redco {

/// The place of a tensor's values in a file of weights.
struct TensorSource {
  std::string path;  ///< the absolute path that `Weights` opens
  std::string name;  ///< of the tensor there; empty: the parameter is new, and in no file
};

/// Notes where the values of this tensor come from, possibly in another dtype. The note belongs to
/// the tensor object: copies and views have none.
REDCO_API void set_source(const at::Tensor& tensor, TensorSource source);

/// none: there is no note, or the tensor has been written in place since.
REDCO_API std::optional<TensorSource> source_of(const at::Tensor& tensor);

}  // namespace redco

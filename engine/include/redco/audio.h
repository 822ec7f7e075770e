#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace redco {

struct Audio {
  at::Tensor samples;         // float32 [channels, samples], integers scaled to [-1, 1)
  int64_t sampling_rate = 0;  // samples of a channel in a second
};

/// Decodes a WAV, FLAC or Ogg (Vorbis, Opus or FLAC) file. Throws Error, beginning with `name`, for
/// any other, damaged or truncated file, for NaN and infinity, and for more than 536,870,912
/// samples over all channels.
REDCO_API Audio decode_audio(const std::string& name, std::string_view bytes);

/// Resamples [..., samples], floating-point on the CPU, to float32 [..., ceil(samples * to /
/// from)]. The filter is a sinc of 6 zero crossings on each side in a Hann window, with its cutoff
/// at 0.99 of the lower Nyquist frequency, as torchaudio's `resample` has by default. Throws Error
/// unless the rates are from 1 to 768,000.
REDCO_API at::Tensor resample_audio(const at::Tensor& samples, int64_t from, int64_t to);

}  // namespace redco

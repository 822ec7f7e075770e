// Encodes JPEG images.

#include <redco/error.h>
#include <redco/image.h>

#include <turbojpeg.h>

#include <memory>

namespace redco {

std::string encode_jpeg(const std::string& name, const at::Tensor& pixels, int quality) {
  require(pixels.defined() && pixels.dim() == 3 && pixels.size(0) == 3 && pixels.numel() > 0 &&
              pixels.scalar_type() == at::kByte,
          name, ": a JPEG file is made of uint8 pixels [3, height, width]");
  require(quality >= 1 && quality <= 100, name, ": quality: expected 1 to 100, got ", quality);
  at::Tensor rows = pixels.cpu().permute({1, 2, 0}).contiguous();
  require(rows.size(0) <= 65535 && rows.size(1) <= 65535, name,
          ": a JPEG file has at most 65535 x ", "65535 pixels, not ", rows.size(0), " x ",
          rows.size(1));
  std::unique_ptr<void, int (*)(tjhandle)> encoder(tjInitCompress(), tjDestroy);
  require(encoder != nullptr, name, ": ", tjGetErrorStr2(nullptr));
  unsigned char* data = nullptr;
  unsigned long size = 0;
  int status = tjCompress2(encoder.get(), rows.data_ptr<uint8_t>(), int(rows.size(1)), 0,
                           int(rows.size(0)), TJPF_RGB, &data, &size, TJSAMP_420, quality, 0);
  std::unique_ptr<unsigned char, void (*)(unsigned char*)> owned(data, tjFree);
  require(status == 0, name, ": ", tjGetErrorStr2(encoder.get()));
  return std::string(reinterpret_cast<const char*>(data), size);
}

}  // namespace redco

"""Makes Pillow resize the images of processors for which transformers has only torchvision, whose
bytes may be one more or less."""
import numpy
import transformers
from PIL import Image


def resized(_, images, size, resample=None, **__):
    shape = int(size.width), int(size.height)
    rows = [numpy.asarray(Image.fromarray(image.permute(1, 2, 0).numpy()).resize(shape, resample))
            for image in images]
    return images.new_tensor(numpy.stack(rows)).permute(0, 3, 1, 2)


def patch():
    if hasattr(transformers, "Llama4ImageProcessor"):
        transformers.Llama4ImageProcessor.resize = resized

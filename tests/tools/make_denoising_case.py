"""Makes tests/lua/denoising_case: a tiny RT-DETR, and transformers' loss of a training step with its
denoising queries: make_denoising_case.py FOLDER

The draws of noise are the same for all: numbers of 0.75, a sign of -1, and no other classes. Needs
scipy and Pillow, for its assignment of objects, and version 5, as version 4 assigns denoising
queries, too.
"""
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

folder = pathlib.Path(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(1)
config = transformers.RTDetrConfig(
    d_model=8, encoder_hidden_dim=8, num_queries=4, encoder_in_channels=[4, 8],
    decoder_in_channels=[8, 8], feat_strides=[8, 16], encode_proj_layers=[1], num_feature_levels=2,
    encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=4, decoder_ffn_dim=4,
    decoder_layers=2, num_denoising=7, box_noise_scale=0.8, dropout=0.0, attention_dropout=0.0,
    activation_dropout=0.0, id2label={i: f"class {i}" for i in range(3)},
    backbone_config=dict(model_type="rt_detr_resnet", embedding_size=4, layer_type="basic",
                         hidden_sizes=[4, 4, 8], depths=[1, 1, 1],
                         out_features=["stage2", "stage3"]))
model = transformers.RTDetrForObjectDetection(config)
for name, tensor in model.state_dict().items():
    if tensor.is_floating_point():
        is_near_one = "running_var" in name or "norm" in name and name.endswith("weight")
        values = torch.randn(tensor.shape) * (0.1 if is_near_one else 0.3) + is_near_one
        tensor.copy_(values.abs() if "running_var" in name else values)
model.half().save_pretrained(folder)
model = transformers.RTDetrForObjectDetection.from_pretrained(folder, dtype=torch.float32).train()

pixels = (torch.arange(2 * 3 * 64 * 64).float() % 101 / 50 - 1).view(2, 3, 64, 64)
labels = torch.tensor([[2, 0, -100], [1, 1, 2]])
boxes = torch.rand(2, 3, 4) * 0.5 + 0.2
torch.rand_like = lambda like, dtype=None: torch.full(like.shape, 0.75, dtype=dtype or like.dtype)
torch.randint_like = lambda like, low, high, dtype=None: torch.zeros(like.shape,
                                                                     dtype=dtype or like.dtype)
targets = [dict(class_labels=row[row >= 0], boxes=own[row >= 0])
           for row, own in zip(labels, boxes)]
out = model(pixel_values=pixels, labels=targets)
out.loss.backward()
arrays = dict(labels=labels, boxes=boxes, loss=out.loss.detach())
for name in ("model.denoising_class_embed.weight", "model.decoder.class_embed.0.weight",
             "model.decoder.bbox_embed.1.layers.2.weight", "model.enc_output.0.weight"):
    arrays["grad." + name] = dict(model.named_parameters())[name].grad
save_file(arrays, folder / "expected.safetensors")
print({key: value.item() for key, value in out.loss_dict.items() if "_dn_" in key})

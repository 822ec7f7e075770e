"""Configurations and inputs of models that find objects."""
import torch

from .draw import ACTIVATIONS
from .pictures import resnet


def detr(draw):
    n_heads = draw.choice([1, 2])
    backbone = dict(resnet(draw), model_type="resnet", num_channels=3)
    backbone["out_features"] = [f"stage{len(backbone['depths'])}"]
    return dict(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone_config=backbone,
        d_model=4 * n_heads * draw.randint(1, 3), num_queries=draw.randint(1, 5),
        encoder_layers=draw.randint(1, 2),
        decoder_layers=draw.randint(1, 2), encoder_attention_heads=n_heads,
        decoder_attention_heads=draw.choice([1, n_heads]), encoder_ffn_dim=draw.randint(4, 20),
        decoder_ffn_dim=draw.randint(4, 20), activation_function=draw.choice(ACTIVATIONS),
        class_cost=draw.randint(0, 2), bbox_cost=draw.randint(1, 5), giou_cost=draw.randint(0, 3),
        bbox_loss_coefficient=draw.randint(1, 5), giou_loss_coefficient=draw.randint(1, 3),
        eos_coefficient=draw.number(0.05, 1),
        id2label={i: f"class {i}" for i in range(draw.randint(1, 4))})


OBJECTS = {"detr.object_detection": (detr, "DetrForObjectDetection")}


def object_inputs(draw, config):
    """Images, with padding at the right and the bottom, and up to four objects in each."""
    rows, most, generator = draw.randint(1, 3), draw.randint(1, 4), torch.Generator()
    generator.manual_seed(draw.randrange(2 ** 31))
    sides = draw.randint(30, 70), draw.randint(30, 70)
    inputs = dict(pixel_values=torch.randn(rows, 3, *sides, generator=generator))
    if draw.maybe(0.7):
        inputs["pixel_mask"] = mask = torch.zeros(rows, *sides, dtype=torch.int64)
        for row in mask:
            row[:draw.randint(sides[0] // 2, sides[0]), :draw.randint(sides[1] // 2, sides[1])] = 1
    labels = torch.randint(len(config["id2label"]), (rows, most), generator=generator)
    for row in labels:
        row[draw.randint(0, most):] = -100
    boxes = torch.rand(rows, most, 4, generator=generator) * 0.6 + 0.1
    return dict(inputs, labels=labels, boxes=boxes)


def as_lists(inputs):
    """The inputs with the objects of each image in a dict, as transformers has them."""
    inputs = dict(inputs)
    labels, boxes = inputs.pop("labels"), inputs.pop("boxes")
    inputs["labels"] = [dict(class_labels=row[row >= 0], boxes=own[row >= 0])
                        for row, own in zip(labels, boxes)]
    return inputs

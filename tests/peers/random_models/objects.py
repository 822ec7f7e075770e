"""Configurations and inputs of models that find objects."""
import torch
import transformers

from .draw import ACTIVATIONS
from .pictures import resnet


IS_NEW = transformers.__version__.startswith("5.")


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


def rt_detr(draw):
    n_heads = draw.choice([1, 2])
    backbone = dict(resnet(draw), model_type="rt_detr_resnet", num_channels=3)
    n = draw.randint(2, 3)  # images that are read
    for key in ("image_size", "downsample_in_first_stage"):
        backbone.pop(key, None)
    sizes = backbone["hidden_sizes"] = [4 * draw.randint(1, 3) for _ in range(n + 1)]
    backbone["depths"] = [draw.randint(1, 2) for _ in sizes]
    if backbone["layer_type"] == "basic":  # the library's first stage is of one size
        sizes[0] = backbone["embedding_size"]
    backbone["out_features"] = [f"stage{k}" for k in range(2, n + 2)]
    d_model = 4 * n_heads * draw.randint(1, 2)
    return dict(
        backbone_config=backbone, encoder_hidden_dim=d_model, encoder_in_channels=sizes[1:],
        feat_strides=[8 * 2 ** k for k in range(n)],
        encoder_layers=draw.randint(1, 2 if IS_NEW else 1),  # version 4 fails with two
        encoder_ffn_dim=draw.randint(4, 20), encoder_attention_heads=draw.choice([1, n_heads]),
        encode_proj_layers=draw.choice([[n - 1], [0, n - 1]]),
        encoder_activation_function=draw.choice(ACTIVATIONS), activation_function="silu",
        normalize_before=draw.maybe(), hidden_expansion=draw.choice([1.0, 0.5]), d_model=d_model,
        num_queries=draw.randint(2, 6), decoder_in_channels=[d_model] * n,
        decoder_ffn_dim=draw.randint(4, 20), num_feature_levels=n,
        decoder_n_points=draw.randint(1, 4), decoder_layers=draw.randint(1, 3),
        decoder_attention_heads=n_heads, decoder_activation_function=draw.choice(ACTIVATIONS),
        num_denoising=draw.choice([0, 10]), matcher_class_cost=float(draw.randint(0, 2)),
        matcher_bbox_cost=float(draw.randint(1, 5)),
        matcher_giou_cost=float(draw.randint(0, 3)), focal_loss_alpha=draw.number(0.2, 0.8),
        weight_loss_vfl=draw.number(0.5, 2), weight_loss_bbox=float(draw.randint(1, 5)),
        weight_loss_giou=float(draw.randint(1, 3)),
        id2label={i: f"class {i}" for i in range(draw.randint(1, 4))})


def rt_detr_v2(draw):
    config = rt_detr(draw)
    config["decoder_layers"] += 1  # version 5 fails with one
    return dict(config, decoder_n_levels=config["num_feature_levels"],
                decoder_offset_scale=draw.choice([0.5, 0.3]))


OBJECTS = {"detr.object_detection": (detr, "DetrForObjectDetection"),
           "rt_detr.object_detection": (rt_detr, "RTDetrForObjectDetection"),
           "rt_detr_v2.object_detection": (rt_detr_v2, "RTDetrV2ForObjectDetection")}


def object_inputs(draw, config):
    """Images, with padding at the right and the bottom, and up to four objects in each."""
    rows, most, generator = draw.randint(1, 3), draw.randint(1, 4), torch.Generator()
    generator.manual_seed(draw.randrange(2 ** 31))
    is_detr = "num_feature_levels" not in config
    sides = draw.randint(30, 70), draw.randint(30, 70)
    if not is_detr:  # version 4 has the positions of a square in any case
        sides = [32 * draw.randint(1, 2)] * 2
    inputs = dict(pixel_values=torch.randn(rows, 3, *sides, generator=generator))
    if is_detr and draw.maybe(0.7):
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

"""Configurations and inputs of SAM 2, and of its parts."""
import torch

from .draw import ACTIVATIONS

SIDE = 8  # places of the largest image


def hiera(draw):
    n = draw.choice([3, 3, 4])
    n_heads = [draw.choice([1, 2]) for _ in range(n)]
    sizes = [n_heads[0] * 2 * draw.randint(1, 2)]
    for k in n_heads[1:]:  # where there are fewer places, the size is another one
        sizes.append(k * 2 * draw.randint(1, 3))
        if sizes[-1] == sizes[-2]:
            sizes[-1] += 2 * k
    kernel, stride, padding = draw.choice([(7, 4, 3), (3, 2, 1), (2, 2, 0)])
    depths = [draw.randint(1, 2) for _ in range(n)]
    firsts = {sum(depths[:k]) for k in range(1, n)}  # in which version 5 divides by zero
    return dict(
        hidden_size=sizes[0], num_channels=draw.choice([1, 3]),
        image_size=[stride * SIDE] * 2, patch_kernel_size=[kernel] * 2, patch_stride=[stride] * 2,
        patch_padding=[padding] * 2,
        window_positional_embedding_background_size=[draw.randint(1, 4), draw.randint(1, 4)],
        num_query_pool_stages=n - 1, blocks_per_stage=depths, embed_dim_per_stage=sizes,
        num_attention_heads_per_stage=n_heads,
        window_size_per_stage=[draw.choice([2, 4]) for _ in range(n - 1)] + [draw.randint(1, 3)],
        global_attention_blocks=[i for i in range(sum(depths)) if i not in firsts
                                 and draw.maybe(0.3)],
        mlp_ratio=draw.choice([1.0, 2.0, 4.0]), hidden_act=draw.choice(ACTIVATIONS),
        layer_norm_eps=draw.choice([1e-6, 1e-3, 0.1]))


def vision(draw):
    backbone = hiera(draw)
    n = len(backbone["blocks_per_stage"])
    return dict(
        backbone_config=dict(backbone, model_type="sam2_hiera_det_model"),
        backbone_channel_list=backbone["embed_dim_per_stage"][::-1],
        backbone_feature_sizes=[[SIDE // 2 ** i] * 2 for i in range(3)],
        fpn_hidden_size=8 * draw.randint(1, 2), num_feature_levels=3,
        fpn_top_down_levels=sorted(draw.sample(range(n), draw.randint(1, n))))


def sam2(draw):
    image = vision(draw)
    size, patch = image["fpn_hidden_size"], image["backbone_config"]["patch_stride"][0]
    return dict(
        vision_config=dict(image, model_type="sam2_vision_model"), prompt_encoder_config=dict(
            hidden_size=size, image_size=patch * SIDE, patch_size=4 * patch,
            mask_input_channels=4 * draw.randint(1, 2), hidden_act=draw.choice(ACTIVATIONS),
            layer_norm_eps=draw.choice([1e-6, 0.1])),
        mask_decoder_config=dict(
            hidden_size=size, mlp_dim=draw.randint(4, 20), num_hidden_layers=draw.randint(1, 3),
            num_attention_heads=draw.choice([1, 2, 4]),
            attention_downsample_rate=draw.choice([1, 2]),
            num_multimask_outputs=draw.randint(1, 3), iou_head_depth=draw.randint(2, 4),
            iou_head_hidden_dim=draw.randint(4, 12), dynamic_multimask_via_stability=draw.maybe(),
            dynamic_multimask_stability_delta=draw.number(0.05, 0.5),
            dynamic_multimask_stability_thresh=draw.number(0.5, 0.98)))


MASKS = {"sam2.mask_generation": (sam2, "Sam2Model"),
         "sam2_video.mask_generation": (sam2, "Sam2Model"),  # of videos the images
         "sam2_vision_model.features": (vision, "Sam2VisionModel"),
         "sam2_hiera_det_model.features": (hiera, "Sam2HieraDetModel")}


def mask_inputs(draw, config):
    """Images, and some of points, boxes and masks of objects."""
    image = config.get("vision_config", config)
    image = image.get("backbone_config", image)
    rows, n, generator = draw.randint(1, 3), draw.randint(1, 3), torch.Generator()
    generator.manual_seed(draw.randrange(2 ** 31))
    side = image["image_size"][0]
    inputs = dict(pixel_values=torch.randn(rows, image["num_channels"], side, side,
                                           generator=generator))
    if "vision_config" not in config:
        return inputs
    if draw.maybe(0.7):
        points = draw.randint(1, 4)
        inputs["input_points"] = torch.rand(rows, n, points, 2, generator=generator) * side
        if draw.maybe(0.8):
            labels = torch.randint(-1, 4, (rows, n, points), generator=generator)
            labels[torch.rand(labels.shape, generator=generator) < 0.2] = -10
            inputs["input_labels"] = labels
    if draw.maybe():
        inputs["input_boxes"] = torch.rand(rows, n, 4, generator=generator) * side
    if draw.maybe(0.4):
        mask_side = draw.choice([SIDE, draw.randint(5, 40)])
        inputs["input_masks"] = torch.randn(rows, 1, mask_side, mask_side, generator=generator)
    if draw.maybe():
        inputs["multimask_output"] = torch.tensor(draw.randint(0, 1))
    return inputs


def masks_of(out):
    """All that a call returns in redco-lua, one row for each image."""
    found = out.get("fpn_hidden_states")
    if found is None:
        found = out.pred_masks, out.iou_scores, out.object_score_logits
    return torch.cat([each.flatten(1) for each in found], 1) if len(found) > 1 else found[0]

"""Random configurations of models of images, and of pairs of images and texts."""
from .draw import ACTIVATIONS, common, heads


def vit(draw):
    n_heads, width = heads(draw)
    patch = draw.randint(2, 4)
    return dict(
        hidden_size=width, num_hidden_layers=draw.randint(1, 3), num_attention_heads=n_heads,
        intermediate_size=draw.randint(3, 30), hidden_act=draw.choice(ACTIVATIONS),
        layer_norm_eps=draw.choice([1e-12, 1e-3, 0.1]), image_size=patch * draw.randint(1, 4),
        patch_size=patch, num_channels=draw.choice([1, 3]), qkv_bias=draw.maybe(0.7))


def beit(draw):
    return dict(vit(draw), use_mask_token=draw.maybe(), use_mean_pooling=draw.maybe(),
                use_absolute_position_embeddings=draw.maybe(),
                use_relative_position_bias=draw.maybe(),
                use_shared_relative_position_bias=draw.maybe(),
                layer_scale_init_value=draw.choice([0, 0.1, 1.0]))


def dinov2(draw):
    config = vit(draw)
    config.pop("intermediate_size")
    config.update(mlp_ratio=draw.choice([1, 2, 4]), use_swiglu_ffn=draw.maybe(),
                  layerscale_value=draw.choice([1.0, 0.3]), image_size=config["image_size"]
                  + draw.randint(0, 1))
    return config


def dinov2_with_registers(draw):
    return dict(dinov2(draw), num_register_tokens=draw.randint(1, 3))


def dinov3(draw):
    config = dict(vit(draw), query_bias=draw.maybe(), key_bias=draw.maybe(),
                  value_bias=draw.maybe(), proj_bias=draw.maybe(), mlp_bias=draw.maybe(),
                  use_gated_mlp=draw.maybe(), num_register_tokens=draw.randint(1, 2),
                  layerscale_value=draw.choice([1.0, 0.3]), rope_theta=draw.choice([100.0, 10.0]))
    config["hidden_size"] = config["num_attention_heads"] * 4 * draw.randint(1, 2)
    config.pop("qkv_bias")
    return config


def convnextv2(draw):
    n, patch = draw.randint(1, 3), draw.randint(1, 4)
    return dict(
        num_stages=n, hidden_sizes=[2 * draw.randint(1, 4) for _ in range(n)],
        depths=[draw.randint(1, 2) for _ in range(n)], hidden_act=draw.choice(ACTIVATIONS),
        layer_norm_eps=draw.choice([1e-12, 1e-3, 0.1]), patch_size=patch,
        image_size=patch * 2 ** n + draw.randint(0, 5), num_channels=draw.choice([1, 3]))


def convnext(draw):
    return dict(convnextv2(draw), layer_scale_init_value=draw.choice([0.0, 0.1, 1.0]))


def resnet(draw):
    n, kind = draw.randint(1, 3), draw.choice(["basic", "bottleneck"])
    activations = [name for name in ACTIVATIONS if name != "relu2"]  # squares of squares overflow
    return dict(
        num_channels=draw.choice([1, 3]), embedding_size=4 * draw.randint(1, 2),
        hidden_sizes=[4 * draw.randint(1, 3) for _ in range(n)], layer_type=kind,
        depths=[draw.randint(1, 2) for _ in range(n)], hidden_act=draw.choice(activations),
        downsample_in_first_stage=draw.maybe(), downsample_in_bottleneck=draw.maybe(),
        image_size=draw.randint(20, 40))


def swin(draw):
    n, window, patch = draw.randint(1, 3), draw.randint(2, 3), draw.randint(1, 3)
    n_heads = [draw.choice([1, 2]) for _ in range(n)]
    # The last stage has at least one window.
    return dict(
        image_size=patch * (window * 2 ** (n - 1) + draw.randint(0, 5)), patch_size=patch,
        num_channels=draw.choice([1, 3]), embed_dim=2 * draw.randint(1, 4), window_size=window,
        depths=[draw.randint(1, 3) for _ in range(n)], num_heads=n_heads,
        mlp_ratio=draw.choice([1.0, 2.0, 4.0]), qkv_bias=draw.maybe(0.7),
        hidden_act=draw.choice(ACTIVATIONS), use_absolute_embeddings=False,
        layer_norm_eps=draw.choice([1e-5, 1e-3, 0.1]))


def segformer(draw):
    n = draw.randint(1, 3)
    n_heads = [draw.choice([1, 2]) for _ in range(n)]
    return dict(
        num_channels=draw.choice([1, 3]), num_encoder_blocks=n,
        depths=[draw.randint(1, 2) for _ in range(n)], num_attention_heads=n_heads,
        sr_ratios=[draw.choice([1, 1, 2]) for _ in range(n)],
        hidden_sizes=[4 * k * draw.randint(1, 2) for k in n_heads],
        patch_sizes=[draw.choice([3, 5, 7])] + [3] * (n - 1),
        strides=[draw.randint(1, 3)] + [draw.randint(1, 2) for _ in range(n - 1)],
        mlp_ratios=[draw.randint(1, 4) for _ in range(n)], hidden_act=draw.choice(ACTIVATIONS),
        layer_norm_eps=draw.choice([1e-6, 0.1]), decoder_hidden_size=2 * draw.randint(1, 5),
        image_size=draw.randint(24, 30))


def segments(draw):
    config = segformer(draw)
    config["id2label"] = {i: f"class {i}" for i in range(draw.randint(1, 7))}
    config["semantic_loss_ignore_index"] = draw.choice([255, 255, 0])
    return config


def classifier(draw, of_images):
    config = of_images(draw)
    config["id2label"] = {i: f"class {i}" for i in range(draw.randint(1, 7))}
    config["problem_type"] = draw.choice([None, None, "multi_label_classification", "regression"])
    if len(config["id2label"]) == 1:
        config["problem_type"] = None
    return config


def vit_features(draw):
    config = vit(draw)
    config.update(pooler_act=draw.choice(ACTIVATIONS), pooler_output_size=draw.randint(2, 20))
    return config


def tower(draw, **more):
    """Of texts or images, in CLIP and SigLIP."""
    n_heads, width = heads(draw)
    return dict(more, hidden_size=width, num_hidden_layers=draw.randint(1, 3),
                num_attention_heads=n_heads, intermediate_size=draw.randint(3, 30),
                hidden_act=draw.choice(ACTIVATIONS),
                layer_norm_eps=draw.choice([1e-12, 1e-3, 0.1]))


def clip_text(draw):
    config = tower(draw, **common(draw), projection_dim=draw.randint(2, 20),
                   max_position_embeddings=draw.randint(9, 20))
    config["eos_token_id"] = draw.choice([2, draw.token(config["vocab_size"])])
    return config


def clip_image(draw):
    patch = draw.randint(2, 4)
    return tower(draw, image_size=patch * draw.randint(1, 4) + draw.randint(0, 1), patch_size=patch,
                 num_channels=draw.choice([1, 3]), projection_dim=draw.randint(2, 20))


def clip(draw):
    return dict(text_config=clip_text(draw), vision_config=clip_image(draw),
                projection_dim=draw.randint(2, 20))


def siglip_text(draw):
    config = clip_text(draw)
    config["projection_size"] = config.pop("projection_dim")
    return config


def siglip_image(draw):
    config = clip_image(draw)
    config.pop("projection_dim")
    return config


def pixtral_image(draw):
    n_heads = draw.randint(1, 3)
    patch = draw.randint(2, 3)
    return dict(
        model_type="pixtral", hidden_size=n_heads * 4 * draw.randint(1, 2),
        num_hidden_layers=draw.randint(1, 3), num_attention_heads=n_heads,
        intermediate_size=draw.randint(3, 30), hidden_act=draw.choice(ACTIVATIONS),
        image_size=patch * 8, patch_size=patch, rope_theta=draw.choice([100.0, 10000.0]))


def siglip(draw):
    config = dict(text_config=siglip_text(draw), vision_config=siglip_image(draw))
    config["text_config"]["projection_size"] = config["vision_config"]["hidden_size"]
    return config


def siglip2_image(draw):
    config = siglip_image(draw)
    config.pop("image_size")
    config["num_patches"] = draw.randint(1, 4) ** 2
    return config


def siglip2(draw):
    config = dict(text_config=siglip_text(draw), vision_config=siglip2_image(draw))
    config["text_config"]["projection_size"] = config["vision_config"]["hidden_size"]
    return config

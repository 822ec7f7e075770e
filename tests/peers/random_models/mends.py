"""Mends what hinders the comparison in versions of transformers."""
import contextlib
import itertools

import torch
import transformers


def weights_in_double():
    """In float64 the router's float32 weights fail in version 4."""
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
    from transformers.models.dots1.modeling_dots1 import Dots1MoE
    from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeMoE
    for kind in (DeepseekV3MoE, Dots1MoE, Glm4MoeMoE):
        if hasattr(kind, "moe"):
            moe = kind.moe
            kind.moe = (lambda self, x, numbers, weights, moe=moe:
                        moe(self, x, numbers, weights.to(x.dtype)))


@contextlib.contextmanager
def states_in_double():
    """Gated DeltaNet computes in float32, also in a model of float64."""
    to, to_float, softmax = torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax

    def kept(self, *given, **options):
        if self.dtype == torch.float64:
            given = [torch.float64 if value is torch.float32 else value for value in given]
        return to(self, *given, **options)
    torch.Tensor.to = kept
    torch.Tensor.float = lambda self: self if self.dtype == torch.float64 else to_float(self)
    torch.nn.functional.softmax = lambda x, dim, **_: softmax(x, dim)
    try:
        yield
    finally:
        torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax = to, to_float, softmax


class Router(torch.nn.Linear):
    """One that also computes in float64."""

    def forward(self, x):
        return super().forward(x.to(self.weight.dtype))


def router_in_double():
    """ERNIE's converts to float32 in version 4."""
    from transformers.models.ernie4_5_moe import modeling_ernie4_5_moe as ernie
    make = ernie.Ernie4_5_MoeSparseMoeBlock.__init__

    def made(self, config):
        make(self, config)
        self.gate.__class__ = Router
    ernie.Ernie4_5_MoeSparseMoeBlock.__init__ = made


def gelu_of_gemma():
    """The first folders of Gemma name another GELU than they need, as version 5 knows."""
    make = transformers.GemmaConfig.__init__

    def made(self, *given, **settings):
        make(self, *given, **settings)
        if self.hidden_act == "gelu":
            self.hidden_act = "gelu_pytorch_tanh"
    transformers.GemmaConfig.__init__ = made


def norms_without_bias():
    """StableLM in version 4 fails to initialise them."""
    from transformers.models.stablelm.modeling_stablelm import StableLmPreTrainedModel
    init = StableLmPreTrainedModel._init_weights

    def initialised(self, module):
        if not isinstance(module, torch.nn.LayerNorm) or module.bias is not None:
            init(self, module)
    StableLmPreTrainedModel._init_weights = initialised


def mask_in_double():
    """Those of MPT, XGLM and LED are made in the type of the embeddings, for which they are too
    large."""
    from transformers.models.led import modeling_led as led
    from transformers.models.mpt import modeling_mpt as mpt
    from transformers.models.xglm import modeling_xglm as xglm
    for module in (mpt, xglm):
        make = module._prepare_4d_causal_attention_mask
        module._prepare_4d_causal_attention_mask = (
            lambda mask, shape, x, past, make=make: make(mask, shape, x.float(), past))
    make_led = led._create_4d_causal_attention_mask
    led._create_4d_causal_attention_mask = (
        lambda shape, _, *rest, **given: make_led(shape, torch.float32, *rest, **given))


class TorchInFloat:
    """torch, whose numbers of all types have the limits of float32."""
    def __getattr__(self, name):
        return getattr(torch, name)

    @staticmethod
    def finfo(_):
        return torch.finfo(torch.float32)


def scores_in_double():
    """XGLM compares them with the least number of their type, as one of the default type."""
    from transformers.models.xglm import modeling_xglm as xglm
    xglm.torch = TorchInFloat()


def positions_of_callers():
    """XGLM in version 4 adds to the tensor of its caller, so that the next call has other
    positions."""
    from transformers.models.xglm import modeling_xglm as xglm
    kind = xglm.XGLMSinusoidalPositionalEmbedding
    forward = kind.forward
    kind.forward = lambda self, places, *given: forward(self, places.clone(), *given)


def distances_in_double():
    """Those of XLNet are float32, which its second stream does not convert."""
    from transformers.models.xlnet.modeling_xlnet import XLNetModel
    make = XLNetModel.relative_positional_encoding
    XLNetModel.relative_positional_encoding = (
        lambda self, *given, **more: make(self, *given, **more).to(self.dtype))


def activations_in_full():
    """Version 4 rounds the parameters of xIELU to bfloat16."""
    from transformers.activations import XIELUActivation
    make = XIELUActivation.__init__
    make.__defaults__ = tuple(torch.float32 if value is torch.bfloat16 else value
                              for value in make.__defaults__)


def positions_of_patches():
    """Version 4 counts those of Idefics 3 as 0, 0, 1, ..., as the models were not trained."""
    from transformers.models.idefics3 import modeling_idefics3 as idefics3
    from transformers.models.smolvlm import modeling_smolvlm as smolvlm

    def forward(self, pixel_values, patch_attention_mask):
        patches = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        return patches + self.position_embedding.weight
    for kind in (idefics3.Idefics3VisionEmbeddings, smolvlm.SmolVLMVisionEmbeddings):
        kind.forward = forward


def objects_without_packages():
    """Their loss needs scipy, for the cheapest of all assignments of a few objects to a few queries,
    and Pillow, for a function that does not use it."""
    from transformers.loss import loss_for_object_detection as losses
    from transformers.loss import loss_rt_detr as real_time_losses

    def assigned(costs):
        n, m = costs.shape
        if n < m:
            columns, rows = assigned(costs.T)
            order = sorted(range(n), key=rows.__getitem__)
            return [rows[i] for i in order], [columns[i] for i in order]
        best = min(itertools.permutations(range(n), m),
                   key=lambda rows: sum(costs[i, j].item() for j, i in enumerate(rows)))
        return list(best), list(range(m))
    def corners(boxes):
        x, y, width, height = boxes.unbind(-1)
        return torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], -1)
    for module in (losses, real_time_losses):
        module.linear_sum_assignment, module.center_to_corners_format = assigned, corners
        module.requires_backends = lambda *given: None


def scores_of_padding():
    """Parakeet in version 4 has -inf in all places of a row of padding."""
    from transformers.models.parakeet import modeling_parakeet as parakeet
    parakeet.float = lambda _: torch.finfo(torch.float32).min


def boxes_of_callers():
    """SAM 2 in version 4 adds to the tensor of its caller."""
    from transformers.models.sam2.modeling_sam2 import Sam2PromptEncoder
    embed = Sam2PromptEncoder._embed_boxes
    Sam2PromptEncoder._embed_boxes = lambda self, boxes: embed(self, boxes.clone())


def gradients_of_one_row():
    """Those of PyTorch's batch norm are wrong on the CPU for some images of one row or column."""
    apply = torch.nn.functional.batch_norm

    def applied(x, *given, **options):
        is_odd = x.dim() > 3 and 1 in x.shape[2:]
        return apply(x.flatten(2) if is_odd else x, *given, **options).view(x.shape)
    torch.nn.functional.batch_norm = applied


def images_of_llama4():
    """Llama 4 in version 5 asks its text model for what only the whole has, and gives beams no
    images, as these have another name than those of other models."""
    from transformers.modeling_outputs import MoeCausalLMOutputWithPast
    kind = transformers.Llama4ForConditionalGeneration
    MoeCausalLMOutputWithPast.image_outputs = None
    expand = kind._expand_multimodal_outputs

    def expanded(self, ids, outputs, *given, **more):
        for own in outputs.values():
            own.pooler_output = own.last_hidden_state
        outputs = expand(self, ids, outputs, *given, **more)
        for own in outputs.values():
            own.last_hidden_state = own.pooler_output
        return outputs
    kind._expand_multimodal_outputs = expanded


def mend():
    gradients_of_one_row()
    objects_without_packages()
    weights_in_double()
    gelu_of_gemma()
    norms_without_bias()
    scores_in_double()
    distances_in_double()
    if transformers.__version__.startswith("5."):
        images_of_llama4()
    if transformers.__version__.startswith("4."):
        router_in_double()
        mask_in_double()
        positions_of_callers()
        activations_in_full()
        positions_of_patches()
        scores_of_padding()
        boxes_of_callers()

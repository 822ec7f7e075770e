"""The families: how their configurations are drawn, and their classes in transformers."""
import functools
import inspect

import transformers
from transformers.models.auto import modeling_auto

from .decoders import (bloom, deepseek_v3, falcon, gemma2, gemma3, gpt2, gpt_neox, gptj, granite,
                       llama, mistral, mixtral, olmo2, olmoe, opt, phi3, qwen2, qwen3, qwen3_moe,
                       smollm3, starcoder2)
from .encoder_decoders import (bart, captioner, marian, mbart, t5, whisper,
                               whisper_classes)
from .encoders import bert, deberta, distilbert, electra, modernbert, roberta
from .pictures import (classifier, clip, clip_image, clip_text, siglip, siglip_image, siglip_text,
                       vit, vit_features)

FAMILIES = {
    "llama": (llama, "LlamaForCausalLM"), "gpt2": (gpt2, "GPT2LMHeadModel"),
    "gptj": (gptj, "GPTJForCausalLM"), "opt": (opt, "OPTForCausalLM"),
    "bart": (bart, "BartForConditionalGeneration"), "t5": (t5, "T5ForConditionalGeneration"),
    "vision-encoder-decoder": (captioner, "VisionEncoderDecoderModel"),
    "qwen2": (qwen2, "Qwen2ForCausalLM"), "qwen3": (qwen3, "Qwen3ForCausalLM"),
    "mistral": (mistral, "MistralForCausalLM"), "gemma2": (gemma2, "Gemma2ForCausalLM"),
    "gemma3_text": (gemma3, "Gemma3ForCausalLM"), "phi3": (phi3, "Phi3ForCausalLM"),
    "smollm3": (smollm3, "SmolLM3ForCausalLM"), "olmo2": (olmo2, "Olmo2ForCausalLM"),
    "gpt_neox": (gpt_neox, "GPTNeoXForCausalLM"), "falcon": (falcon, "FalconForCausalLM"),
    "mt5": (t5, "MT5ForConditionalGeneration"), "umt5": (t5, "UMT5ForConditionalGeneration"),
    "mbart": (mbart, "MBartForConditionalGeneration"), "marian": (marian, "MarianMTModel"),
    "pegasus": (mbart, "PegasusForConditionalGeneration"),
    "mixtral": (mixtral, "MixtralForCausalLM"), "qwen3_moe": (qwen3_moe, "Qwen3MoeForCausalLM"),
    "olmoe": (olmoe, "OlmoeForCausalLM"), "deepseek_v3": (deepseek_v3, "DeepseekV3ForCausalLM"),
    "bloom": (bloom, "BloomForCausalLM"),
    "granite": (granite, "GraniteForCausalLM"), "starcoder2": (starcoder2, "Starcoder2ForCausalLM"),
    "whisper": (whisper, "WhisperForConditionalGeneration"),
}
ENCODER_DECODERS = {"bart", "marian", "mbart", "mt5", "pegasus", "t5", "umt5",
                    "vision-encoder-decoder", "whisper"}
# Other heads, as FAMILY.TASK.
HEADS = {"sequence_classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
         "token_classification": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
         "question_answering": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES}
for _family, (_draw, _) in list(FAMILIES.items()):
    for _task, _names in HEADS.items():
        if _family in _names:
            FAMILIES[f"{_family}.{_task}"] = (_draw, _names[_family])
CLASSIFIERS = {"vit": (vit, "ViTForImageClassification"),
               "clip.image_classification": (clip, "CLIPForImageClassification"),
               "siglip.image_classification": (siglip, "SiglipForImageClassification")}
FAMILIES.update({_family: (functools.partial(classifier, of_images=_draw), _class)
                 for _family, (_draw, _class) in CLASSIFIERS.items()})
CLASSIFIERS["whisper.audio_classification"] = (whisper_classes, "WhisperForAudioClassification")
FAMILIES["whisper.audio_classification"] = CLASSIFIERS["whisper.audio_classification"]
PAIRED = {"clip.similarity": (clip, "CLIPModel"), "siglip.similarity": (siglip, "SiglipModel")}
OF_TEXTS = {
    "clip_text_model.features": (clip_text, "CLIPTextModel"),
    "clip_text_model.projection": (clip_text, "CLIPTextModelWithProjection"),
    "siglip_text_model.features": (siglip_text, "SiglipTextModel"),
}
OF_IMAGES = {
    "vit.features": (vit_features, "ViTModel"),
    "clip_vision_model.features": (clip_image, "CLIPVisionModel"),
    "clip_vision_model.projection": (clip_image, "CLIPVisionModelWithProjection"),
    "siglip_vision_model.features": (siglip_image, "SiglipVisionModel"),
}
FAMILIES.update({**PAIRED, **OF_TEXTS, **OF_IMAGES})
ENCODERS = {
    "bert": (bert, "Bert"), "roberta": (roberta, "Roberta"), "electra": (electra, "Electra"),
    "distilbert": (distilbert, "DistilBert"), "xlm-roberta": (roberta, "XLMRoberta"),
    "deberta-v2": (deberta, "DebertaV2"), "modernbert": (modernbert, "ModernBert"),
}
ENCODER_TASKS = {
    "masked_lm": "ForMaskedLM", "sequence_classification": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering", "multiple_choice": "ForMultipleChoice",
}
for _family, (_draw, _name) in ENCODERS.items():
    for _task, _class in ENCODER_TASKS.items():
        FAMILIES[f"{_family}.{_task}"] = (_draw, _name + _class)
FAMILIES["electra.replaced_token_detection"] = (electra, "ElectraForPreTraining")
# Text models without a head.
HEADLESS = {f"{_family}.features": (_draw, f"{_name}Model")
            for _family, (_draw, _name) in ENCODERS.items()}
HEADLESS.update({f"{_family}.features": (FAMILIES[_family][0], _class.replace(
    "ForConditionalGeneration", "EncoderModel"))
    for _family, (_, _class) in FAMILIES.items() if _family in ("t5", "mt5", "umt5")})
HEADLESS.update({f"{_family}.features": (_draw, modeling_auto.MODEL_MAPPING_NAMES[_family])
                 for _family, (_draw, _class) in FAMILIES.items()
                 if "." not in _family and _class.endswith(("ForCausalLM", "LMHeadModel"))})
FAMILIES.update(HEADLESS)
HAVE_POOLER = {"bert.features", "roberta.features", "xlm-roberta.features"}
ATTENTION = dict(gemma2="eager")  # the only one with soft caps


def is_encoder(family):
    return family.partition(".")[0] in ENCODERS


def attention_of(family):
    return ATTENTION.get(family.partition(".")[0])


def takes_positions(family):
    forward = getattr(transformers, FAMILIES[family][1]).forward
    return "position_ids" in inspect.signature(forward).parameters


def is_generative(family):
    return family not in CLASSIFIERS and "." not in family

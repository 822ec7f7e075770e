"""The families: how their configurations are drawn, and their classes in transformers."""
import functools
import inspect

import transformers
from transformers.models.auto import modeling_auto

# These fill the tables of draw.
from . import (decoders, encoder_decoders, encoders, mixtures, native_images,  # noqa: F401
               placed_patches, sound_with_text, states, tiles, variants)
from .draw import DECODERS, ENCODER_DECODERS, ENCODERS
from .encoder_decoders import whisper_classes
from .encoders import electra, xlnet
from .images_with_text import IMAGE_TEXT
from .masks import MASKS
from .objects import OBJECTS
from .pictures import (beit, classifier, clip, clip_image, clip_text, convnext, convnextv2, dinov2,
                       dinov2_with_registers, dinov3, resnet, segformer, segments, siglip, siglip2,
                       siglip2_image, siglip_image, siglip_text, swin, vit, vit_features)
from .sound import (clap, clap_audio, clap_text, classes, hubert, parakeet, parakeet_encoder,
                    wav2vec2, wavlm)

for _family in {*DECODERS} - {*modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}:
    del DECODERS[_family]  # which a newer version of the library has
for _family in {*ENCODERS} - {*modeling_auto.MODEL_MAPPING_NAMES}:
    del ENCODERS[_family]
# Those of sound are among the encoder-decoders.
WITH_TEXTS = {**modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
              **modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}
for _family in {*IMAGE_TEXT} - {*WITH_TEXTS}:
    del IMAGE_TEXT[_family]

# The draw and the class of each, with the names that AutoModel has.
GENERATORS = {**modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
              **modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
              "vision-encoder-decoder": "VisionEncoderDecoderModel"}
FAMILIES = {
    **{name: (draw, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name])
       for name, draw in DECODERS.items()},
    **{name: (draw, GENERATORS[name]) for name, draw in ENCODER_DECODERS.items()},
    **{name: (draw, WITH_TEXTS[name]) for name, draw in IMAGE_TEXT.items()},
}
# Other heads, as FAMILY.TASK.
HEADS = {"sequence_classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
         "token_classification": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
         "question_answering": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES}
for _family, (_draw, _) in list(FAMILIES.items()):
    for _task, _names in HEADS.items():
        if _family in _names and _family not in IMAGE_TEXT:
            FAMILIES[f"{_family}.{_task}"] = (_draw, _names[_family])
CLASSIFIERS = {"beit": (beit, "BeitForImageClassification"),
               "data2vec-vision": (beit, "Data2VecVisionForImageClassification"),
               "swin": (swin, "SwinForImageClassification"),
               "resnet": (resnet, "ResNetForImageClassification"),
               "segformer": (segformer, "SegformerForImageClassification"),
               "vit": (vit, "ViTForImageClassification"),
               "deit": (vit, "DeiTForImageClassification"),
               "convnext": (convnext, "ConvNextForImageClassification"),
               "convnextv2": (convnextv2, "ConvNextV2ForImageClassification"),
               "dinov2": (dinov2, "Dinov2ForImageClassification"),
               "dinov2_with_registers": (dinov2_with_registers,
                                         "Dinov2WithRegistersForImageClassification"),
               "clip.image_classification": (clip, "CLIPForImageClassification"),
               "siglip.image_classification": (siglip, "SiglipForImageClassification"),
               "siglip2.image_classification": (siglip2, "Siglip2ForImageClassification")}
FAMILIES.update({_family: (functools.partial(classifier, of_images=_draw), _class)
                 for _family, (_draw, _class) in CLASSIFIERS.items()})
CLASSIFIERS["whisper.audio_classification"] = (whisper_classes, "WhisperForAudioClassification")
FAMILIES["whisper.audio_classification"] = CLASSIFIERS["whisper.audio_classification"]
SOUND = {"wav2vec2": (wav2vec2, "Wav2Vec2"), "hubert": (hubert, "Hubert"),
         "wavlm": (wavlm, "WavLM")}
OF_SAMPLES = {}
for _family, (_draw, _class) in SOUND.items():
    OF_SAMPLES[f"{_family}.ctc"] = (_draw, _class + "ForCTC")
    OF_SAMPLES[f"{_family}.features"] = (_draw, _class + "Model")
    OF_SAMPLES[f"{_family}.audio_classification"] = (
        functools.partial(classes, of_sound=_draw), _class + "ForSequenceClassification")
OF_SPECTRA = {"parakeet_ctc.ctc": (parakeet, "ParakeetForCTC"),
              "parakeet_encoder.features": (parakeet_encoder, "ParakeetEncoder")}
OF_SOUNDS = {"clap_audio_model.features": (clap_audio, "ClapAudioModel"),
             "clap_audio_model.projection": (clap_audio, "ClapAudioModelWithProjection")}
FAMILIES.update({**OF_SAMPLES, **OF_SPECTRA, **OF_SOUNDS})
PAIRED = {"clip.similarity": (clip, "CLIPModel"), "siglip.similarity": (siglip, "SiglipModel"),
          "siglip2.similarity": (siglip2, "Siglip2Model"),
          "clap.similarity": (clap, "ClapModel")}
OF_TEXTS = {
    "clip_text_model.features": (clip_text, "CLIPTextModel"),
    "clip_text_model.projection": (clip_text, "CLIPTextModelWithProjection"),
    "siglip_text_model.features": (siglip_text, "SiglipTextModel"),
    "clap_text_model.features": (clap_text, "ClapTextModel"),
    "clap_text_model.projection": (clap_text, "ClapTextModelWithProjection"),
}
OF_IMAGES = {
    "vit.features": (vit_features, "ViTModel"),
    "swin.features": (swin, "SwinModel"),
    "beit.features": (beit, "BeitModel"),
    "data2vec-vision.features": (beit, "Data2VecVisionModel"),
    "resnet.features": (resnet, "ResNetModel"),
    "segformer.features": (segformer, "SegformerModel"),
    "dinov3_vit.features": (dinov3, "DINOv3ViTModel"),
    "deit.features": (vit_features, "DeiTModel"),
    "convnext.features": (convnext, "ConvNextModel"),
    "convnextv2.features": (convnextv2, "ConvNextV2Model"),
    "dinov2.features": (dinov2, "Dinov2Model"),
    "dinov2_with_registers.features": (dinov2_with_registers, "Dinov2WithRegistersModel"),
    "clip_vision_model.features": (clip_image, "CLIPVisionModel"),
    "clip_vision_model.projection": (clip_image, "CLIPVisionModelWithProjection"),
    "siglip_vision_model.features": (siglip_image, "SiglipVisionModel"),
    "siglip2_vision_model.features": (siglip2_image, "Siglip2VisionModel"),
}
OF_PIXELS = {
    "segformer.semantic_segmentation": (segments, "SegformerForSemanticSegmentation"),
}
FAMILIES.update({**PAIRED, **OF_TEXTS, **OF_IMAGES, **OF_PIXELS, **OBJECTS, **MASKS})
ANY_SIZE = {"beit", "data2vec-vision", "dinov2", "dinov2_with_registers", "dinov3_vit"}
ENCODER_TASKS = {
    "masked_lm": "ForMaskedLM", "sequence_classification": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering", "multiple_choice": "ForMultipleChoice",
}
_PREFIXES = {_family: modeling_auto.MODEL_MAPPING_NAMES[_family].removesuffix("Model")
             for _family in ENCODERS}
for _family, _draw in ENCODERS.items():
    for _task, _class in ENCODER_TASKS.items():
        if hasattr(transformers, _PREFIXES[_family] + _class):
            FAMILIES[f"{_family}.{_task}"] = (_draw, _PREFIXES[_family] + _class)
FAMILIES["xlnet.masked_lm"] = (xlnet, "XLNetLMHeadModel")
FAMILIES["xlnet.question_answering"] = (xlnet, "XLNetForQuestionAnsweringSimple")
FAMILIES["electra.replaced_token_detection"] = (electra, "ElectraForPreTraining")
# Text models without a head.
HEADLESS = {f"{_family}.features": (_draw, modeling_auto.MODEL_MAPPING_NAMES[_family])
            for _family, _draw in ENCODERS.items()}
HEADLESS.update({f"{_family}.features": (FAMILIES[_family][0], _class.replace(
    "ForConditionalGeneration", "EncoderModel"))
    for _family, (_, _class) in FAMILIES.items() if _family in ("t5", "mt5", "umt5")})
HEADLESS.update({f"{_family}.features": (_draw, modeling_auto.MODEL_MAPPING_NAMES[_family])
                 for _family, _draw in DECODERS.items()})
FAMILIES.update(HEADLESS)
HAVE_POOLER = {f"{_family}.features" for _family in (
    "bert", "ernie", "megatron-bert", "roberta", "xlm-roberta", "camembert", "data2vec-text",
    "roberta-prelayernorm", "xlm-roberta-xl", "mpnet", "albert", "esm")}
ATTENTION = dict.fromkeys(["gemma2", "paligemma", "t5gemma", "vaultgemma"], "eager")  # soft caps


def is_encoder(family):
    return family.partition(".")[0] in ENCODERS


def attention_of(family):
    return ATTENTION.get(family.partition(".")[0])


def implementations_of(family):
    """Options of from_pretrained. The fast experts of version 5 need sizes of whole vectors."""
    options = dict(attn_implementation=attention_of(family))
    if transformers.__version__.startswith("5."):
        options["experts_implementation"] = "eager"
    return options


def takes_positions(family):
    forward = getattr(transformers, FAMILIES[family][1]).forward
    return "position_ids" in inspect.signature(forward).parameters


def is_generative(family):
    return family not in CLASSIFIERS and "." not in family

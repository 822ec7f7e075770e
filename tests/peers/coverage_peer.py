"""Lists the types of transformers that redco-lua reads: coverage_peer.py REDCO_LUA SOURCE.

A type is a row, the alias of one, a model whose text part is read, or not there yet. Fails if a row
is no type of transformers or has no random models, if NOT_YET has a row, or if a type is not there
and NOT_YET does not say what it needs.
"""
import importlib
import json
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True  # the tests leave nothing in the source tree
import random_models  # noqa: E402
from transformers.models.auto import configuration_auto, modeling_auto  # noqa: E402

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
KINDS = {
    "decoders": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "encoder-decoders": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "encoders": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "images with texts": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    "images": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    "objects": modeling_auto.MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES,
    "classes of pixels": modeling_auto.MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES,
    "masks": modeling_auto.MODEL_FOR_MASK_GENERATION_MAPPING_NAMES,
    "sound": modeling_auto.MODEL_FOR_CTC_MAPPING_NAMES,
}
# Rows of makers whose folders bring their own code, and a type of tokenizers.
OUTSIDE = {"gpt-sw3", "kimi_k2", "new"}
# Types that are not there, by what they need.
NOT_YET = {name: reason for reason, names in {
    "attention to few blocks or tokens": """bailing_hybrid beam big_bird bigbird_pegasus
        deepseek_v32 deepseek_v4 dots3_note dots3_note_text glm_moe_dsa hy_v4 longformer
        minimax_m3_vl_text mra nystromformer pegasus_x reformer yoso axk2""",
    "other states": """bailing_hybrid kimi_linear lara_mini minimax olmo_hybrid qwen4_exp
        qwen4_exp_text recurrent_gemma rwkv xlstm zamba""",
    "other positions": """apertus1p5_text cpmant esmc funnel hrm_text
        jina_embeddings_v3 persimmon rembert roc_bert roformer ultrabert xlm xmod flaubert
        layoutlm luke tapas gpt_neox_japanese trocr""",
    "other mixtures of experts": """afmoe aria_text axk1 cohere2_moe cohere_compass_text dory flint
        granitemoe_swa hy_v3 kolibri1 laguna longcat_flash mellum mimo_v2_flash nllb-moe
        sarvam_mla sarvam_moe switch_transformers zaya inkling2_loop_text inkling2_text
        inkling_text""",
    "other layers": """bert-generation bitnet blenderbot-small convbert ctrl diffllama doge fnet fsmt
        granite_swa ibert lfm3 minicpm3 mobilebert modernbert-decoder mvp neomme
        openai-gpt plbart prophetnet squeezebert t5gemma2""",
    "bytes in place of tokens": "blt perceiver",
    "parts of other models": """encoder-decoder gemma4_assistant gemma4_unified_assistant
        gemma4_unified gemma4_unified_text diffusion_gemma""",
    "music and speech as tokens": """moshi musicgen musicgen_melody seamless_m4t seamless_m4t_v2
        voxtral_realtime""",
    "images or sound, and no text model that is a row": """apertus1p5 aria blip chameleon
        cohere_compass cosmos3_edge cosmos3_omni deepseek_ocr2 emu3 ernie4_5_vl_moe evolla fuyu git
        glm46v glm4v glm4v_moe glm5_next glm_ocr glmga granite4_vision granite_docling hunyuan_vl
        hy_v4_vl hyperclovax_vision_v2 idefics inkling2 inkling2_loop inkling_mm_model kosmos-2
        kosmos-2.5 lfm3_vl minimax_m3_vl mistral4 mistral_large4 mllama molmo2 muse_glimmer
        muse_spark paddleocr_vl phi4_multimodal pi0 pix2struct pp_formulanet qwen2_5_omni_thinker
        qwen3_omni_moe_thinker step3p7 udop ultravbert unlimited_ocr""",
    "convolutions of images": """bit cvt dinov3_convnext efficientnet focalnet hgnet_v2 levit mobilenet_v1
        mobilenet_v2 mobilevit mobilevitv2 poolformer pp_lcnet regnet swiftformer textnet
        timm_wrapper""",
    "other attention to patches": """dinat donut-swin hiera ijepa imagegpt
        metaclip_2 pvt pvt_v2 swinv2 vit_msn""",
    "other encoders of sound": """data2vec-audio granite_speech5_ctc lasr_ctc omniasr_ctc sew sew-d
        unispeech unispeech-sat wav2vec2-bert wav2vec2-conformer""",
    "transducers": "parakeet_rnnt parakeet_tdt",
    "other ways to find objects": """conditional_detr d_fine dab-detr deformable_detr deimv2 deta
        lw_detr pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4 pp_ocrv5_mobile_det
        pp_ocrv5_server_det pp_ocrv6_medium_det pp_ocrv6_small_det rf_detr table-transformer
        yolos""",
    "other heads of pixels": "dpt sapiens2 tipsv2_dpt upernet",
    "other models of masks, or the memory of films": """edgetam edgetam_video sam sam3_tracker
        sam3_video sam_hq""",
}.items() for name in names.split()}


def rows():
    """The families, and the types that are another name of one."""
    code = ("for _, row in ipairs(require('redco').models.families()) do "
            "print(row.model_type, unpack(row.aliases)) end")
    lines = [line.split() for line in subprocess.run(
        [PROGRAM, "-e", code], check=True, capture_output=True, text=True).stdout.splitlines()]
    return {line[0] for line in lines}, {name for line in lines for name in line[1:]}


def text_part(name):
    """The type of the text model inside, or None."""
    module = configuration_auto.model_type_to_module_name(name)
    try:
        config = getattr(importlib.import_module(f"transformers.models.{module}"),
                         configuration_auto.CONFIG_MAPPING_NAMES[name])()
        return config.text_config.model_type
    except Exception:  # it has no text part, or its defaults do not fit together
        return None


def main():
    families, aliases = rows()
    known, result, wrong = families | aliases, {}, []
    for kind, types in KINDS.items():
        row, other = sorted(families & set(types)), sorted(aliases & set(types))
        part = sorted(name for name in set(types) - known if text_part(name) in known)
        missing = sorted(set(types) - known - set(part))
        result[kind] = {"rows": len(row), "aliases": other, "text part": part, "not yet": missing}
        print(f"{kind}: {len(row)} rows, {len(other)} aliases, {len(part)} by their text part, "
              f"{len(missing)} not yet")
        print("  aliases:", *other)
        print("  by their text part:", *part)
        print("  not yet:", *(f"{name} ({NOT_YET.get(name, '?')})" for name in missing))
        wrong += [f"{name} is no row, no alias and has no reason in NOT_YET" for name in missing
                  if name not in NOT_YET]
    drawn = {family.partition(".")[0] for family in random_models.FAMILIES}
    wrong += [f"{name} is no type of transformers"
             for name in sorted(known - set(configuration_auto.CONFIG_MAPPING_NAMES) - OUTSIDE)]
    wrong += [f"{name} has no random models" for name in sorted(known - drawn - OUTSIDE)]
    wrong += [f"NOT_YET has {name}, which is a row" for name in sorted(known & set(NOT_YET))]
    print(json.dumps({kind: {key: value if key == "rows" else len(value)
                             for key, value in counts.items()}
                      for kind, counts in result.items()}))
    if wrong:
        raise SystemExit("\n".join(wrong))


main()

--- A tiny configuration and inputs of every family of models, and of their heads.
local redco = require "redco"

local torch = redco.torch

local tiny = {}

--- Returns a table with the entries of all; of equal keys the last counts.
function tiny.merged(...)
  local result = {}
  for _, source in ipairs { ... } do
    for key, value in pairs(source) do result[key] = value end
  end
  return result
end

local merged = tiny.merged

-- Sizes, by the names that families have for them.
local usual = { hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 4 }
local decoder = merged(usual, { intermediate_size = 24, max_position_embeddings = 32 })
local grouped = merged(decoder, { num_key_value_heads = 2 })
local with_head_size = merged(grouped, { head_dim = 8 })
local encoder = merged(decoder, { hidden_dropout_prob = 0, attention_probs_dropout_prob = 0 })
local gpt = { n_embd = 16, n_layer = 2, n_head = 4, n_positions = 32, resid_pdrop = 0,
  embd_pdrop = 0, attn_pdrop = 0 }
local bart = { d_model = 16, encoder_layers = 1, decoder_layers = 1, encoder_attention_heads = 4,
  decoder_attention_heads = 4, encoder_ffn_dim = 24, decoder_ffn_dim = 24, dropout = 0,
  max_position_embeddings = 32, decoder_start_token_id = 2, pad_token_id = 1, eos_token_id = 2 }
local t5 = { d_model = 16, d_kv = 4, d_ff = 24, num_layers = 2, num_decoder_layers = 1,
  num_heads = 4, dropout_rate = 0, decoder_start_token_id = 0 }
local text = merged(decoder, { vocab_size = 32, eos_token_id = 2 })
local sound = merged(usual, { intermediate_size = 24, hidden_dropout = 0, activation_dropout = 0,
  attention_dropout = 0, final_dropout = 0, layerdrop = 0, mask_time_prob = 0,
  conv_dim = { 8, 12 }, conv_kernel = { 4, 2 }, conv_stride = { 3, 2 }, num_conv_pos_embeddings = 4,
  num_conv_pos_embedding_groups = 4, ctc_loss_reduction = "mean", use_weighted_layer_sum = true,
  classifier_proj_size = 12 })
local conformer = merged(usual, { intermediate_size = 24, dropout = 0, layerdrop = 0,
  activation_dropout = 0, attention_dropout = 0, conv_kernel_size = 3, subsampling_factor = 4,
  subsampling_conv_channels = 6, num_mel_bins = 8 })
local clap_text = merged(encoder, { vocab_size = 32, pad_token_id = 1 })
local clap_audio = { window_size = 2, num_mel_bins = 8, spec_size = 16, patch_size = 2,
  patch_stride = { 2, 2 }, depths = { 1, 2 }, num_attention_heads = { 2, 4 }, hidden_size = 16,
  patch_embeds_hidden_size = 8, enable_fusion = true, hidden_dropout_prob = 0 }
local real_time = { num_labels = 2, d_model = 8, encoder_hidden_dim = 8, num_queries = 3,
  encoder_in_channels = { 8, 12 }, decoder_in_channels = { 8, 8 }, feat_strides = { 8, 16 },
  encode_proj_layers = { 1 }, num_feature_levels = 2, encoder_attention_heads = 2,
  decoder_attention_heads = 2, encoder_ffn_dim = 12, decoder_ffn_dim = 12, decoder_layers = 2,
  decoder_n_points = 2, hidden_expansion = 0.5, num_denoising = 0,
  backbone_config = { model_type = "rt_detr_resnet", embedding_size = 8, layer_type = "basic",
    hidden_sizes = { 8, 8, 12 }, depths = { 1, 1, 1 }, out_features = { "stage2", "stage3" } } }
local hiera = { hidden_size = 4, patch_kernel_size = { 3, 3 }, patch_stride = { 2, 2 },
  patch_padding = { 1, 1 }, window_positional_embedding_background_size = { 2, 3 },
  num_query_pool_stages = 2, blocks_per_stage = { 1, 2, 1 }, embed_dim_per_stage = { 4, 8, 16 },
  num_attention_heads_per_stage = { 1, 2, 2 }, window_size_per_stage = { 4, 2, 2 },
  global_attention_blocks = { 2 } }
local sam2_image = { backbone_config = hiera, backbone_channel_list = { 16, 8, 4 },
  backbone_feature_sizes = { { 8, 8 }, { 4, 4 }, { 2, 2 } }, fpn_hidden_size = 8,
  fpn_top_down_levels = { 0, 1 } }
local patches = { image_size = 8, patch_size = 4, num_channels = 3 }
local image = merged(usual, patches, { intermediate_size = 24 })
local vit = merged(image, { model_type = "vit", hidden_dropout_prob = 0,
  attention_probs_dropout_prob = 0 })
local beit = merged(vit, { model_type = "beit", layer_scale_init_value = 0.5, drop_path_rate = 0,
  use_relative_position_bias = true, use_absolute_position_embeddings = true })
local siglip_text = merged(text, { projection_size = 16 })
local patches_in_rows = merged(usual, { intermediate_size = 24, num_channels = 3, patch_size = 2,
  num_patches = 9 })

-- An image has four features, whose token is 31.
local text_and_image = { text_config = merged(grouped, { vocab_size = 32 }), vision_config = image }
local of_tiles = merged(text_and_image, { image_token_id = 31,
  vision_config = merged(image, { patch_size = 2 }) })

-- Of models that read images of any size: four pairs of a head for three positions.
local any_size = { text = merged(decoder, { vocab_size = 32, num_key_value_heads = 2, head_dim = 8,
    num_attention_heads = 2, rope_scaling = { mrope_section = { 2, 1, 1 } } }),
  vision = { depth = 2, num_heads = 2, patch_size = 2, temporal_patch_size = 1, hidden_size = 16,
    out_hidden_size = 16, intermediate_size = 24, num_position_embeddings = 9,
    deepstack_visual_indexes = { 0, 1 } } }

local mixture = { n_routed_experts = 4, n_group = 1, topk_group = 1, num_experts_per_tok = 2,
  moe_intermediate_size = 8, first_k_dense_replace = 1 }
local deepseek = merged(decoder, mixture, { num_key_value_heads = 4, q_lora_rank = 8,
  kv_lora_rank = 6, qk_rope_head_dim = 4, qk_nope_head_dim = 4, v_head_dim = 4 })

local llama4_text = merged(with_head_size, { num_local_experts = 4, intermediate_size_mlp = 40,
  interleave_moe_layer_step = 2, attention_chunk_size = 3, no_rope_layer_interval = 2,
  floor_scale = 2 })

local mamba = { mamba_n_heads = 4, mamba_n_groups = 2, mamba_d_state = 4, pad_token_id = 0 }
local delta_net = { linear_key_head_dim = 4, linear_value_head_dim = 4, linear_num_key_heads = 2,
  linear_num_value_heads = 4, full_attention_interval = 2, partial_rotary_factor = 0.5 }
local gte = merged(encoder, { pad_token_id = 0, num_attention_heads = 4 })

local gemma4_text = merged(with_head_size, { num_hidden_layers = 3, global_head_dim = 12,
  layer_types = { "sliding_attention", "full_attention", "full_attention" },
  num_kv_shared_layers = 1, sliding_window = 3, vocab_size_per_layer_input = 32,
  hidden_size_per_layer_input = 4, attention_k_eq_v = true, enable_moe_block = true,
  num_experts = 4, top_k_experts = 2, moe_intermediate_size = 8 })

local configs = {
  albert = merged(encoder, { embedding_size = 8, inner_group_num = 1, num_hidden_groups = 1 }),
  apertus = grouped,
  arcee = grouped,
  bamba = merged(grouped, mamba, { attn_layer_indices = { 1 }, num_attention_heads = 2 }),
  bart = bart,
  beit = beit,
  bert = encoder,
  biogpt = merged(encoder, { pad_token_id = 0 }),
  blenderbot = bart,
  bloom = { hidden_size = 16, n_layer = 2, n_head = 4, hidden_dropout = 0, attention_dropout = 0 },
  codegen = merged(gpt, { rotary_dim = 4 }),
  convnext = { hidden_sizes = { 8, 16 }, depths = { 1, 1 }, num_stages = 2, patch_size = 2,
    image_size = 8, num_channels = 3, layer_scale_init_value = 0.5 },
  convnextv2 = { hidden_sizes = { 8, 16 }, depths = { 1, 1 }, num_stages = 2, patch_size = 2,
    image_size = 8, num_channels = 3 },
  cohere = merged(grouped, { use_qk_norm = true }),
  cohere2 = merged(grouped, { sliding_window = 3 }),
  cwm = merged(with_head_size, { sliding_window = 3 }),
  ["data2vec-text"] = encoder,
  ["data2vec-vision"] = merged(beit, { model_type = "data2vec-vision",
    use_shared_relative_position_bias = true }),
  deit = merged(vit, { model_type = "deit" }),
  deepseek_v2 = deepseek,
  deepseek_v3 = deepseek,
  camembert = encoder,
  clap = { text_config = clap_text, audio_config = clap_audio, projection_dim = 12 },
  clap_audio_model = clap_audio,
  clap_text_model = clap_text,
  clip = { text_config = text, vision_config = image, projection_dim = 12 },
  clip_text_model = text,
  clip_vision_model = image,
  dbrx = { d_model = 16, n_heads = 4, n_layers = 2, max_seq_len = 32,
    attn_config = { kv_n_heads = 2, clip_qkv = 8 },
    ffn_config = { ffn_hidden_size = 12, moe_num_experts = 3, moe_top_k = 2 } },
  deberta = merged(encoder, { relative_attention = true, pos_att_type = { "c2p", "p2c" } }),
  ["deberta-v2"] = merged(encoder, { relative_attention = true, pos_att_type = { "c2p", "p2c" },
    conv_kernel_size = 3, position_buckets = 4 }),
  detr = { use_timm_backbone = false, backbone_config = { model_type = "resnet",
    embedding_size = 8, hidden_sizes = { 8, 16 }, depths = { 1, 1 }, hidden_act = "tanh",
    out_features = { "stage2" } }, d_model = 16, encoder_layers = 1, decoder_layers = 1,
    encoder_attention_heads = 4, decoder_attention_heads = 4, encoder_ffn_dim = 24,
    decoder_ffn_dim = 24, num_queries = 3, dropout = 0 },
  dinov2 = merged(usual, patches, { image_size = 12, mlp_ratio = 2, use_swiglu_ffn = true }),
  dinov2_with_registers = merged(usual, patches, { mlp_ratio = 2, num_register_tokens = 2 }),
  dinov3_vit = merged(image, { num_register_tokens = 2, use_gated_mlp = true }),
  distilbert = { dim = 16, n_layers = 2, n_heads = 4, hidden_dim = 24, dropout = 0,
    attention_dropout = 0, max_position_embeddings = 32 },
  dots1 = merged(with_head_size, mixture),
  electra = merged(encoder, { embedding_size = 8 }),
  ernie = merged(encoder, { use_task_id = true }),
  ernie4_5 = with_head_size,
  ernie4_5_moe = merged(with_head_size, { moe_num_experts = 4, moe_k = 2,
    moe_intermediate_size = 8 }),
  falcon_h1 = merged(grouped, mamba, { mamba_d_ssm = 24, mamba_rms_norm = true,
    mlp_multipliers = { 0.7, 1.2 }, ssm_multipliers = { 1.5, 0.8, 1.2, 0.7, 1.1 } }),
  esm = merged(encoder, { position_embedding_type = "rotary", token_dropout = true,
    mask_token_id = 3, emb_layer_norm_before = true, pad_token_id = 1 }),
  eurobert = merged(grouped, { pad_token_id = 1 }),
  exaone4 = merged(grouped, { sliding_window = 3, sliding_window_pattern = 2 }),
  exaone_moe = merged(grouped, { sliding_window = 3, num_experts = 4, num_experts_per_tok = 2,
    moe_intermediate_size = 8 }),
  falcon = usual,
  falcon_mamba = { hidden_size = 16, num_hidden_layers = 2, state_size = 4 },
  flex_olmo = merged(grouped, { num_experts = 4, num_experts_per_tok = 2, pad_token_id = 0 }),
  gemma = with_head_size,
  gemma2 = with_head_size,
  gemma3 = merged(text_and_image, { text_config = merged(with_head_size, { vocab_size = 32 }),
    vision_config = merged(image, { vision_use_head = false }), mm_tokens_per_image = 4,
    image_token_index = 31 }),
  gemma3_text = with_head_size,
  gemma3n_text = merged(with_head_size, { intermediate_size = 24, num_hidden_layers = 3,
    layer_types = { "full_attention", "sliding_attention", "full_attention" },
    num_kv_shared_layers = 1, sliding_window = 3, vocab_size_per_layer_input = 30,
    hidden_size_per_layer_input = 4, laurel_rank = 4, altup_num_inputs = 3,
    activation_sparsity_pattern = 0.5 }),
  gemma4 = { image_token_id = 31, video_token_id = 30, audio_token_id = 29,
    text_config = merged(gemma4_text, { vocab_size = 32 }),
    vision_config = { hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2,
      num_attention_heads = 2, num_key_value_heads = 1, head_dim = 8, pooling_kernel_size = 2,
      patch_size = 2, position_embedding_size = 8, use_clipped_linears = true,
      standardize = true, rms_norm_eps = 1e-2 } },
  gemma4_text = gemma4_text,
  glm = merged(with_head_size, { pad_token_id = 0 }),
  glm4 = merged(with_head_size, { pad_token_id = 0 }),
  glm4_moe = merged(with_head_size, mixture),
  glm4_moe_lite = merged(deepseek, { first_k_dense_replace = 1 }),
  gpt2 = gpt,
  gpt_bigcode = gpt,
  gpt_neo = merged(usual, { max_position_embeddings = 32, window_size = 3 }),
  gpt_oss = merged(with_head_size, { num_local_experts = 4, num_experts_per_tok = 2,
    sliding_window = 3 }),
  gpt_neox = merged(decoder, { rotary_pct = 0.5, num_attention_heads = 2 }),
  gte = gte,
  gptj = merged(gpt, { rotary_dim = 4 }),
  granite = grouped,
  granitemoe = merged(grouped, { num_local_experts = 4, num_experts_per_tok = 2 }),
  granitemoehybrid = merged(grouped, mamba, { layer_types = { "mamba", "attention" },
    mamba_n_groups = 1, num_local_experts = 4, num_experts_per_tok = 2,
    shared_intermediate_size = 8 }),
  granitemoeshared = merged(grouped, { num_local_experts = 4, num_experts_per_tok = 2,
    shared_intermediate_size = 8 }),
  helium = merged(with_head_size, { head_dim = 4 }),
  hubert = sound,
  hunyuan_v1_dense = with_head_size,
  hyperclovax = grouped,
  hunyuan_v1_moe = merged(with_head_size, { num_experts = 4, moe_topk = { 1, 2 } }),
  idefics3 = of_tiles,
  internvl = merged(of_tiles, { vision_config = merged(image, { patch_size = { 2, 2 },
    image_size = { 8, 8 } }) }),
  jais2 = grouped,
  jamba = merged(grouped, { attn_layer_period = 2, attn_layer_offset = 1, num_experts = 4,
    mamba_d_state = 4, pad_token_id = 0 }),
  lfm2 = merged(grouped, { full_attn_idxs = { 1 }, block_multiple_of = 8, conv_bias = true }),
  lfm2_moe = merged(grouped, { layer_types = { "conv", "full_attention" }, num_dense_layers = 1,
    num_experts = 4, num_experts_per_tok = 2, moe_intermediate_size = 8 }),
  llama = grouped,
  llama4 = { image_token_index = 31, text_config = merged(llama4_text, { vocab_size = 32 }),
    vision_config = merged(usual, { image_size = 8, patch_size = 2, intermediate_size = 64,
      projector_input_dim = 12, projector_output_dim = 12, vision_output_dim = 12 }) },
  llama4_text = llama4_text,
  jetmoe = merged(decoder, { num_key_value_heads = 2, kv_channels = 4, num_local_experts = 3,
    num_experts_per_tok = 2 }),
  led = merged(bart, { max_encoder_position_embeddings = 40, attention_window = 2,
    max_decoder_position_embeddings = 40 }),
  llava = merged(text_and_image, { image_token_index = 31, vision_feature_layer = -2 }),
  llava_next = merged(text_and_image, { image_token_index = 31,
    image_grid_pinpoints = { { 8, 8 } } }),
  llava_onevision = merged(text_and_image, { image_token_index = 31,
    image_grid_pinpoints = { { 8, 8 } }, vision_aspect_ratio = "anyres_max_9" }),
  longt5 = merged(t5, { local_radius = 1, global_block_size = 2,
    encoder_attention_type = "transient-global" }),
  m2m_100 = bart,
  mamba = { hidden_size = 16, num_hidden_layers = 2, state_size = 4, use_bias = true },
  mamba2 = { hidden_size = 16, num_hidden_layers = 2, num_heads = 4, head_dim = 8, state_size = 4,
    n_groups = 2, use_bias = true },
  marian = bart,
  mbart = bart,
  ["megatron-bert"] = encoder,
  minimax_m2 = merged(with_head_size, { num_experts_per_tok = 2, num_local_experts = 4 }),
  ministral = merged(grouped, { sliding_window = 3 }),
  ministral3 = with_head_size,
  mistral = grouped,
  mistral3 = merged(text_and_image, { image_token_index = 31,
    vision_config = merged(image, { patch_size = 2 }) }),
  mixtral = merged(grouped, { num_experts_per_tok = 2, num_local_experts = 4 }),
  modernbert = merged(usual, { intermediate_size = 24, pad_token_id = 0, bos_token_id = 1,
    eos_token_id = 2, cls_token_id = 1, sep_token_id = 2, global_attn_every_n_layers = 2,
    local_attention = 4 }),
  mpnet = encoder,
  mpt = { d_model = 16, n_layers = 2, n_heads = 4 },
  mt5 = t5,
  nanochat = grouped,
  nemotron = with_head_size,
  nemotron_h = merged(with_head_size, { hybrid_override_pattern = "ME*-", mamba_num_heads = 4,
    mamba_head_dim = 4, ssm_state_size = 4, n_groups = 2, n_routed_experts = 4,
    moe_intermediate_size = 8, moe_shared_expert_intermediate_size = 8 }),
  new = gte,
  nomic_bert = gte,
  olmo = grouped,
  olmo2 = grouped,
  olmo3 = merged(grouped, { sliding_window = 3 }),
  olmoe = merged(grouped, { num_experts = 4, num_experts_per_tok = 2 }),
  opt = merged(usual, { ffn_dim = 24, max_position_embeddings = 32, word_embed_proj_dim = 16,
    dropout = 0 }),
  paligemma = merged(text_and_image, { image_token_index = 31, projection_dim = 16,
    text_config = merged(with_head_size, { vocab_size = 32 }) }),
  parakeet_ctc = { encoder_config = conformer, pad_token_id = 0 },
  parakeet_encoder = conformer,
  pegasus = bart,
  phi = merged(grouped, { qk_layernorm = true }),
  phi3 = merged(grouped, { resid_pdrop = 0, pad_token_id = 0 }),
  phimoe = merged(grouped, { num_local_experts = 4 }),
  qwen2 = grouped,
  qwen2_audio = { audio_token_index = 31, text_config = merged(grouped, { vocab_size = 32 }),
    audio_config = { num_mel_bins = 4, max_source_positions = 8, d_model = 16, encoder_layers = 2,
      encoder_attention_heads = 4, encoder_ffn_dim = 24 } },
  qwen2_moe = merged(grouped, { num_experts = 4, num_experts_per_tok = 2,
    moe_intermediate_size = 8, shared_expert_intermediate_size = 8 }),
  qwen2_5_vl = { image_token_id = 31, text_config = any_size.text,
    vision_config = { depth = 2, num_heads = 2, patch_size = 2, temporal_patch_size = 1,
      hidden_size = 16, out_hidden_size = 16, intermediate_size = 24, window_size = 4,
      fullatt_block_indexes = { 1 } } },
  qwen2_vl = { image_token_id = 31, text_config = any_size.text,
    vision_config = { depth = 2, num_heads = 2, patch_size = 2, temporal_patch_size = 1,
      embed_dim = 16, hidden_size = 16, mlp_ratio = 2 } },
  qwen3 = with_head_size,
  qwen3_moe = merged(with_head_size, { num_experts = 4, num_experts_per_tok = 2,
    moe_intermediate_size = 8 }),
  qwen3_5 = { image_token_id = 31, text_config = merged(any_size.text, delta_net),
    vision_config = merged(any_size.vision, { deepstack_visual_indexes = {} }) },
  qwen3_5_moe = { image_token_id = 31, text_config = merged(any_size.text, delta_net,
    { num_experts = 4, num_experts_per_tok = 2, moe_intermediate_size = 8,
      shared_expert_intermediate_size = 8 }),
    vision_config = merged(any_size.vision, { deepstack_visual_indexes = {} }) },
  qwen3_5_text = merged(with_head_size, delta_net),
  qwen3_5_moe_text = merged(with_head_size, delta_net, { num_experts = 4, num_experts_per_tok = 2,
    moe_intermediate_size = 8, shared_expert_intermediate_size = 8 }),
  qwen3_vl = { image_token_id = 31, text_config = any_size.text, vision_config = any_size.vision },
  qwen3_vl_moe = { image_token_id = 31, text_config = merged(any_size.text, { num_experts = 4,
    num_experts_per_tok = 2, moe_intermediate_size = 8 }), vision_config = any_size.vision },
  qwen3_next = merged(with_head_size, delta_net, { num_experts = 4, num_experts_per_tok = 2,
    moe_intermediate_size = 8, shared_expert_intermediate_size = 8 }),
  resnet = { embedding_size = 8, hidden_sizes = { 8, 16 }, depths = { 1, 2 }, image_size = 8,
    hidden_act = "tanh" },
  roberta = encoder,
  ["roberta-prelayernorm"] = encoder,
  rt_detr = real_time,
  rt_detr_v2 = merged(real_time, { decoder_n_levels = 2, decoder_offset_scale = 0.3 }),
  sam2 = { vision_config = sam2_image,
    prompt_encoder_config = { hidden_size = 8, image_size = 16, patch_size = 8,
      mask_input_channels = 4 },
    mask_decoder_config = { hidden_size = 8, mlp_dim = 12, num_attention_heads = 2,
      iou_head_hidden_dim = 6, num_multimask_outputs = 2 } },
  sam2_hiera_det_model = hiera,
  sam2_vision_model = sam2_image,
  seed_oss = merged(with_head_size, { attention_dropout = 0, residual_dropout = 0 }),
  segformer = { num_encoder_blocks = 2, depths = { 1, 1 }, sr_ratios = { 2, 1 },
    hidden_sizes = { 8, 16 }, patch_sizes = { 3, 3 }, strides = { 2, 1 }, mlp_ratios = { 2, 2 },
    num_attention_heads = { 2, 4 }, decoder_hidden_size = 8, drop_path_rate = 0, image_size = 8,
    classifier_dropout_prob = 0 },
  siglip = { text_config = siglip_text, vision_config = image },
  siglip2 = { text_config = siglip_text, vision_config = patches_in_rows },
  siglip2_vision_model = patches_in_rows,
  siglip_text_model = siglip_text,
  siglip_vision_model = image,
  smollm3 = merged(grouped, { pad_token_id = 0 }),
  smolvlm = of_tiles,
  solar_open = merged(with_head_size, mixture),
  stablelm = merged(grouped, { num_attention_heads = 2, qk_layernorm = true,
    partial_rotary_factor = 0.5 }),
  starcoder2 = merged(grouped, { residual_dropout = 0, embedding_dropout = 0 }),
  swin = { image_size = 8, patch_size = 1, num_channels = 3, embed_dim = 8, depths = { 2, 1 },
    num_heads = { 2, 4 }, window_size = 3, mlp_ratio = 2, drop_path_rate = 0 },
  t5 = t5,
  t5gemma = { encoder = merged(with_head_size, { vocab_size = 32, sliding_window = 3 }),
    decoder = merged(with_head_size, { vocab_size = 32, sliding_window = 3 }) },
  umt5 = t5,
  vaultgemma = with_head_size,
  ["vision-encoder-decoder"] = { encoder = vit, decoder = merged(gpt, { model_type = "gpt2",
    vocab_size = 32, add_cross_attention = true, is_decoder = true, bos_token_id = 1,
    eos_token_id = 2 }), decoder_start_token_id = 1, pad_token_id = 0,
    tie_word_embeddings = false },
  vit = vit,
  voxtral = { audio_token_id = 31,
    text_config = merged(with_head_size, { vocab_size = 32 }),
    audio_config = { num_mel_bins = 4, max_source_positions = 8, hidden_size = 16,
      num_hidden_layers = 2, num_attention_heads = 4, intermediate_size = 32 } },
  wav2vec2 = sound,
  wavlm = merged(sound, { num_buckets = 8, max_bucket_distance = 9, do_stable_layer_norm = true,
    feat_extract_norm = "layer" }),
  whisper = { num_mel_bins = 4, max_source_positions = 6, max_target_positions = 32, d_model = 16,
    encoder_layers = 2, decoder_layers = 1, encoder_attention_heads = 4,
    decoder_attention_heads = 4, encoder_ffn_dim = 24, decoder_ffn_dim = 24, pad_token_id = 1,
    classifier_proj_size = 12, use_weighted_layer_sum = true, eos_token_id = 2,
    decoder_start_token_id = 2 },
  xglm = { d_model = 16, num_layers = 2, attention_heads = 4, ffn_dim = 24, dropout = 0,
    attention_dropout = 0, max_position_embeddings = 32 },
  ["xlm-roberta"] = encoder,
  ["xlm-roberta-xl"] = encoder,
  xlnet = { d_model = 16, n_layer = 2, n_head = 4, d_inner = 24, dropout = 0,
    summary_last_dropout = 0 },
  youtu = merged(decoder, { num_key_value_heads = 4, q_lora_rank = 8, kv_lora_rank = 6,
    qk_rope_head_dim = 4, qk_nope_head_dim = 4, v_head_dim = 4 }),
  zamba2 = merged(usual, { intermediate_size = 24, num_hidden_layers = 3, n_mamba_heads = 4,
    mamba_d_state = 4, adapter_rank = 4, use_shared_attention_adapter = true, use_mem_rope = true,
    layers_block_type = { "hybrid", "mamba", "hybrid" } }),
}

-- Heads besides a family's own: each task, and each way that a family has to it.
local heads = { "bart.sequence_classification", "bert.features", "bert.multiple_choice",
  "clap_audio_model.projection", "clap_text_model.projection", "clip.image_classification",
  "clip_text_model.projection", "deberta-v2.question_answering",
  "dinov2.features", "distilbert.sequence_classification", "electra.replaced_token_detection",
  "gpt2.token_classification", "llama.features", "llama.sequence_classification",
  "mixtral.features", "modernbert.features", "modernbert.sequence_classification",
  "roberta.sequence_classification", "segformer.semantic_segmentation",
  "siglip.image_classification", "siglip2.image_classification", "t5.features",
  "t5gemma.sequence_classification", "t5gemma.token_classification",
  "umt5.token_classification", "vit.features", "wav2vec2.audio_classification",
  "wav2vec2.features", "whisper.audio_classification" }

--- The names of all, sorted: FAMILY or FAMILY.TASK.
function tiny.names()
  local names = { unpack(heads) }
  for name in pairs(configs) do names[#names + 1] = name end
  table.sort(names)
  return names
end

--- Returns the configuration of a family.
function tiny.config(model_type) return merged({ model_type = model_type }, configs[model_type]) end

function tiny.has(name) return configs[name] ~= nil end

--- The families of which layers have states.
tiny.with_states = { "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "lfm2",
  "lfm2_moe", "mamba", "mamba2", "nemotron_h", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
  "zamba2" }

--- Returns whether layers of a family have states.
function tiny.has_state(name)
  for _, other in ipairs(tiny.with_states) do
    if other == name then return true end
  end
  return false
end

--- Returns whether a configuration needs a vocab_size.
function tiny.reads_tokens(config)
  local reads_images = config.image_size or config.num_patches or config.backbone_config
    or config.blocks_per_stage or config.mask_decoder_config
  local reads_sound = config.subsampling_factor or config.spec_size
  return not (config.text_config or config.encoder or reads_images or reads_sound)
end

--- Returns a new model, whose weights are large enough for gradients that differ from zero.
function tiny.new(name)
  local model_type, task = name:match "^([^.]+)%.?(.*)$"
  local config = tiny.config(model_type)
  if tiny.reads_tokens(config) then config.vocab_size = 32 end
  if task == "sequence_classification" then
    config.pad_token_id = config.pad_token_id or 0
  end
  local generator = torch.Generator(3)
  local model = redco.models.from_config(config, {
    generator = generator, task = task ~= "" and task or nil,
  })
  torch.no_grad(function()
    for _, leaf in pairs(model.params) do
      if leaf:dim() > 1 then redco.nn.init.normal_(leaf, { std = 0.3, generator = generator }) end
    end
  end)
  return model
end

local function reads(model, name)
  for _, input in ipairs(model.family.inputs) do
    if input == name then return true end
  end
  return false
end

local are_compared = { clap = true, clip = true, siglip = true, siglip2 = true }
local n_rows, length = 4, 5

-- Inputs of the loss besides the model's, by task; all other tasks have labels of tokens.
local labels_of = {
  features = function() return {} end,
  projection = function() return {} end,
  similarity = function() return {} end,
  multiple_choice = function() return { labels = torch.tensor { 0, 2, 1, 2 } } end,
  question_answering = function()
    return { start_positions = torch.tensor { 0, 1, 2, 3 },
      end_positions = torch.tensor { 1, 1, 4, 3 } }
  end,
  object_detection = function()
    return { labels = torch.tensor { { 0, 1 }, { 1, -100 }, { -100, -100 }, { 1, 1 } },
      boxes = torch.rand({ n_rows, 2, 4 }, { generator = torch.Generator(6) }) * 0.5 + 0.2 }
  end,
  mask_generation = function()
    local generator = torch.Generator(6)
    return { input_points = torch.rand({ n_rows, 2, 3, 2 }, { generator = generator }) * 16,
      input_labels = torch.randint(-1, 2, { n_rows, 2, 3 }, { generator = generator }),
      input_boxes = torch.rand({ n_rows, 2, 4 }, { generator = generator }) * 16,
      input_masks = torch.randn({ n_rows, 1, 9, 9 }, { generator = generator }) }
  end,
  semantic_segmentation = function()
    return { labels = torch.arange(n_rows * 30):view { n_rows, 5, 6 } % 2 }
  end,
  token_classification = function(tokens) return { labels = tokens(length) % 2 } end,
  replaced_token_detection = function(tokens) return { labels = tokens(length) % 2 } end,
}
for _, kind in ipairs { "sequence", "image", "audio" } do
  labels_of[kind .. "_classification"] = function()
    return { labels = torch.tensor { 0, 1, 1, 0 } }
  end
end

-- Images of several sizes, one in each row, as patches of n_pixels numbers; n tokens for images.
local function images_of_sizes(n, n_pixels, numbers)
  local sides = torch.tensor { { 1, 2, 4 }, { 1, 4, 4 }, { 1, 4, 2 }, { 1, 2, 2 } }
  local is_real = torch.arange(16):unsqueeze(0):lt(sides:prod(1):unsqueeze(1)):unsqueeze(-1)
  local is_image = torch.arange(n):unsqueeze(0):lt(sides:prod(1):unsqueeze(1) / 4)
  return { pixel_values = numbers(16, n_pixels) * is_real, image_grid_thw = sides }, is_image
end

-- Returns the columns and rows of 16 patches of each image, and -1 for those that fill up.
local function places_of(sides)
  local number, width = torch.arange(16):unsqueeze(0), sides:narrow(1, 2, 1)
  local places = torch.stack({ number % width, number:div(width, { rounding_mode = "floor" }) }, -1)
  return places:masked_fill(number:ge(sides:prod(1, true)):unsqueeze(-1), -1)
end

--- Returns the inputs of a loss: four rows.
function tiny.inputs(name, model)
  local model_type, task = name:match "^[^.]+", model.family.task
  local generator = torch.Generator(5)
  local function tokens(...)
    return torch.randint(3, 32, { n_rows, ... }, { generator = generator })
  end
  local function numbers(...) return torch.randn({ n_rows, ... }, { generator = generator }) end
  local inputs = {}
  if reads(model, "spatial_shapes") then
    inputs.pixel_values = numbers(6, 12)
    inputs.spatial_shapes = torch.tensor { { 2, 3 }, { 1, 4 }, { 3, 2 }, { 1, 1 } }
    inputs.pixel_attention_mask = torch.arange(6):view { 1, 6 }
      :lt(inputs.spatial_shapes:prod(1, true)):to "int64"
  elseif reads(model, "pixel_values") then
    local side = model_type:find "^rt_detr" and 32 or model_type:find "^sam2" and 16 or 8
    inputs.pixel_values = numbers(3, side, side)
  elseif reads(model, "input_features") then
    inputs.input_features = reads(model, "is_longer") and numbers(4, 32, 8)
      or model_type:find "^parakeet" and numbers(60, 8) or numbers(4, 12)
    if reads(model, "is_longer") then
      inputs.is_longer = torch.tensor { { 1 }, { 0 }, { 0 }, { 1 } }
    end
  elseif reads(model, "input_values") then
    inputs.input_values = numbers(60)
  end
  if task == "multiple_choice" then
    inputs.input_ids = tokens(3, length)
  elseif not next(inputs) or are_compared[model_type] and task == "similarity" then
    inputs.input_ids = tokens(length)
    if task == "sequence_classification" and model.is_encoder_decoder then
      inputs.input_ids:narrow(1, length - 2, 1):fill_(2)  -- the end token, which is read
    end
  end
  if task == "features" and inputs.input_ids then
    inputs.attention_mask = torch.ones_like(inputs.input_ids)
    inputs.attention_mask:narrow(0, 1, 2):narrow(1, 0, 2):fill_(0)
  end
  if model_type:find "^parakeet" then
    inputs.attention_mask = torch.ones({ n_rows, 60 }, { dtype = "int64" })
    inputs.attention_mask:narrow(0, 1, 2):narrow(1, 53, 7):fill_(0)
  end
  if model.family.medium then  -- each row has one image or sound
    local n, is_image = 4, nil
    if model_type == "voxtral" then
      inputs.input_features = numbers(4, 16)
    elseif reads(model, "feature_attention_mask") then
      local n_frames = torch.tensor { { 16 }, { 9 }, { 4 }, { 13 } }
      inputs.input_features = numbers(4, 16)
      inputs.feature_attention_mask = torch.arange(16):unsqueeze(0):lt(n_frames):to "int64"
      is_image = torch.arange(n):unsqueeze(0):lt(
        (n_frames + 1):div(4, { rounding_mode = "floor" }))
    end
    if model.family.unit_dims == 5 then  -- the whole and a tile, of which two rows have an end
      n, inputs.pixel_values = 10, numbers(2, 3, 8, 8)
      inputs.image_sizes = torch.full({ n_rows, 2 }, 8, { dtype = "int64" })
    elseif reads(model, "image_grid_thw") then
      inputs, is_image = images_of_sizes(n, 12, numbers)
    elseif reads(model, "image_position_ids") then
      inputs, is_image = images_of_sizes(n, 12, numbers)
      inputs.image_position_ids, inputs.image_grid_thw = places_of(inputs.image_grid_thw), nil
    end
    is_image = is_image or torch.ones({ n_rows, n }, { dtype = "bool" })
    local function words(n_words) return tokens(n_words):clamp(nil, 30) end
    inputs.input_ids = torch.cat({ words(2), words(n):masked_fill(is_image, 31),
      words(length) }, 1)
    inputs.labels = tokens(2 + n + length)
    if reads(model, "token_type_ids") then
      inputs.token_type_ids = torch.ones_like(inputs.input_ids)
      inputs.token_type_ids:narrow(1, 0, 2 + n):fill_(0)
    end
    return inputs
  end
  local labels = labels_of[task]
  return merged(inputs, labels and labels(tokens) or { labels = tokens(length) })
end

return tiny

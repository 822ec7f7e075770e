--- The keys of configurations that are sizes or counts, by the names that families give them.
local sizes = {}
for _, key in ipairs {
  "attention_chunk_size", "attention_head_size", "classifier_proj_size", "conv_L_cache", "conv_dim",
  "conv_kernel", "conv_kernel_size", "conv_stride", "d_ff", "d_kv", "d_model",
  "decoder_attention_heads", "decoder_ffn_dim", "decoder_layers", "decoder_vocab_size", "depth",
  "depths",
  "dim", "embed_dim", "embedding_size", "encoder_attention_heads", "encoder_ffn_dim",
  "encoder_layers", "ffn_dim", "ffn_hidden_size", "floor_scale", "global_attn_every_n_layers",
  "head_dim", "hidden_dim", "hidden_size", "hidden_sizes", "image_size",
  "in_channels", "inner_group_num",
  "interleave_moe_layer_step", "intermediate_size", "intermediate_size_mlp", "kv_lora_rank",
  "linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads", "linear_num_value_heads",
  "linear_value_head_dim", "mamba_d_conv", "mamba_d_state", "mamba_n_groups", "mamba_n_heads",
  "mask_feature_length", "mask_time_length", "max_position_embeddings", "max_source_positions",
  "max_target_positions", "moe_intermediate_size", "n_embd", "n_group", "n_groups", "n_head",
  "n_heads", "n_inner", "n_layer", "n_layers", "n_positions", "n_routed_experts",
  "n_shared_experts", "no_rope_layer_interval", "num_attention_heads", "num_channels",
  "num_conv_pos_embedding_groups", "num_conv_pos_embeddings", "num_decoder_layers",
  "num_encoder_blocks", "num_experts", "num_experts_per_tok", "num_heads", "num_hidden_groups",
  "num_hidden_layers", "num_key_value_heads", "num_kv_heads", "num_labels", "num_layers",
  "num_ln_in_parallel_attn", "num_local_experts", "num_mel_bins", "num_patches",
  "num_position_embeddings", "num_stages", "original_max_position_embeddings", "out_hidden_size",
  "patch_size", "pooler_hidden_size", "pooler_output_size", "projection_dim", "projection_size",
  "projector_input_dim", "projector_output_dim", "q_lora_rank", "qk_head_dim", "qk_nope_head_dim",
  "qk_rope_head_dim",
  "relative_attention_max_distance", "relative_attention_num_buckets", "rotary_dim",
  "scale_factor", "shared_expert_intermediate_size", "spatial_merge_size", "state_size",
  "subsampling_conv_channels", "subsampling_conv_kernel_size", "subsampling_conv_stride",
  "subsampling_factor", "temporal_patch_size", "v_head_dim", "vision_output_dim", "vocab_size",
  "window_size", "word_embed_proj_dim",
} do sizes[key] = 1 end

-- Sizes that may be below 1.
sizes.max_relative_positions, sizes.position_buckets, sizes.type_vocab_size = -1, -1, 0

--- The least value of each size, by its key.
return sizes

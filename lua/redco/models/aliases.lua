--- Types that are a family by another name. A folder of such a type opens, and is saved, as one of
--- the family. A row has `of`, the family, `models`, the names that people know, and where the
--- folders differ:
---   keys: their names of keys of the family's configuration
---   defaults: values of keys that they may lack
---   renamed: pairs of a pattern in their names of weights and what stands there in the family's

return {
  exaone = {
    of = "llama", models = "EXAONE 3 and 3.5",
    keys = { num_layers = "num_hidden_layers", layer_norm_epsilon = "rms_norm_eps",
      activation_function = "hidden_act" },
    defaults = { rope_theta = 500000 },
    renamed = {
      { "^transformer%.wte%.", "model.embed_tokens." }, { "^transformer%.h%.", "model.layers." },
      { "^transformer%.ln_f%.", "model.norm." }, { "%.ln_1%.", ".input_layernorm." },
      { "%.ln_2%.", ".post_attention_layernorm." }, { "%.attn%.attention%.", ".self_attn." },
      { "%.out_proj%.", ".o_proj." }, { "%.mlp%.c_fc_0%.", ".mlp.gate_proj." },
      { "%.mlp%.c_fc_1%.", ".mlp.up_proj." }, { "%.mlp%.c_proj%.", ".mlp.down_proj." },
    },
  },
  ["gpt-sw3"] = { of = "gpt2", models = "GPT-SW3" },
  internlm3 = {
    of = "llama", models = "InternLM 3", defaults = { head_dim = 128 },
    keys = { qkv_bias = "attention_bias", bias = "mlp_bias" },
  },
  iquestcoder = { of = "llama", models = "IQuest-Coder V1", defaults = { head_dim = 128 } },
  kimi_k2 = { of = "deepseek_v3", models = "Kimi K2" },
  sam2_video = { of = "sam2", models = "SAM 2's models of videos" },
}

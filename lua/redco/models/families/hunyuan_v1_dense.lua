--- Hunyuan without experts (Tencent, 2025), as Hugging Face's `HunYuanDenseV1ForCausalLM`: LLaMA
--- with norms of each head of q and k after the positions, whose base may be stretched.
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "hunyuan_v1_dense",
  models = "Hunyuan 0.5B to 7B",
  architecture = "HunYuanDenseV1ForCausalLM",
  tasks = tasks.of_decoder("HunYuanDenseV1", {}),
  defaults = {
    vocab_size = 290943,
    intermediate_size = 11008,
    hidden_act = "silu",
    max_position_embeddings = 2048,
    rms_norm_eps = 1e-5,
    attention_bias = false,
    pad_token_id = 0,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  optional = { "eod_token_id", "pretraining_tp" },
  facts = function(c)
    return {
      qkv_bias = c.attention_bias, o_bias = c.attention_bias, head_norms = "head",
      head_norm_names = { "query_layernorm", "key_layernorm" }, turns_first = true,
      rope = function(_, whole)
        whole.stretch = whole.alpha ~= 0 and whole.alpha or nil
        return whole
      end,
    }
  end,
}

--- Hunyuan with experts (Tencent, 2025), as Hugging Face's `HunYuanMoEV1ForCausalLM`: beside the
--- experts of each layer is one for all tokens.
local dense = require "redco.models.families.hunyuan_v1_dense"
local experts = require "redco.models.layers.experts"
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"

-- Returns the setting of layer i. A key has one value, or a list with one for each layer.
local function of_layer(c, key, i)
  return type(c[key]) == "table" and c[key][i + 1] or c[key]
end

local function check(c)
  for _, key in ipairs { "num_experts", "moe_topk" } do
    for i = 0, c.num_hidden_layers - 1 do
      local value = of_layer(c, key, i)
      if type(value) ~= "number" or value < 1 or value % 1 ~= 0 then
        fail("hunyuan_v1_moe: %s is %s in layer %d, expected a whole number from 1", key, value, i)
      end
    end
  end
  for i = 0, c.num_hidden_layers - 1 do
    if of_layer(c, "moe_topk", i) > of_layer(c, "num_experts", i) then
      fail("hunyuan_v1_moe: moe_topk (%d) exceeds num_experts (%d)", of_layer(c, "moe_topk", i),
        of_layer(c, "num_experts", i))
    end
  end
end

return new_family {
  model_type = "hunyuan_v1_moe",
  models = "Hunyuan-A13B",
  remarks = "experts",
  architecture = "HunYuanMoEV1ForCausalLM",
  tasks = tasks.of_decoder("HunYuanMoEV1", {}),
  defaults = dense.defaults,
  optional = { "num_experts", "moe_topk", "eod_token_id", "pretraining_tp" },
  lists = { num_experts = true, moe_topk = true },
  aliases = { num_experts_per_tok = "moe_topk", num_local_experts = "num_experts" },
  only = { output_router_logits = false },
  complete = function(c) c.num_experts, c.moe_topk = c.num_experts or 1, c.moe_topk or 1 end,
  check = check,
  facts = function(c)
    local facts = dense.facts(c)
    function facts.experts(i)
      return experts.new(c, {
        n = of_layer(c, "num_experts", i), n_chosen = of_layer(c, "moe_topk", i),
        inner = c.intermediate_size, is_normalised = true, router = "gate.wg",
        names = { "gate_proj", "up_proj", "down_proj" }, shared = c.intermediate_size,
        shared_name = "shared_mlp",
      })
    end
    return facts
  end,
}

-- A policy of random weights that often writes a call of the tool `look`, and often ends its turn.
local redco = require "redco"

local policies = { argument = 3 }

--- Returns a model and its tokenizer.
function policies.new(dtype)
  local torch, dir = redco.torch, os.getenv "REDCO_SOURCE" .. "/tests/cases/llama"
  local tokenizer = redco.Tokenizer.from_pretrained(dir)
  local call = '<call>{"arguments": {"n": ' .. policies.argument .. '}, "name": "look"}</call>'
  tokenizer:add_tokens { call }
  local model = redco.models.from_config({ model_type = "llama", vocab_size = #tokenizer,
    hidden_size = 64, intermediate_size = 112, num_hidden_layers = 2, num_attention_heads = 4,
    max_position_embeddings = 512, eos_token_id = tokenizer.eos_token_id,
  }, { generator = torch.Generator(1) })
  for name, p in pairs(model.params) do model.params[name] = p:to(dtype or "float32") end
  tokenizer.chat_template = "{% if tools %}T{% endif %}{% for m in messages %}"
    .. "{{ m.role }}: {{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}"
    .. "<call>{{ c.function | tojson }}</call>{% endfor %}{% endif %}{{ eos_token }}{% endfor %}"
    .. "{% if add_generation_prompt %}assistant: {% endif %}"
  -- The first number of all hidden states is large, and these two tokens follow from it.
  local embedding, head = model.params["model.embed_tokens.weight"], model.params["lm_head.weight"]
  torch.no_grad(function()
    embedding[{ {}, 0 }] = 0.1
    head[{ {}, 0 }] = 0
    local ids = torch.randint(3, 200, { 4, 16 }, { generator = torch.Generator(1) })
    local size = model.hidden_states(model.params, { input_ids = ids }):select(2, 0):mean():item()
    for _, token in ipairs { tokenizer:encode(call, { add_special_tokens = false })[1],
      tokenizer.eos_token_id } do
      head[token] = 0
      head[{ token, 0 }] = math.log(#tokenizer) / size
    end
  end)
  return model, tokenizer
end

return policies

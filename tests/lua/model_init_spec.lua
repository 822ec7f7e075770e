-- New models against transformers' (init_cases.json, made by tests/tools/make_init_cases.py): the
-- names and shapes of the parameters, and how they are distributed.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch

local function expect_shape(name, tensor, expected)
  testing.expect_equal(name .. " [" .. table.concat(tensor.shape, ", ") .. "]",
    name .. " [" .. table.concat(expected, ", ") .. "]")
end

-- Five standard errors of n values.
local function expect_distribution(name, tensor, expected)
  local n, mean = tensor:numel(), tensor:mean():item()
  local std = expected.std > 0 and tensor:std():item() or (tensor - mean):abs():max():item()
  if math.abs(mean - expected.mean) > 5 * expected.std / math.sqrt(n) + 1e-5
    or math.abs(std - expected.std) > 5 * expected.std / math.sqrt(2 * n) + 1e-5 then
    error(("%s has the mean %g and the deviation %g, expected %g and %g"):format(name, mean, std,
      expected.mean, expected.std), 2)
  end
end

local function expect_zero_rows(name, tensor, expected)
  if expected.std == 0 or tensor:dim() < 2 then return end
  local rows = tensor:ne(0):flatten(1):any(1):logical_not():nonzero():flatten():tolist()
  testing.expect_equal(name .. ": " .. table.concat(rows, ", "),
    name .. ": " .. table.concat(expected.zero_rows, ", "))
end

for i, case in ipairs(redco.data.json "init_cases.json") do
  testing.test(("case %d, %s"):format(i, case.config.model_type), function()
    local model = redco.models.from_config(case.config, { generator = torch.Generator(1) })
    for name, expected in pairs(case.params) do
      local tensor = model.params[name] or error("there is no parameter " .. name)
      expect_shape(name, tensor, expected.shape)
      expect_distribution(name, tensor, expected)
      expect_zero_rows(name, tensor, expected)
    end
    for name in pairs(model.params) do
      assert(case.params[name], name .. " is no parameter of transformers' model")
    end
  end)
end

testing.test("a negative padding token counts from the end of each table", function()
  local model = redco.models.from_config { model_type = "gemma3n_text", vocab_size = 31,
    vocab_size_per_layer_input = 30, pad_token_id = -1, hidden_size = 8, head_dim = 4,
    intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 2,
    num_key_value_heads = 1, num_kv_shared_layers = 0, hidden_size_per_layer_input = 4,
    laurel_rank = 2, altup_num_inputs = 2, layer_types = { "full_attention" },
    activation_sparsity_pattern = 0 }
  for name, row in pairs { embed_tokens = 30, embed_tokens_per_layer = 29 } do
    local table = model.params["model." .. name .. ".weight"]
    testing.expect_equal(tostring(table:eq(0):all(1):nonzero():item()), tostring(row))
  end
end)

testing.finish()

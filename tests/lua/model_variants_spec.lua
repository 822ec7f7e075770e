-- Models of what the reference cases leave out, against transformers: distances beyond T5's
-- buckets, stacks of different sizes, classes of images, parts of different widths. Made by
-- tests/tools/make_model_variants.py.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_close = testing.test, testing.expect_close

local configs = redco.data.json "model_variants.json"
local stored = torch.load "model_variants.safetensors"

local function stored_under(prefix)
  local found = {}
  for name, tensor in pairs(stored) do
    if name:sub(1, #prefix) == prefix then found[name:sub(#prefix + 1)] = tensor end
  end
  return found
end

for _, name in ipairs { "t5_long", "bart_uneven", "vit", "vit_gpt2_projected" } do
  local model = redco.models.from_config(configs[name])
  local params, inputs = stored_under(name .. ".p."), stored_under(name .. ".in.")

  test(name .. ": names and shapes of the parameters", function()
    for parameter, tensor in pairs(params) do
      local new = model.params[parameter] or error("there is no " .. parameter)
      testing.expect_equal(table.concat(new.shape, ", "), table.concat(tensor.shape, ", "))
    end
    for parameter in pairs(model.params) do
      assert(params[parameter], parameter .. " is none of transformers' names")
    end
  end)

  test(name .. ": logits", function()
    expect_close(model(params, inputs), stored[name .. ".out.logits"], 1e-5, 1e-5)
  end)

  test(name .. ": the loss and all gradients", function()
    local tracked = redco.tree.map(function(t) return t:clone():requires_grad_() end, params)
    local loss = model.loss(tracked, inputs)
    expect_close(loss, stored[name .. ".out.loss"], 1e-5)
    loss:backward()
    for parameter, tensor in pairs(tracked) do
      local expected = stored[name .. ".g." .. parameter]
      assert((tensor.grad ~= nil) == (expected ~= nil), parameter)
      if expected then
        local size = math.max(expected:norm():item(), 1e-3)  -- a key's bias has none
        local ok, message = pcall(expect_close, tensor.grad, expected, 1e-4, 1e-4 * size)
        if not ok then error(parameter .. ": " .. message) end
      end
    end
  end)
end

testing.finish()

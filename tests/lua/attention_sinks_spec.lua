-- Attention with sinks: one more score for each head, which takes its share of the softmax.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch

-- Attention with sinks, as its formula has it.
local function with_sinks(q, k, v, sinks, mask)
  local scores = q:matmul(k:repeat_interleave(q:size(1) / k:size(1), 1):transpose(-1, -2))
    / math.sqrt(q:size(-1)) + mask
  local more = sinks:view { 1, -1, 1, 1 }:expand { q:size(0), -1, q:size(2), 1 }
  local probs = torch.cat({ scores, more }, -1):softmax(-1):narrow(-1, 0, k:size(2))
  return probs:matmul(v:repeat_interleave(q:size(1) / v:size(1), 1))
end

testing.test("sinks take their share of the softmax", function()
  local function check(n_kv, length, past, options)
    local shapes = { { 3, 6, length, 8 }, { 3, n_kv, past + length, 8 },
      { 3, n_kv, past + length, 5 }, { 6 } }
    local inputs = {}
    for i, shape in ipairs(shapes) do
      inputs[i] = torch.randn(shape, { dtype = "float64" }):requires_grad_()
    end
    local hidden = torch.ones({ length, past + length }, { dtype = "bool" }):tril(past)
      :logical_not()
    local mask = torch.zeros({ 3, 1, length, past + length }, { dtype = "float64" })
    if options.causal or length > 1 then mask = mask:masked_fill(hidden, -math.huge) end
    local expected = with_sinks(inputs[1], inputs[2], inputs[3], inputs[4], mask)
    if options.mask == "float" then options.mask = mask end
    if options.mask == "bool" then options.mask = hidden:logical_not() end
    options.sinks, options.enable_gqa = inputs[4], n_kv < 6
    local y = redco.nn.attention(inputs[1], inputs[2], inputs[3], options)
    testing.expect_close(y, expected, 1e-9, 1e-9)
    local weights = torch.randn(y.shape, { dtype = "float64" })
    local gradients = torch.autograd.grad((y * weights):sum(), inputs)
    for i, gradient in ipairs(torch.autograd.grad((expected * weights):sum(), inputs)) do
      testing.expect_close(gradients[i], gradient, 1e-9, 1e-9)
    end
  end
  for _, n_kv in ipairs { 2, 6 } do
    check(n_kv, 4, 0, { causal = true })
    check(n_kv, 4, 3, { mask = "float" })
    check(n_kv, 4, 3, { mask = "bool" })
    check(n_kv, 1, 5, {})
    check(n_kv, 1, 5, { mask = "float" })
    check(n_kv, 4, 0, { causal = true, dropout = 1e-9, train = true, rng = redco.Rng(1) })
  end
  local q = torch.randn { 1, 2, 3, 4 }
  testing.expect_error(function()
    redco.nn.attention(q, q, q, { sinks = torch.zeros { 3 } })
  end, "sinks: expected a tensor [heads]", "[3]")
end)

testing.test("a query that sees nothing but a sink gets zeros", function()
  local q = torch.randn { 2, 2, 3, 4 }
  local mask = torch.full({ 3, 3 }, -math.huge)
  for _, length in ipairs { 1, 3 } do
    local y = redco.nn.attention(q:narrow(2, 0, length), q, q,
      { mask = mask:narrow(0, 0, length), sinks = torch.zeros { 2 } })
    testing.expect_equal(y:abs():max():item(), 0)
  end
end)

testing.finish()

--- AltUp (Baykal et al., 2023): P copies of the hidden states go through the layers. Each layer
--- predicts all of them, computes one, and corrects the others by what came out. Shapes: B batch,
--- T tokens, D size of a hidden state.
local adapter = require "redco.lora.adapter"
local blocks = require "redco.models.layers.blocks"
local native = require "redco.native"
local torch = require "redco.torch"

--- Returns { add_parameters(name, linear, norm, add), predict(params, name, x [B, T, P, D], o) ->
--- like x, correct(params, name, predicted, y [B, T, D], o) -> like x }, by the keys of Gemma 3n.
--- norm_of(params, name, x) is the norm of the router.
return function(c, norm_of)
  local n, active, clip = c.altup_num_inputs, c.altup_active_idx, c.altup_coef_clip
  local altup = {}

  function altup.add_parameters(name, linear, norm, add)
    add(name .. ".correct_output_scale", { c.hidden_size }, blocks.zeros)
    linear(name .. ".correction_coefs", n, n)
    linear(name .. ".prediction_coefs", n, n * n)
    linear(name .. ".modality_router", c.hidden_size, n)
    norm(name .. ".router_norm", { c.hidden_size })
  end

  -- Training limits the weights of the coefficients.
  local function coefficients(params, name, modalities, o)
    if not o.train or not clip then return blocks.linear(params, name, modalities, o) end
    adapter.refuse(params, name)
    return native.linear(modalities, params[name .. ".weight"]:clamp(-clip, clip))
  end

  local function modalities_of(params, name, x, o)
    local y = norm_of(params, name .. ".router_norm", x) * (1 / c.hidden_size)
    y = blocks.linear(params, name .. ".modality_router", y, o)
    return y:to(blocks.wide_dtype(y)):tanh():to(x.dtype)
  end

  function altup.predict(params, name, x, o)
    local modalities = modalities_of(params, name, x:select(2, active), o)
    local all = coefficients(params, name .. ".prediction_coefs", modalities, o)
    return all:view { x:size(0), x:size(1), n, n }:matmul(x) + x
  end

  function altup.correct(params, name, predicted, y, o)
    local all = coefficients(params, name .. ".correction_coefs",
      modalities_of(params, name, y, o), o) + 1
    local change = y - predicted:select(2, active)
    return change:unsqueeze(2) * all:unsqueeze(-1) + predicted
  end

  --- Returns copies [B, T, P, D] of embeddings x [B, T, D].
  function altup.spread(params, name, x, o)
    local copies, size = { x }, altup.magnitude(x)
    for i = 1, n - 1 do
      local y = blocks.linear(params, ("%s.%d"):format(name, i - 1), x, o)
      copies[i + 1] = y * size / altup.magnitude(y, 1e-5)
    end
    return torch.stack(copies, 2)
  end

  --- Returns the mean [B, T, D] of the copies x [B, T, P, D].
  function altup.gather(params, name, x, o)
    local sum = x:select(2, 0)
    local size = altup.magnitude(sum)
    for i = 1, n - 1 do
      local y = blocks.linear(params, ("%s.%d"):format(name, i - 1), x:select(2, i), o)
      sum = sum + y * size / altup.magnitude(y, 1e-5)
    end
    return sum / n
  end

  --- Returns the root of the mean square of x [..., D]: [..., 1].
  function altup.magnitude(x, least)
    local y = x:square():mean({ -1 }, true)
    return (least and y:clamp(least) or y):sqrt()
  end

  return altup
end

--- The reference cases of algorithms: their arrays, and the networks that they use.
local redco = require "redco"
local nn, torch = redco.nn, redco.torch

local cases = {}

--- Returns the folders of a case: in this repository, and in those that REDCO_CASES names.
function cases.folders(name)
  local source = os.getenv "REDCO_SOURCE"
  local folders = { (source and source .. "/tests" or "..") .. "/cases/" .. name }
  for folder in (os.getenv "REDCO_CASES" or ""):gmatch "[^:]+" do
    local file = io.open(folder .. "/" .. name .. "/expected.json")
    if file then
      file:close()
      folders[#folders + 1] = folder .. "/" .. name
    end
  end
  return folders
end

--- Returns the figures of a case, and a function that returns the arrays whose names begin with a
--- prefix, as a tree.
function cases.read(folder)
  local arrays = torch.load(folder .. "/expected.safetensors")
  return redco.data.json(folder .. "/expected.json"), function(prefix)
    local found = {}
    for name, array in pairs(arrays) do
      local rest = name:sub(1, #prefix) == prefix and name:sub(#prefix + 1)
      if rest then
        local branch = found
        for key in rest:gmatch "([^.]+)%." do
          key = tonumber(key) and key + 1 or key
          branch[key] = branch[key] or {}
          branch = branch[key]
        end
        branch[rest:match "[^.]+$"] = array
      end
    end
    return found
  end
end

--- Fails unless the norm of the difference is at most `tolerance` of the norm of what is expected.
function cases.expect_near(actual, expected, what, tolerance)
  local function plain(x)
    return torch.is_tensor(x) and x:full():double() or torch.tensor(x, { dtype = "float64" })
  end
  actual, expected = plain(actual), plain(expected)
  local off = (actual - expected):norm():item() / math.max(expected:norm():item(), 1e-12)
  if off ~= off or off > (tolerance or 1e-5) then
    error(("%s is off by %.3g"):format(what, off), 2)
  end
end

--- Compares two trees of tensors.
function cases.expect_trees(actual, expected, what, tolerance)
  local paths, leaves = redco.tree.paths(expected), redco.tree.leaves(actual)
  for i, leaf in ipairs(redco.tree.leaves(expected)) do
    cases.expect_near(leaves[i], leaf, what .. " " .. paths[i], tolerance)
  end
end

--- The losses of one example of the case dp_sgd.
cases.private_losses = {
  conv = function(params, example)
    local x = nn.conv2d(params.conv, example.inputs:view { 1, 8, 8 }, { padding = 1 })
    x = torch.group_norm(x:unsqueeze(0), 2, { weight = params.norm.weight,
      bias = params.norm.bias }):squeeze(0)
    x = torch.avg_pool2d(torch.relu(x), 2):flatten()
    return nn.cross_entropy(nn.linear(params.fc, x), example.labels)
  end,
  text = function(params, example)
    local x = torch.embedding(params.embed.weight, example.inputs)
    x = torch.tanh(nn.layer_norm(params.norm, x)):mean(0)
    return nn.cross_entropy(nn.linear(params.fc, x), example.labels)
  end,
}

return cases

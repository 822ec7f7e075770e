-- How known models are laid out: Redco's golden layouts, or better where a comment says so.
--
-- Redco's kernels are [in, out], these weights are [out, in] (GPT-2's are [in, out]): its "(-, mp)"
-- of a kernel is dimension 0 here. What a table does not name is whole.
local models = require "layout_models"
local redco = require "redco"
local testing = require "testing"

local test = testing.test
local deployer = redco.Deployer { seed = 1, verbose = false }

local function placement_text(placement)
  if type(placement) ~= "table" then return tostring(placement) end
  return ("%d in blocks of %d"):format(placement.dim, placement.block)
end

local function decide(name, sizes, n, rules)
  local model = models[name](sizes)
  return deployer:get_sharding_rules(model.params, model.forward, rules or {}, n)
end

-- The layout with layers of one kind in one entry: { ["h.*.fc.weight"] = "0" }.
local function layout(decisions)
  local found = {}
  for _, decision in ipairs(decisions) do
    local name = decision[1]:gsub("%.%d+%.", ".*.")
    local text = placement_text(decision[2])
    if found[name] and found[name] ~= text then
      error(("the layers differ in %s: %s and %s"):format(name, found[name], text))
    end
    found[name] = text
  end
  return found
end

-- `expected`: the placements of the parameters whose names end so.
local function expect_layout(decisions, expected)
  local used, wrong = {}, {}
  for name, placement in pairs(layout(decisions)) do
    local wanted, longest = "replicate", 0
    for ending, each in pairs(expected) do
      if ("." .. name):sub(-#ending - 1) == "." .. ending then
        used[ending] = true
        if #ending > longest then wanted, longest = placement_text(each), #ending end
      end
    end
    if wanted ~= placement then
      wrong[#wrong + 1] = ("%s: expected %s, got %s"):format(name, wanted, placement)
    end
  end
  for ending in pairs(expected) do
    if not used[ending] then wrong[#wrong + 1] = "no parameter ends in " .. ending end
  end
  table.sort(wrong)
  if #wrong > 0 then error(table.concat(wrong, "\n") .. "\n" .. tostring(decisions), 2) end
end

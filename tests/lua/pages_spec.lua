-- The pages docs/for_*_users.md name what there is: in their column "here".
local redco = require "redco"
local registry = require "redco.registry"
local testing = require "testing"

local roots = { redco = redco, torch = redco.torch, nn = redco.nn }

-- Whether a dotted name leads to a value.
local function is_value(name)
  local at = roots
  for key in name:gmatch "[^.]+" do
    local is_there, value = pcall(function() return at[key] end)
    if not is_there or value == nil then return false end
    at = value
  end
  return true
end

-- The names in the call, or the fields, that a text begins with.
local function names_in(text)
  local names = {}
  local list = text and (text:match "^[%w_.:]*(%b())" or text:match "^[%w_.:]* ?(%b{})") or ""
  for name in list:gmatch "[%a_][%w_]*" do names[name] = true end
  return names
end

-- Whether code is a registered name or, in a section about a registered function, an argument or a
-- callback of that, or a field of what it makes.
local function is_of_redco(code, owner)
  if registry.text(code) or is_value(code) then return true end
  local text = owner and registry.text(owner)
  if not text then return false end
  local class = registry.text(owner:match "[^.]+$")
  return names_in(text)[code] or names_in(class)[code]
    or code:find "[({]" and text:gsub("%s+", " "):find(code, 1, true)
end

-- Whether all names in an expression that begin with `redco.`, `torch.` or `nn.` lead to a value.
local function has_values(code)
  for name in code:gmatch "%f[%w_.]%a[%w_]*%.[%w_.]*[%w_]" do
    if roots[name:match "^%a+"] and not is_value(name) then return false end
  end
  return true
end

-- Calls check(code, owner) for each piece of code in the second columns of a page's tables, `owner`
-- being the function that the section is about; returns how many, and those that are wrong.
local function check_page(page, check)
  local n, wrong, owner, n_line = 0, {}, nil, 0
  for line in io.lines(os.getenv "REDCO_SOURCE" .. "/docs/" .. page) do
    n_line = n_line + 1
    if line:find "^#" then owner = line:match "^#+ `(.+)`$" end
    for code in (line:match "^|[^|]*|([^|]*)|" or ""):gmatch "`([^`]+)`" do
      n = n + 1
      if not check(code, owner) then wrong[#wrong + 1] = ("line %d: %s"):format(n_line, code) end
    end
  end
  return n, table.concat(wrong, "\n")
end

for page, check in pairs { ["for_redco_users.md"] = is_of_redco,
  ["for_pytorch_users.md"] = has_values, ["for_transformers_users.md"] = has_values } do
  testing.test(page .. " names what there is", function()
    local n, wrong = check_page(page, check)
    testing.expect_equal(wrong, "")
    assert(n > 70, n)
  end)
end

testing.test("a name that is not there is found out", function()
  assert(is_of_redco("n_epochs", "Trainer:fit") and not is_of_redco("n_epochs", "redco.Trainer"))
  assert(is_of_redco "redco.nn" and not is_of_redco "redco.numpy")
  assert(is_of_redco("loss_fn(rng, state, params, batch, is_training)", "redco.Trainer"))
  assert(not is_of_redco("loss_fn(params, batch)", "redco.Trainer"))
  assert(not is_of_redco("jax_seed", "redco.Deployer") and not is_of_redco "Deployer:fit")
  assert(has_values "x:to(torch.float32)" and not has_values "x:to(torch.float33)")
  assert(has_values "redco.tree.leaves(params)" and not has_values "redco.optim.adamq {...}")
end)
testing.finish()

-- docs/for_redco_users.md names what there is: each name in the column "here" is a registered one,
-- or an argument, a field or a callback of what the section is about.
local redco = require "redco"
local registry = require "redco.registry"
local testing = require "testing"

-- The names in the call, or the fields, that a text begins with.
local function names_in(text)
  local names = {}
  local list = text and (text:match "^[%w_.:]*(%b())" or text:match "^[%w_.:]* ?(%b{})") or ""
  for name in list:gmatch "[%a_][%w_]*" do names[name] = true end
  return names
end

-- Whether `name` is there, in a section about the registered `owner`, or about none.
local function resolves(name, owner)
  if registry.text(name) then return true end
  local at = { redco = redco }
  for key in name:gmatch "[^.]+" do at = type(at) == "table" and at[key] or nil end
  if at then return true end
  local text = owner and registry.text(owner)
  if not text then return false end
  local class = registry.text(owner:match "[^.]+$")
  return names_in(text)[name] or names_in(class)[name]
    or name:find "[({]" and text:gsub("%s+", " "):find(name, 1, true)
end

local file = assert(io.open(os.getenv "REDCO_SOURCE" .. "/docs/for_redco_users.md"))
local owner, wrong, n_names, n_line = nil, {}, 0, 0
for line in file:lines() do
  n_line = n_line + 1
  if line:find "^#" then
    owner = line:match "^#+ `(.+)`$"
    if owner and not registry.text(owner) then wrong[#wrong + 1] = owner end
  end
  for name in (line:match "^|[^|]*|([^|]*)|" or ""):gmatch "`([^`]+)`" do
    n_names = n_names + 1
    if not resolves(name, owner) then
      wrong[#wrong + 1] = ("%d: %s"):format(n_line, name)
    end
  end
end
file:close()

testing.test("the page names what there is", function()
  assert(#wrong == 0, "not there:\n" .. table.concat(wrong, "\n"))
  assert(n_names > 120, n_names)
end)

testing.test("a name that is not there is found out", function()
  assert(resolves("n_epochs", "Trainer:fit") and not resolves("n_epochs", "redco.Trainer"))
  assert(resolves("redco.nn", nil) and not resolves("redco.numpy", nil))
  assert(resolves("loss_fn(rng, state, params, batch, is_training)", "redco.Trainer"))
  assert(not resolves("loss_fn(params, batch)", "redco.Trainer"))
  assert(not resolves("jax_seed", "redco.Deployer") and not resolves("Deployer:fit", nil))
end)
testing.finish()

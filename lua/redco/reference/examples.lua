--- The examples of the reference. Each page has a file in lua/redco/reference/examples, of this
--- form:
---
---     --- redco.tree.count
---     print(redco.tree.count { torch.ones(2), torch.ones { 3, 4 } })  --> 14
---
---     --- Trainer:train (after redco.Trainer)
---     trainer:train { examples = examples, per_device_batch_size = 2 }
---
--- The head of a section is the full name of an entry. With "(after NAME)", it continues the
--- example of another entry. `redco`, `torch` and `nn` are locals. `-->` shows what is printed.
local native = require "redco.native"
local registry = require "redco.registry"
local surface = require "redco.reference.surface"

local examples = {}

--- The lines that stand before every example.
examples.head = 'local redco = require "redco"\nlocal torch, nn = redco.torch, redco.nn\n'

-- Reads the sections of a file, by full name.
local function read(text)
  local sections, last = {}, nil
  for line in text:gmatch "([^\n]*)\n" do
    local name, rest = line:match "^%-%-%- ([%w_.:]+)(.*)$"
    if name then
      assert(not sections[name], "two examples of " .. name)
      last = { after = rest:match "^ %(after ([%w_.:]+)%)$", code = "" }
      sections[name] = last
    elseif last then
      last.code = last.code .. line .. "\n"
    end
  end
  for _, section in pairs(sections) do section.code = section.code:match "^(.-)%s*$" end
  return sections
end

local files = {}

--- Returns the examples of a page by full name: {code, after}. `after` may be nil.
function examples.of_page(page)
  files[page] = files[page] or read(native.embedded("redco.reference.examples." .. page) or "")
  return files[page]
end

--- Returns the example of a full name; nil if it has none.
function examples.of(full_name)
  local page = surface.page(full_name)
  return page and examples.of_page(page)[full_name]
end

--- Returns the example of a full name as a complete script: with the examples that it continues.
function examples.script(full_name)
  local code, example = "", examples.of(full_name)
  while example do
    code = example.code .. "\n" .. code
    example = example.after and assert(examples.of(example.after), example.after)
  end
  return examples.head .. code
end

-- Returns the full name of a call in an example, "nn.linear" or ":fit"; nil if the reference has no
-- such entry or it is everywhere.
local function called(name)
  if name == "torch.tensor" then return nil end
  if name:find "%w%." then
    for _, full_name in ipairs { name, "redco." .. name } do
      local entry = surface.page(full_name) and surface.read(full_name)
      if entry and entry.kind == "function" then return full_name end
    end
    return nil
  elseif name:sub(1, 1) ~= ":" then
    return nil
  end
  local found, n = nil, 0
  for _, full_name in ipairs(registry.names()) do
    if full_name:sub(-#name) == name then found, n = full_name, n + 1 end
  end
  return n == 1 and surface.page(found) and not found:find "^Tensor:" and found or nil
end

--- Returns the other entries that the example of a full name calls, in their order.
function examples.uses(full_name)
  local found, seen = {}, { [full_name] = true }
  local code = examples.of(full_name).code:gsub("%-%-[^\n]*", ""):gsub('"[^"]*"', "")
  for colon, name in code:gmatch "(:?)%f[%w_]([%a_][%w_.]*)" do
    local other = called(colon .. name)
    if other and not seen[other] then found[#found + 1] = other end
    seen[other or ""] = true
  end
  return found
end

return examples
